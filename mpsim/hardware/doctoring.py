"""What this computer is to mpsim: processor, versions, cache, threads, floating-point state, possible checks."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass

from mpsim._version import __version__
from mpsim.hardware.host import GROUPS, processor, unavailable
from mpsim_kernels import host_arm, host_x86
from mpsim_kernels._jit import cache_folder, source_digest
from mpsim_kernels.gemm import thread_count
from mpsim_kernels.host_code import control_word, host_features, host_machine

__all__ = ["Diagnosis", "diagnose"]

_FORMAT_FEATURES = (
    "f16c", "fma", "avx2", "avx512f", "avx512vl", "avx512bf16", "avx512fp16", "avxneconvert", "avx10.2",
    "amx-tile", "amx-bf16", "amx-fp16", "amx-fp8", "amx-tf32", "fp-armv8", "fullfp16", "bf16", "fp8",
)  # fmt: skip
"""Features of processors, in LLVM's words, that have to do with number formats."""
_PACKAGES = ("numpy", "numba", "llvmlite", "ml_dtypes", "torch")
_VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_DISABLE_JIT", "NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR")


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Facts about this computer and process."""

    processor: str
    features: tuple[str, ...]
    """Those that have to do with number formats."""
    versions: dict[str, str]
    cache: str
    """Folder of compiled kernels, and how many files are in it."""
    threads: int
    floating_point: str
    """Rounding, and whether subnormal numbers are kept in this process."""
    variables: dict[str, str]
    """Environment variables that change how kernels are compiled or run."""
    validations: dict[str, str]
    """Groups that ``mpsim validate --host`` knows, and why this computer cannot check them; empty if it can."""


def diagnose() -> Diagnosis:
    """Return facts about this computer and process; nothing is executed that the processor might lack."""
    folder = cache_folder()
    files = 0 if folder is None else sum(1 for path in folder.rglob("*.nbc"))
    return Diagnosis(
        processor=f"{processor()} ({platform.machine()})",
        features=tuple(name for name in _FORMAT_FEATURES if name in host_features()),
        versions={"mpsim": __version__, "python": platform.python_version(), **_versions()},
        cache="none can be written" if folder is None else f"{folder}, {files} kernels, sources {source_digest()}",
        threads=thread_count(),
        floating_point=_floating_point(),
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        validations={group.title: unavailable(group) for group in GROUPS.values()},
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _floating_point() -> str:
    """Return the state of the processor's control register in words."""
    machine = host_machine()
    if machine not in ("x86", "arm"):
        return "not known on this kind of processor"
    word = control_word()
    if machine == "x86":
        rounding = host_x86.DIRECTIONS[word >> 13 & 3]
        zeros = [name for name, bit in (("FTZ", 0x8000), ("DAZ", 0x40)) if word & bit]
    else:
        rounding = host_arm.DIRECTIONS[word >> 22 & 3]
        zeros = ["FZ"] if word >> 24 & 1 else []
    kept = f"{' and '.join(zeros)} set: subnormal numbers are zeros" if zeros else "subnormal numbers are kept"
    return f"rounding {rounding}, {kept}"
