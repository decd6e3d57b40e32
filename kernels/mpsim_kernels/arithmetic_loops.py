"""Loops of arithmetic over arrays of codes.

Every loop takes contiguous arrays [n] of codes; an operand of one element stands for n equal ones. Codes of 64 bits
come as int64. ``mask`` (uint8 [n]) receives the flags of each element and ``counts`` (int64 [5]) how often each flag
was raised, in the order of their bits; an empty array means that nobody wants them. ``source`` and ``target`` are
int64 arrays in the order of the fields of `Layout` and `Target`.
"""

from typing import Any

import numpy as np

from mpsim_kernels._jit import inlined_kernel, inner_kernel, kernel
from mpsim_kernels.arithmetic import (
    INEXACT,
    INVALID,
    Layout,
    Result,
    Target,
    exactly_zero,
    is_infinite,
    is_nan,
    is_negative,
    is_signalling,
    is_special,
    layout_of,
    magnitude,
    nan_of,
    nan_of_two,
    pack,
    pack_infinity,
    remainder,
    round_to_integral,
    target_of,
    to_integer,
    unpack,
)
from mpsim_kernels.significands import Int, bit_length

__all__ = [
    "compare_loop",
    "convert_loop",
    "extremum_loop",
    "from_integer_loop",
    "integral_loop",
    "look_up_loop",
    "record",
    "remainder_loop",
    "tally",
    "to_integer_loop",
]

_LESS, _EQUAL, _GREATER, _UNORDERED = 1, 2, 4, 8


@inlined_kernel
def tally(flags: Int, counts: Any) -> None:
    """Count the flags that one operation raised."""
    if counts.size and flags:
        for k in range(5):
            counts[k] += (flags >> k) & 1


@inlined_kernel
def record(flags: Int, i: Int, mask: Any, counts: Any) -> None:
    """Keep the flags of element i, and count them."""
    if mask.size:
        mask[i] = flags
    tally(flags, counts)


@kernel
def remainder_loop(x: Any, y: Any, out: Any, mask: Any, counts: Any, source: Any, target: Any) -> None:
    """Write IEEE remainders."""
    f, t = layout_of(source), target_of(target)
    xstep, ystep = np.int64(x.size == out.size), np.int64(y.size == out.size)
    for i in range(out.size):
        code, flags = remainder(np.int64(x[i * xstep]), np.int64(y[i * ystep]), f, t)
        out[i] = code
        record(flags, i, mask, counts)


@kernel
def look_up_loop(x: Any, y: Any, out: Any, mask: Any, counts: Any, codes: Any, flags: Any) -> None:
    """Write what tables of results and flags hold for pairs of 8-bit codes, at ``x * 256 + y``."""
    xstep, ystep = np.int64(x.size == out.size), np.int64(y.size == out.size)
    for i in range(out.size):
        pair = (np.int64(x[i * xstep]) << 8) | np.int64(y[i * ystep])
        out[i] = codes[pair]
        if mask.size or counts.size:
            record(np.int64(flags[pair]), i, mask, counts)


@kernel
def integral_loop(x: Any, out: Any, mask: Any, counts: Any, source: Any, target: Any, exact: Int) -> None:
    """Write numbers rounded to integers; ``exact`` is 1 where that raises inexact."""
    f, t = layout_of(source), target_of(target)
    for i in range(out.size):
        code, flags = round_to_integral(np.int64(x[i]), exact, f, t)
        out[i] = code
        record(flags, i, mask, counts)


# Comparisons and extrema.


@inlined_kernel
def _key(word: Int, f: Layout) -> Int:
    """Return an integer that orders codes as their numbers; both zeros give 0."""
    mag = magnitude(word, f)
    if mag < f.zero_below:
        mag = np.int64(0)
    return -mag if is_negative(word, f) else mag


@kernel
def compare_loop(x: Any, y: Any, out: Any, mask: Any, counts: Any, source: Any, wanted: Int, signalling: Int) -> None:
    """Write whether one of the ``wanted`` relations holds: 1 less, 2 equal, 4 greater, 8 unordered, or a sum of these.

    A NaN is invalid if it is signalling, or in any case where ``signalling`` is 1 (IEEE 754-2019, 5.11).
    """
    f = layout_of(source)
    xstep, ystep = np.int64(x.size == out.size), np.int64(y.size == out.size)
    for i in range(out.size):
        a, b = np.int64(x[i * xstep]), np.int64(y[i * ystep])
        flags = np.int64(0)
        if is_nan(a, f) or is_nan(b, f):
            relation = _UNORDERED
            if signalling or is_signalling(a, f) or is_signalling(b, f):
                flags = np.int64(INVALID)
        else:
            ka, kb = _key(a, f), _key(b, f)
            relation = _LESS if ka < kb else (_GREATER if ka > kb else _EQUAL)
        out[i] = (relation & wanted) != 0
        record(flags, i, mask, counts)


@inlined_kernel
def _extremum(a: Int, b: Int, larger: Int, by_magnitude: Int, number: Int, f: Layout, t: Target) -> Result:
    a_nan, b_nan = is_nan(a, f), is_nan(b, f)
    if a_nan or b_nan:
        if number and not (a_nan and b_nan):
            signalling = is_signalling(a, f) or is_signalling(b, f)
            return Result(b if a_nan else a, np.int64(INVALID if signalling else 0))
        return nan_of_two(a, b, f, t)
    # Twice the key leaves room for -0 < +0.
    ka, kb = 2 * _key(a, f) - is_negative(a, f), 2 * _key(b, f) - is_negative(b, f)
    if by_magnitude:
        ma, mb = abs(_key(a, f)), abs(_key(b, f))
        if ma != mb:
            ka, kb = ma, mb
    first = ka >= kb if larger else ka <= kb
    return Result(a if first else b, np.int64(0))


