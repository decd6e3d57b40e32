"""Figures of what `mpsim.observe` collected."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsim.counters import Counters
from mpsim.formats import FormatLike, get_format
from mpsim.observe import Pair, Record, scale_windows, what_if
from mpsim.plots._common import BANDS, LINES, axes, legend
from mpsim.plots.studies import gradient_histogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["error_growth", "heat_map", "loss_scale_window", "magnitudes", "scale_profile"]

_POWERS = (2.0**-1074, 2.0**1023)
"""The powers of two that FP64 has."""


def magnitudes(
    record: Record,
    fmt: FormatLike = "fp16",
    ax: Axes | None = None,
    *,
    kind: str = "activation gradient",
    **choice: Any,
) -> Axes:
    """Draw the magnitudes of a record before rounding, over the bands of a format.

    Parameters
    ----------
    record : Record
    fmt : FloatFormat or name
        The format whose bands are drawn.
    ax : Axes, optional
    kind, **choice
        What to draw, as for `Record.counters`.
    """
    exponents, counts = record.histogram(kind, **choice).occupied()
    title = f"Where the numbers lie in {get_format(fmt).name.upper()}"
    return gradient_histogram(exponents.tolist(), counts.tolist(), fmt, ax, what=kind, title=title)


def loss_scale_window(record: Record, fmt: FormatLike = "fp16", lost: float = 1e-3, ax: Axes | None = None) -> Axes:
    """Draw the loss scale step by step, inside the window of those that lose little and overflow nothing.

    Parameters
    ----------
    record : Record
        Of a run that was observed with its scaler.
    fmt : FloatFormat or name
    lost : float
        Share of the activation gradients that may be rounded to zero.
    ax : Axes, optional
    """
    ax = axes(ax)
    windows = list(scale_windows(record, fmt, lost))
    steps = np.array([step for step, _ in windows])
    low, high = (np.log2(np.clip([getattr(w, name) for _, w in windows], *_POWERS)) for name in ("smallest", "largest"))
    if steps.size:
        bottom = min(low.min(), *np.log2(list(record.scales.values()) or [1.0])) - 3
        top = max(high.max(), *np.log2(list(record.scales.values()) or [1.0])) + 3
        edges = np.append(steps, steps[-1] + 1)
        bands = (("lost", bottom, low), ("normal", low, high), ("overflow", high, top))
        names = {"lost": f"more than {lost:.1%} lost", "normal": "admissible", "overflow": "something overflows"}
        for name, start, stop in bands:
            below, above = (
                np.append(np.broadcast_to(x, steps.shape), np.broadcast_to(x, steps.shape)[-1]) for x in (start, stop)
            )
            ax.fill_between(
                edges, below, above, step="post", color=BANDS[name], alpha=0.3, linewidth=0, label=names[name]
            )
        ax.set(xlim=(edges[0], edges[-1]), ylim=(bottom, top))
    if record.scales:
        known = sorted(record.scales)
        values = np.log2([record.scales[step] for step in known])
        line = np.append(values, values[-1])
        ax.step([*known, known[-1] + 1], line, where="post", color="#22223b", linewidth=2, label="loss scale")
    ax.set_xlabel("training step")
    ax.set_ylabel("log2 of the loss scale")
    ax.set_title(f"The loss scale and what {get_format(fmt).name.upper()} admits")
    legend(ax, "best")
    return ax


def heat_map(
    record: Record, event: str = "underflows", kind: str = "activation gradient", ax: Axes | None = None
) -> Axes:
    """Draw the share of the numbers to which something happened, layer by layer and step by step.

    Parameters
    ----------
    record : Record
    event : str
        A field of `Counters`; ``"zeros"`` takes all that are zero after rounding.
    kind : str
        Kind of tensor.
    ax : Axes, optional
    """
    from matplotlib.ticker import MaxNLocator

    cells: dict[tuple[str, int], Counters] = {}
    for entry in record.entries(kind):
        cell = entry.layer, entry.step
        cells[cell] = cells.get(cell, Counters()) + entry.counters
    layers = list(dict.fromkeys(layer for layer, _ in cells))
    steps = 1 + max((step for _, step in cells), default=0)
    share = np.full((max(len(layers), 1), steps), np.nan)
    rows = {layer: i for i, layer in enumerate(layers)}
    for (layer, step), counters in cells.items():
        if counters.elements:
            made = counters.underflows if event == "zeros" else 0
            share[rows[layer], step] = counters.share(event) + made / counters.elements
    ax = axes(ax, (7.0, 1.6 + 0.3 * max(len(layers), 4)))
    image = ax.imshow(100 * share, aspect="auto", cmap="magma_r", vmin=0, vmax=100, interpolation="nearest")
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02)
    bar.set_label("% of the numbers")
    ax.set_yticks(range(len(layers)), [layer or "(no layer)" for layer in layers], fontsize=8)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("training step")
    ax.set_title(f"{kind}: {event.replace('_', ' ')}, by layer")
    return ax


def scale_profile(
    record: Record,
    fmt: FormatLike = "fp16",
    lost: float = 1e-3,
    ax: Axes | None = None,
    *,
    kind: str = "activation gradient",
    **choice: Any,
) -> Axes:
    """Draw what a format would lose and overflow of the recorded numbers, against a factor on them.

    Parameters
    ----------
    record : Record
    fmt : FloatFormat or name
    lost : float
        The smallest factor that loses no more than this share is marked.
    ax : Axes, optional
    kind, **choice
        What to draw, as for `Record.counters`.
    """
    ax = axes(ax)
    f = get_format(fmt)
    told = what_if(record.histogram(kind, **choice), f)
    if told.histogram.occupied_counts.size:
        window = told.window(f, lost)
        centre = [round(math.log2(x)) for x in np.clip([window.smallest, window.largest], *_POWERS)]
        powers = np.arange(max(min(0, *centre) - 12, -1074), min(max(0, *centre) + 9, 1024))
        losses = [told.loss(f, 2.0 ** int(k)) for k in powers]
        for name in ("lost", "subnormal", "overflow"):
            shares = [100 * getattr(loss, name) / loss.numbers for loss in losses]
            style = {"lost": "-", "subnormal": "--", "overflow": "-."}[name]
            ax.plot(powers, shares, style, color=BANDS[name], linewidth=2, label=name)
        if window.is_open:
            label = f"admissible: $2^{{{centre[0]}}}$ to $2^{{{centre[1]}}}$"
            ax.axvspan(*centre, color=BANDS["normal"], alpha=0.25, linewidth=0, label=label)
        ax.set_xlim(powers[0], powers[-1])
    ax.axvline(0, color="0.3", linewidth=1, linestyle=":")
    ax.set_ylim(-2, 104)
    ax.set_xlabel("log2 of a factor on the recorded numbers")
    ax.set_ylabel("share of the numbers that are not zero, %")
    ax.set_title(f"Which scale keeps them in {f.name.upper()}")
    legend(ax, "center")
    return ax


def error_growth(pair: Pair, ax: Axes | None = None) -> Axes:
    """Draw the signal-to-noise ratio of each tensor of a paired run, in its order; equal ones are left out."""
    ax = axes(ax, (7.0, 4.6))
    marks = {"activation": "o", "activation gradient": "s", "weight gradient": "^"}
    shown = [row for row in pair.rows if math.isfinite(row.sqnr)]
    for i, (kind, mark) in enumerate(marks.items()):
        rows = [(n, row.sqnr) for n, row in enumerate(shown) if row.kind == kind]
        if rows:
            ax.plot(*zip(*rows, strict=True), mark + "-", color=LINES[i], label=kind, linewidth=1)
    ax.set_xticks(range(len(shown)), [row.tensor for row in shown], rotation=60, ha="right", fontsize=7)
    ax.set_ylabel("SQNR, dB")
    ax.set_title("How far each tensor is from the reference")
    ax.grid(axis="y", alpha=0.3)
    legend(ax, "best")
    return ax
