"""Arrays in a block format, and their values."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpsim._arrays import output_array
from mpsim.blocks.formats import BlockFormat, Element, IntElement
from mpsim.encoding import encode
from mpsim.formats import FP32, FloatFormat
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.blocks import multiply_scales

__all__ = [
    "BlockArray",
    "Place",
    "dequantize",
    "element_scales",
    "element_values",
    "first_element",
    "float_value",
    "scale_values",
]

_RANGE = 1 << 16  # elements worth a thread
_CHUNK = 1 << 18  # elements whose products are held at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockArray:
    """An array in a block format."""

    format: BlockFormat
    codes: NDArray[Any]
    """Codes of the elements, one in each unsigned integer."""
    scales: NDArray[np.uint8]
    """Codes of the scales; the shape is that of ``codes`` with one entry for each block along ``axis``."""
    axis: int
    """The axis along which blocks lie, not negative."""
    tensor_scale: float = 1.0
    """Scale of the whole tensor, a float32 number; 1 where the format has none."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of elements."""
        return self.codes.shape

    def dequantize(self, dtype: DTypeLike = np.float32, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the values; see `dequantize`."""
        return dequantize(self, dtype, out)

    def __repr__(self) -> str:
        return f"<BlockArray {self.format} of shape {self.shape}, blocks of {self.format.length} along {self.axis}>"


class Place(NamedTuple):
    """Where blocks lie in a C-contiguous array seen as [outer, n, inner]."""

    shape: tuple[int, ...]
    axis: int
    length: int
    outer: int
    n: int
    inner: int

    @classmethod
    def of(cls, shape: tuple[int, ...], axis: int, length: int) -> Place:
        """Return the place of blocks of ``length`` elements along an axis, which is checked."""
        if not shape:
            raise ValueError("x has shape (): blocks lie along an axis; x[None] has one")
        if not -len(shape) <= axis < len(shape):
            raise ValueError(f"axis is {axis}; an array of shape {shape} has axes {-len(shape)} to {len(shape) - 1}")
        axis %= len(shape)
        return cls(shape, axis, length, math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))

    @property
    def per_row(self) -> int:
        """Blocks along the axis."""
        return -(-self.n // self.length)

    @property
    def scales_shape(self) -> tuple[int, ...]:
        """Shape of the array of scales."""
        return *self.shape[: self.axis], self.per_row, *self.shape[self.axis + 1 :]

    def tiles(self) -> Iterator[tuple[int, slice, slice, slice]]:
        """Yield pieces that are small enough to be transposed in a cache: outer, elements, blocks, inner."""
        blocks = max(128 // self.length, 1)
        for o in range(self.outer):
            for k in range(0, self.per_row, blocks):
                rows = slice(k * self.length, min((k + blocks) * self.length, self.n))
                for c in range(0, self.inner, 256):
                    yield o, rows, slice(k, min(k + blocks, self.per_row)), slice(c, min(c + 256, self.inner))


def dequantize(q: BlockArray, dtype: DTypeLike = np.float32, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return the values of an array in a block format.

    Parameters
    ----------
    q : BlockArray
    dtype : float32 or float64
        The exact product of element, scale and tensor scale always fits float64; in float32 it is rounded once, to
        nearest even, subnormals kept.
    out : array of that dtype and the shape of ``q``, C-contiguous, optional

    Returns
    -------
    values : array of ``dtype``, shape of ``q``

    Examples
    --------
    >>> from mpsim.blocks import quantize
    >>> dequantize(quantize([1.0, 0.3, -0.2], "mxfp4"))
    array([ 1.  ,  0.25, -0.25], dtype=float32)
    """
    kind = np.dtype(dtype)
    if kind not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise TypeError(f"dtype is {kind}; float32 or float64 is needed")
    f, place = q.format, Place.of(q.codes.shape, q.axis, q.format.length)
    _check_codes(q, place)
    values = output_array(out, q.codes.shape, kind)
    codes, scales = np.ascontiguousarray(q.codes), np.ascontiguousarray(q.scales)
    if values.size == 0:
        return values
    elements, numbers = element_values(f.element), scale_values(f.scale, q.tensor_scale)
    if place.inner == 1:
        n = codes.size if place.n % f.length == 0 else place.n
        _multiply_rows(codes.reshape(-1), n, f.length, elements, scales.reshape(-1), numbers, values.reshape(-1))
        return values
    source = codes.reshape(place.outer, place.n, place.inner)
    scale_source = scales.reshape(place.outer, place.per_row, place.inner)
    target = values.reshape(source.shape)
    for o, rows, blocks, columns in place.tiles():
        tile = np.ascontiguousarray(source[o, rows, columns].T)
        tile_scales = np.ascontiguousarray(scale_source[o, blocks, columns].T)
        tile_values = np.empty(tile.shape, kind)
        _multiply_rows(
            tile.reshape(-1),
            tile.shape[1],
            f.length,
            elements,
            tile_scales.reshape(-1),
            numbers,
            tile_values.reshape(-1),
        )
        target[o, rows, columns] = tile_values.T
    return values


def element_scales(q: BlockArray) -> NDArray[np.float64]:
    """Return the scale of each element's block, without that of the tensor; shape of ``q``.

    Examples
    --------
    >>> from mpsim.blocks import quantize
    >>> element_scales(quantize([957.0, 100.0], "mxfp8_e4m3"))
    array([2., 2.])
    """
    scales = scale_values(q.format.scale, 1.0)[q.scales]
    spread = np.repeat(scales, q.format.length, axis=q.axis)
    return spread[(*(slice(None),) * q.axis, slice(q.shape[q.axis]))]


def _multiply_rows(
    codes: NDArray[Any],
    n: int,
    length: int,
    elements: NDArray[np.float64],
    scales: NDArray[Any],
    numbers: NDArray[np.float64],
    values: NDArray[Any],
) -> None:
    step = max(_CHUNK // length, 1)
    for start in range(0, scales.size, step):
        stop = min(start + step, scales.size)
        first, last = first_element(start, n, length), first_element(stop, n, length)
        products = values[first:last] if values.itemsize == 8 else np.empty(last - first)
        multiply = functools.partial(
            multiply_scales, codes, n, length, elements, scales, numbers, first, products, start
        )
        in_ranges(multiply, stop - start, max(_RANGE // length, 1))
        if values.itemsize == 4:
            encode(products, FP32, out=values[first:last].view(np.uint32))


def first_element(block: int, n: int, length: int) -> int:
    """Return the index of the first element of a block, in rows of ``n`` elements."""
    per_row = -(-n // length)
    return block // per_row * n + block % per_row * length


def _check_codes(q: BlockArray, place: Place) -> None:
    if q.codes.dtype != q.format.element.code_dtype or q.scales.dtype != np.uint8:
        raise TypeError(
            f"q has codes of {q.codes.dtype} and scales of {q.scales.dtype}; {q.format} has "
            f"{q.format.element.code_dtype} and uint8"
        )
    if q.scales.shape != place.scales_shape:
        raise ValueError(f"q.scales has shape {q.scales.shape}; codes of shape {q.shape} need {place.scales_shape}")


@functools.cache
def element_values(element: Element) -> NDArray[np.float64]:
    """Return the value of every code that fits the code's dtype; codes with too many bits are NaN."""
    count = 1 << (8 * element.code_dtype.itemsize)
    values = np.full(count, np.nan)
    codes = np.arange(1 << element.bits)
    if isinstance(element, IntElement):
        signed = codes - ((codes >> (element.bits - 1)) << element.bits)
        values[codes] = signed * math.ldexp(1.0, -element.fraction_bits)
    else:
        for code in codes.tolist():
            values[code] = float_value(element, code)
    return values


def float_value(fmt: FloatFormat, code: int) -> float:
    """Return the value of a code; every NaN is alike."""
    if code == fmt.sign_code and fmt.signed and not fmt.has_negative_zero:
        return math.nan
    magnitude = code & ~fmt.sign_code
    if magnitude > fmt.max_code:
        size = math.inf if magnitude == fmt.inf_code else math.nan
    else:
        size = fmt.magnitude(magnitude)
    return -size if code & fmt.sign_code else size


def scale_values(scale: FloatFormat, tensor_scale: float) -> NDArray[np.float64]:
    """Return the value of every code of a scale, times the tensor's."""
    return _code_values(scale) * tensor_scale


@functools.cache
def _code_values(scale: FloatFormat) -> NDArray[np.float64]:
    return np.array([float_value(scale, code) if code < 1 << scale.bits else math.nan for code in range(256)])
