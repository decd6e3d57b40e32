"""Fused dot products whose blocks have scales, for whole rows of outputs, in float32 and int32 lanes.

As in `mpsim_kernels.panels`, the exponents of the elements lie close together, so an exponent fits a signed byte, and a
product is exact in float32. The scales are powers of two anywhere. They are the same for all products of a block,
which are therefore aligned among themselves as if there were no scales; only where a block meets its accumulator do
exponents of any size appear, as in `mpsim_kernels.wide_panels`.

Infinities and NaNs are no numbers here. Packed as zeros, they are put into the accumulator before their block, and
what follows leaves it alone. The kernels of a block share these arguments:

- ``a`` float32 [8], ``b`` float32 [8, W]: 8 products for each column;
- ``acc`` float32 [W]: accumulators, which become results;
- ``sa`` int32, ``sb`` int32 [W]: exponents of the scales, or `NAN_SCALE`;
- ``top`` int8 [W]: largest exponent of the products without their scales;
- ``unit`` int32 [W], ``scale`` float32 [W]: exponent of the aligned sum's unit, and what a product is multiplied by.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels.fused_dot import NAN_WORD
from mpsim_kernels.lanes import (
    INF,
    MAGNITUDE,
    SIGN,
    TILE,
    higher,
    power_of_two,
    sign_and_magnitude,
    sum_32,
    sum_of_4_cut,
)

__all__ = ["FIRST_SPECIAL", "KINDS", "NAN_SCALE", "ScaledPanelNumbers", "classify", "make_scaled_panel_rows"]

NAN_SCALE = np.int32(1 << 12)
"""Exponent of a scale that is NaN."""

KINDS = 6
"""Kinds of operands: zero, positive, negative, +inf, -inf, NaN."""
FIRST_SPECIAL = 3
"""The first kind that is no finite number."""

_ZERO, _POSITIVE, _NEGATIVE, _PLUS, _MINUS, _NAN = (np.uint8(1 << kind) for kind in range(KINDS))
_FRACTION, _HIDDEN = np.int32(0x7FFFFF), np.int32(0x800000)
_NOTHING = np.int32(-1000)  # below the exponent of every term


class ScaledPanelNumbers(NamedTuple):
    """The numbers of a fused dot product, each an np.int32."""

    bits: Any
    """Fraction bits of the aligned sum."""
    floor: Any
    """Exponent that terms are aligned to at least."""
    least: Any
    """Smallest exponent of a nonzero product without its scales; those of zeros are below."""
    keep: Any
    """Mask of the bits of a float32 that a result keeps."""


@kernel
def classify(words: Any, kinds: Any) -> None:
    """Write the kind of each float32 word (int32 [n]) in ``kinds`` uint8 [n]."""
    for i in range(words.size):
        word = np.int32(words[i])
        size = np.int32(word & MAGNITUDE)
        negative = np.uint8(word < 0)
        finite = np.uint8(0) if size == 0 else np.uint8(np.uint8(1) + negative)
        special = np.uint8(np.uint8(3) + negative) if size == INF else np.uint8(5)
        kinds[i] = finite if size < INF else special


@inner_kernel
def _see(kinds_a: Any, bits_b: Any, seen: Any) -> None:
    """Collect which kinds of b each kind of a meets: sets of bits ``seen`` uint8 [KINDS, W].

    ``kinds_a`` uint8 [L] are kinds, ``bits_b`` uint8 [L, W] are 1 << kind.
    """
    seen[:] = 0
    for k in range(kinds_a.size):
        row, bits = seen[kinds_a[k]], bits_b[k]
        for j in range(bits.size):
            row[j] = np.uint8(row[j] | bits[j])


@inner_kernel
def _absorb(seen: Any, sa: Any, sb: Any, acc: Any) -> Any:
    """Make accumulators what a block's infinities and NaNs decide; return whether one is still no NaN."""
    zero, positive, negative, plus, minus, nan = seen[0], seen[1], seen[2], seen[3], seen[4], seen[5]
    alive = False
    for j in range(acc.size):
        word = np.float32(acc[j]).view(np.int32)
        size = np.int32(word & MAGNITUDE)
        infinities = plus[j] | minus[j]
        everything = zero[j] | positive[j] | negative[j] | infinities
        invalid = (zero[j] & (_PLUS | _MINUS)) | (infinities & _ZERO) | (everything & _NAN) | nan[j]
        up = (positive[j] & _PLUS) | (negative[j] & _MINUS)
        up |= (plus[j] & (_POSITIVE | _PLUS)) | (minus[j] & (_NEGATIVE | _MINUS))
        down = (positive[j] & _MINUS) | (negative[j] & _PLUS)
        down |= (plus[j] & (_NEGATIVE | _MINUS)) | (minus[j] & (_POSITIVE | _PLUS))
        higher_end = (up != 0) | (word == INF)
        lower_end = (down != 0) | (word == np.int32(INF | SIGN))
        is_nan = (size > INF) | (invalid != 0) | (higher_end & lower_end)
        is_nan |= (sa == NAN_SCALE) | (np.int32(sb[j]) == NAN_SCALE)
        infinite = np.int32(INF | (SIGN if lower_end else np.int32(0)))
        finite_or_infinite = infinite if higher_end | lower_end else word
        acc[j] = np.int32(np.int32(NAN_WORD) if is_nan else finite_or_infinite).view(np.float32)
        alive |= not is_nan
    return alive


