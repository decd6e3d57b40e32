"""Matrix units, and one dot product step by step."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from mpsim._text.console import facts_grid, table
from mpsim.exact import decimal_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsim.matmul import Explanation
    from mpsim.units import MatrixUnit

__all__ = ["alike", "explanation_dict", "units_legend", "units_table"]

_GRADES = {
    "A": "recordings of the device replayed bit for bit",
    "B": "validated on devices by two groups",
    "C": "validated on devices by one group",
    "D": "vendor document",
    "E": "inferred",
}
_MODES = {"toward-zero": "RTZ", "nearest-even": "RNE"}
_ARITHMETIC = {
    "fused": "terms are aligned to the largest and cut, then summed exactly",
    "scaled": "fused, with a scale for each block of inputs",
    "grouped": "groups of products summed exactly, scaled, then fused",
    "interleaved": "two fused FP16 instructions from zero, then an IEEE addition",
    "fma-chain": "one fused multiply-add after another",
    "exact-blocks": "a block summed exactly and rounded once",
    "flushed-pairs": "products and pairwise sums rounded and flushed at every step",
    "floored": "products cut and summed, then cut down with the accumulator",
    "floored-halves": "floored, with even and odd products aligned apart",
    "vdpbf16ps": "two fused multiply-adds a pair, the odd element first",
    "amx": "even and odd chains from zero, added to the accumulator last",
    "bfdot": "pairs of products rounded to odd at every step",
    "bfdot-extended": "pairs of products rounded once, then added",
    "rounded": "every partial sum rounded (idealised)",
    "exact": "the exact dot product rounded once (idealised)",
    "native": "NumPy's own float32 product, not emulated",
}


def units_table(units: Sequence[MatrixUnit]) -> RenderableType:
    """Return matrix instructions, a line for each; inputs that are treated alike share it."""
    columns = ("generation", "instruction", "inputs", "out", "arithmetic", "k", "block", "bits", "round", "grade")
    rows = [
        (
            Text(u.architecture, "bold"),
            u.instruction,
            inputs,
            u.out,
            str(u.family),
            *("-" if number == 0 else number for number in (u.k, u.block_length, u.fraction_bits)),
            "-" if u.family == "native" else _MODES.get(u.rounding, u.rounding),
            "-" if u.family in ("rounded", "exact", "native") else u.evidence,
        )
        for u, inputs in alike(units)
    ]
    return table(columns, rows, numeric=("k", "block", "bits"))


def alike(units: Sequence[MatrixUnit]) -> list[tuple[MatrixUnit, str]]:
    """Return one unit of each set that differs in the formats of the inputs alone, and these formats for people."""
    sets: dict[tuple[Any, ...], list[MatrixUnit]] = {}
    for unit in units:
        facts = dataclasses.asdict(unit)
        sets.setdefault(tuple(value for name, value in facts.items() if name not in ("a", "b")), []).append(unit)
    return [(group[0], _inputs(group)) for group in sets.values()]


def _inputs(units: Sequence[MatrixUnit]) -> str:
    pairs = [(u.a, u.b) for u in units]
    formats = list(dict.fromkeys(name for pair in pairs for name in pair))
    scale = f", {units[0].scale} scales of {units[0].scale_block}" if units[0].scale else ""
    if len(pairs) == len(formats) ** 2 > 1:
        return f"{', '.join(formats)} (mixed too){scale}"
    if len(pairs) > 2 * len(formats):
        return f"other mixtures of {', '.join(formats)}{scale}"
    return ", ".join(a if a == b else f"{a} x {b}" for a, b in pairs) + scale


def units_legend(units: Sequence[MatrixUnit]) -> list[RenderableType]:
    """Return what the columns mean, and the names of the devices."""
    devices: dict[str, dict[str, None]] = {}
    for unit in units:
        devices.setdefault(unit.architecture, {}).update(dict.fromkeys(unit.devices))
    meanings = {
        "k": "products of one instruction",
        "block": "products that are summed at once",
        "bits": "fraction bits that are kept when these are aligned to the largest",
        "round": "how their sum is rounded: RTZ toward zero, RNE to nearest, ties to even",
    }
    grades = {u.evidence for u in units if u.family not in ("rounded", "exact", "native")}
    notes = list(meanings.items()) if grades else []
    notes += [(f"grade {grade}", text) for grade, text in _GRADES.items() if grade in grades]
    notes += [(name, text) for name, text in _ARITHMETIC.items() if name in {u.family for u in units}]
    parts: list[RenderableType] = [Text(), facts_grid(notes)]
    named = [(architecture, ", ".join(names)) for architecture, names in devices.items() if names]
    if named:
        parts += [Text(), facts_grid(named)]
    return parts


def explanation_dict(told: Explanation) -> dict[str, Any]:
    """Return the steps of a dot product as JSON types; exact numbers as text."""
    return {
        "unit": str(told.unit),
        "steps": [
            {
                "title": step.title,
                "terms": [dict(zip(step.columns, map(_plain_cell, row), strict=True)) for row in step.rows],
                "facts": {name: _plain_cell(cell) for name, cell in step.facts},
                "result": step.result,
            }
            for step in told.steps
        ],
        "value": told.value,
        "code": told.code,
        "exact": _plain_cell(told.exact),
        "error_ulps": told.error_ulps,
    }


def _plain_cell(cell: Any) -> Any:
    return decimal_text(cell) if isinstance(cell, Fraction) else cell
