"""Formats, and numbers taken apart."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from mpsim._text.console import card, facts_grid, table, terminal_width
from mpsim.exact import decimal_text, error_text, power_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsim.formats import FloatFormat
    from mpsim.inspect import Inspection

__all__ = ["format_dict", "format_panel", "formats_table", "inspection_panel", "inspections_table"]

_SIGN, _EXPONENT, _FRACTION = "bold magenta", "bold cyan", "bold yellow"


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
    return card(f.name, facts_grid(rows))


def _layout(f: FloatFormat) -> Text:
    parts = [(f"{f.w} exponent", _EXPONENT), (f"{f.m} fraction", _FRACTION)]
    if f.signed:
        parts.insert(0, ("1 sign", _SIGN))
    return Text(f"{f.bits} bits: ") + Text(", ").join(Text(text, style) for text, style in parts)


def inspections_table(items: Sequence[Inspection]) -> RenderableType:
    """Return one number in several formats, a line for each."""
    width = terminal_width()
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
    parts: list[RenderableType] = [facts_grid([(name, styled.get(name, text)) for name, text in x.facts])]
    if not x.from_code:
        parts += [Text(), Text(x.explanation, _note_style(_note(x)))]
    return card(x.title, Group(*parts))


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


def _short(x: float | Fraction) -> str:
    return decimal_text(Fraction(x), 12)


def _exact(x: float) -> str:
    return decimal_text(Fraction(x), 20)


def _cut(x: Inspection, digits: int) -> str:
    return x.text if not isinstance(x.value, Fraction) or x.kind == "zero" else decimal_text(x.value, digits)
