"""Functions of single elements.

All but the exact ones and sqrt are computed in float64 and rounded to the inner arithmetic: with a relative error of
e before, that is FP32's correctly rounded result but in about a share e * 2**25 of cases. For exp, log and tanh, within
a unit of float64's last place, this is one in 2**28; for the others, within four, one in 2**26. Derivatives that need
such a function again are computed in the same way. In float64 itself nothing is rounded twice. What is made of the
exponential has a kernel, `mpsim_kernels.elementary`; logarithms and tanh are NumPy's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from mpsim.ops._numeric import function, in_float64, slope
from mpsim.ops.table import Array, Call, Gradients, Operation

__all__ = ["OPERATIONS", "sigmoid", "softplus"]


def _by_float64(evaluate: Callable[[Array], Array]) -> Callable[[Call, Array], Array]:
    """Return the forward rule of a function on float64 arrays."""

    def forward(_: Call, input: Array) -> Array:
        return in_float64(evaluate, input)

    return forward


def _by_kernel(name: str) -> Callable[[Call, Array], Array]:
    """Return the forward rule of a function that has a kernel."""

    def forward(_: Call, input: Array) -> Array:
        return function(name, input)

    return forward


# Exact functions.


def _neg(_: Call, input: Array) -> Array:
    return np.asarray(-input)


def _neg_vjp(_: Call, g: Array, __: Array, ___: Array) -> Gradients:
    return (-g,)


def _abs(_: Call, input: Array) -> Array:
    return np.abs(input)


def _abs_vjp(_: Call, g: Array, __: Array, input: Array) -> Gradients:
    return (g * np.sign(input),)


def _relu(_: Call, input: Array) -> Array:
    return np.asarray(np.maximum(input, input.dtype.type(0)))


def _relu_vjp(_: Call, g: Array, y: Array, __: Array) -> Gradients:
    return (np.where(y <= 0, g.dtype.type(0), g),)  # a NaN lets the gradient through, as in torch


def _clamp(_: Call, input: Array, min: float | None = None, max: float | None = None) -> Array:
    return np.asarray(np.clip(input, min, max))


def _clamp_vjp(
    _: Call, g: Array, __: Array, input: Array, min: float | None = None, max: float | None = None
) -> Gradients:
    inside = (input >= (-math.inf if min is None else min)) & (input <= (math.inf if max is None else max))
    return (np.where(inside, g, g.dtype.type(0)),)


# Exponentials, logarithms and roots.


def _exp_vjp(_: Call, g: Array, y: Array, __: Array) -> Gradients:
    return (g * y,)


def _log_vjp(_: Call, g: Array, __: Array, input: Array) -> Gradients:
    return (g / input,)


def _sqrt(_: Call, input: Array) -> Array:
    return np.asarray(np.sqrt(input))


def _sqrt_vjp(_: Call, g: Array, y: Array, __: Array) -> Gradients:
    return (g / (2 * y),)


def _rsqrt_vjp(_: Call, g: Array, y: Array, __: Array) -> Gradients:
    return (-0.5 * g * (y * y * y),)


# Activations.


def _tanh_vjp(_: Call, g: Array, y: Array, __: Array) -> Gradients:
    return (g * (1 - y * y),)


def _sigmoid_vjp(_: Call, g: Array, y: Array, __: Array) -> Gradients:
    return (g * (1 - y) * y,)


def _silu_vjp(_: Call, g: Array, __: Array, input: Array) -> Gradients:
    return (slope("silu", g, input),)


def _softplus64(x: Array, beta: float, threshold: float) -> Array:
    return np.where(x * beta > threshold, x, np.log1p(np.exp(x * beta)) / beta)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return function("sigmoid", x)


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x))."""
    return in_float64(lambda v: np.asarray(np.maximum(v, 0) + np.log1p(np.exp(-np.abs(v)))), x)


def _softplus(_: Call, input: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    return in_float64(functools.partial(_softplus64, beta=beta, threshold=threshold), input)


def _softplus_slope(g: Array, x: Array, beta: float, threshold: float) -> Array:
    return np.where(x * beta > threshold, g, g * sigmoid(x * beta))


def _softplus_vjp(_: Call, g: Array, __: Array, input: Array, beta: float = 1.0, threshold: float = 20.0) -> Gradients:
    return (in_float64(functools.partial(_softplus_slope, beta=beta, threshold=threshold), g, input),)


def _erf_slope(g: Array, x: Array) -> Array:
    return np.asarray(g * (np.exp(-x * x) * (2 / math.sqrt(math.pi))))


def _erf_vjp(_: Call, g: Array, __: Array, input: Array) -> Gradients:
    return (in_float64(_erf_slope, g, input),)


def _gelu(_: Call, input: Array, approximate: str = "none") -> Array:
    return function("gelu_tanh" if approximate == "tanh" else "gelu", input)


def _gelu_vjp(_: Call, g: Array, __: Array, input: Array, approximate: str = "none") -> Gradients:
    return (slope("gelu_tanh" if approximate == "tanh" else "gelu", g, input),)


# Formats.


def _cast(_: Call, input: Array) -> Array:
    return input


def _cast_vjp(_: Call, g: Array, __: Array, input: Array) -> Gradients:
    return (g,)


OPERATIONS = (
    Operation("neg", _neg, _neg_vjp, reads=(), exact=True, exact_vjp=True),
    Operation("abs", _abs, _abs_vjp, exact=True, exact_vjp=True, reads=("input",)),
    Operation("relu", _relu, _relu_vjp, exact=True, exact_vjp=True, reads=("output",)),
    Operation("clamp", _clamp, _clamp_vjp, reads=("input",)),
    Operation("exp", _by_kernel("exp"), _exp_vjp, reads=("output",)),
    Operation("log", _by_float64(np.log), _log_vjp, reads=("input",)),
    Operation("sqrt", _sqrt, _sqrt_vjp, reads=("output",)),
    Operation("rsqrt", _by_float64(lambda x: np.asarray(1.0 / np.sqrt(x))), _rsqrt_vjp, reads=("output",)),
    Operation("tanh", _by_float64(np.tanh), _tanh_vjp, reads=("output",)),
    Operation("sigmoid", _by_kernel("sigmoid"), _sigmoid_vjp, reads=("output",)),
    Operation("silu", _by_kernel("silu"), _silu_vjp, reads=("input",)),
    Operation("softplus", _softplus, _softplus_vjp, reads=("input",)),
    Operation("erf", _by_kernel("erf"), _erf_vjp, reads=("input",)),
    Operation("gelu", _gelu, _gelu_vjp, reads=("input",)),
    # The caller rounds to the other format; backward, to the format of the input.
    Operation("cast", _cast, _cast_vjp, reads=()),
)
