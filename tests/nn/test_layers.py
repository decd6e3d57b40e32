import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import nn
from mpsim.formats import BF16, FP16, FP64
from mpsim.gradcheck import gradcheck
from mpsim.rounding import round_to
from mpsim.tensor import Tensor

# Linear.


def test_linear_is_initialised_uniformly_within_one_over_the_root_of_its_inputs():
    layer = nn.Linear(400, 50, rng=0)
    for p in (layer.weight, layer.bias):
        assert p is not None
        assert np.abs(p.data).max() <= 1 / 20
        # The largest of n uniform numbers is below 0.9 with probability 0.9**n: under 1 % for 50.
        assert np.abs(p.data).max() > 0.9 / 20
    # A uniform distribution on +-b has standard deviation b/sqrt(3); 20000 numbers know it to about 0.4 %.
    assert abs(float(layer.weight.data.std()) * np.sqrt(3) * 20 - 1) < 0.02


def test_the_same_seed_gives_the_same_layer_and_a_generator_goes_on():
    assert_same_bits(nn.Linear(3, 2, rng=5).weight.data, nn.Linear(3, 2, rng=5).weight.data)
    assert (nn.Linear(3, 2, rng=5).weight.data != nn.Linear(3, 2, rng=6).weight.data).any()
    rng = np.random.default_rng(5)
    first, second = nn.Linear(3, 2, rng=rng), nn.Linear(3, 2, rng=rng)
    assert_same_bits(first.weight.data, nn.Linear(3, 2, rng=5).weight.data)
    assert (first.weight.data != second.weight.data).any()
    assert (nn.Linear(3, 2).weight.data != nn.Linear(3, 2).weight.data).any()


def test_making_a_layer_leaves_the_global_random_state_alone():
    np.random.seed(0)  # noqa: NPY002 - the state that must not change
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    nn.Linear(3, 2)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_linear_weights_are_rounded_once_to_their_format():
    low, wide = nn.Linear(3, 2, format="fp16", rng=5), nn.Linear(3, 2, format="fp64", rng=5)
    assert (low.weight.format, wide.weight.format) == (FP16, FP64)
    assert_same_bits(low.weight.data, round_to(wide.weight.data, "fp16").astype(np.float32))


def test_linear_without_bias_has_none():
    layer = nn.Linear(3, 2, bias=False, rng=0)
    assert layer.bias is None
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert repr(layer) == "Linear(3, 2, bias=False)"


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3), (0, 3)])
def test_linear_maps_the_last_axis(shape: tuple[int, ...]):
    layer = nn.Linear(3, 2, format="fp64", rng=0)
    x = np.random.default_rng(0).normal(size=shape)
    assert layer.bias is not None
    got = layer(x)
    assert got.shape == (*shape[:-1], 2)
    np.testing.assert_allclose(got.data, x @ layer.weight.data.T + layer.bias.data, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("shape", [(), (2,), (3, 2)])
def test_linear_refuses_another_number_of_inputs(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"linear: input is \(.*\), weight is \(4, 3\); input.shape\[-1\] must equal"):
        nn.Linear(3, 4, rng=0)(np.ones(shape, np.float32))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 4), (1, 4)])
def test_a_bias_must_have_one_element_for_each_output(shape: tuple[int, ...]):
    """Others would broadcast, and get a gradient of another shape than their own."""
    with pytest.raises(ValueError, match=r"linear: weight is \(4, 3\), bias is .*; bias.shape must be \(4,\)"):
        nn.functional.linear(np.ones((2, 3)), Tensor(np.ones((4, 3))), Tensor(np.ones(shape)))


@pytest.mark.parametrize("shape", [(), (3,), (1, 4, 3)])
def test_a_weight_must_be_a_matrix(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"linear: weight is .*; it must be \[out_features, in_features\]"):
        nn.functional.linear(np.ones((2, 3)), Tensor(np.ones(shape)))


