"""How the command line shows things: tables and panels on a terminal, plain lines in a pipe."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mpsim.exact import decimal_text, error_text, power_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsim.bench import MatmulTiming, RoundingTiming, TrainTiming
    from mpsim.experiments import Claim
    from mpsim.experiments import Table as StudyTable
    from mpsim.formats import FloatFormat
    from mpsim.hardware import Diagnosis, Outcome
    from mpsim.inspect import Inspection
    from mpsim.matmul import Explanation
    from mpsim.units import MatrixUnit

__all__ = [
    "claims_table",
    "diagnosis_lines",
    "explanation_dict",
    "format_dict",
    "format_panel",
    "formats_table",
    "inspection_panel",
    "inspections_table",
    "outcomes_table",
    "print_json",
    "show",
    "table",
    "timing_dict",
    "timings_table",
    "train_dict",
    "train_table",
    "units_legend",
    "units_table",
]

_SIGN, _EXPONENT, _FRACTION = "bold magenta", "bold cyan", "bold yellow"
_PIPE = 100_000  # a pipe has no width: nothing is wrapped or cut


def show(*parts: RenderableType) -> None:
    """Print to standard output: styled and as wide as the terminal, or plain and uncut into a pipe."""
    console = Console(highlight=False, emoji=False)
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    console.width = _PIPE
    with console.capture() as capture:
        console.print(*parts, sep="\n")
    print("\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n")))


def print_json(data: Any) -> None:
    """Print JSON; NaN and infinities are not JSON, so they come as strings."""
    print(json.dumps(_plain(data), indent=2, allow_nan=False))


def _plain(data: Any) -> Any:
    match data:
        case dict():
            return {str(key): _plain(value) for key, value in data.items()}
        case list() | tuple():
            return [_plain(value) for value in data]
        case float() if data - data != 0:
            return str(data)
        case None | bool() | int() | float() | str():
            return data
        case _ if hasattr(data, "item"):
            return _plain(data.item())
        case _:
            return str(data)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], numeric: Sequence[str] = (), title: str = "") -> Table:
    """Return a table with a ruled header; columns named in ``numeric`` are aligned to the right."""
    result = Table(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), title=title or None, title_justify="left"
    )
    for column in columns:
        result.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    for row in rows:
        result.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return result


def _is_terminal() -> bool:
    return Console().is_terminal


def _width() -> int:
    console = Console()
    return console.width if console.is_terminal else _PIPE


# Formats.


def formats_table(formats: Sequence[FloatFormat]) -> RenderableType:
    """Return the catalogue, a line for each format."""
    columns = ("format", "s-e-f", "bias", "largest", "min normal", "min", "inf", "nan", "-0")
    rows = [
        (
            Text(f.name, "bold"),
            f"{int(f.signed)}-{f.w}-{f.m}",
            f.bias,
            f"{f.max_finite:.6g}",
            power_text(Fraction(f.min_normal)),
            power_text(Fraction(f.min_subnormal)),
            *(
                "yes" if fact else "no"
                for fact in (f.inf_code is not None, f.nan_code is not None, f.has_negative_zero)
            ),
        )
        for f in formats
    ]
    return table(columns, rows, numeric=("bias", "largest"))


def format_dict(f: FloatFormat) -> dict[str, Any]:
    """Return the facts of a format as JSON types."""
    return {
        "name": f.name,
        "aliases": list(f.aliases),
        "bits": f.bits,
        "signed": f.signed,
        "exponent_bits": f.w,
        "fraction_bits": f.m,
        "p": f.p,
        "bias": f.bias,
        "emin": f.emin,
        "emax": f.emax,
        "max_finite": f.max_finite,
        "min_normal": f.min_normal,
        "min_subnormal": f.min_subnormal,
        "eps": f.eps,
        "specials": str(f.specials),
        "has_subnormals": f.has_subnormals,
        "has_zero": f.has_zero,
        "has_negative_zero": f.has_negative_zero,
        "inf_code": f.inf_code,
        "nan_code": f.nan_code,
        "max_code": f.max_code,
        "source": f.source,
    }


def format_panel(f: FloatFormat) -> RenderableType:
    """Return all that is known of one format."""

    def code(value: int | None) -> str:
        return "none" if value is None else f"0x{value:0{(f.bits + 3) // 4}x}"

    overflow = "the largest number" if f.saturates or (f.inf_code is None and f.nan_code is None) else "NaN"
    rows: list[tuple[str, str | Text]] = [
        ("also called", ", ".join(f.aliases) or "-"),
        ("layout", _layout(f)),
        ("precision", f"p = {f.p} bits, eps = {power_text(Fraction(f.eps))}"),
        ("exponents", f"{f.emin} to {f.emax}, bias {f.bias}"),
        ("largest", f"{_exact(f.max_finite)}  (code {code(f.max_code)})"),
        ("min normal", f"{power_text(Fraction(f.min_normal))} = {_short(f.min_normal)}"),
        (
            "min",
            f"{power_text(Fraction(f.min_subnormal))} = {_short(f.min_subnormal)}"
            + ("" if f.has_subnormals else ", normal"),
        ),
        ("zero", ("+0 and -0" if f.has_negative_zero else "+0 only") if f.has_zero else "none"),
        ("infinity", code(f.inf_code)),
        ("NaN", code(f.nan_code) + (" and others" if f.specials == "ieee" else "")),
        ("overflow gives", overflow if f.inf_code is None or f.saturates else "infinity"),
        ("source", f.source),
    ]
    if f.bits <= 4:
        values = [decimal_text(Fraction(f.magnitude(c))) for c in range(f.max_code + 1)]
        rows.insert(-1, ("values", ("±" if f.signed else "") + ", ".join(values)))
    return _card(f.name, _facts(rows))


def _layout(f: FloatFormat) -> Text:
    parts = [(f"{f.w} exponent", _EXPONENT), (f"{f.m} fraction", _FRACTION)]
    if f.signed:
        parts.insert(0, ("1 sign", _SIGN))
    return Text(f"{f.bits} bits: ") + Text(", ").join(Text(text, style) for text, style in parts)


# Numbers taken apart.


def inspections_table(items: Sequence[Inspection]) -> RenderableType:
    """Return one number in several formats, a line for each."""
    width = _width()
    digits = 60 if width >= 175 else 20 if width >= 100 else 13
    columns = ["format", "bits", "value", "error", "ulps", ""]
    rows = [
        (
            Text(x.format.name, "bold"),
            Text("" if x.format.signed else "  ") + _bits(x, 64 if width >= 140 else 10),
            Text(_cut(x, digits), _note_style(_note(x))),
            "" if x.error is None else error_text(x.error),
            "" if x.error_ulps is None else error_text(x.error_ulps, scientific=False),
            Text(_note(x), _note_style(_note(x))),
        )
        for x in items
    ]
    shown = len(columns) if width >= 100 else -1  # a narrow terminal has the notes in colour only
    return table(columns[:shown], [row[:shown] for row in rows], numeric=("value", "error", "ulps"))


def inspection_panel(x: Inspection) -> RenderableType:
    """Return one number in one format: what each field says, the neighbours, the error and why."""
    styled = {"bits": _bits(x, 64)}
    parts: list[RenderableType] = [_facts([(name, styled.get(name, text)) for name, text in x.facts])]
    if not x.from_code:
        parts += [Text(), Text(x.explanation, _note_style(_note(x)))]
    return _card(x.title, Group(*parts))


def _bits(x: Inspection, longest: int) -> Text:
    """Return the three fields in three colours; a fraction beyond ``longest`` digits is cut in the middle."""
    sign, exponent, fraction = x.bits
    if len(fraction) > longest:
        fraction = f"{fraction[: longest - 4]}…{fraction[-3:]}"
    fields = [(sign, _SIGN), (exponent, _EXPONENT), (fraction, _FRACTION)]
    return Text(" ").join(Text(digits, style) for digits, style in fields if digits)


def _note(x: Inspection) -> str:
    """Return the one thing to know about a result, or nothing."""
    facts = {
        "overflow": x.overflow,
        "underflow": x.underflow,
        "tie": x.tie,
        "subnormal": x.kind == "subnormal",
        "exact": x.exact and isinstance(x.given, Fraction),
    }
    return next((note for note, holds in facts.items() if holds), "")


def _note_style(note: str) -> str:
    return {"overflow": "bold red", "underflow": "bold red", "subnormal": "yellow", "exact": "green"}.get(note, "")


# Matrix units.

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
    parts: list[RenderableType] = [Text(), _facts(notes)]
    named = [(architecture, ", ".join(names)) for architecture, names in devices.items() if names]
    if named:
        parts += [Text(), _facts(named)]
    return parts


# One dot product.


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


# Timings.


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


def _three(x: float) -> str:
    """Return three digits, or all before the point."""
    return f"{x:.3g}" if x < 999.5 else f"{x:,.0f}"


# Studies.


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


# Machines.


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
    return [_facts(facts), Text(), Text("mpsim validate --host", "bold"), _facts(checks)]


# Pieces.


def _facts(rows: Sequence[tuple[str, str | Text]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value if isinstance(value, Text) else Text(value))
    return grid


def _card(title: str, body: RenderableType) -> RenderableType:
    """Return ``body`` under its title: in a frame on a terminal."""
    heading = Text(title, "bold")
    if not _is_terminal():
        return Group(heading, body)
    return Panel(body, title=heading, title_align="left", expand=False, padding=(0, 1))


def _short(x: float | Fraction) -> str:
    return decimal_text(Fraction(x), 12)


def _exact(x: float) -> str:
    return decimal_text(Fraction(x), 20)


def _cut(x: Inspection, digits: int) -> str:
    return x.text if not isinstance(x.value, Fraction) or x.kind == "zero" else decimal_text(x.value, digits)
