"""What a probe found out, and how it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from mpsim.hardware.layouts import schedule_text
from mpsim.hardware.matching import Witness
from mpsim.matmul.schedules import Schedule
from mpsim.units import Family, MatrixUnit

__all__ = ["Fact", "Finding"]

T = TypeVar("T")


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
    """Dot products that were asked for to find the unit."""
    k: int
    """Products of each dot product: what is cut beyond them was not seen."""
    schedule: Schedule | None
    """How K is cut: `mpsim.matmul` with this unit and schedule gives every bit that designs asked for, and as many of
    others as ``agreement`` says; None where no schedule does."""
    schedules: tuple[Schedule, ...]
    """Other schedules that give the same bits at this K, and so cannot be told from the box."""
    other_schedules: tuple[Witness, ...]
    """Schedules near to it, with an input that tells each apart."""
    agreement: tuple[int, int]
    """Elements of random products over all of K that unit and schedule give as the box does, and how many there are.

    Without a schedule those of one chain of the unit."""

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
            "k": self.k,
            "schedule": None if self.schedule is None else dataclasses.asdict(self.schedule),
            "agreement": list(self.agreement),
            "rows": [str(row) for row in self.rows],
            "others": [_departure("row", str(other.unit), other) for other in self.others],
            "schedules": [dataclasses.asdict(schedule) for schedule in self.schedules],
            "other_schedules": [
                _departure("schedule", schedule_text(other.schedule), other) for other in self.other_schedules
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
            *self._scheduled(),
        ]
        lines = [f"{fact.name.ljust(width)}  {fact.value}" for fact in told]
        lines += ["", "rows that cannot be told from it" if self.rows else "no row of the catalogue gives all answers"]
        lines += [f"  {row}" for row in self.rows]
        if self.others:
            lines += ["", "rows that differ, and where"]
            lines += _listed(self.told_apart())
        if self.schedules:
            lines += ["", f"schedules that cannot be told from it at K = {self.k}"]
            lines += [f"  {schedule_text(schedule)}" for schedule in self.schedules]
        if self.other_schedules:
            lines += ["", "schedules that differ, and where"]
            lines += _listed(_grouped((schedule_text(other.schedule), other) for other in self.other_schedules))
        return "\n".join(lines)

    def _scheduled(self) -> list[Fact]:
        """Return how K is cut, and how sure that is."""
        if self.unit is None:
            return [Fact("schedule", "not found")]
        equal, tried = self.agreement
        given = f"{equal} of {tried} elements of random products with K = {self.k}"
        if self.schedule is None:
            return [Fact("schedule", f"none that mpsim.matmul has; one chain of this unit gives {given}")]
        elsewhere = "" if equal == tried else "; the others are summed in another way"
        return [
            Fact("schedule", schedule_text(self.schedule)),
            Fact("agreement", f"{given}, by unit and schedule{elsewhere}"),
        ]

    def told_apart(self) -> dict[str, list[MatrixUnit]]:
        """Return the rows that differ, by the question and the two answers to it."""
        return _grouped((other.unit, other) for other in self.others)


def _departure(kind: str, name: str, other: Witness) -> dict[str, Any]:
    return {kind: name, "input": str(other.design), f"{kind}_gives": other.expected, "box_gives": other.got}


def _grouped(told: Iterable[tuple[T, Witness]]) -> dict[str, list[T]]:
    grouped: dict[str, list[T]] = {}
    for what, other in told:
        question = f"{other.design}: {other.got:.9g}, not {other.expected:.9g}"
        grouped.setdefault(question, []).append(what)
    return grouped


def _listed(grouped: dict[str, list[T]]) -> list[str]:
    lines = []
    for question, told in grouped.items():
        lines += [f"  {what}" for what in told]
        lines += [f"      by {question}"]
    return lines


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
