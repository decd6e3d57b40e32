"""Products and pairwise sums of ordinary float32 operations that flush subnormal numbers, for whole matrices.

One block is ``d + ((p0 + p1) + (p2 + p3))``, or ``d + (p0 + p1)``: every product and every sum is rounded to nearest
even, and a subnormal result becomes zero of its sign. So the processor's own operations serve, eight or sixteen
columns at a time, and a flush is a choice between two words.

Products of exponents that are not very small need no flush at all. If no product is below ``2**-79``, every rounded
product, and every sum of them, is 0 or at least ``2**-102``, their common quantum. An accumulator so close to it that
the two could cancel has a quantum of at least ``2**-126``, so neither is their sum subnormal.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.floating_point import default_environment, fma32
from mpsim_kernels.lanes import INF, MAGNITUDE, SIGN, TILE
from mpsim_kernels.packing import survey
from mpsim_kernels.words import words

__all__ = ["flushed_pair_gemm"]

_NAN = np.int32(0x7FC00000)
_PANEL = 512  # columns; a block of four rows of B and a row of accumulators fit the first-level cache
_WORK = 1 << 21  # products worth a thread
_NO_FLUSH = -79  # from this exponent of the smallest product on nothing is subnormal


def flushed_pair_gemm(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32] | None,
    block_length: int,
    operands_emin: tuple[int, int],
) -> NDArray[np.float32]:
    """Return ``a @ b + c`` in blocks of flushed products and pairwise sums.

    Parameters
    ----------
    a : float32 [M, K]
    b : float32 [K, N]
        Values of formats whose significands have 23 bits together at most, in any layout.
    c : float32 [M, N] or None
        None is zero.
    block_length : int
        2 or 4 products; the last block is filled up with zeros.
    operands_emin : pair of int
        Exponents of the smallest normal numbers of the formats of ``a`` and ``b``. Smaller operands become +0, and
        so do accumulators below float32's smallest normal number.

    Returns
    -------
    d : float32 [M, N], contiguous
        Every NaN is the word 0x7FC00000. Without products, the flushed accumulator.

    Notes
    -----
    A product that is exactly zero is +0; one that was rounded or flushed to zero keeps its sign. Whether a result is
    found tiny before or after rounding makes no difference: sums below ``2**-126`` are exact, and so are products
    from half of that on, which have at most 23 bits.
    """
    (m, k), n = a.shape, b.shape[1]
    depth = -(-k // block_length) * block_length
    panels = max(-(-n // _PANEL), 1)
    width = -(-max(n, 1) // (panels * 16)) * 16
    rows, columns = np.empty((1, m, depth), np.int32), np.empty((panels, depth, width), np.int32)
    _pack(words(a), _smallest_normal(operands_emin[0]), rows)
    _pack(words(b), _smallest_normal(operands_emin[1]), columns)
    starts = np.zeros((1, m, panels * width), np.int32)
    if c is not None:
        _pack(words(c), _smallest_normal(-126), starts)
    least = survey(rows.reshape(-1))[0] + survey(columns.reshape(-1))[0] - 2 * 127
    pair_rows = _make_pair_rows(block_length, bool(least < _NO_FLUSH))
    floats_a, floats_b, acc = rows[0].view(np.float32), columns.view(np.float32), starts[0].view(np.float32)
    d = np.empty((m, n), np.float32)

    def task(start: int, stop: int) -> None:
        part = slice(start, stop)
        with default_environment(), np.errstate(all="ignore"):  # plain Python warns
            pair_rows(floats_a[part], floats_b, acc[part])
        _finish(starts[0, part], d[part].view(np.int32))

    in_ranges(task, m, max(_WORK // max(columns.size, 1), 1))
    return d


def _smallest_normal(emin: int) -> np.int32:
    """Return the word of ``2**emin``, a normal number of float32."""
    return np.int32((emin + 127) << 23)


@kernel
def _pack(words: Any, least: Any, values: Any) -> None:
    """Copy the columns of a matrix into panels; words of numbers below ``least``, itself a word, become 0.

    ``words`` is int32 [R, C] and ``values`` int32 [P, R', W]; what lies outside the matrix becomes 0.
    """
    panels, rows, width = values.shape
    for p in range(panels):
        for r in range(rows):
            value = values[p, r]
            inside = min(max(words.shape[1] - p * width, 0), width) if r < words.shape[0] else 0
            if inside:
                row = words[r, p * width : p * width + inside]
                for j in range(inside):
                    word = np.int32(row[j])
                    value[j] = np.int32(0) if np.int32(word & MAGNITUDE) < least else word
            for j in range(inside, width):
                value[j] = 0


@kernel
def _finish(words: Any, d: Any) -> None:
    """Copy the first columns of the results to ``d`` int32 [M, N], with one word for every NaN."""
    for i in range(d.shape[0]):
        row, result = words[i], d[i]
        for j in range(result.size):
            word = np.int32(row[j])
            result[j] = _NAN if np.int32(word & MAGNITUDE) > INF else word


@inner_kernel
def _flushed(x: Any, tiny: Any) -> Any:
    """Return a float32, or zero of its sign where it is subnormal; ``tiny`` tells whether it may be."""
    word = np.float32(x).view(np.int32)
    subnormal = tiny and np.int32(word & INF) == 0
    return np.int32(np.int32(word & SIGN) if subnormal else word).view(np.float32)


@inner_kernel
def _product(a: Any, b: Any, tiny: Any) -> Any:
    """Return a product; one that is exactly zero is +0 where signs of zeros can matter."""
    return _flushed(fma32(a, b, np.float32(0)), tiny) if tiny else a * b


@inner_kernel
def _block_2(a: Any, b: Any, tiny: Any, acc: Any) -> None:
    """Add a block of 2 products to ``acc`` float32 [W]; ``a`` is float32 [2] and ``b`` float32 [2, W]."""
    a0, a1 = a[0], a[1]
    b0, b1 = b[0], b[1]
    for j in range(acc.size):
        total = _flushed(_product(a0, b0[j], tiny) + _product(a1, b1[j], tiny), tiny)
        acc[j] = _flushed(acc[j] + total, tiny)


@inner_kernel
def _block_4(a: Any, b: Any, tiny: Any, acc: Any) -> None:
    """Add a block of 4 products."""
    a0, a1, a2, a3 = a[0], a[1], a[2], a[3]
    b0, b1, b2, b3 = b[0], b[1], b[2], b[3]
    for j in range(acc.size):
        low = _flushed(_product(a0, b0[j], tiny) + _product(a1, b1[j], tiny), tiny)
        high = _flushed(_product(a2, b2[j], tiny) + _product(a3, b3[j], tiny), tiny)
        acc[j] = _flushed(acc[j] + _flushed(low + high, tiny), tiny)


@functools.cache
def _make_pair_rows(block_length: int, tiny: bool) -> Callable[..., None]:
    """Return ``pair_rows(a, b, acc)``, which runs the chains of blocks of some rows of outputs.

    Of the function that is returned: ``a`` float32 [M, K] and ``b`` [P, K, W] are packed, K a multiple of the block
    length; ``acc`` float32 [M, P * W] are accumulators and become results. Without ``tiny`` nothing is flushed.
    """

    @kernel
    def pair_rows(a: Any, b: Any, acc: Any) -> None:
        rows, k = a.shape
        panels, _, width = b.shape
        for panel in range(panels):
            for first in range(0, rows, TILE):
                for start in range(0, k, block_length):
                    stop = start + block_length
                    for i in range(first, min(first + TILE, rows)):
                        c = acc[i, panel * width : (panel + 1) * width]
                        if block_length == 2:
                            _block_2(a[i, start:stop], b[panel, start:stop], tiny, c)
                        else:
                            _block_4(a[i, start:stop], b[panel, start:stop], tiny, c)

    return pair_rows
