"""Plain files of recorded x86 instructions, known by their names.

``vcvtps2ph.npz``
    ``x`` uint32 [n], ``z`` [4, 2, n] and ``mxcsr`` [4, 2, n] by rounding (MXCSR's order) and DAZ.
``vcvtph2ps.npz``
    ``x`` uint16 [n], ``z`` and ``mxcsr`` [n].
``vcvtneps2bf16.npz``
    ``x`` uint32 [n], ``z`` uint16 [n].
``x86_f32.npz``
    ``a``, ``b``, ``c`` [n]; for addss, subss, mulss, divss, sqrtss and fmass ``<name>_z`` and ``<name>_mxcsr``
    [4, 4, n] by rounding, and DAZ plus twice FTZ.
``vdpbf16ps.npz``
    Pairs ``a``, ``b`` uint16 [n, 2], ``c`` and ``z`` (or ``d``) uint32 [n].
``vdpbf16ps_gemm.npz``, ``torch_cpu_mm.npz``
    Products ``A_<key>``, ``Bt_<key>`` (transposed), ``D_<key>``, perhaps ``C_<key>``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from mpsim.hardware.recordings import RecordedSet
from mpsim.hardware.registers import flags_of
from mpsim_kernels.host_x86 import DIRECTIONS, FLAGS

__all__ = ["sets"]

_Arrays = Mapping[str, NDArray[Any]]
_OPERATIONS = {
    "addss": ("add", "ab"),
    "subss": ("sub", "ab"),
    "mulss": ("mul", "ab"),
    "divss": ("div", "ab"),
    "sqrtss": ("sqrt", "a"),
    "fmass": ("fma", "abc"),
}
"""By instruction: the operation, and the names of its operands."""


def sets(name: str, arrays: _Arrays) -> list[RecordedSet]:
    """Return what a file holds; nothing where its name says nothing."""
    readers = {
        "vcvtps2ph": _narrowing,
        "vcvtph2ps": _widening,
        "vcvtneps2bf16": _to_bf16,
        "x86_f32": _float32,
        "vdpbf16ps": _pairs,
        "x86_vdpbf16ps": _pairs,
        "vdpbf16ps_gemm": _products,
        "torch_cpu_mm": _torch,
    }
    return list(readers[name](arrays)) if name in readers else []


def _conversion(instruction: str, formats: tuple[str, str], x: Any, z: Any, **facts: Any) -> RecordedSet:
    parts = {"x": x, "z": z}
    if (mxcsr := facts.pop("mxcsr", None)) is not None:
        parts["flags"] = flags_of(mxcsr, FLAGS)
    told = {"instruction": instruction, "source": formats[0], "target": formats[1], **facts}
    return RecordedSet(name=instruction, kind="conversion", arrays=parts, facts=told)


def _narrowing(arrays: _Arrays) -> Iterator[RecordedSet]:
    for (r, rounding), daz in itertools.product(enumerate(DIRECTIONS), (0, 1)):
        options = {"rounding": rounding, "nan": "x86", "subnormal_inputs_as_zero": bool(daz)}
        z, mxcsr = arrays["z"][r, daz], arrays["mxcsr"][r, daz]
        formats = "fp32", "fp16"
        yield _conversion("vcvtps2ph", formats, arrays["x"], z, mxcsr=mxcsr, options=options, denormal=True)


def _widening(arrays: _Arrays) -> Iterator[RecordedSet]:
    x, z, mxcsr = (arrays[name] for name in ("x", "z", "mxcsr"))
    yield _conversion("vcvtph2ps", ("fp16", "fp32"), x, z, mxcsr=mxcsr, options={"nan": "x86"})


def _to_bf16(arrays: _Arrays) -> Iterator[RecordedSet]:
    options = {"nan": "x86", "subnormal_inputs_as_zero": True}
    yield _conversion("vcvtneps2bf16", ("fp32", "bf16"), arrays["x"], arrays["z"], options=options)


def _float32(arrays: _Arrays) -> Iterator[RecordedSet]:
    for instruction, (operation, operands) in _OPERATIONS.items():
        for (r, rounding), ftz, daz in itertools.product(enumerate(DIRECTIONS), (0, 1), (0, 1)):
            options = {
                "rounding": rounding,
                "nan": "x86",
                "subnormal_inputs_as_zero": bool(daz),
                "flush_subnormals": bool(ftz),
            }
            at = r, daz + 2 * ftz
            parts = {name: arrays[name] for name in operands}
            parts |= {"z": arrays[f"{instruction}_z"][at], "flags": flags_of(arrays[f"{instruction}_mxcsr"][at], FLAGS)}
            facts = {
                "instruction": instruction,
                "operation": operation,
                "format": "fp32",
                "options": options,
                "denormal": True,
            }
            yield RecordedSet(name=instruction, kind="arithmetic", arrays=parts, facts=facts)


_VDPBF16PS = {"unit": "avx512-bf16", "inputs": "bf16", "out": "fp32", "nan": "bits"}
"""Which NaN comes out is not emulated for products."""


def _pairs(arrays: _Arrays) -> Iterator[RecordedSet]:
    a, b, c = (arrays[name] for name in "abc")
    d = arrays["z"] if "z" in arrays else arrays["d"]
    parts = {"a": a[:, None, :], "b": b[:, :, None], "c": c[:, None, None], "d": d[:, None, None]}
    yield RecordedSet(name="vdpbf16ps", kind="instruction", arrays=parts, facts=_VDPBF16PS)


def _products(arrays: _Arrays) -> Iterator[RecordedSet]:
    for key in _keys(arrays):
        parts = {name.lower(): arrays[f"{name}_{key}"] for name in "ACD"}
        parts["b"] = arrays[f"Bt_{key}"].T
        yield RecordedSet(name=key, kind="instruction", arrays=parts, facts=_VDPBF16PS)


def _torch(arrays: _Arrays) -> Iterator[RecordedSet]:
    """Return torch's products on a processor with AVX512_BF16, as oneDNN makes them.

    Chains of VDPBF16PS over up to 512 elements of K, or 1024 where K is larger than that, are added in fp32. Small
    products and FP16 take an order of torch's own, which is no unit here.
    """
    for key in _keys(arrays):
        fmt, _, shape = key.split("_")
        m, n, k = map(int, shape.split("x"))
        own_order = fmt != "bf16" or m * n * k <= 4096
        block = 512 if k <= 1024 or m == 1 else 1024
        facts: dict[str, Any] = {
            "unit": None if own_order else "avx512-bf16",
            "inputs": {"f16": "fp16"}.get(fmt, fmt),
            "out": "fp32",
            "result": {"f16": "fp16"}.get(fmt, fmt),
        }
        if k > block and not own_order:
            facts["options"] = {"promotion": block}
        parts = {"a": arrays[f"A_{key}"], "b": arrays[f"Bt_{key}"].T, "d": arrays[f"D_{key}"]}
        yield RecordedSet(name=f"torch {fmt}", kind="gemm", arrays=parts, facts=facts)


def _keys(arrays: _Arrays) -> list[str]:
    return [name.removeprefix("A_") for name in arrays if name.startswith("A_")]
