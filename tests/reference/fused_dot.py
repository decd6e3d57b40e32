"""The exact twin of NVIDIA's fused dot product, in ``int`` and ``Fraction``, made to be read.

A matrix unit adds the products of one block and the accumulator in a fixed-point adder: every term is aligned to
the largest exponent, cut to ``F`` fraction bits, and the integers are summed exactly. Nothing here is shared with
the kernels; of mpsim only the fields of ``FloatFormat`` are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsim.formats import FloatFormat

INF, NAN = "inf", "nan"


@dataclass(frozen=True)
class Term:
    """A number as the adder sees it: exact value and the exponent it is aligned by (not normalised)."""

    value: Fraction
    exponent: int
    kind: str = ""
    """"" for a finite number, INF or NAN. An infinity keeps its sign in ``value``."""


def operand(code: int, fmt: FloatFormat, zero_exponent: int | None = None) -> Term:
    """Return the number a code stands for. Subnormals keep the exponent ``emin``, and so does zero unless told."""
    sign = -1 if code & fmt.sign_code else 1
    magnitude = code & fmt.last_code
    if fmt.inf_code is not None and magnitude == fmt.inf_code:
        return Term(Fraction(sign), 0, INF)
    if magnitude > fmt.max_code:
        return Term(Fraction(0), 0, NAN)
    field, fraction = magnitude >> fmt.m, magnitude & ((1 << fmt.m) - 1)
    sig = fraction + (1 << fmt.m) if field else fraction
    exponent = max(field, 1) - fmt.bias
    if sig == 0 and zero_exponent is not None:
        exponent = zero_exponent
    return Term(Fraction(sign * sig) * Fraction(2) ** (exponent - fmt.m), exponent)


def product(a: Term, b: Term) -> Term:
    """Return ``a * b``; its exponent is the sum of the exponents even where the significands multiply to 2 or more."""
    if NAN in (a.kind, b.kind):
        return Term(Fraction(0), 0, NAN)
    if INF in (a.kind, b.kind):
        if a.value == 0 or b.value == 0:
            return Term(Fraction(0), 0, NAN)
        return Term(Fraction(1 if a.value * b.value > 0 else -1), 0, INF)
    return Term(a.value * b.value, a.exponent + b.exponent)


def special(terms: Sequence[Term]) -> str | None:
    """Return "nan", "+inf" or "-inf" where the terms decide the sum without arithmetic, else None."""
    infinities = {term.value for term in terms if term.kind == INF}
    if any(term.kind == NAN for term in terms) or len(infinities) == 2:
        return NAN
    return ("+inf" if infinities == {1} else "-inf") if infinities else None


def truncate(x: Fraction) -> int:
    """Return ``x`` without its fraction: toward zero, on the magnitude."""
    return abs(x.numerator) // x.denominator * (1 if x > 0 else -1)


def fixed_point_sum(terms: Sequence[Term], fraction_bits: int, floor: int, zeros: bool = False) -> Fraction:
    """Return the sum of the terms, each cut to ``fraction_bits`` below the largest exponent (at least ``floor``).

    Only if ``zeros`` do terms of zero take part in the maximum.
    """
    terms = [term for term in terms if zeros or term.value != 0]
    if not terms:
        return Fraction(0)
    emax = max(floor, *(term.exponent for term in terms))
    unit = Fraction(2) ** (emax - fraction_bits)
    return sum(truncate(term.value / unit) for term in terms) * unit


def exponent_of(x: Fraction) -> int:
    """Return ``e`` with ``2**e <= |x| < 2**(e+1)``."""
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    return e if abs(x) >= Fraction(2) ** e else e - 1


def convert(x: Fraction, p: int, nearest: bool, out: FloatFormat) -> int:
    """Return the code of ``x`` in ``out`` after one rounding to ``p`` bits: to nearest even, or toward zero.

    An exact or rounded zero is +0; what exceeds the largest exponent is an infinity, also under truncation.
    """
    if x == 0:
        return 0
    quantum = Fraction(2) ** (max(exponent_of(x), out.emin) - p + 1)
    units = round(abs(x) / quantum) if nearest else truncate(abs(x) / quantum)
    y = units * quantum
    if y == 0:
        return 0
    sign = out.sign_code if x < 0 else 0
    e = exponent_of(y)
    if e > out.emax:
        assert out.inf_code is not None
        return sign | out.inf_code
    sig = y / Fraction(2) ** (max(e, out.emin) - out.m)
    assert sig.denominator == 1
    field = e + out.bias if e >= out.emin else 0
    return sign | (field << out.m) | (int(sig) & ((1 << out.m) - 1))


@dataclass(frozen=True)
class Unit:
    """The numbers of one instruction."""

    block_length: int
    fraction_bits: int
    floor: int
    p: int
    """Significand bits kept by the result conversion."""
    nearest: bool
    a: FloatFormat
    b: FloatFormat
    out: FloatFormat
    zero_exponent: int | None = None
    """Exponent of a zero operand or accumulator, which then takes part in the maximum; None: zeros are dropped."""


def dot_block(unit: Unit, a: Sequence[int], b: Sequence[int], c: int, c_format: FloatFormat | None = None) -> int:
    """Return the code of one block's ``c + sum(a*b)``; ``len(a)`` is at most the block length."""
    zero = unit.zero_exponent
    terms = [product(operand(x, unit.a, zero), operand(y, unit.b, zero)) for x, y in zip(a, b, strict=True)]
    terms.append(operand(c, c_format or unit.out, zero))
    match special(terms):
        case "nan":
            return (1 << (unit.out.bits - 1)) - 1  # NVIDIA's one NaN: sign 0, every other bit 1
        case "+inf":
            return unit.out.inf_code or 0
        case "-inf":
            return unit.out.sign_code | (unit.out.inf_code or 0)
    total = fixed_point_sum(terms, unit.fraction_bits, unit.floor, zeros=zero is not None)
    return convert(total, unit.p, unit.nearest, unit.out)


