"""Figures. Each function draws into ``ax``, or into a new figure, and returns the Axes."""

from __future__ import annotations

from mpsim.plots.sight import error_growth, heat_map, loss_scale_window, magnitudes, scale_profile
from mpsim.plots.studies import (
    STUDIES,
    accuracy_by_scale,
    adaptive_losses,
    adaptive_scales,
    alignment,
    gradient_histogram,
    loss_curves,
    loss_scale_curve,
    save_adaptive,
    save_example,
    save_underflow,
    training_curves,
)

__all__ = [
    "STUDIES",
    "accuracy_by_scale",
    "adaptive_losses",
    "adaptive_scales",
    "alignment",
    "error_growth",
    "gradient_histogram",
    "heat_map",
    "loss_curves",
    "loss_scale_curve",
    "loss_scale_window",
    "magnitudes",
    "save_adaptive",
    "save_example",
    "save_underflow",
    "scale_profile",
    "training_curves",
]
