"""Commands that time the emulation."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from mpsim.cli._common import Json, app, formats_pair, mistakes

bench_app = typer.Typer(help="Measure how fast the emulation is.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


@bench_app.command("matmul")
def bench_matmul(
    size: Annotated[
        list[str] | None, typer.Option(metavar="N or MxKxN", help="Size; may be given more than once.")
    ] = None,
    unit: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Unit; may be given more than once.")] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="NAME", help="Format of the inputs, or two with a comma between.")
    ] = None,
    out: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Result format; may be repeated.")] = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="One row of each kind of arithmetic.")] = False,
    data: Annotated[
        str, typer.Option(metavar="KIND", help="Operands: normal, subnormal, special or spread.")
    ] = "normal",
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="The best of so many runs counts.")] = 5,
    as_json: Json = False,
) -> None:
    """Time the emulated matrix product beside NumPy's float32 one."""
    from mpsim import _text
    from mpsim import bench as measure
    from mpsim import units as table

    with mistakes():
        shapes = [_shape(text) for text in size or ("256", "512", "1024")]
        if every and (unit or out or inputs):
            raise ValueError("--all has units, inputs and results of its own; leave out --unit, --inputs and --out")
        kind = measure.data_kind(data)
        names, results = unit or ["v100", "a100"], out or ["fp32", *(["fp16"] if inputs is None else [])]
        rows: Any = (
            measure.EVERY_KIND if every else [(n, formats_pair(inputs), result) for n in names for result in results]
        )
        for row in rows:
            table.get(*row)
    if slowed := [name for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE") if name in os.environ]:
        print(f"mpsim: {' and '.join(slowed)} may slow NumPy down; unset for a fair comparison", file=sys.stderr)
    timings = measure.bench_matmul(shapes, rows, repeats=repeats, data=kind)
    if as_json:
        _text.print_json([_text.timing_dict(timing) for timing in timings])
    else:
        _text.show(_text.timings_table(timings))


@bench_app.command("rounding")
def bench_rounding(
    elements: Annotated[int, typer.Option(min=1, metavar="N", help="Elements of the array.")] = 1 << 24,
    fmt: Annotated[
        list[str] | None,
        typer.Option("--format", "-f", metavar="NAME", help="A format or block format; may be given more than once."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="The best of so many runs counts.")] = 7,
    as_json: Json = False,
) -> None:
    """Time rounding and quantisation beside a copy of the array, and beside other libraries' casts."""
    from mpsim import _text
    from mpsim import bench as measure

    with mistakes():
        names = [measure.rounding_format(name).name for name in fmt or measure.ROUNDING_FORMATS]
    timings = measure.bench_rounding(elements, names, repeats=repeats)
    if as_json:
        _text.print_json([_text.rounding_dict(timing) for timing in timings])
    else:
        _text.show(_text.rounding_table(timings))


@bench_app.command("train")
def bench_train(
    model: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="mlp or transformer; may be given more than once.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="The median of so many steps counts.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, metavar="N", help="Steps before, not counted.")] = 5,
    memory: Annotated[bool, typer.Option(help="Measure memory too.")] = True,
    observe: Annotated[
        bool, typer.Option("--observe", help="Time what observing adds instead: nothing, counts, histograms in turn.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Time steps of training beside torch's, where it is installed."""
    from mpsim import _text
    from mpsim import bench as measure

    models: Any = model or measure.MODELS
    with mistakes():
        measure.check_models(models)
    if observe:
        observed = measure.bench_observe(models, steps, warmup)
        if as_json:
            _text.print_json([_text.observe_dict(timing) for timing in observed])
        else:
            _text.show(_text.observe_table(observed))
        return
    timings = measure.bench_train(models, steps, warmup, memory)
    if as_json:
        _text.print_json([_text.train_dict(timing) for timing in timings])
    else:
        _text.show(_text.train_table(timings))


def _shape(text: str) -> tuple[int, int, int]:
    """Return m, k, n of ``"256"`` or ``"64x128x32"``."""
    numbers = [int(part) if part.isdecimal() else 0 for part in text.lower().split("x")]
    if len(numbers) not in (1, 3) or min(numbers) < 1:
        raise ValueError(f"size is {text!r}; write it like 512, or 64x128x32 for m, k and n")
    m, k, n = numbers * 3 if len(numbers) == 1 else numbers
    return m, k, n
