"""Commands that hold the emulator against real machines."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpsim.cli._common import Json, MistakeError, app, mistakes

if TYPE_CHECKING:
    from mpsim.hardware import Outcome


@app.command()
def validate(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Recordings (.npz), or folders in a public layout.")
    ] = None,
    host: Annotated[bool, typer.Option("--host", help="Execute this processor's own instructions.")] = False,
    unit: Annotated[
        str | None, typer.Option(metavar="NAME", help="Matrix unit, in place of the recording's; as in mpsim units.")
    ] = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="With --host: convert all 2^32 float32 words; takes hours.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="With --host: seed of the random cases.")] = 0,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="With --host: random cases of each setting.")] = 1
    << 14,
    as_json: Json = False,
) -> None:
    """Compare the emulator bit for bit with recordings, or with this processor (--host)."""
    if bool(files) == host:
        raise MistakeError("validate: name recordings, or give --host to check this processor")
    if host and unit:
        raise MistakeError("validate: --unit goes with recordings, not with --host")
    if not host and exhaustive:
        raise MistakeError("validate: --exhaustive goes with --host")
    results: dict[str, list[Outcome]] = {}
    if host:
        from mpsim.hardware import Plan, validate_host

        plan = Plan(seed=seed, count=count, exhaustive=exhaustive)
        results["this processor"] = validate_host(plan, progress=_progress)
    else:
        from mpsim.hardware import read, replay

        for file in files or ():
            with mistakes():
                recording = read(file)
            try:
                results[str(file)] = replay(recording, unit)
            except (ValueError, TypeError) as error:
                raise MistakeError(f"{file}: {error}") from error
    _report(results, as_json, seed if host else None)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"mpsim: {text}", file=sys.stderr)


def _report(results: dict[str, list[Outcome]], as_json: bool, seed: int | None) -> None:
    """Print outcomes, and exit with 1 where something differs or nothing was compared."""
    from mpsim import _text

    every = [outcome for outcomes in results.values() for outcome in outcomes]
    compared, different = sum(o.results for o in every), sum(o.different for o in every)
    if as_json:
        told = {where: [dataclasses.asdict(o) for o in outcomes] for where, outcomes in results.items()}
        _text.print_json({"compared": compared, "different": different, "seed": seed, "outcomes": told})
    else:
        for where, outcomes in results.items():
            _text.show(_text.outcomes_table(where, outcomes))
        seeded = "" if seed is None else f" (seed {seed})"
        print(f"{compared:,} results compared, {different:,} differ{seeded}")
        for o in every:
            if o.first:
                print(f"\nfirst difference of {o.row}:\n{o.first}")
    if different or not compared or any(o.ended for o in every):
        raise typer.Exit(1)


@app.command()
def record(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The recording to write (.npz).")],
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="host: this processor's instructions; cpu, cuda or cuda:1: products of torch."
        ),
    ] = "host",
    inputs: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Formats for torch, with commas between: fp16,bf16,e4m3.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the random inputs.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Record what a machine computes, for mpsim validate here or elsewhere."""
    if output.exists() and not force:
        raise MistakeError(f"record: {output} exists; --force replaces it")
    if not output.parent.is_dir():
        raise MistakeError(f"record: there is no folder {output.parent}")
    refused: list[str] = []
    with mistakes():
        if device == "host":
            if inputs:
                raise ValueError("record: --inputs goes with --device cpu or cuda")
            from mpsim.hardware import Plan, record_host, write

            recording = record_host(Plan(seed=seed, count=200, dense=False))
        else:
            from mpsim.hardware import record_torch, write

            chosen = [name.strip() for name in inputs.split(",")] if inputs else ("fp16", "bf16", "tf32", "e4m3")
            recording, refused = record_torch(device, chosen, seed, _progress)
        write(output, recording)
    print(f"{output}: {len(recording.sets)} sets of {recording.device}")
    for reason in refused:
        print(f"not recorded: {reason}")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Tell what this computer is to mpsim, and which checks are possible here."""
    from mpsim import _text
    from mpsim.hardware import diagnose

    diagnosis = diagnose()
    if as_json:
        _text.print_json(dataclasses.asdict(diagnosis))
    else:
        _text.show(*_text.diagnosis_lines(diagnosis))
