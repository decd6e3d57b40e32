"""Commands that run the studies."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpsim.cli._common import Json, app, mistakes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@app.command()
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT", help="The study: underflow, digits, language, copying, cartpole or adaptive."
        ),
    ],
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
    """Run a study of the literature again, or an example, and check its claims."""
    from mpsim import _text, experiments, plots

    overrides = {"unit": unit, "format": fmt, "seed": seed, "data": data}
    with mistakes():
        study = experiments.get(experiment)
        config = experiments.configure(
            experiment, {name: value for name, value in overrides.items() if value is not None}
        )
        chosen = [getattr(config, name) for name in ("unit", "format") if hasattr(config, name)]
        default = "-".join([experiment, *chosen, f"seed{config.seed}"])
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
