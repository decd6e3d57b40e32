"""What the rules share: sums that undo broadcasting, and functions evaluated in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpsim.ops.inner import Stepwise
from mpsim.ops.table import Array

__all__ = ["in_float64", "summed_to"]

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
    flat = [np.ascontiguousarray(x).reshape(-1) for x in inputs]
    out = np.empty(first.size, first.dtype)
    for start in range(0, first.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        out[block] = function(*(x[block].astype(np.float64) for x in flat))
    return out.reshape(first.shape)
