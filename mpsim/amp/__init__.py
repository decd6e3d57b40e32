"""Mixed precision: autocast and policies, loss scaling, and recipes for FP8 and FP4."""

from mpsim.amp import controllers, recipes
from mpsim.amp.adaptive import AdaptiveTraining, Controller, Decision
from mpsim.amp.apex import APEX_LEVELS, ApexLevel, apex_level
from mpsim.amp.autocast import autocast
from mpsim.amp.layers import override_formats
from mpsim.amp.loss_scaling import LossScaler
from mpsim.amp.notices import Notice, Notices
from mpsim.amp.op_lists import OP_LISTS, FormatsUsed, OpLists
from mpsim.amp.policies import FormatPolicy, get_policy
from mpsim.amp.recipes import fp8_autocast, load_scaling_state, optimizer_state, scaling_state
from mpsim.amp.scale_rules import RULES, ScaleRule, ScaleState
from mpsim.amp.scaler import ConstantScaler, GradScaler, loss_scaler
from mpsim.amp.statistics import StepStatistics, TensorStatistics

__all__ = [
    "APEX_LEVELS",
    "OP_LISTS",
    "RULES",
    "AdaptiveTraining",
    "ApexLevel",
    "ConstantScaler",
    "Controller",
    "Decision",
    "FormatPolicy",
    "FormatsUsed",
    "GradScaler",
    "LossScaler",
    "Notice",
    "Notices",
    "OpLists",
    "ScaleRule",
    "ScaleState",
    "StepStatistics",
    "TensorStatistics",
    "apex_level",
    "autocast",
    "controllers",
    "fp8_autocast",
    "get_policy",
    "load_scaling_state",
    "loss_scaler",
    "optimizer_state",
    "override_formats",
    "recipes",
    "scaling_state",
]