@inner_kernel
def _exponent(a: Any, b: Any) -> Any:
    return np.int8(a + b)  # both are at least -64 and at most 63


@inner_kernel
def _raise_top(a: Any, b: Any, top: Any) -> None:
    """Raise ``top`` to the exponents of 8 products; ``a`` int8 [8] and ``b`` int8 [8, W] are packed exponents."""
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for j in range(top.size):
        e0 = higher(_exponent(a0, b0[j]), _exponent(a1, b1[j]))
        e1 = higher(_exponent(a2, b2[j]), _exponent(a3, b3[j]))
        e2 = higher(_exponent(a4, b4[j]), _exponent(a5, b5[j]))
        e3 = higher(_exponent(a6, b6[j]), _exponent(a7, b7[j]))
        top[j] = higher(top[j], higher(higher(e0, e1), higher(e2, e3)))


@inner_kernel
def _power(biased: Any) -> Any:
    """Return ``2**(biased - 127)``; below the normal numbers 0, and above them the largest power."""
    field = higher(np.int32(biased), np.int32(0))
    return power_of_two(np.int32(254) if field > 254 else field)


@inner_kernel
def _begin(
    acc: Any, top: Any, sa: Any, sb: Any, n: ScaledPanelNumbers, unit: Any, scale: Any, low: Any, high: Any
) -> None:
    """Begin a block, whose sum is kept in two int32: the aligned accumulator in ``low``, 0 in ``high``."""
    for j in range(acc.size):
        word = np.float32(acc[j]).view(np.int32)
        field = np.int32(np.int32(word >> 23) & np.int32(255))
        fraction = np.int32(word & _FRACTION)
        own = np.int32(higher(field, np.int32(1)) - np.int32(127))
        scales, largest = sum_32(sa, sb[j]), np.int32(top[j])
        # Zeros are no terms: neither a zero accumulator nor products of zeros.
        e = higher(n.floor, _NOTHING if largest < n.least else sum_32(largest, scales))
        e = higher(e, _NOTHING if np.int32(word & MAGNITUDE) == 0 else own)
        sig = np.int32(fraction if field == 0 else np.int32(fraction | _HIDDEN))
        significand = np.float32(np.float32(np.int32(-sig) if word < 0 else sig) * np.float32(2.0**-23))
        shift = np.int32(np.int32(n.bits + np.int32(127)) - e)
        unit[j] = np.int32(e - n.bits)
        # Too small a power of two becomes 0, as do the products; too large a one meets nothing but zeros.
        scale[j] = _power(sum_32(shift, scales))
        low[j] = np.int32(significand * _power(sum_32(own, shift)))
        high[j] = 0


@inner_kernel
def _add(a: Any, b: Any, scale: Any, total: Any) -> None:
    """Add 8 aligned products to ``total`` int32 [W]."""
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for j in range(total.size):
        s = scale[j]
        low = sum_of_4_cut(a0, a1, a2, a3, b0[j], b1[j], b2[j], b3[j], s)
        high = sum_of_4_cut(a4, a5, a6, a7, b4[j], b5[j], b6[j], b7[j], s)
        total[j] = sum_32(total[j], sum_32(low, high))


