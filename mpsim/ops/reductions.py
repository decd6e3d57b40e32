"""Sums, means, variances and largest elements along dimensions; softmax. Sums are held in the inner arithmetic."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from mpsim.ops import _rows
from mpsim.ops._numeric import function, in_float64
from mpsim.ops.table import Array, Call, Gradients, Operation

__all__ = ["OPERATIONS", "exp", "log", "softmax_gradient"]

Dim: TypeAlias = "int | tuple[int, ...] | None"


def exp(x: Array) -> Array:
    """Return e**x, rounded from float64."""
    return function("exp", x)


def log(x: Array) -> Array:
    """Return the natural logarithm, rounded from float64."""
    return in_float64(np.log, x)


def _spread(g: Array, x: Array, dim: Dim, keepdim: bool) -> Array:
    """Undo a reduction's loss of axes and broadcast to the shape of its input."""
    if dim is not None and not keepdim:
        g = np.expand_dims(g, dim)
    return np.broadcast_to(g, x.shape)


def _sum(_: Call, input: Array, dim: Dim = None, keepdim: bool = False) -> Array:
    return np.asarray(input.sum(axis=dim, keepdims=keepdim))


def _sum_vjp(_: Call, g: Array, __: Array, input: Array, dim: Dim = None, keepdim: bool = False) -> Gradients:
    return (_spread(g, input, dim, keepdim),)


def _mean(_: Call, input: Array, dim: Dim = None, keepdim: bool = False) -> Array:
    total = np.asanyarray(input.sum(axis=dim, keepdims=keepdim))
    return np.asanyarray(total / input.dtype.type(input.size / max(total.size, 1)))


def _mean_vjp(_: Call, g: Array, y: Array, input: Array, dim: Dim = None, keepdim: bool = False) -> Gradients:
    count = input.dtype.type(input.size / max(y.size, 1))
    return (_spread(g / count, input, dim, keepdim),)


def _deviations(call: Call, x: Array, dim: Dim) -> tuple[Array, int]:
    """Return the deviations from the mean, and the number of elements of each mean."""
    mean = _mean(call, x, dim, keepdim=True)
    return np.asanyarray(x - mean), x.size // max(mean.size, 1)


def _var(call: Call, input: Array, dim: Dim = None, correction: float = 1, keepdim: bool = False) -> Array:
    deviations, count = _deviations(call, input, dim)
    total = np.asanyarray((deviations * deviations).sum(axis=dim, keepdims=keepdim))
    return np.asarray(total / input.dtype.type(max(count - correction, 0)))


def _var_vjp(
    call: Call, g: Array, _: Array, input: Array, dim: Dim = None, correction: float = 1, keepdim: bool = False
) -> Gradients:
    deviations, count = _deviations(call, input, dim)
    factor = input.dtype.type(2) / input.dtype.type(max(count - correction, 0))
    return (_spread(g, input, dim, keepdim) * (factor * deviations),)


def _amax(_: Call, input: Array, dim: Dim = None, keepdim: bool = False) -> Array:
    return np.asarray(input.max(axis=dim, keepdims=keepdim))


def _amin(_: Call, input: Array, dim: Dim = None, keepdim: bool = False) -> Array:
    return np.asarray(input.min(axis=dim, keepdims=keepdim))


def _extremum_vjp(_: Call, g: Array, y: Array, input: Array, dim: Dim = None, keepdim: bool = False) -> Gradients:
    """Divide the gradient evenly among equals, as in torch."""
    chosen = input == _spread(y, input, dim, keepdim)
    count = chosen.sum(axis=dim, keepdims=True).astype(input.dtype)
    return (_spread(g, input, dim, keepdim) * chosen / count,)


def _is_last(dim: int, x: Array) -> bool:
    return x.ndim > 0 and dim % x.ndim == x.ndim - 1


def _softmax(_: Call, input: Array, dim: int = -1) -> Array:
    if _is_last(dim, input) and _rows.suit(input):
        return _rows.softmax(input)
    e = exp(input - input.max(axis=dim, keepdims=True, initial=-np.inf))
    return np.asarray(e / e.sum(axis=dim, keepdims=True))


def softmax_gradient(g: Array, y: Array, dim: int = -1) -> Array:
    """Return the gradient of what ``y`` is the softmax of."""
    if _is_last(dim, y) and _rows.suit(g, y):
        return _rows.softmax_backward(g, y)
    return np.asanyarray((g - (g * y).sum(axis=dim, keepdims=True)) * y)


def _softmax_vjp(_: Call, g: Array, y: Array, __: Array, dim: int = -1) -> Gradients:
    return (softmax_gradient(g, y, dim),)


def _log_softmax(_: Call, input: Array, dim: int = -1) -> Array:
    shifted = input - input.max(axis=dim, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - log(exp(shifted).sum(axis=dim, keepdims=True)))


def _log_softmax_vjp(_: Call, g: Array, y: Array, __: Array, dim: int = -1) -> Gradients:
    return (g - exp(y) * g.sum(axis=dim, keepdims=True),)


OPERATIONS = (
    Operation("sum", _sum, _sum_vjp, reads=()),
    Operation("mean", _mean, _mean_vjp, reads=()),
    Operation("var", _var, _var_vjp, reads=("input",)),
    Operation("amax", _amax, _extremum_vjp, exact=True),
    Operation("amin", _amin, _extremum_vjp, exact=True),
    Operation("softmax", _softmax, _softmax_vjp, reads=("output",)),
    Operation("log_softmax", _log_softmax, _log_softmax_vjp, reads=("output",)),
)
