"""Chains of fused multiply-adds: ``d = fma(a[k], b[k], d)`` for increasing k, each rounded to nearest even.

This is what matrix units for float64, and AMD's for float32, compute. The processor does the operations itself, with
columns in its lanes, so the order of k is the only order there is. Other units whose steps are such operations take
the panels and the loops from here.

The columns of B are cut into panels of W. A step of 8 products of a panel stays in the first-level cache while the rows
of a tile pass, two at a time.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.floating_point import default_environment, fma
from mpsim_kernels.lanes import TILE

__all__ = [
    "IDENTITY",
    "PANEL",
    "STEP",
    "ZERO",
    "Order",
    "Panels",
    "Words",
    "chain_rows",
    "chain_step",
    "fma_gemm",
    "pack",
    "pairs_in_order",
    "run",
    "words_of",
]

STEP = 8
"""Products of one step of the loops; packed K is a multiple of it."""

ZERO, IDENTITY = -1, -2
"""In an `Order`: a product of zeros, which is +0; and -0, which changes no sum and only fills up the last step."""

PANEL = 512
"""Columns of a panel: 8 rows of B and two rows of accumulators fit the first-level cache."""

_LANES = 16  # a panel's width is a multiple of them
_WORK = 1 << 21  # multiplications worth a thread
_ELEMENTS = 1 << 16  # copies worth a thread

Words: TypeAlias = NDArray[np.signedinteger[Any]]
"""Bit patterns of float32 or float64 in signed integers of their width."""
Order: TypeAlias = NDArray[np.int64]
"""For each packed k the k of the matrices, or ZERO, or IDENTITY."""
Panels: TypeAlias = tuple[Words, Words]
"""Rows of A [M', K'], M' even, and panels of B [P, K', W]; both contiguous, K' a multiple of STEP."""


def fma_gemm(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any] | None) -> NDArray[Any]:
    """Return ``a @ b + c`` as chains of fused multiply-adds in increasing k.

    Parameters
    ----------
    a : float32 or float64 [M, K]
    b : [K, N], of the same type
    c : [M, N], of the same type, or None
        Accumulators; None is zero.

    Returns
    -------
    d : [M, N], of the same type, contiguous
        Subnormals are kept. Every NaN is the positive quiet one without payload, 0x7FC00000 in float32. K = 0 gives
        the accumulators as they are, but for the NaN.
    """
    k = np.arange(a.shape[1])
    order = np.concatenate([k, np.full(-k.size % STEP, IDENTITY)])
    words_a, words_b = words_of(a), words_of(b)
    panels = pack(words_a, words_b, order)
    starts = None if c is None else words_of(c)
    nan = np.array(np.nan, a.dtype).view(words_a.dtype)[()] & np.iinfo(words_a.dtype).max
    return run(chain_rows, panels, starts, (a.shape[0], b.shape[1]), nan).view(a.dtype)


