"""Exact twin of ``mpsim.arithmetic``, in Python integers and fractions.

An operation gives an `Exact` result: a fraction, an infinity or a NaN, each with its sign, worked out as a textbook
does. `finish` turns it into a code by the twin of encoding and finds the flags by comparing with what came out.
"""

import functools
import math
from dataclasses import dataclass, replace
from fractions import Fraction

from mpsim.formats import FloatFormat
from reference import rounding as twin

INEXACT, UNDERFLOW, OVERFLOW, DIVIDE_BY_ZERO, INVALID = 1, 2, 4, 8, 16


@dataclass(frozen=True)
class How:
    """How results are rounded and written."""

    mode: str = "nearest-even"
    overflow: str = "ieee"
    tininess: str = "after"
    flush: bool = False
    zero_inputs: bool = False


@dataclass(frozen=True)
class Exact:
    """A result before rounding; ``flags`` are those that do not come from rounding."""

    kind: str
    negative: bool = False
    value: Fraction = Fraction(0)
    """Its absolute value, where finite."""
    flags: int = 0


NAN = Exact("nan")
NO_RESULT = Exact("nan", flags=INVALID)


def infinity(negative: bool) -> Exact:
    return Exact("infinite", negative)


def finite(value: Fraction, sign_of_zero: bool = False) -> Exact:
    return Exact("finite", value < 0 if value else sign_of_zero, abs(value))


# Operands.


@functools.cache
def operand(fmt: FloatFormat, code: int, zero_inputs: bool = False) -> Exact:
    """Return what a code stands for; ``flags`` is invalid for a signalling NaN."""
    number = twin.decode(fmt, code)
    if number.kind == "nan":
        quiet = fmt.specials != "ieee" or code >> (fmt.p - 2) & 1
        return NAN if quiet else NO_RESULT
    if number.kind == "infinite":
        return infinity(number.negative)
    value = Fraction(number.magnitude, 1 << twin.SCALE)
    if zero_inputs and value < smallest_normal(fmt):
        value = Fraction(0)
    return Exact("finite", number.negative, value)


@functools.cache
def smallest_normal(fmt: FloatFormat) -> Fraction:
    """Return the smallest normal number, or 0 where there are no subnormals to tell it from."""
    if not fmt.has_subnormals:
        return Fraction(0)
    return Fraction(twin.magnitude(fmt, twin.smallest_normal(fmt)), 1 << twin.SCALE)


def signed(x: Exact) -> Fraction:
    return -x.value if x.negative else x.value


def negated(x: Exact) -> Exact:
    return replace(x, negative=not x.negative)


def is_zero(x: Exact) -> bool:
    return x.kind == "finite" and x.value == 0


# Operations on operands; the mode matters for the sign of zero sums alone.


def nan_among(*operands: Exact) -> Exact | None:
    """Return a NaN if one operand is, invalid if one is signalling."""
    nans = [x for x in operands if x.kind == "nan"]
    return Exact("nan", flags=max(x.flags for x in nans)) if nans else None


def add(x: Exact, y: Exact, how: How) -> Exact:
    if nan := nan_among(x, y):
        return nan
    if x.kind == y.kind == "infinite":
        return x if x.negative == y.negative else NO_RESULT
    if "infinite" in (x.kind, y.kind):
        return x if x.kind == "infinite" else y
    two_like_zeros = is_zero(x) and is_zero(y) and x.negative == y.negative
    return finite(signed(x) + signed(y), x.negative if two_like_zeros else how.mode == "down")


def sub(x: Exact, y: Exact, how: How) -> Exact:
    return nan_among(x, y) or add(x, negated(y), how)


def mul(x: Exact, y: Exact, _how: How) -> Exact:
    if nan := nan_among(x, y):
        return nan
    negative = x.negative != y.negative
    if "infinite" in (x.kind, y.kind):
        return NO_RESULT if is_zero(x) or is_zero(y) else infinity(negative)
    return Exact("finite", negative, x.value * y.value)


def div(x: Exact, y: Exact, _how: How) -> Exact:
    if nan := nan_among(x, y):
        return nan
    negative = x.negative != y.negative
    if x.kind == y.kind == "infinite" or (is_zero(x) and is_zero(y)):
        return NO_RESULT
    if x.kind == "infinite":
        return infinity(negative)
    if y.kind == "infinite":
        return Exact("finite", negative)
    if is_zero(y):
        return replace(infinity(negative), flags=DIVIDE_BY_ZERO)
    return Exact("finite", negative, x.value / y.value)


def fma(x: Exact, y: Exact, z: Exact, how: How) -> Exact:
    """Return x * y + z; the product of infinity and zero is invalid even if z is a quiet NaN."""
    if nan := nan_among(x, y):
        return replace(nan, flags=max(nan.flags, z.flags))
    product = mul(x, y, how)
    if product.kind == "nan":
        return product
    return add(product, z, how)


def rem(x: Exact, y: Exact, _how: How) -> Exact:
    if nan := nan_among(x, y):
        return nan
    if x.kind == "infinite" or is_zero(y):
        return NO_RESULT
    if y.kind == "infinite":
        return x
    n = round(signed(x) / signed(y))  # Python's round: ties to even
    return finite(signed(x) - n * signed(y), x.negative)


