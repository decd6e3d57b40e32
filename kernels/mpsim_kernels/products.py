"""Products of two matrices, packed for the kernels of whole rows whose conditions they meet.

`mpsim_kernels.panels` takes inputs whose exponents lie in a window, `mpsim_kernels.wide_panels` others. Both know only
finite numbers: infinities and NaNs are packed as zeros.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._threads import in_ranges
from mpsim_kernels.floating_point import default_environment
from mpsim_kernels.fused_dot import DROPPED, FusedDot, Operand
from mpsim_kernels.lanes import WIDE_WIDTH, WIDTH
from mpsim_kernels.packing import ZERO_EXPONENT, pack, pack_stack, pack_wide, rooms
from mpsim_kernels.panels import OVERFLOWN, PanelNumbers, make_panel_rows
from mpsim_kernels.wide_panels import WidePanelNumbers, make_wide_panel_rows
from mpsim_kernels.words import Words

__all__ = ["WORK", "Packed", "Window", "find_window", "narrow", "padded", "run_stack", "wide", "wide_holds"]

WORK = 1 << 21
"""Multiplications worth a thread."""

_PACKED = 1 << 17  # numbers whose packing is

_LANES = 16  # columns are filled up to the float32 lanes of the widest processor


class Window(NamedTuple):
    """Where the exponents of one product of matrices lie."""

    base_a: int
    base_b: int
    """What is subtracted from the exponents so that they fit a signed byte."""
    lowest: int
    """Exponent to which terms are aligned at least."""


class Packed(NamedTuple):
    """A product whose operands are packed: rows of A and panels of B, values beside exponents, and their kernel.

    K is filled up to whole blocks, N to whole vectors.
    """

    a: NDArray[Any]
    exponents_a: NDArray[Any]
    b: NDArray[Any]
    exponents_b: NDArray[Any]
    panel_rows: Callable[..., None]
    numbers: Any

    def run(self, rows: slice, start: int, stop: int, acc: NDArray[Any]) -> None:
        """Run the blocks of k from ``start`` to ``stop`` for some rows, whose accumulators are ``acc`` [rows, N]."""
        b, exponents_b = self.b, self.exponents_b
        with default_environment():
            self.panel_rows(self.a[rows], self.exponents_a[rows], b, exponents_b, start, stop, acc, self.numbers)

    def run_all(self, acc: NDArray[Any]) -> None:
        """Run every block for every row, on Numba's number of threads."""
        rows, k = self.a.shape

        def task(start: int, stop: int) -> None:
            self.run(slice(start, stop), 0, k, acc[start:stop])

        in_ranges(task, rows, max(WORK // (k * acc.shape[1]), 1))


def padded(n: int) -> int:
    """Return how many columns of accumulators ``n`` columns need."""
    return max(-(-n // _LANES), 1) * _LANES


@functools.lru_cache(maxsize=1024)
def find_window(
    seen_a: tuple[int, int], seen_b: tuple[int, int], unit: FusedDot, operands: tuple[Operand, Operand]
) -> Window | None:
    """Return where the exponents lie, or None where `narrow` does not hold them or the unit.

    ``seen`` are the smallest and largest biased exponents of the nonzero numbers.
    """
    bits = unit.fraction_bits
    if unit.zero_exponent != DROPPED or (unit.block_length not in (4, 8) and unit.block_length % 16 != 0):
        return None
    if _split(unit, operands) is None or sum(operand.p for operand in operands) > 24:
        return None  # sums would overflow, or products would not be exact
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
        # Shifts of 32-bit words; and no result is what stands for an infinity.
        fits = fits and unit.emin - (unit.p - 1) - (lowest - bits) <= 27 and 2.0**unit.emax < float(OVERFLOWN)
    elif (unit.emin, unit.emax) != (-126, 127):
        fits = False  # results are cut to float32
    return Window(base_a, base_b, lowest) if fits else None


def wide_holds(unit: FusedDot, operands: tuple[Operand, Operand]) -> bool:
    """Return whether `wide` computes this unit."""
    exact = _largest_sum(unit, operands, unit.block_length) < 1 << 53
    return exact and unit.block_length % 4 == 0 and abs(unit.floor) <= 400 and unit.zero_exponent == DROPPED


def narrow(words_a: Words, words_b: Words, unit: FusedDot, operands: tuple[Operand, Operand], window: Window) -> Packed:
    """Pack the words of matrices whose exponents lie in a window; accumulators are float32."""
    a, ea, b, eb = _room(words_a, words_b, unit.block_length, WIDTH, np.int32, np.int8)
    _pack_rows(words_a, operands[0].emin, window.base_a, a, ea)
    _pack_panels(words_b, operands[1].emin, window.base_b, b, eb)
    a, b = a.view(np.float32), b.view(np.float32)
    return Packed(a[0], ea[0], _flat(b), _flat(eb), *_narrow_kernel(unit, operands, window))


def run_stack(
    words_a: Words, words_b: Words, unit: FusedDot, operands: tuple[Operand, Operand], window: Window, acc: Words
) -> None:
    """Run the products of a stack of matrices whose exponents all lie in one window, on Numba's number of threads.

    ``words_a`` are [S, M, K], ``words_b`` [S, K, N], and the accumulators ``acc`` [S, M, N], N as `padded`.
    """
    (stack, m, k), n = words_a.shape, acc.shape[2]
    depth = -(-k // unit.block_length) * unit.block_length
    shape_a, shape_b = (1, stack * m, depth), (stack, -(-n // WIDTH), depth, WIDTH)
    a, ea, b, eb = rooms((shape_a, np.int32), (shape_a, np.int8), (shape_b, np.int32), (shape_b, np.int8))
    _pack_rows(words_a.reshape(stack * m, k), operands[0].emin, window.base_a, a, ea)
    _pack_matrices(words_b, operands[1].emin, window.base_b, n, b, eb)
    panel_rows, numbers = _narrow_kernel(unit, operands, window)
    rows_a, rows_ea, totals = a[0].view(np.float32), ea[0], acc.view(np.float32)
    panels, panels_eb = (x.reshape(*x.shape[:2], -1) for x in (b.view(np.float32), eb))

    def task(start: int, stop: int) -> None:
        while start < stop:
            matrix, row = divmod(start, m)
            count = min(stop - start, m - row)
            rows, own = slice(start, start + count), totals[matrix, row : row + count]
            with default_environment():
                panel_rows(rows_a[rows], rows_ea[rows], panels[matrix], panels_eb[matrix], 0, depth, own, numbers)
            start += count

    in_ranges(task, stack * m, max(WORK // (depth * n), 1))


def _pack_rows(words: Words, emin: int, base: int, values: NDArray[Any], exponents: NDArray[Any]) -> None:
    """Pack A [M, K] as one panel [1, M, K']."""

    def task(start: int, stop: int) -> None:
        pack(words[start:stop], emin, base, values.shape[2], values[:, start:stop], exponents[:, start:stop])

    in_ranges(task, len(words), _PACKED // values.shape[2] + 1)


def _pack_panels(words: Words, emin: int, base: int, values: NDArray[Any], exponents: NDArray[Any]) -> None:
    """Pack B [K, N] in panels [P, K', W], N filled up to whole vectors."""
    _, depth, width = values.shape
    columns = padded(words.shape[1])

    def task(start: int, stop: int) -> None:
        own = words[:, start * width : stop * width]
        pack(own, emin, base, columns - start * width, values[start:stop], exponents[start:stop])

    in_ranges(task, len(values), _PACKED // (depth * width) + 1)


def _pack_matrices(
    words: Words, emin: int, base: int, columns: int, values: NDArray[Any], exponents: NDArray[Any]
) -> None:
    """Pack a stack of B [S, K, N] in panels [S, P, K', W], each N filled up to ``columns``."""

    def task(start: int, stop: int) -> None:
        pack_stack(words[start:stop], emin, base, columns, values[start:stop], exponents[start:stop])

    in_ranges(task, len(words), _PACKED // values[0].size + 1)


def _narrow_kernel(
    unit: FusedDot, operands: tuple[Operand, Operand], window: Window
) -> tuple[Callable[..., None], PanelNumbers]:
    """Return the kernel of inputs in a window, and its numbers."""
    base = window.base_a + window.base_b
    numbers = unit.fraction_bits, window.lowest - base, base + 127, unit.emin + 127, unit.p, unit.emax + 128
    panel_rows = make_panel_rows(unit.block_length, unit.nearest, bool(_split(unit, operands)))
    return panel_rows, PanelNumbers(*map(np.int32, numbers))


def wide(words_a: Words, words_b: Words, unit: FusedDot, operands: tuple[Operand, Operand]) -> Packed:
    """Pack the words of matrices with exponents of any size; accumulators are float64."""
    a, ea, b, eb = _room(words_a, words_b, unit.block_length, WIDE_WIDTH, np.float64, np.int16)
    pack_wide(words_a, operands[0].emin, a.shape[2], a, ea)
    pack_wide(words_b, operands[1].emin, padded(words_b.shape[1]), b, eb)
    numbers = unit.fraction_bits, unit.floor, unit.p, unit.emin, unit.emax
    panel_rows = make_wide_panel_rows(unit.block_length, unit.nearest)
    return Packed(a[0], ea[0], _flat(b), _flat(eb), panel_rows, WidePanelNumbers(*map(np.int64, numbers)))


def _room(
    words_a: Words, words_b: Words, block_length: int, width: int, values: type[Any], exponents: type[Any]
) -> list[NDArray[Any]]:
    """Return room for values and exponents of A [1, M, K], as one panel, and of B [P, K, W]."""
    (m, k), n = words_a.shape, words_b.shape[1]
    depth = max(-(-k // block_length), 1) * block_length
    shape_b = -(-padded(n) // width), depth, width
    shape_a = 1, m, depth
    return rooms((shape_a, values), (shape_a, exponents), (shape_b, values), (shape_b, exponents))


def _flat(panels: NDArray[Any]) -> NDArray[Any]:
    return panels.reshape(panels.shape[0], -1)


def _split(unit: FusedDot, operands: tuple[Operand, Operand]) -> bool | None:
    """Return whether a block's sum needs two int32, of which the second has the last 16 products, or 8 of 16.

    None is returned where even these are too short.
    """
    length = unit.block_length
    whole = _largest_sum(unit, operands, length)
    # Up to here the sum, converted to float32, stays below 2**31.
    if whole < (1 << 31) - 64:
        return False
    last = min(length // 2, 16)
    parts_fit = _largest_sum(unit, operands, max(length - last, last)) < 1 << 31
    return True if length >= 16 and parts_fit and whole < (1 << 32) - 128 else None


def _largest_sum(unit: FusedDot, operands: tuple[Operand, Operand], products: int) -> int:
    """Return what the aligned sum of an accumulator, which is below 2, and this many products cannot exceed."""
    a, b = operands
    largest = (((1 << a.p) - 1) * ((1 << b.p) - 1)) << 2  # in units of 2**-(a.p + b.p)
    return (2 << unit.fraction_bits) + ((products * largest << unit.fraction_bits) >> (a.p + b.p))
