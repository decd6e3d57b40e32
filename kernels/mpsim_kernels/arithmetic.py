"""Arithmetic on codes of any format of 32 bits or less: the exact result on integers, rounded once.

Everything is an int64. A finite operand is ``(-1)**negative * sig * 2**e`` with ``sig < 2**30``; an operation works
out its exact result as such a triple with ``sig < 2**62`` (or one whose last bit stands for all that lies
below it, at least two bits under the last bit that can be kept), and `pack` rounds it. No float is touched, so neither
rounding direction nor flush bits of the processor can change anything.

Formats come in as numbers: a `Layout` says how a code is read, a `Target` how a result is rounded and written. Kernels
take both as int64 arrays in the order of the fields, so nothing is compiled anew for another format or mode.
"""

from typing import Any, NamedTuple

import numpy as np

from mpsim_kernels._jit import inlined_kernel, inner_kernel
from mpsim_kernels.significands import Int, bit_length, shift_right_jam

__all__ = [
    "DIVIDE_BY_ZERO",
    "INEXACT",
    "INVALID",
    "NAN_RULES",
    "OVERFLOW",
    "UNDERFLOW",
    "WAYS",
    "Layout",
    "Result",
    "Target",
    "add",
    "divide",
    "exactly_zero",
    "fused_multiply_add",
    "is_infinite",
    "is_nan",
    "is_negative",
    "is_signalling",
    "is_special",
    "layout_of",
    "magnitude",
    "multiply",
    "nan_of",
    "nan_of_two",
    "pack",
    "pack_infinity",
    "remainder",
    "round_to_integral",
    "rounds_up",
    "square_root",
    "target_of",
    "to_integer",
    "unpack",
]

INEXACT, UNDERFLOW, OVERFLOW, DIVIDE_BY_ZERO, INVALID = 1, 2, 4, 8, 16

WAYS = ("nearest-even", "nearest-away", "toward-zero", "away", "to-odd")
"""What a rounding direction means for a magnitude; up and down become toward-zero and away by the sign."""

NAN_RULES = ("default", "x86", "softfloat")
"""Which NaN comes out: the default one, or the first operand that is NaN; the last two differ in fma alone."""

_EVEN, _AWAY, _ZERO, _UP, _ODD = 0, 1, 2, 3, 4


class Layout(NamedTuple):
    """How a code is read."""

    m: Int
    """Fraction bits."""
    width: Int
    """Bits of a code without the sign."""
    signed: Int
    first_field: Int
    """Smallest exponent field of a number that has a field of its own: 1 with subnormals, else 0."""
    exponent: Int
    """Exponent of the last fraction bit for exponent field 0: -bias - m."""
    hidden_from: Int
    """Magnitudes from this on have a hidden bit."""
    zero_below: Int
    """Magnitudes below this count as zero (subnormal inputs read as zero); 0 reads every code as it is."""
    max_code: Int
    """Largest finite magnitude; what lies above is special."""
    inf_code: Int
    """Magnitude of infinity, or -1."""
    nan_word: Int
    """A NaN in the place of negative zero, or -1."""
    quiet: Int
    """The fraction bit that makes a NaN quiet; 0 where every NaN is."""


class Target(NamedTuple):
    """How a result is rounded and written. Whole codes where not said otherwise."""

    m: Int
    width: Int
    signed: Int
    emin: Int
    """Exponent of the smallest binade of normal numbers."""
    lowest: Int
    """Results of this exponent and above are normal and not in the gap around zero."""
    offset: Int
    """2**m in a format without subnormals, whose field 0 has a hidden bit; else 0."""
    has_zero: Int
    minus_zero: Int
    """Whether zero has a sign."""
    min_code: Int
    """Magnitude of the smallest positive number."""
    min_normal: Int
    """Magnitude of the smallest normal number."""
    max_code: Int
    over_plus: Int
    over_minus: Int
    inf_plus: Int
    inf_minus: Int
    has_inf: Int
    """Whether ``inf_plus`` and ``inf_minus`` are infinities."""
    nan: Int
    """The NaN that an invalid operation makes, or what stands for it."""
    nan_rule: Int
    """Index into `NAN_RULES`."""
    way_plus: Int
    """Index into `WAYS` for positive results."""
    way_minus: Int
    down: Int
    """Whether the direction is down, where x - x is -0."""
    before: Int
    """Whether tininess is detected before rounding."""
    flush: Int
    """Whether tiny results become zero."""


