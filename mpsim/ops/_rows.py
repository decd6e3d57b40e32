"""The kernels of whole rows, on arrays of any shape: as many threads as there are rows for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.ops._numeric import AT_LEAST, flat
from mpsim.ops.inner import Stepwise
from mpsim.ops.table import Array
from mpsim_kernels import rows as kernels
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.floating_point import default_environment

__all__ = ["attention_weights", "normalise", "normalise_backward", "softmax", "softmax_backward", "suit"]

Statistics: TypeAlias = "tuple[Array, Array]"
"""Mean and reciprocal deviation of each row."""


def suit(*arrays: Array | None) -> bool:
    """Return whether the kernels compute with these arrays: of one dtype, and without a rounding of every step."""
    there = [x for x in arrays if x is not None]
    return all(x.dtype == there[0].dtype and not isinstance(x, Stepwise) for x in there)


def _matrix(x: Array, dims: int = 1) -> Array:
    """Return rows of the last ``dims`` dimensions."""
    return flat(x).reshape(math.prod(x.shape[: x.ndim - dims]), math.prod(x.shape[x.ndim - dims :]))


def _by_rows(task: Callable[[slice], None], shape: tuple[int, ...]) -> None:
    """Run a task on ranges of rows, in the default floating-point environment."""

    def run(start: int, stop: int) -> None:
        with default_environment():
            task(slice(start, stop))

    in_ranges(run, shape[0], max(AT_LEAST // max(shape[1], 1), 1))


def softmax(x: Array) -> Array:
    """Return the softmax along the last dimension."""
    rows = _matrix(x)
    out = np.empty_like(rows)
    _by_rows(lambda part: kernels.softmax(rows[part], out[part]), rows.shape)
    return out.reshape(x.shape)


def softmax_backward(g: Array, y: Array) -> Array:
    """Return the gradient of what ``y`` is the softmax of, along the last dimension."""
    grads, rows = _matrix(g), _matrix(y)
    out = np.empty_like(rows)
    _by_rows(lambda part: kernels.softmax_backward(grads[part], rows[part], out[part]), rows.shape)
    return out.reshape(y.shape)


def attention_weights(
    scores: Array, scale: float, bias: Array | None, allowed: NDArray[np.bool_] | None, divided: bool
) -> Statistics:
    """Return the weights of attention, from the products of queries and keys, and each row's sum.

    See `mpsim_kernels.rows.attention_weights`.
    """
    shape = np.broadcast_shapes(*(x.shape for x in (scores, bias, allowed) if x is not None))
    rows = _matrix(scores if scores.shape == shape else np.broadcast_to(scores, shape))
    out = np.empty_like(rows)
    F = scores.dtype.type
    totals = np.empty(out.shape[0], scores.dtype)
    terms, mask = _repeated(bias, shape, scores.dtype), _repeated(allowed, shape, np.dtype(np.bool_))

    def task(part: slice) -> None:
        kernels.attention_weights(rows[part], part.start, F(scale), terms, mask, divided, out[part], totals[part])

    _by_rows(task, out.shape)
    return out.reshape(shape), totals.reshape(*shape[:-1], 1)


def _repeated(x: Array | None, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """Return rows that, repeated, are those of ``x`` broadcast to a shape; none where there is no ``x``."""
    if x is None:
        return np.empty((0, shape[-1]), dtype)
    own = x.shape[next((i for i, n in enumerate(x.shape) if n != 1), x.ndim) :]
    return _matrix(np.broadcast_to(x.reshape(own), shape[len(shape) - max(len(own), 1) :]).astype(dtype, copy=False))


def normalise(
    x: Array, weight: Array | None, bias: Array | None, dims: int, eps: float, centred: bool
) -> tuple[Array, Statistics]:
    """Return rows of the last ``dims`` dimensions normalised, and their statistics."""
    rows = _matrix(x, dims)
    out, (mean, rstd) = np.empty_like(rows), np.empty((2, rows.shape[0]), x.dtype)
    factors, terms = _column(weight, 1.0, rows), _column(bias, -0.0, rows)  # -0 + x is x, even for -0
    F = x.dtype.type

    def task(part: slice) -> None:
        kernels.normalise(rows[part], factors, terms, F(eps), centred, out[part], mean[part], rstd[part])

    _by_rows(task, rows.shape)
    return out.reshape(x.shape), (mean, rstd)


def _column(x: Array | None, otherwise: float, rows: Array) -> Array:
    return np.full(rows.shape[1], otherwise, rows.dtype) if x is None else flat(x)


def normalise_backward(
    g: Array, x: Array, weight: Array | None, dims: int, statistics: Statistics, centred: bool, wanted: bool
) -> tuple[Array | None, Array, Array]:
    """Return the gradients of `normalise`: of its input where it is wanted, of the weight and of the bias."""
    grads, rows, (mean, rstd) = _matrix(g, dims), _matrix(x, dims), statistics
    by_input = None
    if wanted:
        factors, out = _column(weight, 1.0, rows), np.empty_like(rows)

        def task(part: slice) -> None:
            kernels.normalise_backward(grads[part], rows[part], factors, centred, mean[part], rstd[part], out[part])

        _by_rows(task, rows.shape)
        by_input = out.reshape(x.shape)
    by_weight, by_bias = np.empty((2, rows.shape[1]), x.dtype)

    def sums(start: int, stop: int) -> None:
        with default_environment():
            kernels.normalise_sums(grads, rows, mean, rstd, start, stop, by_weight, by_bias)

    in_ranges(sums, rows.shape[1], max(AT_LEAST // max(rows.shape[0], 1), 32))
    shape = x.shape[x.ndim - dims :]
    return by_input, by_weight.reshape(shape), by_bias.reshape(shape)