@kernel
def extremum_loop(
    x: Any,
    y: Any,
    out: Any,
    mask: Any,
    counts: Any,
    source: Any,
    target: Any,
    larger: Int,
    by_magnitude: Int,
    number: Int,
) -> None:
    """Write the smaller or ``larger`` of two numbers (IEEE 754-2019, 9.6).

    ``by_magnitude`` compares absolute values first; ``number`` prefers a number to a NaN.
    """
    f, t = layout_of(source), target_of(target)
    xstep, ystep = np.int64(x.size == out.size), np.int64(y.size == out.size)
    for i in range(out.size):
        a, b = np.int64(x[i * xstep]), np.int64(y[i * ystep])
        code, flags = _extremum(a, b, larger, by_magnitude, number, f, t)
        if magnitude(code, f) < f.zero_below and not is_nan(code, f):
            code, _ = exactly_zero(is_negative(code, f), t)
        out[i] = code
        record(flags, i, mask, counts)


# Conversions.


@inlined_kernel
def _convert(word: Int, f: Layout, t: Target) -> Result:
    if is_nan(word, f):
        return nan_of(word, f, t)
    negative, sig, e = unpack(word, f)
    if is_special(word, f):
        return pack_infinity(negative, t)
    if sig == 0:
        return exactly_zero(negative, t)
    return pack(negative, sig, e, t)


@kernel
def convert_loop(x: Any, out: Any, mask: Any, counts: Any, source: Any, target: Any) -> None:
    """Write codes of another format."""
    f, t = layout_of(source), target_of(target)
    for i in range(out.size):
        code, flags = _convert(np.int64(x[i]), f, t)
        out[i] = code
        record(flags, i, mask, counts)


@inlined_kernel
def _from_integer(x: Int, signed: Int, t: Target) -> Result:
    """Return the code of an integer; without ``signed`` the bits are those of a uint64."""
    if x == 0:
        return exactly_zero(np.int64(0), t)
    negative = np.int64(x < 0) & signed
    if x >> 62 == 0 or (negative and x >> 62 == -1 and x != np.int64(-1) << 62):
        return pack(negative, abs(x), np.int64(0), t)
    # 63 or 64 bits: two fewer are enough, the last one jams.
    if negative:
        x = -(x + 1)
        sig = (x >> 2) + np.int64(x & 3 == 3)  # of x + 1, which may not fit
        return pack(negative, sig | np.int64(x & 3 != 3), np.int64(2), t)
    sig = (x >> 2) & ((np.int64(1) << 62) - 1)
    return pack(negative, sig | np.int64(x & 3 != 0), np.int64(2), t)


@kernel
def from_integer_loop(x: Any, out: Any, mask: Any, counts: Any, target: Any, signed: Int) -> None:
    """Write codes of integers; ``x`` is int64, or uint64 seen as int64 with ``signed`` 0."""
    t = target_of(target)
    for i in range(out.size):
        code, flags = _from_integer(x[i], signed, t)
        out[i] = code
        record(flags, i, mask, counts)


@inner_kernel
def _fits(negative: Int, mag: Int, length: Int, bits: Int, signed: Int) -> bool:
    """Return whether an integer of a sign and ``length`` bits of magnitude fits ``bits`` bits."""
    if negative and mag != 0:
        power = mag & (mag - 1) == 0 if length < 64 else mag == np.int64(1) << 63
        return bool(signed and (length < bits or (length == bits and power)))
    return bool(length <= bits - signed)


@kernel
def to_integer_loop(
    x: Any,
    out: Any,
    mask: Any,
    counts: Any,
    source: Any,
    target: Any,
    bits: Int,
    signed: Int,
    exact: Int,
    beyond: Any,
) -> None:
    """Write integers of ``bits`` bits as int64 (a uint64 by its bits).

    ``beyond`` (int64 [3]) holds what takes the place of a NaN, of what is too large and of what is too small; all are
    invalid (IEEE 754-2019, 5.8). ``exact`` is 1 where a changed number raises inexact. The target says in which
    direction to round.
    """
    f, t = layout_of(source), target_of(target)
    for i in range(out.size):
        word = np.int64(x[i])
        negative, sig, e = unpack(word, f)
        length = bit_length(sig)
        rest = np.int64(0)
        flags = np.int64(INVALID)
        if is_nan(word, f):
            out[i] = beyond[0]
        else:
            fits = not is_infinite(word, f) and (sig == 0 or e + length <= 64)
            mag = sig
            if fits and e < 0:
                mag, rest = to_integer(negative, sig, e, t)
                length = bit_length(mag)
            elif fits and sig != 0:
                mag, length = sig << e, length + e
            if fits and _fits(negative, mag, length, bits, signed):
                out[i] = -mag if negative and length < 64 else mag
                flags = np.int64(INEXACT if rest != 0 and exact else 0)
            else:
                out[i] = beyond[2] if negative else beyond[1]
        record(flags, i, mask, counts)
