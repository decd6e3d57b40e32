"""Dot products of groups for whole rows of outputs: sums of products in int16 lanes, everything else in float64 lanes.

A group's sum of products of FP4 elements is a small integer. Its scales make it one term of a fixed-point sum with more
fraction bits than an int32 holds; a float64 holds every term and every sum exactly, and no number here comes near its
limits. So no operation rounds. Infinite and NaN accumulators, and NaN scales, find their way by the rules of IEEE 754:
no infinity meets another one, and whatever meets a NaN becomes NaN.

The kernels of a block share these arguments:

- ``acc`` float64 [W]: accumulators, which become results;
- ``sums`` int16 [W]: sums of a group's products, in quarters;
- ``top`` int16 [W]: largest exponent of the scales of nonzero sums;
- ``base`` int64 [W], ``scale`` float64 [W]: exponent that a block is aligned to, and what a term is multiplied by.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels.lanes import TILE, higher

__all__ = ["NO_TERM", "GroupedPanelNumbers", "make_grouped_panel_rows"]

NO_TERM = -10_000
"""Exponent of a scale that is zero: its sums stay below every exponent, and fit an int16."""

_BIAS, _FIELD = np.int64(1023), np.int64(0x7FF)
_NOTHING = np.int64(-5_000)  # below the exponent of every term
_INF_WORD, _SIGN_WORD = np.int64(0x7FF << 52), np.int64(-(1 << 63))


class GroupedPanelNumbers(NamedTuple):
    """The numbers of a dot product of groups, each an np.int64 but the last."""

    bits: Any
    """Fraction bits of the aligned sum."""
    floor: Any
    """Exponent that terms are aligned to at least."""
    emin: Any
    """Smallest normal exponent of the result."""
    fraction: Any
    """Bits of a result below its leading one."""
    infinite: Any
    """Magnitude from which on results are infinite, a float64."""


@inner_kernel
def _add_products(a: Any, b: Any, sums: Any) -> None:
    """Add 8 products to ``sums``; ``a`` int16 [8] and ``b`` int16 [8, W] are elements in halves."""
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for j in range(sums.size):
        low = np.int16(np.int16(a0 * b0[j]) + np.int16(a1 * b1[j]))
        low = np.int16(low + np.int16(np.int16(a2 * b2[j]) + np.int16(a3 * b3[j])))
        high = np.int16(np.int16(a4 * b4[j]) + np.int16(a5 * b5[j]))
        high = np.int16(high + np.int16(np.int16(a6 * b6[j]) + np.int16(a7 * b7[j])))
        sums[j] = np.int16(sums[j] + np.int16(low + high))


@inner_kernel
def _raise_top(a: Any, b: Any, sums: Any, top: Any) -> None:
    """Raise ``top`` to the exponents of a group's scales, ``a`` int16 and ``b`` int16 [W], where its sum is a term."""
    for j in range(top.size):
        top[j] = higher(top[j], np.int16(a + b[j])) if sums[j] != 0 else top[j]


@inner_kernel
def _power_of_two(e: Any) -> Any:
    return np.int64(np.int64(e + _BIAS) << np.int64(52)).view(np.float64)


@inner_kernel
def _exponent(x: Any) -> Any:
    """Return the exponent of a float64: -1023 for 0, and 1024 for an infinity or a NaN."""
    return np.int64(np.int64(np.float64(x).view(np.int64) >> np.int64(52)) & _FIELD) - _BIAS


@inner_kernel
def _begin(acc: Any, top: Any, n: GroupedPanelNumbers, base: Any, scale: Any, total: Any) -> None:
    """Begin a block: ``total`` float64 [W] becomes the aligned accumulator."""
    for j in range(acc.size):
        own = _NOTHING if acc[j] == 0 else higher(_exponent(acc[j]), n.emin)
        e = higher(np.int64(top[j]), own)
        unit = _power_of_two(n.bits - e)
        base[j] = e
        scale[j] = unit
        total[j] = np.trunc(acc[j] * unit)


@inner_kernel
def _add_group(sums: Any, a: Any, b: Any, scale: Any, total: Any) -> None:
    """Add one aligned term; ``a`` float64 and ``b`` float64 [W] are scales, and a quarter is in one of them."""
    for j in range(total.size):
        total[j] += np.trunc(np.float64(np.int32(sums[j])) * (a * b[j]) * scale[j])


@inner_kernel
def _close(total: Any, base: Any, n: GroupedPanelNumbers, acc: Any) -> None:
    """End a block: cut its sum toward zero to a result."""
    for j in range(acc.size):
        x = total[j] * _power_of_two(base[j] - n.bits)
        e = higher(_exponent(x), n.emin)
        y = np.trunc(x * _power_of_two(n.fraction - e)) * _power_of_two(e - n.fraction)
        infinity = np.int64(np.int64(np.float64(x).view(np.int64) & _SIGN_WORD) | _INF_WORD).view(np.float64)
        acc[j] = infinity if abs(y) >= n.infinite else y


@functools.cache
def make_grouped_panel_rows(group_length: int, groups: int) -> Callable[..., None]:
    """Return ``panel_rows(rows, panels, acc, numbers)``, which runs the chains of blocks of some rows of outputs.

    Parameters
    ----------
    group_length : int
        Products of a group, a multiple of 8.
    groups : int
        Groups of a block.

    Notes
    -----
    Of the function that is returned: ``rows`` and ``panels`` are tuples of

    - int16 [M, K] and [P, K, W]: elements in halves, K a multiple of a block's length;
    - int16 [M, K / group_length] and [P, K / group_length, W]: exponents of the groups' scales; `NO_TERM` for zeros;
    - float64 of the same shapes: the scales, those on one side divided by 4. A NaN scale is NaN.

    ``acc`` float64 [M, P * W] are accumulators and become results, where a zero may have either sign.
    """

    @kernel
    def panel_rows(rows: Any, panels: Any, acc: Any, numbers: GroupedPanelNumbers) -> None:
        a, ea, scales_a = rows
        b, eb, scales_b = panels
        m, k = a.shape
        width = b.shape[2]
        sums, top = np.empty((groups, width), np.int16), np.empty(width, np.int16)
        base, scale, total = np.empty(width, np.int64), np.empty(width, np.float64), np.empty(width, np.float64)
        for panel in range(b.shape[0]):
            for first in range(0, m, TILE):
                for block in range(0, k // group_length, groups):
                    for i in range(first, min(first + TILE, m)):
                        c = acc[i, panel * width : (panel + 1) * width]
                        sums[:] = np.int16(0)
                        top[:] = np.int16(numbers.floor)
                        for g in range(groups):
                            group = block + g
                            start = group * group_length
                            for h in range(start, start + group_length, 8):
                                _add_products(a[i, h : h + 8], b[panel, h : h + 8], sums[g])
                            _raise_top(np.int16(ea[i, group]), eb[panel, group], sums[g], top)
                        _begin(c, top, numbers, base, scale, total)
                        for g in range(groups):
                            _add_group(sums[g], scales_a[i, block + g], scales_b[panel, block + g], scale, total)
                        _close(total, base, numbers, c)

    return panel_rows
