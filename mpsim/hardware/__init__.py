"""Real machines: what an unknown matrix unit does, found out from its results."""

from mpsim.hardware.devices import emulated_matmul, numpy_matmul, torch_matmul
from mpsim.hardware.findings import Fact, Finding
from mpsim.hardware.matching import Witness
from mpsim.hardware.probing import probe

__all__ = ["Fact", "Finding", "Witness", "emulated_matmul", "numpy_matmul", "probe", "torch_matmul"]
