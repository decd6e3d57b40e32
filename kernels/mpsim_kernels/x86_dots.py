"""Dot products of x86 processors: VDPBF16PS of AVX512_BF16, TDPBF16PS and TDPFP16PS of AMX.

Both are chains of fused multiply-adds without subnormal numbers. An x86 processor runs the plain chains of
`mpsim_kernels.fma_chain` and flushes tiny results itself. So does any other where the exponents of the operands rule
out that a nonzero result is tiny; elsewhere every step looks for such results.

Notes
-----
A result is tiny where the exact number, rounded to 24 bits with unbounded exponent, is below ``2**-126``. A number just
below may round to ``2**-126`` on the grid of subnormals, and then looks normal. So a step that looks for tiny results
is done once more in units of ``2**-24``, where such a number is normal; what overflows there is far from tiny.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.floating_point import FLUSHES_AFTER_ROUNDING, fma
from mpsim_kernels.fma_chain import (
    IDENTITY,
    PANEL,
    STEP,
    ZERO,
    Order,
    Panels,
    Words,
    chain_rows,
    chain_step,
    pack,
    pairs_in_order,
    run,
    words_of,
)
from mpsim_kernels.lanes import INF, MAGNITUDE, SIGN, TILE
from mpsim_kernels.packing import survey

__all__ = ["amx_gemm", "vdpbf16ps_gemm"]

_MIN_NORMAL = 0x00800000
_QUIET = np.int32(0x00400000)
_INDEFINITE = np.int32(-0x00400000)  # 0xFFC00000, the NaN of an invalid operation

_UP = np.float32(2.0**24)
_TINY, _TINY_UP = np.float32(2.0**-126), np.float32(2.0**-102)

_ELEMENTS = 1 << 16  # copies worth a thread
_TILE_PANEL = 256  # columns; the 32 rows of a tile fit the first-level cache


def vdpbf16ps_gemm(
    a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """Return ``a @ b + c`` as chains of VDPBF16PS: for each pair of k first its odd, then its even product.

    Parameters
    ----------
    a, b : float32 [M, K] and [K, N]
        Values of bf16. An odd K is filled with a zero.
    c : float32 [M, N] or None
        Accumulators; None is zero.

    Returns
    -------
    d : float32 [M, N], contiguous
        Subnormal operands and tiny results are zeros of their sign. A NaN is, from the last instruction that has
        a NaN among its operands, the first one in the order a0, b0, a1, b1, c, with its quiet bit set; without any it
        is 0xFFC00000. K = 0 gives the accumulators as they are.
    """
    words_a, words_b, words_c = words_of(a), words_of(b), None if c is None else words_of(c)
    swapped = pairs_in_order(a.shape[1]).reshape(-1, 2)[:, ::-1].reshape(-1)
    d = _chains(words_a, words_b, words_c, swapped, True)
    if a.shape[1]:
        _name_nans(words_a, words_b, words_c, d)
    return d.view(np.float32)


def amx_gemm(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32] | None,
    daz: bool,
    tile_k: int = 32,
    guide: bool = False,
) -> NDArray[np.float32]:
    """Return ``a @ b + c`` as chains of TDPBF16PS or TDPFP16PS.

    Parameters
    ----------
    a, b : float32 [M, K] and [K, N]
        Values of bf16 or fp16.
    c : float32 [M, N] or None
        Accumulators; None is zero.
    daz : bool
        Whether subnormal operands of a and b count as zeros: true of TDPBF16PS. Those of fp16 are normal in float32.
    tile_k : int
        Products of one instruction, even. The last one of a chain may have fewer; an odd K is filled with a zero.
    guide : bool
        Add every product to the accumulator at once, in increasing k, as the Intrinsics Guide has it. Otherwise, as in
        the pseudo code of the manual, an instruction sums its even and its odd products from zero, each with one
        rounding, and adds the sum of both to the accumulator.

    Returns
    -------
    d : float32 [M, N], contiguous
        Tiny results, and subnormal accumulators, are zeros of their sign. Every NaN is 0xFFC00000: no source says
        which NaN comes out. K = 0 gives the accumulators as they are.
    """
    words_a, words_b, words_c = words_of(a), words_of(b), None if c is None else words_of(c)
    k = a.shape[1]
    if guide:
        return _chains(words_a, words_b, words_c, pairs_in_order(k), daz).view(np.float32)
    # The even products of an instruction, then its odd ones, each filled up to whole steps.
    half = -(-tile_k // (2 * STEP)) * STEP
    order = np.full((-(-k // tile_k), 2, half), IDENTITY)
    source = np.arange(k + k % 2)
    tile, place = np.divmod(source, tile_k)
    order[tile, place % 2, place // 2] = np.where(source < k, source, ZERO)
    return _chains(words_a, words_b, words_c, order.reshape(-1), daz, half).view(np.float32)


def _chains(
    words_a: Words, words_b: Words, words_c: Words | None, order: Order, daz: bool, half: int | None = None
) -> Words:
    """Return the words of the results: of one chain for each, or of instructions with ``half`` even products each."""
    shape = words_a.shape[0], words_b.shape[1]
    if order.size == 0:
        return np.zeros(shape, np.int32) if words_c is None else words_c.copy()
    panels = pack(words_a, words_b, order, _MIN_NORMAL if daz else 0, PANEL if half is None else _TILE_PANEL)
    # Whether the loops look for tiny results themselves.
    slow = not FLUSHES_AFTER_ROUNDING and _may_be_tiny(panels)
    if half is None:
        rows: Callable[..., None] = _flushed_rows if slow else chain_rows
    else:
        rows = functools.partial(_flushed_tile_rows if slow else _tile_rows, half)
    return run(rows, panels, words_c, shape, _INDEFINITE, _MIN_NORMAL, FLUSHES_AFTER_ROUNDING)


def _may_be_tiny(panels: Panels) -> bool:
    """Return whether the exponents of the operands allow a nonzero sum that is tiny.

    Products have at most 22 bits. If they are 2**-81 or more they and their sums are multiples of ``2**-101``. An
    accumulator of ``2**-102`` or more is a multiple of ``2**-125``, and with a smaller one no sum but 0 comes under
    ``2**-102``.
    """
    low_a, low_b = (survey(words.reshape(-1))[0] for words in panels)
    return bool(low_a + low_b - 254 < -81)


@inner_kernel
def _flushed(x: Any, tiny: Any) -> Any:
    """Return ``x``, or the zero of its sign if it is tiny."""
    word = np.float32(x).view(np.int32)
    return np.int32(np.int32(word & SIGN) if tiny else word).view(np.float32)


@inner_kernel
def _flushed_fma(a: Any, a_up: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c`` without subnormal numbers; ``a_up`` is ``a`` in units of 2**-24."""
    return _flushed(fma(a, b, c), abs(fma(a_up, b, np.float32(c * _UP))) < _TINY_UP)


