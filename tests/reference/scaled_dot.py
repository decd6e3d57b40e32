"""The exact twin of block-scaled dot products, in ``int`` and ``Fraction``, made to be read.

Two kinds of units exist. One gives every product the exponents of its two scales and is a fused dot product
otherwise. The other first adds the products of a group exactly; the group's sum, times the significands of its
scales, is then one term. Nothing here is shared with the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from reference.fused_dot import INF, NAN, Term, convert, fixed_point_sum, operand, product, special

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsim.formats import FloatFormat


@dataclass(frozen=True)
class Scale:
    """A scale format: an exponent field above ``m`` fraction bits, no sign, NaN where every bit is set.

    Bits of a code above ``bits`` are ignored. Without fraction bits there is neither a zero nor a subnormal.
    """

    bits: int
    m: int
    bias: int

    def term(self, code: int) -> Term:
        """Return the scale's number and exponent; subnormals keep the exponent of the smallest normal."""
        code %= 2**self.bits
        if code == 2**self.bits - 1:
            return Term(Fraction(0), 0, NAN)
        field, fraction = divmod(code, 2**self.m)
        if self.m == 0 or field > 0:
            e, significand = field - self.bias, 1 + Fraction(fraction, 2**self.m)
        else:
            e, significand = 1 - self.bias, Fraction(fraction, 2**self.m)
        return Term(significand * Fraction(2) ** e, e)


UE8M0 = Scale(bits=8, m=0, bias=127)
UE4M3 = Scale(bits=7, m=3, bias=7)


@dataclass(frozen=True)
class Unit:
    """The numbers of one instruction; its formats are those of the elements, the result is fp32 or narrower."""

    fraction_bits: int
    floor: int
    p: int
    nearest: bool
    a: FloatFormat
    b: FloatFormat
    out: FloatFormat
    scale: Scale
    block: int
    """Elements along K that share a scale."""
    group_length: int | None
    """Products summed exactly before alignment; None where every product is a term of its own."""
    terms: int
    """Groups, or products, that one alignment covers."""

    def decided(self, terms: Sequence[Term]) -> int | None:
        """Return the code of a result that an infinity or a NaN decides."""
        match special(terms):
            case "nan":
                return (1 << (self.out.bits - 1)) - 1
            case "+inf":
                return self.out.inf_code
            case "-inf":
                return self.out.sign_code | (self.out.inf_code or 0)
        return None


def scaled_term(term: Term, scale_a: Term, scale_b: Term) -> Term:
    """Return a term times both scales, with the exponents of all three added."""
    if NAN in (term.kind, scale_a.kind, scale_b.kind):
        return Term(Fraction(0), 0, NAN)
    if term.kind == INF:
        return term
    exponent = term.exponent + scale_a.exponent + scale_b.exponent
    return Term(term.value * scale_a.value * scale_b.value, exponent)


def exact_sum(products: Sequence[Term]) -> Term:
    """Return the sum of finite products, which has the exponent 0 however large it is."""
    assert not any(term.kind for term in products)
    return Term(sum((term.value for term in products), Fraction(0)), 0)


def dot(unit: Unit, a: Sequence[int], b: Sequence[int], scale_a: Sequence[int], scale_b: Sequence[int], c: int) -> int:
    """Return the code of ``c + sum(a*b*scales)``; every argument is codes, ``scale_a[i]`` is of the block i."""
    products = [product(operand(x, unit.a), operand(y, unit.b)) for x, y in zip(a, b, strict=True)]
    left, right = [unit.scale.term(code) for code in scale_a], [unit.scale.term(code) for code in scale_b]
    step = unit.group_length or 1
    groups = [products[k : k + step] for k in range(0, len(products), step)]
    sums = [exact_sum(group) if unit.group_length else group[0] for group in groups]
    scaled = [scaled_term(x, left[i * step // unit.block], right[i * step // unit.block]) for i, x in enumerate(sums)]
    for first in range(0, max(len(scaled), 1), unit.terms):
        terms = [*scaled[first : first + unit.terms], operand(c, unit.out)]
        code = unit.decided(terms)
        if code is None:
            code = convert(fixed_point_sum(terms, unit.fraction_bits, unit.floor), unit.p, unit.nearest, unit.out)
        c = code
    return c


def matmul(
    unit: Unit,
    a: Sequence[Sequence[int]],
    b: Sequence[Sequence[int]],
    scale_a: Sequence[Sequence[int]],
    scale_b: Sequence[Sequence[int]],
    c: Sequence[Sequence[int]],
) -> list[list[int]]:
    """Return the codes of ``a @ b + c``; ``a`` [M, K], ``b`` [K, N], and the scales [M, K/block], [K/block, N]."""
    columns, scales = (list(zip(*x, strict=True)) or [()] * len(c[0]) for x in (b, scale_b))
    return [
        [dot(unit, row, column, left, right, start)
         for column, right, start in zip(columns, scales, starts, strict=True)]
        for row, left, starts in zip(a, scale_a, c, strict=True)
    ]  # fmt: skip
