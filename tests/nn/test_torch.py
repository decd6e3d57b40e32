"""Functions and layers beside torch's, in binary64: results, gradients, running statistics and states."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpsim
from mpsim import nn, optim
from mpsim.formats import FP64
from mpsim.nn import functional as F  # noqa: N812 - as with torch
from mpsim.tensor import Tensor

torch = pytest.importorskip("torch")
TF = torch.nn.functional

# Up to some hundred binary64 operations on numbers of order 1, whose sums may cancel to a hundredth.
RTOL, ATOL = 1e-11, 1e-13

Shapes = tuple[tuple[int, ...], ...]


def compare(ours: Callable[..., Any], theirs: Callable[..., Any], arrays: list[Any]) -> None:
    """Compare the results, and the gradients of all inputs for one cotangent."""
    a = [Tensor(x, requires_grad=True) for x in arrays]
    b = [torch.tensor(x, requires_grad=True) for x in arrays]
    y, z = ours(*a), theirs(*b)
    assert y.format is FP64
    assert y.shape == tuple(z.shape)
    np.testing.assert_allclose(y.data, z.detach().numpy(), RTOL, ATOL)
    cotangent = np.random.default_rng(5).normal(size=y.shape)
    y.backward(cotangent)
    z.backward(torch.tensor(cotangent))
    for i, (s, t) in enumerate(zip(a, b, strict=True)):
        if t.grad is None:
            continue
        assert s.grad is not None, f"no gradient of input {i}"
        np.testing.assert_allclose(s.grad.data, t.grad.numpy(), RTOL, ATOL, err_msg=f"gradient of input {i}")


def values(*shapes: tuple[int, ...], positive: bool = False) -> list[Any]:
    rng = np.random.default_rng(3)
    return [np.abs(x) + 0.1 if positive else x for x in (rng.normal(size=shape) for shape in shapes)]


TIES = np.array([[1.0, 3.0, 3.0, -1.0], [2.0, 2.0, 2.0, 0.0]])
MASK = np.array([[True, False, True, True], [False, False, True, True]])
INDEX = np.array([[0, 2, 1], [1, 1, 0]])

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any]]] = {
    "maximum": (lambda a, b: a.maximum(b), torch.maximum, [TIES, np.full((2, 4), 2.0)]),
    "minimum": (lambda a, b: a.minimum(b), torch.minimum, [TIES, np.full((4,), 2.0)]),
    "amax": (lambda a: a.amax(1), lambda a: a.amax(1), [TIES]),
    "amin of all": (lambda a: a.amin(), lambda a: a.amin(), [TIES]),
    "max of all": (lambda a: a.max(), lambda a: a.max(), [TIES]),
    "max": (lambda a: a.max(1).values, lambda a: a.max(1).values, [TIES]),
    "min, kept": (lambda a: a.min(0, keepdim=True).values, lambda a: a.min(0, keepdim=True).values, [TIES]),
    "abs at 0": (lambda a: a.abs(), torch.abs, [TIES]),
    "clamp at its ends": (lambda a: a.clamp(0.0, 2.0), lambda a: a.clamp(0.0, 2.0), [TIES]),
    "clip": (lambda a: a.clip(max=2.0), lambda a: a.clip(max=2.0), [TIES]),
    "pow": (lambda a, b: a**b, torch.pow, values((3, 4), (4,), positive=True)),
    "square": (lambda a: a**2, lambda a: a**2, [TIES]),
    "cube": (lambda a: a**3, lambda a: a**3, [TIES]),
    "pow of 0": (lambda a, b: a**b, torch.pow, [np.zeros(3), np.array([0.0, 1.0, 2.0])]),
    "number to the power": (lambda a: 2.0**a, lambda a: 2.0**a, [TIES]),
    "var": (lambda a: a.var(1), lambda a: a.var(1), values((3, 4))),
    "var of all": (lambda a: a.var(correction=0), lambda a: a.var(correction=0), values((3, 4))),
    "where": (
        lambda a, b: mpsim.where(MASK, a, b),
        lambda a, b: torch.where(torch.tensor(MASK), a, b),
        values((2, 4), (4,)),
    ),
    "masked_fill": (
        lambda a: a.masked_fill(MASK, -2.0),
        lambda a: a.masked_fill(torch.tensor(MASK), -2.0),
        values((2, 4)),
    ),
    "gather": (lambda a: a.gather(1, INDEX), lambda a: a.gather(1, torch.tensor(INDEX)), values((2, 4))),
    "scatter_add": (
        lambda a, b: a.scatter_add(1, INDEX, b),
        lambda a, b: a.scatter_add(1, torch.tensor(INDEX), b),
        values((3, 4), (2, 3)),
    ),
    "rsqrt": (lambda a: a.rsqrt(), torch.rsqrt, values((5,), positive=True)),
    "erf": (lambda a: a.erf(), torch.erf, [np.linspace(-4, 4, 41)]),
    "gelu": (F.gelu, TF.gelu, [np.linspace(-9, 9, 41)]),
    "gelu tanh": (
        lambda a: F.gelu(a, "tanh"),
        lambda a: TF.gelu(a, approximate="tanh"),
        [np.linspace(-5, 5, 41)],
    ),
    "silu": (F.silu, TF.silu, [np.linspace(-9, 9, 41)]),
    "softplus": (lambda a: F.softplus(a, 3.0, 10.0), lambda a: TF.softplus(a, 3.0, 10.0), [np.linspace(-9, 9, 41)]),
    "softmax": (lambda a: F.softmax(a, 1), lambda a: TF.softmax(a, 1), values((2, 3, 4))),
    "split": (
        lambda a: a.split([1, 3], 1)[1] * a.split(2, 1)[0][:, :1],
        lambda a: a.split([1, 3], 1)[1] * a.split(2, 1)[0][:, :1],
        values((2, 4)),
    ),
    "chunk": (lambda a: a.chunk(3, 1)[1], lambda a: a.chunk(3, 1)[1], values((2, 4))),
    "cat": (lambda a, b: mpsim.cat([a, b, a], -1), lambda a, b: torch.cat([a, b, a], -1), values((2, 3), (2, 1))),
    "stack": (lambda a, b: mpsim.stack([a, b], -1), lambda a, b: torch.stack([a, b], -1), values((2, 3), (2, 3))),
    "getitem": (lambda a: a[None, 1, ..., ::2], lambda a: a[None, 1, ..., ::2], values((2, 3, 4))),
    "getitem of arrays": (
        lambda a: a[[0, 1, 1], :, [2, 2, 2]],
        lambda a: a[[0, 1, 1], :, [2, 2, 2]],
        values((2, 3, 4)),
    ),
    "getitem of a mask": (lambda a: a[MASK], lambda a: a[torch.tensor(MASK)], values((2, 4))),
    "flatten": (lambda a: a.flatten(1), lambda a: a.flatten(1), values((2, 3, 4))),
    "squeeze": (lambda a: a.squeeze(1).squeeze(0), lambda a: a.squeeze(1).squeeze(0), values((2, 1, 4))),
    "embedding": (
        lambda w: F.embedding(INDEX, w, padding_idx=1),
        lambda w: TF.embedding(torch.tensor(INDEX), w, padding_idx=1),
        values((3, 2)),
    ),
    "mse_loss": (F.mse_loss, TF.mse_loss, values((3, 4), (3, 4))),
    "mse_loss none": (
        lambda a, b: F.mse_loss(a, b, "none"),
        lambda a, b: TF.mse_loss(a, b, reduction="none"),
        values((3, 4), (3, 4)),
    ),
    "huber_loss": (
        lambda a, b: F.huber_loss(a, b, "sum", 0.7),
        lambda a, b: TF.huber_loss(a, b, "sum", 0.7),
        values((3, 4), (3, 4)),
    ),
    "bce": (
        lambda a, b: F.binary_cross_entropy_with_logits(a, b),
        lambda a, b: TF.binary_cross_entropy_with_logits(a, b),
        [5 * values((3, 4))[0], np.linspace(0, 1, 12).reshape(3, 4)],
    ),
    "bce with weights": (
        lambda a, b: F.binary_cross_entropy_with_logits(a, b, np.arange(1.0, 5.0), "sum", np.array([3.0])),
        lambda a, b: TF.binary_cross_entropy_with_logits(
            a, b, torch.arange(1.0, 5.0, dtype=torch.float64), None, None, "sum", torch.tensor([3.0])
        ),
        [5 * values((3, 4))[0], np.linspace(0, 1, 12).reshape(3, 4)],
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (3, 4), w, b),
        lambda x, w, b: TF.layer_norm(x, (3, 4), w, b),
        values((2, 5, 3, 4), (3, 4), (3, 4)),
    ),
    "layer_norm with no more than a bias": (
        lambda x, b: F.layer_norm(x, 4, None, b),
        lambda x, b: TF.layer_norm(x, (4,), None, b),
        values((2, 4), (4,)),
    ),
    "rms_norm": (
        lambda x, w: F.rms_norm(x, 4, w, 1e-3),
        lambda x, w: TF.rms_norm(x, (4,), w, 1e-3),
        values((2, 3, 4), (4,)),
    ),
    "rms_norm with its own eps": (
        lambda x: F.rms_norm(x, 4),
        lambda x: TF.rms_norm(x, (4,)),
        [1e-8 * values((3, 4))[0]],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_agrees_with_torch(name: str):
    compare(*FUNCTIONS[name])


CONVOLUTIONS: list[tuple[int, Shapes, dict[str, Any]]] = [
    (2, ((2, 3, 6, 5), (4, 3, 3, 2), (4,)), {}),
    (2, ((2, 4, 7, 6), (6, 2, 3, 2)), {"groups": 2, "stride": (2, 1), "padding": (1, 2), "dilation": (2, 1)}),
    (2, ((4, 6, 6), (4, 1, 3, 3), (4,)), {"groups": 4, "padding": "same"}),
    (2, ((1, 2, 5, 5), (3, 2, 2, 4)), {"padding": "same", "dilation": (3, 1)}),
    (2, ((2, 2, 5, 5), (3, 2, 2, 2)), {"padding": "valid", "stride": 3}),
    (1, ((2, 4, 9), (6, 2, 3), (6,)), {"groups": 2, "stride": 2, "padding": 2, "dilation": 2}),
    (1, ((4, 9), (3, 4, 4)), {"padding": "same"}),
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(("axes", "shapes", "options"), CONVOLUTIONS)
def test_a_convolution_agrees_with_torch(axes: int, shapes: Shapes, options: dict[str, Any]):
    name = f"conv{axes}d"
    compare(lambda *x: getattr(F, name)(*x, **options), lambda *x: getattr(TF, name)(*x, **options), values(*shapes))


POOLS: list[tuple[str, tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = [
    ("max_pool2d", (2, 3, 6, 5), (2,), {}),
    ("max_pool2d", (2, 6, 7), ((3, 2),), {"stride": (2, 1), "padding": 1}),
    ("max_pool2d", (1, 1, 8, 8), (3,), {"stride": 1, "dilation": 2}),
    ("max_pool1d", (2, 3, 9), (3,), {"stride": 2, "padding": 1}),
    ("avg_pool2d", (2, 3, 6, 5), (2,), {}),
    ("avg_pool2d", (2, 6, 7), ((3, 2),), {"stride": (2, 1), "padding": 1}),
    ("avg_pool2d", (2, 2, 6, 7), (3,), {"stride": 2, "padding": 1, "count_include_pad": False}),
    ("avg_pool1d", (2, 3, 9), (4,), {"padding": 2}),
]


@pytest.mark.parametrize(("name", "shape", "arguments", "options"), POOLS)
def test_pooling_agrees_with_torch(name: str, shape: Any, arguments: Any, options: dict[str, Any]):
    for x in (values(shape)[0], np.round(values(shape)[0])):  # the second with ties
        compare(
            lambda t: getattr(F, name)(t, *arguments, **options),
            lambda t: getattr(TF, name)(t, *arguments, **options),
            [x],
        )


LABELS = np.array([[2, 0, -100, 1], [1, 1, 0, -100]])
CLASS_LOSSES: list[dict[str, Any]] = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"ignore_index": 1},
    {"weight": np.array([1.0, 0.5, 3.0])},
    {"label_smoothing": 0.1},
    {"label_smoothing": 0.3, "weight": np.array([1.0, 0.5, 3.0]), "reduction": "none"},
    {"label_smoothing": 0.3, "weight": np.array([1.0, 0.5, 3.0])},
]


@pytest.mark.parametrize("options", CLASS_LOSSES, ids=str)
@pytest.mark.parametrize(("shape", "labels"), [((2, 3, 4), LABELS), ((2, 3), LABELS[:, 1]), ((3,), LABELS[0, 0])])
def test_cross_entropy_agrees_with_torch(shape: Any, labels: Any, options: dict[str, Any]):
    labels = np.where(labels == -100, options.get("ignore_index", -100), labels)
    theirs = {key: torch.tensor(v) if isinstance(v, np.ndarray) else v for key, v in options.items()}
    target = torch.tensor(labels)
    x = values(shape)
    compare(lambda t: F.cross_entropy(t, labels, **options), lambda t: TF.cross_entropy(t, target, **theirs), x)
    if "label_smoothing" not in options:
        compare(lambda t: F.nll_loss(t, labels, **options), lambda t: TF.nll_loss(t, target, **theirs), x)


ATTENTION: list[tuple[Shapes, dict[str, Any]]] = [
    (((2, 2, 5, 4), (2, 2, 6, 4), (2, 2, 6, 3)), {}),
    (((2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4)), {"is_causal": True}),
    (((1, 3, 4), (1, 2, 4), (1, 2, 5)), {"attn_mask": np.array([[True, False], [True, True], [False, False]])}),
    (((3, 4), (2, 4), (2, 5)), {"scale": 0.3}),
]


@pytest.mark.parametrize(("shapes", "options"), ATTENTION)
def test_attention_agrees_with_torch(shapes: Shapes, options: dict[str, Any]):
    theirs = {key: torch.tensor(v) if isinstance(v, np.ndarray) else v for key, v in options.items()}
    compare(
        lambda *x: F.scaled_dot_product_attention(*x, **options),
        lambda *x: TF.scaled_dot_product_attention(*x, **theirs),
        values(*shapes),
    )


def test_a_bias_of_attention_has_its_gradient():
    compare(
        F.scaled_dot_product_attention,
        TF.scaled_dot_product_attention,
        values((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4), (5, 5)),
    )


DTYPES = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


@pytest.mark.parametrize("a", DTYPES)
@pytest.mark.parametrize("b", DTYPES)
@pytest.mark.parametrize("shapes", [((1,), (1,)), ((1,), ()), ((), ())])
def test_formats_are_promoted_as_torch_does(a: str, b: str, shapes: Shapes):
    x, y = (Tensor(np.ones(shape), format=fmt) for shape, fmt in zip(shapes, (a, b), strict=True))
    s, t = (torch.ones(shape, dtype=getattr(torch, DTYPES[f])) for shape, f in zip(shapes, (a, b), strict=True))
    assert f"torch.{DTYPES[(x + y).format.name]}" == str((s + t).dtype)


# Layers.


def double(layer: Any) -> Any:
    """Give a layer of torch parameters that are not all zeros or ones, in binary64."""
    layer = layer.double()
    generator = np.random.default_rng(11)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.tensor(generator.normal(size=tuple(p.shape)) * 0.5))
    return layer


LAYERS: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "Linear": (nn.Linear(4, 3), torch.nn.Linear(4, 3), (2, 5, 4)),
    "Conv1d": (nn.Conv1d(4, 6, 3, 2, 1, groups=2), torch.nn.Conv1d(4, 6, 3, 2, 1, groups=2), (2, 4, 9)),
    "Conv2d": (nn.Conv2d(3, 4, (3, 2), padding="same"), torch.nn.Conv2d(3, 4, (3, 2), padding="same"), (2, 3, 5, 5)),
    "LayerNorm": (nn.LayerNorm((3, 4)), torch.nn.LayerNorm((3, 4)), (2, 3, 4)),
    "LayerNorm without bias": (nn.LayerNorm(4, bias=False), torch.nn.LayerNorm(4, bias=False), (2, 4)),
    "RMSNorm": (nn.RMSNorm(4), torch.nn.RMSNorm(4), (2, 4)),
    "BatchNorm1d": (nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4), (6, 4)),
    "BatchNorm1d of sequences": (nn.BatchNorm1d(4, momentum=None), torch.nn.BatchNorm1d(4, momentum=None), (2, 4, 3)),
    "BatchNorm2d": (nn.BatchNorm2d(3, affine=False), torch.nn.BatchNorm2d(3, affine=False), (2, 3, 4, 4)),
    "BatchNorm2d untracked": (
        nn.BatchNorm2d(3, track_running_stats=False),
        torch.nn.BatchNorm2d(3, track_running_stats=False),
        (2, 3, 4, 4),
    ),
    "Sequential": (
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3), nn.Softmax(1)),
        torch.nn.Sequential(
            torch.nn.Conv2d(1, 2, 3),
            torch.nn.GELU(),
            torch.nn.AvgPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(8, 3),
            torch.nn.Softmax(1),
        ),
        (2, 1, 6, 6),
    ),
}


def compare_layers(ours: Any, theirs: Any, x: Any, run: Callable[[Any, Any], Any]) -> None:
    """Compare results, gradients, and states afterwards."""
    theirs = double(theirs)
    theirs.zero_grad()
    ours.to("fp64")
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    compare(lambda t: run(ours, t), lambda t: run(theirs, t), [x])
    for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        np.testing.assert_allclose(p.grad.data, q.grad.numpy(), RTOL, ATOL, err_msg=name)
    for name, array in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name], array.numpy(), RTOL, ATOL, err_msg=name)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_agrees_with_torch_in_training_and_evaluation(name: str):
    ours, theirs, shape = LAYERS[name]
    for _ in range(2):
        compare_layers(ours, theirs, values(shape)[0], lambda layer, x: layer(x))
    ours.eval()
    compare_layers(ours, theirs.eval(), values(shape)[0], lambda layer, x: layer(x))


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((5, 2, 3), {}),
        ((2, 5, 3), {"batch_first": True, "bias": False}),
        ((5, 3), {"num_layers": 2}),
        ((4, 2, 3), {"num_layers": 2, "bidirectional": True}),
    ],
)
def test_a_recurrent_layer_agrees_with_torch(name: str, shape: Any, options: dict[str, Any]):
    ours, theirs = getattr(nn, name)(3, 4, **options), getattr(torch.nn, name)(3, 4, **options)

    def everything(layer: Any, x: Any) -> Any:
        output, state = layer(x)
        state = state if isinstance(state, tuple) else (state,)
        cat = mpsim.cat if isinstance(layer, nn.Module) else torch.cat
        return cat([t.flatten() for t in (output, *state)])

    compare_layers(ours, theirs, values(shape)[0], everything)


def test_a_rectified_recurrent_layer_takes_a_state():
    ours, theirs = nn.RNN(3, 4, nonlinearity="relu"), torch.nn.RNN(3, 4, nonlinearity="relu")
    h = values((1, 2, 4))[0]
    compare_layers(
        ours, theirs, values((5, 2, 3))[0], lambda m, x: m(x, Tensor(h) if m is ours else torch.tensor(h))[0]
    )


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masks", ["none", "causal", "padding", "added"])
def test_multihead_attention_agrees_with_torch(need_weights: bool, batch_first: bool, masks: str):
    ours = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=batch_first)
    options: dict[str, Any] = {}
    length, batch = 4, 3
    if masks == "causal":
        options["attn_mask"] = ~np.tri(length, dtype=bool)
    elif masks == "padding":
        options["key_padding_mask"] = np.arange(length) >= np.array([[4], [2], [3]])
    elif masks == "added":
        options["attn_mask"] = np.random.default_rng(0).normal(size=(batch * 2, length, length))

    def everything(layer: Any, x: Any) -> Any:
        is_ours = layer is ours
        extra = options if is_ours else {key: torch.tensor(v) for key, v in options.items()}
        y, w = layer(x, x * 2, x * 3, need_weights=need_weights, **extra)
        cat = mpsim.cat if is_ours else torch.cat
        return cat([t.flatten() for t in (y, w) if t is not None])

    shape = (batch, length, 8) if batch_first else (length, batch, 8)
    compare_layers(ours, theirs, values(shape)[0], everything)
    compare_layers(ours, theirs, values((length, 8))[0], lambda m, x: m(x, x, x)[0])


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_transformer_block_is_torchs_encoder_layer_with_the_norm_first(activation: str):
    ours = nn.TransformerBlock(8, 2, 12, 0.0, activation, batch_first=True)
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 12, 0.0, activation, batch_first=True, norm_first=True)
    mask = ~np.tri(5, dtype=bool)
    x = values((2, 5, 8))[0]
    compare_layers(ours, theirs, x, lambda m, t: m(t, mask if m is ours else torch.tensor(mask)))
    compare_layers(ours, theirs, x, lambda m, t: m(t))


def test_initial_parameters_have_torchs_ranges():
    pairs = [
        (nn.Linear(40, 300, rng=0), torch.nn.Linear(40, 300)),
        (nn.Conv2d(4, 60, 5, groups=2, rng=0), torch.nn.Conv2d(4, 60, 5, groups=2)),
        (nn.LSTM(8, 40, rng=0), torch.nn.LSTM(8, 40)),
        (nn.MultiheadAttention(64, 2, rng=0), torch.nn.MultiheadAttention(64, 2)),
        (nn.Embedding(200, 30, rng=0), torch.nn.Embedding(200, 30)),
        (nn.LayerNorm(5), torch.nn.LayerNorm(5)),
        (nn.TransformerBlock(32, 2, rng=0), torch.nn.TransformerEncoderLayer(32, 2)),
    ]
    for ours, theirs in pairs:
        for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
            a, b = p.data, q.detach().numpy()
            np.testing.assert_allclose(a.std(), b.std(), rtol=0.2, atol=1e-9, err_msg=name)
            if "Embedding" not in type(ours).__name__:
                np.testing.assert_allclose(np.abs(a).max(), np.abs(b).max(), rtol=0.2, atol=1e-9, err_msg=name)


def test_an_mlp_trained_beside_torch_takes_the_same_twenty_steps():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(32, 10)).astype(np.float32), rng.integers(0, 4, 32)
    ours = nn.Sequential(nn.Linear(10, 16, rng=1), nn.Tanh(), nn.Linear(16, 4, rng=2))
    theirs = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    theirs.load_state_dict({name: torch.tensor(a) for name, a in ours.state_dict().items()})
    a = optim.SGD(ours.parameters(), lr=0.1, momentum=0.9)
    b = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for _ in range(20):
        a.zero_grad()
        b.zero_grad()
        loss = F.cross_entropy(ours(x), labels)
        loss.backward()
        a.step()
        reference = TF.cross_entropy(theirs(torch.tensor(x)), torch.tensor(labels))
        reference.backward()
        b.step()
        # Sums in another order: a few units of 2**-24 that twenty steps of a smooth problem make a hundred.
        np.testing.assert_allclose(loss.item(), reference.item(), rtol=1e-5)
    for name, array in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name], array.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