@inner_kernel
def _flushed_sum(x: Any, y: Any) -> Any:
    """Return ``x + y`` without subnormal numbers: a tiny sum of float32 is exact."""
    total = np.float32(x + y)
    return _flushed(total, abs(total) < _TINY)


@inner_kernel
def _flushed_step(a: Any, b: Any, acc: Any) -> None:
    """Run 8 products of a row: ``a`` is [8], ``b`` [8, W], the accumulators ``acc`` [W]."""
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    u0, u1, u2, u3 = np.float32(a0 * _UP), np.float32(a1 * _UP), np.float32(a2 * _UP), np.float32(a3 * _UP)
    u4, u5, u6, u7 = np.float32(a4 * _UP), np.float32(a5 * _UP), np.float32(a6 * _UP), np.float32(a7 * _UP)
    for j in range(acc.size):
        t = _flushed_fma(a0, u0, b0[j], acc[j])
        t = _flushed_fma(a1, u1, b1[j], t)
        t = _flushed_fma(a2, u2, b2[j], t)
        t = _flushed_fma(a3, u3, b3[j], t)
        t = _flushed_fma(a4, u4, b4[j], t)
        t = _flushed_fma(a5, u5, b5[j], t)
        t = _flushed_fma(a6, u6, b6[j], t)
        acc[j] = _flushed_fma(a7, u7, b7[j], t)


@kernel
def _flushed_rows(a: Any, b: Any, acc: Any) -> None:
    """As `mpsim_kernels.fma_chain.chain_rows`, without subnormal numbers."""
    rows, k = a.shape
    panels, _, width = b.shape
    for p in range(panels):
        for first in range(0, rows, TILE):
            for g in range(0, k, STEP):
                for i in range(first, min(first + TILE, rows)):
                    _flushed_step(a[i, g : g + STEP], b[p, g : g + STEP], acc[i, p * width : (p + 1) * width])


