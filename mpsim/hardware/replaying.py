"""Recordings replayed: the emulator computes what a machine computed, and every bit is compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim import arithmetic, units
from mpsim.encoding import NumberClass, classify, decode, encode
from mpsim.formats import FloatFormat, get_format
from mpsim.hardware import explaining
from mpsim.hardware.recordings import RecordedSet, Recording
from mpsim.hardware.registers import DENORMAL
from mpsim.matmul import matmul, matmul_codes
from mpsim.units import Family, MatrixUnit

__all__ = ["Outcome", "by_row", "replay", "replay_set"]

_NVIDIA = (Family.FUSED, Family.SCALED, Family.GROUPED, Family.INTERLEAVED)
_Codes = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a set, or of all sets of one row."""

    row: str
    """The unit's row, the conversion or the operation."""
    results: int = 0
    """How many were compared, flags included."""
    different: int = 0
    skipped: str = ""
    """Why nothing was compared."""
    ended: bool = False
    """Whether it is because the process that executed instructions came to a sudden end."""
    first: str = ""
    """The first difference: codes, values, and the emulator's steps."""


def replay(recording: Recording, unit: str | MatrixUnit | None = None) -> list[Outcome]:
    """Compute every set of a recording and compare it bit for bit.

    Parameters
    ----------
    recording : Recording
    unit : MatrixUnit or name, optional
        Takes the place of what the recording says, or does not say, about its products. Products whose formats it
        does not multiply are skipped.

    Returns
    -------
    list of Outcome
        One for each row of `mpsim.units`, conversion or operation, in the order in which they come.

    Raises
    ------
    ValueError
        The emulator does not know a unit or a format, or cannot do what a set asks.
    """
    return by_row(replay_set(part, unit) for part in recording.sets)