@inner_kernel
def _close(low: Any, high: Any, unit: Any, n: ScaledPanelNumbers, acc: Any) -> None:
    """End a block: cut the sums ``low + high`` toward zero to float32, subnormals included."""
    for j in range(acc.size):
        sign, magnitude, large = sign_and_magnitude(low[j], high[j])
        f = np.float32(magnitude)
        above = np.int32(f) > magnitude  # the conversion may have rounded up, by one place at most
        word = np.int32(f.view(np.int32) - np.int32(above))
        field = sum_32(np.int32(word >> 23), sum_32(unit[j], np.int32(large)))
        sig = np.int32(np.int32(word & _FRACTION) | _HIDDEN)
        down = np.int32(higher(np.int32(np.int32(1) - field), np.int32(0)) & np.int32(31))
        deep = np.int32(np.int32(1) - field) > 24
        subnormal = np.int32(0) if deep else np.int32(sig >> down)
        normal = np.int32(np.int32(higher(field, np.int32(1)) << 23) | np.int32(word & _FRACTION))
        finite = np.int32((normal if field > 0 else subnormal) & n.keep)
        size = np.int32(0) if magnitude == 0 else (INF if field > 254 else finite)
        result = np.int32(size | (sign if size != 0 else np.int32(0)))
        before = np.float32(acc[j]).view(np.int32)
        stays = np.int32(before & MAGNITUDE) >= INF  # nothing finite changes an infinity or a NaN
        acc[j] = np.int32(before if stays else result).view(np.float32)


@functools.cache
def make_scaled_panel_rows(block_length: int) -> Callable[..., None]:
    """Return ``panel_rows(rows, panels, acc, numbers)``, which runs the chains of blocks of some rows of outputs.

    Parameters
    ----------
    block_length : int
        A multiple of 16.

    Notes
    -----
    Of the function that is returned: ``rows`` and ``panels`` are tuples of

    - float32 [M, K] and [P, K, W]: the elements, K a multiple of the block length;
    - int8 [M, K] and [P, K, W]: their exponents, that of a zero `mpsim_kernels.packing.ZERO_EXPONENT`;
    - int32 [M, K / block_length] and [P, K / block_length, W]: exponents of the scales, or `NAN_SCALE`;
    - bool [M, K / block_length] and [P, K / block_length]: whether a block has an infinity, a NaN or a NaN scale;
    - uint8 [M, K] and [P, K, W]: the kinds of the left elements, and 1 << kind of the right ones. Without
      infinities and NaNs among the elements, K may be 0 here.

    ``acc`` float32 [M, P * W] are accumulators, whose NaNs are `NAN_WORD`, and become results, cut toward zero.
    """
    half = block_length // 2

    @kernel
    def panel_rows(rows: Any, panels: Any, acc: Any, numbers: ScaledPanelNumbers) -> None:
        a, ea, scales_a, special_a, kinds_a = rows
        b, eb, scales_b, special_b, bits_b = panels
        m, k = a.shape
        width = b.shape[2]
        top, seen = np.empty(width, np.int8), np.empty((KINDS, width), np.uint8)
        low, high, unit = np.empty(width, np.int32), np.empty(width, np.int32), np.empty(width, np.int32)
        scale = np.empty(width, np.float32)
        alive = np.empty(TILE, np.bool_)
        for panel in range(b.shape[0]):
            for first in range(0, m, TILE):
                alive[:] = True
                for block in range(k // block_length):
                    start, stop = block * block_length, (block + 1) * block_length
                    sb = scales_b[panel, block]
                    for i in range(first, min(first + TILE, m)):
                        c, sa = acc[i, panel * width : (panel + 1) * width], np.int32(scales_a[i, block])
                        if special_a[i, block] or special_b[panel, block]:
                            _see(kinds_a[i, start:stop], bits_b[panel, start:stop], seen)
                            alive[i - first] = _absorb(seen, sa, sb, c)
                        if not alive[i - first]:
                            continue
                        top[:] = np.int8(-128)
                        for g in range(start, stop, 8):
                            _raise_top(ea[i, g : g + 8], eb[panel, g : g + 8], top)
                        _begin(c, top, sa, sb, numbers, unit, scale, low, high)
                        for g in range(start, start + half, 8):
                            _add(a[i, g : g + 8], b[panel, g : g + 8], scale, low)
                        for g in range(start + half, stop, 8):
                            _add(a[i, g : g + 8], b[panel, g : g + 8], scale, high)
                        _close(low, high, unit, numbers, c)

    return panel_rows
