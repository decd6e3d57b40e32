"""Mixed precision: autocast, loss scaling, and recipes for FP8 and FP4."""

from mpsim.amp import recipes
from mpsim.amp.autocast import autocast
from mpsim.amp.recipes import fp8_autocast, load_scaling_state, optimizer_state, scaling_state
from mpsim.amp.scaler import ConstantScaler, GradScaler

__all__ = [
    "ConstantScaler",
    "GradScaler",
    "autocast",
    "fp8_autocast",
    "load_scaling_state",
    "optimizer_state",
    "recipes",
    "scaling_state",
]