class Result(NamedTuple):
    """A code and the exceptions that it raised."""

    code: Int
    flags: Int


@inlined_kernel
def layout_of(n: Any) -> Layout:
    """Return the layout whose fields are the elements of an int64 array."""
    return Layout(n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10])


@inlined_kernel
def target_of(n: Any) -> Target:
    """Return the target whose fields are the elements of an int64 array."""
    return Target(
        n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11],
        n[12], n[13], n[14], n[15], n[16], n[17], n[18], n[19], n[20], n[21], n[22],
    )  # fmt: skip


# Reading codes.


@inlined_kernel
def is_negative(word: Int, f: Layout) -> Int:
    """Return the sign of a code, 0 or 1."""
    return (word >> f.width) & f.signed


@inlined_kernel
def magnitude(word: Int, f: Layout) -> Int:
    """Return a code without its sign."""
    return word & ~(np.int64(-1) << f.width)


@inlined_kernel
def is_special(word: Int, f: Layout) -> bool:
    """Return whether a code is an infinity or a NaN."""
    return bool(magnitude(word, f) > f.max_code or word == f.nan_word)


@inlined_kernel
def is_infinite(word: Int, f: Layout) -> bool:
    """Return whether a code is an infinity."""
    return bool(magnitude(word, f) == f.inf_code)


@inlined_kernel
def is_nan(word: Int, f: Layout) -> bool:
    """Return whether a code is a NaN."""
    return is_special(word, f) and not is_infinite(word, f)


@inlined_kernel
def is_signalling(word: Int, f: Layout) -> bool:
    """Return whether a code is a signalling NaN."""
    return f.quiet != 0 and (word & f.quiet) == 0 and is_nan(word, f)


@inlined_kernel
def unpack(word: Int, f: Layout) -> tuple[Int, Int, Int]:
    """Return sign, significand and exponent of a finite code; zero has significand 0."""
    mag = magnitude(word, f)
    sig = mag & ((np.int64(1) << f.m) - 1)
    if mag >= f.hidden_from:
        sig += np.int64(1) << f.m
    if mag < f.zero_below:
        sig = np.int64(0)
    return is_negative(word, f), sig, max(mag >> f.m, f.first_field) + f.exponent


# Rounding and writing results.


@inlined_kernel
def rounds_up(way: Int, rest: Int, k: Int, odd: Int) -> Int:
    """Return 1 if a magnitude goes up that has ``rest`` left in the ``k`` bits below its integer part, else 0.

    ``odd`` is the parity of the integer part; 0 <= k <= 62. An exact number (rest 0) stays in every way.
    """
    if way == _EVEN:
        return np.int64(2 * rest + odd > np.int64(1) << k)
    if way == _AWAY:
        return np.int64(2 * rest + 1 > np.int64(1) << k)
    if way == _ZERO:
        return np.int64(0)
    if way == _UP:
        return np.int64(rest != 0)
    return np.int64(rest != 0) & (odd ^ 1)


@inlined_kernel
def pack(negative: Int, sig: Int, e: Int, t: Target) -> Result:
    """Return the code of ``(-1)**negative * sig * 2**e`` rounded once, and its flags; 0 < sig < 2**62.

    Overflow is decided on the result rounded with unbounded exponent (IEEE 754-2019, 7.4). A negative number of an
    unsigned format is invalid unless it rounds to zero.
    """
    way = t.way_minus if negative else t.way_plus
    top = bit_length(sig) - 1
    if e + top >= t.lowest:
        # Exponent field and fraction are adjacent in a code, so a carry out of the fraction steps the exponent.
        k = max(top - t.m, np.int64(0))
        floor = (sig << max(t.m - top, np.int64(0))) >> k
        rest = sig & ((np.int64(1) << k) - 1)
        mag = ((e + top - t.emin) << t.m) + floor - t.offset
        mag += rounds_up(way, rest, k, mag & 1)
        flags = np.int64(rest != 0)
    else:
        mag, flags = _round_low(way, sig, e, top, t)
    if mag == 0 and t.has_zero:
        return Result((negative & t.minus_zero) << t.width, flags)
    if negative > t.signed:
        return Result(t.nan, np.int64(INVALID))
    if mag > t.max_code:
        return Result(t.over_minus if negative else t.over_plus, np.int64(OVERFLOW | INEXACT))
    return Result(mag | (negative << t.width), flags)


