"""Whole matrix products through fused dot products, on the fastest path whose conditions hold.

`mpsim_kernels.panels` takes inputs whose exponents lie close together, `mpsim_kernels.wide_panels` others, and
`mpsim_kernels.fused_dot` units with unusual numbers. The first two know only finite numbers. What they cannot hold
is put aside before and set right after: an infinity or a NaN decides an output wherever it stands, and an
accumulator that is far below every product survives only where there is no product.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._threads import in_ranges
from mpsim_kernels.fused_dot import FusedDot, Operand, Words, general_gemm
from mpsim_kernels.lanes import INF, MAGNITUDE, SIGN
from mpsim_kernels.packing import ZERO_EXPONENT, pack, pack_wide, survey
from mpsim_kernels.panels import OVERFLOWN, PanelNumbers, make_panel_rows
from mpsim_kernels.specials import mark_specials
from mpsim_kernels.wide_panels import WidePanelNumbers, make_wide_panel_rows

__all__ = ["Operand", "fused_gemm", "thread_count"]

_PANEL = 512  # columns; a block of 8 rows of B and a row of accumulators fit the first-level cache
_OVERFLOWN_WORD = OVERFLOWN.view(np.int32)
_WORK = 1 << 21  # multiplications worth a thread


class _Window(NamedTuple):
    """Where the exponents of one product of matrices lie."""

    base_a: int
    base_b: int
    """What is subtracted from the exponents so that they fit a signed byte."""
    lowest: int
    """Exponent to which terms are aligned at least."""


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
    words_a, words_b = _words(a), _words(b)
    words_c = None if c is None else _words(c)
    seen_a, seen_b = survey(words_a.reshape(-1)), survey(words_b.reshape(-1))
    window = _window(seen_a[:2], seen_b[:2], unit, operands)
    if window is None and not _wide_holds(unit, operands):
        return general_gemm(words_a, words_b, words_c, unit, operands).view(np.float32)
    starts, small, odd = _starts(words_c, window, unit)
    if window is None:
        d = _wide(words_a, words_b, starts, unit, operands)
    else:
        d = _narrow(words_a, words_b, starts, unit, operands, window)
    if unit.nearest:
        d[(d & MAGNITUDE) == _OVERFLOWN_WORD] ^= _OVERFLOWN_WORD ^ INF
    if small is not None and words_c is not None:
        untouched = small & (d == starts)
        d[untouched] = _without_products(words_c[untouched], unit)
    if odd or not (seen_a[2] and seen_b[2]):
        _set_specials(d, words_a, words_b, words_c, unit, operands)
    return d.view(np.float32)


def _words(x: NDArray[np.float32]) -> Words:
    """Return the words of a float32 matrix, contiguous and writeable, so that kernels are compiled once."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    return (x if x.flags.writeable else x.copy()).view(np.int32)


def _window(
    seen_a: tuple[int, int], seen_b: tuple[int, int], unit: FusedDot, operands: tuple[Operand, Operand]
) -> _Window | None:
    """Return where the exponents lie, or None where the fast path does not hold them.

    ``seen`` are the smallest and largest biased exponents of the nonzero numbers.
    """
    length, bits = unit.block_length, unit.fraction_bits
    if not (length in (4, 8) and _sums_fit(unit, 31)) and not (length % 16 == 0 and _sums_fit(unit, 32)):
        return None
    if sum(operand.p for operand in operands) > 24:
        return None  # products would not be exact
    if min(seen_a[0], seen_b[0]) == 0:
        return None  # float32 subnormals, which the processor may take for zero
    # A matrix of zeros has no exponents: any will do.
    low_a, high_a = (max(x - 127, operands[0].emin) for x in (seen_a if seen_a[1] else (127, 127)))
    low_b, high_b = (max(x - 127, operands[1].emin) for x in (seen_b if seen_b[1] else (127, 127)))
    # An accumulator below this cannot reach the aligned sum of any product.
    lowest = max(unit.floor, low_a + low_b - bits - 3)
    high_a = max(high_a, lowest - high_b)
    base_a, base_b = high_a - 63, high_b - 63
    # Packed exponents fit; the sum with a packed zero stays below; the power of two of the alignment and its
    # inverse are normal numbers; and no product reaches a huge accumulator, so that a float32 cannot overflow.
    fits = min(low_a - base_a, low_b - base_b) > ZERO_EXPONENT and lowest - base_a - base_b >= ZERO_EXPONENT + 63
    fits = fits and lowest >= bits - 126 and high_a + high_b <= 60
    if unit.nearest:
        fits = fits and unit.emin - (unit.p - 1) - (lowest - bits) <= 30  # shifts of 32-bit words
    elif not _gives_float32(unit):
        fits = False
    return _Window(base_a, base_b, lowest) if fits else None


def _wide_holds(unit: FusedDot, operands: tuple[Operand, Operand]) -> bool:
    """Return whether the vectorised path for exponents of any size computes this unit."""
    length = unit.block_length
    sums = (length == 4 and _sums_fit(unit, 31)) or (length % 8 == 0 and _sums_fit(unit, 32))
    exact = sum(operand.p for operand in operands) <= 24
    return sums and exact and not unit.nearest and _gives_float32(unit) and abs(unit.floor) <= 400


