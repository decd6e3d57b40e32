"""Whole matrix products through fused dot products, on the fastest path whose conditions hold.

`mpsim_kernels.panels` takes inputs whose exponents lie close together, `mpsim_kernels.wide_panels` others, and
`mpsim_kernels.fused_dot` units with unusual numbers. The first two know only finite numbers. What they cannot hold
is put aside before and set right after: an infinity or a NaN decides an output wherever it stands, and an
accumulator that is far below every product survives only where there is no product.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from mpsim_kernels.fused_dot import FusedDot, Operand, general_gemm
from mpsim_kernels.lanes import INF, MAGNITUDE
from mpsim_kernels.packing import from_float64, rooms, survey, to_float64
from mpsim_kernels.panels import OVERFLOWN
from mpsim_kernels.products import Window, find_window, narrow, padded, run_stack, wide, wide_holds
from mpsim_kernels.specials import settle_specials
from mpsim_kernels.wide_panels import WIDE_OVERFLOWN
from mpsim_kernels.words import Words, words

__all__ = ["Operand", "fused_gemm", "fused_stack", "thread_count"]

_OVERFLOWN_WORD = OVERFLOWN.view(np.int32)


def thread_count() -> int:
    """Return how many threads a large product is cut into."""
    return int(numba.get_num_threads())


def fused_gemm(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32] | None,
    unit: FusedDot,
    operands: tuple[Operand, Operand],
) -> NDArray[np.float32]:
    """Return ``a @ b + c`` as a unit of fused dot products computes it.

    Parameters
    ----------
    a : float32 [M, K]
    b : float32 [K, N]
        Values of the formats that ``operands`` describes, in any layout.
    c : float32 [M, N] or None
        Values of the result's format; None is zero.
    unit : FusedDot
    operands : pair of Operand

    Returns
    -------
    d : float32 [M, N], contiguous
        Every NaN is the word 0x7FFFFFFF. K = 0 counts as one block without products.
    """
    words_a, words_b = words(a), words(b)
    words_c = None if c is None else words(c)
    seen_a, seen_b = survey(words_a.reshape(-1)), survey(words_b.reshape(-1))
    window = find_window(seen_a[:2], seen_b[:2], unit, operands)
    if window is None and not wide_holds(unit, operands):
        return general_gemm(words_a, words_b, words_c, unit, operands).view(np.float32)
    starts, small, odd = _starts(words_c, window, unit)
    if window is None:
        d = _wide(words_a, words_b, starts, unit, operands)
    else:
        d = _narrow(words_a, words_b, starts, unit, operands, window)
    if small is not None and words_c is not None:
        untouched = small & (d == starts)
        d[untouched] = _without_products(words_c[untouched], unit)
    if odd or not (seen_a[2] and seen_b[2]):
        late = settle_specials(d, words_a, words_b, words_c)
        if late is not None:
            np.copyto(d, general_gemm(words_a, words_b, words_c, unit, operands, late), where=late != 0)
    return d.view(np.float32)


def fused_stack(
    a: NDArray[np.float32], b: NDArray[np.float32], unit: FusedDot, operands: tuple[Operand, Operand]
) -> NDArray[np.float32] | None:
    """Return what `fused_gemm` makes of each two matrices [S, M, K] and [S, K, N] of stacks, or None.

    The stacks are packed at once, for many small products take longer to begin than to compute. That needs finite
    numbers whose exponents all lie in one window, and something to multiply.
    """
    (stack, m, k), n = a.shape, b.shape[2]
    if not stack * m * k * n:
        return None
    words_a, words_b = words(a), words(b)
    seen_a, seen_b = survey(words_a.reshape(-1)), survey(words_b.reshape(-1))
    window = find_window(seen_a[:2], seen_b[:2], unit, operands) if seen_a[2] and seen_b[2] else None
    if window is None:
        return None
    (acc,) = rooms(((stack, m, padded(n)), np.int32))
    acc[:] = 0
    run_stack(words_a, words_b, unit, operands, window, acc)
    return _results(acc, n, unit).view(np.float32)


def _starts(
    words_c: Words | None, window: Window | None, unit: FusedDot
) -> tuple[Words | None, NDArray[np.bool_] | None, bool]:
    """Return finite accumulators to start from, which of them stand for small ones, and whether some are special.

    An accumulator under the alignment of every product, which the narrow path does not hold, is replaced by
    ``2**lowest``. That too is cut away by the first product; it is found again only where there is none, for other
    results are multiples of a larger power of two.
    """
    if words_c is None:
        return None, None, False
    smallest, _, finite = survey(words_c.reshape(-1))
    has_small = window is not None and unit.floor < window.lowest and smallest < window.lowest + 127
    if finite and not has_small:
        return words_c, None, False
    magnitude = words_c & MAGNITUDE
    starts = np.where(magnitude >= INF, np.int32(0), words_c)
    if window is None or not has_small:
        return starts, None, not finite
    least = np.int32((window.lowest + 127) << 23)
    small = (magnitude != 0) & (magnitude < least)
    starts[small] = least
    return starts, small, not finite


def _narrow(
    words_a: Words,
    words_b: Words,
    starts: Words | None,
    unit: FusedDot,
    operands: tuple[Operand, Operand],
    window: Window,
) -> Words:
    """Return the words of the results of finite inputs whose exponents lie in a window."""
    m, n = words_a.shape[0], words_b.shape[1]
    (acc,) = rooms(((m, padded(n)), np.int32))
    acc[:, n:] = 0
    acc[:, :n] = 0 if starts is None else starts
    narrow(words_a, words_b, unit, operands, window).run_all(acc.view(np.float32))
    return _results(acc, n, unit)


def _results(acc: Words, n: int, unit: FusedDot) -> Words:
    """Return the first ``n`` columns of accumulators, with infinities for what stands for them."""
    d = np.ascontiguousarray(acc[..., :n])
    if unit.nearest:
        d[(d & MAGNITUDE) == _OVERFLOWN_WORD] ^= _OVERFLOWN_WORD ^ INF
    return d


def _wide(
    words_a: Words, words_b: Words, starts: Words | None, unit: FusedDot, operands: tuple[Operand, Operand]
) -> Words:
    """Return the words of the results of finite inputs with exponents of any size."""
    m, n = words_a.shape[0], words_b.shape[1]
    (acc,) = rooms(((m, padded(n)), np.float64))
    acc[:] = 0
    if starts is not None:
        to_float64(starts, acc)
    wide(words_a, words_b, unit, operands).run_all(acc)
    d = np.empty((m, n), np.int32)
    from_float64(acc, WIDE_OVERFLOWN, d)
    return d


def _without_products(words_c: Words, unit: FusedDot) -> Words:
    """Return what becomes of accumulators (words, 1-D) in blocks without products."""
    nothing = np.empty((1, 0), np.float32).view(np.int32)
    columns = np.empty((0, words_c.size), np.float32).view(np.int32)
    anything = Operand(24, -126)
    return general_gemm(nothing, columns, words_c[None, :], unit, (anything, anything)).reshape(-1)
