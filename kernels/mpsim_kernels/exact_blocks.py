"""Matrix products in blocks whose sum, accumulator included, is exact and rounded once to nearest even.

`mpsim_kernels.exact_lanes` has a few ways to add up a block, the fastest for exponents that lie close together. Here
it is decided for each row and block which way holds, from the largest magnitudes and from units: a number is a
multiple of its unit, a power of two.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import inlined_kernel, inner_kernel, kernel
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.exact_lanes import (
    add_products,
    any_block,
    cut_products,
    exact_block_2,
    exact_block_4,
    pair_block,
    round_cut,
)
from mpsim_kernels.exact_sums import LIMBS
from mpsim_kernels.floating_point import default_environment
from mpsim_kernels.lanes import INF, MAGNITUDE, SIGN, TILE, higher, lower
from mpsim_kernels.words import words

__all__ = ["exact_block_gemm", "exact_gemm"]

_NAN, _FRACTION, _HIDDEN = np.int32(0x7FC00000), np.int32(0x7FFFFF), np.int32(0x800000)
_ANY_UNIT = np.int32(300)  # exponent of the unit of zeros
_BLOCK = 1 << 16  # numbers in a panel's block that stay in the second-level cache
_WORK = 1 << 20  # products worth a thread
_PATIENCE = 8  # blocks between two looks at the same accumulators


class _Packed(NamedTuple):
    """An operand in blocks along k, and what is known of each block."""

    values: NDArray[np.float64]
    """Rows [M, K'] of the left operand, panels [P, K', W] of the right."""
    largest: NDArray[np.float64]
    """Largest finite magnitudes, [M, blocks] or [P, blocks]."""
    unit: NDArray[np.float64]
    """Powers of two of which the finite numbers are multiples."""


def exact_gemm(
    a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Return ``a @ b + c``, each element rounded once: one block of all products. As `exact_block_gemm` otherwise."""
    return exact_block_gemm(a, b, c, max(a.shape[1], 1))