def test_a_layer_of_no_outputs_and_one_of_no_inputs_work():
    nn.Linear(3, 0, rng=0)(np.ones((2, 3), np.float32)).sum().backward()
    layer = nn.Linear(0, 2, rng=0)
    layer(np.ones((2, 0), np.float32)).sum().backward()
    assert layer.bias is not None
    assert layer.bias.grad is not None
    assert layer.bias.grad.data.tolist() == [2.0, 2.0]


# Activations and sequences.


def test_activations_are_the_functions():
    x = Tensor([-1.0, 0.5])
    assert_same_bits(nn.ReLU()(x).data, nn.functional.relu(x).data)
    assert_same_bits(nn.Tanh()(x).data, nn.functional.tanh(x).data)
    assert nn.ReLU()(x).data.tolist() == [0.0, 0.5]


def test_functions_take_arrays():
    x = np.array([-1.0, 2.0], np.float32)
    assert nn.functional.relu(x).data.tolist() == [0.0, 2.0]
    assert nn.ReLU()(x).data.tolist() == [0.0, 2.0]
    assert nn.Tanh()(x).shape == (2,)


def test_a_sequence_applies_its_modules_in_order():
    a, b = nn.Linear(2, 3, rng=0), nn.Linear(3, 1, rng=1)
    model, x = nn.Sequential(a, nn.ReLU(), b), np.ones((2, 2), np.float32)
    assert_same_bits(model(x).data, b(a(x).relu()).data)
    assert (len(model), model[0], model[-1], list(model)[2]) == (3, a, b, b)
    assert nn.Sequential()(x) is x


# Losses.


def test_cross_entropy_is_minus_the_mean_log_softmax_of_the_labels():
    x = np.random.default_rng(0).normal(size=(4, 3))
    labels = np.array([2, 0, 1, 1])
    p = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    want = -np.log(p[np.arange(4), labels]).mean()
    for loss in (nn.functional.cross_entropy, nn.CrossEntropyLoss()):
        # About ten binary64 operations on numbers of order 1.
        np.testing.assert_allclose(loss(Tensor(x), labels).item(), want, rtol=1e-14)
    assert gradcheck(lambda x: nn.functional.cross_entropy(x, labels), Tensor(x, requires_grad=True))


@pytest.mark.parametrize("labels", [[1, 0], np.array([1, 0], np.uint8), np.array([1, 0], np.int64)], ids=repr)
def test_labels_may_have_any_integer_type(labels: object):
    assert nn.functional.nll_loss(Tensor([[0.0, -1.0], [-3.0, 0.0]]), labels).item() == 2.0


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ([0.0, 1.0], TypeError, "target has dtype float64; integer"),
        ([0, 1, 2], ValueError, r"target has shape \(3,\); \(2,\) is needed"),
        ([[0], [1]], ValueError, r"target has shape \(2, 1\); \(2,\) is needed"),
        ([0, 3], ValueError, "target reaches from 0 to 3; labels must be 0 to 2"),
        ([-1, 2], ValueError, "target reaches from -1 to 2"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: object, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        nn.functional.cross_entropy(Tensor(np.zeros((2, 3))), labels)


def test_logits_must_have_classes():
    for loss in (nn.functional.cross_entropy, nn.functional.nll_loss):
        with pytest.raises(
            ValueError, match=r"input has shape \(\); \(batch, classes, ...\) or \(classes,\) is needed"
        ):
            loss(Tensor(np.zeros(())), 0)


def test_the_loss_of_no_rows_is_nan_as_in_torch():
    assert np.isnan(nn.functional.cross_entropy(Tensor(np.zeros((0, 3))), np.zeros(0, np.int64)).item())


def test_the_loss_of_low_precision_logits_is_rounded_after_each_operation():
    x = Tensor(np.random.default_rng(1).normal(size=(4, 3)), format="bf16")
    labels = np.array([0, 1, 2, 0])
    log_p = round_to(nn.functional.log_softmax(x.to("fp32")).data, "bf16")
    want = round_to(-log_p[np.arange(4), labels].sum() / np.float32(4), "bf16")
    loss = nn.functional.cross_entropy(x, labels)
    assert loss.format is BF16
    assert_same_bits(loss.data, want)
