"""What was measured: timings, studies, and comparisons with machines."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from mpsim._text.console import facts_grid, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsim.bench import MatmulTiming, ObserveTiming, RoundingTiming, TrainTiming
    from mpsim.experiments import Claim
    from mpsim.experiments import Table as StudyTable
    from mpsim.hardware import Diagnosis, Outcome

__all__ = [
    "claims_table",
    "diagnosis_lines",
    "observe_dict",
    "observe_table",
    "outcomes_table",
    "rounding_dict",
    "rounding_table",
    "study_table",
    "timing_dict",
    "timings_table",
    "train_dict",
    "train_table",
]


def timing_dict(timing: MatmulTiming) -> dict[str, Any]:
    """Return a timing with its rates as JSON types."""
    rates = {name: getattr(timing, name) for name in ("gmacs", "numpy_gmacs", "ratio")}
    return dataclasses.asdict(timing) | rates


def timings_table(timings: Sequence[MatmulTiming]) -> RenderableType:
    """Return timings, a line for each; rates in billions of multiply-adds a second."""
    peers = list(dict.fromkeys(name for t in timings for name in t.peers))
    columns = ("unit", "in", "out", "m x k x n", "ms", "Gmac/s", "NumPy", "times slower", *(f"{p} ms" for p in peers))
    rows = [
        (
            Text(t.unit, "bold"),
            t.inputs,
            t.out,
            f"{t.m} x {t.k} x {t.n}",
            _three(1e3 * t.seconds),
            _three(t.gmacs),
            _three(t.numpy_gmacs),
            f"{t.ratio:.1f}",
            *(_three(1e3 * t.peers[p]) if p in t.peers else "" for p in peers),
        )
        for t in timings
    ]
    return table(columns, rows, numeric=columns[4:])


def rounding_dict(timing: RoundingTiming) -> dict[str, Any]:
    """Return a timing with its rates as JSON types."""
    return dataclasses.asdict(timing) | {"rate": timing.rate, "of_copy": timing.of_copy}


def rounding_table(timings: Sequence[RoundingTiming]) -> RenderableType:
    """Return timings, a line for each; rates in billions of elements a second."""
    columns = ("format", "what", "ms", "Gel/s", "of copy", "of peers")
    rows = [
        (
            Text(t.fmt, "bold"),
            t.what,
            _three(1e3 * t.seconds),
            _three(t.rate),
            f"{t.of_copy:.2f}",
            ", ".join(f"{t.of_peer(name):.2f} x {name}" for name in t.peers),
        )
        for t in timings
    ]
    return table(columns, rows, numeric=columns[2:5])


def train_dict(timing: TrainTiming) -> dict[str, Any]:
    """Return a timing with its ratios as JSON types."""
    return dataclasses.asdict(timing) | {"ratios": {name: timing.of_peer(name) for name in timing.peers}}


def train_table(timings: Sequence[TrainTiming]) -> RenderableType:
    """Return timings of training steps, a line for each; memory in millions of bytes."""
    columns = ("model", "library", "in", "unit", "ms", "fastest", "slowest", "MB", "simulated", "times the time of")
    rows = [
        (
            Text(t.model, "bold"),
            t.library,
            t.arithmetic,
            t.unit,
            *(_three(1e3 * x) for x in (t.seconds, t.fastest, t.slowest)),
            *("" if n is None else f"{n / 1e6:.1f}" for n in (t.process_bytes, t.simulated_bytes)),
            "; ".join(
                f"{t.of_peer(name):.2f} {name}" for name in t.peers if name.endswith(("fp32", f" {t.arithmetic}"))
            ),
        )
        for t in timings
    ]
    return table(columns, rows, numeric=columns[4:9])


def observe_dict(timing: ObserveTiming) -> dict[str, Any]:
    """Return a timing as JSON types."""
    return dataclasses.asdict(timing)


def observe_table(timings: Sequence[ObserveTiming]) -> RenderableType:
    """Return timings of observed steps, a line for each, with the ratios of the middle half of the steps."""
    columns = ("model", "in", "unit", "observing", "ms", "fastest", "slowest", "times unobserved", "half of the steps")
    rows = [
        (
            Text(t.model, "bold"),
            t.arithmetic,
            t.unit,
            t.observing,
            *(_three(1e3 * x) for x in (t.seconds, t.fastest, t.slowest)),
            f"{t.ratio:.3f}",
            f"{t.ratio_low:.3f} to {t.ratio_high:.3f}",
        )
        for t in timings
    ]
    return table(columns, rows, numeric=columns[4:])


def _three(x: float) -> str:
    """Return three digits, or all before the point."""
    return f"{x:.3g}" if x < 999.5 else f"{x:,.0f}"


def study_table(part: StudyTable) -> RenderableType:
    """Return a part of a study's result under its title; all columns but the first two hold numbers."""
    return Group(Text(part.title, "bold"), table(part.columns, part.rows, numeric=part.columns[2:]), Text())


def claims_table(claims: Sequence[Claim]) -> RenderableType:
    """Return what others report beside what was measured."""
    columns = ("", "claim", "measured", "source")
    rows = [
        (Text("holds", "bold green") if c.holds else Text("FAILS", "bold red"), c.statement, c.measured, c.source)
        for c in claims
    ]
    return Group(Text("What the literature reports, and what was seen", "bold"), table(columns, rows))


def outcomes_table(where: str, outcomes: Sequence[Outcome]) -> RenderableType:
    """Return what came of each row of a recording, or of a processor."""
    columns = ("row", "results", "differ", "")
    rows = [
        (
            o.row,
            f"{o.results:,}" if o.results else "",
            "" if o.skipped else Text(f"{o.different:,}", "bold red" if o.different else "bold green"),
            f"skipped: {o.skipped}" if o.skipped else "",
        )
        for o in outcomes
    ]
    return Group(Text(where, "bold"), table(columns, rows, numeric=columns[1:3]), Text())


def diagnosis_lines(d: Diagnosis) -> list[RenderableType]:
    """Return facts about a computer, and which checks it can make."""
    facts = [
        ("processor", d.processor),
        ("features", " ".join(d.features) or "none that has to do with formats"),
        *((name, version) for name, version in d.versions.items()),
        ("kernel cache", d.cache),
        ("threads", str(d.threads)),
        ("floating point", d.floating_point),
        *d.variables.items(),
    ]
    checks = [(title, Text("not here: " + why) if why else Text("can be checked", "green"))
              for title, why in d.validations.items()]  # fmt: skip
    return [facts_grid(facts), Text(), Text("mpsim validate --host", "bold"), facts_grid(checks)]
