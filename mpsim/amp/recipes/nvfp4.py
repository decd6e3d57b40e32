"""NVFP4: E2M1 elements under two levels of scales, stochastic gradients, and a random Hadamard transform."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpsim import presets, units
from mpsim.amp.recipes.base import BACKWARD, Array, Recipe, refuse_attention
from mpsim.amp.recipes.microscaling import block_row, multiply_blocks, quantize_tiles, require_one_chain
from mpsim.amp.recipes.sight import Sight
from mpsim.amp.recipes.site import RecipeSite
from mpsim.blocks import NVFP4, BlockArray, ScaleRecipe, quantize
from mpsim.formats import BF16, E2M1, get_format
from mpsim.matmul import matmul
from mpsim.ops import Product, Roles
from mpsim.rounding import round_to
from mpsim.stochastic import Draws
from mpsim.units import UnitLike

__all__ = ["SIGNS", "NVFP4Scaling", "hadamard", "hadamard_transform"]

SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
"""Transformer Engine's fixed sign vector."""
_POINTS = len(SIGNS)


def hadamard(signs: tuple[int, ...] = SIGNS) -> Array:
    """Return the orthogonal matrix ``diag(signs) @ H / 4`` [16, 16] in float32; H is Sylvester's Hadamard matrix.

    Its entries are 1/4 and -1/4, exact in every format of 5 exponent bits or more.
    """
    h = np.ones((1, 1), np.float32)
    while len(h) < _POINTS:
        h = np.block([[h, h], [h, -h]])
    return np.float32(0.25) * np.array(signs, np.float32)[:, None] * h


def hadamard_transform(x: Array, unit: UnitLike = "native", signs: tuple[int, ...] = SIGNS) -> Array:
    """Return every 16 numbers of a row times the random Hadamard matrix, in BF16.

    Parameters
    ----------
    x : array [M, K]
        Rounded to BF16; filled up with zeros to a multiple of 16.
    unit : MatrixUnit or name
        Its BF16 instruction makes the sums, which are rounded to BF16.
    signs : 16 numbers 1 or -1

    Returns
    -------
    array [M, ceil(K / 16) * 16]
        Values of BF16 in float32.

    Notes
    -----
    ``hadamard_transform(a) @ hadamard_transform(b).T`` is ``a @ b.T`` but for rounding, with outliers spread over 16
    elements (NVIDIA 2025, arXiv 2509.25149, 4.2).

    Examples
    --------
    >>> hadamard_transform(np.float32([[16.0] + 15 * [0.0]]))[0, :4]
    array([4., 4., 4., 4.], dtype=float32)
    """
    full = round_to(np.pad(x, ((0, 0), (0, -x.shape[1] % _POINTS))), BF16)
    sums = matmul(full.reshape(-1, _POINTS), hadamard(signs), unit=units.get(unit, inputs=BF16), rounded=True)
    return round_to(sums, BF16).reshape(full.shape)


@dataclass(frozen=True, kw_only=True)
class NVFP4Scaling(Recipe):
    """A scale in E4M3 for every 16 elements along K, and one in FP32 for the tensor.

    Transformer Engine's ``NVFP4BlockScaling`` (NVIDIA 2025, arXiv 2509.25149): weights have scales for 16 x 16 tiles,
    gradients are rounded stochastically, and in the product for the gradient of the weight both operands go
    through a random Hadamard transform first. With ``four_over_six`` blocks choose whether their largest element
    becomes 4 or 6, which Transformer Engine does without the transform and without stochastic gradients alone.

    Notes
    -----
    Hardware draws the random bits; ours are those of `Draws`, as many for an element as `presets.draws` says.
    The scale of a block is ``fl(fl(amax / 6) * g)`` before its rounding to E4M3, with ``g = fl(448 * 6 / amax)`` of the
    tensor; kernels of 2026 multiply amax by ``fl(g * fl(1 / 6))``, which can be another number next to a midpoint.
    """

    forward: str = "e2m1"
    backward: str = "e2m1"
    split: tuple[Product, ...] = ()
    stochastic: bool = True
    """Whether gradients are rounded stochastically."""
    transform: bool = True
    """Whether operands of the gradient of the weight are transformed."""
    square: tuple[str, ...] = ("weight",)
    """Roles whose 16 x 16 tiles share a scale."""
    scale_rule: str = "transformer-engine"
    """A recipe of `blocks.RECIPES`."""
    four_over_six: tuple[str, ...] = ()
    """Roles that choose between 4 and 6 instead: ``"input"``, ``"weight"``, ``"gradient"``."""
    four_over_six_rule: str | ScaleRecipe = "four-over-six"
    """How they do: a recipe of `blocks.RECIPES`, or a variant of one."""
    signs: tuple[int, ...] = SIGNS

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_chain(self)
        if {get_format(self.forward), get_format(self.backward)} != {E2M1}:
            raise ValueError(f"forward is {self.forward!r} and backward {self.backward!r}; NVFP4 has e2m1 for both")
        wrong = set(self.four_over_six) - {"input", "weight", "gradient"}
        if wrong:
            raise ValueError(f"four_over_six has {wrong.pop()!r}; there are input, weight, gradient")
        if self.stochastic and "gradient" in self.four_over_six:
            raise ValueError("four_over_six has 'gradient', but stochastic is True: errors are compared to nearest")
        if len(self.signs) != _POINTS or not {*self.signs} <= {1, -1}:
            raise ValueError(f"signs is {self.signs}; {_POINTS} numbers 1 or -1 are needed")
        refuse_attention(self, "NVFP4 is", "MXFP8Scaling")

    @property
    def remembers(self) -> bool:
        """Whether a step depends on earlier ones: their number chooses the random bits."""
        return self.stochastic

    def check(self, unit: UnitLike) -> None:
        """Raise a ValueError where a unit lacks an instruction that the products need."""
        block_row(unit, NVFP4, NVFP4)
        if self.transform:
            units.get(unit, inputs=BF16)

    def quantize(
        self, x: Array, role: str, axis: int, draws: Draws | None = None, sight: Sight | None = None
    ) -> BlockArray:
        """Return a matrix in NVFP4, with blocks along K, its last axis (-1) or the one before."""
        sight, square = sight or Sight(), role in self.square
        counters = sight.counters(role, whole=square)
        rule = self.four_over_six_rule if role in self.four_over_six else self.scale_rule
        options: dict[str, Any] = {"scale_rule": rule, "counters": counters}
        if self.stochastic and role == "gradient":
            draws = draws or Draws()
            rng = dataclasses.replace(draws, bits=presets.RANDOM_BITS["nvidia"]["e2m1"])
            options |= {"rounding": "stochastic", "rng": rng}
        q = quantize_tiles(x, NVFP4, axis % 2, **options) if square else quantize(x, NVFP4, axis, **options)
        sight.quantized(x, q, rule, role, square, counters)
        return q

    def multiply(self, a: Array, b: Array, product: Product, roles: Roles, site: RecipeSite) -> Array:
        """Return ``a @ b`` in FP32; see `Recipe.multiply`."""
        draws = site.draws
        if product == BACKWARD[1]:
            draws = dataclasses.replace(draws, stream=draws.stream + 1)
            if self.transform:
                a = hadamard_transform(a, site.unit, self.signs)
                b = hadamard_transform(b.T, site.unit, self.signs).T
        left = self.quantize(a, roles[0], -1, draws, site.sight)
        return multiply_blocks(left, self.quantize(b, roles[1], -2, sight=site.sight), site.unit)
