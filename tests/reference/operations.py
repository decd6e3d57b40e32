"""Every operation of the table: shapes and options to try, and what it computes as plain NumPy in float32.

The twins are written from the definitions, with the sums in the order of `numpy.sum`. They take float32 arrays and
return the result before its only rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpsim.ops.windows import Windows
from mpsim.stochastic import Draws

__all__ = ["CASES", "POSITIVE", "TWINS", "Shapes", "values"]

Shapes = tuple[tuple[int, ...], ...]
Case = tuple[Shapes, dict[str, Any]]

LABELS = np.array([2, 0, 1, 2])
INDEX = np.array([[0, 2, 1], [1, 1, 0]])
MASK = np.array([[True, False, True], [False, False, True]])
DRAWS = Draws(seed=7, stream=3)
WEIGHTS = np.array([1.0, 0.5, 3.0])
MEAN, VAR = np.array([0.25, -1.0, 0.5]), np.array([0.5, 2.0, 1.0])

POSITIVE = frozenset({"log", "sqrt", "rsqrt", "pow"})
"""Operations whose inputs have to be positive."""

_BROADCAST: list[Case] = [
    (shapes, {})
    for shapes in (
        ((2, 3), (2, 3)),
        ((2, 3), (3,)),
        ((1, 3), (2, 1)),
        ((), (2, 2)),
        ((2, 2), ()),
        ((), ()),
        ((4, 1, 2), (3, 1)),
        ((0, 3), (3,)),
        ((1, 3), (0, 3)),
    )
]
_SINGLE: list[Case] = [(((2, 3),), {}), (((),), {}), (((0, 2),), {})]
_REDUCTION: list[Case] = [
    (((2, 3),), {}),
    (((),), {}),
    (((2, 3),), {"dim": 0}),
    (((2, 3),), {"dim": -1, "keepdim": True}),
    (((2, 3, 2),), {"dim": (0, 2)}),
    (((2, 3, 2),), {"dim": (0, -1), "keepdim": True}),
    (((0, 3),), {"dim": 1}),
]
_SOFTMAX: list[Case] = [
    (((2, 3),), {}),
    (((2, 3),), {"dim": 0}),
    (((2, 3, 2),), {"dim": 1}),
    (((1, 1),), {}),
    (((0, 3),), {}),
    (((2, 0),), {}),
]
_REDUCTIONS = ("mean", "sum", "none")

CASES: dict[str, list[Case]] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "pow", "maximum", "minimum"), _BROADCAST),
    **dict.fromkeys(
        ("neg", "abs", "relu", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "silu", "erf", "cast"), _SINGLE
    ),
    "where": [
        (((2, 3), (2, 3)), {"condition": MASK}),
        (((3,), (2, 1)), {"condition": MASK}),
        (((), (0, 3)), {"condition": np.array(True)}),
    ],
    "clamp": [*(((shape,), {"min": -1.1, "max": 1.1}) for shape in ((2, 3), (), (0, 2))), (((2, 3),), {"max": 0.0})],
    "softplus": [*_SINGLE, (((2, 3),), {"beta": 3.0, "threshold": 4.0})],
    "gelu": [*_SINGLE, *((shapes, {"approximate": "tanh"}) for shapes, _ in _SINGLE)],
    "matmul": [
        (((2, 3), (3, 4)), {}),
        (((2, 2, 3), (2, 3, 2)), {}),
        (((2, 2, 3), (3, 2)), {}),
        (((2, 3), (4, 3, 2)), {}),
        (((2, 1, 2, 3), (3, 3, 2)), {}),
        (((0, 3), (3, 2)), {}),
        (((2, 0), (0, 3)), {}),
        (((2, 3), (3, 0)), {}),
    ],
    "linear": [
        (((4, 3), (2, 3)), {}),
        (((4, 3), (2, 3), (2,)), {}),
        (((3,), (2, 3), (2,)), {}),
        (((2, 2, 3), (2, 3), (2,)), {}),
        (((0, 3), (2, 3), (2,)), {}),
    ],
    "conv2d": [
        (((2, 3, 4, 5), (2, 3, 3, 2), (2,)), {"windows": Windows((3, 2))}),
        (
            ((1, 4, 5, 4), (6, 2, 2, 2)),
            {"windows": Windows((2, 2), (2, 1), ((1, 0), (2, 1)), (1, 2)), "groups": 2},
        ),
        (((1, 2, 1, 4), (2, 1, 1, 3), (2,)), {"windows": Windows((1, 3), padding=((0, 0), (1, 1))), "groups": 2}),
        (((0, 2, 3, 3), (2, 2, 2, 2), (2,)), {"windows": Windows((2, 2))}),
    ],
    "max_pool2d": [
        (((2, 4, 4),), {"windows": Windows((2, 2), (2, 2))}),
        (((1, 2, 5, 4),), {"windows": Windows((3, 2), (2, 1), ((1, 1), (1, 1)), (1, 2))}),
        (((0, 3, 3),), {"windows": Windows((2, 2))}),
    ],
    "avg_pool2d": [
        (((2, 4, 4),), {"windows": Windows((2, 2), (2, 2))}),
        (((1, 2, 5, 4),), {"windows": Windows((3, 2), (2, 1), ((1, 1), (1, 1)))}),
        (((1, 2, 5, 4),), {"windows": Windows((3, 2), (2, 1), ((1, 1), (1, 1))), "count_include_pad": False}),
        (((0, 3, 3),), {"windows": Windows((2, 2))}),
    ],
    "scaled_dot_product_attention": [
        (((2, 3, 4), (2, 5, 4), (2, 5, 3)), {"scale": 0.5}),
        (((2, 3, 4), (5, 4), (5, 3), (3, 5)), {"scale": 0.25}),
        (((3, 2), (3, 2), (3, 2)), {"scale": 0.7, "allowed": np.tri(3, dtype=np.bool_)}),
        (((2, 2), (3, 2), (3, 2)), {"scale": 1.0, "allowed": np.array([[True, False, True], [False] * 3])}),
        (((2, 3, 2), (2, 3, 2), (2, 3, 2)), {"scale": 0.5, "dropout_p": 0.3, "draws": DRAWS}),
        (((0, 3, 2), (0, 3, 2), (0, 3, 2)), {"scale": 0.5}),
    ],
    **dict.fromkeys(("sum", "mean"), _REDUCTION),
    "var": [(((4, 3),), {}), *(case for case in _REDUCTION[2:-1]), (((4, 3),), {"dim": 0, "correction": 0})],
    **dict.fromkeys(("amax", "amin"), _REDUCTION),
    **dict.fromkeys(("softmax", "log_softmax"), _SOFTMAX),
    "layer_norm": [
        (((2, 3, 4), (4,), (4,)), {"dims": 1}),
        (((2, 3, 4), (3, 4)), {"dims": 2, "eps": 0.1}),
        (((5,),), {"dims": 1}),
        (((0, 4), (4,), (4,)), {"dims": 1}),
    ],
    "rms_norm": [
        (((2, 3, 4), (4,)), {"dims": 1, "eps": 1e-5}),
        (((2, 3, 4),), {"dims": 2, "eps": 0.1}),
        (((0, 4), (4,)), {"dims": 1, "eps": 1e-5}),
    ],
    "batch_norm": [
        (((4, 3), (3,), (3,)), {"mean": MEAN, "var": VAR, "training": False}),
        (((2, 3, 2, 2),), {"mean": MEAN, "var": VAR, "training": False, "eps": 0.1}),
        (((0, 3, 2), (3,), (3,)), {"mean": MEAN, "var": VAR, "training": False}),
    ],
    "dropout": [
        (((5, 6),), {"p": 0.3, "draws": DRAWS}),
        (((4,),), {"p": 1.0, "draws": DRAWS}),
        (((0, 2),), {"p": 0.5, "draws": DRAWS}),
    ],
    "mse_loss": [
        *((((2, 3), (2, 3)), {"reduction": reduction}) for reduction in _REDUCTIONS),
        (((), ()), {}),
    ],
    "huber_loss": [
        *((((2, 3), (2, 3)), {"reduction": reduction, "delta": 0.8}) for reduction in _REDUCTIONS),
        (((), ()), {}),
    ],
    "binary_cross_entropy_with_logits": [
        *((((2, 3), (2, 3)), {"reduction": reduction}) for reduction in _REDUCTIONS),
        (((), ()), {}),
    ],
    "nll_loss": [
        (((4, 3),), {"target": LABELS}),
        (((1, 1),), {"target": np.array([0])}),
        *(
            (((4, 3),), {"target": LABELS, "reduction": r, "weight": w, "label_smoothing": s, "ignore_index": 1})
            for r, w, s in itertools.product(_REDUCTIONS, (None, WEIGHTS), (0.0, 0.25))
        ),
        (((2, 3, 3),), {"target": INDEX, "label_smoothing": 0.125}),
    ],
    "getitem": [
        (((2, 3, 4),), {"index": (slice(None), 1)}),
        (((2, 3, 4),), {"index": (None, ..., slice(0, None, 2))}),
        (((3, 4),), {"index": (slice(None, None, -1), slice(1, 3))}),
        (((3, 4),), {"index": (np.array([0, 2, 2, 0, 2, 2]), slice(1, None))}),
        (((2, 3),), {"index": (MASK,)}),
        (((2, 3),), {"index": (1, 2)}),
        (((2, 3),), {"index": (np.zeros(0, np.intp),)}),
    ],
    "embedding": [
        (((4, 2),), {"index": np.array([[0, 3, 3, 3], [3, 1, 1, 1]])}),
        (((4, 2),), {"index": np.array(2)}),
        (((4, 2),), {"index": np.zeros((0, 2), np.intp)}),
    ],
    "gather": [
        (((2, 4),), {"dim": 1, "index": INDEX}),
        (((2, 4),), {"dim": 1, "index": np.ones((2, 9), np.intp)}),
        (((3, 4),), {"dim": 0, "index": INDEX}),
        (((3, 4),), {"dim": 0, "index": np.zeros((0, 4), np.intp)}),
    ],
    "scatter_add": [
        (((2, 4), (2, 3)), {"dim": 1, "index": INDEX}),
        (((3, 4), (3, 5)), {"dim": 0, "index": INDEX}),
        (((3, 4), (0, 4)), {"dim": 0, "index": np.zeros((0, 4), np.intp)}),
    ],
    "masked_fill": [
        (((2, 3),), {"mask": MASK, "value": 0.1}),
        (((4, 2, 3),), {"mask": MASK[:, :1], "value": -1.0}),
        (((0, 3),), {"mask": np.array([True, False, True]), "value": 1.0}),
    ],
    "reshape": [
        (((2, 3),), {"shape": (3, 2)}),
        (((2, 3),), {"shape": (-1,)}),
        (((),), {"shape": (1, 1)}),
        (((0, 2),), {"shape": (0,)}),
    ],
    "permute": [
        (((2, 3),), {"dims": (1, 0)}),
        (((2, 3, 4),), {"dims": (2, 0, 1)}),
        (((2, 3, 4),), {"dims": (-1, 0, -2)}),
        (((),), {"dims": ()}),
    ],
    "cat": [
        (((2, 3), (2, 1), (2, 0)), {"dim": 1}),
        (((2, 3), (1, 3)), {"dim": 0}),
        (((2,),), {"dim": 0}),
    ],
}
"""Of every operation: the shapes of its inputs, and its options."""


def values(name: str, shapes: Shapes, seed: int = 0) -> list[Any]:
    """Return inputs of order 1, positive where the operation asks for it and away from kinks and poles at 0."""
    rng = np.random.default_rng([seed, len(name)])
    signs = [np.ones(shape) if name in POSITIVE else rng.choice([-1.0, 1.0], shape) for shape in shapes]
    return [np.asarray(sign * rng.uniform(0.5, 2.0, shape)) for sign, shape in zip(signs, shapes, strict=True)]


# Twins.


def by64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function evaluated in float64 and rounded to float32."""
    return lambda x, **options: np.asarray(function(np.asarray(x, np.float64), **options), np.float32)


