"""A difference between a machine and the emulator in words: what came, what should have come, and the steps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from mpsim.encoding import decode
from mpsim.exact import decimal_text
from mpsim.formats import FloatFormat, get_format
from mpsim.hardware.recordings import RecordedSet
from mpsim.hardware.registers import FLAGS
from mpsim.inspect import inspect
from mpsim.matmul import explain_dot
from mpsim.units import MatrixUnit

__all__ = ["operation", "product"]

_EXACT: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
}
_LONGEST = 256
"""Products of an element that are shown one by one."""


def operation(
    part: RecordedSet,
    operands: Sequence[int],
    formats: tuple[FloatFormat, FloatFormat],
    recorded: tuple[int, int | None],
    emulated: tuple[int, int],
) -> str:
    """Return one conversion or operation in words: operands, both answers, and the exact result between its neighbours.

    Parameters
    ----------
    part : RecordedSet
    operands : codes
    formats : format of the operands, and of the result
    recorded, emulated : code and flags
    """
    source, target = formats
    options = ", ".join(f"{name} {value}" for name, value in part.facts.get("options", {}).items())
    lines = [f"{part.name}{': ' if options else ''}{options}"]
    lines += [f"{name:<9} {_code(code, source)}" for name, code in zip("abc", operands, strict=False)]
    lines.append(f"recorded  {_code(recorded[0], target)}{_flags(recorded[1])}")
    lines.append(f"emulated  {_code(emulated[0], target)}{_flags(emulated[1])}")
    exact = _exact(part, operands, source)
    if exact is not None:
        lines.append(f"exact     {decimal_text(exact, 20)}")
        near = inspect(exact, target)
        lines.append(f"nearest   {near.hex} = {near.text}")
        for name, other in (("above", near.above), ("below", near.below)):
            if other is not None:
                lines.append(f"{name:<9} {_code(other.code, target)}")
    return "\n".join(lines)


def _exact(part: RecordedSet, operands: Sequence[int], fmt: FloatFormat) -> Fraction | None:
    """Return the result before rounding, where it is a finite fraction."""
    numbers = [_operand(code, fmt, part.facts.get("options", {})) for code in operands]
    finite = [x for x in numbers if isinstance(x, Fraction)]
    if len(finite) < len(numbers):
        return None
    if part.kind == "conversion":
        return finite[0]
    compute = _EXACT.get(part.facts["operation"])
    if compute is None or (part.facts["operation"] == "div" and finite[1] == 0):
        return None
    result: Fraction = compute(*finite)
    return result


def _operand(code: int, fmt: FloatFormat, options: dict[str, Any]) -> Any:
    """Return the number that an operation reads."""
    read = inspect(None, fmt, code=code)
    flushed = read.kind == "subnormal" and options.get("subnormal_inputs_as_zero", False)
    return Fraction(0) if flushed else read.value


def product(part: RecordedSet, row: MatrixUnit, at: tuple[int, ...], emulated: int) -> str:
    """Return one element of a product in words: both answers, and the emulator's steps where it is one chain."""
    arrays, fmt = part.arrays, get_format(part.result_format)
    *tile, i, j = at
    place = tuple(tile)
    a, b = arrays["a"][(*place, i)], arrays["b"][place][:, j]
    c = arrays["c"][at] if "c" in arrays else 0
    lines = [
        f"{part.name}, element {list(at)}, K = {a.size}",
        f"recorded  {_code(int(part.results[at]), fmt)}",
        f"emulated  {_code(emulated, fmt)}",
    ]
    if part.kind == "gemm" and (around := _around(part, row)):
        return "\n".join([*lines, *around])
    if a.size > _LONGEST:
        return "\n".join([*lines, f"{a.size} products, more than are shown one by one ({_LONGEST})"])
    scales: dict[str, Any] = {}
    if row.scale:
        scales = {
            "scale_a": arrays["scale_a"][(*place, i)],
            "scale_b": arrays["scale_b"][place][:, j],
            "scale_format": row.scale,
        }
    return "\n".join([*lines, "", str(explain_dot(a, b, c, row, codes=True, **scales))])


def _around(part: RecordedSet, row: MatrixUnit) -> list[str]:
    """Return what a library does around the unit's chain, whose steps would not lead to the result."""
    told = [f"by the schedule {part.facts['options']}"] if part.facts.get("options", {}) else []
    for name, factor in part.arrays.items():
        if name.startswith("scale") and (factor != 1).any():
            told.append(f"times {name} {factor.item() if factor.size == 1 else f'of shape {list(factor.shape)}'}")
    if get_format(part.result_format) != get_format(row.out):
        told.append(f"rounded from {row.out} to {part.result_format}")
    return told


def _code(code: int, fmt: FloatFormat) -> str:
    digits = (fmt.bits + 3) // 4
    with np.errstate(all="ignore"):
        value = decode(np.array([code], fmt.code_dtype), fmt)[0]
    return f"0x{code:0{digits}x} = {float(value)!r}"


def _flags(flags: int | None) -> str:
    if flags is None:
        return ""
    names = [name.replace("_", " ") for bit, name in enumerate(FLAGS) if flags >> bit & 1]
    names = [f"{name} operand" if name == "denormal" else name for name in names]
    return f"  raises {', '.join(names) or 'nothing'}"