def sqrt(x: Exact, _how: How) -> Exact:
    """Return the root, cut after so many bits that the last one can say that others follow."""
    if x.kind == "nan" or is_zero(x):
        return x
    if x.negative:
        return NO_RESULT
    if x.kind == "infinite":
        return x
    scale = 1 << 2 * twin.SCALE
    scaled = x.value * scale
    assert scaled.denominator == 1
    root = math.isqrt(scaled.numerator)
    if root * root == scaled:
        return Exact("finite", False, Fraction(root, 1 << twin.SCALE))
    return Exact("finite", False, Fraction(2 * root + 1, 2 << twin.SCALE))


def integral(x: Exact, how: How) -> Fraction:
    """Return a finite number rounded to an integer, with its sign."""
    floor, rest = divmod(signed(x), 1)
    if rest == 0:
        return Fraction(floor)
    match how.mode:
        case "nearest-even":
            return Fraction(round(signed(x)))
        case "nearest-away":
            return Fraction(floor + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and not x.negative)))
        case "toward-zero":
            return Fraction(floor + x.negative)
        case "up":
            return Fraction(floor + 1)
        case "down":
            return Fraction(floor)
        case "to-odd":
            return Fraction(floor + (floor % 2 == 0))
    raise AssertionError(how.mode)


def round_to_integral(x: Exact, how: How) -> Exact:
    return finite(integral(x, how), x.negative) if x.kind == "finite" else x


# Rounding and flags.


def to_scaled(value: Fraction) -> int:
    """Return value * 2**SCALE, made odd where it is not an integer.

    All numbers and midpoints of a format are multiples of 2 on that scale, so that the order against them is kept.
    """
    x, rest = divmod(value.numerator << twin.SCALE, value.denominator)
    return x | (rest != 0)


def is_tiny(fmt: FloatFormat, value: Fraction, negative: bool, how: How) -> bool:
    """Whether a result counts as tiny."""
    smallest = Fraction(twin.magnitude(fmt, twin.smallest_normal(fmt)), 1 << twin.SCALE)
    if value == 0 or value >= smallest:
        return False
    if how.tininess == "before" or value < smallest / 4:
        return True
    return twin.is_tiny(fmt, to_scaled(value), negative, how.mode)


def default_nan(fmt: FloatFormat) -> int:
    return twin.nan(fmt, negative=False)


@functools.lru_cache(maxsize=1 << 16)
def finish(fmt: FloatFormat, x: Exact, how: How) -> tuple[int, int]:
    """Return the code of an exact result, with the default NaN, and all its flags."""
    if x.kind == "nan":
        return default_nan(fmt), x.flags
    no_place = x.negative and not fmt.signed
    if x.kind == "infinite":
        if no_place:
            return default_nan(fmt), x.flags | INVALID
        code = twin.encode(fmt, twin.Number(x.negative, "infinite"), how.mode, how.overflow)
        return code, x.flags | (0 if twin.decode(fmt, code).kind == "infinite" else OVERFLOW | INEXACT)
    tiny = is_tiny(fmt, x.value, x.negative, how)
    if tiny and how.flush and fmt.has_subnormals:
        return twin.pack(fmt, 0, x.negative, how.mode, how.overflow), UNDERFLOW | INEXACT
    scaled = to_scaled(x.value)
    rounded = twin.round_magnitude(fmt, scaled, x.negative, how.mode)
    if no_place and x.value and (rounded or not fmt.has_zero):
        return default_nan(fmt), INVALID
    code = twin.encode(fmt, twin.Number(x.negative, "finite", scaled), how.mode, how.overflow)
    if rounded > twin.largest(fmt):
        return code, OVERFLOW | INEXACT
    exact = Fraction(twin.decode(fmt, code).magnitude, 1 << twin.SCALE) == x.value
    return code, 0 if exact else INEXACT | (UNDERFLOW if tiny else 0)


OPERATIONS = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "div": div,
    "rem": rem,
    "fma": fma,
    "sqrt": sqrt,
    "round_to_integral": round_to_integral,
}


def apply(name: str, fmt: FloatFormat, codes: tuple[int, ...], how: How) -> tuple[int, int]:
    """Return code and flags of an operation on codes; NaN results are the default one."""
    operands = [operand(fmt, code, how.zero_inputs) for code in codes]
    return finish(fmt, OPERATIONS[name](*operands, how), how)


def convert(source: FloatFormat, fmt: FloatFormat, code: int, how: How) -> tuple[int, int]:
    """Return code and flags of a number in another format."""
    return finish(fmt, operand(source, code, how.zero_inputs), how)


def to_integer(fmt: FloatFormat, code: int, bits: int, is_signed: bool, how: How) -> tuple[int | None, int]:
    """Return an integer, or None where there is none, and flags with inexact."""
    x = operand(fmt, code, how.zero_inputs)
    if x.kind != "finite":
        return None, INVALID
    n = integral(x, how)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
    if not low <= n <= high:
        return None, INVALID
    return int(n), 0 if n == signed(x) else INEXACT