def exact_block_gemm(
    a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32] | None, block_length: int
) -> NDArray[np.float32]:
    """Return ``a @ b + c`` in blocks of exact sums.

    Parameters
    ----------
    a : float32 [M, K]
    b : float32 [K, N]
        Any numbers, in any layout. The fewer bits their significands have, and the closer their exponents, the faster.
    c : float32 [M, N] or None
        None is zero.
    block_length : int
        Products of a block, at least 1. The accumulator of a block is the result of the block before.

    Returns
    -------
    d : float32 [M, N], contiguous
        Every NaN is the word 0x7FC00000, and a sum that is exactly zero is +0. A nonzero sum that is rounded to zero
        keeps its sign. K = 0 counts as one block without products.
    """
    (m, k), n = a.shape, b.shape[1]
    length = min(block_length, max(k, 1))
    blocks = max(-(-k // length), 1)
    padded = 2 if length <= 2 else -(-length // 4) * 4
    widest = min(max(_BLOCK // padded, 64), 512)
    panels = max(-(-n // widest), 1)
    width = -(-max(n, 1) // (panels * 16)) * 16
    left = _Packed(np.zeros((m, blocks * padded)), np.empty((m, blocks)), np.empty((m, blocks)))
    right = _Packed(np.zeros((panels, blocks * padded, width)), np.empty((panels, blocks)), np.empty((panels, blocks)))
    acc = np.zeros((m, panels * width), np.float32)
    if c is not None:
        acc[:, :n] = c
    words_a, words_b = words(a), words(b)

    def pack(start: int, stop: int) -> None:
        with default_environment(), np.errstate(all="ignore"):
            _pack_rows(words_a[start:stop], length, padded, *(x[start:stop] for x in left))

    with default_environment(), np.errstate(all="ignore"):  # plain Python warns
        _pack_columns(words_b, length, padded, *right)
    in_ranges(pack, m, max(_WORK // (blocks * padded), 1))
    d = np.empty((m, n), np.float32)
    exact_rows = _make_exact_rows(padded, padded > 2 and not _all_cut(left, right, padded))

    def task(start: int, stop: int) -> None:
        part = slice(start, stop)
        rows = _Packed(*(x[part] for x in left))
        with default_environment(), np.errstate(all="ignore"):
            exact_rows(rows, right, c is not None, acc[part])
        _finish(acc[part].view(np.int32), d[part].view(np.int32))

    in_ranges(task, m, max(_WORK // max(right.values.size, 1), 1))
    return d


def _all_cut(a: _Packed, b: _Packed, padded: int) -> bool:
    """Return whether `_is_cut` holds for all blocks, for it does so for the extremes of all rows and columns."""
    with default_environment():
        sizes = padded * (a.largest.max(axis=0, initial=0) * b.largest.max(axis=0, initial=0))
        units = a.unit.min(axis=0, initial=np.inf) * b.unit.min(axis=0, initial=np.inf)
        return all(_is_cut(padded, size, unit) for size, unit in zip(sizes, units, strict=True))


@inlined_kernel
def _unit(word: Any) -> Any:
    """Return the exponent of the last nonzero bit of a float32 word; zeros and specials have none that matters."""
    magnitude = np.int32(word & MAGNITUDE)
    field = np.int32(magnitude >> 23)
    fraction = np.int32(magnitude & _FRACTION)
    sig = np.int32(fraction if field == 0 else np.int32(fraction | _HIDDEN))
    last = np.int32(np.float32(np.int32(sig & np.int32(-sig))).view(np.int32) >> 23)
    e = np.int32(np.int32(higher(field, np.int32(1)) + last) - np.int32(127 + 150))
    return e if magnitude != 0 and field != 255 else _ANY_UNIT


@inlined_kernel
def _finite_magnitude(word: Any) -> Any:
    """Return the word of the magnitude of a float32 word, 0 for infinities and NaNs."""
    magnitude = np.int32(word & MAGNITUDE)
    return np.int32(0) if magnitude >= INF else magnitude


@inlined_kernel
def _float64(word: Any) -> Any:
    """Return the number of a float32 word."""
    return np.float64(np.int32(word).view(np.float32))


@inlined_kernel
def _power(e: Any) -> Any:
    """Return the float64 ``2**e``."""
    return np.int64((np.int64(e) + np.int64(1023)) << np.int64(52)).view(np.float64)


@inlined_kernel
def _reach(words: Any) -> Any:
    """Return the largest finite magnitude, as a float64, and the exponent of the unit of int32 words [n]."""
    largest, unit = np.int32(0), _ANY_UNIT
    for j in range(words.size):
        word = np.int32(words[j])
        largest = higher(largest, _finite_magnitude(word))
        unit = lower(unit, _unit(word))
    return _float64(largest), unit


@kernel
def _pack_rows(words: Any, length: Any, padded: Any, values: Any, largest: Any, unit: Any) -> None:
    """Pack the rows of the left operand, int32 [M, K] words of float32; ``values`` are zero before."""
    rows, k = words.shape
    for i in range(rows):
        for block in range(largest.shape[1]):
            first, stop = block * length, min((block + 1) * length, k)
            row = words[i, first:stop]
            value = values[i, block * padded : block * padded + max(stop - first, 0)]
            for j in range(value.size):
                value[j] = _float64(row[j])
            size, e = _reach(row)
            largest[i, block] = size
            unit[i, block] = _power(e)


@kernel
def _pack_columns(words: Any, length: Any, padded: Any, values: Any, largest: Any, unit: Any) -> None:
    """Pack the right operand, int32 [K, N] words of float32, in panels of columns; ``values`` are zero before."""
    k, n = words.shape
    panels, _, width = values.shape
    for p in range(panels):
        columns = slice(p * width, min((p + 1) * width, n))
        for block in range(largest.shape[1]):
            size, e = np.float64(0), _ANY_UNIT
            for r in range(block * length, min((block + 1) * length, k)):
                row = words[r, columns]
                value = values[p, block * padded + r - block * length]
                for j in range(row.size):
                    value[j] = _float64(row[j])
                row_size, row_e = _reach(row)
                size, e = higher(size, row_size), lower(e, row_e)
            largest[p, block] = size
            unit[p, block] = _power(e)


@kernel
def _finish(words: Any, d: Any) -> None:
    """Copy the first columns of the results to ``d`` int32 [M, N], with one word for every NaN."""
    for i in range(d.shape[0]):
        row, result = words[i], d[i]
        for j in range(result.size):
            word = np.int32(row[j])
            result[j] = _NAN if np.int32(word & MAGNITUDE) > INF else word


@functools.cache
def _make_exact_rows(padded: int, anything: bool) -> Callable[..., None]:
    """Return ``exact_rows(a, b, started, acc)``, which runs the chains of blocks of some rows of outputs.

    Parameters
    ----------
    padded : int
        Length of packed blocks: 2 or a multiple of 4.
    anything : bool
        Whether blocks may need the long accumulator; if not, `_is_cut` holds for each.

    Notes
    -----
    Of the function that is returned: ``a`` and ``b`` are `_Packed`; ``started`` says whether accumulators may be other
    than +0; ``acc`` float32 [M, P * W] are accumulators, which become results.
    """

    @kernel
    def exact_rows(a: _Packed, b: _Packed, started: Any, acc: Any) -> None:
        rows, blocks = a.largest.shape
        panels, _, width = b.values.shape
        high, low = np.empty(width, np.float64), np.empty(width, np.float64)
        limbs = np.zeros((8, LIMBS), np.int64)
        # What is known of the accumulators of a row: a bound, the unit, and the block before which they were looked at.
        bound, unit = np.empty(TILE, np.float64), np.empty(TILE, np.float64)
        looked = np.empty(TILE, np.int64)
        for panel in range(panels):
            for first in range(0, rows, TILE):
                for r in range(TILE):
                    bound[r], unit[r], looked[r] = np.inf if started else 0.0, _power(_ANY_UNIT), -_PATIENCE
                for block in range(blocks):
                    start, stop = block * padded, (block + 1) * padded
                    y = b.values[panel, start:stop]
                    for i in range(first, min(first + TILE, rows)):
                        r = i - first
                        x = a.values[i, start:stop]
                        c = acc[i, panel * width : (panel + 1) * width]
                        size = np.float64(padded) * (a.largest[i, block] * b.largest[panel, block])
                        unit_ab = a.unit[i, block] * b.unit[panel, block]
                        exact = _is_exact(bound[r] + size, lower(unit_ab, unit[r]))
                        if not exact and block - looked[r] >= _PATIENCE:
                            bound[r], unit[r] = _look(c)
                            looked[r] = block
                            exact = _is_exact(bound[r] + size, lower(unit_ab, unit[r]))
                        # Rounding adds less than the factor, and makes no unit smaller.
                        bound[r] = (bound[r] + size) * (1 + 2.0**-20)
                        unit[r] = lower(unit_ab, unit[r])
                        if exact:
                            if padded == 2:
                                exact_block_2(x, y, c)
                            elif padded == 4:
                                exact_block_4(x, y, c)
                            else:
                                _exact_block(x, y, high, c)
                        elif padded == 2:
                            pair_block(x, y, c)
                        elif not anything or _is_cut(np.float64(padded), size, unit_ab):
                            _cut_block(x, y, 1.5 * 2.0**52 * _grid(size), high, low, c)
                        else:
                            any_block(x, y, limbs, c)

    return exact_rows


@inner_kernel
def _exact_block(a: Any, b: Any, total: Any, acc: Any) -> None:
    """Add a block whose additions are exact; ``total`` float64 [W] is overwritten."""
    for j in range(acc.size):
        total[j] = acc[j]
    for g in range(0, a.size, 4):
        add_products(a[g : g + 4], b[g : g + 4], total)
    for j in range(acc.size):
        acc[j] = total[j]


@inner_kernel
def _cut_block(a: Any, b: Any, anchor: Any, high: Any, low: Any, acc: Any) -> None:
    """Add a block whose products are cut on the last bit of ``anchor``; ``high`` and ``low`` are overwritten."""
    for j in range(acc.size):
        high[j], low[j] = anchor, 0.0
    for g in range(0, a.size, 4):
        cut_products(a[g : g + 4], b[g : g + 4], high, low)
    round_cut(high, low, anchor, acc)


@kernel
def _is_cut(padded: Any, size: Any, unit: Any) -> Any:
    """Return whether two float64 hold the sum of a block, multiples of ``unit`` that are at most ``size`` together."""
    return padded * _grid(size) <= 2.0**54 * unit


@inlined_kernel
def _is_exact(bound: Any, unit: Any) -> Any:
    """Return whether sums of multiples of ``unit``, all below ``bound``, are exact in float64 and no float32 is lost.

    A sum that is a multiple of float32's smallest number is never rounded to zero, so no accumulator is -0 after it.
    """
    return bound <= 2.0**53 * unit and unit >= 2.0**-149


@inner_kernel
def _look(c: Any) -> Any:
    """Return the largest magnitude and the unit of accumulators, float32 [W]; one of -0 has the smallest unit."""
    largest, unit = np.int32(0), _ANY_UNIT
    for j in range(c.size):
        word = np.float32(c[j]).view(np.int32)
        largest = higher(largest, _finite_magnitude(word))
        unit = lower(unit, np.int32(-300) if word == SIGN else _unit(word))
    return _float64(largest), _power(unit)


@inlined_kernel
def _grid(size: Any) -> Any:
    """Return a power of two of which ``size``, at least ``2**-300`` or 0, is less than ``2**49`` times as much."""
    field = higher(np.float64(size).view(np.int64) >> np.int64(52), np.int64(1023 - 300))
    return _power(field - np.int64(1023 + 48))
