"""One dot product of each family of units, step by step in exact fractions, for people to follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from mpsim.exact import floor_log2, power_of_two
from mpsim.formats import FP32, FloatFormat, get_format
from mpsim.matmul._families import MMA_SIM_ZERO
from mpsim.units import Family, MatrixUnit, Order, ZeroTerms

__all__ = ["Cell", "Dot", "Step", "steps_of"]

Number: TypeAlias = "Fraction | float"
"""A float stands for an infinity, a NaN or a negative zero."""
Cell: TypeAlias = "Number | int | str | None"


@dataclass(frozen=True, slots=True)
class Step:
    """One rounding of a dot product: what went in, what was kept, what came out."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    """One row for each term."""
    facts: tuple[tuple[str, Cell], ...]
    result: float
    """The accumulator afterwards."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One row of a, one column of b, and the accumulator, as values of the unit's formats."""

    a: Sequence[float]
    b: Sequence[float]
    c: float
    scales: Sequence[tuple[int, Fraction | None]] = ()
    """For each k the exponent and the significand that its blocks' scales give a product; None for NaN."""


def steps_of(dot: Dot, row: MatrixUnit) -> list[Step]:
    """Return the steps of a dot product on a unit."""
    return list(_FAMILIES[row.family](dot, row))


# Numbers.


def _exact(x: float) -> Number:
    return Fraction(x) if math.isfinite(x) and (x != 0 or math.copysign(1, x) > 0) else x


def _is_zero(x: Number) -> bool:
    return x == 0


def _product(x: float, y: float) -> Number:
    """Return the exact product; a float where it is no nonzero fraction."""
    if math.isfinite(x) and math.isfinite(y) and x != 0 and y != 0:
        return Fraction(x) * Fraction(y)
    return x * y


def _sum(terms: Sequence[Number]) -> Number:
    """Return the exact sum; zeros of one sign keep it, and the sum of no terms is +0."""
    if any(isinstance(t, float) and not math.isfinite(t) for t in terms):
        return math.fsum(0.0 if isinstance(t, Fraction) else t for t in terms) if not _opposed(terms) else math.nan
    total = sum((Fraction(t) for t in terms), Fraction(0))
    negative_zeros = bool(terms) and all(isinstance(t, float) and math.copysign(1, t) < 0 for t in terms)
    return -0.0 if negative_zeros else total


def _opposed(terms: Sequence[Number]) -> bool:
    infinities = {t for t in terms if isinstance(t, float) and math.isinf(t)}
    return len(infinities) == 2 or any(isinstance(t, float) and math.isnan(t) for t in terms)


def _negative(x: Number) -> bool:
    return x < 0 or (isinstance(x, float) and math.copysign(1, x) < 0)


