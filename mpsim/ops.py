"""The table of differentiable operations: forward and vector-Jacobian product on arrays, no graph.

Arrays hold values of a format in float32 (float64 for fp64). An operation computes in that dtype and returns
its result unrounded; whoever calls it rounds once to the format of the result, as a GPU does when a kernel
computes in FP32 and stores FP16. Matrix products go through the unit that the `Call` names.

exp, log and tanh are computed in float64 and rounded to float32, which gives the correctly rounded result
but in about one case in 2**29.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim import units
from mpsim.formats import FP32, FP64, FloatFormat
from mpsim.matmul import matmul as unit_matmul
from mpsim.units import MatrixUnit

__all__ = ["TABLE", "Call", "Operation"]

Array: TypeAlias = "NDArray[Any]"
Gradients: TypeAlias = "tuple[Array | None, ...]"


@dataclass(frozen=True, slots=True)
class Call:
    """How one operation is to compute."""

    fmt: FloatFormat
    """Format of the inputs."""
    unit: MatrixUnit | str = "native"
    """Matrix unit of the products, forward and backward."""
    wanted: tuple[bool, ...] = ()
    """Backward: for each input, whether its gradient is wanted."""

    def matmul(self, a: Array, b: Array) -> Array:
        """Return ``a @ b`` as the unit leaves it in FP32, before the rounding to the result's format."""
        if self.unit in ("native", units.NATIVE) or self.fmt is FP32 or self.fmt is FP64:
            return np.asarray(a @ b)
        return unit_matmul(a, b, unit=_instruction(self.unit, self.fmt), rounded=True)


@functools.lru_cache(maxsize=256)
def _instruction(unit: MatrixUnit | str, fmt: FloatFormat) -> MatrixUnit:
    """Return the instruction of a unit that multiplies ``fmt`` into FP32."""
    return units.get(unit, inputs=fmt, out=FP32)


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table."""

    name: str
    forward: Callable[..., Array]
    """``forward(call, *inputs, **options)`` returns the unrounded result."""
    vjp: Callable[..., Gradients]
    """``vjp(call, grad, output, *inputs, **options)`` returns one unrounded gradient, or None, for each input."""
    exact: bool = False
    """Whether results are values of the inputs' format already, so that nothing is left to round."""
    same_format: bool = False
    """Whether inputs of different formats are refused rather than promoted."""


def _summed_to(grad: Array, shape: tuple[int, ...]) -> Array:
    """Sum a gradient over the axes along which its input was broadcast."""
    if grad.shape == shape:
        return grad
    grad = grad.sum(axis=tuple(range(grad.ndim - len(shape))))
    stretched = tuple(i for i, n in enumerate(shape) if n == 1 and grad.shape[i] != 1)
    return grad.sum(axis=stretched, keepdims=True) if stretched else grad


def _by_float64(function: Callable[[Array], Array], x: Array) -> Array:
    """Apply an elementary function, rounded from float64 to the dtype of ``x``."""
    result: Array = function(x.astype(np.float64)).astype(x.dtype)
    return result


# Arithmetic, with broadcasting.


def _add_vjp(_: Call, g: Array, __: Array, a: Array, b: Array) -> Gradients:
    return _summed_to(g, a.shape), _summed_to(g, b.shape)


def _sub_vjp(_: Call, g: Array, __: Array, a: Array, b: Array) -> Gradients:
    return _summed_to(g, a.shape), _summed_to(-g, b.shape)


def _mul_vjp(call: Call, g: Array, _: Array, a: Array, b: Array) -> Gradients:
    return (
        _summed_to(g * b, a.shape) if call.wanted[0] else None,
        _summed_to(g * a, b.shape) if call.wanted[1] else None,
    )


def _div_vjp(call: Call, g: Array, _: Array, a: Array, b: Array) -> Gradients:
    return (
        _summed_to(g / b, a.shape) if call.wanted[0] else None,
        _summed_to(-g * a / (b * b), b.shape) if call.wanted[1] else None,
    )


# Matrix products.


def _transposed(a: Array) -> Array:
    return a.swapaxes(-1, -2)


def _matmul_vjp(call: Call, g: Array, _: Array, a: Array, b: Array) -> Gradients:
    return (
        _summed_to(call.matmul(g, _transposed(b)), a.shape) if call.wanted[0] else None,
        _summed_to(call.matmul(_transposed(a), g), b.shape) if call.wanted[1] else None,
    )


