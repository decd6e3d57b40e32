"""The fused dot product of a matrix unit on 64-bit integers: any input format, any numbers, any operand.

Slow and general. `mpsim_kernels.gemm` has the fast path for inputs whose exponents lie close together; this one
takes everything else, and is itself checked against an exact rational twin.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.words import Words

__all__ = [
    "DROPPED",
    "INF_EXPONENT",
    "NAN_EXPONENT",
    "NAN_WORD",
    "FusedDot",
    "Operand",
    "Words",
    "fused_rows",
    "general_gemm",
    "split_floats",
    "split_matrix",
    "split_word",
]

INF_EXPONENT = 10_000
"""Exponent that `split_floats` gives an infinity; its significand is the sign, 1 or -1."""
NAN_EXPONENT = 30_000
"""Exponent that `split_floats` gives a NaN."""
DROPPED = -(1 << 20)
"""``zero_exponent`` of the units in which a zero takes no part: below every floor."""
NAN_WORD = 0x7FFFFFFF
"""The one NaN of NVIDIA's units, as the word of a float32."""

_WORK = 1 << 16  # products worth a thread


class FusedDot(NamedTuple):
    """The numbers of a fused dot product: one block is ``c`` and ``block_length`` products, summed exactly.

    Every term is first cut, toward zero, to a multiple of ``2**(emax - fraction_bits)``, where ``emax`` is the
    largest exponent of a term, at least ``floor``.
    """

    block_length: int
    fraction_bits: int
    floor: int
    p: int
    """Significand bits of the result."""
    emin: int
    """Smallest normal exponent of the result, and of the accumulator."""
    emax: int
    """Exponent from which on a result is infinite, less one."""
    nearest: bool
    """Whether the result is rounded to nearest even; if not, toward zero."""
    zero_exponent: int = DROPPED
    """Exponent of a zero, be it an operand of a product or the accumulator."""


class Operand(NamedTuple):
    """What the kernels must know about an operand's format."""

    p: int
    """Significand bits, the hidden bit included."""
    emin: int
    """Exponent of subnormals, which stay unnormalised."""


@inner_kernel
def split_word(word: Any, emin: Any) -> Any:
    """Return signed significand and exponent of a float32 word in an int64: value = sig * 2**(exponent - 23)."""
    field = (word >> 23) & 255
    sig = word & 0x7FFFFF
    e = max(field, np.int64(1)) - 127
    if field == 255:
        e = np.int64(NAN_EXPONENT if sig != 0 else INF_EXPONENT)
        sig = np.int64(1)
    else:
        if field != 0:
            sig = sig | (1 << 23)
        if e < emin:
            sig = sig >> min(emin - e, 63)  # exact: the number is a multiple of its format's quantum
            e = emin
    return (-sig if word >> 31 else sig), e


@kernel
def split_floats(words: Any, emin: Any, sigs: Any, exponents: Any) -> None:
    """Split float32 words into signed 24-bit significands and exponents: value = sig * 2**(exponent - 23).

    Numbers below ``2**emin``, subnormal in their own format, get the exponent ``emin`` and a significand
    without leading one. All arguments but ``emin`` are contiguous and of the same length: words uint32,
    sigs int32, exponents int16.
    """
    for i in range(words.size):
        sig, e = split_word(np.int64(words[i]), np.int64(emin))
        sigs[i] = np.int32(sig)
        exponents[i] = np.int16(e)


@inner_kernel
def _align(sig: Any, shift: Any) -> Any:
    """Return ``sig * 2**shift`` without its fraction, cut toward zero on the magnitude."""
    if shift >= 0:
        return sig << shift
    right = min(-shift, 63)
    return -((-sig) >> right) if sig < 0 else sig >> right


@inner_kernel
def _bit_length(x: Any) -> Any:
    """Return the bit length of a nonnegative int64."""
    n = np.int64(0)
    for step in (32, 16, 8, 4, 2, 1):
        if x >> step:
            x = x >> step
            n += step
    return n + x


@inner_kernel
def _result(total: Any, e: Any, unit: Any) -> Any:
    """Return ``total * 2**e``, rounded once to the result's significand, as the int64 word of a float32."""
    magnitude = abs(total)
    if magnitude == 0:
        return np.int64(0)
    # The quantum of the result, in units of 2**e. Nothing is lost where it is smaller than the unit.
    shift = max(_bit_length(magnitude) - unit.p, unit.emin - (unit.p - 1) - e)
    if shift > 62:
        return np.int64(0)  # even half the quantum is far above the magnitude
    if shift > 0:
        sig = magnitude >> shift
        rest = magnitude - (sig << shift)
        half = np.int64(1) << (shift - 1)
        if unit.nearest and (rest > half or (rest == half and sig & 1)):
            sig += 1
        magnitude, e = sig, e + shift
        if sig == 0:
            return np.int64(0)  # the sign goes with the number
    sign = np.int64(1 << 31) if total < 0 else np.int64(0)
    length = _bit_length(magnitude)
    exponent = e + length - 1
    if exponent > unit.emax:
        return sign | (255 << 23)
    # The magnitude is a multiple of the quantum, so neither shift to float32's own place loses a bit.
    place = max(exponent, -126) - 23 - e
    sig = magnitude << -place if place < 0 else magnitude >> place
    return sign | (((exponent + 126) << 23) + sig if exponent >= -126 else sig)