def _cut(x: Fraction, unit: Fraction) -> Fraction:
    """Return ``x`` cut toward zero to a multiple of ``unit``."""
    n = abs(x) / unit
    return (n.numerator // n.denominator) * unit * (1 if x > 0 else -1)


def _floor(x: Fraction, unit: Fraction) -> Fraction:
    return math.floor(x / unit) * unit


def _round(x: Number, fmt: FloatFormat, mode: str, p: int = 0, unbounded: bool = False) -> float:
    """Return ``x`` rounded once to ``p`` bits in the range of ``fmt``, or to these bits with any exponent."""
    if isinstance(x, float):
        return x
    if x == 0:
        return 0.0
    p = p or fmt.p
    e = floor_log2(abs(x))
    quantum = power_of_two((e if unbounded else max(e, fmt.emin)) - p + 1)
    n, rest = divmod(abs(x), quantum)
    negative = x < 0
    away = {
        "toward-zero": False,
        "nearest-even": rest * 2 > quantum or (rest * 2 == quantum and n % 2 == 1),
        "nearest-away": rest * 2 >= quantum,
        "up": rest > 0 and not negative,
        "down": rest > 0 and negative,
        "to-odd": rest > 0 and n % 2 == 0,
    }[mode]
    magnitude = (n + away) * quantum
    if not unbounded and magnitude >= power_of_two(fmt.emax + 1):
        return -math.inf if negative else math.inf
    return math.copysign(float(magnitude), -1 if negative else 1)


def _flushed(x: float, fmt: FloatFormat = FP32) -> float:
    """Return a number, or a zero of its sign where it is subnormal."""
    return math.copysign(0.0, x) if 0 < abs(x) < float(fmt.min_normal) else x


def _rounded_and_flushed(x: Number) -> float:
    """Return ``x`` in fp32, or a zero of its sign where it is tiny after rounding with unbounded exponent."""
    if isinstance(x, Fraction) and 0 < abs(Fraction(_round(x, FP32, "nearest-even", unbounded=True))) < FP32.min_normal:
        return math.copysign(0.0, x)
    return _round(x, FP32, "nearest-even")


def _name(k: int) -> str:
    return f"a[{k}]*b[{k}]"


def _exponent(x: float, fmt: FloatFormat) -> int:
    """Return the exponent that a number has in its format: of subnormals and zero the smallest."""
    return fmt.emin if x == 0 else max(floor_log2(abs(Fraction(x))), fmt.emin)


def _span(start: int, stop: int) -> str:
    return f"k = {start}" if stop - start == 1 else f"k = {start} to {stop - 1}"


# NVIDIA: aligned, truncated, summed exactly.

_ALIGNED = ("term", "value", "exponent", "kept", "cut off")


@dataclass(frozen=True, slots=True)
class _Term:
    name: str
    value: Number
    exponent: int


def _aligned(terms: Sequence[_Term], row: MatrixUnit, title: str, out: FloatFormat) -> Step:
    """Return the fused sum of terms."""
    special = [t.value for t in terms if isinstance(t.value, float) and not math.isfinite(t.value)]
    if special:
        result = float(_sum([t.value for t in terms]))
        why = "NaN, Inf times zero, or infinities of both signs" if math.isnan(result) else "an infinite term decides"
        named = tuple((t.name, t.value) for t in terms)
        return Step(title, ("term", "value"), named, (("special", why),), result)
    dropped = row.zero_terms is ZeroTerms.DROP
    taking_part = [t.exponent for t in terms if not (dropped and _is_zero(t.value))]
    if dropped:
        taking_part.append(row.floor)
    largest = max(taking_part)
    quantum = power_of_two(largest - row.fraction_bits)
    kept = [_cut(Fraction(t.value), quantum) for t in terms]
    rows = tuple(
        (t.name, t.value, None if _is_zero(t.value) else t.exponent, k, Fraction(t.value) - k)
        for t, k in zip(terms, kept, strict=True)
    )
    total = sum(kept, Fraction(0))
    result = _round(total, out, row.rounding, row.result_precision)
    result = result if result != 0 else 0.0
    facts: tuple[tuple[str, Cell], ...] = (
        ("largest exponent", largest),
        ("aligned to multiples of", quantum),
        ("sum of what is kept", total),
        (f"rounded {row.rounding} to {row.result_precision} bits", _exact(result)),
    )
    return Step(title, _ALIGNED, rows, facts, result)


def _terms(dot: Dot, row: MatrixUnit, ks: Sequence[int]) -> list[_Term]:
    a, b = row.inputs
    terms = []
    for k in ks:
        x, y = dot.a[k], dot.b[k]
        if row.zero_terms is ZeroTerms.MMA_SIM:
            e = sum(MMA_SIM_ZERO if v == 0 else _exponent(v, f) for v, f in ((x, a), (y, b)) if math.isfinite(v))
        else:
            e = sum(_exponent(v, f) for v, f in ((x, a), (y, b)) if math.isfinite(v))
        value = _product(x, y)
        if dot.scales:
            shift, significand = dot.scales[k]
            value = math.nan if significand is None else value
            value = value * power_of_two(shift) if isinstance(value, Fraction) else value
            e += shift
        terms.append(_Term(_name(k), value, e))
    return terms


def _accumulator(c: float, row: MatrixUnit, out: FloatFormat) -> _Term:
    zero = row.zero_terms is ZeroTerms.MMA_SIM and c == 0
    return _Term("c", _exact(c), MMA_SIM_ZERO if zero else _exponent(c, out) if math.isfinite(c) else 0)


def _fused(dot: Dot, row: MatrixUnit) -> Iterator[Step]:
    c, out, k = dot.c, get_format(row.out), len(dot.a)
    for start in range(0, max(k, 1), row.block_length):
        stop = min(start + row.block_length, k)
        terms = [*_terms(dot, row, range(start, stop)), _accumulator(c, row, out)]
        step = _aligned(terms, row, f"block of {stop - start} products, {_span(start, stop)}", out)
        yield step
        c = step.result


def _grouped(dot: Dot, row: MatrixUnit) -> Iterator[Step]:
    c, out, k = dot.c, get_format(row.out), len(dot.a)
    for start in range(0, max(k, 1), row.block_length):
        stop = min(start + row.block_length, k)
        terms = []
        for first in range(start, stop, row.group_length):
            last = min(first + row.group_length, stop)
            total = sum((Fraction(dot.a[i]) * Fraction(dot.b[i]) for i in range(first, last)), Fraction(0))
            shift, significand = dot.scales[first]
            value: Number = math.nan if significand is None else total * significand * power_of_two(shift)
            terms.append(_Term(f"group {_span(first, last)}", value, shift))
        terms.append(_accumulator(c, row, out))
        step = _aligned(terms, row, f"groups of {row.group_length} products, {_span(start, stop)}", out)
        yield step
        c = step.result


def _interleaved(dot: Dot, row: MatrixUnit) -> Iterator[Step]:
    c, out, k = dot.c, get_format(row.out), len(dot.a)
    for start in range(0, max(k, 1), row.k):
        t = 0.0
        for half in (0, 2):
            own = [i for i in range(start, min(start + row.k, k)) if i % 4 in (half, half + 1)]
            terms = [*_terms(dot, row, own), _accumulator(t, row, out)]
            step = _aligned(terms, row, f"FP16 instruction on k mod 4 = {half}, {half + 1} from {start}", out)
            yield step
            t = step.result
        yield (step := _added(c, t, out, "accumulator added"))
        c = step.result


def _added(c: float, t: float, out: FloatFormat, title: str) -> Step:
    """Return an IEEE addition, rounded to nearest even."""
    total = _sum([_exact(t), _exact(c)])
    result = _round(total, out, "nearest-even")
    rows: tuple[tuple[Cell, ...], ...] = (("sum of products", _exact(t)), ("c", _exact(c)))
    return Step(
        title, ("term", "value"), rows, (("exact sum", total), ("rounded nearest-even", _exact(result))), result
    )


# AMD.

_VALUES = ("term", "value", "exact", "rounded")


def _fma_chain(dot: Dot, row: MatrixUnit) -> Iterator[Step]:
    c, out = dot.c, get_format(row.out)
    rows: list[tuple[Cell, ...]] = [("c", None, None, _exact(c))]
    for k, (x, y) in enumerate(zip(dot.a, dot.b, strict=True)):
        product = _product(x, y)
        total = _sum([product, _exact(c)])
        c = _round(total, out, "nearest-even")
        rows.append((_name(k), product, total, _exact(c)))
    yield Step("fused multiply-adds in increasing k", _VALUES, tuple(rows), (), c)


def _exact_blocks(dot: Dot, row: MatrixUnit) -> Iterator[Step]:
    c, out, k = dot.c, get_format(row.out), len(dot.a)
    length = row.block_length or max(k, 1)
    for start in range(0, k, length):
        stop = min(start + length, k)
        terms = [(_name(i), _product(dot.a[i], dot.b[i])) for i in range(start, stop)] + [("c", _exact(c))]
        total = _sum([value for _, value in terms])
        c = _round(total, out, "nearest-even")
        c = 0.0 if c == 0 and not (isinstance(total, Fraction) and total != 0) else c
        yield Step(
            f"exact block of {stop - start} products, {_span(start, stop)}", ("term", "value"), tuple(terms),
            (("exact sum", total), ("rounded nearest-even", _exact(c))), c,
        )  # fmt: skip


def _flushed_pairs(dot: Dot, row: MatrixUnit) -> Iterator[Step]:
    (a, b), k = row.inputs, len(dot.a)
    c = _positive_if_subnormal(dot.c, FP32)
    for start in range(0, k, row.block_length):
        stop = start + row.block_length
        rows: list[tuple[Cell, ...]] = []
        level: list[float] = []
        for i in range(start, stop):
            x = _positive_if_subnormal(dot.a[i], a) if i < k else 0.0
            y = _positive_if_subnormal(dot.b[i], b) if i < k else 0.0
            p = _flushed(_round(_product(x, y), FP32, "nearest-even"))
            p = 0.0 if p == 0 and (x == 0 or y == 0) else p
            rows.append((_name(i), _product(x, y), _exact(p)))
            level.append(p)
        while len(level) > 1:
            level = [_flushed(_plus(level[i], level[i + 1])) for i in range(0, len(level), 2)]
        rows.append(("sum of pairs", None, _exact(level[0])))
        rows.append(("c", None, _exact(c)))
        c = _flushed(_plus(c, level[0]))
        facts: tuple[tuple[str, Cell], ...] = (("added, rounded and flushed", _exact(c)),)
        yield Step(
            f"pairwise sums of {_span(start, min(stop, k))}",
            ("term", "exact", "rounded and flushed"),
            tuple(rows),
            facts,
            c,
        )


def _positive_if_subnormal(x: float, fmt: FloatFormat) -> float:
    return 0.0 if abs(x) < float(fmt.min_normal) else x


def _plus(x: float, y: float) -> float:
    return _round(_sum([_exact(x), _exact(y)]), FP32, "nearest-even")


def _special(terms: Sequence[tuple[str, Number]]) -> Step | None:
    """Return the step of a sum that an infinity or a NaN decides."""
    if all(isinstance(value, Fraction) or value == 0 for _, value in terms):
        return None
    result = float(_sum([value for _, value in terms]))
    why = "NaN, Inf times zero, or infinities of both signs" if math.isnan(result) else "an infinite term decides"
    return Step("special values", ("term", "value"), tuple(terms), (("special", why),), result)


_LIMIT = power_of_two(128)


def _bounded(value: Number) -> Number:
    """Return a product, or an infinity where it reaches 2**128."""
    if isinstance(value, Fraction) and abs(value) >= _LIMIT:
        return math.copysign(math.inf, value)
    return value


def _floored(dot: Dot, row: MatrixUnit) -> Iterator[Step]:
    c, k = dot.c, len(dot.a)
    for start in range(0, max(k, 1), row.block_length):
        stop = min(start + row.block_length, k)
        terms = _terms(dot, row, range(start, stop))
        bounded = [_Term(t.name, _bounded(t.value), t.exponent) for t in terms]
        title = f"block of {stop - start} products, {_span(start, stop)}"
        step = (
            _special([*((t.name, t.value) for t in terms), ("c", _exact(c))])
            or _special([(t.name, t.value) for t in bounded])
            or _floored_sum(terms, c, row, title)
        )
        yield step
        c = step.result


def _floored_sum(terms: Sequence[_Term], c: float, row: MatrixUnit, title: str) -> Step:
    """Return CDNA 3's sum: products cut toward zero, their sum and the accumulator cut down, one rounding."""
    halves = [terms[0::2], terms[1::2]] if row.family is Family.FLOORED_HALVES else [terms]
    own = _exponent(c, FP32) if c else MMA_SIM_ZERO
    kept: dict[str, Fraction] = {}
    sums: list[tuple[Fraction, int]] = []
    for half in halves:
        taking_part = [t for t in half if row.zero_terms is not ZeroTerms.DROP or not _is_zero(t.value)]
        if taking_part:
            e = max(t.exponent for t in taking_part)
            kept |= {t.name: _cut(Fraction(t.value), power_of_two(e - row.fraction_bits)) for t in taking_part}
            sums.append((sum((kept[t.name] for t in taking_part), Fraction(0)), e))
    rows: list[tuple[Cell, ...]] = [
        (t.name, t.value, t.exponent if t.name in kept else None, kept.get(t.name, Fraction(0)),
         Fraction(t.value) - kept.get(t.name, Fraction(0)))
        for t in terms
    ]  # fmt: skip
    largest = max((e for _, e in sums), default=own)
    total = sum((_floor(s, power_of_two(largest - row.fraction_bits)) for s, _ in sums), Fraction(0))
    top = max(largest, own)
    products = _floor(total, power_of_two(top - row.sum_bits))
    accumulator = _floor(Fraction(c), power_of_two(top - row.accumulator_bits))
    if own < top - row.accumulator_reach:
        accumulator = Fraction(0)
    rows.append(("c", _exact(c), own, accumulator, Fraction(c) - accumulator))
    exact = products + accumulator
    result = _round(exact, FP32, "nearest-even")
    facts: tuple[tuple[str, Cell], ...] = (
        ("largest exponent of products", largest if sums else None),
        ("sum of the kept products", total),
        (f"cut down to {row.sum_bits} bits below exponent {top}", products),
        (f"accumulator cut down to {row.accumulator_bits} bits", accumulator),
        ("sum", exact),
        ("rounded nearest-even", _exact(result)),
    )
    return Step(title, _ALIGNED, tuple(rows), facts, result)


# Processors.


def _vdpbf16ps(dot: Dot, _: MatrixUnit) -> Iterator[Step]:
    c, rows, n = _flushed(dot.c), list[tuple[Cell, ...]](), len(dot.a)
    rows.append(("c", None, None, _exact(c)))
    for pair in range(0, n, 2):
        for k in (pair + 1, pair):
            x, y = (_flushed(v[k]) if k < n else 0.0 for v in (dot.a, dot.b))
            total = _sum([_product(x, y), _exact(c)])
            c = _rounded_and_flushed(total)
            rows.append((_name(k), _product(x, y), total, _exact(c)))
    yield Step("fused multiply-adds, odd elements first, tiny results flushed", _VALUES, tuple(rows), (), c)


def _amx(dot: Dot, row: MatrixUnit) -> Iterator[Step]:
    c, n = _flushed(dot.c), len(dot.a)
    rows: list[tuple[Cell, ...]] = []
    if row.order == "intrinsics-guide":
        rows = [("c", None, None, _exact(c))]
        for k in range(n):
            x, y = (v if row.subnormal_inputs else _flushed(v) for v in (dot.a[k], dot.b[k]))
            total = _sum([_product(x, y), _exact(c)])
            c = _rounded_and_flushed(total)
            rows.append((_name(k), _product(x, y), total, _exact(c)))
        yield Step("fused multiply-adds in increasing k, tiny results flushed", _VALUES, tuple(rows), (), c)
        return
    for start in range(0, n, row.k):
        chains = [0.0, 0.0]
        rows = []
        for k in range(start, min(start + row.k, n)):
            x, y = (v if row.subnormal_inputs else _flushed(v) for v in (dot.a[k], dot.b[k]))
            total = _sum([_product(x, y), _exact(chains[k % 2])])
            chains[k % 2] = _rounded_and_flushed(total)
            rows.append((_name(k), _product(x, y), total, _exact(chains[k % 2])))
        both = _rounded_and_flushed(_sum([_exact(v) for v in chains]))
        total = _sum([_exact(both), _exact(c)])
        c = _rounded_and_flushed(total)
        facts: tuple[tuple[str, Cell], ...] = (
            ("even chain", _exact(chains[0])),
            ("odd chain", _exact(chains[1])),
            ("their sum, rounded", _exact(both)),
            ("with the accumulator, exactly", total),
            ("rounded", _exact(c)),
        )
        yield Step(f"tile of {_span(start, min(start + row.k, n))}", _VALUES, tuple(rows), facts, c)


def _to_odd(x: Number) -> float:
    return _flushed(_round(x, FP32, "to-odd"))


def _bfdot(dot: Dot, row: MatrixUnit) -> Iterator[Step]:
    extended = row.family is Family.BFDOT_EXTENDED
    c, n = dot.c if extended else _flushed(dot.c), len(dot.a)
    for start in range(0, n, 2):
        pairs = [(dot.a[k], dot.b[k]) if k < n else (0.0, 0.0) for k in (start, start + 1)]
        if extended:
            products = [_product(x, y) for x, y in pairs]
            s = _round(_sum(products), FP32, "nearest-even")
            total = _sum([_exact(s), _exact(c)])
            c = _round(total, FP32, "nearest-even")
            rows = tuple((_name(start + i), p, p) for i, p in enumerate(products))
        else:
            exact = [_product(_flushed(x), _flushed(y)) for x, y in pairs]
            products = [_exact(_to_odd(p)) for p in exact]
            s = _to_odd(_sum(products))
            total = _sum([_exact(s), _exact(c)])
            c = _to_odd(total)
            rows = tuple((_name(start + i), p, q) for i, (p, q) in enumerate(zip(exact, products, strict=True)))
        facts: tuple[tuple[str, Cell], ...] = (
            ("sum of the pair, rounded", _exact(s)),
            ("with the accumulator, exactly", total),
            ("rounded", _exact(c)),
        )
        yield Step(f"pair {_span(start, min(start + 2, n))}", ("term", "value", "rounded"), rows, facts, c)


# Idealised.


def _rounded(dot: Dot, row: MatrixUnit) -> Iterator[Step]:
    out, n = get_format(row.out), len(dot.a)

    def add(c: float, term: Number) -> float:
        total = _sum([_exact(c), term])
        if total == 0 and row.rounding == "down" and _negative(_exact(c)) != _negative(term):
            return -0.0
        return _ieee_round(total, out, row.rounding)

    products = [_product(x, y) for x, y in zip(dot.a, dot.b, strict=True)]
    c = dot.c
    if row.order == Order.PAIRWISE:
        level = [add(0.0, p) for p in products]
        rows: list[tuple[Cell, ...]] = [
            (_name(k), p, _exact(v)) for k, (p, v) in enumerate(zip(products, level, strict=True))
        ]
        while len(level) > 1:
            joined = [add(level[i], _exact(level[i + 1])) for i in range(0, len(level) - 1, 2)]
            level = joined + (level[-1:] if len(level) % 2 else [])
            rows += [(f"sum {i} of {len(level)}", None, _exact(v)) for i, v in enumerate(level)]
        c = add(c, _exact(level[0])) if level else c
        yield Step("pairwise sums", ("term", "exact", "rounded"), tuple(rows), (("with c", _exact(c)),), c)
        return
    chunk = row.block_length or max(n, 1)
    for start in range(0, n, chunk):
        total = 0.0 if row.block_length else c
        rows = []
        for k in range(start, min(start + chunk, n)):
            total = add(total, products[k])
            rows.append((_name(k), products[k], _exact(total)))
        c = add(c, _exact(total)) if row.block_length else total
        yield Step(
            f"chain of {_span(start, min(start + chunk, n))}", ("term", "value", "partial sum"), tuple(rows), (), c
        )


def _ieee_round(x: Number, fmt: FloatFormat, mode: str) -> float:
    """Return ``x`` in ``fmt``, with IEEE 754's overflow of each direction."""
    y = _round(x, fmt, mode)
    if isinstance(x, Fraction) and math.isinf(y):
        stays = mode in ("toward-zero", "to-odd") or mode == ("down" if x > 0 else "up")
        return math.copysign(float(fmt.max_finite), y) if stays else y
    return y


def _exact_dot(dot: Dot, row: MatrixUnit) -> Iterator[Step]:
    terms = [(_name(k), _product(x, y)) for k, (x, y) in enumerate(zip(dot.a, dot.b, strict=True))]
    terms.append(("c", _exact(dot.c)))
    total = _sum([value for _, value in terms])
    result = _round(total, get_format(row.out), "nearest-even")
    facts: tuple[tuple[str, Cell], ...] = (("exact sum", total), ("rounded nearest-even", _exact(result)))
    yield Step("one sum", ("term", "value"), tuple(terms), facts, result if result != 0 else 0.0)


_FAMILIES: dict[Family, Callable[[Dot, MatrixUnit], Iterator[Step]]] = {
    Family.FUSED: _fused,
    Family.SCALED: _fused,
    Family.GROUPED: _grouped,
    Family.INTERLEAVED: _interleaved,
    Family.FMA_CHAIN: _fma_chain,
    Family.EXACT_BLOCKS: _exact_blocks,
    Family.FLUSHED_PAIRS: _flushed_pairs,
    Family.FLOORED: _floored,
    Family.FLOORED_HALVES: _floored,
    Family.VDPBF16PS: _vdpbf16ps,
    Family.AMX: _amx,
    Family.BFDOT: _bfdot,
    Family.BFDOT_EXTENDED: _bfdot,
    Family.ROUNDED: _rounded,
    Family.EXACT: _exact_dot,
}
