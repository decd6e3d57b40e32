"""How the magnitudes of an array are spread: counts by binary exponent and the extremes, or counts by class."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mpsim_kernels._jit import kernel
from mpsim_kernels.bits import shr

__all__ = ["make_class_counts", "make_magnitudes"]

_BLOCK = 1 << 12  # numbers that stay in a first-level cache


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
    subnormals = U((1 << place) - 1)

    @kernel
    def magnitudes(words: Any, counts: Any, extremes: Any) -> Any:
        fields = np.zeros((4, last + 1), np.int64)
        smallest, largest = U(2 * most + one), U(0)
        for start in range(0, words.size, _BLOCK):
            block = words[start : start + _BLOCK]
            for i in range(block.size):  # a loop of its own, for it is vectorised
                x = U(block[i] & most)
                smallest = U(min(smallest, U(x - one) if x != 0 else U(2 * most + one)))
                largest = U(max(largest, U(x if x < infinity else U(0))))
            # Neighbours often have one exponent, and increments of one cell wait: four sets of cells take turns.
            for i in range(0, block.size - 3, 4):
                k = np.uint64(i)
                fields[0, shr(U(block[k] & most), shift)] += 1
                fields[1, shr(U(block[k + np.uint64(1)] & most), shift)] += 1
                fields[2, shr(U(block[k + np.uint64(2)] & most), shift)] += 1
                fields[3, shr(U(block[k + np.uint64(3)] & most), shift)] += 1
            for i in range(block.size // 4 * 4, block.size):
                fields[0, shr(U(block[i] & most), shift)] += 1
        extremes[0], extremes[1] = smallest, largest
        if smallest < subnormals:  # zeros and subnormal numbers have one field; the subnormal ones are found again
            for i in range(words.size):
                x = U(words[i] & most)
                if x != 0 and shr(x, shift) == 0:
                    bit = 0
                    while shr(x, U(bit)) > one:
                        bit += 1
                    counts[bit] += 1
        below = counts[:place].sum()
        for field in range(1, last):
            counts[place - 1 + field] = fields[:, field].sum()
        counts[place - 1 + last] = fields[:, 0].sum() - below
        counts[place + last] = fields[:, last].sum()
        low, high = 0, place + last - 2
        if largest > 0:
            while counts[low] == 0:
                low += 1
            while counts[high] == 0:
                high -= 1
        return low, high

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
