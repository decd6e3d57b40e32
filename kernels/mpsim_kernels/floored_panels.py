"""Floored dot products (`mpsim_kernels.floored`) of whole rows of outputs, in lanes that the compiler vectorises.

As in `mpsim_kernels.panels`, the columns of B are cut into panels of W, and a block of a panel is used for many rows of
A while it is in cache. A product is exact in the floats it is computed in, float32 or float64; times a power of two
it is cut by the conversion to int32. What follows is exact in float64, up to the one conversion to float32 that is
the rounding of the result: it needs `mpsim_kernels.floating_point.default_environment`.

The steps of one row's block are kernels of their own. They share these arguments:

- ``a`` [L], ``b`` [L, W]: operands; ``ea`` and ``eb`` int16 of these shapes: their packed exponents;
- ``first``, ``step``: which of the L take part: ``first + i * step``;
- ``top`` int16 [W]: largest packed exponent of the products, which is ``numbers.offset`` above the exponent;
- ``scale`` [W], floats as of ``b``: powers of two; ``total`` int32 [W]: sums of products that were cut;
- ``acc`` float32 [W]: accumulators, which become results.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpsim_kernels._jit import inlined_kernel, kernel
from mpsim_kernels.floored_specials import Hints, decide
from mpsim_kernels.lanes import INF, MAGNITUDE, TILE, higher, lower, power_of_two, sum_32, sum_of_4_cut

__all__ = ["FlooredNumbers", "make_floored_rows", "pack_floats"]

_NOTHING = -2000  # below every packed exponent of a product


class FlooredNumbers(NamedTuple):
    """The numbers of a floored dot product as the lanes need them, each an np.int32."""

    product_bits: Any
    sum_bits: Any
    accumulator_bits: Any
    reach: Any
    """Places below the larger exponent down to which an accumulator counts."""
    offset: Any
    """What packed exponents of products are above the exponents."""
    least: Any
    """Packed exponent below which there are only products of zero."""


@inlined_kernel
def _power_64(biased: Any) -> Any:
    """Return the float64 with this biased exponent and no fraction."""
    return np.int64(np.int64(biased) << 52).view(np.float64)


@kernel
def pack_floats(words: Any, emin: Any, shift: Any, zero: Any, values: Any, exponents: Any) -> None:
    """Copy the columns of a matrix into panels, times a power of two, beside their exponents.

    Parameters
    ----------
    words : int32 [R, C]
        Words of float32. Infinities and NaNs are packed as zeros.
    emin : int
        Exponent of the format's subnormals.
    shift : int
        What is added to every exponent, at most 500 either way.
    zero : int
        Exponent of zeros.
    values : float32 or float64 [P, R', W], exponents : int16 [P, R', W]
        Panels of W columns, P * W >= C and R' >= R; what lies outside the matrix becomes zero.
    """
    panels, rows, width = values.shape
    lowest, up = np.int32(emin), np.int32(shift)
    factor = _power_64(np.int32(1023) + up)
    nothing = np.int16(zero + shift)
    for p in range(panels):
        for r in range(rows):
            value, exponent = values[p, r], exponents[p, r]
            inside = min(max(words.shape[1] - p * width, 0), width) if r < words.shape[0] else 0
            if inside:
                row = words[r, p * width : p * width + inside]
                for j in range(inside):
                    word = np.int32(row[j])
                    magnitude = np.int32(word & MAGNITUDE)
                    ordinary = magnitude != 0 and magnitude < INF
                    number = np.int32(word if ordinary else np.int32(0)).view(np.float32)
                    value[j] = np.float64(number) * factor
                    e = np.int32(higher(np.int32(np.int32(magnitude >> 23) - np.int32(127)), lowest) + up)
                    exponent[j] = np.int16(e) if ordinary else nothing
            for j in range(inside, width):
                value[j] = 0
                exponent[j] = nothing


@inlined_kernel
def _exponent(a: Any, b: Any) -> Any:
    return np.int16(a + b)


@inlined_kernel
def _raise_4(a: Any, b: Any, first: Any, step: Any, top: Any) -> None:
    """Raise ``top`` to the exponents of 4 products."""
    k0, k1, k2, k3 = first, first + step, first + 2 * step, first + 3 * step
    a0, a1, a2, a3 = a[k0], a[k1], a[k2], a[k3]
    b0, b1, b2, b3 = b[k0], b[k1], b[k2], b[k3]
    for j in range(top.size):
        e0 = higher(_exponent(a0, b0[j]), _exponent(a1, b1[j]))
        e1 = higher(_exponent(a2, b2[j]), _exponent(a3, b3[j]))
        top[j] = higher(top[j], higher(e0, e1))


@inlined_kernel
def _raise_8(a: Any, b: Any, first: Any, step: Any, top: Any) -> None:
    """Raise ``top`` to the exponents of 8 products."""
    k0, k1, k2, k3 = first, first + step, first + 2 * step, first + 3 * step
    k4, k5, k6, k7 = first + 4 * step, first + 5 * step, first + 6 * step, first + 7 * step
    a0, a1, a2, a3, a4, a5, a6, a7 = a[k0], a[k1], a[k2], a[k3], a[k4], a[k5], a[k6], a[k7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[k0], b[k1], b[k2], b[k3], b[k4], b[k5], b[k6], b[k7]
    for j in range(top.size):
        e0 = higher(_exponent(a0, b0[j]), _exponent(a1, b1[j]))
        e1 = higher(_exponent(a2, b2[j]), _exponent(a3, b3[j]))
        e2 = higher(_exponent(a4, b4[j]), _exponent(a5, b5[j]))
        e3 = higher(_exponent(a6, b6[j]), _exponent(a7, b7[j]))
        top[j] = higher(top[j], higher(higher(e0, e1), higher(e2, e3)))


@inlined_kernel
def _set_scale_32(top: Any, n: FlooredNumbers, scale: Any) -> None:
    """Set ``scale`` float32 to what turns products into units of their sum."""
    for j in range(top.size):
        e = higher(np.int32(top[j]), n.least)
        scale[j] = power_of_two(np.int32(np.int32(127 + n.product_bits) - e))


@inlined_kernel
def _set_scale_64(top: Any, n: FlooredNumbers, scale: Any) -> None:
    """Set ``scale`` float64 to what turns products into units of their sum."""
    for j in range(top.size):
        e = higher(np.int32(top[j]), n.least)
        scale[j] = _power_64(np.int32(np.int32(1023 + n.product_bits) - e))


@inlined_kernel
def _add_4(a: Any, b: Any, first: Any, step: Any, scale: Any, total: Any) -> None:
    """Add 4 cut products to ``total``."""
    k0, k1, k2, k3 = first, first + step, first + 2 * step, first + 3 * step
    a0, a1, a2, a3 = a[k0], a[k1], a[k2], a[k3]
    b0, b1, b2, b3 = b[k0], b[k1], b[k2], b[k3]
    for j in range(total.size):
        total[j] = sum_32(total[j], sum_of_4_cut(a0, a1, a2, a3, b0[j], b1[j], b2[j], b3[j], scale[j]))


@inlined_kernel
def _add_8(a: Any, b: Any, first: Any, step: Any, scale: Any, total: Any) -> None:
    """Add 8 cut products to ``total``."""
    k0, k1, k2, k3 = first, first + step, first + 2 * step, first + 3 * step
    k4, k5, k6, k7 = first + 4 * step, first + 5 * step, first + 6 * step, first + 7 * step
    a0, a1, a2, a3, a4, a5, a6, a7 = a[k0], a[k1], a[k2], a[k3], a[k4], a[k5], a[k6], a[k7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[k0], b[k1], b[k2], b[k3], b[k4], b[k5], b[k6], b[k7]
    for j in range(total.size):
        low = sum_of_4_cut(a0, a1, a2, a3, b0[j], b1[j], b2[j], b3[j], scale[j])
        high = sum_of_4_cut(a4, a5, a6, a7, b4[j], b5[j], b6[j], b7[j], scale[j])
        total[j] = sum_32(total[j], sum_32(low, high))


@inlined_kernel
def _exponent_of(acc: Any) -> Any:
    """Return the exponent of an accumulator; subnormals, and zero, have the smallest."""
    field = np.int32(np.int32(np.float32(acc).view(np.int32) >> 23) & np.int32(255))
    return np.int32(higher(field, np.int32(1)) - np.int32(127))


@inlined_kernel
def _floored(total: Any, down: Any, n: FlooredNumbers) -> Any:
    """Return the sum of products, whose exponent is ``down`` below the larger one, in units of the result."""
    # Far below the floor is 0 or -1, whatever the power of two.
    up = np.int32(np.int32(127 - n.product_bits) + n.sum_bits)
    scale = power_of_two(higher(np.int32(up - down), np.int32(1)))
    return np.floor(np.float64(total) * np.float64(scale))


@inlined_kernel
def _floored_start(acc: Any, larger: Any, n: FlooredNumbers) -> Any:
    """Return the accumulator in its own units, ``2**(larger - accumulator_bits)``."""
    return np.floor(np.float64(acc) * _power_64(np.int32(np.int32(1023 + n.accumulator_bits) - larger)))


@inlined_kernel
def _rounded(products: Any, start: Any, larger: Any, n: FlooredNumbers) -> Any:
    """Return the result. Both integers and their sum have less than 53 bits, so nothing else rounds."""
    ratio = _power_64(np.int32(np.int32(1023 + n.sum_bits) - n.accumulator_bits))
    return np.float32((products + start * ratio) * _power_64(np.int32(np.int32(1023 - n.sum_bits) + larger)))


@inlined_kernel
def _close(top: Any, total: Any, n: FlooredNumbers, acc: Any) -> None:
    """End a block: align the sum of products and the accumulator to each other, add them and round."""
    for j in range(acc.size):
        e = np.int32(np.int32(top[j]) - n.offset)
        larger = higher(e, _exponent_of(acc[j]))
        products = _floored(total[j], np.int32(larger - e), n)
        acc[j] = _rounded(products, _floored_start(acc[j], larger, n), larger, n)


@inlined_kernel
def _shifted(x: Any, down: Any) -> Any:
    """Return ``x * 2**-down``, rounded toward minus infinity to an int32."""
    # Thirty-one places leave what any greater number leaves, 0 or -1; the mask tells the compiler.
    return np.int32(x >> np.int32(lower(down, np.int32(31)) & np.int32(31)))


@inlined_kernel
def _close_pair(top: Any, total: Any, top_1: Any, total_1: Any, n: FlooredNumbers, acc: Any) -> None:
    """End a block of two sums of products: align them to each other first."""
    for j in range(acc.size):
        e0, e1 = np.int32(top[j]), np.int32(top_1[j])
        highest = higher(e0, e1)
        both = sum_32(_shifted(total[j], np.int32(highest - e0)), _shifted(total_1[j], np.int32(highest - e1)))
        e, own = np.int32(highest - n.offset), _exponent_of(acc[j])
        larger = higher(e, own)
        start = _floored_start(acc[j], larger, n)
        start = np.float64(0) if own < np.int32(larger - n.reach) else start
        acc[j] = _rounded(_floored(both, np.int32(larger - e), n), start, larger, n)


@inlined_kernel
def _replace(decided: Any, acc: Any) -> None:
    """Replace accumulators by what is decided."""
    for j in range(acc.size):
        acc[j] = acc[j] if decided[j] == 0 else decided[j]


@functools.cache
def make_floored_rows(block_length: int, groups: int, double: bool, careful: bool) -> Callable[..., None]:
    """Return ``floored_rows(a, ea, b, eb, acc, numbers, hints)``, which runs the chains of blocks of some rows.

    Parameters
    ----------
    block_length : int
        A multiple of ``4 * groups``.
    groups : int
        1, or 2 if products of even and of odd k are summed apart.
    double : bool
        Whether operands are packed as float64.
    careful : bool
        Whether infinities, NaNs or, with ``double``, products from 2**128 on may occur.

    Notes
    -----
    Of the function that is returned: ``a`` and ``b`` are floats [M, K] and [P, K, W], ``ea`` and ``eb`` their
    exponents, int16; K is a multiple of the block length. ``acc`` float32 [M, P * W] are accumulators and become
    results. ``numbers`` is a `FlooredNumbers`, and ``hints``, read only if ``careful``, a `floored_specials.Hints`.
    """
    many = 8 if block_length % (8 * groups) == 0 else 4

    @kernel
    def floored_rows(a: Any, ea: Any, b: Any, eb: Any, acc: Any, numbers: FlooredNumbers, hints: Hints) -> None:
        rows, k = a.shape
        panels, _, width = b.shape
        tops, totals = np.empty((groups, width), np.int16), np.empty((groups, width), np.int32)
        scale, decided = np.empty(width, b.dtype), np.empty(width, np.float32)
        for panel in range(panels):
            columns = slice(panel * width, (panel + 1) * width)
            for first in range(0, rows, TILE):
                for start in range(0, k, block_length):
                    steps = slice(start, start + block_length)
                    bb, bx = b[panel, steps], eb[panel, steps]
                    for i in range(first, min(first + TILE, rows)):
                        c, aa, ax = acc[i, columns], a[i, steps], ea[i, steps]
                        some = False
                        if careful:
                            some = decide(aa, ax, bb, c, hints, i, start, panel, decided)
                        for g in range(groups):
                            top, total = tops[g], totals[g]
                            top[:] = np.int16(_NOTHING)
                            total[:] = np.int32(0)
                            for j in range(g, block_length, many * groups):
                                if many == 8:
                                    _raise_8(ax, bx, j, groups, top)
                                else:
                                    _raise_4(ax, bx, j, groups, top)
                            if double:
                                _set_scale_64(top, numbers, scale)
                            else:
                                _set_scale_32(top, numbers, scale)
                            for j in range(g, block_length, many * groups):
                                if many == 8:
                                    _add_8(aa, bb, j, groups, scale, total)
                                else:
                                    _add_4(aa, bb, j, groups, scale, total)
                        if groups == 1:
                            _close(tops[0], totals[0], numbers, c)
                        else:
                            _close_pair(tops[0], totals[0], tops[1], totals[1], numbers, c)
                        if some:
                            _replace(decided, c)

    return floored_rows