@inner_kernel
def _round_low(way: Int, sig: Int, e: Int, top: Int, t: Target) -> tuple[Int, Int]:
    """Return magnitude and flags of a number below, or just above, the smallest normal number."""
    # As if the exponent had no lower bound; such magnitudes go on below zero.
    k = max(top - t.m, np.int64(0))
    floor = (sig << max(t.m - top, np.int64(0))) >> k
    rest = sig & ((np.int64(1) << k) - 1)
    unbounded = ((e + top - t.emin) << t.m) + floor - t.offset
    rounded = unbounded + rounds_up(way, rest, k, unbounded & 1)
    # IEEE 754-2019, 7.5: which of the two detects tininess is the implementation's choice.
    tiny = (unbounded if t.before else rounded) < t.min_normal
    underflow = np.int64(UNDERFLOW if tiny else 0)
    if tiny and t.flush:
        return np.int64(0), np.int64(UNDERFLOW | INEXACT)
    if t.offset == 0:
        # The quantum is fixed: the bits to drop are counted from it.
        k = t.emin - t.m - e
        if k <= 0:
            return sig << -k, np.int64(0)
        if k > 62:  # sig < 2**62 is then less than half a quantum
            k, sig = np.int64(62), np.int64(1)
        mag = sig >> k
        rest = sig & ((np.int64(1) << k) - 1)
        mag += rounds_up(way, rest, k, mag & 1)
        return mag, (INEXACT | underflow) if rest else np.int64(0)
    if unbounded >= t.min_code:
        return rounded, np.int64(rest != 0)
    up = np.int64(1)
    if t.has_zero:
        up = _leaves_gap(way, sig, e, top, t)
    return (t.min_code if up else np.int64(0)), INEXACT | underflow


@inner_kernel
def _leaves_gap(way: Int, sig: Int, e: Int, top: Int, t: Target) -> Int:
    """Return 1 if a number between zero and the smallest number goes up to that, in a format without subnormals."""
    if way == _ZERO:
        return np.int64(0)
    if way in (_UP, _ODD):  # the smallest number has the odd code 1
        return np.int64(1)
    if e + top < t.emin - 1:
        return np.int64(0)
    # Against half the smallest number, which is (2**m + min_code) * 2**(emin - m - 1); the shifts are short.
    d = e - (t.emin - t.m - 1)
    ours = sig << max(d, np.int64(0))
    half = ((np.int64(1) << t.m) + t.min_code) << max(-d, np.int64(0))
    return np.int64(ours > half or (ours == half and way == _AWAY))


@inlined_kernel
def exactly_zero(negative: Int, t: Target) -> Result:
    """Return the code of an exact zero; a format without zero gives its smallest number, inexactly."""
    if t.has_zero:
        return Result((negative & t.minus_zero) << t.width, np.int64(0))
    return Result(t.min_code | ((negative & t.signed) << t.width), np.int64(INEXACT))


@inner_kernel
def pack_infinity(negative: Int, t: Target) -> Result:
    """Return the code of an exact infinity; where there is none, or none is wanted, it overflows."""
    if negative > t.signed:
        return Result(t.nan, np.int64(INVALID))
    code = t.inf_minus if negative else t.inf_plus
    return Result(code, np.int64(0 if t.has_inf else OVERFLOW | INEXACT))


