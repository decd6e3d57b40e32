"""Keras's float8: operands are cast, turned back, and multiplied in the format of the region."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpsim.amp.recipes.base import Array, Recipe, refuse_attention
from mpsim.amp.recipes.operands import row_for
from mpsim.amp.recipes.site import AmaxHistory, RecipeSite
from mpsim.formats import FP32, FloatFormat, get_format
from mpsim.matmul import matmul
from mpsim.ops import Product, Roles
from mpsim.rounding import round_to
from mpsim.scales import amax_of, inverse_of
from mpsim.units import Family
from mpsim_kernels.floating_point import default_environment

__all__ = ["KerasScaling", "stepped"]

VARIABLES = {"input": "inputs", "weight": "kernel", "gradient": "outputs_grad"}
"""By role, what Keras calls the variables."""


def stepped(history: AmaxHistory, amax: float, largest: float) -> AmaxHistory:
    """Return the history after a step that saw ``amax``, with the scale of the next.

    Parameters
    ----------
    history : AmaxHistory
        Entry 0 is the newest amax. Numbers are divided by the scale.
    amax : float
    largest : float
        The largest number of the format.

    Notes
    -----
    ``compute_float8_scale`` and ``compute_float8_amax_history`` of Keras: the scale comes from the history as the step
    found it, so that ``amax`` reaches the cast after the next. It is ``1 / (largest / max)``, rounded twice; where max
    is zero, infinite or NaN ``1 / (1 / scale)``, which can be the number beside the old scale. A max below 1.3e-36
    gives E4M3 the scale zero, under which zeros become NaN and all else zero. One NaN or infinity keeps the scale as
    it is until it has left the history.

    Examples
    --------
    >>> once = stepped(AmaxHistory(np.zeros(3, np.float32)), 7.0, 448.0)
    >>> once
    AmaxHistory(amax=array([7., 0., 0.], dtype=float32), scale=np.float32(1.0))
    >>> stepped(once, 3.5, 448.0)
    AmaxHistory(amax=array([3.5, 0. , 7. ], dtype=float32), scale=np.float32(0.015625))
    """
    newest = np.max(history.amax)
    with default_environment(), np.errstate(all="ignore"):
        usable = np.isfinite(newest) and newest > 0
        factor = np.float32(largest) / newest if usable else inverse_of(np.asarray(history.scale))
    after = np.roll(history.amax, -1)
    after[0] = amax
    return AmaxHistory(after, np.float32(inverse_of(np.asarray(factor))))


@dataclass(frozen=True, kw_only=True)
class KerasScaling(Recipe):
    """One scale for each tensor, from the amax of earlier steps; no product runs in FP8.

    The ``float8`` policies of Keras 3, made from ``"float32"``, ``"mixed_bfloat16"`` or ``"mixed_float16"`` as the
    format of the region is FP32, BF16 or FP16: ``x / scale`` is rounded to that format, clipped, cast, and times the
    scale, rounded again. The three products multiply such numbers, also those of the backward pass, and are rounded
    before the bias is added. Clipped numbers have gradients like all others.

    Notes
    -----
    In Keras the new scales and histories are gradients of the old ones, which the optimizer puts in their place. So a
    layer's state changes in its backward pass here, and not without one; all passes that start from one state have
    the same scales. A step that a loss scaler skips leaves Keras's state alone: `scaling_state` before it, and
    `load_scaling_state` after it, do the same.

    The names of a state are Keras's: ``<weight>/linear/kernel/scale``. Its scales are what numbers are divided by. With
    an FP32 region Keras rounds the bias to BF16, which stays as it is here. XLA on CPUs makes subnormal
    numbers zero, and on GPUs turns the products into those of an FP8 unit where it finds the pattern.
    """

    split: tuple[Product, ...] = ()
    amax_history_len: int = 1024
    passes: str = "sum"
    """How a layer that runs several times in a step unites the states: ``"sum"``, as gradients are added up, with
    scales of twice and thrice the size; or ``"max"``, as Keras accumulates gradients over steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.amax_history_len < 1:
            raise ValueError(f"amax_history_len is {self.amax_history_len}; it must be at least 1")
        if self.passes not in ("sum", "max"):
            raise ValueError(f"passes is {self.passes!r}; it must be 'sum' or 'max'")
        if self.split:
            raise ValueError(f"split is {self.split}; products are those of the region's format, in one chain: ()")
        refuse_attention(self, "Keras's float8 is", "CurrentScaling")

    @property
    def pairs(self) -> tuple[tuple[FloatFormat, FloatFormat], ...]:
        """Formats of left and right operands that products may meet: that of the region."""
        return ((get_format(self.compute), get_format(self.compute)),)

    @property
    def remembers(self) -> bool:
        """Whether a step depends on what a layer saw in earlier ones: always."""
        return True

    def quantize(self, x: Array, role: str, site: RecipeSite) -> Array:
        """Return what a tensor is after a cast to the format of its role and back, in the format of the site."""
        compute, fmt = site.format, self.format_of(role)
        x = round_to(x, compute) if role == "weight" else x
        history = self._history(role, site)
        if site.recording and role not in site.made:
            site.made[role] = stepped(history, float(amax_of(x)), fmt.max_finite)
        scale = round_to(np.asarray(history.scale), compute)
        with default_environment(), np.errstate(all="ignore"):
            quotients = round_to(x / scale, compute)
            quotients[np.isnan(quotients)] = np.nan  # 0 / 0 has a sign that depends on the processor
            cast = site.sight.cast(x, inverse_of(scale), fmt, role, whole=True, scaled=quotients)
            return round_to(cast * scale, compute)

    def multiply(self, a: Array, b: Array, product: Product, roles: Roles, site: RecipeSite) -> Array:
        """Return ``a @ b`` in the format of the site; see `Recipe.multiply`."""
        for role in VARIABLES:
            self._history(role, site)
        left, right = self.quantize(a, roles[0], site), self.quantize(b, roles[1], site)
        if product != "forward":
            self._replace(site)
        return round_to(self._product(left, right, site), site.format)

    def _history(self, role: str, site: RecipeSite) -> AmaxHistory:
        """Return the history of a role as the pass found it."""
        if role not in site.found:
            site.found[role] = site.state.history(VARIABLES[role], self.amax_history_len)
        return site.found[role]

    def _product(self, a: Array, b: Array, site: RecipeSite) -> Array:
        if site.format is not FP32:
            row = row_for(site.unit, site.format, site.format)
            if row.family is not Family.NATIVE:
                return matmul(a, b, unit=row, rounded=True)
        with np.errstate(all="ignore"):
            return np.asarray(np.matmul(a, b))

    def _replace(self, site: RecipeSite) -> None:
        """Put the new histories in the place of those that the pass found, once."""
        state = site.state
        for role, made in site.made.items():
            if made is None:
                continue
            name, found = VARIABLES[role], site.found[role]
            if state.histories[name] is not found and state.origins.get(name) is found:
                made = self._united(state.histories[name], made)
            state.histories[name], state.origins[name], site.made[role] = made, found, None

    def _united(self, a: AmaxHistory, b: AmaxHistory) -> AmaxHistory:
        """Return the history of a layer that ran twice from one state."""
        unite = np.add if self.passes == "sum" else np.maximum
        with default_environment(), np.errstate(all="ignore"):
            return AmaxHistory(unite(a.amax, b.amax), np.float32(unite(a.scale, b.scale)))
