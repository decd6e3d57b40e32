"""Elements chosen by position. Gradients that meet at one position are added in the inner arithmetic, in order."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.ops.table import Array, Call, Gradients, Operation, Part

__all__ = ["OPERATIONS"]

Indices: TypeAlias = "NDArray[np.intp]"


def _getitem(_: Call, input: Array, index: tuple[Any, ...]) -> Array:
    return np.asarray(input[index])


def _getitem_vjp(_: Call, g: Array, __: Array, input: Array, index: tuple[Any, ...]) -> Gradients:
    if not any(isinstance(part, np.ndarray) for part in index):
        return (Part(input.shape, index, g),)
    grad = np.zeros(input.shape, g.dtype)
    np.add.at(grad, index, g)  # an element may have been taken several times
    return (grad,)


def _embedding(_: Call, weight: Array, index: Indices, padding_idx: int | None = None) -> Array:
    return np.asarray(weight[index])


def _embedding_vjp(
    _: Call, g: Array, __: Array, weight: Array, index: Indices, padding_idx: int | None = None
) -> Gradients:
    grad = np.zeros(weight.shape, g.dtype)
    np.add.at(grad, index, g)
    if padding_idx is not None:
        grad[padding_idx] = 0
    return (grad,)


def _positions(index: Indices, dim: int) -> tuple[Indices, ...]:
    """Return, for each element of ``index``, its own position with that in ``dim`` replaced by the element."""
    grid = list(np.ogrid[tuple(slice(n) for n in index.shape)]) if index.ndim else []
    if index.ndim:
        grid[dim] = index
    return tuple(np.broadcast_arrays(*grid))


def _gather(_: Call, input: Array, dim: int, index: Indices) -> Array:
    return np.asarray(input[_positions(index, dim)])


def _gather_vjp(_: Call, g: Array, __: Array, input: Array, dim: int, index: Indices) -> Gradients:
    grad = np.zeros(input.shape, g.dtype)
    np.add.at(grad, _positions(index, dim), g)
    return (grad,)


def _scatter_add(_: Call, input: Array, src: Array, dim: int, index: Indices) -> Array:
    total = input.copy()
    np.add.at(total, _positions(index, dim), src[tuple(slice(n) for n in index.shape)])
    return total


def _scatter_add_vjp(_: Call, g: Array, __: Array, input: Array, src: Array, dim: int, index: Indices) -> Gradients:
    grad = np.zeros(src.shape, g.dtype)
    grad[tuple(slice(n) for n in index.shape)] = g[_positions(index, dim)]
    return g, grad


def _masked_fill(_: Call, input: Array, mask: NDArray[np.bool_], value: float) -> Array:
    return np.where(mask, input.dtype.type(value), input)


def _masked_fill_vjp(_: Call, g: Array, __: Array, input: Array, mask: NDArray[np.bool_], value: float) -> Gradients:
    return (np.where(mask, g.dtype.type(0), g),)


OPERATIONS = (
    Operation("getitem", _getitem, _getitem_vjp, reads=(), exact=True),
    Operation("embedding", _embedding, _embedding_vjp, reads=(), exact=True),
    Operation("gather", _gather, _gather_vjp, reads=(), exact=True),
    Operation("scatter_add", _scatter_add, _scatter_add_vjp, reads=()),
    Operation("masked_fill", _masked_fill, _masked_fill_vjp, reads=()),
)
