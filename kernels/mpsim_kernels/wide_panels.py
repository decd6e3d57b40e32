"""Fused dot products of whole rows of outputs whose exponents may lie anywhere in float32's range.

As `mpsim_kernels.panels`, for bf16 and tf32 inputs that its signed bytes cannot hold. Significands and exponents are
kept apart, so each product has its own power of two, and subnormals need no arithmetic on subnormal floats.
Exponents are not biased here; every float is a significand below 4, a power of two, or a product of the two.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpsim_kernels._jit import kernel
from mpsim_kernels.lanes import INF, MAGNITUDE, TILE, higher, power_of_two, sign_and_magnitude, sum_32

__all__ = ["WidePanelNumbers", "make_wide_panel_rows"]

_FRACTION, _HIDDEN = np.int32(0x7FFFFF), np.int32(0x800000)


class WidePanelNumbers(NamedTuple):
    """The numbers of a fused dot product, each an np.int32."""

    bits: Any
    """Fraction bits of the aligned sum."""
    floor: Any
    """Exponent that terms are aligned to at least."""
    keep: Any
    """Mask of the bits of a float32 that a result keeps."""


@kernel
def _raise_top(a: Any, b: Any, top: Any) -> None:
    """Raise ``top`` int16 [W] to the exponents of 4 products; ``a`` is int16 [4] and ``b`` int16 [4, W]."""
    a0, a1, a2, a3 = a[0], a[1], a[2], a[3]
    b0, b1, b2, b3 = b[0], b[1], b[2], b[3]
    for j in range(top.size):
        e0 = higher(np.int16(a0 + b0[j]), np.int16(a1 + b1[j]))
        e1 = higher(np.int16(a2 + b2[j]), np.int16(a3 + b3[j]))
        top[j] = higher(top[j], higher(e0, e1))


@kernel
def _cut(significand: Any, exponent: Any) -> Any:
    """Return ``significand * 2**(exponent - 127)``, below 2**31, cut toward zero.

    From 2**-126 down the power of two may become 0: so does the result.
    """
    return np.int32(significand * power_of_two(higher(np.int32(exponent), np.int32(0))))


@kernel
def _begin(acc: Any, top: Any, n: WidePanelNumbers, base: Any, low: Any, high: Any) -> None:
    """Begin a block: ``base``, which added to a term's exponent scales it for `_cut`; the accumulator in ``low``."""
    for j in range(acc.size):
        word = np.float32(acc[j]).view(np.int32)
        field = np.int32(np.int32(word >> 23) & np.int32(255))
        fraction = np.int32(word & _FRACTION)
        zero = np.int32(word & MAGNITUDE) == 0
        own = np.int32(higher(field, np.int32(1)) - np.int32(127))
        e = higher(np.int32(top[j]), np.int32(-1000) if zero else own)
        sig = np.int32(fraction if field == 0 else np.int32(fraction | _HIDDEN))
        significand = np.float32(np.float32(np.int32(-sig) if word < 0 else sig) * np.float32(2.0**-23))
        shift = np.int32(np.int32(n.bits + np.int32(127)) - e)
        base[j] = shift
        low[j] = _cut(significand, sum_32(own, shift))
        high[j] = 0


@kernel
def _add_4(a: Any, ea: Any, b: Any, eb: Any, base: Any, total: Any) -> None:
    """Add 4 aligned products to ``total`` int32 [W]."""
    a0, a1, a2, a3 = a[0], a[1], a[2], a[3]
    x0, x1, x2, x3 = np.int32(ea[0]), np.int32(ea[1]), np.int32(ea[2]), np.int32(ea[3])
    b0, b1, b2, b3 = b[0], b[1], b[2], b[3]
    y0, y1, y2, y3 = eb[0], eb[1], eb[2], eb[3]
    for j in range(total.size):
        s = base[j]
        t0 = _cut(a0 * b0[j], sum_32(np.int32(y0[j]), sum_32(x0, s)))
        t1 = _cut(a1 * b1[j], sum_32(np.int32(y1[j]), sum_32(x1, s)))
        t2 = _cut(a2 * b2[j], sum_32(np.int32(y2[j]), sum_32(x2, s)))
        t3 = _cut(a3 * b3[j], sum_32(np.int32(y3[j]), sum_32(x3, s)))
        total[j] = sum_32(total[j], sum_32(sum_32(t0, t1), sum_32(t2, t3)))


