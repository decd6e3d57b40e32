"""Units that give the answers of a black box, and the question that tells each other one apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mpsim.formats import get_format
from mpsim.hardware.boxes import Answers, Design, Setting, emulated, same_answers
from mpsim.units import UNITS, Family, MatrixUnit

__all__ = ["Witness", "arithmetic_of", "candidates", "first_fit", "witness"]

_SCREENED = 96
"""Questions that a hypothesis is tried on before all others."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A dot product on which a unit and the black box differ."""

    unit: MatrixUnit
    design: Design
    expected: float
    """What the unit gives."""
    got: float
    """What the box gave."""
    differing: int
    """Answers that differ, of all."""

    def __str__(self) -> str:
        return f"{self.unit}: {self.design} gives {self.got:.9g}, that unit {self.expected:.9g}"


def arithmetic_of(unit: MatrixUnit) -> MatrixUnit:
    """Return a unit without what changes no bit: names, evidence, and numbers that its family does not use."""
    fused = unit.family in (Family.FUSED, Family.SCALED, Family.GROUPED, Family.INTERLEAVED)
    return dataclasses.replace(
        unit,
        architecture="",
        devices=(),
        instruction="",
        accumulators=(),
        k=unit.k if unit.family is Family.AMX else 0,
        integer_bits=0,
        alignment_floor=unit.floor if fused else None,
        evidence="",
        source="",
    )


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


def first_fit(
    units: Iterable[MatrixUnit], designs: Sequence[Design], answers: Answers, setting: Setting
) -> MatrixUnit | None:
    """Return the first unit that gives every answer."""
    spread = np.linspace(0, len(designs) - 1, min(_SCREENED, len(designs))).astype(int)
    some = [designs[i] for i in spread]
    for unit in units:
        if not same_answers(emulated(unit, some, setting), answers[spread]).all():
            continue
        if same_answers(emulated(unit, designs, setting), answers).all():
            return unit
    return None


def witness(unit: MatrixUnit, designs: Sequence[Design], answers: Answers, setting: Setting) -> Witness | None:
    """Return the shortest question on which a unit differs from the answers; None where it gives all of them."""
    own = emulated(unit, designs, setting)
    different = np.flatnonzero(~same_answers(own, answers))
    if not different.size:
        return None
    i = min(different.tolist(), key=lambda i: (len(designs[i].products), i))
    return Witness(unit, designs[i], float(own[i]), float(answers[i]), different.size)
