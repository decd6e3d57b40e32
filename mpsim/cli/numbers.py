"""Commands that show numbers, formats and units."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any

import typer

from mpsim.cli._common import Json, MistakeError, NumberCommand, app, formats_pair, mistakes

_COMMON = ("fp64", "fp32", "tf32", "fp16", "bf16", "e5m2", "e4m3")
"""Formats that ``mpsim inspect`` shows when none is named."""


@app.command()
def formats(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One format: fp16, e4m3, e5m10, ...")] = None,
    as_json: Json = False,
) -> None:
    """List the number formats, or describe one."""
    from mpsim import _text
    from mpsim.formats import CATALOGUE, get_format

    if name is None:
        if as_json:
            _text.print_json([_text.format_dict(f) for f in CATALOGUE])
        else:
            _text.show(_text.formats_table(CATALOGUE))
        return
    with mistakes():
        fmt = get_format(name)
    if as_json:
        _text.print_json(_text.format_dict(fmt))
    else:
        _text.show(_text.format_panel(fmt))


@app.command()
def units(
    device: Annotated[
        str | None, typer.Argument(metavar="DEVICE", help="One device or generation: v100, hopper, sm_90, ...")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the emulated matrix units, and how well each is known."""
    from mpsim import _text
    from mpsim.units import NATIVE, UNITS, get

    chosen = [*UNITS, NATIVE]
    if device is not None:
        with mistakes():
            architecture = get(device).architecture
        chosen = [unit for unit in chosen if unit.architecture == architecture]
    if as_json:
        _text.print_json([dataclasses.asdict(unit) for unit in chosen])
    else:
        _text.show(_text.units_table(chosen), *_text.units_legend(chosen))


@app.command(cls=NumberCommand)
def inspect(
    value: Annotated[
        str,
        typer.Argument(
            metavar="VALUE", help="A number (0.1, 1e-8, 1/3, 2^-24, 0x1.8p3, inf, nan), or a code (0x3c00)."
        ),
    ],
    fmt: Annotated[
        list[str] | None, typer.Option("--format", "-f", metavar="NAME", help="A format; may be given more than once.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="Every format there is.")] = False,
    as_json: Json = False,
) -> None:
    """Take a number apart: bits, exact value, rounding error."""
    from mpsim import _text
    from mpsim.formats import CATALOGUE, get_format
    from mpsim.inspect import inspect as take_apart

    value = value.strip()
    is_code = re.fullmatch(r"0(x[0-9a-f_]+|b[01_]+)", value, re.IGNORECASE) is not None
    if is_code and (every or not fmt):
        raise MistakeError(f"{value} is a code: name its format, as in --format fp16 (as a number it is {value}p0)")
    with mistakes():
        chosen = list(CATALOGUE) if every else [get_format(name) for name in fmt or _COMMON]
        code = int(value, 0) if is_code else None
        items = [take_apart(None if is_code else value, f, code=code) for f in chosen]
    if as_json:
        _text.print_json(items[0].to_dict() if len(items) == 1 else [x.to_dict() for x in items])
    elif len(items) == 1:
        _text.show(_text.inspection_panel(items[0]))
    else:
        _text.show(_text.inspections_table(items))


@app.command(cls=NumberCommand)
def explain(
    a: Annotated[str, typer.Argument(metavar="A", help="A row of the left matrix: numbers with commas between.")],
    b: Annotated[str, typer.Argument(metavar="B", help="A column of the right one, as long.")],
    c: Annotated[str, typer.Option("--c", metavar="C", help="The accumulator to start from.")] = "0",
    unit: Annotated[str, typer.Option(metavar="NAME", help="Matrix unit, as in mpsim units.")] = "a100",
    inputs: Annotated[
        str | None, typer.Option(metavar="NAME", help="Format of the inputs, or two with a comma between.")
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="NAME", help="Format of the result.")] = None,
    instruction: Annotated[str | None, typer.Option(metavar="NAME", help="Which instruction.")] = None,
    codes: Annotated[bool, typer.Option("--codes", help="A, B and C are bit patterns, such as 0x3c00.")] = False,
    as_json: Json = False,
) -> None:
    """Show one dot product step by step: what is aligned, what is cut off, what is rounded."""
    from mpsim import _text
    from mpsim.matmul import explain_dot

    with mistakes():
        row, column, (start,) = (_numbers(text, name, codes) for text, name in ((a, "A"), (b, "B"), (c, "C")))
        told = explain_dot(row, column, start, unit, formats_pair(inputs), out, instruction, codes=codes)
    if as_json:
        _text.print_json(_text.explanation_dict(told))
    else:
        print(told)


def _numbers(text: str, argument: str, codes: bool) -> list[Any]:
    """Return numbers that have commas between them."""
    from mpsim.exact import read_number

    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise ValueError(f"{argument} is {text!r}; numbers with commas between are needed, such as 1,0.5,2^-24")
    if not codes:
        return [float(magnitude) * (-1.0 if negative else 1.0) for negative, magnitude in map(read_number, items)]
    try:
        return [int(item, 0) for item in items]
    except ValueError:
        raise ValueError(f"{argument} is {text!r}; codes are integers, such as 0x3c00,0x4000") from None
