"""From what was measured to units that may be behind it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

from mpsim.formats import FP64, get_format
from mpsim.hardware.boxes import Setting
from mpsim.hardware.measures import Measures
from mpsim.hardware.structure import Structure
from mpsim.units import Family, MatrixUnit, Order, ZeroTerms

__all__ = ["hypotheses", "is_predicted", "predicted"]

_LENGTHS = (1, 2, 4, 8, 16, 32, 64)
"""Block lengths of fused units to try where nothing shows them."""


def predicted(family: Family, length: int, k: int) -> tuple[int, ...]:
    """Return what `Structure.hidden` is for a family with blocks of some length.

    Examples
    --------
    >>> predicted(Family.FUSED, 4, 8)
    (1, 4, 4, 4, 8, 8, 8, 8)
    >>> predicted(Family.VDPBF16PS, 2, 8)
    (1, 2, 4, 3, 6, 5, 8, 7)
    """
    rule = _HIDDEN.get(family)
    return () if rule is None else (1, *(min(rule(j, length, k), k) for j in range(1, k)))


_ENOUGH = 256
"""Products whose order of summation tells families apart."""


def is_predicted(hidden: Sequence[int | None]) -> bool:
    """Whether the order of summation in one chain is that of some family.

    Examples
    --------
    >>> is_predicted((1, 4, 4, 4, 8, 8, 8, 8)), is_predicted((1, 4, 4, 4, 6, 6, 8, 8))
    (True, False)
    """
    k = min(len(hidden), _ENOUGH)
    if None in hidden[:k]:
        return False
    seen = tuple(min(count, k) for count in hidden[:k] if count is not None)
    lengths = range(1, 65)
    return any(predicted(family, n, k) == seen for family in _HIDDEN for n in _FIXED.get(family, lengths))


def _blocks(j: int, length: int, k: int) -> int:
    return length * (j // length + 1)


def _exact(j: int, length: int, k: int) -> int:
    return 2 if j < length else length * (j // length) + 1


def _tree_in_blocks(j: int, length: int, k: int) -> int:
    return 1 << j.bit_length() if j < length else _blocks(j, length, k)


def _interleaved(j: int, length: int, k: int) -> int:
    if j >= 2 * length:
        return _blocks(j, 2 * length, k)
    return length if j % 4 < 2 else 2 * length


def _odd_first(j: int, length: int, k: int) -> int:
    return (j ^ 1) + 1 if j > 1 else 2


def _even_and_odd(j: int, length: int, k: int) -> int:
    depth = min(32, k)
    if j >= depth:
        return _blocks(j, depth, k)
    return depth if j % 2 else j // 2 + 1


_HIDDEN: dict[Family, Callable[[int, int, int], int]] = {
    Family.FUSED: _blocks,
    Family.FLOORED: _blocks,
    Family.FLOORED_HALVES: _blocks,
    Family.INTERLEAVED: _interleaved,
    Family.FMA_CHAIN: lambda j, length, k: j + 1,
    Family.EXACT_BLOCKS: _exact,
    Family.FLUSHED_PAIRS: _tree_in_blocks,
    Family.VDPBF16PS: _odd_first,
    Family.AMX: _even_and_odd,
    Family.BFDOT_EXTENDED: _blocks,
    Family.EXACT: lambda j, length, k: 2,
}


_FIXED = {Family.AMX: (2,), Family.VDPBF16PS: (2,), Family.BFDOT_EXTENDED: (2,), Family.EXACT: (0,)}
"""Block lengths of families that have one."""

_HIDES_C = {
    Family.FUSED: True,
    Family.FLOORED: True,
    Family.FLOORED_HALVES: True,
    Family.INTERLEAVED: False,
    Family.FLUSHED_PAIRS: False,
    Family.AMX: False,
    Family.BFDOT_EXTENDED: False,
}
"""Whether a pair of large products at k = 0 and 1 that cancels hides the accumulator, where it tells."""


def hypotheses(setting: Setting, structure: Structure, m: Measures) -> Iterator[MatrixUnit]:
    """Yield units of every family whose order of summation is that of a structure, the likeliest numbers first."""
    for out in dict.fromkeys((setting.out.name, "fp64" if FP64 in setting[:3] else "fp32")):
        for family, lengths in _families(setting, structure):
            for length in lengths:
                yield from _MAKERS[family](_base(setting, out, family, length), m)


def _families(setting: Setting, structure: Structure) -> Iterator[tuple[Family, tuple[int, ...]]]:
    """Yield families with the block lengths that fit a structure."""
    if FP64 in setting[:3]:
        yield Family.FMA_CHAIN, (1,)
        return
    if setting.scale is not None:
        length = len(structure.block)
        yield Family.SCALED, (length,) if length > 1 else (setting.scale_block,)
        yield Family.GROUPED, (length,) if length > 1 else (64,)
        return
    if structure.distorted:
        yield Family.BFDOT, (2,)
        yield Family.ROUNDED, (0,)
        return
    if structure.narrow:
        yield Family.EXACT, (0,)
        yield Family.FMA_CHAIN, (1,)
        yield Family.ROUNDED, (0,)
        yield Family.FUSED, (len(structure.block),) if len(structure.block) > 1 else _LENGTHS
    if structure.hidden == predicted(Family.FMA_CHAIN, 1, setting.k):
        yield Family.FMA_CHAIN, (1,)
        yield Family.ROUNDED, (0,)
        yield Family.FUSED, (1,)
        return
    if structure.exact_inside:
        yield Family.FUSED, (len(structure.block),)
    for family in _HIDDEN:
        if family in _HIDES_C and structure.accumulator_hidden[1:2] not in ((), (_HIDES_C[family],)):
            continue
        tried = _FIXED.get(family, range(1, min(setting.k, 64) + 1))
        fitting = tuple(n for n in tried if predicted(family, n, setting.k) == structure.hidden)
        if fitting:
            yield family, fitting[:1]  # longer ones fit only where K is one block
    yield Family.ROUNDED, (0,)


def _base(setting: Setting, out: str, family: Family, length: int) -> MatrixUnit:
    """Return a unit with numbers that suit most families."""
    fmt = get_format(out)
    return MatrixUnit(
        family=family,
        architecture="found",
        instruction="probed",
        a=setting.a.name,
        b=setting.b.name,
        out=out,
        accumulators=(out,),
        k=32 if family is Family.AMX else length,
        block_length=length,
        fraction_bits=24,
        result_precision=fmt.p,
        rounding="nearest-even",
        scale=setting.scale.name if setting.scale else "",
        scale_block=setting.scale_block,
        group_length=16 if family is Family.GROUPED else 0,
        order="sdm" if family is Family.AMX else Order.SEQUENTIAL,
        source="found by probing",
    )


def _fused(unit: MatrixUnit, m: Measures) -> Iterator[MatrixUnit]:
    bits = [n for n in (m.fraction_bits, m.accumulator_bits) if n is not None] or [25, 24, 23, 13, 35]
    fmt = get_format(unit.out)
    if unit.block_length == 1:
        bits += [
            fmt.p - 1 + guard for guard in range(4)
        ]  # a product alone with c shows its guard bits by rounding only
    numbers = itertools.product(
        dict.fromkeys(bits),
        _precisions(fmt.p, unit.family),
        ("toward-zero", "nearest-even"),
        (None,) if m.finest is None else (m.finest, None),
        ZeroTerms,
    )
    for fraction_bits, p, rounding, finest, zero_terms in numbers:
        if not 1 <= fraction_bits <= 46:
            continue
        floors = (finest + fraction_bits,) if finest is not None else tuple(fmt.emin - n for n in (6, 7, 5))
        for floor in floors if zero_terms is ZeroTerms.DROP else floors[:1]:
            yield dataclasses.replace(
                unit,
                fraction_bits=fraction_bits,
                result_precision=p,
                rounding=rounding,
                alignment_floor=floor,
                zero_terms=zero_terms,
            )


def _precisions(p: int, family: Family) -> tuple[int, ...]:
    """Return precisions of a block's result within a format, those of real units first."""
    real = [n for n in (p, 14) if n <= p]
    return tuple(dict.fromkeys([*real, *range(p, 0, -1)] if family is Family.FUSED else real))


