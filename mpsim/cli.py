"""The command line: ``mpsim SUBCOMMAND``.

Heavy modules (Numba, matplotlib, rich's tables) are imported inside the commands that need them, so that help comes at
once. Exit codes: 0 done, 1 a check failed, 2 a mistake in what was asked, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["app", "main"]

# The base class of all that typer says about wrong arguments; newer releases bring their own copy of click.
_ClickError: Any = typer.BadParameter.__mro__[2]

_COMMON = ("fp64", "fp32", "tf32", "fp16", "bf16", "e5m2", "e4m3")
"""Formats that ``mpsim inspect`` shows when none is named."""


class _MistakeError(Exception):
    """Something the user can put right; shown as one line."""


@contextlib.contextmanager
def mistakes() -> Iterator[None]:
    """Take the errors of what is called here for mistakes in the arguments, not in mpsim."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise _MistakeError(str(error)) from error


app = typer.Typer(
    help="A laboratory for reduced-precision arithmetic: bit-exact FP16, BF16, FP8 and tensor cores on any CPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it comes twice as fast
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench_app = typer.Typer(help="Measure how fast the emulation is.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # no crash over an ellipsis where the terminal has only ASCII
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        code = app(args=arguments, prog_name="mpsim", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except _ClickError as error:
        return _fail(error.format_message(), getattr(error, "ctx", None))
    except (_MistakeError, OSError) as error:
        return _fail(str(error))


def _fail(message: str, context: Any = None) -> int:
    """Print one line to standard error and return the exit code of a mistake."""
    hint = f" ({context.command_path} --help says more)" if context else ""
    print(f"mpsim: {' '.join(message.split())}{hint}", file=sys.stderr)
    return 2


def _print_version(wanted: bool) -> None:
    if wanted:
        from mpsim import __version__

        print(f"mpsim {__version__}")
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


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


class _NumberCommand(TyperCommand):
    """A command whose argument may be a negative number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # A blank in front keeps -0.1 from being read as options; numbers may have blanks around them.
        number = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)
        return super().parse_args(ctx, [f" {arg}" if number.match(arg) else arg for arg in args])


@app.command(cls=_NumberCommand)
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
        raise _MistakeError(f"{value} is a code: name its format, as in --format fp16 (as a number it is {value}p0)")
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


@app.command(cls=_NumberCommand)
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
        told = explain_dot(row, column, start, unit, _pair(inputs), out, instruction, codes=codes)
    if as_json:
        _text.print_json(_text.explanation_dict(told))
    else:
        print(told)


def _pair(inputs: str | None) -> str | tuple[str, str] | None:
    """Return one name of a format, or two that have a comma between them."""
    if inputs is None or "," not in inputs:
        return inputs
    a, _, b = inputs.partition(",")
    if "," in b:
        raise ValueError(f"inputs is {inputs!r}; one format is needed, or two with a comma between")
    return a, b


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
        if data not in measure.DATA:
            raise ValueError(f"data is {data!r}; it must be one of {', '.join(measure.DATA)}")
        names, results = unit or ["v100", "a100"], out or ["fp32", *(["fp16"] if inputs is None else [])]
        rows: Any = measure.EVERY_KIND if every else [(n, _pair(inputs), result) for n in names for result in results]
        for row in rows:
            table.get(*row)
    if slowed := [name for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE") if name in os.environ]:
        print(f"mpsim: {' and '.join(slowed)} may slow NumPy down; unset for a fair comparison", file=sys.stderr)
    timings = measure.bench_matmul(shapes, rows, repeats=repeats, data=data)
    if as_json:
        _text.print_json([_text.timing_dict(timing) for timing in timings])
    else:
        _text.show(_text.timings_table(timings))


@bench_app.command("rounding")
def bench_rounding(
    elements: Annotated[int, typer.Option(min=1, metavar="N", help="Elements of the array.")] = 1 << 24,
    fmt: Annotated[
        list[str] | None, typer.Option("--format", "-f", metavar="NAME", help="A format; may be given more than once.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="The best of so many runs counts.")] = 7,
    as_json: Json = False,
) -> None:
    """Time rounding beside a copy of the array, and beside other libraries' casts."""
    from mpsim import _text
    from mpsim import bench as measure
    from mpsim.formats import get_format

    with mistakes():
        names = [get_format(name).name for name in fmt or ("fp16", "bf16", "e4m3", "e5m2")]
    timings = measure.bench_rounding(elements, names, repeats=repeats)
    if as_json:
        _text.print_json([_text.rounding_dict(timing) for timing in timings])
    else:
        _text.show(_text.rounding_table(timings))


def _shape(text: str) -> tuple[int, int, int]:
    """Return m, k, n of ``"256"`` or ``"64x128x32"``."""
    numbers = [int(part) if part.isdecimal() else 0 for part in text.lower().split("x")]
    if len(numbers) not in (1, 3) or min(numbers) < 1:
        raise ValueError(f"size is {text!r}; write it like 512, or 64x128x32 for m, k and n")
    m, k, n = numbers * 3 if len(numbers) == 1 else numbers
    return m, k, n


@app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="The study: underflow.")],
    unit: Annotated[str | None, typer.Option(metavar="NAME", help="Matrix unit, as in mpsim units.")] = None,
    fmt: Annotated[str | None, typer.Option("--format", "-f", metavar="NAME", help="Low-precision format.")] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed of the initial weights and the order of the data.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="FILE.npz", help="Images and labels of your own, in place of the digits.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for figures and numbers.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that holds results already.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes to use; as many as processors unless given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a study of the literature again and check its claims."""
    from mpsim import _text, experiments, plots

    overrides = {"unit": unit, "format": fmt, "seed": seed, "data": data}
    with mistakes():
        study = experiments.get(experiment)
        config = study.Config(**{name: value for name, value in overrides.items() if value is not None})
        default = f"{experiment}-{config.unit}-{config.format}-seed{config.seed}"
        folder = experiments.open_folder(output or default, force=force)
    finished = None

    def keep(part: Any) -> None:
        nonlocal finished
        finished = part
        experiments.write_result(part, folder)

    try:
        with _progress(not as_json) as advance:
            result = study.run(config, workers=workers or os.cpu_count() or 1, progress=advance, on_part=keep)
    except KeyboardInterrupt:
        if finished is not None:
            plots.STUDIES[experiment](finished, folder)
        print(f"mpsim: interrupted; what was done by then is in {folder}", file=sys.stderr)
        raise
    figures = plots.STUDIES[experiment](result, folder)
    if as_json:
        _text.print_json(result.to_dict())
    else:
        _text.show(*map(_text.study_table, result.tables), _text.claims_table(result.claims))
        _text.show(f"\n{folder}: {', '.join(['result.json', *(path.name for path in figures)])}")
    if not all(claim.holds for claim in result.claims):
        raise typer.Exit(1)


@contextlib.contextmanager
def _progress(wanted: bool) -> Iterator[Callable[[float, str], None] | None]:
    """Give a function (share done, what is going on) that draws a bar on standard error, where that is a terminal."""
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share, text: bar.update(task, completed=share, description=text)
