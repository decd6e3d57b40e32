"""AMD's matrix cores: CDNA 1, 2 and 3."""

from __future__ import annotations

import itertools
from typing import Any

from mpsim.units.model import Family, MatrixUnit

__all__ = ["AMD"]

_SOURCES = {
    "B": "MMA-Sim, arXiv 2511.10909 v2; models of MATLAB-tensor-core (Khattak and Mikaitis, 2026)",
    "C": "MMA-Sim, arXiv 2511.10909 v2",
}

_DEVICES = {
    "cdna1": ("mi100", "gfx908"),
    "cdna2": ("mi210", "mi250", "mi250x", "gfx90a"),
    "cdna3": ("mi300x", "gfx942"),
}

_FNUZ = {"e4m3fnuz": "fp8", "e5m2fnuz": "bf8"}


def _row(
    architecture: str, instruction: str, inputs: tuple[str, str], k: int, family: Family, length: int, **numbers: Any
) -> MatrixUnit:
    out = "fp64" if inputs[0] == "fp64" else "fp32"
    evidence = numbers.pop("evidence", "B")
    return MatrixUnit(
        family=family,
        architecture=architecture,
        devices=_DEVICES[architecture],
        instruction=instruction,
        a=inputs[0],
        b=inputs[1],
        out=out,
        accumulators=(out,),
        k=k,
        block_length=length,
        result_precision=53 if out == "fp64" else 24,
        rounding="nearest-even",
        evidence=evidence,
        source=_SOURCES[evidence],
        **numbers,
    )


def _both(fmt: str) -> tuple[str, str]:
    return fmt, fmt


def _floored(shape: str, k: int, fmt: str, length: int, suffix: str) -> MatrixUnit:
    return _row(
        "cdna3", f"mfma_f32_{shape}_{suffix}", _both(fmt), k, Family.FLOORED, length,
        fraction_bits=24, sum_bits=31, accumulator_bits=24,
    )  # fmt: skip


AMD: tuple[MatrixUnit, ...] = (
    _row("cdna1", "mfma_f32_16x16x16f16", _both("fp16"), 16, Family.EXACT_BLOCKS, 4),
    _row("cdna1", "mfma_f32_16x16x4f16", _both("fp16"), 4, Family.EXACT_BLOCKS, 4),
    _row("cdna1", "mfma_f32_16x16x8bf16", _both("bf16"), 8, Family.EXACT_BLOCKS, 2),
    _row("cdna1", "mfma_f32_16x16x2bf16", _both("bf16"), 2, Family.EXACT_BLOCKS, 2),
    _row("cdna1", "mfma_f32_16x16x4f32", _both("fp32"), 4, Family.FMA_CHAIN, 1),
    _row("cdna2", "mfma_f32_16x16x16f16", _both("fp16"), 16, Family.FLUSHED_PAIRS, 4),
    _row("cdna2", "mfma_f32_16x16x4f16", _both("fp16"), 4, Family.FLUSHED_PAIRS, 4),
    _row("cdna2", "mfma_f32_16x16x16bf16_1k", _both("bf16"), 16, Family.FLUSHED_PAIRS, 4),
    _row("cdna2", "mfma_f32_16x16x4bf16_1k", _both("bf16"), 4, Family.FLUSHED_PAIRS, 4),
    _row("cdna2", "mfma_f32_16x16x8bf16", _both("bf16"), 8, Family.FLUSHED_PAIRS, 2, evidence="C"),
    _row("cdna2", "mfma_f32_16x16x2bf16", _both("bf16"), 2, Family.FLUSHED_PAIRS, 2, evidence="C"),
    _row("cdna2", "mfma_f32_16x16x4f32", _both("fp32"), 4, Family.FMA_CHAIN, 1),
    _row("cdna2", "mfma_f64_16x16x4f64", _both("fp64"), 4, Family.FMA_CHAIN, 1),
    _floored("16x16x16", 16, "fp16", 8, "f16"),
    _floored("32x32x8", 8, "fp16", 8, "f16"),
    _floored("16x16x4_4b", 4, "fp16", 4, "f16"),
    _floored("4x4x4_16b", 4, "fp16", 4, "f16"),
    _floored("16x16x16", 16, "bf16", 8, "bf16"),
    _floored("16x16x4_4b", 4, "bf16", 4, "bf16"),
    _floored("16x16x8", 8, "tf32", 4, "xf32"),
    _floored("32x32x4", 4, "tf32", 4, "xf32"),
    *(
        _row(
            "cdna3", f"mfma_f32_{shape}_{_FNUZ[a]}_{_FNUZ[b]}", (a, b), k, Family.FLOORED_HALVES, 16,
            fraction_bits=24, sum_bits=31, accumulator_bits=24, accumulator_reach=25,
        )
        for shape, k in (("16x16x32", 32), ("32x32x16", 16))
        for a, b in itertools.product(_FNUZ, repeat=2)
    ),
    _row("cdna3", "mfma_f32_16x16x4_f32", _both("fp32"), 4, Family.FMA_CHAIN, 1),
    _row("cdna3", "mfma_f64_16x16x4_f64", _both("fp64"), 4, Family.FMA_CHAIN, 1),
)  # fmt: skip
"""Of several rows that fit a question, the first is the answer."""