@inner_kernel
def nan_of(word: Int, f: Layout, t: Target) -> Result:
    """Return the NaN that a NaN operand gives: the default one, or its own payload made quiet."""
    flags = np.int64(INVALID if is_signalling(word, f) else 0)
    if t.nan_rule == 0:
        return Result(t.nan, flags)
    # The payload's highest bits are kept.
    fraction = word & ((np.int64(1) << f.m) - 1)
    up = t.m - f.m
    fraction = fraction << up if up >= 0 else fraction >> -up
    quiet = (t.max_code + 1) | (np.int64(1) << (t.m - 1))
    return Result(quiet | fraction | (is_negative(word, f) << t.width), flags)


@inner_kernel
def nan_of_two(x: Int, y: Int, f: Layout, t: Target) -> Result:
    """Return the NaN of two operands, one of which is NaN: the first's, where payloads are kept."""
    code, _ = nan_of(x if is_nan(x, f) else y, f, t)
    return Result(code, np.int64(INVALID if is_signalling(x, f) or is_signalling(y, f) else 0))


@inner_kernel
def _invalid(t: Target) -> Result:
    return Result(t.nan, np.int64(INVALID))


@inner_kernel
def _sum_of_zeros(x: Int, y: Int, t: Target) -> Result:
    """Return the zero that zeros of two signs, or x - x, add up to (IEEE 754-2019, 6.3)."""
    return exactly_zero(x if x == y else t.down, t)


# Operations: codes in, a code and flags out.


@inner_kernel
def add(x: Int, y: Int, minus: Int, f: Layout, t: Target) -> Result:
    """Return ``x + y``, or ``x - y`` where ``minus`` is 1 (IEEE 754-2019, 5.4.1)."""
    if is_special(x, f) or is_special(y, f):
        return _add_special(x, y, minus, f, t)
    xs, xsig, xe = unpack(x, f)
    ys, ysig, ye = unpack(y, f)
    ys ^= minus
    if xe < ye:
        xs, xsig, xe, ys, ysig, ye = ys, ysig, ye, xs, xsig, xe
    # The operand of larger exponent is normal. 30 bits below its last are enough for rounding, the rest jams.
    d = xe - ye
    up = min(d, np.int64(30))
    larger = xsig << up
    smaller = shift_right_jam(ysig, d - up)
    total = (-larger if xs else larger) + (-smaller if ys else smaller)
    if total == 0:
        return _sum_of_zeros(xs, ys, t) if xsig == 0 else exactly_zero(t.down, t)
    return pack(np.int64(total < 0), abs(total), xe - up, t)


@inner_kernel
def _add_special(x: Int, y: Int, minus: Int, f: Layout, t: Target) -> Result:
    if is_nan(x, f) or is_nan(y, f):
        return nan_of_two(x, y, f, t)
    xs, ys = is_negative(x, f), is_negative(y, f) ^ minus
    if is_infinite(x, f) and is_infinite(y, f) and xs != ys:
        return _invalid(t)
    return pack_infinity(xs if is_infinite(x, f) else ys, t)


@inner_kernel
def multiply(x: Int, y: Int, f: Layout, t: Target) -> Result:
    """Return ``x * y`` (IEEE 754-2019, 5.4.1)."""
    if is_special(x, f) or is_special(y, f):
        return _multiply_special(x, y, f, t)
    xs, xsig, xe = unpack(x, f)
    ys, ysig, ye = unpack(y, f)
    sig = xsig * ysig
    if sig == 0:
        return exactly_zero(xs ^ ys, t)
    return pack(xs ^ ys, sig, xe + ye, t)


@inner_kernel
def _multiply_special(x: Int, y: Int, f: Layout, t: Target) -> Result:
    if is_nan(x, f) or is_nan(y, f):
        return nan_of_two(x, y, f, t)
    if _is_zero(x, f) or _is_zero(y, f):
        return _invalid(t)
    return pack_infinity(is_negative(x, f) ^ is_negative(y, f), t)


@inner_kernel
def _is_zero(word: Int, f: Layout) -> bool:
    """Return whether a code that is not NaN is zero, or read as zero."""
    return bool(magnitude(word, f) < max(f.zero_below, np.int64(f.hidden_from > 0)))