def _gives_float32(unit: FusedDot) -> bool:
    """Return whether results have the exponents of float32."""
    return (unit.emin, unit.emax) == (-126, 127)


def _sums_fit(unit: FusedDot, bits: int) -> bool:
    """Return whether the magnitude of a block's sum fits ``bits`` bits; products are below 4, accumulators below 2."""
    return ((4 * unit.block_length + 2) << unit.fraction_bits) < 1 << bits


def _starts(
    words_c: Words | None, window: _Window | None, unit: FusedDot
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
    window: _Window,
) -> Words:
    """Return the words of the results of finite inputs whose exponents lie in a window."""
    a, b, acc = _panels(words_a, words_b, starts, unit.block_length, np.int8)
    pack(words_a, operands[0].emin, window.base_a, *a)
    pack(words_b, operands[1].emin, window.base_b, *b)
    base = window.base_a + window.base_b
    numbers = unit.fraction_bits, window.lowest - base, base + 127, unit.emin + 127, unit.p, unit.emax + 128
    panel_rows = make_panel_rows(unit.block_length, unit.nearest)
    return _run(panel_rows, a, b, acc, PanelNumbers(*map(np.int32, numbers)), words_b.shape[1])


def _wide(
    words_a: Words, words_b: Words, starts: Words | None, unit: FusedDot, operands: tuple[Operand, Operand]
) -> Words:
    """Return the words of the results of finite inputs with exponents of any size."""
    a, b, acc = _panels(words_a, words_b, starts, unit.block_length, np.int16)
    pack_wide(words_a, operands[0].emin, a[0].view(np.float32), a[1])
    pack_wide(words_b, operands[1].emin, b[0].view(np.float32), b[1])
    numbers = unit.fraction_bits, unit.floor, -(1 << max(24 - unit.p, 0))
    panel_rows = make_wide_panel_rows(unit.block_length)
    return _run(panel_rows, a, b, acc, WidePanelNumbers(*map(np.int32, numbers)), words_b.shape[1])


_Packed: TypeAlias = tuple[Words, NDArray[Any]]


def _panels(
    words_a: Words, words_b: Words, starts: Words | None, block_length: int, exponents: type[Any]
) -> tuple[_Packed, _Packed, Words]:
    """Return room for packed values and exponents of both operands, and accumulators [M, P * W].

    K is filled up to whole blocks, N to whole panels of W columns, a multiple of the processor's lanes.
    """
    (m, k), n = words_a.shape, words_b.shape[1]
    depth = max(-(-k // block_length), 1) * block_length
    panels = max(-(-n // _PANEL), 1)
    width = -(-max(n, 1) // (panels * 16)) * 16
    acc = np.zeros((m, panels * width), np.int32)
    if starts is not None:
        acc[:, :n] = starts
    shape_a, shape_b = (1, m, depth), (panels, depth, width)
    a = np.empty(shape_a, np.int32), np.empty(shape_a, exponents)
    b = np.empty(shape_b, np.int32), np.empty(shape_b, exponents)
    return a, b, acc


def _run(panel_rows: Callable[..., None], a: _Packed, b: _Packed, acc: Words, numbers: Any, n: int) -> Words:
    """Run the rows on Numba's number of threads and return the first ``n`` columns."""
    floats_a, floats_b, floats = a[0][0].view(np.float32), b[0].view(np.float32), acc.view(np.float32)
    exponents_a, exponents_b = a[1][0], b[1]

    def task(start: int, stop: int) -> None:
        rows = slice(start, stop)
        panel_rows(floats_a[rows], exponents_a[rows], floats_b, exponents_b, floats[rows], numbers)

    in_ranges(task, acc.shape[0], max(_WORK // floats_b.size, 1))
    return np.ascontiguousarray(acc[:, :n])


def _without_products(words_c: Words, unit: FusedDot) -> Words:
    """Return what becomes of accumulators (words, 1-D) in blocks without products."""
    nothing = np.empty((1, 0), np.float32).view(np.int32)
    columns = np.empty((0, words_c.size), np.float32).view(np.int32)
    anything = Operand(24, -126)
    return general_gemm(nothing, columns, words_c[None, :], unit, (anything, anything)).reshape(-1)


def _set_specials(
    d: Words,
    words_a: Words,
    words_b: Words,
    words_c: Words | None,
    unit: FusedDot,
    operands: tuple[Operand, Operand],
) -> None:
    """Set the outputs that an infinity or a NaN decides; ``d`` has the results of the finite products."""
    decided, first = mark_specials(words_a, words_b, words_c)
    # A sum that has overflowed meets an infinity of the other sign: which came first matters.
    overflown = (d & MAGNITUDE) == INF
    late = overflown & ~first & ((decided ^ d) == SIGN)
    np.copyto(d, decided, where=decided != 0)
    if late.any():
        signs = np.where(late, np.where(decided < 0, np.int8(-2), np.int8(2)), np.int8(0))
        np.copyto(d, general_gemm(words_a, words_b, words_c, unit, operands, signs), where=late)
