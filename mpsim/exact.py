"""Numbers without rounding: reading them from text, and writing them in decimal."""

from __future__ import annotations

import decimal
import math
import numbers
import re
from fractions import Fraction
from typing import Any, SupportsFloat, TypeAlias

__all__ = ["NumberLike", "decimal_text", "error_text", "floor_log2", "power_of_two", "power_text", "read_number"]

NumberLike: TypeAlias = "str | int | Fraction | decimal.Decimal | SupportsFloat"

_MAX_LENGTH, _MAX_EXPONENT = 1000, 2000


def floor_log2(x: Fraction) -> int:
    """Return the largest k with ``2**k <= x``, for positive x."""
    k = x.numerator.bit_length() - x.denominator.bit_length()
    return k if power_of_two(k) <= x else k - 1


def power_of_two(k: int) -> Fraction:
    """Return ``2**k`` for any integer k."""
    return Fraction(1 << k) if k >= 0 else Fraction(1, 1 << -k)


_SIGN, _DECIMAL = r"([+-]?)", r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_PATTERNS = {
    kind: re.compile(_SIGN + pattern, re.IGNORECASE)
    for kind, pattern in {
        "decimal": rf"({_DECIMAL})(?:e([+-]?[0-9]+))?",
        "ratio": r"([0-9]+)\s*/\s*([0-9]+)",
        "power": rf"(?:({_DECIMAL})\s*\*\s*)?2(?:\^|\*\*)([+-]?[0-9]+)",
        "hex": r"0x(?=\.?[0-9a-f])([0-9a-f]*)(?:\.([0-9a-f]*))?(?:p([+-]?[0-9]+))?",
        "infinity": r"inf(?:inity)?",
        "nan": r"s?nan",
    }.items()
}


def read_number(value: Any) -> tuple[bool, Fraction | float]:
    """Return whether a number has a minus sign, and its exact magnitude."""
    if isinstance(value, decimal.Decimal):
        value = str(value)
    if isinstance(value, str):
        return _parse(value)
    if isinstance(value, numbers.Rational):
        exact = Fraction(int(value.numerator), int(value.denominator))
        return exact < 0, abs(exact)
    if getattr(value, "ndim", 0):
        raise TypeError(f"value is an array of shape {value.shape}; one number is needed")
    try:
        nearest = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"value is {value!r}; a number or a string such as '0.1' is needed") from None
    if not math.isfinite(nearest):
        return math.copysign(1.0, nearest) < 0, abs(nearest)
    # A long double knows its own exact ratio; what does not fits a float.
    ratio = getattr(value, "as_integer_ratio", nearest.as_integer_ratio)
    return math.copysign(1.0, nearest) < 0, abs(Fraction(*map(int, ratio())))


def _parse(text: str) -> tuple[bool, Fraction | float]:
    text = text.strip()
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"value has {len(text)} characters; at most {_MAX_LENGTH} are read")
    for kind, pattern in _PATTERNS.items():
        if match := pattern.fullmatch(text):
            sign, *parts = match.groups()
            return sign == "-", _magnitude(kind, parts, text)
    raise ValueError(f"value {text!r} is not a number; write it like 0.1, 1e-8, 1/3, 2^-24, 0x1.8p3, inf or nan")


def _magnitude(kind: str, parts: list[str | None], text: str) -> Fraction | float:
    match kind, parts:
        case "infinity", _:
            return math.inf
        case "nan", _:
            return math.nan
        case "ratio", [numerator, denominator]:
            if not int(denominator or 0):
                raise ValueError(f"value {text!r} divides by zero; write inf or nan if one is meant")
            return Fraction(int(numerator or 0), int(denominator or 1))
        case "hex", [whole, fraction, exponent]:
            if fraction is None and exponent is None:
                raise ValueError(
                    f"value {text!r} looks like a code: pass it as code={text}, or write {text}p0 for the number"
                )
            digits = (whole or "") + (fraction or "")
            return int(digits, 16) * power_of_two(_exponent(exponent, text) - 4 * len(fraction or ""))
        case "power", [factor, exponent]:
            return Fraction(factor or 1) * power_of_two(_exponent(exponent, text))
        case _, [digits, exponent]:
            return Fraction(digits or 0) * Fraction(10) ** _exponent(exponent, text)
    raise AssertionError(kind)


def _exponent(digits: str | None, text: str) -> int:
    exponent = int(digits or 0)
    if abs(exponent) > _MAX_EXPONENT:
        raise ValueError(f"value {text!r} has an exponent outside -{_MAX_EXPONENT} .. {_MAX_EXPONENT}")
    return exponent


def decimal_text(x: Fraction | float, digits: int | None = None) -> str:
    """Return a number in decimal: exact, or cut to ``digits`` significant digits with an ellipsis.

    Very small and very large numbers come in scientific notation; an exact fraction whose decimals do not end
    comes as ``n/d``.

    Examples
    --------
    >>> decimal_text(Fraction(1, 1024)), decimal_text(Fraction(1, 3)), decimal_text(Fraction(1, 3), 4)
    ('0.0009765625', '1/3', '0.3333…')
    """
    if not isinstance(x, Fraction):
        return str(float(x))
    # Decimals, rather than str(int), since Python limits how many digits that may have.
    numerator, denominator = decimal.Decimal(x.numerator), decimal.Decimal(x.denominator)
    with decimal.localcontext() as context:
        context.prec, context.Emax, context.Emin = 40_000, decimal.MAX_EMAX, decimal.MIN_EMIN
        if digits is None and _odd_part(x.denominator) > 1:
            return f"{numerator:f}/{denominator:f}"
        if digits is not None:
            context.prec, context.rounding = digits, decimal.ROUND_DOWN
        context.clear_flags()
        quotient = numerator / denominator
        cut = "…" if context.flags[decimal.Inexact] else ""
        context.prec = 40_000
        if not cut:
            quotient = quotient.normalize()
        if -6 <= quotient.adjusted() < (40 if digits is None else 16):
            return f"{quotient:f}{cut}"
        mantissa, _, exponent = f"{quotient:e}".partition("e")
        return f"{mantissa}{cut}e{exponent}"


def power_text(x: Fraction) -> str:
    """Return a positive number as ``2^k`` where that is exact, otherwise as a short decimal.

    Examples
    --------
    >>> power_text(Fraction(1, 1024)), power_text(Fraction(3, 4))
    ('2^-10', '0.75')
    """
    k = floor_log2(x)
    return f"2^{k}" if x == power_of_two(k) else f"{float(x):.4g}"


def error_text(x: Fraction, scientific: bool = True) -> str:
    """Return an error with its sign and three digits; exact zero is ``0``.

    Examples
    --------
    >>> error_text(Fraction(-1, 3)), error_text(Fraction(2, 5), scientific=False), error_text(Fraction(0))
    ('-3.33e-01', '+0.4', '0')
    """
    if not x:
        return "0"
    if not scientific and Fraction(1, 1000) <= abs(x) <= 10**6:
        return f"{float(x):+.3g}"
    if abs(floor_log2(abs(x))) < 1000:
        return f"{float(x):+.2e}"
    return ("+" if x > 0 else "") + decimal_text(x, 3)  # beyond float64


def _odd_part(n: int) -> int:
    """Return n without its factors 2 and 5: 1 if 1/n has finitely many decimals."""
    n >>= (n & -n).bit_length() - 1
    while n % 5 == 0:
        n //= 5
    return n
