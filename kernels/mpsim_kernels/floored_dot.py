"""Floored dot products on 64-bit integers: any operand, any numbers of the unit.

Slow and general. `mpsim_kernels.floored` has the fast path; this one takes everything else, and is itself checked
against an exact rational twin.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.fused_dot import INF_EXPONENT, NAN_EXPONENT, Operand, Words, split_matrix, split_word
from mpsim_kernels.significands import bit_length

__all__ = ["FLOORED_NAN", "ZERO_EXPONENT", "general_floored_gemm"]

FLOORED_NAN = 0x7FC00000
"""Word of the one NaN returned; which one the units return is not published."""
ZERO_EXPONENT = -126
"""Exponent of a zero operand of any format, where zeros have one."""

_INF, _SIGN = 0x7F800000, 1 << 31
_NOTHING = -(1 << 20)  # below every exponent
_WORK = 1 << 16  # products worth a thread


def general_floored_gemm(
    words_a: Words,
    words_b: Words,
    words_c: Words | None,
    unit: Any,
    operands: tuple[Operand, Operand],
    groups: int,
) -> Words:
    """Return ``a @ b + c`` for any unit and any numbers.

    Parameters
    ----------
    words_a, words_b, words_c : int32 [M, K], [K, N] and [M, N], contiguous
        Words of float32. None is zero.
    unit : mpsim_kernels.floored.Floored
        No number of bits is above 44.
    operands : pair of Operand
    groups : int
        1, or 2 if products of even and of odd k are summed apart.

    Returns
    -------
    d : int32 [M, N]
        Words of float32.
    """
    shape = words_a.shape[0], words_b.shape[1]
    a, ea = _split(words_a, operands[0])
    b, eb = _split(np.ascontiguousarray(words_b.T), operands[1])
    c = (np.zeros(shape, np.int32) if words_c is None else words_c).view(np.uint32)
    d = np.empty(shape, np.uint32)

    def task(start: int, stop: int) -> None:
        rows = slice(start, stop)
        _rows(a[rows], ea[rows], b, eb, c[rows], unit, groups, d[rows])

    in_ranges(task, shape[0], max(_WORK // max(b.size, 1), 1))
    return d.view(np.int32)


def _split(words: Words, operand: Operand) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
    sigs, exponents = split_matrix(words, operand)
    exponents[sigs == 0] = ZERO_EXPONENT
    return sigs, exponents


@kernel
def _rows(a: Any, ea: Any, b: Any, eb: Any, c: Any, unit: Any, groups: Any, d: Any) -> None:
    """Write the words of ``a @ b + c`` in ``d``.

    ``a`` and ``ea``, ``b`` and ``eb`` are significands int32 and exponents int16 of the left operand [M, K] and of the
    transposed right one [N, K], as `split_matrix` gives them; ``c`` and ``d`` uint32 [M, N] are words of float32.
    """
    for i in range(d.shape[0]):
        for j in range(d.shape[1]):
            word = np.int64(c[i, j])
            for start in range(0, max(a.shape[1], 1), unit.block_length):
                k = slice(start, min(start + unit.block_length, a.shape[1]))
                word = _block(a[i, k], ea[i, k], b[j, k], eb[j, k], word, unit, groups)
            d[i, j] = np.uint32(word)


@inner_kernel
def _block(a: Any, ea: Any, b: Any, eb: Any, word: Any, unit: Any, groups: Any) -> Any:
    """Return the word of the accumulator after one block."""
    c, own = split_word(word, np.int64(-126))
    decided = _special(a, ea, b, eb, c, own)
    if decided != 0:
        return decided
    e, total = np.int64(_NOTHING), np.int64(0)
    for group in range(groups):
        highest = np.int64(_NOTHING)
        for i in range(group, a.size, groups):
            if (a[i] != 0 and b[i] != 0) or not unit.drop_zeros:
                highest = max(highest, np.int64(ea[i]) + np.int64(eb[i]))
        added = np.int64(0)
        for i in range(group, a.size, groups):
            sig, exponent = np.int64(a[i]) * np.int64(b[i]), np.int64(ea[i]) + np.int64(eb[i])
            if sig != 0:
                cut = _floor(abs(sig), exponent - highest + unit.product_bits - 46)
                added += -cut if sig < 0 else cut
        higher = max(e, highest)
        total = _floor(total, e - higher) + _floor(added, highest - higher)
        e = higher
    top = max(e, own)
    total = _floor(total, e - top + unit.sum_bits - unit.product_bits)
    acc = np.int64(0) if own < top - unit.accumulator_reach else _floor(c, own - top + unit.accumulator_bits - 23)
    bits = max(unit.sum_bits, unit.accumulator_bits)
    return _nearest((total << (bits - unit.sum_bits)) + (acc << (bits - unit.accumulator_bits)), top - bits)


@inner_kernel
def _floor(x: Any, shift: Any) -> Any:
    """Return ``x * 2**shift``, rounded toward minus infinity to an integer."""
    return x << shift if shift >= 0 else x >> min(-shift, 63)


@inner_kernel
def _special(a: Any, ea: Any, b: Any, eb: Any, c: Any, own: Any) -> Any:
    """Return the word of the infinity or NaN that decides a block, or 0."""
    plus, minus, nan = own == INF_EXPONENT and c > 0, own == INF_EXPONENT and c < 0, own == NAN_EXPONENT
    above: Any = np.bool_(False)
    below: Any = np.bool_(False)
    for i in range(a.size):
        sig, e = np.int64(a[i]) * np.int64(b[i]), np.int64(ea[i]) + np.int64(eb[i])
        places: Any = max(174 - e, np.int64(0))
        if e >= INF_EXPONENT // 2:  # an infinity or a NaN in a or in b
            nan |= max(ea[i], eb[i]) == NAN_EXPONENT or sig == 0
            plus |= sig > 0
            minus |= sig < 0
        elif e >= 127 and abs(sig) >> places != 0:  # the product, sig * 2**(e - 46), is 2**128 or more
            above |= sig > 0
            below |= sig < 0
    if nan or (plus and minus):
        return np.int64(FLOORED_NAN)
    if not (plus or minus):  # beside an infinity products of finite operands change nothing
        if above and below:
            return np.int64(FLOORED_NAN)
        plus, minus = above, below
    return np.int64(_INF) if plus else np.int64(_SIGN | _INF) if minus else np.int64(0)


@inner_kernel
def _nearest(total: Any, e: Any) -> Any:
    """Return the word of the float32 nearest to ``total * 2**e``, ties to even; a negative one keeps its sign."""
    magnitude = abs(total)
    if magnitude == 0:
        return np.int64(0)
    quantum = max(e + bit_length(magnitude) - 24, np.int64(-149))
    shift = quantum - e
    sig = np.int64(0)
    if shift <= 0:
        sig = magnitude << -shift
    elif shift <= 62:
        sig = magnitude >> shift
        rest, half = magnitude - (sig << shift), np.int64(1) << (shift - 1)
        sig += np.int64(rest > half or (rest == half and (sig & 1) == 1))
    # The hidden bit adds one to the field, and so does a carry; past the last finite number that gives infinity.
    word = min(((quantum + 149) << 23) + sig, np.int64(_INF))
    return word | np.int64(_SIGN if total < 0 else 0)
