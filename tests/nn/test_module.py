import copy
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import nn, optim
from mpsim.formats import FP16, FP32
from mpsim.rounding import round_to
from mpsim.tensor import Tensor, matrix_unit


class Branches(nn.Module):
    """Modules as attributes, in a list and in a tuple, with a weight used twice."""

    def __init__(self) -> None:
        self.first = nn.Linear(2, 3, rng=0)
        self.left = [nn.Linear(3, 3, rng=1), nn.ReLU()]
        self.right = (nn.Linear(3, 1, bias=False, rng=2),)
        self.tied = self.left[0]
        self.scale = nn.Parameter([2.0])

    def forward(self, x: Any) -> Tensor:
        h = self.tied(self.left[1](self.left[0](self.first(x))))
        return self.right[0](h) * self.scale


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3, rng=0), nn.Tanh(), nn.Sequential(nn.Linear(3, 1, rng=1)))


# Parameters.


def test_parameters_have_dotted_names_as_in_torch():
    assert [name for name, _ in network().named_parameters()] == ["0.weight", "0.bias", "2.0.weight", "2.0.bias"]


def test_every_parameter_is_found_once_under_its_first_name():
    model = Branches()
    names = [name for name, _ in model.named_parameters()]
    assert names == [
        "scale",
        "first.weight",
        "first.bias",
        "left.0.weight",
        "left.0.bias",
        "right.0.weight",
    ]
    assert len(list(model.parameters())) == len(names)
    optim.SGD(model.parameters(), lr=1.0)  # would refuse the same tensor twice


def test_children_are_modules_and_named_children_pairs_as_in_torch():
    model = network()
    assert [type(m) for m in model.children()] == [nn.Linear, nn.Tanh, nn.Sequential]
    assert [name for name, _ in model.named_children()] == ["0", "1", "2"]
    assert [name for name, _ in Branches().named_children()] == ["first", "left.0", "left.1", "right.0", "tied"]


def test_a_plain_tensor_is_no_parameter():
    model = nn.Module()
    model.weight = Tensor([1.0], requires_grad=True)  # type: ignore[attr-defined]
    assert list(model.parameters()) == []


def test_a_parameter_requires_grad_and_takes_a_format():
    p = nn.Parameter([1.0, 1e-8], format="fp16")
    assert (p.requires_grad, p.format, p.data.tolist()) == (True, FP16, [1.0, 0.0])


def test_zero_grad_forgets_the_gradients_of_all_below():
    model = Branches()
    model(np.ones((1, 2), np.float32)).backward()
    assert all(p.grad is not None for p in model.parameters())
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_a_weight_used_twice_gets_both_gradients():
    layer = nn.Linear(2, 2, bias=False, rng=0)
    x = Tensor(np.array([[1.0, 2.0]]), format="fp64")
    layer.to("fp64")
    nn.Sequential(layer, layer)(x).sum().backward()
    w, one = layer.weight.data, np.ones((1, 2))
    h = x.data @ w.T
    want = one.T @ h + (one @ w).T @ x.data
    assert layer.weight.grad is not None
    np.testing.assert_allclose(layer.weight.grad.data, want, rtol=1e-14)  # a few binary64 operations of order 1


# State.


def test_a_state_goes_round():
    one, other = network(), nn.Sequential(nn.Linear(2, 3, rng=5), nn.Tanh(), nn.Sequential(nn.Linear(3, 1, rng=6)))
    other.load_state_dict(one.state_dict())
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert_same_bits(a.data, b.data)


def test_a_state_is_a_copy_on_the_way_out_and_in():
    model = network()
    state = model.state_dict()
    state["0.bias"][:] = 7.0
    assert not (model[0].bias.data == 7.0).any()
    model.load_state_dict(state)
    state["0.bias"][:] = 8.0
    assert model[0].bias.data.tolist() == [7.0] * 3


def test_a_state_is_rounded_to_the_format_of_the_parameters():
    model = network().to("fp16")
    state = {name: np.full(a.shape, 0.1) for name, a in model.state_dict().items()}
    model.load_state_dict(state)
    assert_same_bits(model[0].bias.data, round_to(np.full(3, 0.1), "fp16").astype(np.float32))
    assert model[0].bias.format is FP16


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda s: s.pop("0.bias"), ValueError, r"missing \['0.bias'\], unexpected none"),
        (lambda s: s.update(extra=np.ones(1)), ValueError, r"missing none, unexpected \['extra'\]"),
        (lambda s: s.update({"2.0.bias": np.ones(2)}), ValueError, r"2.0.bias has shape \(2,\); \(1,\) is needed"),
        (lambda s: s.update({"2.0.bias": np.array([1j])}), TypeError, "complex"),
    ],
)
def test_a_wrong_state_is_an_error_that_changes_nothing(change: Any, error: type[Exception], message: str):
    model = network()
    before = model.state_dict()
    wrong = {name: a + 1 for name, a in before.items()}
    change(wrong)
    with pytest.raises(error, match=message):
        model.load_state_dict(wrong)
    for name, a in model.state_dict().items():
        assert_same_bits(a, before[name])


# Formats and modes.


