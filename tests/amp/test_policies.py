from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import amp, nn, optim
from mpsim.amp.layers import select
from mpsim.formats import BF16, FP16, FP32, FP64
from mpsim.rounding import round_to
from mpsim.tensor import Tensor, settings

X = np.array([[0.1, 2.0], [3.0, -1.0]], np.float32)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(2, 3, rng=0),
        nn.BatchNorm1d(3),
        nn.ReLU(),
        nn.Linear(3, 3, rng=1),
        nn.Linear(3, 2, rng=2),
        nn.Softmax(-1),
    )


# Strings.


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("float32", (FP32, FP32, FP32)),
        ("float16", (FP16, FP16, FP16)),
        ("float64", (FP64, FP64, FP64)),
        ("half", (FP16, FP16, FP16)),
        ("mixed_float16", (FP32, FP16, FP16)),
        ("mixed_bfloat16", (FP32, BF16, BF16)),
        ("params=float32,compute=half,output=full", (FP32, FP16, FP32)),
        ("p=bf16, o=fp32", (BF16, BF16, FP32)),
        ("c=half", (FP32, FP16, FP16)),
        ("o=half", (FP32, FP32, FP16)),
    ],
)
def test_a_string_is_read_as_its_system_does(text: str, want: tuple[object, ...]):
    policy = amp.get_policy(text)
    assert (policy.params, policy.compute, policy.output) == want


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixed_float15", "float1"),
        ("params=fp16,params=fp32", "part 'params=fp32'"),
        ("compute=fp16,storage=fp32", "part 'storage=fp32'"),
        ("float8_from_mixed_bfloat16", "quantises"),
    ],
)
def test_a_wrong_string_says_what_a_policy_is(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        amp.get_policy(text)


def test_keras_scales_the_loss_for_mixed_float16_alone():
    names = ("float32", "float16", "mixed_float16", "mixed_bfloat16")
    assert [amp.get_policy(name).scaler for name in names] == [None, None, "keras", None]


def test_trees_are_cast_and_what_is_no_tensor_stays():
    policy, tree = amp.get_policy("p=fp32,c=bf16,o=fp16"), {"a": [Tensor(1.0), 3], "b": (Tensor(2.0), None)}
    for cast, fmt in ((policy.cast_to_compute, BF16), (policy.cast_to_output, FP16), (policy.cast_to_params, FP32)):
        new = cast(tree)
        assert new["a"][0].format is new["b"][0].format is fmt
        assert (new["a"][1], new["b"][1]) == (3, None)


def test_in_a_region_variables_are_read_through_a_cast():
    layer = nn.Linear(2, 2, rng=0)
    with amp.get_policy("mixed_float16").region(unit="v100"):
        assert settings().unit == "v100"
        y = layer(X)
        assert (y + Tensor(1.0)).format is FP16
    y.sum().backward()
    assert (y.format, layer.weight.format, layer.weight.grad.format) == (FP16, FP32, FP32)
    assert settings().policy is None


# Layers with a format of their own.


def test_layers_are_chosen_by_place_kind_and_name():
    model = network()
    for which, want in {"first": "0", "last": "4", "batch norm": "1", "softmax": "5", "3": "3"}.items():
        assert list(select(model, which)) == [want]
    assert list(select(model, "linear")) == ["0", "3", "4"]
    with pytest.raises(ValueError, match="did you mean 'batch norm'"):
        select(model, "batchnorm")


@pytest.mark.parametrize("default", ["autocast", "policy"])
def test_overridden_layers_run_in_fp32_and_the_others_in_the_low_format(default: str):
    model, seen = network(), {}
    region = amp.autocast("fp16") if default == "autocast" else amp.get_policy("mixed_float16").region()
    overrides = {"first": "fp32", "batch norm": "fp32", "softmax": "fp32", "last": "fp32"}
    with region, amp.override_formats(model, overrides):
        h = Tensor(X)
        for name, layer in model.named_children():
            h = layer(h)
            seen[name] = h.format.name
    assert {name for name, fmt in seen.items() if fmt == "fp16"} == {"3"} | ({"2"} if default == "policy" else set())
    assert all("forward" not in vars(layer) for layer in model.modules())


def test_an_override_gives_the_bits_of_the_layer_outside():
    layer = nn.Linear(2, 2, rng=0)
    with amp.autocast("fp16"), amp.override_formats(layer, {"first": "fp32"}):
        y = layer(X)
    assert_same_bits(y.data, layer(X).data)


def test_the_later_of_two_overrides_holds():
    layer = nn.Linear(2, 2, rng=0)
    with amp.override_formats(layer, {"linear": "fp16", "last": "bf16"}), amp.override_formats(layer, {}):
        assert layer(X).format is BF16
    with amp.override_formats(layer, {"first": "fp16"}):
        with amp.override_formats(layer, {"first": "bf16"}):
            assert layer(X).format is FP16  # the outer one is nearer to the layer
        assert layer(X).format is FP16
    assert layer(X).format is FP32


# apex.


@pytest.mark.parametrize(
    ("name", "weight", "norm", "output", "scale"),
    [
        ("O0", FP32, FP32, FP32, 1.0),
        ("O1", FP32, FP32, FP32, 65536.0),
        ("O2", FP16, FP32, FP32, 65536.0),
        ("O3", FP16, FP16, FP32, 1.0),
    ],
)
def test_a_level_sets_the_formats_of_its_row(name: str, weight: object, norm: object, output: object, scale: float):
    level, model = amp.apex_level(name), network()
    level.convert(model)
    optimizer = optim.SGD(model.parameters(), lr=2.0**-14, update=level.update)
    scaler = level.scaler()
    with level.region(model, unit="v100"):
        y = model(np.random.default_rng(3).normal(size=(16, 2)).astype(np.float32))
        loss = (y * y).mean() * 2.0**-4
    assert (model[0].weight.format, model[1].weight.format, y.format) == (weight, norm, output)
    assert scaler.get_scale() == scale
    before = model[4].weight.data.copy()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.skipped == 0
    masters = [state.get("master") for state in optimizer.state_dict()["state"].values()]
    assert any(master is not None for master in masters) == (name == "O2")
    # In FP16 a step this small is lost but in the master weights.
    assert (model[4].weight.data == before).all() == (weight is FP16)
    if name == "O2":
        assert (masters[6] != before).any()
        assert_same_bits(round_to(masters[6], "fp16"), before)


def test_o3_keeps_no_master_weights_and_never_skips():
    level, layer = amp.apex_level("O3"), nn.Linear(2, 1, rng=0)
    optimizer, scaler = optim.SGD(level.convert(layer).parameters(), lr=1.0, update=level.update), level.scaler()
    with level.region(layer):
        scaler.scale(layer(X).sum()).backward()
    layer.weight.grad.data = np.array([[np.inf, 1.0]], np.float32)
    scaler.step(optimizer)
    scaler.update()
    assert (scaler.skipped, layer.weight.data[0, 0]) == (0, -np.inf)


@pytest.mark.parametrize("name", ["O2", "O3"])
def test_a_converted_model_gets_floating_point_inputs_in_fp16_and_others_as_they_are(name: str):
    class Watched(nn.Module):
        def forward(self, *inputs: Any, **options: Any) -> Any:
            self.seen = {**dict(enumerate(inputs)), **options}
            return inputs[0]

    level, model = amp.apex_level(name), Watched()
    index, tensor = np.array([[0, 2]]), Tensor(X)
    states = (tensor, None)
    with level.region(model):
        y = model(tensor, index, 0.5, x=tensor, data=X, rows=X.tolist(), both=[tensor], states=states, flag=True)
    seen = model.seen
    assert [seen[key].format for key in (0, "x", "data", "rows")] == [FP16] * 4
    assert seen["both"][0].format is seen["states"][0].format is FP16
    assert seen[1] is index
    assert (seen[2], seen["flag"], seen["states"][1]) == (0.5, True, None)
    assert y.format is FP32


def test_a_converted_model_looks_up_embeddings():
    level, model = amp.apex_level("O2"), nn.Sequential(nn.Embedding(3000, 2, rng=0), nn.Linear(2, 1, rng=1))
    with level.region(level.convert(model)):
        y = model(np.array([2049, 2]))  # FP16 has no 2049
        z = model([2049, 2])
    assert_same_bits(y.data, z.data)
    assert_same_bits(y.data, model(np.array([2049, 2])).data)


def test_a_level_goes_by_its_name_in_either_case_and_an_unknown_one_is_an_error():
    assert amp.apex_level("o1") is amp.apex_level("O1")
    with pytest.raises(ValueError, match=r"name is 'O4': did you mean 'O.'\? it must be one of O0, O1, O2, O3"):
        amp.apex_level("O4")
