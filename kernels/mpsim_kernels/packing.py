"""Matrices rearranged for the kernels of whole rows: panels of columns, and the exponents of the numbers."""

from typing import Any

import numpy as np

from mpsim_kernels._jit import kernel
from mpsim_kernels.fused_dot import split_word
from mpsim_kernels.lanes import MAGNITUDE

__all__ = ["ZERO_EXPONENT", "pack", "pack_wide", "survey"]

ZERO_EXPONENT = -64
"""Packed exponent of a zero: with any packed exponent, at most 63, the sum stays below every nonzero product's."""

_WIDE_ZERO_EXPONENT = -600  # with any exponent the sum stays below every nonzero product's, and two fit an int16


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
def pack(words: Any, emin: Any, base: Any, values: Any, exponents: Any) -> None:
    """Copy the columns of a matrix into panels, beside their exponents less ``base``.

    Parameters
    ----------
    words : int32 [R, C]
        Words of float32. Infinities and NaNs are packed as zeros.
    emin : int
        Exponent of the format's subnormals.
    base : int
        Chosen so that packed exponents are between `ZERO_EXPONENT` + 1 and 63.
    values : int32 [P, R', W], exponents : int8 [P, R', W]
        Panels of W columns, P * W >= C and R' >= R; what lies outside the matrix becomes zero.
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
            for j in range(inside, width):
                value[j] = 0
                exponent[j] = ZERO_EXPONENT


@kernel
def pack_wide(words: Any, emin: Any, values: Any, exponents: Any) -> None:
    """Split the columns of a matrix into panels of significands and exponents.

    Parameters
    ----------
    words : int32 [R, C]
        Words of float32. Infinities and NaNs are packed as zeros.
    emin : int
        Exponent of the format's subnormals.
    values : float32 [P, R', W], exponents : int16 [P, R', W]
        Panels of W columns, P * W >= C and R' >= R; what lies outside the matrix becomes zero.
    """
    panels, rows, width = values.shape
    for p in range(panels):
        for r in range(rows):
            for j in range(width):
                column = p * width + j
                values[p, r, j] = np.float32(0)
                exponents[p, r, j] = _WIDE_ZERO_EXPONENT
                if r < words.shape[0] and column < words.shape[1]:
                    sig, e = split_word(np.int64(words[r, column]) & np.int64(0xFFFFFFFF), np.int64(emin))
                    if sig != 0 and e <= 127:
                        values[p, r, j] = np.float32(np.float32(sig) * np.float32(2.0**-23))  # exact
                        exponents[p, r, j] = np.int16(e)