@kernel
def _tile_rows(half: Any, a: Any, b: Any, acc: Any) -> None:
    """Run the instructions of some rows of outputs.

    Packed K is a multiple of ``2 * half``: for each instruction its even products and then its odd ones. The rest is
    as in `mpsim_kernels.fma_chain.chain_rows`.
    """
    rows, k = a.shape
    panels, _, width = b.shape
    sums = np.empty((4, width), np.float32)
    for p in range(panels):
        left, right = p * width, (p + 1) * width
        for first in range(0, rows, TILE):
            for start in range(0, k, 2 * half):
                for i in range(first, min(first + TILE, rows), 2):
                    sums[:] = 0
                    for g in range(start, start + half, STEP):
                        chain_step(a[i, g : g + STEP], a[i + 1, g : g + STEP], b[p, g : g + STEP], sums[0], sums[1])
                    for g in range(start + half, start + 2 * half, STEP):
                        chain_step(a[i, g : g + STEP], a[i + 1, g : g + STEP], b[p, g : g + STEP], sums[2], sums[3])
                    _close_tile(sums[0], sums[2], acc[i, left:right])
                    _close_tile(sums[1], sums[3], acc[i + 1, left:right])


@kernel
def _flushed_tile_rows(half: Any, a: Any, b: Any, acc: Any) -> None:
    """As `_tile_rows`, without subnormal numbers."""
    rows, k = a.shape
    panels, _, width = b.shape
    sums = np.empty((2, width), np.float32)
    for p in range(panels):
        for first in range(0, rows, TILE):
            for start in range(0, k, 2 * half):
                for i in range(first, min(first + TILE, rows)):
                    sums[:] = 0
                    for g in range(start, start + half, STEP):
                        _flushed_step(a[i, g : g + STEP], b[p, g : g + STEP], sums[0])
                    for g in range(start + half, start + 2 * half, STEP):
                        _flushed_step(a[i, g : g + STEP], b[p, g : g + STEP], sums[1])
                    _close_tile(sums[0], sums[1], acc[i, p * width : (p + 1) * width])


@inner_kernel
def _close_tile(even: Any, odd: Any, acc: Any) -> None:
    """Add the two sums of an instruction, and their sum to the accumulators."""
    for j in range(acc.size):
        acc[j] = _flushed_sum(acc[j], _flushed_sum(even[j], odd[j]))


def _name_nans(words_a: Words, words_b: Words, words_c: Words | None, d: Words) -> None:
    """Set the NaNs that come from operands."""
    everything = [words_a, words_b] if words_c is None else [words_a, words_b, words_c]
    if all(survey(words.reshape(-1))[2] for words in everything):
        return
    (m, _), (_, n) = words_a.shape, words_b.shape
    rank_a, nan_a = np.full(m, -1), np.zeros(m, np.int32)
    rank_b, nan_b = np.full(n, -1), np.zeros(n, np.int32)
    _rank_rows(words_a, rank_a, nan_a)
    _rank_columns(words_b, rank_b, nan_b)
    starts = d if words_c is None else words_c

    def task(start: int, stop: int) -> None:
        rows = slice(start, stop)
        _set_nans(rank_a[rows], nan_a[rows], rank_b, nan_b, starts[rows], d[rows])

    in_ranges(task, m, max(_ELEMENTS // max(n, 1), 1))


@kernel
def _rank_rows(words: Any, rank: Any, nan: Any) -> None:
    """Find the NaN of each row of A that prevails.

    A later instruction prevails over an earlier one; within one the ranks of a0, b0, a1, b1 are 3, 2, 1, 0.
    """
    for i in range(words.shape[0]):
        for k in range(words.shape[1]):
            word = words[i, k]
            place = (k >> 1) * 4 + 3 - 2 * (k & 1)
            if (word & MAGNITUDE) > INF and place > rank[i]:
                rank[i], nan[i] = place, word | _QUIET


@kernel
def _rank_columns(words: Any, rank: Any, nan: Any) -> None:
    """Find the NaN of each column of B that prevails."""
    for k in range(words.shape[0]):
        row = words[k]
        place = (k >> 1) * 4 + 2 - 2 * (k & 1)
        for j in range(row.size):
            prevails = (row[j] & MAGNITUDE) > INF and place > rank[j]
            rank[j], nan[j] = place if prevails else rank[j], row[j] | _QUIET if prevails else nan[j]


@kernel
def _set_nans(rank_a: Any, nan_a: Any, rank_b: Any, nan_b: Any, c: Any, d: Any) -> None:
    """Set the NaNs of ``d``; those of the accumulators ``c`` come last."""
    for i in range(d.shape[0]):
        for j in range(d.shape[1]):
            if rank_a[i] > rank_b[j]:
                d[i, j] = nan_a[i]
            elif rank_b[j] >= 0:
                d[i, j] = nan_b[j]
            elif (c[i, j] & MAGNITUDE) > INF:
                d[i, j] = c[i, j] | _QUIET
