"""Matrices rearranged for the kernels of whole rows: panels of columns, and the exponents of the numbers."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels.lanes import INF, MAGNITUDE, SIGN

__all__ = ["ZERO_EXPONENT", "from_float64", "pack", "pack_stack", "pack_wide", "rooms", "survey", "to_float64"]

ZERO_EXPONENT = -64
"""Packed exponent of a zero: with any packed exponent, at most 63, the sum stays below every nonzero product's."""

_LINE = 64  # bytes of a cache line

_WIDE_ZERO_EXPONENT = -600  # with any exponent the sum stays below every nonzero product's, and two fit an int16


def rooms(*wanted: tuple[tuple[int, ...], type[Any]]) -> list[NDArray[Any]]:
    """Return uninitialised arrays of these shapes and dtypes.

    Each begins at a cache line, so that no vector of a row crosses one. They share one piece of memory: a small
    product would spend more time on asking for five.
    """
    sizes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in wanted]
    memory = np.empty(sum(sizes) + _LINE * len(sizes), np.uint8)
    start = -memory.__array_interface__["data"][0] % _LINE
    found = []
    for (shape, dtype), size in zip(wanted, sizes, strict=True):
        found.append(memory[start : start + size].view(dtype).reshape(shape))
        start += -(-size // _LINE) * _LINE
    return found


@kernel
def survey(words: Any) -> Any:
    """Return smallest and largest biased exponent of the finite nonzero float32 words, and whether all are finite.

    Without a finite nonzero number the smallest is 255 and the largest 0. ``words`` is int32 [n].
    """
    smallest, largest, top = np.int32(255), np.int32(0), np.int32(0)
    for i in range(words.size):
        magnitude = np.int32(words[i] & MAGNITUDE)
        field = np.int32(magnitude >> 23)
        smallest = min(smallest, np.int32(255) if magnitude == 0 else field)
        largest = max(largest, np.int32(0) if field == 255 else field)
        top = max(top, field)
    return smallest, largest, top != 255


@kernel
def pack(words: Any, emin: Any, base: Any, columns: Any, values: Any, exponents: Any) -> None:
    """Copy the columns of a matrix into panels, beside their exponents less ``base``.

    Parameters
    ----------
    words : int32 [R, C]
        Words of float32. Infinities and NaNs are packed as zeros.
    emin : int
        Exponent of the format's subnormals.
    base : int
        Chosen so that packed exponents are between `ZERO_EXPONENT` + 1 and 63.
    columns : int
        How many columns of the panels are written, at least C: what lies outside the matrix becomes zero.
    values : int32 [P, R', W], exponents : int8 [P, R', W]
        Panels of W columns, P * W >= ``columns`` and R' >= R.
    """
    panels, rows, width = values.shape
    lowest, shift = np.int32(emin), np.int32(base)
    for p in range(panels):
        for r in range(rows):
            value, exponent = values[p, r], exponents[p, r]
            inside = min(max(words.shape[1] - p * width, 0), width) if r < words.shape[0] else 0
            if inside:
                row = words[r, p * width : p * width + inside]
                for j in range(inside):
                    word = np.int32(row[j])
                    field = np.int32(np.int32(word >> 23) & np.int32(255))
                    ordinary = np.int32(word & MAGNITUDE) != 0 and field != 255
                    e = np.int32(max(np.int32(field - 127), lowest) - shift)
                    value[j] = word if ordinary else np.int32(0)
                    exponent[j] = np.int8(e if ordinary else np.int32(ZERO_EXPONENT))
            for j in range(inside, min(columns - p * width, width)):
                value[j] = 0
                exponent[j] = ZERO_EXPONENT


@kernel
def pack_stack(words: Any, emin: Any, base: Any, columns: Any, values: Any, exponents: Any) -> None:
    """Do as `pack` for each matrix of a stack: one more axis in front, of ``words``, ``values`` and ``exponents``."""
    for s in range(words.shape[0]):
        pack(words[s], emin, base, columns, values[s], exponents[s])


@kernel
def pack_wide(words: Any, emin: Any, columns: Any, values: Any, exponents: Any) -> None:
    """Copy the columns of a matrix into panels of float64, beside their exponents.

    Parameters
    ----------
    words : int32 [R, C]
        Words of float32. Infinities and NaNs are packed as zeros.
    emin : int
        Exponent of the format's subnormals.
    columns, values : float64 [P, R', W], exponents : int16 [P, R', W]
        As for `pack`.
    """
    panels, rows, width = values.shape
    for p in range(panels):
        for r in range(rows):
            inside = min(max(words.shape[1] - p * width, 0), width) if r < words.shape[0] else 0
            for j in range(inside):
                word = np.int32(words[r, p * width + j])
                field = np.int32(np.int32(word >> 23) & np.int32(255))
                ordinary = np.int32(word & MAGNITUDE) != 0 and field != 255
                values[p, r, j] = widened(word) if ordinary else np.float64(0.0)
                e = max(np.int32(field - 127), np.int32(emin))
                exponents[p, r, j] = np.int16(e if ordinary else np.int32(_WIDE_ZERO_EXPONENT))
            for j in range(inside, min(columns - p * width, width)):
                values[p, r, j] = np.float64(0.0)
                exponents[p, r, j] = _WIDE_ZERO_EXPONENT


@inner_kernel
def widened(word: Any) -> Any:
    """Return the float64 of the word of a finite float32, on integers where the processor may flush subnormals."""
    field = np.int64((word >> 23) & 255)
    fraction = np.int64(word & 0x7FFFFF)
    normal = np.int64(((field + 896) << 52) | (fraction << 29)).view(np.float64)
    size = normal if field != 0 else np.float64(fraction) * np.float64(2.0**-149)
    return -size if word < 0 else size


@kernel
def to_float64(words: Any, values: Any) -> None:
    """Write the values of finite float32 words, int32 [M, N], in ``values`` float64 [M, N'], N' >= N."""
    for i in range(words.shape[0]):
        for j in range(words.shape[1]):
            values[i, j] = widened(np.int32(words[i, j]))


@kernel
def from_float64(values: Any, infinite: Any, words: Any) -> None:
    """Write the float32 words of ``values`` float64 [M, N'] in ``words`` int32 [M, N], N <= N'.

    The values are float32 numbers; from ``infinite`` on they stand for infinities.
    """
    for i in range(words.shape[0]):
        for j in range(words.shape[1]):
            x = np.float64(values[i, j])
            bits = np.float64(abs(x)).view(np.int64)
            field = np.int32(bits >> 52) - np.int32(896)
            normal = np.int32((np.int32(field) << 23) | np.int32((bits >> 29) & 0x7FFFFF))
            small = np.int32(min(abs(x) * np.float64(2.0**149), np.float64(2.0**23)))
            finite = normal if field > 0 else small
            size = INF if abs(x) >= infinite else np.int32(finite)
            words[i, j] = np.int32(size | SIGN) if x < 0 else size
