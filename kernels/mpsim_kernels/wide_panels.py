"""Fused dot products of whole rows of outputs, in float64 lanes: exponents anywhere in float32's range, any rounding.

As `mpsim_kernels.panels`, for what its signed bytes and int32 sums cannot hold. A product of two float32 is exact in
float64, and so are its alignment, the cut and a sum below 2**53; nothing comes near float64's subnormal numbers. So
the rounding mode and the flush bits of the processor change nothing here either.

The rows of a panel lie `WIDE_WIDTH` numbers apart. Exponents are not biased.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpsim_kernels._jit import inlined_kernel, inner_kernel, kernel
from mpsim_kernels.lanes import TILE, WIDE_WIDTH, higher

__all__ = ["WIDE_OVERFLOWN", "WidePanelNumbers", "make_wide_panel_rows"]

WIDE_OVERFLOWN = np.float64(2.0**300)
"""Stands for an infinite accumulator: it absorbs every product, the largest below 2**256, and overflows again."""

_NO_EXPONENT = np.int64(-2000)
_SIGN = np.int64(-(1 << 63))


class WidePanelNumbers(NamedTuple):
    """The numbers of a fused dot product, each an np.int64."""

    bits: Any
    """Fraction bits of the aligned sum."""
    floor: Any
    """Exponent that terms are aligned to at least."""
    p: Any
    """Significand bits of the result."""
    emin: Any
    """Smallest normal exponent of the result."""
    emax: Any
    """Exponent from which on a result is infinite, less one."""


@inlined_kernel
def _four(a: Any, k: Any) -> Any:
    return a[k], a[k + 1], a[k + 2], a[k + 3]


@inner_kernel
def _exponent(a: Any, b: Any) -> Any:
    return np.int16(a + b)


@inlined_kernel
def _raise_top(a: Any, b: Any, top: Any) -> None:
    """Raise ``top`` int16 [W] to the exponents of 4 products; ``a`` is int16 [4], ``b`` int16 [4 * `WIDE_WIDTH`]."""
    a0, a1, a2, a3 = _four(a, 0)
    for j in range(top.size):
        low = higher(_exponent(a0, b[j]), _exponent(a1, b[j + WIDE_WIDTH]))
        high = higher(_exponent(a2, b[j + 2 * WIDE_WIDTH]), _exponent(a3, b[j + 3 * WIDE_WIDTH]))
        top[j] = higher(top[j], higher(low, high))


@inner_kernel
def _two_to(e: Any) -> Any:
    """Return ``2**e``."""
    return np.int64(np.int64(e + np.int64(1023)) << np.int64(52)).view(np.float64)


@inner_kernel
def _exponent_of(x: Any) -> Any:
    """Return the exponent of a nonnegative normal float64."""
    return np.int64(np.float64(x).view(np.int64) >> np.int64(52)) - np.int64(1023)


@inlined_kernel
def _begin(acc: Any, top: Any, n: WidePanelNumbers, scale: Any, total: Any) -> None:
    """Begin a block: what scales its terms, and ``total``, the aligned accumulator; all are float64 [W]."""
    for j in range(acc.size):
        size = np.float64(abs(acc[j]))
        own = higher(_exponent_of(size), n.emin) if size > 0.0 else _NO_EXPONENT
        s = _two_to(n.bits - higher(np.int64(top[j]), own))
        scale[j] = s
        total[j] = np.trunc(acc[j] * s)


@inlined_kernel
def _sum_of_4(a: Any, b: Any, j: Any, scale: Any) -> Any:
    """Return the sum of 4 aligned products of column ``j``, each cut toward zero."""
    low = np.trunc(a[0] * b[j] * scale) + np.trunc(a[1] * b[j + WIDE_WIDTH] * scale)
    return low + (np.trunc(a[2] * b[j + 2 * WIDE_WIDTH] * scale) + np.trunc(a[3] * b[j + 3 * WIDE_WIDTH] * scale))


@inlined_kernel
def _add_4(a: Any, b: Any, scale: Any, total: Any) -> None:
    a0 = _four(a, 0)
    for j in range(total.size):
        total[j] += _sum_of_4(a0, b, j, scale[j])


@inlined_kernel
def _add_8(a: Any, b: Any, scale: Any, total: Any) -> None:
    a0, a1 = _four(a, 0), _four(a, 4)
    for j in range(total.size):
        s = scale[j]
        total[j] += _sum_of_4(a0, b, j, s) + _sum_of_4(a1, b, j + 4 * WIDE_WIDTH, s)


@inner_kernel
def _rounded(units: Any) -> Any:
    """Return a nonnegative float64, rounded to the nearest integer, ties to even."""
    whole = np.trunc(units)
    rest = units - whole
    odd = whole != 2.0 * np.trunc(whole * 0.5)
    return whole + 1.0 if rest > 0.5 or (rest == 0.5 and odd) else whole


@inlined_kernel
def _close(total: Any, scale: Any, n: WidePanelNumbers, nearest: Any, acc: Any) -> None:
    """End a block: round ``total`` to the accumulators of the next one."""
    for j in range(acc.size):
        size = np.float64(abs(total[j]))
        unit = -_exponent_of(scale[j])  # exponent of one unit of the sum
        # Of the result's last place, in units; a sum of zero has any.
        place = higher(_exponent_of(size), n.emin - unit) - (n.p - np.int64(1))
        whole = size * _two_to(-place)
        kept = _rounded(whole) if nearest else np.trunc(whole)
        exact = kept * _two_to(place + unit)
        result = WIDE_OVERFLOWN if exact >= _two_to(n.emax + np.int64(1)) else exact
        # The sign goes with the number: zeros are positive.
        sign = np.int64(np.float64(total[j]).view(np.int64) & _SIGN) if exact > 0.0 else np.int64(0)
        acc[j] = np.int64(np.float64(result).view(np.int64) | sign).view(np.float64)


@functools.cache
def make_wide_panel_rows(block_length: int, nearest: bool) -> Callable[..., None]:
    """Return ``panel_rows(a, ea, b, eb, begin, end, acc, numbers)``, as `mpsim_kernels.panels.make_panel_rows` does.

    ``block_length`` is a multiple of 4. Values and accumulators are float64, packed exponents int16.
    """
    step = 8 if block_length % 8 == 0 else 4

    @kernel
    def panel_rows(a: Any, ea: Any, b: Any, eb: Any, begin: Any, end: Any, acc: Any, numbers: WidePanelNumbers) -> None:
        rows = a.shape[0]
        tops, room = np.empty(WIDE_WIDTH, np.int16), np.empty((2, WIDE_WIDTH), np.float64)
        floor = np.int16(numbers.floor)
        for panel in range(b.shape[0]):
            left = panel * WIDE_WIDTH
            right = min(left + WIDE_WIDTH, acc.shape[1])
            top, scale, total = tops[: right - left], room[0, : right - left], room[1, : right - left]
            for first in range(0, rows, TILE):
                for start in range(begin, end, block_length):
                    for i in range(first, min(first + TILE, rows)):
                        c = acc[i, left:right]
                        top[:] = floor
                        for g in range(start, start + block_length, 4):
                            _raise_top(ea[i, g : g + 4], eb[panel, g * WIDE_WIDTH : (g + 4) * WIDE_WIDTH], top)
                        _begin(c, top, numbers, scale, total)
                        for g in range(start, start + block_length, step):
                            values = b[panel, g * WIDE_WIDTH : (g + step) * WIDE_WIDTH]
                            if step == 8:
                                _add_8(a[i, g : g + 8], values, scale, total)
                            else:
                                _add_4(a[i, g : g + 4], values, scale, total)
                        _close(total, scale, numbers, nearest, c)

    return panel_rows