def _linear(call: Call, x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Return ``x @ weight.T + bias``; the bias is added in FP32, as a GEMM's epilogue does."""
    y = call.matmul(x, weight.T)
    return y if bias is None else y + bias


def _linear_vjp(call: Call, g: Array, _: Array, x: Array, weight: Array, bias: Array | None = None) -> Gradients:
    count = math.prod(x.shape[:-1])  # -1 would not do for rows of no elements
    rows, inputs = g.reshape(count, g.shape[-1]), x.reshape(count, x.shape[-1])
    grads = (
        call.matmul(rows, weight).reshape(x.shape) if call.wanted[0] else None,
        call.matmul(rows.T, inputs) if call.wanted[1] else None,
    )
    return grads if bias is None else (*grads, rows.sum(axis=0))


# Elementwise functions.


def _relu_vjp(_: Call, g: Array, y: Array, __: Array) -> Gradients:
    return (np.where(y <= 0, g.dtype.type(0), g),)  # a NaN lets the gradient through, as in torch


def _tanh_vjp(_: Call, g: Array, y: Array, __: Array) -> Gradients:
    return (g * (1 - y * y),)


def _exp_vjp(_: Call, g: Array, y: Array, __: Array) -> Gradients:
    return (g * y,)


def _log_vjp(_: Call, g: Array, __: Array, x: Array) -> Gradients:
    return (g / x,)


# Reductions.


def _spread(g: Array, x: Array, dim: int | tuple[int, ...] | None, keepdim: bool) -> Array:
    """Undo a reduction's loss of axes and broadcast to the shape of its input."""
    if dim is not None and not keepdim:
        g = np.expand_dims(g, dim)
    return np.broadcast_to(g, x.shape)


def _sum(_: Call, x: Array, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Array:
    return np.asarray(x.sum(axis=dim, keepdims=keepdim))


def _sum_vjp(
    _: Call, g: Array, __: Array, x: Array, dim: int | tuple[int, ...] | None = None, keepdim: bool = False
) -> Gradients:
    return (_spread(g, x, dim, keepdim),)


def _mean(_: Call, x: Array, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Array:
    total = np.asarray(x.sum(axis=dim, keepdims=keepdim))
    return np.asarray(total / x.dtype.type(x.size / max(total.size, 1)))


def _mean_vjp(
    _: Call, g: Array, y: Array, x: Array, dim: int | tuple[int, ...] | None = None, keepdim: bool = False
) -> Gradients:
    count = x.dtype.type(x.size / max(y.size, 1))
    return (_spread(g / count, x, dim, keepdim),)


def _log_softmax(_: Call, x: Array, dim: int = -1) -> Array:
    shifted = x - x.max(axis=dim, keepdims=True)
    total = _by_float64(np.exp, shifted).sum(axis=dim, keepdims=True)
    return np.asarray(shifted - _by_float64(np.log, total))


def _log_softmax_vjp(_: Call, g: Array, y: Array, __: Array, dim: int = -1) -> Gradients:
    return (g - _by_float64(np.exp, y) * g.sum(axis=dim, keepdims=True),)


def _nll(call: Call, log_probabilities: Array, target: Array) -> Array:
    picked = log_probabilities[np.arange(len(target)), target]
    return -_mean(call, picked)


def _nll_vjp(_: Call, g: Array, __: Array, log_probabilities: Array, target: Array) -> Gradients:
    grad = np.zeros_like(log_probabilities)
    grad[np.arange(len(target)), target] = -g / g.dtype.type(len(target))
    return (grad,)


# Shape and format.


def _reshape(_: Call, x: Array, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


def _reshape_vjp(_: Call, g: Array, __: Array, x: Array, shape: tuple[int, ...]) -> Gradients:
    return (g.reshape(x.shape),)


def _permute(_: Call, x: Array, dims: tuple[int, ...]) -> Array:
    return x.transpose(dims)


def _permute_vjp(_: Call, g: Array, __: Array, x: Array, dims: tuple[int, ...]) -> Gradients:
    return (g.transpose(np.argsort([d % x.ndim for d in dims])),)


TABLE: dict[str, Operation] = {
    op.name: op
    for op in (
        Operation("add", lambda _, a, b: a + b, _add_vjp),
        Operation("sub", lambda _, a, b: a - b, _sub_vjp),
        Operation("mul", lambda _, a, b: a * b, _mul_vjp),
        Operation("div", lambda _, a, b: a / b, _div_vjp),
        Operation("neg", lambda _, a: -a, lambda _, g, __, a: (-g,), exact=True),
        Operation("matmul", lambda call, a, b: call.matmul(a, b), _matmul_vjp, same_format=True),
        Operation("linear", _linear, _linear_vjp, same_format=True),
        Operation("relu", lambda _, x: np.maximum(x, x.dtype.type(0)), _relu_vjp, exact=True),
        Operation("tanh", lambda _, x: _by_float64(np.tanh, x), _tanh_vjp),
        Operation("exp", lambda _, x: _by_float64(np.exp, x), _exp_vjp),
        Operation("log", lambda _, x: _by_float64(np.log, x), _log_vjp),
        Operation("sum", _sum, _sum_vjp),
        Operation("mean", _mean, _mean_vjp),
        Operation("log_softmax", _log_softmax, _log_softmax_vjp),
        Operation("nll_loss", _nll, _nll_vjp),
        Operation("reshape", _reshape, _reshape_vjp, exact=True),
        Operation("permute", _permute, _permute_vjp, exact=True),
        # The caller rounds to the other format; backward, to the format of the input.
        Operation("cast", lambda _, x: x, lambda _, g, __, x: (g,)),
    )
}
"""Every operation by name."""
