"""The command that writes a report about a saved record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mpsim.cli._common import Json, app, mistakes


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN.npz", help="A record that record.save wrote.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="The report; RUN.html unless given.")
    ] = None,
    fmt: Annotated[str, typer.Option("--format", "-f", metavar="NAME", help="Format whose bands are drawn.")] = "fp16",
    as_json: Json = False,
) -> None:
    """Write one HTML file about an observed run, or print its numbers."""
    from mpsim import _text
    from mpsim.observe import Record
    from mpsim.report import summary, write_report

    with mistakes():
        record = Record.load(run)
        if as_json:
            finding = record.first_bad()
            told = None if finding is None else str(finding)
            _text.print_json({"steps": record.steps, "first_bad": told, "tensors": summary(record)})
            return
        target = output or run.with_suffix(".html")
        write_report(record, target, fmt, title=run.stem)
    _text.show(f"{target}")
