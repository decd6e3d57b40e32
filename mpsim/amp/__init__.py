"""Mixed precision: autocast and loss scaling."""

from mpsim.amp.autocast import autocast
from mpsim.amp.scaler import ConstantScaler, GradScaler

__all__ = ["ConstantScaler", "GradScaler", "autocast"]
