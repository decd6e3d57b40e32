"""FP8 and FP4 training recipes: how operands are scaled and cast, and how their products are accumulated."""

from mpsim.amp.recipes.base import Recipe
from mpsim.amp.recipes.blockwise import BlockScaling
from mpsim.amp.recipes.catalogue import RECIPES, get_recipe
from mpsim.amp.recipes.delayed import DelayedScaling, rolled
from mpsim.amp.recipes.keras import KerasScaling
from mpsim.amp.recipes.microscaling import MXFP8Scaling
from mpsim.amp.recipes.nvfp4 import NVFP4Scaling, hadamard, hadamard_transform
from mpsim.amp.recipes.operands import Scaled
from mpsim.amp.recipes.optimizer_state import OPTIMIZER_STATES, optimizer_state
from mpsim.amp.recipes.region import fp8_autocast
from mpsim.amp.recipes.site import AmaxHistory, RecipeSite, load_scaling_state, scaling_state
from mpsim.amp.recipes.tensorwise import CurrentScaling, RowwiseScaling

__all__ = [
    "OPTIMIZER_STATES",
    "RECIPES",
    "AmaxHistory",
    "BlockScaling",
    "CurrentScaling",
    "DelayedScaling",
    "KerasScaling",
    "MXFP8Scaling",
    "NVFP4Scaling",
    "Recipe",
    "RecipeSite",
    "RowwiseScaling",
    "Scaled",
    "fp8_autocast",
    "get_recipe",
    "hadamard",
    "hadamard_transform",
    "load_scaling_state",
    "optimizer_state",
    "rolled",
    "scaling_state",
]
