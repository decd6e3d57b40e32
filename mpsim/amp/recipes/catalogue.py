"""The recipes by name."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from mpsim.amp.recipes.base import BACKWARD, Recipe, named
from mpsim.amp.recipes.blockwise import BlockScaling
from mpsim.amp.recipes.delayed import DelayedScaling
from mpsim.amp.recipes.keras import KerasScaling
from mpsim.amp.recipes.microscaling import MXFP8Scaling
from mpsim.amp.recipes.nvfp4 import NVFP4Scaling
from mpsim.amp.recipes.tensorwise import CurrentScaling, RowwiseScaling

__all__ = ["RECIPES", "RecipeLike", "get_recipe"]

RecipeLike: TypeAlias = "Recipe | str"

_TE = "Transformer Engine 2.x, common/recipe and its kernels"
_TORCHAO = "torchao, float8 training; torch._scaled_mm"
_ROWWISE = RowwiseScaling(source=_TORCHAO)
_TENSORWISE = CurrentScaling(rule="torchao", source=_TORCHAO)

RECIPES: dict[str, Recipe] = {
    "te-delayed": DelayedScaling(source=_TE),
    "te-current": CurrentScaling(source=_TE),
    "te-mxfp8": MXFP8Scaling(source=_TE),
    "te-block": BlockScaling(source=_TE),
    "te-nvfp4": NVFP4Scaling(source=_TE),
    "torchao-tensorwise": _TENSORWISE,
    "torchao-rowwise": _ROWWISE,
    "torchao-rowwise-gw-hp": dataclasses.replace(_ROWWISE, unquantized=(BACKWARD[1],), tensorwise_weight=True),
    "torchao-tensorwise-fnuz": dataclasses.replace(_TENSORWISE, forward="e4m3fnuz", backward="e5m2fnuz"),
    "torchao-rowwise-fnuz": dataclasses.replace(_ROWWISE, forward="e4m3fnuz", backward="e4m3fnuz"),
    "torchao-mxfp8-floor": MXFP8Scaling(scale_rule="floor", source=_TORCHAO),
    "torchao-mxfp8-rceil": MXFP8Scaling(scale_rule="rceil", source=_TORCHAO),
    "torchao-mxfp8-ceil": MXFP8Scaling(scale_rule="ceil", source=_TORCHAO),
    "torchao-mxfp8-even": MXFP8Scaling(scale_rule="even", source=_TORCHAO),
    "deepseek-v3": BlockScaling(
        rule="deepgemm", power_of_two=False, source="DeepSeek-V3, arXiv 2412.19437, 3.3; casts and product of DeepGEMM"
    ),
    "keras-float8": KerasScaling(source="Keras 3, Dense under the float8 policies"),
    "ms-amp": CurrentScaling(
        power_of_two=True,
        keep_last=True,
        gradient_of_weight="e4m3",
        compute="fp16",
        source="MS-AMP, Azure/MS-AMP; FP8-LM, arXiv 2310.18313",
    ),
}
"""Recipes as the systems ship them; `dataclasses.replace` makes the variants."""


def get_recipe(recipe: RecipeLike) -> Recipe:
    """Return the recipe that a name means; a Recipe is returned as it is.

    Raises
    ------
    ValueError
        No recipe has that name; the message lists those that there are.

    Examples
    --------
    >>> get_recipe("te-delayed").amax_history_len
    1024
    """
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, str):
        raise TypeError(f"recipe is {recipe!r}; a Recipe or a name such as 'te-current' is needed")
    return named(RECIPES, recipe, "recipe")
