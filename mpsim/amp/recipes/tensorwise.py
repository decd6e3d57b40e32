"""Recipes with one scale for a tensor, or for each row, from the tensor itself ("current" or "dynamic" scaling)."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import numpy as np

from mpsim.amp.recipes.base import BACKWARD, Array, Recipe, named, refuse_attention
from mpsim.amp.recipes.operands import Scaled, multiply
from mpsim.amp.recipes.sight import Sight
from mpsim.amp.recipes.site import RecipeSite
from mpsim.formats import FloatFormat, get_format
from mpsim.ops import Product, Roles
from mpsim.scales import RULES, amax_of, inverse_of, power_below
from mpsim_kernels.floating_point import default_environment

__all__ = ["CurrentScaling", "RowwiseScaling", "TensorScaling"]


@dataclass(frozen=True, kw_only=True)
class TensorScaling(Recipe):
    """One float32 scale for each tensor; a tensor and its transpose have the same codes."""

    @abc.abstractmethod
    def scale_of(self, x: Array, role: str, site: RecipeSite) -> Array:
        """Return the scale of a tensor."""

    def quantize(self, x: Array, role: str, site: RecipeSite) -> Scaled:
        """Return a tensor in the format of its role."""
        scale, fmt = self.scale_of(x, role, site), self.format_of(role)
        return Scaled(site.sight.cast(x, scale, fmt, role, whole=True), fmt, inverse_of(scale))

    def multiply(self, a: Array, b: Array, product: Product, roles: Roles, site: RecipeSite) -> Array:
        """Return ``a @ b`` in FP32; see `Recipe.multiply`."""
        left, right = self.quantize(a, roles[0], site), self.quantize(b, roles[1], site)
        return multiply(left, right, site.unit, product in self.split)


@dataclass(frozen=True, kw_only=True)
class CurrentScaling(TensorScaling):
    """One scale for each tensor, from its own amax.

    Transformer Engine's ``Float8CurrentScaling``; with ``rule="torchao"`` torchao's tensorwise recipe; with
    ``power_of_two``, ``keep_last`` and ``gradient_of_weight`` that of MS-AMP (FP8-LM, arXiv 2310.18313).

    Examples
    --------
    >>> CurrentScaling().quantize(np.float32([3.0, -0.1, 0.001]), "input", RecipeSite.alone()).values
    array([ 4.4800e+02, -1.5000e+01,  1.5625e-01], dtype=float32)
    """

    rule: str = "transformer-engine"
    """A name of `scales.RULES`."""
    power_of_two: bool = False
    """Whether scales lose their significands."""
    keep_last: bool = False
    """Whether a tensor whose amax is zero, infinite or NaN has the scale of the step before, rather than 1."""
    gradient_of_weight: str | None = None
    """Format in which the gradient of the weight is stored, under a scale of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        named(RULES, self.rule, "rule")

    @property
    def remembers(self) -> bool:
        """Whether a step depends on what a layer saw in earlier ones."""
        return self.keep_last

    def scale_of(self, x: Array, role: str, site: RecipeSite) -> Array:
        """Return the scale that the amax of a tensor gives."""
        return self._scale(x, role, self.format_of(role), site)

    def _scale(self, x: Array, role: str, fmt: FloatFormat, site: RecipeSite) -> Array:
        amax = amax_of(x)
        scale = named(RULES, self.rule, "rule")(amax, fmt.max_finite)
        scale = power_below(scale) if self.power_of_two else scale
        if not self.keep_last:
            return scale
        history = site.state.history(role, 1)
        scale = scale if np.isfinite(amax) and amax > 0 else np.asarray(history.scale)
        if site.recording:
            history.scale = np.float32(scale)
        return scale

    def multiply(self, a: Array, b: Array, product: Product, roles: Roles, site: RecipeSite) -> Array:
        """Return ``a @ b`` in FP32; see `Recipe.multiply`."""
        y = super().multiply(a, b, product, roles, site)
        if product != "weight_gradient" or self.gradient_of_weight is None:
            return y
        fmt = get_format(self.gradient_of_weight)
        scale = self._scale(y, "weight gradient", fmt, site)
        with default_environment(), np.errstate(all="ignore"):
            return np.asarray(site.sight.cast(y, scale, fmt, "weight gradient") * inverse_of(scale))


@dataclass(frozen=True, kw_only=True)
class RowwiseScaling(Recipe):
    """One scale for each row of the left operand and each column of the right one, from its own amax (torchao).

    With ``unquantized=("weight_gradient",)`` and ``tensorwise_weight`` torchao's ``rowwise_with_gw_hp``.
    """

    backward: str = "e4m3"
    split: tuple[Product, ...] = ()
    power_of_two: bool = True
    tensorwise_weight: bool = False
    """Whether the weight has one scale in the product for the gradient of the input."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_attention(self, "scales by rows are", "CurrentScaling")

    def quantize(self, x: Array, role: str, axis: int | None, sight: Sight | None = None) -> Scaled:
        """Return a matrix in the format of its role, with scales from the amax along an axis, or of all of it."""
        fmt = self.format_of(role)
        scale = RULES["torchao"](amax_of(x, axis), fmt.max_finite)
        scale = power_below(scale) if self.power_of_two else scale
        return Scaled((sight or Sight()).cast(x, scale, fmt, role), fmt, inverse_of(scale))

    def multiply(self, a: Array, b: Array, product: Product, roles: Roles, site: RecipeSite) -> Array:
        """Return ``a @ b`` in FP32; see `Recipe.multiply`."""
        left = self.quantize(a, roles[0], -1, site.sight)
        if self.tensorwise_weight and product == BACKWARD[0]:
            one = self.quantize(b, roles[1], None, site.sight)
            right = Scaled(one.values, one.format, np.full((1, b.shape[1]), one.inverse))
        else:
            right = self.quantize(b, roles[1], -2, site.sight)
        return multiply(left, right, site.unit, product in self.split)
