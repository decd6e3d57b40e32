"""One number in one format, taken apart exactly: fields, value, neighbours, ulp and rounding error.

Everything here is integers and fractions: ``inspect`` needs no compiled kernel, so it answers at
once, and it is a second, independent way to the codes that ``encode`` gives.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from mpsim.exact import (
    NumberLike,
    decimal_text,
    error_text,
    floor_log2,
    power_of_two,
    power_text,
    read_number,
)
from mpsim.formats import FP32, FloatFormat, FormatLike, Specials, get_format

__all__ = ["Inspection", "Neighbour", "inspect"]


class Neighbour(NamedTuple):
    """A code next to another one on the number line, and what it stands for."""

    code: int
    value: Fraction | float
    """Exact value, or an infinity."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Inspection:
    """A number given, and the code of ``format`` that stands for it under round to nearest, ties to even."""

    format: FloatFormat
    given: Fraction | float
    """The number that was rounded, exact; an infinity or a NaN as a float."""
    given_text: str
    """The number as it was written."""
    code: int
    tie: bool = False
    """Whether the number lay exactly half-way between two values of the format."""
    overflow: bool = False
    """Whether rounding with unbounded exponent passed the largest finite number (IEEE 754-2019, 7.4)."""
    underflow: bool = False
    """Whether a nonzero number became zero."""
    from_code: bool = False
    """Whether a code was given rather than a number, so that nothing was rounded."""

    # The fields of the code.

    @property
    def negative(self) -> bool:
        """Whether the sign bit is set; never for the only NaN of a format that has just one."""
        return bool(self.code & self.format.sign_code) and (self.kind != "nan" or self.format.nan_has_sign)

    @property
    def exponent_field(self) -> int:
        """The exponent field as an unsigned integer."""
        return (self.code & self.format.last_code) >> self.format.m

    @property
    def fraction_field(self) -> int:
        """The fraction field as an unsigned integer."""
        return self.code & ((1 << self.format.m) - 1)

    @property
    def bits(self) -> tuple[str, str, str]:
        """Sign, exponent and fraction field in binary; a missing field is an empty string."""
        f, digits = self.format, f"{self.code:0{self.format.bits}b}"
        start = int(f.signed)
        return digits[:start], digits[start : start + f.w], digits[start + f.w :]

    @property
    def hex(self) -> str:
        """The code in hexadecimal, with all its digits."""
        return _hex(self.code, self.format)

    @property
    def kind(self) -> str:
        """One of zero, subnormal, normal, infinite, nan."""
        return _kind(self.code, self.format)

    # What the fields mean.

    @property
    def is_finite(self) -> bool:
        """Whether the code is a number."""
        return self.kind not in ("infinite", "nan")

    @property
    def e(self) -> int | None:
        """Exponent: a finite value is ``sig * 2**(e - p + 1)`` but for its sign; ``emin`` for subnormals and zero."""
        f = self.format
        return max(self.exponent_field, int(f.has_subnormals)) - f.bias if self.is_finite else None

    @property
    def sig(self) -> int | None:
        """Significand as an integer, the hidden bit included."""
        if not self.is_finite:
            return None
        return self.fraction_field + ((1 << self.format.m) if self.kind == "normal" else 0)

    @property
    def significand(self) -> str | None:
        """Significand in binary, such as ``1.1001100110``."""
        if self.sig is None:
            return None
        digits = f"{self.sig:0{self.format.p}b}"
        return digits if self.format.p == 1 else f"{digits[0]}.{digits[1:]}"

    @property
    def value(self) -> Fraction | float:
        """Exact value of the code, or an infinity or NaN as a float; zero has no sign here."""
        return _value(self.code, self.format)

    @property
    def text(self) -> str:
        """Exact value in decimal, with the sign of zeros and NaNs."""
        if self.kind in ("zero", "nan"):
            return ("-" if self.negative else "") + ("0" if self.kind == "zero" else "nan")
        return decimal_text(self.value)

    # Its place on the number line.

    @property
    def below(self) -> Neighbour | None:
        """The next smaller value (an infinity where there is one), or None."""
        return _neighbour(self.code, self.format, -1)

    @property
    def above(self) -> Neighbour | None:
        """The next larger value (an infinity where there is one), or None."""
        return _neighbour(self.code, self.format, +1)

    @property
    def ulp(self) -> Fraction | None:
        """Spacing of the format at the number given: the quantum of its binade, within ``emin .. emax``.

        Below ``min_normal`` of a format without subnormals it is the gap down to zero.
        """
        if not isinstance(self.given, Fraction):
            return None
        f, x = self.format, abs(self.given)
        least = _finite(f.min_code, f)
        if not f.has_subnormals and f.has_zero and x < least:
            return least
        e = f.emin if not x else min(max(floor_log2(x), f.emin), f.emax)
        return power_of_two(e - f.m)

    @property
    def error(self) -> Fraction | None:
        """Value of the code minus the number given, exact; None where either is not finite."""
        value, given = self.value, self.given
        return value - given if isinstance(value, Fraction) and isinstance(given, Fraction) else None

    @property
    def error_ulps(self) -> Fraction | None:
        """The error in units of ``ulp``: at most 1/2 in size unless the number overflowed."""
        error, ulp = self.error, self.ulp
        return error / ulp if error is not None and ulp else None

    @property
    def error_relative(self) -> Fraction | None:
        """The error divided by the number given; None where that is zero."""
        error, given = self.error, self.given
        return error / given if error is not None and isinstance(given, Fraction) and given else None

    @property
    def exact(self) -> bool:
        """Whether the code means exactly what was given; NaN counts as exact for NaN."""
        if isinstance(self.given, Fraction):
            return self.error == 0
        return self.value == self.given or (math.isnan(self.given) and self.kind == "nan")

    @property
    def explanation(self) -> str:
        """One sentence on why this code was chosen."""
        twice = self.twice_rounded
        if twice is None:
            return _explain(self)
        other = decimal_text(_value(twice, self.format))
        return f"{_explain(self)} Rounded to fp32 first, it would become {other}: twice rounded is not once rounded."

    @property
    def twice_rounded(self) -> int | None:
        """Code that rounding to fp32 first, and then to the format, would give, if it is another one.

        None for formats that fp32 does not hold.
        """
        if self.from_code or not isinstance(self.given, Fraction) or not self.given or not self.format.fits_float32:
            return None
        first = _round(self.given < 0, abs(self.given), FP32, "").value
        if not isinstance(first, Fraction):
            return None
        second = _round(self.given < 0, abs(first), self.format, "").code
        return None if second == self.code else second

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """What there is to say, line by line: pairs of a name and a text."""
        f = self.format
        legend = " ".join(letter * len(digits) for letter, digits in zip("sef", self.bits, strict=True) if digits)
        lines = [
            ("code", self.hex),
            ("bits", " ".join(digits for digits in self.bits if digits)),
            ("", legend),
            ("class", self.kind + (", negative" if self.negative and self.kind != "normal" else "")),
        ]
        if self.e is None or self.sig is None:
            lines += [("exponent", f"field {self.exponent_field}"), ("value", self.text)]
        else:
            normal = f" - bias {f.bias} = {self.e}" if self.kind == "normal" else f": the least exponent, {self.e}"
            lines += [
                ("exponent", f"field {self.exponent_field}{normal}"),
                ("significand", f"{self.significand} in binary = {self.sig}" + (f" / 2^{f.m}" if f.m else "")),
                ("value", f"{self.text} = {'-' if self.negative else ''}{self.sig} * 2^{self.e - f.m}"),
            ]
        for name, neighbour in (("next above", self.above), ("next below", self.below)):
            if neighbour is not None:
                lines.append((name, f"{decimal_text(neighbour.value)}  (code {_hex(neighbour.code, f)})"))
            elif self.is_finite:
                lines.append((name, "none"))
        if self.ulp is not None:
            lines.append(("ulp", f"{power_text(self.ulp)} = {decimal_text(self.ulp, 12)}"))
        if self.error is not None and self.error_ulps is not None and not self.from_code:
            sign = "+" if self.error > 0 else ""
            ulps = error_text(self.error_ulps, scientific=False)
            relative = f", {error_text(self.error_relative)} relative" if self.error_relative else ""
            lines.append(
                ("error", f"{sign}{decimal_text(self.error, 40)} = {ulps} ulp{relative}" if self.error else "0")
            )
        return tuple(lines)

    @property
    def title(self) -> str:
        """What was inspected, such as ``0.1 in fp16``."""
        return f"{self.given_text} in {self.format}"

    def __str__(self) -> str:
        lines = [self.title, *(f"{name:<11}  {text}" for name, text in self.facts)]
        return "\n".join(lines if self.from_code else [*lines, "", self.explanation])

    def __repr__(self) -> str:
        loss = "" if self.error_ulps is None else f", {error_text(self.error_ulps, scientific=False)} ulp"
        return f"<{self.title}: {self.hex} = {self.text}{loss}>"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types; exact numbers are decimal strings, or ``n/d`` where decimals do not end."""

        def neighbour(n: Neighbour | None) -> dict[str, str] | None:
            return n and {"code": _hex(n.code, self.format), "value": decimal_text(n.value)}

        def text(x: Fraction | None) -> str | None:
            return None if x is None else decimal_text(x)

        sign, exponent, fraction = self.bits
        return {
            "format": self.format.name,
            "given": self.given_text,
            "code": self.hex,
            "bits": {"sign": sign, "exponent": exponent, "fraction": fraction},
            "class": self.kind,
            "negative": self.negative,
            "exponent_field": self.exponent_field,
            "fraction_field": self.fraction_field,
            "e": self.e,
            "sig": self.sig,
            "significand": self.significand,
            "value": self.text,
            "below": neighbour(self.below),
            "above": neighbour(self.above),
            "ulp": text(self.ulp),
            "error": text(self.error),
            "error_ulps": text(self.error_ulps),
            "error_relative": text(self.error_relative),
            "exact": self.exact,
            "tie": self.tie,
            "overflow": self.overflow,
            "underflow": self.underflow,
            "twice_rounded": None if self.twice_rounded is None else _hex(self.twice_rounded, self.format),
            "explanation": self.explanation,
        }


def inspect(value: NumberLike | None = None, fmt: FormatLike | None = None, *, code: int | None = None) -> Inspection:
    """Take a number, or a code, of a format apart.

    Parameters
    ----------
    value : number or str
        Rounded once, to nearest with ties to even, from exactly what is written: the string ``"0.1"`` is one
        tenth, the float ``0.1`` is the float64 next to it. Strings may be decimal (``"1e-8"``), fractions
        (``"1/3"``), powers of two (``"2^-24"``, ``"1.5*2^-3"``), hexadecimal with an exponent (``"0x1.8p3"``),
        ``"inf"``, ``"nan"`` or ``"-0"``.
    fmt : FloatFormat, name or dtype
    code : int, keyword only
        A bit pattern of ``fmt``, in place of ``value``.

    Returns
    -------
    Inspection
        Fields, exact value, neighbours, ulp and rounding error; all of it as JSON types with ``to_dict()``.

    Notes
    -----
    Overflow follows the format's standard, as ``encode`` does by default: infinity, else NaN, else the largest finite
    number. A number below zero is NaN in a format without sign, unless it rounds to zero.

    Examples
    --------
    >>> x = inspect("0.1", "fp16")
    >>> x.hex, x.text, x.significand, x.e
    ('0x2e66', '0.0999755859375', '1.1001100110', -4)
    >>> x.error_ulps
    Fraction(-2, 5)
    >>> inspect(65520, "fp16").explanation
    '65520 rounds to 65536, past the largest finite number 65504: overflow gives inf.'
    >>> inspect(code=0x7E, fmt="e4m3").value
    Fraction(448, 1)
    """
    if fmt is None:
        raise TypeError("inspect: fmt is missing; name a format, such as inspect(0.1, 'fp16')")
    if (value is None) == (code is None):
        raise TypeError(
            "inspect: give either a value, inspect(0.1, 'fp16'), or a code, inspect(code=0x2e66, fmt='fp16')"
        )
    f = get_format(fmt)
    if code is not None:
        code = _check_code(code, f)
        exact = _value(code, f)
        return Inspection(format=f, given=exact, given_text=_hex(code, f), code=code, from_code=True)
    text = value.strip() if isinstance(value, str) else str(value)
    return _round(*read_number(value), f, text)


# Rounding exactly.


def _round(negative: bool, x: Fraction | float, fmt: FloatFormat, text: str) -> Inspection:
    """Round the magnitude ``x`` to nearest, ties to even, and put the sign on."""
    given = -x if negative else x
    if not isinstance(x, Fraction):
        code = _nan(negative, fmt) if math.isnan(x) else _overflowed(negative, fmt)
        return Inspection(format=fmt, given=given, given_text=text, code=code)
    magnitude, tie = _nearest_code(x, fmt)
    overflow = magnitude > fmt.max_code
    code = _overflowed(negative, fmt) if overflow else magnitude | (fmt.sign_code if negative else 0)
    is_zero = fmt.has_zero and not magnitude
    if negative and is_zero and not fmt.has_negative_zero:
        code = 0
    elif negative and x and not fmt.signed:
        code = _nan(negative, fmt)
        tie = overflow = False
    return Inspection(
        format=fmt, given=given, given_text=text, code=code, tie=tie, overflow=overflow, underflow=is_zero and x > 0
    )


def _nearest_code(x: Fraction, fmt: FloatFormat) -> tuple[int, bool]:
    """Return the code nearest to a magnitude, as if exponents had no upper bound, and whether it was a tie.

    Codes of positive numbers follow one another like integers, across binades too, so that "even" can be
    read off the code; where the significand has one bit, it is the parity of the exponent field.
    """
    least = _finite(fmt.min_code, fmt)
    if not fmt.has_subnormals and x < least:
        # No grid below the least number: only zero (where there is one) and that number.
        if not fmt.has_zero:
            return fmt.min_code, False
        return int(2 * x > least), 2 * x == least
    e = max(floor_log2(x), fmt.emin) if x else fmt.emin
    sig, rest = divmod(x, power_of_two(e - fmt.m))
    # The hidden bit adds one to the exponent field; in subnormals it is missing and the field is one lower.
    code = ((e + fmt.bias - 1) << fmt.m) + sig
    half = power_of_two(e - fmt.m - 1)
    return code + int(rest > half or (rest == half and code % 2 == 1)), rest == half


def _overflowed(negative: bool, fmt: FloatFormat) -> int:
    """Return the code that an infinity, or a number too large, becomes."""
    if negative and not fmt.signed:
        return _nan(negative, fmt)
    if fmt.saturates or (fmt.inf_code is None and fmt.nan_code is None):
        return fmt.max_code | (fmt.sign_code if negative else 0)
    if fmt.inf_code is None:
        return _nan(negative, fmt)
    return fmt.inf_code | (fmt.sign_code if negative else 0)


def _nan(negative: bool, fmt: FloatFormat) -> int:
    """Return the code that a NaN becomes."""
    if fmt.nan_code is None:
        return fmt.nan_to or 0
    return fmt.nan_code | (fmt.sign_code if negative and fmt.nan_has_sign else 0)


# Codes and what they mean.


def _check_code(code: int, fmt: FloatFormat) -> int:
    if isinstance(code, bool) or not isinstance(code, numbers.Integral):
        raise TypeError(f"inspect: code is {code!r}; an integer such as 0x3c00 is needed")
    if not 0 <= int(code) < 1 << fmt.bits:
        most = _hex((1 << fmt.bits) - 1, fmt)
        raise ValueError(f"inspect: code {int(code):#x} does not fit the {fmt.bits} bits of {fmt}; 0x0 to {most} do")
    return int(code)


def _hex(code: int, fmt: FloatFormat) -> str:
    return f"0x{code:0{(fmt.bits + 3) // 4}x}"


def _kind(code: int, fmt: FloatFormat) -> str:
    magnitude = code & fmt.last_code
    single_nan = fmt.specials in (Specials.FNUZ, Specials.EXTENDED)
    if code == fmt.nan_code if single_nan else magnitude > (fmt.inf_code or fmt.max_code):
        return "nan"
    if magnitude == fmt.inf_code:
        return "infinite"
    if fmt.has_zero and not magnitude:
        return "zero"
    return "normal" if magnitude >> fmt.m or not fmt.has_subnormals else "subnormal"


def _value(code: int, fmt: FloatFormat) -> Fraction | float:
    kind, magnitude = _kind(code, fmt), code & fmt.last_code
    sign = -1 if code & fmt.sign_code else 1
    match kind:
        case "nan":
            return math.nan
        case "infinite":
            return sign * math.inf
    return sign * _finite(magnitude, fmt)


def _finite(magnitude: int, fmt: FloatFormat) -> Fraction:
    """Return the value of a code without sign; past the largest number the exponent just goes on."""
    if fmt.has_zero and not magnitude:
        return Fraction(0)
    field, fraction = magnitude >> fmt.m, magnitude & ((1 << fmt.m) - 1)
    hidden = (1 << fmt.m) if field or not fmt.has_subnormals else 0
    return (hidden + fraction) * power_of_two(max(field, int(fmt.has_subnormals)) - fmt.bias - fmt.m)


def _neighbour(code: int, fmt: FloatFormat, step: int) -> Neighbour | None:
    """Return the value one step down (-1) or up (+1) the number line."""
    if _kind(code, fmt) == "nan":
        return None
    negative, magnitude = bool(code & fmt.sign_code), code & fmt.last_code
    if _kind(code, fmt) == "zero":
        negative = step < 0
        if negative and not fmt.signed:
            return None
    outward = negative == (step < 0)
    magnitude += 1 if outward else -1
    if magnitude > (fmt.inf_code or fmt.max_code):
        return None
    if magnitude < 0:  # past the least number of a format without zero
        if not fmt.signed:
            return None
        negative, magnitude = not negative, 0
    is_zero = fmt.has_zero and not magnitude
    if is_zero and not fmt.has_negative_zero:
        negative = False
    result = magnitude | (fmt.sign_code if negative else 0)
    return Neighbour(result, _value(result, fmt))


# Words.


def _explain(x: Inspection) -> str:
    f, given = x.format, x.given_text
    if not isinstance(x.given, Fraction):
        if x.exact:
            return f"{given} is a special value of {f}."
        missing = "NaN" if math.isnan(x.given) else "infinity"
        return f"{f} has no {missing}: {given} becomes {x.text}."
    sign = -1 if x.given < 0 else 1
    if x.overflow:
        reached, largest = (
            decimal_text(sign * v, 17) for v in (_finite(_nearest_code(abs(x.given), f)[0], f), _finite(f.max_code, f))
        )
        return f"{given} rounds to {reached}, past the largest finite number {largest}: overflow gives {x.text}."
    if x.kind == "nan":
        return f"{f} has no sign: {given} becomes nan."
    if x.exact:
        return f"{given} is a value of {f}: nothing is lost."
    magnitude = x.code & f.last_code
    rounded, exact = abs(Fraction(x.value)), abs(x.given)
    if magnitude == 0 and rounded > exact:
        return f"{given} lies below the least number of {f}, 2^{floor_log2(rounded)}."
    other = _finite(magnitude + (1 if rounded < exact else -1), f)
    low, high = (decimal_text(v, 20) for v in sorted([sign * rounded, sign * other]))
    if x.tie:
        return f"{given} lies exactly half-way between {low} and {high}; the even code is taken: {x.text}."
    nearer = "first" if (rounded < other) == (sign > 0) else "second"
    out_of_range = "would be infinite" if f.inf_code is not None else "is out of range"
    beyond = f" The other {out_of_range}." if magnitude == f.max_code and rounded < exact else ""
    underflow = " It underflows to zero." if x.underflow else ""
    return f"{given} lies between {low} and {high}; the {nearer} is nearer.{beyond}{underflow}"
