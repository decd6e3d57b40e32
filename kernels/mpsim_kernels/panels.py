"""Fused dot products of whole rows of outputs, in float32 and int32 lanes that the compiler vectorises.

This path is for inputs whose exponents lie close together, as those of FP16 and FP8 always do. Then an exponent
fits a signed byte, a product is exact in float32 and far from its limits, and its aligned integer is the product times
a power of two, cut by the conversion to int32. Every product of floats here is exact, or so small that the cut
gives 0 whatever became of its last bits, so the rounding mode and the flush bits of the processor change nothing.

The columns of B are cut into panels of W, and a block of a panel is used for many rows of A while it is in cache. The
steps of one row's block are kernels of their own. They share these arguments:

- ``a`` float32 [L], ``b`` float32 [L, W]: operands of L products for each column;
- ``acc`` float32 [W]: accumulators, which become results;
- ``top`` int8 [W]: largest packed exponent of the products; ``numbers.offset`` makes it a biased exponent.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpsim_kernels._jit import kernel
from mpsim_kernels.lanes import SIGN, TILE, higher, power_of_two, sign_and_magnitude, sum_32

__all__ = ["OVERFLOWN", "PanelNumbers", "make_panel_rows"]

OVERFLOWN = np.float32(2.0**100)
"""Stands for an infinite fp16 accumulator: it absorbs every product and overflows again."""


class PanelNumbers(NamedTuple):
    """The numbers of a fused dot product as the lanes need them, each an np.int32; exponents are biased by 127."""

    bits: Any
    """Fraction bits of the aligned sum."""
    floor: Any
    """Packed exponent that products are aligned to at least."""
    offset: Any
    """What makes the sum of two packed exponents a biased exponent."""
    lowest: Any
    """Exponent of subnormal accumulators."""
    p: Any
    """Significand bits of the result."""
    infinite: Any
    """Exponent from which results that are rounded to nearest are infinite."""


@kernel
def _exponent(a: Any, b: Any) -> Any:
    return np.int8(a + b)  # both are at least -64 and at most 63


@kernel
def _raise_top_4(a: Any, b: Any, top: Any) -> None:
    """Raise ``top`` to the exponents of 4 products; ``a`` int8 [4] and ``b`` int8 [4, W] are packed exponents."""
    a0, a1, a2, a3 = a[0], a[1], a[2], a[3]
    b0, b1, b2, b3 = b[0], b[1], b[2], b[3]
    for j in range(top.size):
        e0 = higher(_exponent(a0, b0[j]), _exponent(a1, b1[j]))
        e1 = higher(_exponent(a2, b2[j]), _exponent(a3, b3[j]))
        top[j] = higher(top[j], higher(e0, e1))


@kernel
def _raise_top_8(a: Any, b: Any, top: Any) -> None:
    """Raise ``top`` to the exponents of 8 products."""
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for j in range(top.size):
        e0 = higher(_exponent(a0, b0[j]), _exponent(a1, b1[j]))
        e1 = higher(_exponent(a2, b2[j]), _exponent(a3, b3[j]))
        e2 = higher(_exponent(a4, b4[j]), _exponent(a5, b5[j]))
        e3 = higher(_exponent(a6, b6[j]), _exponent(a7, b7[j]))
        top[j] = higher(top[j], higher(higher(e0, e1), higher(e2, e3)))


@kernel
def _alignment(acc: Any, top: Any, n: PanelNumbers) -> Any:
    """Return the biased exponent that a block is aligned to: the largest of products and accumulator."""
    field = np.int32(np.int32(np.float32(acc).view(np.int32) >> 23) & np.int32(255))
    own = np.int32(0) if field == 0 else higher(field, n.lowest)  # a zero accumulator is no term
    return higher(sum_32(np.int32(top), n.offset), own)


@kernel
def _scale(e: Any, n: PanelNumbers) -> Any:
    """Return ``2**(bits - e)``, which turns a term into units of the aligned sum."""
    return power_of_two(np.int32(np.int32(254 + n.bits) - e))


@kernel
def _aligned(a: Any, b: Any, scale: Any) -> Any:
    """Return the product in units of the aligned sum, cut toward zero."""
    return np.int32(a * b * scale)


@kernel
def _sum_of_4(a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, b2: Any, b3: Any, scale: Any) -> Any:
    """Return the sum of 4 aligned products."""
    low = sum_32(_aligned(a0, b0, scale), _aligned(a1, b1, scale))
    return sum_32(low, sum_32(_aligned(a2, b2, scale), _aligned(a3, b3, scale)))


@kernel
def _truncated(sign: Any, magnitude: Any, unit: Any, p: Any) -> Any:
    """Return ``magnitude`` units (int32, below 2**31 - 64), cut toward zero to ``p`` bits.

    ``unit`` is a biased exponent.
    """
    f = np.float32(magnitude)
    # The conversion may have rounded up, by one place at most: then the float is above the integer.
    above = np.int32(f) > magnitude
    keep = np.int32(np.int32(-1) << np.int32(24 - p))
    word = np.int32(np.int32(f.view(np.int32) - np.int32(above)) & keep)
    # Exact: a power of two, and the result is a normal number or 0. The sum 0 has no sign.
    result = np.float32(word.view(np.float32) * power_of_two(unit))
    return np.int32(result.view(np.int32) | sign).view(np.float32)


@kernel
def _nearest(sign: Any, magnitude: Any, unit: Any, n: PanelNumbers) -> Any:
    """Return ``magnitude`` units (int32, at most 2**30.1) rounded to nearest even, on integers.

    ``unit`` is a biased exponent.
    """
    twice = np.uint32(np.uint32(magnitude) << np.uint32(1))  # so that at least one bit is rounded off
    # Where this conversion carries into the next binade, so does the rounding below.
    length = np.int32(np.int32(np.float32(magnitude).view(np.int32) >> 23) - np.int32(125))
    quantum = np.int32(n.lowest - np.int32(n.p - 1))  # of the subnormal results
    wanted = higher(np.int32(length - n.p), np.int32(np.int32(quantum - unit) + np.int32(1)))
    shift = np.uint32(higher(wanted, np.int32(1)) & np.int32(31))  # never over 31: the mask tells the compiler
    # Half a quantum, less one unit where the kept part is even: ties go to the even one.
    half = np.uint32(np.uint32(np.uint32(1) << shift) >> np.uint32(1))
    odd = np.uint32(np.uint32(twice >> shift) & np.uint32(1))
    sig = np.int32(np.uint32(np.uint32(twice + np.uint32(np.uint32(half - np.uint32(1)) + odd)) >> shift))
    exact = np.float32(np.float32(sig) * power_of_two(np.int32(np.int32(unit - 1) + np.int32(shift))))
    result = OVERFLOWN if exact >= power_of_two(n.infinite) else exact
    shown = sign if sig != 0 else np.int32(0)  # a sum that rounds to zero loses its sign
    return np.int32(np.float32(result).view(np.int32) | shown).view(np.float32)


@kernel
def _closed(total: Any, e: Any, n: PanelNumbers, nearest: Any) -> Any:
    """Return the accumulator of a block whose aligned sum is ``total``."""
    sign, magnitude = np.int32(total & SIGN), np.int32(-total) if total < 0 else total
    unit = np.int32(e - n.bits)
    return _nearest(sign, magnitude, unit, n) if nearest else _truncated(sign, magnitude, unit, n.p)


@kernel
def _block_4(a: Any, b: Any, top: Any, n: PanelNumbers, nearest: Any, acc: Any) -> None:
    """Run one block of 4 products."""
    a0, a1, a2, a3 = a[0], a[1], a[2], a[3]
    b0, b1, b2, b3 = b[0], b[1], b[2], b[3]
    for j in range(acc.size):
        e = _alignment(acc[j], top[j], n)
        scale = _scale(e, n)
        total = sum_32(np.int32(acc[j] * scale), _sum_of_4(a0, a1, a2, a3, b0[j], b1[j], b2[j], b3[j], scale))
        acc[j] = _closed(total, e, n, nearest)


@kernel
def _block_8(a: Any, b: Any, top: Any, n: PanelNumbers, nearest: Any, acc: Any) -> None:
    """Run one block of 8 products."""
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for j in range(acc.size):
        e = _alignment(acc[j], top[j], n)
        scale = _scale(e, n)
        low = _sum_of_4(a0, a1, a2, a3, b0[j], b1[j], b2[j], b3[j], scale)
        high = _sum_of_4(a4, a5, a6, a7, b4[j], b5[j], b6[j], b7[j], scale)
        total = sum_32(np.int32(acc[j] * scale), sum_32(low, high))
        acc[j] = _closed(total, e, n, nearest)


@kernel
def _begin(acc: Any, top: Any, n: PanelNumbers, low: Any, high: Any) -> None:
    """Begin a longer block, whose sum is kept in two int32: the aligned accumulator in ``low``, 0 in ``high``."""
    for j in range(acc.size):
        low[j] = np.int32(acc[j] * _scale(_alignment(acc[j], top[j], n), n))
        high[j] = 0


@kernel
def _add_8(a: Any, b: Any, acc: Any, top: Any, n: PanelNumbers, total: Any) -> None:
    """Add 8 aligned products to ``total`` int32 [W]."""
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for j in range(total.size):
        scale = _scale(_alignment(acc[j], top[j], n), n)
        low = _sum_of_4(a0, a1, a2, a3, b0[j], b1[j], b2[j], b3[j], scale)
        high = _sum_of_4(a4, a5, a6, a7, b4[j], b5[j], b6[j], b7[j], scale)
        total[j] = sum_32(total[j], sum_32(low, high))


@kernel
def _close(low: Any, high: Any, top: Any, n: PanelNumbers, nearest: Any, acc: Any) -> None:
    """End a longer block: turn the sums ``low + high`` into accumulators."""
    for j in range(acc.size):
        sign, magnitude, large = sign_and_magnitude(low[j], high[j])
        unit = np.int32(np.int32(_alignment(acc[j], top[j], n) - n.bits) + np.int32(large))
        acc[j] = _nearest(sign, magnitude, unit, n) if nearest else _truncated(sign, magnitude, unit, n.p)


@functools.cache
def make_panel_rows(block_length: int, nearest: bool) -> Callable[..., None]:
    """Return ``panel_rows(a, ea, b, eb, acc, numbers)``, which runs the chains of blocks of some rows of outputs.

    Parameters
    ----------
    block_length : int
        4, 8 or a multiple of 16.
    nearest : bool
        Whether results are rounded to nearest even; if not, toward zero.

    Notes
    -----
    Of the function that is returned: ``a`` float32 [M, K] and ``ea`` int8 [M, K] are packed rows, ``b`` and
    ``eb`` [P, K, W] packed panels; K is a multiple of the block length. ``acc`` float32 [M, P * W] are finite
    accumulators, subnormal floats only where ``numbers.floor`` cuts them away, and become results.
    """
    half = block_length // 2

    @kernel
    def panel_rows(a: Any, ea: Any, b: Any, eb: Any, acc: Any, numbers: PanelNumbers) -> None:
        rows, k = a.shape
        panels, _, width = b.shape
        top = np.empty(width, np.int8)
        low, high = np.empty(width, np.int32), np.empty(width, np.int32)
        for panel in range(panels):
            for first in range(0, rows, TILE):
                for start in range(0, k, block_length):
                    stop = start + block_length
                    for i in range(first, min(first + TILE, rows)):
                        c = acc[i, panel * width : (panel + 1) * width]
                        top[:] = np.int8(numbers.floor)
                        if block_length == 4:
                            _raise_top_4(ea[i, start:stop], eb[panel, start:stop], top)
                            _block_4(a[i, start:stop], b[panel, start:stop], top, numbers, nearest, c)
                            continue
                        for g in range(start, stop, 8):
                            _raise_top_8(ea[i, g : g + 8], eb[panel, g : g + 8], top)
                        if block_length == 8:
                            _block_8(a[i, start:stop], b[panel, start:stop], top, numbers, nearest, c)
                            continue
                        _begin(c, top, numbers, low, high)
                        for g in range(start, start + half, 8):
                            _add_8(a[i, g : g + 8], b[panel, g : g + 8], c, top, numbers, low)
                        for g in range(start + half, stop, 8):
                            _add_8(a[i, g : g + 8], b[panel, g : g + 8], c, top, numbers, high)
                        _close(low, high, top, numbers, nearest, c)

    return panel_rows
