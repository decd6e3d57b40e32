"""Floored dot products, as AMD's CDNA3 units compute them: the exponents of products and accumulator are compared last.

The products of a block are cut toward zero below their own largest exponent and summed. Then this sum and the
accumulator are aligned to each other by shifts of two's complement integers, which round toward minus infinity, and
what they add to is rounded once, to nearest even. FP8 units sum the products of even and of odd k apart first.

`mpsim_kernels.floored_panels` is the fast path for operands whose products are exact in a float, and
`mpsim_kernels.floored_dot` takes any operand and any numbers. Which rule holds for products that are zero is not known
of the hardware; the default is that of the published model that was compared with it.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._threads import in_ranges
from mpsim_kernels.floating_point import default_environment
from mpsim_kernels.floored_dot import FLOORED_NAN, ZERO_EXPONENT, general_floored_gemm
from mpsim_kernels.floored_panels import FlooredNumbers, make_floored_rows, pack_floats
from mpsim_kernels.floored_specials import LARGE, find_hints, no_hints
from mpsim_kernels.fused_dot import Operand
from mpsim_kernels.lanes import INF, MAGNITUDE
from mpsim_kernels.packing import survey
from mpsim_kernels.words import Words, words

__all__ = ["Floored", "floored_gemm", "floored_pair_gemm"]

_NO_EXPONENT = -600  # with any exponent the sum stays below every nonzero product's, and two fit an int16
_HIGHEST = 62  # packed exponent of the largest operands, so that no product leaves the range of float32
_LEAST, _LEAST_DOUBLE = -100, -400  # packed exponents below which there are only products of zero
_PANEL = 512  # columns; a block of 8 rows of B and a row of accumulators fit the first-level cache
_WORK = 1 << 21  # multiplications worth a thread


class Floored(NamedTuple):
    """The numbers of a floored dot product: one block is ``c`` and ``block_length`` products.

    With ``e`` the largest exponent of the products and ``E`` the larger of ``e`` and that of the accumulator, products
    are cut to multiples of ``2**(e - product_bits)``, their sum is floored to ``2**(E - sum_bits)`` and the accumulator
    to ``2**(E - accumulator_bits)``. Results are float32.
    """

    block_length: int
    product_bits: int = 24
    sum_bits: int = 31
    accumulator_bits: int = 24
    accumulator_reach: int = 1000
    """An accumulator whose exponent is more than this below ``E`` adds nothing; a negative one's floor would be -1."""
    drop_zeros: bool = False
    """Whether products that are zero have no exponent; if not, a zero operand of any format has the exponent -126."""


def floored_gemm(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32] | None,
    unit: Floored,
    operands: tuple[Operand, Operand],
) -> NDArray[np.float32]:
    """Return ``a @ b + c`` as a unit computes it that sums the products of a block together.

    Parameters
    ----------
    a : float32 [M, K]
    b : float32 [K, N]
        Values of the formats that ``operands`` describes, in any layout.
    c : float32 [M, N] or None
        None is zero.
    unit : Floored
        No number of bits is above 44.
    operands : pair of Operand

    Returns
    -------
    d : float32 [M, N], contiguous
        Every NaN is the word 0x7FC00000. K = 0 counts as one block without products.

    Notes
    -----
    Infinite or NaN operands and accumulators decide a block as in IEEE 754. Where there are none, a product from
    2**128 on is an infinity, and two of them of both signs make a NaN.
    """
    return _gemm(a, b, c, unit, operands, 1)


def floored_pair_gemm(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32] | None,
    unit: Floored,
    operands: tuple[Operand, Operand],
) -> NDArray[np.float32]:
    """Return ``a @ b + c`` as a unit computes it that sums the products of even and of odd k apart.

    The two sums are floored to ``product_bits`` below the larger of their exponents, and added. Parameters and result
    are those of `floored_gemm`; the block length is even.
    """
    return _gemm(a, b, c, unit, operands, 2)


def _gemm(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32] | None,
    unit: Floored,
    operands: tuple[Operand, Operand],
    groups: int,
) -> NDArray[np.float32]:
    words_a, words_b = words(a), words(b)
    words_c = None if c is None else words(c)
    seen_a, seen_b = survey(words_a.reshape(-1)), survey(words_b.reshape(-1))
    lanes = _lanes(seen_a, seen_b, unit, operands, groups)
    if lanes is None:
        return general_floored_gemm(words_a, words_b, words_c, unit, operands, groups).view(np.float32)
    d = _panels(words_a, words_b, words_c, unit, operands, groups, lanes)
    if lanes.careful or words_c is not None:
        d[(d & MAGNITUDE) > INF] = FLOORED_NAN
    return d.view(np.float32)


