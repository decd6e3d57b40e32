"""One HTML file about a run that was observed: tables and figures, readable without a network."""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpsim import plots
from mpsim._files import replace
from mpsim.counters import Counters
from mpsim.formats import FormatLike, get_format
from mpsim.observe import Record, ZeroCauses

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["summary", "write_report"]

_STYLE = """body{font:16px/1.5 system-ui,sans-serif;color:#22223b;max-width:52rem;margin:2rem auto;padding:0 1rem}
h1,h2{line-height:1.2}img{max-width:100%;height:auto}pre{background:#f4f4f6;padding:.8rem;overflow-x:auto}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #ddd}
th:nth-child(-n+3),td:nth-child(-n+3){text-align:left}"""

_EVENTS = ("zeros", "underflows", "subnormals", "overflows", "nans")


def write_report(record: Record, path: str | os.PathLike[str], fmt: FormatLike = "fp16", title: str = "A run") -> None:
    """Write what a record holds as one HTML file, which appears under its name when it is complete.

    Parameters
    ----------
    record : Record
    path : path of an ``.html`` file
    fmt : FloatFormat or name
        The format whose bands and scales are drawn.
    title : str
    """
    heading = html.escape(title)
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        f"<title>{heading}</title><style>{_STYLE}</style></head><body><h1>{heading}</h1>",
        *_sections(record, fmt),
        "</body></html>\n",
    ]
    text = "\n".join(parts).encode()
    replace(path, lambda file: file.write(text))


def summary(record: Record) -> list[dict[str, str | int | float]]:
    """Return one row for each tensor and format, over all steps: numbers seen, and shares of what happened to them."""
    totals: dict[tuple[str, str, str], Counters] = {}
    for entry in record.entries():
        key = entry.kind, entry.tensor, entry.format.name
        totals[key] = totals.get(key, Counters()) + entry.counters
    return [
        {
            "kind": kind,
            "tensor": tensor,
            "format": fmt,
            "numbers": counters.elements,
            **{event: counters.share(event) for event in _EVENTS},
        }
        for (kind, tensor, fmt), counters in totals.items()
    ]


def _sections(record: Record, fmt: FormatLike) -> Iterator[str]:
    name = get_format(fmt).name.upper()
    yield f"<p>{record.steps} training steps, {len(record.layers())} layers.</p><h2>The first failure</h2>"
    finding = record.first_bad()
    if finding is None:
        yield "<p>Nothing overflowed, became NaN, or was flushed beyond the share that was allowed.</p>"
    else:
        yield "<p>The first operation that made unusable numbers of usable ones, and one of its elements.</p>"
        yield f"<pre>{html.escape(str(finding))}</pre>"
    if record.histograms and record.histogram("activation gradient").occupied_counts.size:
        yield from _gradients(record, fmt, name)
    if record.zero_causes:
        yield "<h2>Why gradients are zero</h2><p>Shares of the zeros of each tensor, over all steps.</p>"
        yield _zeros(record.zero_causes)
    yield "<h2>All tensors</h2><p>Numbers rounded, and shares: zero before, made zero (of an update: without effect on "
    yield "the weight), subnormal, overflowed, NaN.</p>"
    yield _table(("kind", "tensor", "format", "numbers", *_EVENTS), [list(row.values()) for row in summary(record)])


def _gradients(record: Record, fmt: FormatLike, name: str) -> Iterator[str]:
    yield f"<h2>Magnitudes of activation gradients</h2><p>Each bar is a power of two, before rounding. In {name} "
    yield "numbers of the red band become zero, those of the yellow one keep fewer bits, those of the violet one "
    yield "overflow.</p>"
    yield _figure(plots.magnitudes(record, fmt), "Histogram of activation gradients")
    yield "<h2>Loss scale</h2><p>Below the green band more than 0.1 % of the gradients would be lost, above it "
    yield "something would overflow. Numbers that were lost before they came to a tensor are not seen.</p>"
    yield _figure(plots.loss_scale_window(record, fmt), "Loss scale by step")
    yield "<p>The same for all steps together: what a factor on all gradients would lose, and overflow.</p>"
    yield _figure(plots.scale_profile(record, fmt), "Losses by scale")
    yield "<h2>Zeros by layer and step</h2><p>Share of the activation gradients that are zero after rounding, whatever "
    yield "the cause. Dark rows carry no signal.</p>"
    yield _figure(plots.heat_map(record, "zeros"), "Zeros by layer and step")


def _zeros(found: dict[tuple[int, str, str, str], ZeroCauses]) -> str:
    totals: dict[tuple[str, str], ZeroCauses] = {}
    for (_, kind, _, tensor), causes in found.items():
        if kind.endswith("gradient"):
            totals.setdefault((kind, tensor), ZeroCauses()).__iadd__(causes)
    names = ("underflow", "upstream", "cast", "swamping", "mask", "true_zero")
    rows: list[list[str | int | float]] = [
        [kind, tensor, causes.elements, causes.zeros, *(causes.shares().get(name, 0.0) for name in names)]
        for (kind, tensor), causes in totals.items()
    ]
    return _table(("kind", "tensor", "numbers", "zeros", *names), rows)


def _table(head: tuple[str, ...], rows: list[list[str | int | float]]) -> str:
    cells = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: str | int | float) -> str:
    return f"{value:.2%}" if isinstance(value, float) else html.escape(str(value))


def _figure(ax: Axes, text: str) -> str:
    """Return a figure as an image inside the page."""
    buffer = io.BytesIO()
    ax.figure.savefig(buffer, format="png", dpi=130)  # type: ignore[union-attr]
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<p><img alt="{html.escape(text)}" src="data:image/png;base64,{data}"></p>'