def test_to_rounds_every_parameter_in_place_and_forgets_gradients():
    model = network()
    parameters, before = list(model.parameters()), model.state_dict()
    model(np.ones((1, 2), np.float32)).backward()
    assert model.to("fp16") is model
    for p, (name, q) in zip(parameters, model.named_parameters(), strict=True):
        assert p is q
        assert p.grad is None
        assert p.format is FP16
        assert p.requires_grad
        assert_same_bits(p.data, round_to(before[name], "fp16"))


def test_to_an_unknown_format_changes_nothing():
    model = network()
    with pytest.raises(ValueError, match="fp16"):
        model.to("fp17")
    assert all(p.format is FP32 for p in model.parameters())


def test_train_and_eval_reach_all_below():
    model = Branches()
    assert model.training
    assert model.eval() is model
    assert [m.training for m in (model, model.first, model.left[1], model.right[0])] == [False] * 4
    assert model.train() is model
    assert model.left[1].training
    model.train(False)
    assert not model.first.training


def test_a_copied_module_computes_the_same_and_learns_apart():
    model = network()
    x = np.array([[0.5, -0.25]], np.float32)
    twin = copy.deepcopy(model)
    with matrix_unit("v100"):
        assert_same_bits(twin(x).data, model(x).data)
    twin(x).backward()
    assert all(p.grad is None for p in model.parameters())


def test_a_module_without_forward_says_so():
    class Empty(nn.Module):
        pass

    with pytest.raises(TypeError, match="Empty must define forward"):
        Empty()(1)


# Buffers and lists.


class Counting(nn.Module):
    def __init__(self) -> None:
        self.weight = nn.Parameter([1.0])
        self.register_buffer("mean", Tensor([0.1], format="fp32"))
        self.register_buffer("steps", np.array(0, np.int64))
        self.register_buffer("scratch", Tensor([5.0]), persistent=False)
        self.register_buffer("absent", None)


def test_buffers_belong_to_the_state_but_are_not_learned():
    model = nn.Sequential(Counting(), nn.ReLU(), Counting())
    names = [f"{i}.{name}" for i in (0, 2) for name in ("weight", "mean", "steps")]
    assert list(model.state_dict()) == names
    assert [name for name, _ in model.named_buffers()] == [
        f"{i}.{name}" for i in (0, 2) for name in ("mean", "steps", "scratch")
    ]
    assert len(list(model.buffers())) == 6
    assert len(list(model.parameters())) == 2


def test_buffers_are_loaded_in_place_and_counts_stay_integers():
    model = Counting()
    model.load_state_dict({"weight": [2.0], "mean": [0.5], "steps": 7})
    assert (model.mean.data.tolist(), model.steps.dtype, int(model.steps)) == ([0.5], np.int64, 7)
    state = model.state_dict()
    state["steps"][...] = 9
    assert int(model.steps) == 7


def test_buffers_are_rounded_with_the_parameters():
    model = Counting().to("fp16")
    assert model.mean.format is FP16
    assert_same_bits(model.mean.data, round_to(np.float32([0.1]), "fp16"))
    assert int(model.steps) == 0


def test_a_buffer_is_a_tensor_or_integers():
    with pytest.raises(TypeError, match="register_buffer: x is float; a Tensor or integers are needed"):
        nn.Module().register_buffer("x", 0.5)  # type: ignore[arg-type]


def test_a_state_that_need_not_fit_sets_what_fits():
    model = network()
    before = model.state_dict()
    model.load_state_dict({"0.bias": np.ones(3), "other": np.ones(2)}, strict=False)
    assert model.state_dict()["0.bias"].tolist() == [1.0] * 3
    assert_same_bits(model.state_dict()["0.weight"], before["0.weight"])
    with pytest.raises(ValueError, match=r"0\.bias has shape"):
        model.load_state_dict({"0.bias": np.ones(2)}, strict=False)


def test_a_list_of_modules_is_found_by_position():
    layers = nn.ModuleList([nn.Linear(2, 2, rng=0)]).append(nn.ReLU()).extend([nn.Linear(2, 1, rng=1)])
    assert [name for name, _ in layers.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert (len(layers), layers[-1].weight.shape, len(layers[1:])) == (3, (1, 2), 2)
    assert isinstance(layers[1:], nn.ModuleList)
    x: Any = np.ones((1, 2), np.float32)
    for layer in layers:
        x = layer(x)
    assert x.shape == (1, 1)
    with pytest.raises(TypeError, match="ModuleList must define forward"):
        layers(x)


def test_a_part_of_a_sequence_is_a_sequence():
    model, x = network(), np.ones((1, 2), np.float32)
    assert_same_bits(model[2:](model[:2](x)).data, model(x).data)


def test_every_module_is_found_once_with_its_name():
    model = Branches()
    assert [name for name, _ in model.named_modules()] == ["", "first", "left.0", "left.1", "right.0"]
    assert len(list(model.modules())) == 5


def test_parameters_can_be_frozen():
    model = network().requires_grad_(False)
    assert model(np.ones((1, 2), np.float32)).is_leaf
    model[0].requires_grad_()
    model(np.ones((1, 2), np.float32)).sum().backward()
    assert [p.grad is not None for p in model.parameters()] == [True, True, False, False]


def test_options_reach_forward():
    class Scaled(nn.Module):
        def forward(self, x: float, *, by: float = 1.0) -> float:
            return x * by

    assert Scaled()(3.0, by=2.0) == 6.0
