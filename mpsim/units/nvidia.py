"""NVIDIA's tensor cores: every instruction that has been characterised bit for bit."""

from __future__ import annotations

import itertools

from mpsim.formats import get_format
from mpsim.units.model import Family, MatrixUnit

__all__ = ["NVIDIA"]

_SOURCES = {
    "A": "recorded results of MATLAB-tensor-core (Khattak and Mikaitis); models of arXiv 2512.07004 and 2511.10909",
    "B": "MMA-Sim, arXiv 2511.10909 v2; Khattak and Mikaitis, arXiv 2512.07004 v2",
    "C": "MMA-Sim, arXiv 2511.10909 v2",
}
_RTX_4060 = "recorded results of mmaemu 0.1.0 (RTX 4060) and of MATLAB-tensor-core; arXiv 2511.10909 and 2512.07004"

_DEVICES = {
    "volta": ("v100", "sm_70"),
    "turing": ("t4", "sm_75"),
    "ampere": ("a100", "a2", "sm_80", "sm_86"),
    "ada": ("rtx-1000-ada", "rtx-4060", "rtx-4090", "l40s", "sm_89"),
    "hopper": ("h100", "h200", "sm_90"),
    "blackwell": ("b200", "sm_100"),
    "rtx-blackwell": ("rtx-5090", "rtx-pro-6000", "sm_120"),
}

_INTEGER_BITS = {"volta": 5, "turing": 6, "ampere": 6, "ada": 6, "hopper": 7, "blackwell": 7, "rtx-blackwell": 7}
"""Measured through the alignment floor: A100 and H100 (fp32), V100, A100, Ada, H100 and B200 (fp16)."""

_FP8 = ("e4m3", "e5m2")
_NARROW = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")


def _fused(
    architecture: str,
    instruction: str,
    inputs: str,
    out: str,
    k: int,
    length: int,
    bits: int,
    evidence: str,
    *,
    precision: int = 0,
    family: Family = Family.FUSED,
    scale: tuple[str, int] = ("", 0),
    group_length: int = 0,
    source: str = "",
) -> MatrixUnit:
    """Return a row of a tensor core; two different inputs have a blank between."""
    a, b = (inputs.split() * 2)[:2]
    return MatrixUnit(
        family=family,
        architecture=architecture,
        devices=_DEVICES[architecture],
        instruction=instruction,
        a=a,
        b=b,
        out=out,
        accumulators=("fp32", "fp16") if instruction == "mma.m8n8k4" and out == "fp32" else (out,),
        k=k,
        block_length=length,
        fraction_bits=bits,
        result_precision=precision or get_format(out).p,
        rounding="toward-zero" if out == "fp32" else "nearest-even",
        integer_bits=_INTEGER_BITS[architecture],
        scale=scale[0],
        scale_block=scale[1],
        group_length=group_length,
        evidence=evidence,
        source=source or _SOURCES[evidence],
    )


def _hopper_like(architecture: str, evidence: str) -> list[MatrixUnit]:
    """Return the warp-level rows of the generations whose adder takes 16 products and keeps 25 fraction bits."""
    return [
        *(
            _fused(architecture, f"mma.m16n8k{k}", inputs, out, k, k, 25, evidence if k == 16 else "B")
            for k in (16, 8)
            for inputs, out in (("fp16", "fp32"), ("fp16", "fp16"), ("bf16", "fp32"))
        ),
        _fused(architecture, "mma.m16n8k8", "tf32", "fp32", 8, 8, 25, "B"),
        _fused(architecture, "mma.m16n8k4", "tf32", "fp32", 4, 4, 25, evidence),
    ]


def _ampere_like(architecture: str) -> list[MatrixUnit]:
    """Return the rows of the generations whose adder takes 8 products and keeps 24 fraction bits."""
    return [
        *(
            _fused(architecture, f"mma.m16n8k{k}", inputs, out, k, 8, 24, "A")
            for k in (16, 8)
            for inputs, out in (("fp16", "fp32"), ("fp16", "fp16"), ("bf16", "fp32"))
        ),
        *(_fused(architecture, f"mma.m16n8k{k}", "tf32", "fp32", k, 4, 24, "A") for k in (8, 4)),
    ]


def _pairs(formats: tuple[str, ...]) -> list[str]:
    """Return every pair of input formats, as `_fused` takes them."""
    return [f"{a} {b}" for a, b in itertools.product(formats, repeat=2)]


def _ada_fp8() -> list[MatrixUnit]:
    return [
        _fused("ada", f"mma.m16n8k{k}", inputs, out, k, 16, 13, "A", precision=p, source=_RTX_4060)
        for k in (32, 16)
        for inputs in _pairs(_FP8)
        for out, p in (("fp32", 14), ("fp16", 11))
    ]


def _hopper_fp8() -> list[MatrixUnit]:
    return [
        _fused("hopper", "wgmma.m64n8k32", inputs, out, 32, 32, 13, evidence, precision=p)
        for inputs in _pairs(_FP8)
        for out, p, evidence in (("fp32", 14, "A"), ("fp16", 11, "B"))
    ]


