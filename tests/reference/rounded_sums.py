"""The exact twin of the idealised units: every partial sum is a Fraction, rounded to the accumulator's format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from reference import rounding

if TYPE_CHECKING:
    from mpsim.formats import FloatFormat


def add(total: float, x: float, y: float, fmt: FloatFormat, mode: str) -> float:
    """Return ``total + x * y``, rounded once."""
    if not all(map(math.isfinite, (total, x, y))):
        return total + x * y
    exact = Fraction(total) + Fraction(x) * Fraction(y)
    if exact == 0:
        signs = {math.copysign(1, total), math.copysign(1, x) * math.copysign(1, y)}
        return math.copysign(0.0, min(signs)) if len(signs) == 1 or mode == "down" else 0.0
    scaled = abs(exact) * (1 << rounding.SCALE)
    assert scaled.denominator == 1
    code = rounding.round_magnitude(fmt, int(scaled), exact < 0, mode)
    magnitude_code = rounding.pack(fmt, code, exact < 0, mode, "ieee") & ~rounding.sign_bit(fmt)
    if magnitude_code > rounding.largest(fmt):
        return math.inf if exact > 0 else -math.inf
    magnitude = float(Fraction(rounding.magnitude(fmt, magnitude_code), 1 << rounding.SCALE))
    return math.copysign(magnitude, exact)


def chain(terms: Sequence[tuple[float, float]], start: float, fmt: FloatFormat, mode: str) -> float:
    """Return ``start`` plus all products, one after another."""
    for x, y in terms:
        start = add(start, x, y, fmt, mode)
    return start


def tree(terms: Sequence[tuple[float, float]], fmt: FloatFormat, mode: str) -> float:
    """Return the sum of products: neighbours, then neighbouring sums; an odd last one goes up as it is."""
    level = [add(0.0, x, y, fmt, mode) for x, y in terms]
    while len(level) > 1:
        pairs = [add(level[i], 1.0, level[i + 1], fmt, mode) for i in range(0, len(level) - 1, 2)]
        level = pairs + ([level[-1]] if len(level) % 2 else [])
    return level[0]


def dot(
    a: Sequence[float],
    b: Sequence[float],
    c: float,
    fmt: FloatFormat,
    mode: str,
    chunk: int = 0,
    pairwise: bool = False,
) -> float:
    """Return ``c + sum(a * b)`` with every partial sum rounded to ``fmt``."""
    terms = list(zip(a, b, strict=True))
    if pairwise:
        return add(c, 1.0, tree(terms, fmt, mode), fmt, mode) if terms else c
    if not chunk:
        return chain(terms, c, fmt, mode)
    for i in range(0, len(terms), chunk):
        c = add(c, 1.0, chain(terms[i : i + chunk], 0.0, fmt, mode), fmt, mode)
    return c
