"""Exact twin of ``mpsim.encoding`` and ``mpsim.rounding``, in Python integers.

A finite number is held as the integer ``abs(value) * 2**SCALE``: with SCALE = 1200 every float64, every number of a
format that fits float64, and every half quantum is an integer, so comparing and dividing are exact.

Only the independent fields of a format are read (p, w, bias, specials, signed, has_subnormals, has_zero, saturates,
nan_to); what follows from them is worked out again here, so that an error in a derived
property of ``FloatFormat`` shows.
"""

import functools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from mpsim.formats import FloatFormat

SCALE = 1200
MODES = ("nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd")
EVENTS = (
    "elements",
    "zeros",
    "underflows",
    "subnormals",
    "overflows",
    "saturations",
    "inexact",
    "nans",
    "nans_made",
    "infinities",
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its sign, an infinity or a NaN."""

    negative: bool
    kind: Literal["finite", "infinite", "nan"]
    magnitude: int = 0
    """abs(value) * 2**SCALE where finite."""

    @property
    def fraction(self) -> Fraction:
        """The value; zero has lost its sign."""
        assert self.kind == "finite"
        return Fraction(-self.magnitude if self.negative else self.magnitude, 1 << SCALE)


def number(x: float) -> Number:
    """Return a Python float or int (of any size) as a Number."""
    if isinstance(x, int):
        return Number(x < 0, "finite", abs(x) << SCALE)
    negative = math.copysign(1.0, x) < 0
    if math.isnan(x):
        return Number(negative, "nan")
    if math.isinf(x):
        return Number(negative, "infinite")
    numerator, denominator = abs(x).as_integer_ratio()
    magnitude, rest = divmod(numerator << SCALE, denominator)
    assert rest == 0
    return Number(negative, "finite", magnitude)


# Codes without sign and what they stand for.


@functools.cache
def largest(fmt: FloatFormat) -> int:
    """Return the code of the largest finite number."""
    codes = 1 << (fmt.w + fmt.p - 1)
    match fmt.specials:
        case "ieee":  # the last exponent field holds no numbers
            return codes - (1 << (fmt.p - 1)) - 1
        case "fn":  # the last code is NaN
            return codes - 2
        case "fnuz" | "none":
            return codes - 1
        case "extended":  # the last code is infinity; without a sign bit NaN comes after it
            return codes - 2 if fmt.signed else codes - 3
    raise AssertionError(fmt.specials)


@functools.cache
def magnitude(fmt: FloatFormat, code: int) -> int:
    """Return the value of a code without sign; past the largest number the exponent just goes on."""
    field, fraction = divmod(code, 1 << (fmt.p - 1))
    if code == 0 and fmt.has_zero:
        return 0
    if field == 0 and fmt.has_subnormals:
        sig, e = fraction, 1 - fmt.bias
    else:
        sig, e = (1 << (fmt.p - 1)) + fraction, field - fmt.bias
    return sig << (SCALE + e - fmt.p + 1)


def smallest_normal(fmt: FloatFormat) -> int:
    """Return the code of the smallest normal number."""
    if fmt.has_subnormals:
        return 1 << (fmt.p - 1)
    return 1 if fmt.has_zero else 0


@functools.cache
def _magnitudes(fmt: FloatFormat) -> list[int]:
    return [magnitude(fmt, code) for code in range(largest(fmt) + 2)]


def below_by_search(fmt: FloatFormat, x: int) -> int:
    """Return the code of the largest number <= x, looking it up in the list of all numbers."""
    return max(bisect_right(_magnitudes(fmt), x) - 1, 0)


def below_by_division(fmt: FloatFormat, x: int) -> int:
    """Return the code of the largest number <= x, dividing by the quantum at x."""
    first = 1 if fmt.has_subnormals else 0  # field of the smallest binade
    field = max(x.bit_length() - 1 - SCALE + fmt.bias, first)
    sig = x >> (SCALE + field - fmt.bias - fmt.p + 1)
    return min(max(sig + ((field - 1) << (fmt.p - 1)), 0), largest(fmt) + 1)


def _away(mode: str, negative: bool, odd: bool, to_lower: int, to_upper: int) -> bool:
    """Whether a number strictly between two neighbours goes to the one of larger magnitude; odd: the lower is odd."""
    match mode:
        case "nearest-even":
            return to_lower > to_upper or (to_lower == to_upper and odd)
        case "nearest-away":
            return to_lower >= to_upper
        case "toward-zero":
            return False
        case "up":
            return not negative
        case "down":
            return negative
        case "to-odd":
            return not odd
    raise AssertionError(mode)


def round_magnitude(fmt: FloatFormat, x: int, negative: bool, mode: str) -> int:
    """Return the code of the rounded magnitude; ``largest(fmt) + 1`` says that it overflows."""
    code = below_by_search(fmt, x) if fmt.w + fmt.p <= 16 else below_by_division(fmt, x)
    lower = magnitude(fmt, code)
    # x < lower: below the smallest number of a format without zero. code > largest: overflow in any mode.
    if x <= lower or code > largest(fmt):
        return code
    return code + _away(mode, negative, code % 2 == 1, x - lower, magnitude(fmt, code + 1) - x)


def is_tiny(fmt: FloatFormat, x: int, negative: bool, mode: str) -> bool:
    """Whether x, rounded to p bits with unbounded exponent, is below the smallest normal number."""
    smallest = magnitude(fmt, smallest_normal(fmt))
    if x == 0 or x >= smallest:
        return False
    quantum = 1 << (x.bit_length() - fmt.p)
    sig, rest = divmod(x, quantum)
    odd = sig % 2 == 1 if fmt.p > 1 else (x.bit_length() - 1 - SCALE + fmt.bias) % 2 == 1
    if rest and _away(mode, negative, odd, rest, quantum - rest):
        sig += 1
    return sig * quantum < smallest


# Whole codes.


def sign_bit(fmt: FloatFormat) -> int:
    return 1 << (fmt.w + fmt.p - 1) if fmt.signed else 0


def nan(fmt: FloatFormat, negative: bool) -> int:
    """Return what a NaN becomes."""
    sign = sign_bit(fmt)
    match fmt.specials:
        case "ieee":  # quiet: the highest fraction bit set
            return (sign if negative else 0) | largest(fmt) + 1 + (1 << (fmt.p - 2))
        case "fn":
            return (sign if negative else 0) | largest(fmt) + 1
        case "fnuz" | "extended":
            return sign if fmt.signed else (1 << (fmt.w + fmt.p - 1)) - 1
        case "none":
            assert fmt.nan_to is not None
            return fmt.nan_to
    raise AssertionError(fmt.specials)


def _has_negative_zero(fmt: FloatFormat) -> bool:
    return fmt.signed and fmt.has_zero and fmt.specials in ("ieee", "fn", "none")


def pack(fmt: FloatFormat, code: int, negative: bool, mode: str, overflow: str) -> int:
    """Return the code with its sign of a rounded magnitude, ``largest(fmt) + 1`` meaning overflow."""
    top = largest(fmt)
    sign = sign_bit(fmt) if negative else 0
    if code == 0 and fmt.has_zero:
        return sign if _has_negative_zero(fmt) else 0
    if negative and not fmt.signed:
        return nan(fmt, negative)
    if code <= top:
        return sign | code
    if overflow == "saturate" or fmt.saturates or fmt.specials == "none":
        return sign | top
    match mode:
        case "nearest-even" | "nearest-away":
            beyond = True
        case "toward-zero":
            beyond = False
        case "up":
            beyond = not negative
        case "down":
            beyond = negative
        case "to-odd":  # where no odd code is in reach (fn), the largest number
            beyond = fmt.specials == "extended" and top % 2 == 0
    if not beyond:
        return sign | top
    return sign | top + 1 if fmt.specials in ("ieee", "extended") else nan(fmt, negative)


def encode(
    fmt: FloatFormat, x: Number, mode: str = "nearest-even", overflow: str = "ieee", flush_subnormals: bool = False
) -> int:
    """Return the code of a number."""
    if x.kind == "nan":
        return nan(fmt, x.negative)
    if not fmt.signed and x.kind == "finite" and x.magnitude == 0:
        x = Number(False, "finite")  # without a sign bit zero has no sign
    if x.negative and not fmt.signed and (x.kind == "infinite" or not fmt.has_zero):
        return nan(fmt, x.negative)
    sign = sign_bit(fmt) if x.negative else 0
    if x.kind == "infinite":
        if overflow == "saturate" or fmt.saturates or fmt.specials == "none":
            return sign | largest(fmt)
        return sign | largest(fmt) + 1 if fmt.specials in ("ieee", "extended") else nan(fmt, x.negative)
    code = round_magnitude(fmt, x.magnitude, x.negative, mode)
    # Where there are no subnormals there is nothing to flush.
    if flush_subnormals and fmt.has_subnormals and is_tiny(fmt, x.magnitude, x.negative, mode):
        code = 0
    return pack(fmt, code, x.negative, mode, overflow)


def decode(fmt: FloatFormat, code: int) -> Number:
    """Return what a code stands for."""
    sign = sign_bit(fmt)
    negative, rest = bool(code & sign), code & ~sign
    top = largest(fmt)
    if rest == 0 and negative and not _has_negative_zero(fmt) and fmt.has_zero:
        return Number(False, "nan")
    if rest <= top:
        return Number(negative, "finite", magnitude(fmt, rest))
    if rest == top + 1 and fmt.specials in ("ieee", "extended"):
        return Number(negative, "infinite")
    return Number(negative, "nan")


def to_float(x: Number) -> float:
    """Return a Number as a Python float, which must hold it exactly."""
    if x.kind == "nan":
        value = math.nan
    elif x.kind == "infinite":
        value = math.inf
    else:
        value = float(Fraction(x.magnitude, 1 << SCALE))
        assert Fraction(value) * (1 << SCALE) == x.magnitude
    return math.copysign(value, -1.0 if x.negative else 1.0)


def fits_float32(fmt: FloatFormat) -> bool:
    """Whether float32 holds the format: its largest number, its smallest quantum and its precision."""
    quantum = (1 if fmt.has_subnormals else 0) - fmt.bias - fmt.p + 1
    return fmt.p <= 24 and magnitude(fmt, largest(fmt)) >> SCALE < 1 << 128 and quantum >= -149


# Arrays.


def encode_array(
    fmt: FloatFormat,
    x: Iterable[float],
    mode: str = "nearest-even",
    overflow: str = "ieee",
    flush_subnormals: bool = False,
) -> np.ndarray:
    """Return the codes of Python floats or ints, in the smallest unsigned dtype."""
    codes = [encode(fmt, number(v), mode, overflow, flush_subnormals) for v in x]
    return np.array(codes, dtype=code_dtype(fmt))


def code_dtype(fmt: FloatFormat) -> np.dtype:
    """Return the smallest unsigned dtype that holds a code."""
    bits = fmt.w + fmt.p - 1 + fmt.signed
    return np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32 if bits <= 32 else np.uint64)


def decode_array(fmt: FloatFormat, codes: Iterable[int], dtype: np.dtype | type | None = None) -> np.ndarray:
    """Return values of codes, in float32 where it holds the format; NaNs are the default quiet one, with sign."""
    dtype = np.dtype(dtype or (np.float32 if fits_float32(fmt) else np.float64))
    wide = np.array([to_float(decode(fmt, int(c))) for c in codes], dtype=np.float64)
    return canonical_nans(wide).astype(dtype)


def canonical_nans(x: np.ndarray) -> np.ndarray:
    """Return float64 values with every NaN made the default quiet one, sign kept."""
    bits = x.view(np.uint64)
    sign = bits & np.uint64(1 << 63)
    return np.where(np.isnan(x), sign | np.uint64(0x7FF8 << 48), bits).view(np.float64)


def events(fmt: FloatFormat, x: Number, mode: str, overflow: str, flush_subnormals: bool) -> list[str]:
    """Return the names of what happened to one element."""
    result = decode(fmt, encode(fmt, x, mode, overflow, flush_subnormals))
    finite = x.kind == "finite"
    happened = ["elements"]
    if finite and x.magnitude == 0:
        happened.append("zeros")
    if finite and x.magnitude > 0 and result.kind == "finite" and result.magnitude == 0:
        happened.append("underflows")
    if result.kind == "finite" and 0 < result.magnitude < magnitude(fmt, smallest_normal(fmt)):
        happened.append("subnormals")
    invalid = x.negative and not fmt.signed and result.kind == "nan"  # a negative number has no place here
    overflows = finite and not invalid and round_magnitude(fmt, x.magnitude, x.negative, mode) > largest(fmt)
    if overflows:
        happened.append("overflows")
    if (overflows or x.kind == "infinite") and result.magnitude == magnitude(fmt, largest(fmt)):
        happened.append("saturations")
    if finite and not (result.kind == "finite" and result.fraction == x.fraction):
        happened.append("inexact")
    if x.kind == "nan":
        happened.append("nans")
    elif result.kind == "nan":
        happened.append("nans_made")
    if x.kind == "infinite":
        happened.append("infinities")
    return happened


def count(
    fmt: FloatFormat,
    x: Iterable[float],
    mode: str = "nearest-even",
    overflow: str = "ieee",
    flush_subnormals: bool = False,
) -> dict[str, int]:
    """Return how often each event happens when Python floats or ints are rounded."""
    counts = Counter(e for v in x for e in events(fmt, number(v), mode, overflow, flush_subnormals))
    return {name: counts[name] for name in EVENTS}
