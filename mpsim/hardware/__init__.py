"""Emulation held against real machines: this processor's instructions, and recordings of other machines."""

from mpsim.hardware.doctoring import Diagnosis, diagnose
from mpsim.hardware.host import Plan, record_host
from mpsim.hardware.host_check import validate_host
from mpsim.hardware.recording_torch import record_torch
from mpsim.hardware.recordings import RecordedSet, Recording, read, write
from mpsim.hardware.replaying import Outcome, replay

__all__ = [
    "Diagnosis",
    "Outcome",
    "Plan",
    "RecordedSet",
    "Recording",
    "diagnose",
    "read",
    "record_host",
    "record_torch",
    "replay",
    "validate_host",
    "write",
]
