"""What a probe found out, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpsim.hardware.matching import Witness
from mpsim.units import MatrixUnit

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
    """A unit that gives every answer; None where none was found."""
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
        import dataclasses

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
        lines = [f"{fact.name.ljust(width)}  {fact.value}" for fact in self.facts]
        verdict = "none of the known kinds" if self.unit is None else _described(self.unit)
        rounded = f", rounded to {self.rounded_to} at the end" if self.rounded_to and self.unit else ""
        lines += ["", f"{'unit'.ljust(width)}  {verdict}{rounded}"]
        lines += [f"{'answers'.ljust(width)}  {self.asked} dot products" + ("" if self.unit is None else ", all as this unit gives them")]
        lines += ["", "rows that cannot be told from it" if self.rows else "no row of the catalogue gives these answers"]
        lines += [f"  {row}" for row in self.rows]
        if self.others:
            lines += ["", "rows that differ, and where"]
            lines += [f"  {other}" for other in self.others]
        return "\n".join(lines)


def _described(unit: MatrixUnit) -> str:
    """Return the numbers of a unit that its family uses."""
    numbers = {
        "blocks of": unit.block_length,
        "fraction bits": unit.fraction_bits if unit.family.value in _CUTTING else 0,
        "precision": unit.result_precision if unit.family.value in _CUTTING else 0,
    }
    listed = ", ".join(f"{name} {number}" for name, number in numbers.items() if number)
    return f"{unit.family.value}" + (f" ({listed}, {unit.rounding})" if listed else f" ({unit.rounding}, {unit.order})")


_CUTTING = ("fused", "scaled", "grouped", "interleaved", "floored", "floored-halves")
