"""The exact twin of block sums that are rounded once, in ``int`` and ``Fraction``, made to be read.

A block is the accumulator and a few products. Their sum is exact, then rounded to float32; each result is the
accumulator of the next block. Arguments and results are words of float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

NAN, INF, SIGN = 0x7FC00000, 0x7F800000, 1 << 31


def number(word: int) -> Fraction | float:
    """Return the number of a word: a fraction, or an infinity or a NaN as a float."""
    negative, field, fraction = word >> 31, word >> 23 & 255, word & 0x7FFFFF
    if field == 255:
        return math.nan if fraction else -math.inf if negative else math.inf
    sig = fraction | (1 << 23 if field else 0)
    return Fraction(-sig if negative else sig) * Fraction(2) ** (max(field, 1) - 150)


def times(x: Fraction | float, y: Fraction | float) -> Fraction | float:
    """Return a product: of an infinity and zero NaN."""
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return x * y
    if math.isnan(x) or math.isnan(y) or x == 0 or y == 0:
        return math.nan
    return math.inf if (x > 0) == (y > 0) else -math.inf


def nearest(x: Fraction) -> int:
    """Return the word next to a number, ties to even. Zero is positive; a number rounded to zero keeps its sign."""
    size = abs(x)
    if size == 0:
        return 0
    e = size.numerator.bit_length() - size.denominator.bit_length()
    e -= size < Fraction(2) ** e
    e = max(e, -126)  # subnormal numbers share one quantum
    sig = round(size / Fraction(2) ** (e - 23))
    # The hidden bit of sig adds one to the exponent field, and so does a carry to 2**24.
    return (SIGN if x < 0 else 0) | min(((e + 126) << 23) + sig, INF)


def add(terms: Sequence[Fraction | float]) -> int:
    """Return the word of the sum of all terms, rounded once."""
    specials = {term for term in terms if isinstance(term, float)}
    if len(specials) > 1 or any(math.isnan(x) for x in specials):
        return NAN
    if specials:
        return INF if specials == {math.inf} else SIGN | INF
    return nearest(sum((term for term in terms if isinstance(term, Fraction)), Fraction(0)))


def dot(a: Sequence[int], b: Sequence[int], c: int, block_length: int) -> int:
    """Return the word of ``c + sum(a*b)`` in blocks of increasing k; without products still one block."""
    for k in range(0, max(len(a), 1), block_length):
        pairs = zip(a[k : k + block_length], b[k : k + block_length], strict=True)
        c = add([number(c), *(times(number(x), number(y)) for x, y in pairs)])
    return c


def matmul(
    a: Sequence[Sequence[int]], b: Sequence[Sequence[int]], c: Sequence[Sequence[int]], block_length: int
) -> list[list[int]]:
    """Return the words of ``a @ b + c``; ``b`` is transposed, [N, K]."""
    return [
        [dot(row, column, start, block_length) for column, start in zip(b, starts, strict=True)]
        for row, starts in zip(a, c, strict=True)
    ]