@kernel
def _close(low: Any, high: Any, base: Any, n: WidePanelNumbers, acc: Any) -> None:
    """End a block: cut the sums ``low + high`` toward zero to float32, subnormals included."""
    for j in range(acc.size):
        sign, magnitude, large = sign_and_magnitude(low[j], high[j])
        f = np.float32(magnitude)
        above = np.int32(f) > magnitude  # the conversion may have rounded up, by one place at most
        word = np.int32(f.view(np.int32) - np.int32(above))
        # One unit of the sum is 2**(e - bits), and base = bits + 127 - e.
        unit = np.int32(np.int32(np.int32(127) - base[j]) + np.int32(large))
        field = np.int32(np.int32(word >> 23) + unit)
        sig = np.int32(np.int32(word & _FRACTION) | _HIDDEN)
        down = np.int32(higher(np.int32(np.int32(1) - field), np.int32(0)) & np.int32(31))
        deep = np.int32(np.int32(1) - field) > 24
        subnormal = np.int32(0) if deep else np.int32(sig >> down)
        normal = np.int32(np.int32(higher(field, np.int32(1)) << 23) | np.int32(word & _FRACTION))
        finite = np.int32((normal if field > 0 else subnormal) & n.keep)
        size = np.int32(0) if magnitude == 0 else (INF if field > 254 else finite)
        result = np.int32(size | (sign if size != 0 else np.int32(0)))
        before = np.float32(acc[j]).view(np.int32)
        stays = np.int32(before & MAGNITUDE) == INF  # nothing finite changes an infinity
        acc[j] = np.int32(before if stays else result).view(np.float32)


@functools.cache
def make_wide_panel_rows(block_length: int) -> Callable[..., None]:
    """Return ``panel_rows(a, ea, b, eb, acc, numbers)``, as `mpsim_kernels.panels.make_panel_rows` does.

    ``block_length`` is a multiple of 4; packed exponents are int16. Accumulators may be subnormal, but not NaN.
    Results are cut toward zero.
    """
    half = max(block_length // 8, 1) * 4

    @kernel
    def panel_rows(a: Any, ea: Any, b: Any, eb: Any, acc: Any, numbers: WidePanelNumbers) -> None:
        rows, k = a.shape
        panels, _, width = b.shape
        top = np.empty(width, np.int16)
        low, high, base = np.empty(width, np.int32), np.empty(width, np.int32), np.empty(width, np.int32)
        for panel in range(panels):
            for first in range(0, rows, TILE):
                for start in range(0, k, block_length):
                    for i in range(first, min(first + TILE, rows)):
                        c = acc[i, panel * width : (panel + 1) * width]
                        top[:] = np.int16(numbers.floor)
                        for g in range(start, start + block_length, 4):
                            _raise_top(ea[i, g : g + 4], eb[panel, g : g + 4], top)
                        _begin(c, top, numbers, base, low, high)
                        for g in range(start, start + half, 4):
                            _add_4(
                                a[i, g : g + 4], ea[i, g : g + 4], b[panel, g : g + 4], eb[panel, g : g + 4], base, low
                            )
                        for g in range(start + half, start + block_length, 4):
                            _add_4(
                                a[i, g : g + 4], ea[i, g : g + 4], b[panel, g : g + 4], eb[panel, g : g + 4], base, high
                            )
                        _close(low, high, base, numbers, c)

    return panel_rows
