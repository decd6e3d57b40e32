"""The exact twin of AMD CDNA3's matrix units, in ``int`` and ``Fraction``, made to be read.

Products are cut toward zero below their largest exponent and summed; this sum and the accumulator are then aligned to
each other by shifts of two's complement integers, which round toward minus infinity; what they add to is rounded once.
Nothing here is shared with the kernels; of mpsim only the fields of ``FloatFormat`` are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsim.formats import FloatFormat

INF, MINUS_INF, NAN = 0x7F800000, 0xFF800000, 0x7FC00000
"""Words of a float32; which NaN the units return is not published."""

ZERO_EXPONENT = -126
"""Exponent of a zero of any format."""


@dataclass(frozen=True)
class Unit:
    """The numbers of one instruction."""

    block_length: int
    a: FloatFormat
    b: FloatFormat
    interleaved: bool = False
    """Whether products of even and of odd k are summed apart."""
    product_bits: int = 24
    """Fraction bits below the largest exponent of the products that are summed together."""
    sum_bits: int = 31
    """Fraction bits of the sum of products beside the accumulator."""
    accumulator_bits: int = 24
    """Fraction bits of the accumulator beside the sum of products."""
    accumulator_reach: int | None = None
    """Places below the larger exponent within which an accumulator counts at all, if that is limited."""
    drop_zeros: bool = False
    """Whether products that are zero have no exponent."""


@dataclass(frozen=True)
class Term:
    """A number as the unit sees it: exact value, and the exponent it is aligned by (not normalised)."""

    value: Fraction
    exponent: int
    special: float = 0.0
    """NaN or an infinity; 0 for a finite number."""


def number(code: int, fmt: FloatFormat) -> Term:
    """Return the number a code stands for. Subnormals keep the exponent ``emin``."""
    sign = -1 if code & fmt.sign_code else 1
    magnitude = code & ~fmt.sign_code
    if magnitude == fmt.inf_code:
        return Term(Fraction(0), 0, sign * math.inf)
    if magnitude > fmt.max_code or (code == fmt.sign_code and not fmt.has_negative_zero):
        return Term(Fraction(0), 0, math.nan)
    field, fraction = magnitude >> fmt.m, magnitude & ((1 << fmt.m) - 1)
    sig = fraction + (1 << fmt.m) if field else fraction
    exponent = max(field, 1) - fmt.bias
    value = sign * sig * Fraction(2) ** (exponent - fmt.m)
    return Term(value, exponent if sig else ZERO_EXPONENT)


def product(a: Term, b: Term) -> Term:
    """Return ``a * b``; its exponent is the sum of the exponents."""
    if a.special or b.special:
        x, y = (t.special or float(t.value > 0) - float(t.value < 0) for t in (a, b))
        return Term(Fraction(0), 0, x * y)  # IEEE: infinity times zero is NaN
    return Term(a.value * b.value, a.exponent + b.exponent)


def special_sum(products: Sequence[Term], acc: Term) -> float:
    """Return the infinity or NaN that decides a block without arithmetic, else 0.

    Infinite and NaN operands come first, as IEEE adds them. Only where there are none, products of finite operands
    from 2**128 on count as infinities: beside an infinity they change nothing.
    """
    decided = sum(term.special for term in [acc, *products])
    if decided:
        return decided
    return sum(math.copysign(math.inf, term.value) for term in products if abs(term.value) >= 2**128)


def truncated_sum(products: Sequence[Term], bits: int, drop_zeros: bool) -> tuple[int, int | None]:
    """Return the sum of products cut toward zero, in units of ``2**(e - bits)``, and their largest exponent ``e``.

    Without a product that has an exponent there is none.
    """
    products = [term for term in products if term.value != 0 or not drop_zeros]
    if not products:
        return 0, None
    e = max(term.exponent for term in products)
    return sum(math.trunc(term.value / Fraction(2) ** (e - bits)) for term in products), e


def block(unit: Unit, a: Sequence[int], b: Sequence[int], c: int, fp32: FloatFormat) -> int:
    """Return the word of one block's ``c + sum(a*b)``; ``len(a)`` is at most the block length."""
    products = [product(number(x, unit.a), number(y, unit.b)) for x, y in zip(a, b, strict=True)]
    acc = number(c, fp32)
    special = special_sum(products, acc)
    if special:
        return NAN if math.isnan(special) else INF if special > 0 else MINUS_INF

    groups = [products[0::2], products[1::2]] if unit.interleaved else [products]
    sums = [truncated_sum(group, unit.product_bits, unit.drop_zeros) for group in groups]
    exponents = [e for _, e in sums if e is not None]
    e = max(exponents, default=acc.exponent)
    total = sum(math.floor(t * Fraction(2) ** (x - e)) for t, x in sums if x is not None)

    top = max(e, acc.exponent)
    t = math.floor(total * Fraction(2) ** (e - unit.product_bits - top + unit.sum_bits))
    s = math.floor(acc.value * Fraction(2) ** (unit.accumulator_bits - top))
    if unit.accumulator_reach is not None and acc.exponent < top - unit.accumulator_reach:
        s = 0
    return nearest(t * Fraction(2) ** (top - unit.sum_bits) + s * Fraction(2) ** (top - unit.accumulator_bits))


def nearest(x: Fraction) -> int:
    """Return the word of the float32 nearest to ``x``, ties to even; a negative number that becomes 0 is -0."""
    quantum = Fraction(2) ** -149
    while abs(x) >= quantum * 2**24:
        quantum *= 2
    units = round(abs(x) / quantum)
    # Units from 2**23 on are a normal number's, whose field counts the doublings of the quantum; a carry goes there.
    field = int(math.log2(quantum / Fraction(2) ** -149))
    word = min((field << 23) + units, INF)
    return word | (1 << 31 if x < 0 else 0)


def dot(unit: Unit, a: Sequence[int], b: Sequence[int], c: int, fp32: FloatFormat) -> int:
    """Return the word of ``c + sum(a*b)``: blocks in increasing k, each result the next block's accumulator."""
    for k in range(0, max(len(a), 1), unit.block_length):
        c = block(unit, a[k : k + unit.block_length], b[k : k + unit.block_length], c, fp32)
    return c


def matmul(
    unit: Unit, a: Sequence[Sequence[int]], b: Sequence[Sequence[int]], c: Sequence[Sequence[int]], fp32: FloatFormat
) -> list[list[int]]:
    """Return the words of ``a @ b + c``, from nested lists of codes: ``a`` [M, K], ``b`` [K, N], ``c`` [M, N]."""
    columns = [list(column) for column in zip(*b, strict=True)] if b else [[] for _ in (c[0] if c else [])]
    return [[dot(unit, row, column, start, fp32) for column, start in zip(columns, starts, strict=True)]
            for row, starts in zip(a, c, strict=True)]  # fmt: skip
