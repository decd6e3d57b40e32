"""Shapes: the same elements in another order, cut, or put together."""

from __future__ import annotations

import numpy as np

from mpsim.ops.table import Array, Call, Gradients, Operation

__all__ = ["OPERATIONS"]


def _reshape(_: Call, input: Array, shape: tuple[int, ...]) -> Array:
    return input.reshape(shape)


def _reshape_vjp(_: Call, g: Array, __: Array, input: Array, shape: tuple[int, ...]) -> Gradients:
    return (g.reshape(input.shape),)


def _permute(_: Call, input: Array, dims: tuple[int, ...]) -> Array:
    return input.transpose(dims)


def _permute_vjp(_: Call, g: Array, __: Array, input: Array, dims: tuple[int, ...]) -> Gradients:
    return (g.transpose(np.argsort([d % input.ndim for d in dims])),)


def _cat(_: Call, *tensors: Array, dim: int = 0) -> Array:
    return np.concatenate(tensors, axis=dim)


def _cat_vjp(_: Call, g: Array, __: Array, *tensors: Array, dim: int = 0) -> Gradients:
    ends = np.cumsum([t.shape[dim] for t in tensors])
    return tuple(np.split(g, ends[:-1], axis=dim))


OPERATIONS = (
    Operation("reshape", _reshape, _reshape_vjp, reads=(), exact=True, exact_vjp=True, rearranges=True),
    Operation("permute", _permute, _permute_vjp, reads=(), exact=True, exact_vjp=True, rearranges=True),
    Operation("cat", _cat, _cat_vjp, reads=(), exact=True, exact_vjp=True),
)