@inner_kernel
def divide(x: Int, y: Int, f: Layout, t: Target) -> Result:
    """Return ``x / y`` (IEEE 754-2019, 5.4.1)."""
    if is_special(x, f) or is_special(y, f):
        return _divide_special(x, y, f, t)
    xs, xsig, xe = unpack(x, f)
    ys, ysig, ye = unpack(y, f)
    if ysig == 0:
        if xsig == 0:
            return _invalid(t)
        code, flags = pack_infinity(xs ^ ys, t)
        return Result(code, flags | DIVIDE_BY_ZERO)
    if xsig == 0:
        return exactly_zero(xs ^ ys, t)
    # Both significands at 30 bits: the quotient has 32 or 33 bits, and one more says whether it is exact.
    xup, yup = 30 - bit_length(xsig), 30 - bit_length(ysig)
    numerator = np.uint64(xsig << (xup + 32))
    denominator = np.uint64(ysig << yup)
    quotient = numerator // denominator
    sig = np.int64(quotient << np.uint64(1)) | np.int64(quotient * denominator != numerator)
    return pack(xs ^ ys, sig, xe - xup - ye + yup - 33, t)


@inner_kernel
def _divide_special(x: Int, y: Int, f: Layout, t: Target) -> Result:
    if is_nan(x, f) or is_nan(y, f):
        return nan_of_two(x, y, f, t)
    negative = is_negative(x, f) ^ is_negative(y, f)
    if not is_infinite(y, f):
        return pack_infinity(negative, t)  # a zero divisor too: infinity / 0 is exact
    return _invalid(t) if is_infinite(x, f) else exactly_zero(negative, t)


@inner_kernel
def square_root(x: Int, f: Layout, t: Target) -> Result:
    """Return the square root of ``x`` (IEEE 754-2019, 5.4.1); that of -0 is -0."""
    if is_nan(x, f):
        return nan_of(x, f, t)
    negative = is_negative(x, f)
    if is_special(x, f):
        return _invalid(t) if negative else pack_infinity(negative, t)
    _, sig, e = unpack(x, f)
    if sig == 0:
        return exactly_zero(negative, t)
    if negative:
        return _invalid(t)
    # Digit by digit: two bits of the radicand for each bit of the root, p + 2 of these, the first of which is 1.
    top = bit_length(sig) - 1
    radicand = sig << (60 - top + ((e + top) & 1))  # the leading pair is 01 for an even exponent, else 1x
    root = rest = np.int64(0)
    digits = t.m + 3
    for i in range(digits):
        pair = (radicand >> (60 - 2 * i)) & 3 if i <= 30 else np.int64(0)
        rest = (rest << 2) | pair
        trial = (root << 2) | 1
        root <<= 1
        if rest >= trial:
            rest -= trial
            root |= 1
    return pack(np.int64(0), (root << 1) | np.int64(rest != 0), ((e + top) >> 1) - digits, t)


@inner_kernel
def fused_multiply_add(x: Int, y: Int, z: Int, f: Layout, t: Target) -> Result:
    """Return ``x * y + z``, rounded once (IEEE 754-2019, 5.4.1)."""
    if is_special(x, f) or is_special(y, f) or is_special(z, f):
        return _fused_special(x, y, z, f, t)
    xs, xsig, xe = unpack(x, f)
    ys, ysig, ye = unpack(y, f)
    zs, zsig, ze = unpack(z, f)
    ps, psig, pe = xs ^ ys, xsig * ysig, xe + ye
    if psig == 0:
        return _sum_of_zeros(ps, zs, t) if zsig == 0 else pack(zs, zsig, ze, t)
    if zsig == 0:
        return pack(ps, psig, pe, t)
    # Both at 61 bits. The product has at most 60 of its own and the addend 30, so that nothing is shifted out where
    # the exponents differ by 0 or 1 and bits can cancel; farther apart, the smaller one jams.
    up = 61 - bit_length(psig)
    psig, pe = psig << up, pe - up
    up = 61 - bit_length(zsig)
    zsig, ze = zsig << up, ze - up
    e = max(pe, ze)
    psig, zsig = shift_right_jam(psig, e - pe), shift_right_jam(zsig, e - ze)
    total = (-psig if ps else psig) + (-zsig if zs else zsig)
    if total == 0:
        return exactly_zero(t.down, t)
    return pack(np.int64(total < 0), abs(total), e, t)


