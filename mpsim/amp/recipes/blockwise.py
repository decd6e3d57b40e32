"""Float32 scales for blocks of 1 x 128 and 128 x 128 elements, with promotion every 128 products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpsim.amp.recipes.base import BACKWARD, Array, Recipe, refuse_attention
from mpsim.amp.recipes.operands import PROMOTION, Scaled, row_for
from mpsim.amp.recipes.sight import Sight
from mpsim.amp.recipes.site import RecipeSite
from mpsim.matmul import matmul
from mpsim.ops import Product, Roles
from mpsim.scales import amax_of, current_scale, inverse_of, power_below
from mpsim_kernels.floating_point import default_environment

__all__ = ["BlockScaling"]

_SIDE = 128
_DEEPGEMM_LEAST = np.float32(1e-4)


@dataclass(frozen=True, kw_only=True)
class BlockScaling(Recipe):
    """One scale for 1 x 128 elements along K, and for 128 x 128 of weights.

    Transformer Engine's ``Float8BlockScaling``; with ``rule="deepgemm"`` and without ``power_of_two`` the recipe of
    DeepSeek-V3 (arXiv 2412.19437, 3.3) with the casts of DeepGEMM: amax is at least 1e-4, elements are multiplied
    by ``fl(448 / amax)`` and products by ``fl(amax / 448)``.

    Notes
    -----
    Every 128 products the sum leaves the unit, is multiplied by the rounded product of both scales, and is added to an
    FP32 accumulator in one fused multiply-add, as in DeepGEMM. cuBLAS multiplies by one scale after the other, which
    gives the same bits where scales are powers of two. Each operand is cast from high precision along its K, so that
    an activation and its transpose have different codes.
    """

    backward: str = "e4m3"
    split: tuple[Product, ...] = ("forward", *BACKWARD)
    rule: str = "transformer-engine"
    """``"transformer-engine"`` or ``"deepgemm"``."""
    power_of_two: bool = True
    """Whether scales lose their significands."""
    square: tuple[str, ...] = ("weight",)
    """Roles with blocks of 128 x 128."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule not in ("transformer-engine", "deepgemm"):
            raise ValueError(f"rule is {self.rule!r}; it must be 'transformer-engine' or 'deepgemm'")
        if self.rule == "deepgemm" and self.power_of_two:
            raise ValueError("rule is 'deepgemm', whose scales are float32: power_of_two=False goes with it")
        if set(self.split) != {"forward", *BACKWARD}:
            raise ValueError(f"split is {self.split}; with a scale for every 128 elements all products are split")
        refuse_attention(self, "scales by blocks are", "CurrentScaling")

    def quantize(self, x: Array, role: str, sight: Sight | None = None, turned: bool = False) -> Scaled:
        """Return a matrix [M, K] in the format of its role, with scales [M or M/128, K/128].

        ``turned`` says that it is the transpose of a right operand.
        """
        fmt = self.format_of(role)
        rows = _SIDE if role in self.square else 1
        tiles = _tiled(x, rows)
        scale, inverse = self._scales(amax_of(tiles, (1, 3)), fmt.max_finite)
        spread = np.broadcast_to(scale, tiles.shape).reshape(tiles.shape[0] * rows, tiles.shape[2] * _SIDE)
        own = spread[: x.shape[0], : x.shape[1]]
        values = (sight or Sight()).cast(x, own, fmt, role, whole=role in self.square, turned=turned)
        return Scaled(values, fmt, inverse[:, 0, :, 0])

    def _scales(self, amax: Array, largest: float) -> tuple[Array, Array]:
        """Return the scales, and the factors that undo them."""
        if self.rule == "transformer-engine":
            scale = current_scale(amax, largest)
            scale = power_below(scale) if self.power_of_two else scale
            return scale, inverse_of(scale)
        with default_environment(), np.errstate(all="ignore"):
            amax = np.maximum(amax, _DEEPGEMM_LEAST)
            return np.float32(largest) / amax, amax / np.float32(largest)

    def multiply(self, a: Array, b: Array, product: Product, roles: Roles, site: RecipeSite) -> Array:
        """Return ``a @ b`` in FP32; see `Recipe.multiply`."""
        left = _two_blocks(self.quantize(a, roles[0], site.sight))
        right = _two_blocks(self.quantize(b.T, roles[1], site.sight, turned=True))
        return matmul(
            left.values,
            right.values.T,
            unit=row_for(site.unit, left.format, right.format),
            rounded=True,
            promotion=PROMOTION,
            scale_a=left.inverse,
            scale_b=right.inverse.T,
        )


def _two_blocks(x: Scaled) -> Scaled:
    """Return an operand with two blocks along K or more, which tells their scales from those of whole rows.

    A block of zeros adds +0.
    """
    empty = _SIDE + 1 - x.values.shape[1]
    if empty <= 0:
        return x
    inverse = np.pad(x.inverse, ((0, 0), (0, 2 - x.inverse.shape[1])), constant_values=1)
    return Scaled(np.pad(x.values, ((0, 0), (0, empty))), x.format, inverse)


def _tiled(x: Array, rows: int) -> Array:
    """Return a matrix, filled up with zeros, as [M / rows, rows, K / 128, 128]."""
    full = np.pad(x, ((0, -x.shape[0] % rows), (0, -x.shape[1] % _SIDE)))
    return full.reshape(full.shape[0] // rows, rows, full.shape[1] // _SIDE, _SIDE)
