"""Functions of several tensors, as in torch; those of one are its methods."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mpsim.tensor import Tensor, apply, as_tensor

__all__ = ["cat", "chunk", "gather", "maximum", "minimum", "scatter_add", "split", "stack", "where"]


def cat(tensors: Sequence[Tensor | ArrayLike], dim: int = 0) -> Tensor:
    """Return tensors put one behind the other along ``dim``; their other dimensions must agree.

    Examples
    --------
    >>> cat([Tensor([1.0]), Tensor([2.0, 3.0])])
    Tensor([1., 2., 3.], format=fp32)
    """
    parts = [as_tensor(t) for t in tensors]
    if not parts:
        raise ValueError("cat: tensors is empty; at least one tensor is needed")
    first = parts[0].shape
    if not -len(first) <= dim < len(first):
        raise IndexError(f"cat: dim is {dim}; it must be {-len(first)} to {len(first) - 1}")
    axis = dim % len(first)
    for part in parts:
        if _without(part.shape, axis) != _without(first, axis) or part.ndim != len(first):
            raise ValueError(f"cat: tensors have shapes {first} and {part.shape}; they may differ in dim={dim} alone")
    return apply("cat", *parts, dim=axis)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def stack(tensors: Sequence[Tensor | ArrayLike], dim: int = 0) -> Tensor:
    """Return tensors of one shape put one behind the other along a new dimension."""
    parts = [as_tensor(t) for t in tensors]
    for part in parts:
        if part.shape != parts[0].shape:
            raise ValueError(f"stack: tensors have shapes {parts[0].shape} and {part.shape}; they must be equal")
    return cat([part.unsqueeze(dim) for part in parts], dim)


def split(tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Return parts along ``dim``, all of one size but the last, or of the sizes given."""
    return tensor.split(split_size_or_sections, dim)


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Return at most ``chunks`` parts along ``dim``, all of one size but the last."""
    return input.chunk(chunks, dim)


def where(condition: ArrayLike, input: Tensor | ArrayLike, other: Tensor | ArrayLike) -> Tensor:
    """Return the element of ``input`` where ``condition``, else that of ``other``, with broadcasting."""
    if not isinstance(input, Tensor) and isinstance(other, Tensor):
        return other.where(~np.asarray(condition, dtype=np.bool_), input)
    return as_tensor(input).where(condition, other)


def maximum(input: Tensor, other: Tensor | ArrayLike) -> Tensor:
    """Return the larger of each two elements; NaN where one is NaN."""
    return input.maximum(other)


def minimum(input: Tensor, other: Tensor | ArrayLike) -> Tensor:
    """Return the smaller of each two elements; NaN where one is NaN."""
    return input.minimum(other)


def gather(input: Tensor, dim: int, index: ArrayLike) -> Tensor:
    """Return the elements of ``input`` at ``index`` along ``dim``, otherwise at the positions of ``index``."""
    return input.gather(dim, index)


def scatter_add(input: Tensor, dim: int, index: ArrayLike, src: Tensor | ArrayLike) -> Tensor:
    """Return ``input`` with the elements of ``src`` added at ``index`` along ``dim``."""
    return input.scatter_add(dim, index, src)
