"""Units that give the answers of a black box, and the question that tells each other one apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from mpsim.formats import get_format
from mpsim.hardware.boxes import Answers, Design, Setting, by_hand, emulated, same_answers
from mpsim.matmul.schedules import Schedule
from mpsim.units import UNITS, Family, MatrixUnit, ZeroTerms

__all__ = ["Witness", "arithmetic_of", "candidates", "fits", "witness"]

_SCREENED = 96
"""Questions that a hypothesis is tried on before all others."""
_BY_HAND = 24
"""Questions that a row is tried on without its kernel."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A dot product on which a unit that follows a schedule and the black box differ."""

    unit: MatrixUnit
    design: Design
    expected: float
    """What the unit gives."""
    got: float
    """What the box gave."""
    schedule: Schedule = field(default_factory=Schedule)


_FUSED_NUMBERS = {"block_length", "fraction_bits", "result_precision", "rounding", "zero_terms"}
_FLOORED_NUMBERS = {"block_length", "fraction_bits", "sum_bits", "accumulator_bits", "accumulator_reach", "zero_terms"}
_NUMBERS: dict[Family, set[str]] = {
    Family.FUSED: _FUSED_NUMBERS,
    Family.INTERLEAVED: _FUSED_NUMBERS,
    Family.SCALED: _FUSED_NUMBERS | {"scale", "scale_block"},
    Family.GROUPED: _FUSED_NUMBERS - {"zero_terms"} | {"scale", "scale_block", "group_length"},
    Family.FLOORED: _FLOORED_NUMBERS,
    Family.FLOORED_HALVES: _FLOORED_NUMBERS,
    Family.EXACT_BLOCKS: {"block_length"},
    Family.FLUSHED_PAIRS: {"block_length"},
    Family.AMX: {"k", "order", "subnormal_inputs"},
    Family.ROUNDED: {"block_length", "order", "rounding"},
}
"""Numbers that each family uses, beside the formats."""


def arithmetic_of(unit: MatrixUnit) -> MatrixUnit:
    """Return a unit without what changes no bit: names, evidence, and numbers that its family does not use.

    Examples
    --------
    >>> from mpsim.units import get
    >>> a100, rtx_4090, h100 = map(arithmetic_of, map(get, ("a100", "rtx-4090", "h100")))
    >>> a100 == rtx_4090, a100 == h100
    (True, False)
    """
    used = _NUMBERS.get(unit.family, set())
    plain = MatrixUnit(family=Family.EXACT, architecture="", instruction="", a=unit.a, b=unit.b, out=unit.out)
    floor = unit.floor if "result_precision" in used and unit.zero_terms is ZeroTerms.DROP else None
    numbers = {name: getattr(unit, name) for name in used}
    return dataclasses.replace(plain, family=unit.family, alignment_floor=floor, **numbers)


def candidates(setting: Setting) -> tuple[MatrixUnit, ...]:
    """Return the rows of the catalogue that take these inputs and give this result, or one that is rounded to it."""
    scale = setting.scale.name if setting.scale else ""
    return tuple(
        row
        for row in UNITS
        if (row.a, row.b, row.scale) == (setting.a.name, setting.b.name, scale)
        and row.scale_block == setting.scale_block
        and (row.out == setting.out.name or (row.out == "fp32" and get_format(setting.out).p < 24))
    )


def fits(
    units: Iterable[MatrixUnit], designs: Sequence[Design], answers: Answers, setting: Setting
) -> Iterator[MatrixUnit]:
    """Yield the units that give every answer."""
    spread = np.linspace(0, len(designs) - 1, min(_SCREENED, len(designs))).astype(int)
    some = [designs[i] for i in spread]
    for unit in units:
        if not same_answers(emulated(unit, some, setting), answers[spread]).all():
            continue
        if same_answers(emulated(unit, designs, setting), answers).all():
            yield unit


def witness(unit: MatrixUnit, designs: Sequence[Design], answers: Answers, setting: Setting) -> Witness | None:
    """Return a question on which a unit differs from the answers, rather a short one; None where it gives them all.

    Some of all lengths are worked out in exact fractions first, so that most units need no compiled kernel.
    """
    shortest = sorted(range(len(designs)), key=lambda i: (len(designs[i].products), i))
    if unit.family is not Family.FUSED and not setting.scale:
        for i in shortest[:: max(len(designs) * setting.k // (64 * _BY_HAND), 1)]:
            own = by_hand(unit, designs[i], setting)
            if not same_answers(own, answers[i : i + 1])[0]:
                return Witness(unit, designs[i], float(own[0]), float(answers[i]))
    given = emulated(unit, designs, setting)
    same = same_answers(given, answers)
    first = next((i for i in shortest if not same[i]), None)
    return None if first is None else Witness(unit, designs[first], float(given[first]), float(answers[first]))
