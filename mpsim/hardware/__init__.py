"""Emulation held against real machines: this processor's instructions, recordings of others, and unknown units."""

from mpsim.hardware.devices import emulated_matmul, numpy_matmul, torch_matmul
from mpsim.hardware.doctoring import Diagnosis, diagnose
from mpsim.hardware.findings import Fact, Finding
from mpsim.hardware.host import Plan, record_host
from mpsim.hardware.host_check import validate_host
from mpsim.hardware.matching import Witness
from mpsim.hardware.probing import probe
from mpsim.hardware.recording_torch import record_torch
from mpsim.hardware.recordings import RecordedSet, Recording, read, write
from mpsim.hardware.replaying import Outcome, replay

__all__ = [
    "Diagnosis",
    "Fact",
    "Finding",
    "Outcome",
    "Plan",
    "RecordedSet",
    "Recording",
    "Witness",
    "diagnose",
    "emulated_matmul",
    "numpy_matmul",
    "probe",
    "read",
    "record_host",
    "record_torch",
    "replay",
    "torch_matmul",
    "validate_host",
    "write",
]