@inner_kernel
def _dot(a: Any, ea: Any, b: Any, eb: Any, word: Any, infinite: Any, unit: Any) -> Any:
    """Return the word of the accumulator after all blocks of one dot product.

    ``infinite`` is the sign of the infinite products if it is known and all are of one sign, else 0.
    """
    k, length = a.size, unit.block_length
    for start in range(0, max(k, 1), length):
        stop = min(start + length, k)
        c, ec = split_word(word, np.int64(unit.emin))
        largest = ec if c != 0 else np.int64(unit.zero_exponent)
        plus = ec == INF_EXPONENT and c > 0
        minus = ec == INF_EXPONENT and c < 0
        nan = ec == NAN_EXPONENT
        for i in range(start, stop):
            e = np.int64(ea[i]) + np.int64(eb[i])
            sig = np.int64(a[i]) * np.int64(b[i])
            if e >= INF_EXPONENT // 2:  # an infinity or a NaN in a or in b
                nan |= max(ea[i], eb[i]) == NAN_EXPONENT or sig == 0
                plus |= sig > 0
                minus |= sig < 0
            if sig == 0:
                e = np.int64(ea[i]) if a[i] != 0 else np.int64(unit.zero_exponent)
                e += np.int64(eb[i]) if b[i] != 0 else np.int64(unit.zero_exponent)
            largest = max(largest, e)
        if nan or (plus and minus):
            return np.int64(NAN_WORD)
        if plus or minus:
            # Nothing finite changes an infinity; a later NaN or opposite infinity does.
            word = np.int64((0x1FF if minus else 0xFF) << 23)
            if infinite != 0:
                # Nothing can follow but infinities of the known sign, and one does if none was there before.
                return word if minus == (infinite < 0) else np.int64(NAN_WORD)
            continue
        largest = max(largest, np.int64(unit.floor))
        total = _align(c, ec - largest + unit.fraction_bits - 23) if c != 0 else np.int64(0)
        for i in range(start, stop):
            sig = np.int64(a[i]) * np.int64(b[i])
            if sig != 0:
                e = np.int64(ea[i]) + np.int64(eb[i])
                total += _align(sig, e - largest + unit.fraction_bits - 46)
        word = _result(total, largest - unit.fraction_bits, unit)
    return word


@kernel
def fused_rows(a: Any, ea: Any, b: Any, eb: Any, c: Any, where: Any, d: Any, unit: Any) -> None:
    """Write the words of ``a @ b + c`` in ``d``, in blocks of consecutive k with the accumulator between them.

    Parameters
    ----------
    a, ea : int32 and int16 [M, K]
        Significands and exponents from `split_floats`.
    b, eb : int32 and int16 [N, K]
        The same of the transposed right operand.
    c, d : uint32 [M, N]
        Words of float32: accumulators, which are values of the result's format, and results.
    where : int8 [M, N]
        0 where no result is wanted; 2 or -2 where there are infinite products, all of this sign and none of them
        NaN, and the accumulator is finite; else 1.
    unit : FusedDot
        ``fraction_bits`` of at most 46, so that no sum leaves 64 bits.
    """
    for i in range(d.shape[0]):
        for j in range(d.shape[1]):
            if where[i, j] != 0:
                infinite = np.int64(where[i, j] if where[i, j] != 1 else 0)
                d[i, j] = np.uint32(_dot(a[i], ea[i], b[j], eb[j], np.int64(c[i, j]), infinite, unit))


def general_gemm(
    words_a: Words,
    words_b: Words,
    words_c: Words | None,
    unit: FusedDot,
    operands: tuple[Operand, Operand],
    where: NDArray[np.int8] | None = None,
) -> Words:
    """Return ``a @ b + c`` for any unit and any numbers.

    Parameters
    ----------
    words_a, words_b, words_c : int32 [M, K], [K, N] and [M, N], contiguous
        Words of float32: values of the operands' and of the result's format. None is zero.
    unit : FusedDot
    operands : pair of Operand
    where : int8 [M, N], optional
        As for `fused_rows`; results that are not wanted are undefined.

    Returns
    -------
    d : int32 [M, N]
        Words of float32.
    """
    shape = words_a.shape[0], words_b.shape[1]
    a, ea = split_matrix(words_a, operands[0])
    b, eb = split_matrix(np.ascontiguousarray(words_b.T), operands[1])
    c = (np.zeros(shape, np.int32) if words_c is None else words_c).view(np.uint32)
    d = np.empty(shape, np.uint32)
    wanted = np.ones(shape, np.int8) if where is None else where

    def task(start: int, stop: int) -> None:
        rows = slice(start, stop)
        fused_rows(a[rows], ea[rows], b, eb, c[rows], wanted[rows], d[rows], unit)

    in_ranges(task, shape[0], max(_WORK // max(b.size, 1), 1))
    return d.view(np.int32)


def split_matrix(words: Words, operand: Operand) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
    """Return the significands and exponents of a contiguous matrix, as `split_floats` gives them."""
    sigs, exponents = np.empty(words.shape, np.int32), np.empty(words.shape, np.int16)
    split_floats(words.reshape(-1).view(np.uint32), operand.emin, sigs.reshape(-1), exponents.reshape(-1))
    return sigs, exponents
