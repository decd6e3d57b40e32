"""What the rules share: sums that undo broadcasting, and functions of single elements evaluated in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from mpsim.ops.inner import Stepwise
from mpsim.ops.table import Array
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.elementary import make_function, make_slope
from mpsim_kernels.floating_point import default_environment

__all__ = ["AT_LEAST", "flat", "function", "in_float64", "slope", "summed_to"]

AT_LEAST = 1 << 15
"""Elements worth a thread, where each takes an exponential or as much."""

_BLOCK = 1 << 12  # elements whose intermediate results stay in a first-level cache


def summed_to(grad: Array, shape: tuple[int, ...]) -> Array:
    """Sum a gradient over the axes along which its input was broadcast."""
    if grad.shape == shape:
        return grad
    grad = grad.sum(axis=tuple(range(grad.ndim - len(shape))))
    stretched = tuple(i for i, n in enumerate(shape) if n == 1 and grad.shape[i] != 1)
    return np.asanyarray(grad.sum(axis=stretched, keepdims=True) if stretched else grad)


def in_float64(function: Callable[..., Array], *inputs: Array) -> Array:
    """Return an elementwise function of arrays of one shape, computed in float64 and rounded to their dtype."""
    first = inputs[0]
    for x in inputs:
        if isinstance(x, Stepwise):
            return x.whole(function, *inputs)
    if first.dtype == np.float64:
        return np.asarray(function(*inputs))
    rows = [np.ascontiguousarray(x).reshape(-1) for x in inputs]
    out = np.empty(first.size, first.dtype)
    for start in range(0, first.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        out[block] = function(*(x[block].astype(np.float64) for x in rows))
    return out.reshape(first.shape)


def function(name: str, x: Array) -> Array:
    """Return a function of `mpsim_kernels.elementary`, computed in float64 and rounded to the dtype of ``x``."""
    return _compiled(make_function, name, x)


def slope(name: str, g: Array, x: Array) -> Array:
    """Return ``g`` times the derivative of such a function at ``x``, likewise."""
    return _compiled(make_slope, name, g, x)


def _compiled(make: Callable[[str, int], Callable[..., None]], name: str, *inputs: Array) -> Array:
    for x in inputs:
        if isinstance(x, Stepwise):
            return x.whole(partial(_compiled, make, name), *inputs)
    first = inputs[0]
    run = make(name, 8 * first.itemsize)
    rows = [flat(x) for x in inputs]
    out = np.empty(first.size, first.dtype)

    def task(start: int, stop: int) -> None:
        with default_environment():
            run(*(x[start:stop] for x in rows), out[start:stop])

    in_ranges(task, first.size, AT_LEAST)
    return out.reshape(first.shape)


def flat(x: Array) -> Array:
    """Return the elements in a row, writeable, so that kernels are compiled once."""
    row = np.ascontiguousarray(x).reshape(-1)
    return row if row.flags.writeable else row.copy()