def dot(unit: Unit, a: Sequence[int], b: Sequence[int], c: int = 0, c_format: FloatFormat | None = None) -> int:
    """Return the code of ``c + sum(a*b)``: blocks in increasing k, each result the next block's accumulator.

    A narrower accumulator than the result (fp16 into fp32) is widened first: the same value with its own exponent.
    """
    if c_format is not None and c_format != unit.out:
        c = widen(c, c_format, unit.out)
    step = unit.block_length
    for k in range(0, max(len(a), 1), step):
        c = dot_block(unit, a[k : k + step], b[k : k + step], c)
    return c


def widen(code: int, fmt: FloatFormat, wide: FloatFormat) -> int:
    """Return the code in ``wide`` of the same number; NaN becomes the NaN of all ones."""
    x = operand(code, fmt)
    sign = wide.sign_code if code & fmt.sign_code else 0
    if x.kind:
        return (1 << (wide.bits - 1)) - 1 if x.kind == NAN else sign | (wide.inf_code or 0)
    return sign | convert(abs(x.value), wide.p, True, wide)


def matmul(
    unit: Unit,
    a: Sequence[Sequence[int]],
    b: Sequence[Sequence[int]],
    c: Sequence[Sequence[int]],
    c_format: FloatFormat | None = None,
) -> list[list[int]]:
    """Return the codes of ``a @ b + c``; ``a`` [M, K] and ``b`` [K, N] and ``c`` [M, N] are nested lists of codes."""
    columns = [list(column) for column in zip(*b, strict=True)] if b else [[] for _ in (c[0] if c else [])]
    return [[dot(unit, row, column, start, c_format) for column, start in zip(columns, starts, strict=True)]
            for row, starts in zip(a, c, strict=True)]  # fmt: skip
