"""Delayed scaling: a tensor is scaled by what earlier steps have seen, so that it is read only once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mpsim.amp.recipes.base import Array
from mpsim.amp.recipes.site import AmaxHistory, LayerState, RecipeSite
from mpsim.amp.recipes.tensorwise import TensorScaling
from mpsim.scales import amax_of, current_scale

__all__ = ["DelayedScaling", "rolled"]


def rolled(
    history: AmaxHistory,
    largest: float,
    margin: int = 0,
    algorithm: str | Callable[[Array], float] = "max",
) -> AmaxHistory:
    """Return the history after a step, with the scale of the next.

    Parameters
    ----------
    history : AmaxHistory
    largest : float
        The largest number of the format.
    margin : int
        The scale leaves so many binades free.
    algorithm : {"max", "most_recent"} or callable
        Which amax counts: the largest of the history or the newest; or what a function of the history returns.

    Notes
    -----
    Transformer Engine's kernel: nothing changes where entry 0 of the history is 0, so that a layer which did not run
    keeps what it has. Otherwise the history moves on by one, and its entry 0 becomes 0. The scale is
    ``largest * 2**-margin / amax`` in float32, the largest float32 where that overflows; where amax is zero, infinite
    or NaN it stays as it was. The largest of a history passes over NaN.

    Examples
    --------
    >>> rolled(AmaxHistory(np.float32([7.0, 0.0, 3.5])), 448.0)
    AmaxHistory(amax=array([0. , 3.5, 7. ], dtype=float32), scale=np.float32(64.0))
    """
    if history.amax[0] == 0:
        return history
    if callable(algorithm):
        amax = np.float32(algorithm(history.amax.copy()))
    else:
        amax = np.fmax.reduce(history.amax) if algorithm == "max" else history.amax[0]
    after, scale = np.roll(history.amax, -1), history.scale
    after[0] = 0
    if np.isfinite(amax) and amax > 0:
        scale = np.float32(current_scale(np.asarray(amax), largest * 2.0**-margin))
    return AmaxHistory(after, scale)


@dataclass(frozen=True, kw_only=True)
class DelayedScaling(TensorScaling):
    """One scale for each tensor, from the amax of earlier steps: Transformer Engine's ``DelayedScaling``.

    A scale is 1 until its tensor was seen. Scales of inputs and weights are made at the end of the region, those of
    gradients when their layer runs again. What runs without gradients uses the scales, but is not recorded.
    """

    margin: int = 0
    amax_history_len: int = 1024
    amax_compute_algo: str | Callable[[Array], float] = "max"
    """``"max"``, ``"most_recent"``, or a function of the history [length]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.amax_history_len < 1:
            raise ValueError(f"amax_history_len is {self.amax_history_len}; it must be at least 1")
        if not callable(self.amax_compute_algo) and self.amax_compute_algo not in ("max", "most_recent"):
            raise ValueError(
                f"amax_compute_algo is {self.amax_compute_algo!r}; it must be 'max', 'most_recent' or a function"
            )

    @property
    def remembers(self) -> bool:
        """Whether a step depends on what a layer saw in earlier ones: always."""
        return True

    def scale_of(self, x: Array, role: str, site: RecipeSite) -> Array:
        """Return the scale of this step, and take note of the amax."""
        if role not in site.scales:
            history = site.state.history(role, self.amax_history_len)
            if site.recording:
                history.collect(amax_of(x))
            site.scales[role] = history.scale
        return np.asarray(site.scales[role])

    def roll(self, state: LayerState, backward: bool) -> None:
        """Make the scales of the next step, of gradients or of all else."""
        for role, history in state.histories.items():
            if role.endswith("gradient") == backward:
                largest = self.format_of(role).max_finite
                state.histories[role] = rolled(history, largest, self.margin, self.amax_compute_algo)