def by_row(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return outcomes with those of one row added up; the first difference stays."""
    rows: dict[tuple[str, str], Outcome] = {}
    for o in outcomes:
        key = o.row, o.skipped
        before = rows.get(key, Outcome(row=o.row, skipped=o.skipped, ended=o.ended))
        rows[key] = dataclasses.replace(
            before,
            results=before.results + o.results,
            different=before.different + o.different,
            first=before.first or o.first,
        )
    return list(rows.values())


def replay_set(part: RecordedSet, unit: str | MatrixUnit | None = None) -> Outcome:
    """Compute one set and compare it; `replay` says more."""
    if part.kind in ("instruction", "gemm"):
        return _product(part, unit)
    if part.kind == "conversion":
        fmt = get_format(part.facts["target"])
        source = get_format(part.facts["source"])
        row = str(part.facts.get("instruction") or f"{source} to {fmt}")
        operands, sources = [part.arrays["x"]], source
    else:
        fmt = sources = get_format(part.facts["format"])
        row = str(part.facts.get("instruction") or f"{part.facts['operation']} {fmt}")
        operands = [part.arrays[name] for name in "abc" if name in part.arrays]
    codes, flags = _operation(part, operands)
    different = _differ(codes, part.results, fmt, part)
    if "flags" in part.arrays:
        if part.facts.get("denormal"):
            flags = flags | _denormal(operands, sources, flags, part.facts.get("options", {}))
        if part.facts.get("silent"):
            flags = np.zeros_like(flags)
        different |= flags != part.arrays["flags"]
    first = ""
    if different.any():
        i = int(np.flatnonzero(different)[0])
        recorded = int(part.results[i]), int(part.arrays["flags"][i]) if "flags" in part.arrays else None
        first = explaining.operation(
            part, [int(x[i]) for x in operands], (sources, fmt), recorded, (int(codes[i]), int(flags[i]))
        )
    return Outcome(row=row, results=different.size, different=int(different.sum()), first=first)


def _operation(part: RecordedSet, operands: list[_Codes]) -> tuple[_Codes, NDArray[np.uint8]]:
    """Return codes and flags of a conversion or of arithmetic."""
    options: dict[str, Any] = {**part.facts.get("options", {}), "codes": True, "return_flags": True}
    result: tuple[_Codes, NDArray[np.uint8]]
    if part.kind == "conversion":
        result = arithmetic.convert(operands[0], part.facts["source"], part.facts["target"], **options)
        return result
    name = part.facts["operation"]
    if name not in ("add", "sub", "mul", "div", "sqrt", "fma"):
        raise ValueError(f"{part.name}: operation is {name!r}; it must be add, sub, mul, div, sqrt or fma")
    result = getattr(arithmetic, name)(*operands, part.facts["format"], **options)
    return result


def _denormal(
    operands: list[_Codes], fmt: FloatFormat, flags: NDArray[np.uint8], options: dict[str, Any]
) -> NDArray[np.uint8]:
    """Return x86's flag of subnormal operands: raised unless NaN, invalid or a division by zero comes before it."""
    kinds = [classify(x, fmt) for x in operands]
    subnormal = np.any([kind == NumberClass.SUBNORMAL for kind in kinds], axis=0)
    nan = np.any([kind == NumberClass.NAN for kind in kinds], axis=0)
    earlier = flags & (arithmetic.Flags.INVALID | arithmetic.Flags.DIVIDE_BY_ZERO) != 0
    seen = subnormal & ~nan & ~earlier & (not options.get("subnormal_inputs_as_zero", False))
    return np.asarray(seen, np.uint8) * np.uint8(DENORMAL)


def _product(part: RecordedSet, unit: str | MatrixUnit | None) -> Outcome:
    wanted = unit if unit is not None else part.facts["unit"]
    inputs = part.inputs
    name = str(part.facts.get("function", f"{part.name} ({' x '.join(dict.fromkeys(inputs))})"))
    if wanted is None:
        return Outcome(row=name, skipped="its unit is unknown: name one")
    instruction = part.facts.get("instruction") if unit is None else None
    length = part.facts.get("scale_block")
    try:
        row = units.get(wanted, inputs, part.facts["out"], instruction, part.facts.get("scale_format"), length)
    except ValueError as error:
        if unit is None:
            raise
        units.get(unit)  # an unknown name stays an error
        return Outcome(row=name, skipped=str(error))
    got = _instruction(part, row) if part.kind == "instruction" else _gemm(part, row)
    options = part.facts.get("options", {})
    shown = f"{row}{_shown(options)}"
    different = _differ(got, part.results, get_format(part.result_format), part)
    first = ""
    if different.any():
        at = tuple(int(i) for i in np.argwhere(different)[0])
        first = explaining.product(part, row, at, int(got[at]))
    return Outcome(row=shown, results=different.size, different=int(different.sum()), first=first)


def _shown(options: dict[str, Any]) -> str:
    """Return for people how a library cut K, leaving out how often."""
    if "schedule" in options:
        return f", {options['schedule']}"
    return f", promotion {options['promotion']}" if "promotion" in options else ""


def _instruction(part: RecordedSet, row: MatrixUnit) -> _Codes:
    arrays = part.arrays
    scales: dict[str, Any] = {name: arrays[name] for name in ("scale_a", "scale_b") if name in arrays}
    return matmul_codes(arrays["a"], arrays["b"], arrays.get("c"), row, **scales)


def _gemm(part: RecordedSet, row: MatrixUnit) -> _Codes:
    """Return the codes of a library's product; every NaN of an NVIDIA unit is the last code."""
    arrays, result = part.arrays, get_format(part.result_format)
    a, b = (_values(arrays[name], fmt) for name, fmt in zip("ab", part.inputs, strict=True))
    c = None if "c" not in arrays else _values(arrays["c"], row.out)
    factors: dict[str, Any] = {name: x for name, x in arrays.items() if name.startswith("scale")}
    exact = "tf32" not in part.inputs  # whose words may have low bits, which the unit ignores
    d = matmul(a, b, c, row, rounded=exact, result=result.name, **part.facts.get("options", {}), **factors)
    codes = d.view(result.code_dtype) if result.name in ("fp32", "fp64") else encode(d, result, nan="canonical")
    if row.family in _NVIDIA:
        codes[np.isnan(d)] = result.last_code
    return codes


def _values(codes: _Codes, fmt: str) -> NDArray[Any]:
    """Return the values of operands; tf32 and fp32 are words."""
    return codes.view(np.float32) if fmt in ("fp32", "tf32") else decode(codes, fmt)


def _differ(got: _Codes, want: _Codes, fmt: FloatFormat, part: RecordedSet) -> NDArray[np.bool_]:
    """Return where codes differ, one NaN standing for another where the set says so."""
    rule = part.facts.get("nan", "bits")
    if rule not in ("bits", "any"):
        raise ValueError(f"{part.name}: nan is {rule!r}; it must be 'bits' or 'any'")
    different: NDArray[np.bool_] = got != want
    if rule == "any" and different.any():
        different &= (classify(got, fmt) != NumberClass.NAN) | (classify(want, fmt) != NumberClass.NAN)
    return different
