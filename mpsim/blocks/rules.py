"""How the scale of a block follows from its largest magnitude."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from mpsim.modes import Choice

__all__ = ["RECIPES", "RuleLike", "ScaleRecipe", "ScaleRule", "rule_name"]


class ScaleRule(Choice):
    """How the exponent of a power-of-two scale follows from amax, the largest magnitude of a block.

    Each is worked out on integers; a logarithm in floating point is wrong next to powers of two. Below, emax is the
    exponent of the largest element and max its value. The exponent is then held within the scale's range.
    """

    FLOOR = "floor"
    """``floor(log2(amax)) - emax`` (OCP MX 1.0, 6.3). Clips where amax is beyond max in the last binade."""
    CEIL = "ceil"
    """``ceil(log2(amax)) - emax`` (torchao). Never clips, and wastes up to a binade."""
    RCEIL = "rceil"
    """The smallest power of two with ``amax / scale <= max`` (cuBLAS, Transformer Engine). Never clips.

    A float32 division rounded to nearest, as in torchao, finds the same for float32 data in the formats of MX.
    """
    RCEIL_FP32 = "rceil-fp32"
    """As GPUs do it: ``amax * fl(1 / max)`` in float32, then rounded up to a power of two (PTX ``cvt.rp.ue8m0``).

    Differs from ``rceil`` where the rounded product falls onto a power of two: for float32 data in the formats of MX
    that happens to int8 elements, and where the product is subnormal.
    """
    EVEN = "even"
    """As ``floor``, after rounding amax to the precision of the element, ties up (torchao, AMD Quark)."""
    NEAREST = "nearest"
    """``round(log2(amax / max))`` (early MLX). Clips about half of all blocks."""


@dataclass(frozen=True, kw_only=True)
class ScaleRecipe:
    """How a scale with a fraction follows from amax, in float32, and how elements are divided by it.

    The scale of the tensor is ``s_t = fl(amax_tensor / (max_scale * max))``, or 1 where the format has none; that of a
    block is ``fl(fl(amax / max) / s_t)``, rounded to the scale format and held within its range.

    Notes
    -----
    Four over six (Cook et al. 2025, arXiv 2512.02010): a block is quantised a second time, with ``fl(1.5 * scale)``
    before its rounding, so that its largest element becomes 4 rather than 6, and what is nearer to the numbers is
    kept; where both are equally near, or an error is not a number, that is 6. Errors are what Transformer Engine adds
    up in float32: ``fl(fl(fl(element * s_b) * amax_tensor) / (max_scale * max))`` minus the number, or ``fl(fl(element
    * s_b) * s_t)`` where ``s_t`` is given; those of 16 elements from left to right, several sixteens by halves. Numbers
    in float64 are rounded to float32 for that.
    """

    name: str
    times_inverse: bool = False
    """Multiply amax by ``fl(1 / max)`` rather than divide by max."""
    times_encode: bool = False
    """Multiply by ``g = fl(max_scale * max / amax_tensor)``, not divide by ``s_t``, which then is ``fl(1 / g)``."""
    rounding: Literal["nearest-even", "up"] = "nearest-even"
    """How the scale of a block is rounded."""
    least: Literal["zero", "subnormal", "normal"] = "zero"
    """The smallest scale that is stored: zero, or the smallest subnormal or normal number."""
    quotients: Literal["exact", "division", "reciprocal"] = "exact"
    """Elements are rounded from the exact ``x / (s_b * s_t)``; or, as programs do, from ``fl(x / fl(s_b * s_t))`` or
    ``fl(x * fl(1 / fl(s_b * s_t)))``."""
    four_over_six: Literal["mse", "mae", "max"] | None = None
    """How the errors of a block count that chooses between 4 and 6 as its largest E2M1 element: their squares, sizes,
    or the largest size; None always takes 6."""
    largest_scale: int | None = None
    """What stands for ``max_scale``, if not the largest number of the format: under 256 in E4M3 no block that takes 4
    is clipped."""
    source: str = ""


RECIPES: dict[str, ScaleRecipe] = {
    recipe.name: recipe
    for recipe in (
        ScaleRecipe(name="division", source="the definition; elements are rounded once"),
        ScaleRecipe(name="torchao", least="normal", quotients="division", source="torchao, nvfp4_quantize"),
        ScaleRecipe(
            name="transformer-engine",
            times_encode=True,
            quotients="reciprocal",
            source="Transformer Engine, reference of its NVFP4 quantizer",
        ),
        ScaleRecipe(
            name="four-over-six",
            times_encode=True,
            quotients="reciprocal",
            four_over_six="mse",
            largest_scale=256,
            source="Cook et al. 2025, arXiv 2512.02010; Transformer Engine, whose errors are sizes unless told",
        ),
    )
}
"""Named recipes; `dataclasses.replace` makes the variants between them."""

RuleLike: TypeAlias = "ScaleRule | ScaleRecipe | str | None"


def rule_name(rule: ScaleRule | ScaleRecipe) -> str:
    """Return the name of a rule or recipe."""
    return rule.value if isinstance(rule, ScaleRule) else rule.name