def _interleaved(architecture: str) -> list[MatrixUnit]:
    """Return FP8 instructions that a generation without them in its warp-level unit makes of FP16 ones."""
    evidence = {"fp16": "A", "fp32": "A" if architecture == "blackwell" else "C"}
    rows = [
        _fused(architecture, "mma.m16n8k32", inputs, out, 32, 16, 25, evidence[out], family=Family.INTERLEAVED)
        for inputs in _pairs(_FP8)
        for out in ("fp32", "fp16")
    ]
    rows += [
        _fused(
            architecture,
            "mma.m16n8k16",
            inputs,
            out,
            16,
            8,
            25,
            "E",
            family=Family.INTERLEAVED,
            source="inferred from the k32 instruction; its shape as in arXiv 2512.07004 v2",
        )
        for inputs in _pairs(_FP8)
        for out in ("fp32", "fp16")
    ]
    return rows


def _narrow(architecture: str, instruction: str) -> list[MatrixUnit]:
    """Return the FP8, FP6 and FP4 rows, in any mixture, of the Blackwell generations."""
    return [
        _fused(
            architecture, instruction, inputs, out, 32, 32, 25,
            "B" if out == "fp32" and set(inputs.split()) <= set(_FP8) else "C",
        )
        for inputs in _pairs(_NARROW)
        for out in ("fp32", "fp16")
    ]  # fmt: skip


def _scaled(architecture: str, k32: str, k64: str) -> list[MatrixUnit]:
    """Return the block-scaled rows of a Blackwell generation."""
    grouped = [
        _fused(architecture, k64, "e2m1", "fp32", 64, 64, 35, "C", family=Family.GROUPED, scale=scale, group_length=16)
        for scale in (("ue4m3", 16), ("e8m0", 32), ("e8m0", 16))
    ]
    scaled = [
        _fused(architecture, k32, inputs, "fp32", 32, 32, 25, "C", family=Family.SCALED, scale=("e8m0", 32))
        for inputs in _pairs(_NARROW)
    ]
    return [*grouped, *scaled]


def _dmma(architecture: str, shapes: tuple[str, ...]) -> list[MatrixUnit]:
    return [
        MatrixUnit(
            family=Family.FMA_CHAIN,
            architecture=architecture,
            devices=_DEVICES[architecture],
            instruction=f"mma.{shape}",
            a="fp64",
            b="fp64",
            out="fp64",
            accumulators=("fp64",),
            k=int(shape.rpartition("k")[2]),
            block_length=1,
            result_precision=53,
            rounding="nearest-even",
            evidence="B",
            source=_SOURCES["B"],
        )
        for shape in shapes
    ]


_DMMA_HOPPER = ("m16n8k16", "m16n8k8", "m16n8k4", "m8n8k4")

NVIDIA: tuple[MatrixUnit, ...] = (
    _fused("volta", "mma.m8n8k4", "fp16", "fp32", 4, 4, 23, "A"),
    _fused("volta", "mma.m8n8k4", "fp16", "fp16", 4, 4, 23, "A"),
    _fused("turing", "mma.m16n8k8", "fp16", "fp32", 8, 8, 24, "C"),
    _fused("turing", "mma.m16n8k8", "fp16", "fp16", 8, 8, 24, "C"),
    _fused("turing", "mma.m8n8k4", "fp16", "fp32", 4, 4, 24, "C"),
    _fused("turing", "mma.m8n8k4", "fp16", "fp16", 4, 4, 24, "C"),
    *_ampere_like("ampere"),
    *_dmma("ampere", ("m8n8k4",)),
    *_ampere_like("ada"),
    *_ada_fp8(),
    *_dmma("ada", ("m8n8k4",)),
    *_hopper_like("hopper", "A"),
    *(
        _fused("hopper", f"wgmma.m64n8k{k}", inputs, out, k, k, 25, "B")
        for inputs, out, k in (("fp16", "fp32", 16), ("fp16", "fp16", 16), ("bf16", "fp32", 16), ("tf32", "fp32", 8))
    ),
    *_hopper_fp8(),
    *_interleaved("hopper"),
    *_dmma("hopper", _DMMA_HOPPER),
    *_hopper_like("blackwell", "A"),
    *(
        _fused("blackwell", f"tcgen05.mma.k{k}", inputs, out, k, k, 25, "C")
        for inputs, out, k in (
            ("fp16", "fp32", 16),
            ("fp16", "fp16", 16),
            ("bf16", "fp32", 16),
            ("fp16 bf16", "fp32", 16),
            ("bf16 fp16", "fp32", 16),
            ("tf32", "fp32", 8),
        )
    ),
    *_narrow("blackwell", "tcgen05.mma.k32"),
    *_interleaved("blackwell"),
    *_scaled("blackwell", "tcgen05.mma.block_scale.k32", "tcgen05.mma.block_scale.k64"),
    *_dmma("blackwell", ("m8n8k4",)),
    *_hopper_like("rtx-blackwell", "B"),
    *_narrow("rtx-blackwell", "mma.m16n8k32"),
    *(
        _fused("rtx-blackwell", "mma.m16n8k16", inputs, out, 16, 16, 25, "C")
        for inputs in _pairs(_FP8)
        for out in ("fp32", "fp16")
    ),
    *_scaled("rtx-blackwell", "mma.block_scale.m16n8k32", "mma.block_scale.m16n8k64"),
    *_dmma("rtx-blackwell", ("m8n8k4",)),
)
"""Of several rows that fit a question, the first is the answer: the instruction that libraries use."""
