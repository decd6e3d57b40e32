"""Arm's dot products of bf16, BFDOT and BFMMLA: one step for each pair of k, without and with the extended behaviour.

Without it (FPCR.EBF = 0) both products, their sum, and its sum with the accumulator are rounded to odd each, and there
are no subnormal numbers. With it the two products are summed with one rounding to nearest even, and the sum is added
with another; subnormals are kept.

Notes
-----
A sum is rounded to odd from the one rounded to nearest and its error, which the processor finds exactly (the TwoSum of
Knuth and Moller): an inexact sum is cut, toward zero, and its last bit set. Where the exponents of
the operands allow it, no sum is looked at for overflow or as tiny, and the sum of two products is a fused multiply-add.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels.floating_point import fma
from mpsim_kernels.fma_chain import STEP, pack, pairs_in_order, run, words_of
from mpsim_kernels.lanes import SIGN, TILE
from mpsim_kernels.packing import survey

__all__ = ["bfdot_gemm"]

_MIN_NORMAL = 0x00800000
_NAN = np.int32(0x7FC00000)
_TINY = np.float32(2.0**-126)
_INFINITY = np.float32(np.inf)
_HALF_OF_INFINITY = np.float32(2.0**127)


def bfdot_gemm(
    a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32] | None, extended: bool
) -> NDArray[np.float32]:
    """Return ``a @ b + c`` as chains of the steps of BFDOT over pairs of k; a BFMMLA is two of them.

    Parameters
    ----------
    a, b : float32 [M, K] and [K, N]
        Values of bf16. An odd K is filled with a zero.
    c : float32 [M, N] or None
        Accumulators; None is zero.
    extended : bool
        FPCR.EBF, with FPCR's other bits 0. Without it subnormal operands and tiny results are zeros of their sign.

    Returns
    -------
    d : float32 [M, N], contiguous
        Every NaN is the default NaN, 0x7FC00000. K = 0 gives the accumulators as they are.
    """
    words_a, words_b, words_c = words_of(a), words_of(b), None if c is None else words_of(c)
    shape = a.shape[0], b.shape[1]
    if a.shape[1] == 0:
        return (np.zeros(shape, np.int32) if words_c is None else words_c.copy()).view(np.float32)
    least = 0 if extended else _MIN_NORMAL
    panels = pack(words_a, words_b, pairs_in_order(a.shape[1]), least)
    (low_a, high_a, _), (low_b, high_b, _) = (survey(words.reshape(-1)) for words in panels)
    # Smallest and largest exponents of the products, which have 16 bits. A subnormal counts as the smallest normal.
    low, high = max(low_a, 1) + max(low_b, 1) - 254, high_a + high_b - 254
    # Extended: every product is a number of float32. Else: sums of products are multiples of 2**-101 and below 2**99.
    # An accumulator of 2**-102 or more is a multiple of 2**-125, and with a smaller one no sum but 0 is tiny. One of
    # 2**124 or more has larger last places than such sums, so that it stays where it is, odd at last.
    least_low, most_high = (-135, 126) if extended else (-87, 96)
    ordinary = low >= least_low and high <= most_high
    return run(_make_rows(extended, ordinary), panels, words_c, shape, _NAN, least).view(np.float32)


@functools.cache
def _make_rows(extended: bool, ordinary: bool) -> Callable[[Any, Any, Any], None]:
    """Return a kernel as `mpsim_kernels.fma_chain.chain_rows`, for operands in or out of the ordinary."""

    @kernel
    def rows(a: Any, b: Any, acc: Any) -> None:
        count, k = a.shape
        panels, _, width = b.shape
        for p in range(panels):
            left, right = p * width, (p + 1) * width
            for first in range(0, count, TILE):
                for g in range(0, k, STEP):
                    for i in range(first, min(first + TILE, count)):
                        if extended and ordinary:
                            _fused_step(a[i, g : g + STEP], b[p, g : g + STEP], acc[i, left:right])
                        elif extended:
                            _wide_fused_step(a[i, g : g + STEP], b[p, g : g + STEP], acc[i, left:right])
                        elif ordinary:
                            _odd_step(a[i, g : g + STEP], b[p, g : g + STEP], acc[i, left:right])
                        else:
                            _guarded_odd_step(a[i, g : g + STEP], b[p, g : g + STEP], acc[i, left:right])

    return rows


@inner_kernel
def _error(x: Any, y: Any, total: Any) -> Any:
    """Return ``x + y - total``, which is a number of their type, where ``total`` is their rounded sum."""
    z = total - x
    return (x - (total - z)) + (y - z)


@inner_kernel
def _to_odd(total: Any, error: Any, inexact: Any) -> Any:
    """Return the word of a sum rounded to odd, from the one rounded to nearest and the sign of its error."""
    word, other = np.float32(total).view(np.int32), np.float32(error).view(np.int32)
    beyond = np.int32(np.int32(word ^ other) >> 31)  # -1 where the sum was rounded away from zero
    return np.int32(np.int32(word + beyond) | np.int32(1)) if inexact else word


@inner_kernel
def _odd_sum(x: Any, y: Any) -> Any:
    """Return ``x + y`` rounded to odd; the sum is neither tiny nor near overflow."""
    total = np.float32(x + y)
    error = _error(x, y, total)
    word = _to_odd(total, error, (error < 0) | (error > 0))  # that of an infinity is a NaN
    return np.int32(word).view(np.float32)


@inner_kernel
def _flushed(word: Any, size: Any) -> Any:
    """Return a number, given its word and magnitude, or the zero of its sign if it is tiny."""
    kept = np.int32(word & SIGN) if size < _TINY else word
    return np.int32(kept).view(np.float32)


@inner_kernel
def _guarded_odd_sum(x: Any, y: Any) -> Any:
    """Return ``x + y`` rounded to odd, without subnormal numbers; a tiny sum of float32 is exact."""
    size_x, size_y = abs(x), abs(y)
    swapped = size_x < size_y
    large, small = y if swapped else x, x if swapped else y
    total = np.float32(x + y)
    size = abs(total)
    # This error is exact, as Dekker's. Where the sum of two numbers has overflown it is an infinity of the other sign:
    # one step back is the largest number, which is right if the exact sum is below 2**128. The rest up to there is
    # exact, for the larger number is 2**127 or more.
    error = small - (total - large)
    rest = np.float32(np.float32(_HALF_OF_INFINITY - abs(large)) + _HALF_OF_INFINITY)
    infinite = (size == _INFINITY) & (abs(small) >= rest)
    word = _to_odd(total, error, ((error < 0) | (error > 0)) & ~infinite)
    return _flushed(word, size)


@inner_kernel
def _flushed_product(x: Any, y: Any) -> Any:
    """Return ``x * y``, which is exact, infinite, or tiny and so a zero of its sign."""
    product = np.float32(x * y)
    return _flushed(product.view(np.int32), abs(product))


@inner_kernel
def _odd_pair(a0: Any, a1: Any, b0: Any, b1: Any, c: Any) -> Any:
    """Return ``c`` after one pair of products, which are exact."""
    return _odd_sum(c, _odd_sum(np.float32(a0 * b0), np.float32(a1 * b1)))


@inner_kernel
def _guarded_odd_pair(a0: Any, a1: Any, b0: Any, b1: Any, c: Any) -> Any:
    """Return ``c`` after one pair of any products."""
    return _guarded_odd_sum(c, _guarded_odd_sum(_flushed_product(a0, b0), _flushed_product(a1, b1)))


@inner_kernel
def _fused_pair(a0: Any, a1: Any, b0: Any, b1: Any, c: Any) -> Any:
    """Return ``c`` after one pair of products, the second of which is exact."""
    return np.float32(c + fma(a0, b0, np.float32(a1 * b1)))


@inner_kernel
def _wide_fused_pair(a0: Any, a1: Any, b0: Any, b1: Any, c: Any) -> Any:
    """Return ``c`` after one pair of products, exact in float64; ``a0`` and ``a1`` are float64."""
    x, y = a0 * np.float64(b0), a1 * np.float64(b1)
    total = x + y
    error = _error(x, y, total)
    # Rounded to odd at 53 bits, then to nearest at 24 or fewer: as if rounded once.
    word, other = np.float64(total).view(np.int64), np.float64(error).view(np.int64)
    odd = ((word + ((word ^ other) >> 63)) | np.int64(1)) if (error < 0) | (error > 0) else word
    return np.float32(c + np.float32(np.int64(odd).view(np.float64)))


@inner_kernel
def _odd_step(a: Any, b: Any, acc: Any) -> None:
    """Run 4 pairs of products of a row: ``a`` is [8], ``b`` [8, W], the accumulators ``acc`` [W]."""
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for j in range(acc.size):
        t = _odd_pair(a2, a3, b2[j], b3[j], _odd_pair(a0, a1, b0[j], b1[j], acc[j]))
        acc[j] = _odd_pair(a6, a7, b6[j], b7[j], _odd_pair(a4, a5, b4[j], b5[j], t))


@inner_kernel
def _guarded_odd_step(a: Any, b: Any, acc: Any) -> None:
    """As `_odd_step`, whatever the operands."""
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for j in range(acc.size):
        t = _guarded_odd_pair(a2, a3, b2[j], b3[j], _guarded_odd_pair(a0, a1, b0[j], b1[j], acc[j]))
        acc[j] = _guarded_odd_pair(a6, a7, b6[j], b7[j], _guarded_odd_pair(a4, a5, b4[j], b5[j], t))


@inner_kernel
def _fused_step(a: Any, b: Any, acc: Any) -> None:
    """As `_odd_step`, with the extended behaviour."""
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for j in range(acc.size):
        t = _fused_pair(a2, a3, b2[j], b3[j], _fused_pair(a0, a1, b0[j], b1[j], acc[j]))
        acc[j] = _fused_pair(a6, a7, b6[j], b7[j], _fused_pair(a4, a5, b4[j], b5[j], t))


@inner_kernel
def _wide_fused_step(a: Any, b: Any, acc: Any) -> None:
    """As `_fused_step`, whatever the operands."""
    a0, a1, a2, a3 = np.float64(a[0]), np.float64(a[1]), np.float64(a[2]), np.float64(a[3])
    a4, a5, a6, a7 = np.float64(a[4]), np.float64(a[5]), np.float64(a[6]), np.float64(a[7])
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for j in range(acc.size):
        t = _wide_fused_pair(a2, a3, b2[j], b3[j], _wide_fused_pair(a0, a1, b0[j], b1[j], acc[j]))
        acc[j] = _wide_fused_pair(a6, a7, b6[j], b7[j], _wide_fused_pair(a4, a5, b4[j], b5[j], t))
