"""Fused dot products of whole rows of outputs, in float32 and int32 lanes that the compiler vectorises.

This path is for inputs whose exponents lie close together, as those of FP16 and narrower formats always do. Then an
exponent fits a signed byte, a product is exact in float32 and far from its limits, and its aligned integer is the
product times a power of two, cut by the conversion to int32. Every product of floats here is exact, or so small that
the cut gives 0 whatever became of its last bits; the sums are converted back by rounding to nearest, for which these
kernels want `floating_point.default_environment` around them.

The columns of B are cut into panels, whose rows lie `WIDTH` numbers apart: a constant, so that one register addresses
all rows of a block. A block of a panel is used for many rows of A while it is in cache. The steps of one row's block
are kernels of their own. They share these arguments:

- ``a`` float32 [L] and ``b`` float32 [L * `WIDTH`]: operands of L products for each column;
- ``acc`` float32 [W]: accumulators, which become results, of W columns, at most `WIDTH`;
- ``top`` int8 [W]: largest packed exponent of the products; ``n.offset`` makes it a biased exponent.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpsim_kernels._jit import inlined_kernel, inner_kernel, kernel
from mpsim_kernels.lanes import INF, SIGN, TILE, WIDTH, higher, power_of_two, sign_and_magnitude, sum_32

__all__ = ["OVERFLOWN", "PanelNumbers", "make_panel_rows"]

OVERFLOWN = np.float32(2.0**100)
"""Stands for an infinite fp16 accumulator: it absorbs every product and overflows again."""

_TWICE_ONE = np.int32(254 << 23)  # less the word of a power of two it is the word of one over that


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


@inner_kernel
def _exponent(a: Any, b: Any) -> Any:
    return np.int8(a + b)  # both are at least -64 and at most 63


@inlined_kernel
def _four(a: Any, k: Any) -> Any:
    """Return 4 consecutive numbers, in registers for the loops over columns."""
    return a[k], a[k + 1], a[k + 2], a[k + 3]


@inlined_kernel
def _highest_of_4(a: Any, b: Any, j: Any) -> Any:
    """Return the largest exponent of 4 products of column ``j``; ``a`` are 4 packed exponents, ``b`` int8."""
    low = higher(_exponent(a[0], b[j]), _exponent(a[1], b[j + WIDTH]))
    return higher(low, higher(_exponent(a[2], b[j + 2 * WIDTH]), _exponent(a[3], b[j + 3 * WIDTH])))


@inlined_kernel
def _top_4(a: Any, b: Any, floor: Any, top: Any) -> None:
    """Set ``top`` to the largest exponents of 4 products, at least ``floor``."""
    a0 = _four(a, 0)
    for j in range(top.size):
        top[j] = higher(floor, _highest_of_4(a0, b, j))


@inlined_kernel
def _top_8(a: Any, b: Any, floor: Any, top: Any) -> None:
    """Set ``top`` to the largest exponents of 8 products, at least ``floor``."""
    a0, a1 = _four(a, 0), _four(a, 4)
    for j in range(top.size):
        e = higher(_highest_of_4(a0, b, j), _highest_of_4(a1, b, j + 4 * WIDTH))
        top[j] = higher(floor, e)


@inlined_kernel
def _raise_top_16(a: Any, b: Any, top: Any) -> None:
    """Raise ``top`` to the largest exponents of 16 products."""
    a0, a1, a2, a3 = _four(a, 0), _four(a, 4), _four(a, 8), _four(a, 12)
    for j in range(top.size):
        low = higher(_highest_of_4(a0, b, j), _highest_of_4(a1, b, j + 4 * WIDTH))
        high = higher(_highest_of_4(a2, b, j + 8 * WIDTH), _highest_of_4(a3, b, j + 12 * WIDTH))
        top[j] = higher(top[j], higher(low, high))


@inner_kernel
def _unit(acc: Any, top: Any, n: PanelNumbers, nearest: Any) -> Any:
    """Return the word of the aligned sum's unit: 2**-bits times the largest power of two of products and accumulator.

    A zero accumulator is no term. Everything is done on exponents where a float32 word has them.
    """
    own = np.int32(np.float32(acc).view(np.int32) & INF)
    if nearest:  # otherwise the result's subnormals are those of float32, which are cut away
        own = np.int32(0) if own == 0 else higher(own, np.int32(n.lowest << np.int32(23)))
    products = sum_32(np.int32(np.int32(top) << np.int32(23)), np.int32(n.offset << np.int32(23)))
    return np.int32(higher(products, own) - np.int32(n.bits << np.int32(23)))


@inner_kernel
def _scale(unit: Any) -> Any:
    """Return what turns a term into units of the aligned sum, one over the power of two whose word is ``unit``."""
    return np.int32(_TWICE_ONE - unit).view(np.float32)


@inner_kernel
def _aligned(a: Any, b: Any, scale: Any) -> Any:
    """Return the product in units of the aligned sum, cut toward zero."""
    return np.int32(a * b * scale)


@inlined_kernel
def _sum_of_4(a: Any, b: Any, j: Any, scale: Any) -> Any:
    """Return the sum of 4 aligned products of column ``j``."""
    low = sum_32(_aligned(a[0], b[j], scale), _aligned(a[1], b[j + WIDTH], scale))
    high = sum_32(_aligned(a[2], b[j + 2 * WIDTH], scale), _aligned(a[3], b[j + 3 * WIDTH], scale))
    return sum_32(low, high)


@inner_kernel
def _truncated(sign: Any, magnitude: Any, unit: Any, p: Any) -> Any:
    """Return ``magnitude`` units (int32), cut toward zero to ``p`` bits; ``unit`` is the word of a power of two."""
    # The leading bit falls on the first one that a float32 has no place for. Without that, rounding to nearest cuts.
    f = np.float32(np.int32(magnitude & np.int32(~np.int32(magnitude >> np.int32(24)))))
    word = np.int32(f.view(np.int32) & np.int32(np.int32(-1) << np.int32(24 - p)))
    # Exact: a power of two, and the result is a normal number or 0. The sum 0 has no sign.
    result = np.float32(word.view(np.float32) * np.int32(unit).view(np.float32))
    return np.int32(result.view(np.int32) | sign).view(np.float32)


@inner_kernel
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


@inlined_kernel
def _begin(acc: Any, top: Any, n: PanelNumbers, nearest: Any, scale: Any, total: Any) -> None:
    """Begin a block: set ``scale`` to what turns its terms into units, and ``total`` to the aligned accumulator."""
    for j in range(acc.size):
        scale[j] = _scale(_unit(acc[j], top[j], n, nearest))
        total[j] = np.int32(acc[j] * scale[j])


@inlined_kernel
def _add_4(a: Any, b: Any, scale: Any, total: Any) -> None:
    """Add 4 aligned products to ``total``."""
    a0 = _four(a, 0)
    for j in range(total.size):
        total[j] = sum_32(total[j], _sum_of_4(a0, b, j, scale[j]))


@inlined_kernel
def _add_8(a: Any, b: Any, scale: Any, total: Any) -> None:
    """Add 8 aligned products to ``total``."""
    a0, a1 = _four(a, 0), _four(a, 4)
    for j in range(total.size):
        products = sum_32(_sum_of_4(a0, b, j, scale[j]), _sum_of_4(a1, b, j + 4 * WIDTH, scale[j]))
        total[j] = sum_32(total[j], products)


@inlined_kernel
def _close(low: Any, high: Any, scale: Any, n: PanelNumbers, nearest: Any, split: Any, acc: Any) -> None:
    """End a block: its sum, with ``high`` a part of it only if ``split``, becomes the accumulator."""
    for j in range(acc.size):
        unit = np.int32(_TWICE_ONE - np.float32(scale[j]).view(np.int32))
        if split:
            sign, magnitude, large = sign_and_magnitude(low[j], high[j])
            unit = np.int32(unit + np.int32(np.int32(large) << np.int32(23)))
        else:
            sign, magnitude = np.int32(low[j] & SIGN), np.int32(-low[j]) if low[j] < 0 else low[j]
        if nearest:
            acc[j] = _nearest(sign, magnitude, np.int32(unit >> np.int32(23)), n)
        else:
            acc[j] = _truncated(sign, magnitude, unit, n.p)


@functools.cache
def make_panel_rows(block_length: int, nearest: bool, split: bool) -> Callable[..., None]:
    """Return ``panel_rows(a, ea, b, eb, begin, end, acc, numbers)``, which runs chains of blocks for some rows.

    Parameters
    ----------
    block_length : int
        4, 8 or a multiple of 16.
    nearest : bool
        Whether results are rounded to nearest even; if not, toward zero.
    split : bool
        Whether the sum of a block is kept in two int32, the second of which has the last 16 products, or 8 of 16.

    Notes
    -----
    Of the function that is returned: ``a`` float32 [M, K] and ``ea`` int8 [M, K] are packed rows, ``b`` and
    ``eb`` [P, K * `WIDTH`] packed panels. ``begin`` and ``end`` are multiples of the block length within K. ``acc``
    float32 [M, N], N a multiple of 16 that needs P panels, are finite accumulators, subnormal floats only where
    ``numbers.floor`` cuts them away, and become results.
    """
    whole = block_length if not split else block_length - min(block_length // 2, 16)

    @kernel
    def panel_rows(a: Any, ea: Any, b: Any, eb: Any, begin: Any, end: Any, acc: Any, numbers: PanelNumbers) -> None:
        rows = a.shape[0]
        tops, scales = np.empty(WIDTH, np.int8), np.empty(WIDTH, np.float32)
        lows, highs = np.empty(WIDTH, np.int32), np.empty(WIDTH, np.int32)
        floor = np.int8(numbers.floor)
        for panel in range(b.shape[0]):
            left = panel * WIDTH
            width = min(WIDTH, acc.shape[1] - left)
            top, scale, low, high = tops[:width], scales[:width], lows[:width], highs[:width]
            for first in range(0, rows, TILE):
                for start in range(begin, end, block_length):
                    stop = start + block_length
                    values = b[panel, start * WIDTH : stop * WIDTH]
                    exponents = eb[panel, start * WIDTH : stop * WIDTH]
                    for i in range(first, min(first + TILE, rows)):
                        x, ex, c = a[i, start:stop], ea[i, start:stop], acc[i, left : left + width]
                        if block_length == 4:
                            _top_4(ex, exponents, floor, top)
                        elif block_length == 8:
                            _top_8(ex, exponents, floor, top)
                        else:
                            top[:] = floor
                            for g in range(0, block_length, 16):
                                _raise_top_16(ex[g : g + 16], exponents[g * WIDTH : (g + 16) * WIDTH], top)
                        _begin(c, top, numbers, nearest, scale, low)
                        if block_length == 4:
                            _add_4(x, values, scale, low)
                        else:
                            for g in range(0, whole, 8):
                                _add_8(x[g : g + 8], values[g * WIDTH : (g + 8) * WIDTH], scale, low)
                        if split:
                            high[:] = 0
                            for g in range(whole, block_length, 8):
                                _add_8(x[g : g + 8], values[g * WIDTH : (g + 8) * WIDTH], scale, high)
                        _close(low, high, scale, numbers, nearest, split, c)

    return panel_rows
