"""Real machines: what an unknown matrix unit does, found out from its results."""

from mpsim.hardware.findings import Fact, Finding
from mpsim.hardware.matching import Witness
from mpsim.hardware.probing import probe

__all__ = ["Fact", "Finding", "Witness", "probe"]
