"""Torch's methods of a tensor: operators, functions, shapes and indices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from mpsim.tensor import Tensor

__all__ = ["Extremum", "Methods"]

Dims: TypeAlias = "int | tuple[int, ...] | None"


class Extremum(NamedTuple):
    """The largest or smallest elements along a dimension, and where each was first."""

    values: Tensor
    indices: NDArray[np.intp]


class Methods:
    """Methods that run one operation of the table, or a few; `Tensor` says how one is run."""

    __slots__ = ()

    data: NDArray[Any]

    def _apply(self, name: str, *others: Tensor, **options: Any) -> Tensor:
        """Run an operation with this tensor as first input."""
        raise NotImplementedError

    def _operand(self, other: ArrayLike | Tensor) -> Tensor:
        """Return the other operand as a tensor."""
        raise NotImplementedError

    # Arithmetic.

    def __add__(self, other: ArrayLike | Tensor) -> Tensor:
        return self._apply("add", self._operand(other))

    def __sub__(self, other: ArrayLike | Tensor) -> Tensor:
        return self._apply("sub", self._operand(other))

    def __mul__(self, other: ArrayLike | Tensor) -> Tensor:
        return self._apply("mul", self._operand(other))

    def __truediv__(self, other: ArrayLike | Tensor) -> Tensor:
        return self._apply("div", self._operand(other))

    def __pow__(self, exponent: ArrayLike | Tensor) -> Tensor:
        return self._apply("pow", self._operand(exponent))

    def __neg__(self) -> Tensor:
        return self._apply("neg")

    def pow(self, exponent: ArrayLike | Tensor) -> Tensor:
        """Return the tensor to the power of ``exponent``."""
        return self**exponent

    def maximum(self, other: ArrayLike | Tensor) -> Tensor:
        """Return the larger of each two elements; NaN where one is NaN."""
        return self._apply("maximum", self._operand(other))

    def minimum(self, other: ArrayLike | Tensor) -> Tensor:
        """Return the smaller of each two elements; NaN where one is NaN."""
        return self._apply("minimum", self._operand(other))

    def where(self, condition: ArrayLike, other: ArrayLike | Tensor) -> Tensor:
        """Return the element of this tensor where ``condition``, else that of ``other``."""
        return self._apply("where", self._operand(other), condition=_booleans(condition, "where: condition"))

    # Comparisons give arrays: they have no gradient.

    def __lt__(self, other: ArrayLike | Tensor) -> NDArray[np.bool_]:
        return np.asarray(np.less(self.data, self._operand(other).data))

    def __le__(self, other: ArrayLike | Tensor) -> NDArray[np.bool_]:
        return np.asarray(np.less_equal(self.data, self._operand(other).data))

    def __gt__(self, other: ArrayLike | Tensor) -> NDArray[np.bool_]:
        return np.asarray(np.greater(self.data, self._operand(other).data))

    def __ge__(self, other: ArrayLike | Tensor) -> NDArray[np.bool_]:
        return np.asarray(np.greater_equal(self.data, self._operand(other).data))

    # Functions of single elements.

    def exp(self) -> Tensor:
        """Return e**x."""
        return self._apply("exp")

    def log(self) -> Tensor:
        """Return the natural logarithm."""
        return self._apply("log")

    def sqrt(self) -> Tensor:
        """Return the square root."""
        return self._apply("sqrt")

    def rsqrt(self) -> Tensor:
        """Return 1 / sqrt(x)."""
        return self._apply("rsqrt")

    def erf(self) -> Tensor:
        """Return the error function."""
        return self._apply("erf")

    def tanh(self) -> Tensor:
        """Return the hyperbolic tangent."""
        return self._apply("tanh")

    def sigmoid(self) -> Tensor:
        """Return 1 / (1 + exp(-x))."""
        return self._apply("sigmoid")

    def relu(self) -> Tensor:
        """Return max(x, 0)."""
        return self._apply("relu")

    def abs(self) -> Tensor:
        """Return the magnitude."""
        return self._apply("abs")

    def clamp(self, min: float | None = None, max: float | None = None) -> Tensor:
        """Return the elements, those below ``min`` or above ``max`` replaced by it."""
        if min is None and max is None:
            raise ValueError("clamp: min and max are both None; give at least one")
        return self._apply("clamp", min=min, max=max)

    clip = clamp

    def masked_fill(self, mask: ArrayLike, value: float) -> Tensor:
        """Return the tensor with ``value`` where ``mask``, which is broadcast to its shape."""
        held = _booleans(mask, "masked_fill: mask")
        if not _broadcasts_to(held.shape, self.data.shape):
            raise ValueError(f"masked_fill: mask is {held.shape}; it must broadcast to {self.data.shape}")
        return self._apply("masked_fill", mask=held, value=float(value))

    # Reductions.

    def sum(self, dim: Dims = None, keepdim: bool = False) -> Tensor:
        """Return the sum over ``dim``, or over all dimensions."""
        return self._apply("sum", dim=dim, keepdim=keepdim)

    def mean(self, dim: Dims = None, keepdim: bool = False) -> Tensor:
        """Return the mean over ``dim``, or over all dimensions."""
        return self._apply("mean", dim=dim, keepdim=keepdim)

    def var(self, dim: Dims = None, correction: float = 1, keepdim: bool = False) -> Tensor:
        """Return the mean squared deviation from the mean, over the number of elements minus ``correction``."""
        return self._apply("var", dim=dim, correction=correction, keepdim=keepdim)

    def amax(self, dim: Dims = None, keepdim: bool = False) -> Tensor:
        """Return the largest elements; equals share the gradient."""
        return self._apply("amax", dim=dim, keepdim=keepdim)

    def amin(self, dim: Dims = None, keepdim: bool = False) -> Tensor:
        """Return the smallest elements; equals share the gradient."""
        return self._apply("amin", dim=dim, keepdim=keepdim)

    def max(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return the largest element, or those along ``dim`` with their indices; the first of equals has the gradient.

        Without ``dim`` equals share the gradient.
        """
        return self.amax() if dim is None else self._extremum(np.argmax(self.data, axis=dim), dim, keepdim)

    def min(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return the smallest element, or those along ``dim`` with their indices, as for `max`."""
        return self.amin() if dim is None else self._extremum(np.argmin(self.data, axis=dim), dim, keepdim)

    def _extremum(self, indices: NDArray[np.intp], dim: int, keepdim: bool) -> Extremum:
        kept = np.expand_dims(indices, dim)
        values = self.gather(dim, kept)
        return Extremum(values, kept) if keepdim else Extremum(values.squeeze(dim), np.asarray(indices))

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> NDArray[np.intp]:
        """Return where the largest element is, the first of equals."""
        return np.asarray(np.argmax(self.data, axis=dim, keepdims=keepdim))

    def softmax(self, dim: int = -1) -> Tensor:
        """Return exp(x) over its sum along ``dim``."""
        return self._apply("softmax", dim=dim)

    def log_softmax(self, dim: int = -1) -> Tensor:
        """Return the logarithm of the softmax along ``dim``."""
        return self._apply("log_softmax", dim=dim)

    # Shapes.

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """Return the same elements in another shape."""
        return self._apply("reshape", shape=_sizes(shape))

    view = reshape

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """Return the tensor with a range of dimensions made one."""
        shape = self.data.shape or (1,)
        start, end = (_dimension(d, len(shape), "flatten") for d in (start_dim, end_dim))
        if start > end:
            raise ValueError(f"flatten: start_dim is {start_dim}, end_dim {end_dim}; it must not be before start_dim")
        return self.reshape(*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])

    def squeeze(self, dim: int | None = None) -> Tensor:
        """Return the tensor without ``dim`` if its size is 1, or without all dimensions of size 1."""
        shape = self.data.shape
        gone = range(len(shape)) if dim is None else [_dimension(dim, len(shape), "squeeze")]
        return self.reshape([n for i, n in enumerate(shape) if n != 1 or i not in gone])

    def unsqueeze(self, dim: int) -> Tensor:
        """Return the tensor with a dimension of size 1 put in."""
        shape = list(self.data.shape)
        shape.insert(_dimension(dim, len(shape) + 1, "unsqueeze"), 1)
        return self.reshape(shape)

    def permute(self, *dims: int | Sequence[int]) -> Tensor:
        """Return the tensor with its dimensions in another order."""
        return self._apply("permute", dims=_sizes(dims))

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Return the tensor with two dimensions exchanged."""
        dims = list(range(self.data.ndim))
        dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
        return self.permute(dims)

    @property
    def T(self) -> Tensor:
        """The tensor with its dimensions reversed."""
        return self.permute(list(reversed(range(self.data.ndim))))

    def split(self, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Return parts along ``dim``, all of one size but the last, or of the sizes given."""
        axis = _dimension(dim, self.data.ndim, "split")
        length, sections = self.data.shape[axis], split_size_or_sections
        if isinstance(sections, int):
            if sections <= 0:
                raise ValueError(f"split: split_size is {sections}; it must be positive")
            sections = [min(sections, length - start) for start in range(0, max(length, 1), sections)]
        elif sum(sections) != length:
            raise ValueError(
                f"split: the sizes {list(sections)} add up to {sum(sections)}; dimension {dim} has {length}"
            )
        ends = np.cumsum([0, *sections]).tolist()
        before = (slice(None),) * axis
        return tuple(self[(*before, slice(a, b))] for a, b in itertools.pairwise(ends))

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """Return at most ``chunks`` parts along ``dim``, all of one size but the last."""
        if chunks <= 0:
            raise ValueError(f"chunk: chunks is {chunks}; it must be positive")
        length = self.data.shape[_dimension(dim, self.data.ndim, "chunk")]
        return self.split(max(-(-length // chunks), 1), dim)

    # Indices.

    def __getitem__(self, index: Any) -> Tensor:
        parts = index if isinstance(index, tuple) else (index,)
        held = tuple(_index(part) for part in parts)
        return self._apply("getitem", index=held)

    def gather(self, dim: int, index: ArrayLike) -> Tensor:
        """Return the elements of this tensor at ``index`` along ``dim``, otherwise at the positions of ``index``."""
        axis, indices = self._along(dim, index, "gather")
        return self._apply("gather", dim=axis, index=indices)

    def scatter_add(self, dim: int, index: ArrayLike, src: ArrayLike | Tensor) -> Tensor:
        """Return the tensor with the elements of ``src`` added at ``index`` along ``dim``."""
        axis, indices = self._along(dim, index, "scatter_add")
        source = self._operand(src)
        if source.ndim != indices.ndim or any(n > m for n, m in zip(indices.shape, source.shape, strict=True)):
            raise ValueError(
                f"scatter_add: index is {indices.shape}, src {source.shape}; src must be as large as index"
            )
        return self._apply("scatter_add", source, dim=axis, index=indices)

    def _along(self, dim: int, index: ArrayLike, name: str) -> tuple[int, NDArray[np.intp]]:
        """Return a dimension and indices along it, checked."""
        indices, shape = np.asarray(index), self.data.shape
        axis = _dimension(dim, len(shape), name)
        if indices.dtype.kind not in "iu":
            raise TypeError(f"{name}: index has dtype {indices.dtype}; integers are needed")
        wide = indices.ndim != len(shape)
        if wide or any(n > m for i, (n, m) in enumerate(zip(indices.shape, shape, strict=True)) if i != axis):
            raise ValueError(
                f"{name}: index is {indices.shape}, the tensor {shape}; "
                f"it needs as many dimensions, none larger but dim={dim}"
            )
        if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < shape[axis]:
            raise IndexError(
                f"{name}: index reaches from {indices.min()} to {indices.max()}; it must be 0 to {shape[axis] - 1}"
            )
        return axis, indices.astype(np.intp)


def _sizes(sizes: tuple[int | Sequence[int], ...]) -> tuple[int, ...]:
    """Return sizes that came one by one or as a sequence."""
    first = sizes[0] if len(sizes) == 1 else sizes
    return tuple(first) if isinstance(first, Sequence) else (first,)  # type: ignore[arg-type]


def _dimension(dim: int, ndim: int, name: str) -> int:
    """Return a dimension counted from the front."""
    if not -ndim <= dim < ndim:
        raise IndexError(f"{name}: dim is {dim}; it must be {-ndim} to {ndim - 1}")
    return dim % ndim


def _booleans(x: ArrayLike, name: str) -> NDArray[np.bool_]:
    array = np.asarray(x)
    if array.dtype != np.bool_:
        raise TypeError(f"{name} has dtype {array.dtype}; booleans are needed")
    return array


def _broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _index(part: Any) -> Any:
    """Return one part of an index: lists and arrays as arrays, of integers or booleans."""
    if part is None or part is Ellipsis or isinstance(part, slice | int | np.integer):
        return part
    array = np.asarray(part)
    if array.size == 0 and isinstance(part, list | tuple):
        array = array.astype(np.intp)
    if array.dtype.kind not in "iub":
        raise TypeError(f"the index has a part of dtype {array.dtype}; integers, booleans and slices are needed")
    return array
