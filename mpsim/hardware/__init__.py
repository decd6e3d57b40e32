"""Emulation held against real machines: this processor's instructions, and recordings of other machines."""

from mpsim.hardware.recordings import RecordedSet, Recording, read, write
from mpsim.hardware.replaying import Outcome, replay

__all__ = ["Outcome", "RecordedSet", "Recording", "read", "replay", "write"]
