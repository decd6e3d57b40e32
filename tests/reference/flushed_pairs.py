"""The exact twin of products and pairwise sums that flush, in ``int`` and ``Fraction``, made to be read.

Operands and accumulator are flushed first, each product and each sum is rounded to float32 and flushed, and products
are added in pairs before the accumulator. Arguments and results are words of float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from reference.exact_blocks import INF, NAN, SIGN, nearest, number, times

SMALLEST_NORMAL = 0x00800000


def flushed_input(word: int, emin: int) -> int:
    """Return +0 for what is smaller than the smallest normal number ``2**emin``, zeros of either sign among them."""
    x = number(word)
    return 0 if isinstance(x, Fraction) and abs(x) < Fraction(2) ** emin else word


def flushed(word: int) -> int:
    """Return a result, or zero of its sign where it is subnormal."""
    return word & SIGN if word & ~SIGN < SMALLEST_NORMAL else word


def word_of(x: float) -> int:
    """Return the word of an infinity or a NaN."""
    return NAN if math.isnan(x) else INF if x > 0 else SIGN | INF


def multiply(x: int, y: int) -> int:
    """Return a product; one that is exactly zero has no sign."""
    exact = times(number(x), number(y))
    return flushed(nearest(exact)) if isinstance(exact, Fraction) else word_of(exact)


def add(x: int, y: int) -> int:
    """Return a sum; zero is negative only where both terms are."""
    left, right = number(x), number(y)
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return x & y & SIGN if left + right == 0 else flushed(nearest(left + right))
    return word_of(float(left) + float(right))


def pairwise(terms: Sequence[int]) -> int:
    """Return the sum of neighbours, then of neighbouring sums."""
    while len(terms) > 1:
        terms = [add(terms[i], terms[i + 1]) for i in range(0, len(terms), 2)]
    return terms[0]


def dot(a: Sequence[int], b: Sequence[int], c: int, block_length: int, emin: tuple[int, int]) -> int:
    """Return the word of ``c + sum(a*b)``, in blocks of increasing k; the last block is filled up with zeros."""
    d = flushed_input(c, -126)
    for k in range(0, max(len(a), 1), block_length):
        products = [
            multiply(flushed_input(x, emin[0]), flushed_input(y, emin[1]))
            for x, y in zip(a[k : k + block_length], b[k : k + block_length], strict=True)
        ]
        d = add(d, pairwise(products + [0] * (block_length - len(products))))
    return d


def matmul(
    a: Sequence[Sequence[int]],
    b: Sequence[Sequence[int]],
    c: Sequence[Sequence[int]],
    block_length: int,
    emin: tuple[int, int],
) -> list[list[int]]:
    """Return the words of ``a @ b + c``; ``b`` is transposed, [N, K]."""
    return [
        [dot(row, column, start, block_length, emin) for column, start in zip(b, starts, strict=True)]
        for row, starts in zip(a, c, strict=True)
    ]