class _Lanes(NamedTuple):
    """How one product of matrices is computed in lanes."""

    double: bool
    """Whether products need float64."""
    shift_a: int
    shift_b: int
    """What is added to the exponents of the operands so that products stay far from the limits of float32."""
    careful: bool
    """Whether infinities, NaNs or products from 2**128 on may occur."""


def _lanes(
    seen_a: tuple[int, int, bool],
    seen_b: tuple[int, int, bool],
    unit: Floored,
    operands: tuple[Operand, Operand],
    groups: int,
) -> _Lanes | None:
    """Return how to compute in lanes, or None where their integers or floats do not hold this unit's.

    ``seen`` are the smallest and largest biased exponents of the finite nonzero numbers, and whether all are finite.
    """
    length = unit.block_length
    if groups == 1 and unit.accumulator_reach < 1000:
        return None  # the lanes of one sum leave this test out; no exponents lie farther apart
    if length % (4 * groups) or min(unit.product_bits, unit.sum_bits, unit.accumulator_bits) < 0:
        return None
    # Sums of products fit an int32, and what is rounded fits a float64; products are below 4, accumulators below 2.
    if 4 * length << unit.product_bits >= 1 << 31:
        return None
    if (4 * length + 4) << max(unit.sum_bits, unit.accumulator_bits) > 1 << 53:
        return None
    # A matrix of zeros has no exponents: any will do.
    low_a, high_a = (max(x - 127, operands[0].emin) for x in (seen_a[:2] if seen_a[0] < 255 else (127, 127)))
    low_b, high_b = (max(x - 127, operands[1].emin) for x in (seen_b[:2] if seen_b[0] < 255 else (127, 127)))
    large = high_a + high_b >= LARGE
    careful = large or not (seen_a[2] and seen_b[2])
    # Where the least exponents are not too low then, operands and products have all their bits in normal numbers.
    shift_a, shift_b = _HIGHEST - high_a, _HIGHEST - high_b
    low_a, low_b = low_a + shift_a, low_b + shift_b
    if sum(operand.p for operand in operands) <= 24 and not large and min(low_a, low_b, low_a + low_b) >= _LEAST:
        return _Lanes(False, shift_a, shift_b, careful)
    return _Lanes(True, 0, 0, careful)


def _panels(
    words_a: Words,
    words_b: Words,
    words_c: Words | None,
    unit: Floored,
    operands: tuple[Operand, Operand],
    groups: int,
    lanes: _Lanes,
) -> Words:
    """Return the words of the results, computed in lanes. K is filled up to whole blocks, N to whole panels."""
    (m, k), n = words_a.shape, words_b.shape[1]
    depth = max(-(-k // unit.block_length), 1) * unit.block_length
    count = max(-(-n // _PANEL), 1)
    width = -(-max(n, 1) // (count * 16)) * 16
    floats = np.float64 if lanes.double else np.float32
    a, ea = np.empty((1, m, depth), floats), np.empty((1, m, depth), np.int16)
    b, eb = np.empty((count, depth, width), floats), np.empty((count, depth, width), np.int16)
    acc = np.zeros((m, count * width), np.int32)
    if words_c is not None:
        acc[:, :n] = words_c
    zero = _NO_EXPONENT if unit.drop_zeros else ZERO_EXPONENT
    with _arithmetic():
        pack_floats(words_a, operands[0].emin, lanes.shift_a, zero, a, ea)
        pack_floats(words_b, operands[1].emin, lanes.shift_b, zero, b, eb)
    hints = find_hints(words_a, words_b, depth, eb) if lanes.careful else no_hints()
    least = _LEAST_DOUBLE if lanes.double else _LEAST
    bits = unit.product_bits, unit.sum_bits, unit.accumulator_bits, unit.accumulator_reach
    numbers = FlooredNumbers(*map(np.int32, (*bits, lanes.shift_a + lanes.shift_b, least)))
    floored_rows = make_floored_rows(unit.block_length, groups, lanes.double, lanes.careful)
    results = acc.view(np.float32)

    def task(start: int, stop: int) -> None:
        rows = slice(start, stop)
        with _arithmetic():
            floored_rows(a[0, rows], ea[0, rows], b, eb, results[rows], numbers, hints.of_rows(rows))

    in_ranges(task, m, max(_WORK // b.size, 1))
    return np.ascontiguousarray(acc[:, :n])


@contextlib.contextmanager
def _arithmetic() -> Iterator[None]:
    """Compute with the processor's default rounding; plain Python says nothing of overflow, which is meant."""
    with default_environment(), np.errstate(over="ignore", invalid="ignore"):
        yield
