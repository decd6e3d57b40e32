"""How the magnitudes of an array are spread: counts by binary exponent and the extremes, or counts by class."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels.bits import shr

__all__ = ["make_class_counts", "make_magnitudes"]

_BLOCK = 1 << 12  # numbers that stay in a first-level cache
_FEW = 20  # powers of two that are fewer than cells cost


@inner_kernel
def _reached(fields: Any, power: Any) -> tuple[Any, Any, Any, Any]:
    """Return how many of fewer than 2**15 exponent fields reach ``power`` and each of the three above it."""
    p0, p1, p2, p3 = np.int16(power), np.int16(power + 1), np.int16(power + 2), np.int16(power + 3)
    n0 = n1 = n2 = n3 = np.int16(0)
    for i in range(fields.size):
        field = fields[i]
        n0 = np.int16(n0 + np.int16(field >= p0))
        n1 = np.int16(n1 + np.int16(field >= p1))
        n2 = np.int16(n2 + np.int16(field >= p2))
        n3 = np.int16(n3 + np.int16(field >= p3))
    return np.int64(n0), np.int64(n1), np.int64(n2), np.int64(n3)


@inner_kernel
def _count_in_cells(fields: Any, cells: Any) -> None:
    """Add one to the cell of each exponent field.

    Neighbours often have one exponent, and increments of one cell wait: four sets of cells take turns.
    """
    for i in range(0, fields.size - 3, 4):
        k = np.uint64(i)
        cells[0, np.uint64(fields[k])] += 1
        cells[1, np.uint64(fields[k + np.uint64(1)])] += 1
        cells[2, np.uint64(fields[k + np.uint64(2)])] += 1
        cells[3, np.uint64(fields[k + np.uint64(3)])] += 1
    for i in range(fields.size // 4 * 4, fields.size):
        cells[0, np.uint64(fields[i])] += 1


@functools.cache
def make_magnitudes(width: int) -> Callable[..., tuple[int, int]]:
    """Return ``magnitudes(words, counts, extremes)`` for floats of ``width`` bits, 32 or 64.

    Returns
    -------
    magnitudes
        ``words``: the floats as unsigned integers. ``counts`` int64, zeros, becomes the number of elements with each
        exponent ``floor(log2 |x|)`` from that of the smallest subnormal to that of the largest finite number, then of
        zeros, then of infinities and NaNs: 279 counts for 32 bits, 2100 for 64. ``extremes``, two words, becomes the
        smallest magnitude that is not zero, less one unit of its word, and the largest finite one; all ones and 0
        where there are none. Returned are the first and last occupied places of ``counts``, zeros and what is not
        finite apart; of no meaning where there are no others.
    """
    U: Any = np.uint32 if width == 32 else np.uint64
    place = 23 if width == 32 else 52
    last = 0xFF if width == 32 else 0x7FF  # the exponent field of infinities and NaNs
    shift, most, infinity, one = U(place), U((1 << (width - 1)) - 1), U(last << place), U(1)
    subnormals, ALL = U((1 << place) - 1), U((1 << width) - 1)

    @kernel
    def magnitudes(words: Any, counts: Any, extremes: Any) -> Any:
        fields = np.zeros((4, last + 4), np.int64)
        own = np.empty(_BLOCK, np.int16)
        smallest, largest = ALL, U(0)
        for start in range(0, words.size, _BLOCK):
            block = words[start : start + _BLOCK]
            n = block.size
            below, high = ALL, U(0)
            for i in range(n):  # a loop of its own, for it is vectorised
                a = U(block[i] & most)
                below = U(min(below, U(a - one) if a != 0 else ALL))
                high = U(max(high, a))
                own[i] = np.int16(shr(a, shift))
            special = high >= infinity
            if special:
                high = U(0)
                for i in range(n):
                    a = U(block[i] & most)
                    high = U(max(high, U(a if a < infinity else U(0))))
            smallest, largest = U(min(smallest, below)), U(max(largest, high))
            if below < subnormals:  # zeros and subnormal numbers have one field; the subnormal ones are found again
                for i in range(n):
                    a = U(block[i] & most)
                    if a != 0 and shr(a, shift) == 0:
                        bit = 0
                        while shr(a, U(bit)) > one:
                            bit += 1
                        counts[bit] += 1
            if high == 0 or shr(high, shift) - shr(U(below + one), shift) >= _FEW:
                _count_in_cells(own[:n], fields)
                continue
            first: Any = max(np.int64(shr(U(below + one), shift)), 1)
            final = np.int64(shr(high, shift))
            # Comparing all numbers with a power of two is vectorised, and for a few powers faster than cells in memory.
            field, rest = 0, n
            for power in range(first, final + 1, 4):
                reached = _reached(own[:n], power)
                for j in range(4):
                    fields[0, field] += rest - reached[j]
                    field, rest = power + j, reached[j]
            if special and field < last:
                not_finite = _reached(own[:n], last)[0]
                fields[0, field] += rest - not_finite
                field, rest = last, not_finite
            fields[0, field] += rest
        extremes[0], extremes[1] = smallest, largest
        tiny = counts[:place].sum()
        for field in range(1, last):
            counts[place - 1 + field] = fields[:, field].sum()
        counts[place - 1 + last] = fields[:, 0].sum() - tiny
        counts[place + last] = fields[:, last].sum()
        low, high_place = 0, place + last - 2
        if largest > 0:
            while counts[low] == 0:
                low += 1
            while counts[high_place] == 0:
                high_place -= 1
        return low, high_place

    return magnitudes


@functools.cache
def make_class_counts(width: int) -> Callable[..., tuple[int, int, int, int]]:
    """Return ``class_counts(words, normal)`` for floats of ``width`` bits, 32 or 64.

    Returns
    -------
    class_counts
        ``words``: the floats as unsigned integers, fewer than 2**32. ``normal``: the word of a format's smallest normal
        number. Returned are the numbers of zeros, of smaller magnitudes than that, of infinities and of NaNs.
    """
    U: Any = np.uint32 if width == 32 else np.uint64
    most, infinity = U((1 << (width - 1)) - 1), U((0xFF << 23) if width == 32 else (0x7FF << 52))
    none, one = U(0), U(1)

    @kernel
    def class_counts(words: Any, normal: Any) -> Any:
        zeros = small = special = infinities = none
        for i in range(words.size):
            x = U(words[i] & most)
            zeros = U(zeros + (one if x == none else none))
            small = U(small + (one if x < normal else none))
            special = U(special + (one if x >= infinity else none))
            infinities = U(infinities + (one if x == infinity else none))
        subnormals, nans = np.int64(small) - np.int64(zeros), np.int64(special) - np.int64(infinities)
        return np.int64(zeros), subnormals, np.int64(infinities), nans

    return class_counts
