"""What the figures have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BANDS", "LINES", "axes", "legend"]

BANDS = {"lost": "#d1495b", "subnormal": "#edae49", "normal": "#66a182", "overflow": "#8d5a97"}
LINES = ("#00798c", "#d1495b", "#edae49", "#30638e", "#66a182", "#8d5a97")


def axes(ax: Axes | None, size: tuple[float, float] = (7.0, 4.2)) -> Axes:
    """Return the axes given, or those of a new figure."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    # A Figure of its own, not pyplot's: nothing global is touched, and nothing stays open.
    return Figure(figsize=size, layout="constrained").subplots()


def legend(ax: Axes, where: Any) -> None:
    """Draw a legend if there is anything to name."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=8, loc=where)
