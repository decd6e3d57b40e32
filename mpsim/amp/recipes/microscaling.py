"""Recipes whose scales go into the instruction: MXFP8, and what NVFP4 shares with it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpsim import units
from mpsim.amp.recipes.base import Array, Recipe
from mpsim.amp.recipes.sight import Sight
from mpsim.amp.recipes.site import RecipeSite
from mpsim.blocks import MXFP8_E4M3, MXFP8_E5M2, BlockArray, BlockCounters, BlockFormat, ScaleRule, dequantize, quantize
from mpsim.formats import FP32, get_format
from mpsim.matmul import matmul
from mpsim.ops import Product, Roles
from mpsim.units import Family, MatrixUnit, UnitLike

__all__ = ["MXFP8Scaling", "block_row", "multiply_blocks", "quantize_tiles", "require_one_chain"]

_MXFP8 = {"e4m3": MXFP8_E4M3, "e5m2": MXFP8_E5M2}


def block_row(unit: UnitLike, a: BlockFormat, b: BlockFormat) -> MatrixUnit:
    """Return the instruction of a unit that multiplies these block formats into FP32."""
    elements = str(a.element), str(b.element)
    return units.get(unit, inputs=elements, out=FP32, scale=a.scale, scale_block=a.length)


def multiply_blocks(a: BlockArray, b: BlockArray, unit: UnitLike) -> Array:
    """Return the product in FP32; of a native product that of the values in float32."""
    row = block_row(unit, a.format, b.format)
    if row.family is Family.NATIVE:
        with np.errstate(all="ignore"):
            return np.asarray(np.matmul(dequantize(a), dequantize(b)))
    return matmul(a, b, unit=row)


def require_one_chain(recipe: Recipe) -> None:
    """Refuse split accumulation, which units that take scales for blocks have no use for: they keep 24 bits."""
    if recipe.split:
        raise ValueError(f"split is {recipe.split}; with scales in the instruction every product is one chain: ()")


def quantize_tiles(
    x: Array, fmt: BlockFormat, axis: int, *, counters: BlockCounters | None = None, **options: Any
) -> BlockArray:
    """Return a matrix whose square tiles, of the block's length on each side, share a scale.

    Parameters
    ----------
    x : array [M, N]
    fmt : BlockFormat
    axis : {0, 1}
        Along which the scales are laid out: each is there once for every block along that axis.
    counters : BlockCounters, optional
        Counts what became of the elements; a tile counts as one block.
    **options
        As for `blocks.quantize`.
    """
    if axis == 0:
        q = quantize_tiles(x.T, fmt, 1, counters=counters, **options)
        codes, scales = np.ascontiguousarray(q.codes.T), np.ascontiguousarray(q.scales.T)
        return dataclasses.replace(q, codes=codes, scales=scales, axis=0)
    (m, n), side = x.shape, fmt.length
    full = np.pad(x, ((0, -m % side), (0, -n % side)))
    grid = full.shape[0] // side, side, full.shape[1] // side, side
    tiles = full.reshape(grid).swapaxes(1, 2).reshape(grid[0], grid[2], side * side)
    q = quantize(tiles, dataclasses.replace(fmt, length=side * side), counters=counters, **options)
    if counters is not None:
        # What fills up the last tiles counts as zeros, or NaNs where its tile is NaN.
        filling = np.pad(np.zeros((m, n), np.bool_), ((0, -m % side), (0, -n % side)), constant_values=True)
        spoilt = (q.scales == fmt.scale.nan_code).repeat(side, axis=0)[:, :, 0].repeat(side, axis=1)
        nans = int(np.count_nonzero(filling & spoilt))
        counters.elements.elements -= full.size - m * n
        counters.elements.nans -= nans
        counters.elements.zeros -= full.size - m * n - nans
    codes = q.codes.reshape(grid[0], grid[2], side, side).swapaxes(1, 2).reshape(full.shape)
    scales = np.repeat(q.scales[:, :, 0], side, axis=0)[:m]
    return BlockArray(
        format=fmt, codes=np.ascontiguousarray(codes[:m, :n]), scales=scales, axis=1, tensor_scale=q.tensor_scale
    )


@dataclass(frozen=True, kw_only=True)
class MXFP8Scaling(Recipe):
    """A power of two for every 32 elements along K: Transformer Engine's ``MXFP8BlockScaling``, and torchao's MX.

    Each operand is quantised from high precision along its K, so that a tensor and its transpose have different codes.
    A block with an infinity or a NaN is NaN, as MX 1.0 has it.
    """

    backward: str = "e4m3"
    split: tuple[Product, ...] = ()
    scale_rule: str = "rceil-fp32"
    """A rule of `blocks.ScaleRule`: ``"rceil-fp32"`` (Transformer Engine), ``"floor"``, ``"ceil"``, ``"rceil"``,
    ``"even"`` (the four of torchao) ..."""
    square: tuple[str, ...] = ()
    """Roles whose 32 x 32 tiles share a scale; ``("weight",)`` gives a weight and its transpose the same codes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_chain(self)
        ScaleRule.of(self.scale_rule, "scale_rule")
        for fmt in (self.forward, self.backward):
            if get_format(fmt).name not in _MXFP8:
                raise ValueError(f"MXFP8 has no elements in {fmt!r}; they must be e4m3 or e5m2")

    def check(self, unit: UnitLike) -> None:
        """Raise a ValueError where a unit lacks an instruction that the products need."""
        for a, b in self.pairs:
            block_row(unit, _MXFP8[a.name], _MXFP8[b.name])

    def quantize(self, x: Array, role: str, axis: int, sight: Sight | None = None) -> BlockArray:
        """Return an operand in the format of its role, with blocks along K, its last axis (-1) or the one before."""
        fmt, sight, square = _MXFP8[self.format_of(role).name], sight or Sight(), role in self.square
        rule = self.scale_rule
        q = quantize_tiles(x, fmt, axis % 2, scale_rule=rule) if square else quantize(x, fmt, axis, rule)
        sight.quantized(x, q, rule, role, square)
        return q

    def multiply(self, a: Array, b: Array, product: Product, roles: Roles, site: RecipeSite) -> Array:
        """Return ``a @ b`` in FP32; see `Recipe.multiply`."""
        left, right = self.quantize(a, roles[0], -1, site.sight), self.quantize(b, roles[1], -2, site.sight)
        return multiply_blocks(left, right, site.unit)