exp, log = by64(np.exp), by64(np.log)
erf = by64(lambda x: np.array([math.erf(v) for v in x.ravel()]).reshape(x.shape))
sigmoid = by64(lambda x: 1 / (1 + np.exp(-x)))
log1pexp = by64(lambda x: np.logaddexp(0, x))


def gelu64(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x * np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x.ravel()]).reshape(x.shape)


def softplus64(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return np.where(beta * x > threshold, x, np.logaddexp(0, beta * x) / beta)


def mean(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    total = np.sum(x, axis=dim, keepdims=keepdim)
    return total / np.float32(x.size // max(total.size, 1))


def var(x: Any, dim: Any = None, correction: int = 1, keepdim: bool = False) -> Any:
    d = x - mean(x, dim, True)
    total = np.sum(d * d, axis=dim, keepdims=keepdim)
    return total / np.float32(x.size // total.size - correction)


def softmax(x: Any, dim: int = -1) -> Any:
    if x.shape[dim] == 0:
        return x
    e = exp(x - np.max(x, axis=dim, keepdims=True))
    return e / np.sum(e, axis=dim, keepdims=True)


def log_softmax(x: Any, dim: int = -1) -> Any:
    if x.shape[dim] == 0:
        return x
    shifted = x - np.max(x, axis=dim, keepdims=True)
    return shifted - log(np.sum(exp(shifted), axis=dim, keepdims=True))


def inverse_root(x: Any, eps: float) -> Any:
    return by64(lambda v: 1 / np.sqrt(v))(x + np.float32(eps))


def affine(x: Any, weight: Any = None, bias: Any = None) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def layer_norm(x: Any, weight: Any = None, bias: Any = None, *, dims: int, eps: float = 1e-5) -> Any:
    centred = x - over_rows(mean, x, dims)
    return affine(centred * inverse_root(over_rows(mean, centred * centred, dims), eps), weight, bias)


def over_rows(function: Callable[..., Any], x: Any, dims: int) -> Any:
    """Return a function of the last dimensions, taken as one row."""
    leading = x.shape[: x.ndim - dims]
    return function(x.reshape(*leading, math.prod(x.shape[x.ndim - dims :])), -1).reshape(*leading, *(1,) * dims)


def rms_norm(x: Any, weight: Any = None, *, dims: int, eps: float) -> Any:
    return affine(x * inverse_root(over_rows(mean, x * x, dims), eps), weight)


def batch_norm(x: Any, weight: Any = None, bias: Any = None, *, mean: Any, var: Any, training: bool, eps: float = 1e-5):
    result = np.empty_like(x)
    for c in range(x.shape[1]):
        scaled = (x[:, c] - np.float32(mean[c])) * inverse_root(np.float32(var[c]), eps)
        result[:, c] = affine(scaled, *(None if p is None else p[c] for p in (weight, bias)))
    return result


def patches(x: Any, w: Windows, value: float) -> Any:
    """Return [..., down, across, kernel elements], element by element."""
    (top, bottom), (left, right) = w.padding
    x = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(top, bottom), (left, right)], constant_values=value)
    down = (x.shape[-2] - w.dilation[0] * (w.kernel[0] - 1) - 1) // w.stride[0] + 1
    across = (x.shape[-1] - w.dilation[1] * (w.kernel[1] - 1) - 1) // w.stride[1] + 1
    result = np.empty((*x.shape[:-2], down, across, *w.kernel), x.dtype)
    for r, c, i, j in itertools.product(range(down), range(across), range(w.kernel[0]), range(w.kernel[1])):
        row, column = r * w.stride[0] + i * w.dilation[0], c * w.stride[1] + j * w.dilation[1]
        result[..., r, c, i, j] = x[..., row, column]
    return result.reshape(*result.shape[:-2], w.kernel[0] * w.kernel[1])


def conv2d(x: Any, weight: Any, bias: Any = None, *, windows: Windows, groups: int = 1) -> Any:
    batch, each = x.shape[0], weight.shape[0] // groups
    outputs = []
    for g in range(groups):
        part = x[:, g * weight.shape[1] : (g + 1) * weight.shape[1]]
        p = patches(part, windows, 0.0)
        down, across = p.shape[2:4]
        columns = np.moveaxis(p, 1, -2).reshape(batch * down * across, weight.shape[1] * p.shape[-1])
        y = columns @ weight[g * each : (g + 1) * each].reshape(each, -1).T
        outputs.append(np.moveaxis(y.reshape(batch, down, across, each), -1, 1))
    result = np.concatenate(outputs, axis=1)
    return result if bias is None else result + bias[:, None, None]


def avg_pool2d(x: Any, windows: Windows, count_include_pad: bool = True) -> Any:
    total = np.float32(0)
    for element in np.moveaxis(patches(x, windows, 0.0), -1, 0):
        total = total + element
    inside = patches(np.ones(x.shape[-2:], np.float32), windows, 1.0 if count_include_pad else 0.0).sum(axis=-1)
    return total / inside


def kept(shape: tuple[int, ...], p: float, draws: Draws) -> Any:
    words = draws.words(0, math.prod(shape), 32).astype(np.float64).reshape(shape)
    return np.where(words >= p * 2.0**32, np.float32(1 / (1 - p)) if p < 1 else np.float32(0), np.float32(0))


def attention(
    q: Any,
    k: Any,
    v: Any,
    bias: Any = None,
    *,
    scale: float,
    held: Callable[[Any], Any],
    allowed: Any = None,
    dropout_p: float = 0.0,
    draws: Draws | None = None,
) -> Any:
    """Return the attention; ``held`` rounds to the format, as the second product asks."""
    scores = (q @ k.swapaxes(-1, -2)) * np.float32(scale)
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = np.where(allowed, scores, np.float32(-np.inf))
    largest = np.max(scores, axis=-1, keepdims=True)
    e = np.where(np.isneginf(scores), np.float32(0), exp(scores - np.where(np.isneginf(largest), 0, largest)))
    total = np.sum(e, axis=-1, keepdims=True)
    if draws is not None:
        e = e * kept(e.shape, dropout_p, draws)
    return (held(e) @ v) / np.where(total == 0, np.float32(1), total)


def reduced(losses: Any, reduction: str = "mean") -> Any:
    return losses if reduction == "none" else mean(losses) if reduction == "mean" else np.sum(losses)


def huber_loss(x: Any, t: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    z, d, half = np.abs(x - t), np.float32(delta), np.float32(0.5)
    return reduced(np.where(z < d, half * z * z, d * (z - half * d)), reduction)


def nll_loss(
    x: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    factors = np.ones(x.shape[1], np.float32) if weight is None else weight.astype(np.float32)
    losses, weights = np.zeros(target.shape, np.float32), np.zeros(target.shape, np.float32)
    for place in np.ndindex(target.shape):
        label = target[place]
        if label == ignore_index:
            continue
        row = x[place[0], :, *place[1:]]
        weights[place] = factors[label]
        losses[place] = -row[label] * factors[label]
        if label_smoothing:
            total = np.float32(0)
            for term in row * factors:
                total += term
            part = np.float32(label_smoothing / x.shape[1])
            losses[place] = np.float32(1 - label_smoothing) * losses[place] + part * -total
    return np.sum(losses) / np.sum(weights) if reduction == "mean" else reduced(losses, reduction)


def gather(x: Any, dim: int, index: Any) -> Any:
    places = [(*p[:dim], index[p], *p[dim + 1 :]) for p in np.ndindex(index.shape)]
    return np.array([x[p] for p in places], np.float32).reshape(index.shape)


def scatter_add(x: Any, src: Any, dim: int, index: Any) -> Any:
    total = x.copy()
    for p in np.ndindex(index.shape):
        total[(*p[:dim], index[p], *p[dim + 1 :])] += src[p]
    return total


TWINS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: (a.astype(np.float64) ** b.astype(np.float64)).astype(np.float32),
    "maximum": lambda a, b: np.where(a > b, a, b),
    "minimum": lambda a, b: np.where(a < b, a, b),
    "where": lambda a, b, condition: np.where(condition, a, b),
    "neg": lambda x: -x,
    "abs": lambda x: np.where(x < 0, -x, x),
    "relu": lambda x: np.where(x > 0, x, np.float32(0)),
    "clamp": lambda x, **ends: np.clip(x, ends.get("min"), ends.get("max")),
    "exp": exp,
    "log": log,
    "sqrt": by64(np.sqrt),
    "rsqrt": by64(lambda x: 1 / np.sqrt(x)),
    "tanh": by64(np.tanh),
    "sigmoid": sigmoid,
    "silu": by64(lambda x: x / (1 + np.exp(-x))),
    "softplus": by64(softplus64),
    "erf": erf,
    "gelu": by64(gelu64),
    "cast": lambda x: x,
    "matmul": lambda a, b: a @ b,
    "linear": lambda x, w, b=None: affine(x @ w.T, None, b),
    "conv2d": conv2d,
    "max_pool2d": lambda x, windows: patches(x, windows, -np.inf).max(axis=-1),
    "avg_pool2d": avg_pool2d,
    "scaled_dot_product_attention": attention,
    "sum": lambda x, dim=None, keepdim=False: np.sum(x, axis=dim, keepdims=keepdim),
    "mean": mean,
    "var": var,
    "amax": lambda x, dim=None, keepdim=False: np.max(x, axis=dim, keepdims=keepdim),
    "amin": lambda x, dim=None, keepdim=False: np.min(x, axis=dim, keepdims=keepdim),
    "softmax": softmax,
    "log_softmax": log_softmax,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "batch_norm": batch_norm,
    "dropout": lambda x, p, draws: x * kept(x.shape, p, draws) + np.float32(0),
    "mse_loss": lambda x, t, reduction="mean": reduced((x - t) * (x - t), reduction),
    "huber_loss": huber_loss,
    "binary_cross_entropy_with_logits": lambda x, t, reduction="mean": reduced((1 - t) * x + log1pexp(-x), reduction),
    "nll_loss": nll_loss,
    "getitem": lambda x, index: x[index],
    "embedding": lambda x, index: x[index],
    "gather": gather,
    "scatter_add": scatter_add,
    "masked_fill": lambda x, mask, value: np.where(mask, np.float32(value), x),
    "reshape": lambda x, shape: x.reshape(shape),
    "permute": lambda x, dims: np.moveaxis(x, dims, range(x.ndim)),
    "cat": lambda *tensors, dim: np.concatenate(tensors, axis=dim),
}
"""What each operation computes, in float32."""
