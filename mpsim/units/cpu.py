"""Dot-product and tile instructions of processors: x86 and Arm."""

from __future__ import annotations

from typing import Any

from mpsim.units.model import Family, MatrixUnit

__all__ = ["CPU"]


def _row(architecture: str, devices: tuple[str, ...], instruction: str, inputs: str, k: int, family: Family,
         evidence: str, source: str, **numbers: Any) -> MatrixUnit:  # fmt: skip
    return MatrixUnit(
        family=family,
        architecture=architecture,
        devices=devices,
        instruction=instruction,
        a=inputs,
        b=inputs,
        out="fp32",
        accumulators=("fp32",),
        k=k,
        block_length=2,
        rounding="nearest-even",
        evidence=evidence,
        source=source,
        **numbers,
    )


_SDM = "Intel 64 and IA-32 Architectures Software Developer's Manual"
_ARM = "Arm Architecture Reference Manual (DDI 0487)"

CPU: tuple[MatrixUnit, ...] = (
    _row("avx512-bf16", ("zen4", "zen5", "cooper-lake"), "vdpbf16ps", "bf16", 2, Family.VDPBF16PS, "A",
         f"own recordings on AMD EPYC (Zen 4 and Zen 5); {_SDM}"),
    _row("amx", ("amx-bf16", "sapphire-rapids"), "tdpbf16ps", "bf16", 32, Family.AMX, "D", _SDM,
         subnormal_inputs=False, order="sdm"),
    _row("amx", ("amx-fp16", "granite-rapids"), "tdpfp16ps", "fp16", 32, Family.AMX, "D", _SDM,
         subnormal_inputs=True, order="sdm"),
    _row("arm-bf16", ("neoverse-v1", "neoverse-n2"), "bfmmla", "bf16", 4, Family.BFDOT, "D", _ARM),
    _row("arm-bf16", ("neoverse-v1", "neoverse-n2"), "bfdot", "bf16", 2, Family.BFDOT, "D", _ARM),
    _row("arm-ebf16", (), "bfmmla", "bf16", 4, Family.BFDOT_EXTENDED, "D", f"{_ARM}, FPCR.EBF = 1"),
    _row("arm-ebf16", (), "bfdot", "bf16", 2, Family.BFDOT_EXTENDED, "D", f"{_ARM}, FPCR.EBF = 1"),
)  # fmt: skip
"""Of several rows that fit a question, the first is the answer."""
