"""Float32 scales for blocks of 1 x 128 and 128 x 128 elements, with promotion every 128 products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpsim.amp.recipes.base import BACKWARD, Array, Recipe, refuse_attention
from mpsim.amp.recipes.operands import PROMOTION, Scaled, row_for
from mpsim.amp.recipes.site import RecipeSite
from mpsim.matmul import matmul
from mpsim.ops import Product, Roles
from mpsim.scales import amax_of, cast, current_scale, inverse_of, power_below
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

    def quantize(self, x: Array, role: str) -> Scaled:
        """Return a matrix [M, K] in the format of its role, with scales [M or M/128, K/128]."""
        fmt = self.format_of(role)
        rows = _SIDE if role in self.square else 1
        tiles = _tiled(x, rows)
        scale, inverse = self._scales(amax_of(tiles, (1, 3)), fmt.max_finite)
        values = cast(tiles, scale, fmt).reshape(tiles.shape[0] * rows, tiles.shape[2] * _SIDE)
        return Scaled(values[: x.shape[0], : x.shape[1]], fmt, inverse[:, 0, :, 0])

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
        k = a.shape[1]
        if k <= _SIDE:
            # One more block, of zeros, tells scales of one block from those of whole rows; it adds +0.
            empty = _SIDE + 1 - k
            a, b = np.pad(a, ((0, 0), (0, empty))), np.pad(b, ((0, empty), (0, 0)))
        left, right = self.quantize(a, roles[0]), self.quantize(b.T, roles[1])
        return matmul(
            left.values,
            right.values.T,
            unit=row_for(site.unit, left.format, right.format),
            rounded=True,
            promotion=PROMOTION,
            scale_a=left.inverse,
            scale_b=right.inverse.T,
        )


def _tiled(x: Array, rows: int) -> Array:
    """Return a matrix, filled up with zeros, as [M / rows, rows, K / 128, 128]."""
    full = np.pad(x, ((0, -x.shape[0] % rows), (0, -x.shape[1] % _SIDE)))
    return full.reshape(full.shape[0] // rows, rows, full.shape[1] // _SIDE, _SIDE)
