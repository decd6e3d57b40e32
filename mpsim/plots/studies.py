"""Figures of the studies and of single dot products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsim.exact import floor_log2
from mpsim.experiments import adaptive, examples
from mpsim.experiments.underflow import LOSS_SCALING, MASTER_WEIGHTS, Result
from mpsim.formats import FormatLike, get_format
from mpsim.matmul import Step
from mpsim.plots._common import BANDS, LINES, axes, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "STUDIES",
    "accuracy_by_scale",
    "adaptive_losses",
    "adaptive_scales",
    "alignment",
    "gradient_histogram",
    "loss_curves",
    "loss_scale_curve",
    "save_adaptive",
    "save_example",
    "save_underflow",
    "training_curves",
]


def gradient_histogram(
    exponents: Sequence[int],
    counts: Sequence[int],
    fmt: FormatLike = "fp16",
    ax: Axes | None = None,
    *,
    what: str = "activation gradient",
    title: str | None = None,
) -> Axes:
    """Draw how magnitudes are spread, over the bands in which a format loses, keeps or overflows them.

    Parameters
    ----------
    exponents, counts : sequences of int
        How many numbers have each exponent ``floor(log2 |x|)``.
    fmt : FloatFormat or name
        Its bands under nearest-even: lost up to half the smallest subnormal, which is a tie and goes to zero;
        subnormal; normal; overflow from halfway beyond the largest finite number.
    ax : Axes, optional
    what, title : str, optional
        What the numbers are, for the axes; a title in place of the usual one.
    """
    f = get_format(fmt)
    ax = axes(ax)
    total = max(sum(counts), 1)
    shares = 100.0 * np.asarray(counts, np.float64) / total
    lost = f.quantum_exponent - 1
    overflow = float(np.log2(f.max_finite) + np.log2(1 + f.u / (2 - f.eps)))
    seen = [e for e, share in zip(exponents, shares, strict=True) if share >= 0.01]  # the rest is too low to see
    low = min([*seen, lost]) - 3
    high = max([*seen, overflow]) + 8
    infinity = float("inf")
    edges = {
        "lost": (-infinity, lost),
        "subnormal": (lost, f.emin),
        "normal": (f.emin, overflow),
        "overflow": (overflow, infinity),
    }
    # A bar stands for [2**e, 2**(e+1)): its left edge is at e.
    ax.bar(exponents, shares, width=1.0, align="edge", color="#22223b", edgecolor="white", linewidth=0.5, zorder=3)
    top = max(shares.max(initial=0.0), 1.0) * 1.22
    for name, (start, stop) in edges.items():
        left, right = max(start, low), min(stop, high)
        if name == "subnormal" and not f.has_subnormals:
            continue
        ax.axvspan(left, right, color=BANDS[name], alpha=0.25, linewidth=0)
        inside = sum(share for e, share in zip(exponents, shares, strict=True) if start <= e < stop)
        label = f"{name}\n{inside:.1f} %"
        ax.text((left + right) / 2, top * 0.985, label, ha="center", va="top", fontsize=9, zorder=4)
    ax.axvline(lost, color=BANDS["lost"], linewidth=1.2, zorder=2)
    ax.set(xlim=(low, high), ylim=(0, top))
    ax.set_xlabel(f"log2 |{what}| before rounding")
    ax.set_ylabel("share of the numbers that are not zero, %")
    ax.set_title(title or f"What {f.name.upper()} would lose without loss scaling: all up to 2^{lost}")
    return ax


def accuracy_by_scale(result: Result, ax: Axes | None = None) -> Axes:
    """Draw test accuracy, and the share of gradients that are zero, against the constant loss scale."""
    ax = axes(ax)
    arms = [m for m in result.part(LOSS_SCALING) if m.arm.loss_scale is not None and np.isfinite(m.arm.loss_scale)]
    scales = [float(m.arm.loss_scale or 0) for m in arms]
    low = result.config.low.upper()
    ax.plot(scales, [100 * m.accuracy for m in arms], "o-", color=LINES[0], label=f"{low}: test accuracy")
    ax.plot(scales, [100 * m.zero for m in arms], "s--", color=LINES[1], label=f"{low}: gradients that are zero")
    for name, style, colour in (("FP32", ":", LINES[3]), (f"{low}, dynamic", "-.", LINES[5])):
        found = result.find(name)
        if found is not None:
            ax.axhline(100 * found.accuracy, linestyle=style, color=colour, label=f"{name}: test accuracy", zorder=1)
    if scales:  # a logarithmic axis cannot be empty
        ax.set_xscale("log", base=2)
    ax.set_ylim(0, 105)
    ax.set_xlabel("loss scale")
    ax.set_ylabel("%")
    ax.set_title("A larger loss scale brings the gradients back")
    legend(ax, "lower center")
    return ax


def loss_curves(result: Result, part: str = MASTER_WEIGHTS, ax: Axes | None = None) -> Axes:
    """Draw the mean training loss of each pass, for the arms of one part."""
    ax = axes(ax)
    for i, m in enumerate(result.part(part)):
        passes = np.arange(1, len(m.losses) + 1)
        style = ("-", "--", "-", "-")[i % 4]
        ax.plot(passes, m.losses, style, color=LINES[i % len(LINES)], label=m.arm.name)
    ax.set_xlabel("pass over the data")
    ax.set_ylabel("mean training loss")
    ax.set_title("Without an FP32 copy of the weights, small updates are lost")
    legend(ax, "best")
    return ax


def loss_scale_curve(result: Result, ax: Axes | None = None) -> Axes:
    """Draw the dynamic loss scale step by step, with the skipped steps."""
    ax = axes(ax)
    found = result.find(f"{result.config.low.upper()}, dynamic")
    scales = np.asarray(found.scales if found else (), np.float64)
    skipped = np.asarray(found.skipped if found else (), np.int64)
    ax.step(np.arange(scales.size), scales, where="post", color=LINES[0], label="loss scale")
    if skipped.size:
        label = f"{skipped.size} skipped steps"
        ax.plot(skipped, scales[skipped], "x", color=LINES[1], label=label, zorder=3)
    if scales.size:
        ax.set_yscale("log", base=2)
    ax.set_xlabel("training step")
    ax.set_ylabel("loss scale")
    ax.set_title(f"Dynamic scaling: doubled after {result.config.growth_interval} clean steps, halved by an overflow")
    legend(ax, "lower right")
    return ax


def training_curves(result: examples.Result[Any], task: str, ax: Axes | None = None) -> Axes:
    """Draw how an example's training went in each arithmetic; long curves as means of neighbours."""
    ax = axes(ax)
    goal = result.example.goal
    for i, run in enumerate(r for r in result.runs if r.task == task):
        width = max(len(run.curve) // 60, 1)
        means = [float(np.mean(run.curve[k : k + width])) for k in range(0, len(run.curve), width)]
        label = f"{run.arithmetic.name}: {goal.what} {run.score:{goal.shown}}"
        ax.plot(np.arange(len(means)) * width, means, ("-", "--", ":")[i % 3], color=LINES[i % 6], label=label)
    ax.set_xlabel(goal.each)
    ax.set_ylabel(goal.curve)
    ax.set_title(task)
    legend(ax, "best")
    return ax


def save_example(result: examples.Result[Any], folder: Path) -> list[Path]:
    """Write a figure for each task of an example as PNG files and return their paths."""
    paths = []
    for task in result.example.tasks:
        paths.append(folder / f"{task.replace(' ', '-').lower()}.png")
        training_curves(result, task).figure.savefig(paths[-1], dpi=150)  # type: ignore[union-attr]
    return paths


def adaptive_losses(result: adaptive.Result, ax: Axes | None = None) -> Axes:
    """Draw the training loss of each controller, as means over ten steps."""
    ax = axes(ax)
    for i, m in enumerate(result.measured):
        whole = len(m.losses) // 10 * 10
        means = np.asarray(m.losses[:whole]).reshape(-1, 10).mean(axis=1)
        ax.plot(10 * np.arange(means.size) + 5, means, ("-", "--")[i % 2], color=LINES[i % len(LINES)], label=m.arm)
    ax.set_xlabel("training step")
    ax.set_ylabel("training loss")
    ax.set_title("Formats, units and scales that are decided step by step")
    legend(ax, "best")
    return ax


def adaptive_scales(result: adaptive.Result, ax: Axes | None = None) -> Axes:
    """Draw the scale on the first layer's gradients, step by step, where a controller changed it."""
    ax = axes(ax)
    for i, m in enumerate(m for m in result.measured if len(m.scales) > 1 or m.arm == "dynamic loss scale"):
        steps, scales = zip(*m.scales, strict=True)
        drawn = (*steps, len(m.losses)), (*scales, scales[-1])
        ax.step(*drawn, where="post", color=LINES[i % len(LINES)], label=m.arm)
        ax.set_yscale("log", base=2)
    ax.set_xlabel("training step")
    ax.set_ylabel("scale on the first layer's gradients")
    ax.set_title("Scales of the loss times those of layers")
    legend(ax, "best")
    return ax


def save_adaptive(result: adaptive.Result, folder: Path) -> list[Path]:
    """Write the figures of the study of adaptive precision as PNG files and return their paths."""
    paths = []
    for name, ax in (("losses", adaptive_losses(result)), ("scales", adaptive_scales(result))):
        paths.append(folder / f"{name}.png")
        ax.figure.savefig(paths[-1], dpi=150)  # type: ignore[union-attr]
    return paths


def alignment(step: Step, ax: Axes | None = None) -> Axes:
    """Draw the bits of each term of a dot product where they lie, and which of them alignment cuts off.

    Parameters
    ----------
    step : Step
        Of `explain_dot`, on a unit that aligns terms: its columns have an exponent, what is kept and what is cut off.
    ax : Axes, optional

    Raises
    ------
    ValueError
        The step aligns nothing.
    """
    if "kept" not in step.columns:
        raise ValueError(f"step {step.title!r} has the columns {', '.join(step.columns)}; it aligns nothing to draw")
    ax = axes(ax)
    terms = [row for row in step.rows if isinstance(row[2], int)]
    quantum = next(fact for name, fact in step.facts if name in ("aligned to multiples of", "sum of the kept products"))
    for y, (_, value, exponent, kept, cut) in enumerate(terms):
        for part, colour in ((kept, LINES[0]), (cut, LINES[1])):
            if isinstance(part, Fraction) and part != 0:
                low = (part.denominator & -part.denominator).bit_length() - 1
                lowest = -low if part.denominator > 1 else (part.numerator & -part.numerator).bit_length() - 1
                ax.barh(y, floor_log2(abs(part)) + 1 - lowest, left=lowest, color=colour, height=0.7)
        if isinstance(exponent, int) and value != 0:
            ax.plot(exponent, y, "|", color="black", markersize=14)
    if isinstance(quantum, Fraction) and quantum > 0 and step.facts[1][0] == "aligned to multiples of":
        ax.axvline(floor_log2(quantum), color="0.3", linestyle="--", linewidth=1)
    ax.set_yticks(range(len(terms)), [str(row[0]) for row in terms])
    ax.invert_yaxis()
    ax.invert_xaxis()
    ax.set_xlabel("power of two")
    ax.set_title(step.title)
    from matplotlib.patches import Patch

    handles = [Patch(color=LINES[0], label="bits kept"), Patch(color=LINES[1], label="bits cut off")]
    ax.legend(handles=handles, fontsize=8, loc="center left")
    return ax


def save_underflow(result: Result, folder: Path) -> list[Path]:
    """Write the figures of the underflow study as PNG files and return their paths."""
    baseline = result.find("FP32")
    drawn = {"loss-curves": loss_curves(result), "loss-scale": loss_scale_curve(result)}
    if baseline is not None:
        drawn["gradient-histogram"] = gradient_histogram(baseline.exponents, baseline.counts, result.config.low)
    drawn["accuracy-by-scale"] = accuracy_by_scale(result)
    paths = []
    for name, ax in drawn.items():
        paths.append(folder / f"{name}.png")
        ax.figure.savefig(paths[-1], dpi=150)  # type: ignore[union-attr]
    return paths


STUDIES: dict[str, Callable[[Any, Path], list[Path]]] = {
    "underflow": save_underflow,
    "adaptive": save_adaptive,
    **dict.fromkeys(("digits", "language", "copying", "cartpole"), save_example),
}
"""For each study, what draws its figures into a folder."""