def pairs_in_order(k: int) -> Order:
    """Return increasing k in whole pairs: an odd K is filled with a product of zeros."""
    order = np.full(-(-k // STEP) * STEP, IDENTITY)
    order[: k + k % 2] = ZERO
    order[:k] = np.arange(k)
    return order


def words_of(x: NDArray[Any]) -> Words:
    """Return the words of a matrix of floats, contiguous and writeable, so that kernels are compiled once."""
    x = np.ascontiguousarray(x)
    return (x if x.flags.writeable else x.copy()).view(f"i{x.dtype.itemsize}")


def pack(words_a: Words, words_b: Words, order: Order, least: int = 0, panel: int = PANEL) -> Panels:
    """Return both operands in the layout of the loops.

    Parameters
    ----------
    words_a, words_b : [M, K] and [K, N]
    order : int64 [K']
    least
        Numbers whose magnitude has a smaller word become zeros of their sign: the word of the smallest normal number
        makes an end of subnormals.
    panel
        Columns of a panel of B, at most.
    """
    (m, _), n = words_a.shape, words_b.shape[1]
    count = max(-(-n // panel), 1)
    width = -(-max(n, 1) // (count * _LANES)) * _LANES
    dtype = words_a.dtype.type
    a, b = np.empty((m + m % 2, order.size), dtype), np.empty((count, order.size, width), dtype)
    sign, bound = dtype(np.iinfo(dtype).min), dtype(least)

    def pack_rows(start: int, stop: int) -> None:
        _pack_rows(words_a[start:stop], order, sign, bound, a[start:stop])

    def pack_panels(start: int, stop: int) -> None:
        _pack_panels(words_b, order[start:stop], sign, bound, b[:, start:stop])

    in_ranges(pack_rows, a.shape[0], max(_ELEMENTS // max(order.size, 1), 1))
    in_ranges(pack_panels, order.size, max(_ELEMENTS // (count * width), 1))
    return a, b


@kernel
def _pack_rows(words: Any, order: Any, sign: Any, least: Any, packed: Any) -> None:
    for i in range(packed.shape[0]):
        row = packed[i]
        for k in range(order.size):
            source = order[k]
            if source >= 0 and i < words.shape[0]:
                word = words[i, source]
                row[k] = (word & sign) if (word & ~sign) < least else word
            else:
                row[k] = sign if source == IDENTITY else 0


@kernel
def _pack_panels(words: Any, order: Any, sign: Any, least: Any, packed: Any) -> None:
    panels, depth, width = packed.shape
    for p in range(panels):
        first = p * width
        inside = min(max(words.shape[1] - first, 0), width)
        for k in range(depth):
            row = packed[p, k]
            source = order[k]
            count = inside if source >= 0 else 0
            if count > 0:
                column = words[source, first : first + count]
                for j in range(count):
                    word = column[j]
                    row[j] = (word & sign) if (word & ~sign) < least else word
            row[count:] = 0


@inner_kernel
def chain_step(x: Any, y: Any, b: Any, c: Any, d: Any) -> None:
    """Run 8 products of two rows: ``x`` and ``y`` are [8], ``b`` [8, W], the accumulators ``c`` and ``d`` [W]."""
    x0, x1, x2, x3, x4, x5, x6, x7 = x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]
    y0, y1, y2, y3, y4, y5, y6, y7 = y[0], y[1], y[2], y[3], y[4], y[5], y[6], y[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for j in range(c.size):
        s, t = fma(x0, b0[j], c[j]), fma(y0, b0[j], d[j])
        s, t = fma(x1, b1[j], s), fma(y1, b1[j], t)
        s, t = fma(x2, b2[j], s), fma(y2, b2[j], t)
        s, t = fma(x3, b3[j], s), fma(y3, b3[j], t)
        s, t = fma(x4, b4[j], s), fma(y4, b4[j], t)
        s, t = fma(x5, b5[j], s), fma(y5, b5[j], t)
        s, t = fma(x6, b6[j], s), fma(y6, b6[j], t)
        c[j], d[j] = fma(x7, b7[j], s), fma(y7, b7[j], t)


@kernel
def chain_rows(a: Any, b: Any, acc: Any) -> None:
    """Run the chains of some rows of outputs.

    Parameters
    ----------
    a : [M, K]
        Rows, M even, K a multiple of 8.
    b : [P, K, W]
        Panels of columns.
    acc : [M, P * W]
        Accumulators, which become results.
    """
    rows, k = a.shape
    panels, _, width = b.shape
    for p in range(panels):
        left, right = p * width, (p + 1) * width
        for first in range(0, rows, TILE):
            for g in range(0, k, STEP):
                for i in range(first, min(first + TILE, rows), 2):
                    chain_step(
                        a[i, g : g + STEP],
                        a[i + 1, g : g + STEP],
                        b[p, g : g + STEP],
                        acc[i, left:right],
                        acc[i + 1, left:right],
                    )


def run(
    rows: Callable[[Any, Any, Any], None],
    panels: Panels,
    starts: Words | None,
    shape: tuple[int, int],
    nan: Any,
    least: int = 0,
    flush: bool = False,
) -> Words:
    """Return the words of a product [M, N] whose rows a kernel such as `chain_rows` computes.

    Parameters
    ----------
    rows
        Called with ranges of rows, under the processor's default environment.
    panels
        The operands from `pack`.
    starts : [M, N] or None
        Words of the accumulators; None is zero.
    shape
        M and N.
    nan
        The word that every NaN becomes.
    least
        Accumulators whose magnitude has a smaller word become zeros of their sign before they are used.
    flush
        Let the processor flush tiny results, as in `mpsim_kernels.floating_point.default_environment`.
    """
    m, (a, b) = shape[0], panels
    dtype = a.dtype.type
    floats = f"f{a.itemsize}"
    acc = np.zeros((a.shape[0], b.shape[0] * b.shape[2]), dtype)
    d = np.empty(shape, dtype)
    floats_a, floats_b, floats_acc = a.view(floats), b.view(floats), acc.view(floats)
    sign = dtype(np.iinfo(dtype).min)
    infinity, last = np.array(np.inf, floats).view(dtype)[()], dtype(np.iinfo(dtype).max)

    def task(start: int, stop: int) -> None:
        pairs = slice(2 * start, 2 * stop)
        inside = slice(2 * start, min(2 * stop, m))
        if starts is not None:
            _begin(starts[inside], sign, dtype(least), acc[inside])
        with default_environment(flush):
            rows(floats_a[pairs], floats_b, floats_acc[pairs])
        _results(acc[inside], last, infinity, dtype(nan), d[inside])

    in_ranges(task, a.shape[0] // 2, max(_WORK // (2 * b.size + 1), 1))
    return d


@kernel
def _begin(starts: Any, sign: Any, least: Any, acc: Any) -> None:
    """Copy the words of the accumulators."""
    for i in range(starts.shape[0]):
        row, start = acc[i], starts[i]
        for j in range(start.size):
            word = start[j]
            row[j] = (word & sign) if (word & ~sign) < least else word


@kernel
def _results(acc: Any, last: Any, infinity: Any, nan: Any, d: Any) -> None:
    """Copy the words of the results that are wanted, with one NaN for all; ``last`` masks the magnitude."""
    for i in range(d.shape[0]):
        row, result = acc[i], d[i]
        for j in range(result.size):
            word = row[j]
            result[j] = nan if (word & last) > infinity else word
