"""Whole FP8 GEMMs of cuBLASLt: a recorded RTX 4060, and the published models of it and of an H100."""

import json
from typing import Any

import numba
import numpy as np
import pytest

from bits import assert_same_bits
from mpsim.encoding import decode, encode
from mpsim.formats import get_format
from mpsim.matmul import matmul
from vectors import vectors

OUT = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}
FILES = [
    ("hardware/rtx4060_fp8_gemm.npz", "rtx-4060"),
    ("matrix-units/mmaemu_rtx4060_fp8_gemm.npz", "rtx-4060"),
    ("matrix-units/mmaemu_h100pcie_fp8_gemm.npz", "h100"),
]


def number(bits: int | None) -> np.float32:
    return np.array(0x3F800000 if bits is None else bits, np.uint32).view(np.float32)[()]


def choices(case: dict[str, Any], unit: str) -> dict[str, Any]:
    """Return what a recorded case asks of `matmul`."""
    keywords: dict[str, Any] = {"split_k": case["split"], "result": OUT[case["out_dtype"]]}
    keywords["schedule"] = ("cublaslt-ada" if unit == "rtx-4060" else "cublaslt-hopper") + (
        "" if case["fast_accum"] else "-slow"
    )
    keywords["reduction"] = "pairwise" if case["scheme"] == "pairwise" else "serial"
    keywords |= {"scale_a": number(case["scale_a_bits"]), "scale_b": number(case["scale_b_bits"])}
    if case["scale_result_bits"] is not None:
        keywords["scale_result"] = number(case["scale_result_bits"])
    return keywords


@pytest.mark.parametrize(("path", "unit"), FILES)
def test_whole_products_of_a_library(path: str, unit: str) -> None:
    with np.load(vectors(*path.split("/"))) as file:
        pools = dict(file)
    cases = json.loads(str(pools["cases"]))
    compared = 0
    for case in cases[:: 40 if numba.config.DISABLE_JIT else 1]:
        m, n, k = case["m"], case["n"], case["k"]
        a = pools["a"][case["a_offset"] :][: m * k].reshape(m, k)
        b = pools["b"][case["b_offset"] :][: n * k].reshape(n, k)
        inputs = case["a_format"], case["b_format"]
        values = decode(a, inputs[0]), decode(b, inputs[1]).T
        got = matmul(*values, unit=unit, inputs=inputs, **choices(case, unit))
        result = get_format(OUT[case["out_dtype"]])
        codes = got.view(np.uint32) if result.name == "fp32" else encode(got, result)
        codes[np.isnan(got)] = result.last_code  # NaNs are values here; as codes the unit knows one
        raw = pools["d"][case["d_offset"] :][: codes.nbytes]
        assert_same_bits(codes, raw.view(codes.dtype).reshape(m, n))
        compared += codes.size
    assert compared > 100