def _floored(unit: MatrixUnit, m: Measures) -> Iterator[MatrixUnit]:
    bits = m.fraction_bits if m.fraction_bits is not None else 24
    for sum_bits, accumulator_bits, zero_terms in itertools.product((31, 24, 28, 34), (24, 31), ZeroTerms):
        yield dataclasses.replace(
            unit,
            fraction_bits=bits,
            sum_bits=sum_bits,
            accumulator_bits=accumulator_bits,
            accumulator_reach=25 if unit.family is Family.FLOORED_HALVES else 1000,
            zero_terms=zero_terms,
        )


def _rounded(unit: MatrixUnit, m: Measures) -> Iterator[MatrixUnit]:
    for order, rounding in itertools.product(
        Order, ("nearest-even", "toward-zero", "nearest-away", "to-odd", "up", "down")
    ):
        yield dataclasses.replace(unit, block_length=0, order=order, rounding=rounding)


def _amx(unit: MatrixUnit, m: Measures) -> Iterator[MatrixUnit]:
    for order, kept in itertools.product(("sdm", "intrinsics-guide"), (False, True)):
        yield dataclasses.replace(unit, order=order, subnormal_inputs=kept)


def _alone(unit: MatrixUnit, m: Measures) -> Iterator[MatrixUnit]:
    yield unit


_MAKERS: dict[Family, Callable[[MatrixUnit, Measures], Iterator[MatrixUnit]]] = {
    Family.FUSED: _fused,
    Family.SCALED: _fused,
    Family.GROUPED: _fused,
    Family.INTERLEAVED: _fused,
    Family.FLOORED: _floored,
    Family.FLOORED_HALVES: _floored,
    Family.ROUNDED: _rounded,
    Family.AMX: _amx,
    **dict.fromkeys(
        (Family.FMA_CHAIN, Family.EXACT_BLOCKS, Family.FLUSHED_PAIRS, Family.VDPBF16PS, Family.BFDOT,
         Family.BFDOT_EXTENDED, Family.EXACT),
        _alone,
    ),
}  # fmt: skip
