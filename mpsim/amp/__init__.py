"""Automatic mixed precision."""

from mpsim.amp.autocast import autocast
from mpsim.amp.notices import Notice, Notices
from mpsim.amp.scale_rules import RULES, ScaleRule, ScaleState
from mpsim.amp.scaler import ConstantScaler, GradScaler, LossScaler, loss_scaler

__all__ = [
    "RULES",
    "ConstantScaler",
    "GradScaler",
    "LossScaler",
    "Notice",
    "Notices",
    "ScaleRule",
    "ScaleState",
    "autocast",
    "loss_scaler",
]