@inner_kernel
def _fused_special(x: Int, y: Int, z: Int, f: Layout, t: Target) -> Result:
    """Return fma where an operand is an infinity or a NaN.

    Infinity times zero plus a quiet NaN may or may not be invalid (IEEE 754-2019, 7.2). Under the x86 rule the NaN
    comes out and nothing is raised; otherwise it is invalid and gives the default NaN.
    """
    signalling = is_signalling(x, f) or is_signalling(y, f) or is_signalling(z, f)
    flags = np.int64(INVALID if signalling else 0)
    if is_nan(x, f) or is_nan(y, f):
        code, _ = nan_of_two(x, y, f, t)
        return Result(code, flags)
    infinite = is_infinite(x, f) or is_infinite(y, f)
    no_product = infinite and (_is_zero(x, f) or _is_zero(y, f))
    if no_product and t.nan_rule != 1:
        return _invalid(t)
    if is_nan(z, f):
        code, _ = nan_of(z, f, t)
        return Result(code, flags)
    ps, zs = is_negative(x, f) ^ is_negative(y, f), is_negative(z, f)
    if no_product or (infinite and is_infinite(z, f) and ps != zs):
        return _invalid(t)
    return pack_infinity(ps if infinite else zs, t)


@inner_kernel
def remainder(x: Int, y: Int, f: Layout, t: Target) -> Result:
    """Return ``x - y * n`` with n the integer nearest to x / y, ties to even (IEEE 754-2019, 5.3.1)."""
    if is_nan(x, f) or is_nan(y, f):
        return nan_of_two(x, y, f, t)
    if is_infinite(x, f) or _is_zero(y, f):
        return _invalid(t)
    negative, rest, e = unpack(x, f)
    if rest == 0:
        return exactly_zero(negative, t)
    if is_infinite(y, f):
        return pack(negative, rest, e, t)
    _, ysig, ye = unpack(y, f)
    if e + 1 < ye:  # y is normal, so that x is less than half of it
        return pack(negative, rest, e, t)
    if e < ye:
        ysig, ye = ysig << 1, e
    # Long division, 30 bits at a time; of the quotient only the parity matters.
    quotient = rest // ysig
    rest -= quotient * ysig
    bits = e - ye
    while bits > 0:
        step = min(bits, np.int64(30))
        quotient = (rest << step) // ysig
        rest = (rest << step) - quotient * ysig
        bits -= step
    if 2 * rest + (quotient & 1) > ysig:
        negative, rest = negative ^ 1, ysig - rest
    if rest == 0:
        return exactly_zero(negative, t)
    return pack(negative, rest, ye, t)


@inner_kernel
def round_to_integral(x: Int, exact: Int, f: Layout, t: Target) -> Result:
    """Return ``x`` rounded to an integer in the target's direction (IEEE 754-2019, 5.9).

    Inexact is raised where ``exact`` is 1 and the result differs from ``x``. To-odd takes the odd neighbour.
    """
    if is_nan(x, f):
        return nan_of(x, f, t)
    negative = is_negative(x, f)
    if is_special(x, f):
        return pack_infinity(negative, t)
    _, sig, e = unpack(x, f)
    rest = np.int64(0)
    if e < 0 and sig != 0:
        sig, rest = to_integer(negative, sig, e, t)
        e = np.int64(0)
    code, flags = exactly_zero(negative, t) if sig == 0 else pack(negative, sig, e, t)
    return Result(code, flags | (INEXACT if rest != 0 and exact else 0))


@inner_kernel
def to_integer(negative: Int, sig: Int, e: Int, t: Target) -> tuple[Int, Int]:
    """Return ``sig * 2**e`` rounded to an integer in the target's direction, and what was left; e < 0."""
    way = t.way_minus if negative else t.way_plus
    k = -e
    if k > 62:
        k, sig = np.int64(62), np.int64(sig != 0)
    floor = sig >> k
    rest = sig & ((np.int64(1) << k) - 1)
    return floor + rounds_up(way, rest, k, floor & 1), rest
