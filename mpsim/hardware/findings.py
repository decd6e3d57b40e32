"""What a probe found out, and how it is told."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from mpsim.hardware.matching import Witness
from mpsim.units import Family, MatrixUnit

__all__ = ["Fact", "Finding"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One property of a unit, as its answers show it."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}: {self.value}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a black box was found to be."""

    facts: tuple[Fact, ...]
    """What the designed inputs show, whatever the unit."""
    unit: MatrixUnit | None
    """A unit that gives every answer, proposed by the facts or else a row; None where none was found.

    Numbers that no input can reach, such as the alignment floor of FP16 products in fp32, are those of known units.
    """
    rounded_to: str
    """Format that the unit's result is rounded to at the end, where it is another."""
    rows: tuple[MatrixUnit, ...]
    """Rows of `mpsim.units.UNITS` that give every answer, and so cannot be told from the box."""
    others: tuple[Witness, ...]
    """Every other row with these formats, with an input that tells it apart."""
    asked: int
    """Dot products that were asked for."""

    def fact(self, name: str) -> str:
        """Return the value of a fact.

        Raises
        ------
        KeyError
            There is no such fact.
        """
        return {fact.name: fact.value for fact in self.facts}[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the finding in types that JSON has."""
        return {
            "asked": self.asked,
            "facts": {fact.name: fact.value for fact in self.facts},
            "unit": None if self.unit is None else dataclasses.asdict(self.unit),
            "rounded_to": self.rounded_to,
            "rows": [str(row) for row in self.rows],
            "others": [
                {
                    "row": str(other.unit),
                    "input": str(other.design),
                    "row_gives": other.expected,
                    "box_gives": other.got,
                }
                for other in self.others
            ],
        }

    def __str__(self) -> str:
        width = max(len(fact.name) for fact in self.facts)
        verdict = "none of the known kinds" if self.unit is None else _described(self.unit)
        rounded = f", rounded to {self.rounded_to} at the end" if self.rounded_to and self.unit else ""
        agreed = "" if self.unit is None else ", all as this unit gives them"
        told = [
            *self.facts,
            Fact("unit", f"{verdict}{rounded}"),
            Fact("answers", f"{self.asked} dot products{agreed}"),
        ]
        lines = [f"{fact.name.ljust(width)}  {fact.value}" for fact in told]
        lines += ["", "rows that cannot be told from it" if self.rows else "no row of the catalogue gives all answers"]
        lines += [f"  {row}" for row in self.rows]
        if self.others:
            lines += ["", "rows that differ, and where"]
            for question, rows in self.told_apart().items():
                lines += [f"  {row}" for row in rows]
                lines += [f"      by {question}"]
        return "\n".join(lines)

    def told_apart(self) -> dict[str, list[MatrixUnit]]:
        """Return the rows that differ, by the question and the two answers to it."""
        grouped: dict[str, list[MatrixUnit]] = {}
        for other in self.others:
            question = f"{other.design}: {other.got:.9g}, not {other.expected:.9g}"
            grouped.setdefault(question, []).append(other.unit)
        return grouped


def _described(unit: MatrixUnit) -> str:
    """Return the family of a unit, and the numbers that it uses."""
    family = str(unit.family.value)
    if unit.family in _CUTTING:
        return (
            f"{family}: blocks of {unit.block_length}, {unit.fraction_bits} fraction bits, "
            f"{unit.result_precision} bits of the sum, {unit.rounding}"
        )
    if unit.family is Family.ROUNDED:
        return f"{family}: {unit.order}, {unit.rounding}"
    return f"{family}: blocks of {unit.block_length}" if unit.block_length > 1 else family


_CUTTING = (
    Family.FUSED, Family.SCALED, Family.GROUPED, Family.INTERLEAVED, Family.FLOORED, Family.FLOORED_HALVES,
)  # fmt: skip
