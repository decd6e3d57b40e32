"""The steps of a dot product, in exact fractions, against the kernels of every unit."""

import dataclasses
import math
from typing import Any

import numba
import numpy as np
import pytest

from mpsim import units
from mpsim.formats import FloatFormat, get_format
from mpsim.matmul import explain_dot
from mpsim.units import UNITS, Family, MatrixUnit, Order, ZeroTerms

CASES = 4 if numba.config.DISABLE_JIT else 30
KINDS = ("close", "any", "subnormal", "cancelling")


def codes(rng: np.random.Generator, fmt: FloatFormat, size: int, kind: str) -> Any:
    """Return codes of close exponents, of any sort, of many subnormals and zeros, or of numbers that cancel."""
    fields = rng.integers(0, 1 << fmt.w, size)
    if kind in ("close", "cancelling"):
        fields = np.clip(rng.integers(fmt.bias - 3, fmt.bias + 3, size), 0, (1 << fmt.w) - 2)
    if kind == "subnormal":
        fields = np.where(rng.random(size) < 0.5, 0, np.minimum(fields, (1 << fmt.w) - 2))
    fractions = rng.integers(0, 1 << fmt.m, size) if fmt.m else np.zeros(size, np.int64)
    if kind == "subnormal":
        fractions = np.where(rng.random(size) < 0.3, 0, fractions)
    signs = rng.integers(0, 2, size) if fmt.signed else np.zeros(size, np.int64)
    if kind == "cancelling":
        half = size // 2
        fields[half : 2 * half], fractions[half : 2 * half] = fields[:half], fractions[:half]
    return ((signs << (fmt.w + fmt.m)) | (fields << fmt.m) | fractions).astype(fmt.code_dtype)


def unit_rows() -> list[MatrixUnit]:
    """Return one row of each kind of arithmetic, mixed inputs aside."""
    kept: dict[tuple[Any, ...], MatrixUnit] = {}
    for row in UNITS:
        if row.a == row.b:
            facts = (
                row.family,
                row.a,
                row.out,
                row.block_length,
                row.fraction_bits,
                row.floor,
                row.scale,
                row.scale_block,
            )
            kept.setdefault(
                (*facts, row.order, row.subnormal_inputs, row.k if row.family is Family.INTERLEAVED else 0), row
            )
    return list(kept.values())


@pytest.mark.parametrize("row", unit_rows(), ids=str)
def test_steps_lead_to_the_result_of_the_kernel(row: MatrixUnit) -> None:
    rng = np.random.default_rng(7)
    out = get_format(row.out)
    finite = 0
    for case in range(CASES):
        kind = KINDS[case % len(KINDS)]
        k = int(rng.integers(1, 2 * max(row.k, row.block_length, 4) + 2))
        a, b = (codes(rng, fmt, k, kind) for fmt in row.inputs)
        if kind == "cancelling":
            b[k // 2 : 2 * (k // 2)] = b[: k // 2]
        c = codes(rng, out, 1, kind)[0]
        scales: dict[str, Any] = {}
        if row.scale:
            blocks = -(-k // row.scale_block)
            fmt = get_format(row.scale)
            near = "close" if kind == "cancelling" else kind
            scales = {name: codes(rng, fmt, blocks, near) for name in ("scale_a", "scale_b")}
        told = explain_dot(a, b, c, row, codes=True, **scales)
        last = told.steps[-1].result
        if math.isnan(told.value):
            assert math.isnan(last), told
        else:
            assert (last, math.copysign(1, last)) == (told.value, math.copysign(1, told.value)), told
        finite += math.isfinite(told.value)
    assert finite > CASES / 4


@pytest.mark.parametrize("inputs", ["bf16", "fp16"])
def test_the_order_of_the_intrinsics_guide_is_another(inputs: str) -> None:
    manual = units.get("amx", inputs=inputs)
    guide = dataclasses.replace(manual, order="intrinsics-guide")
    rng = np.random.default_rng(3)
    differ = 0
    for _ in range(20):
        x, y = rng.standard_normal(40), rng.standard_normal(40)
        told = explain_dot(x, y, 0.3, guide)
        assert told.steps[-1].result == told.value
        differ += told.value != explain_dot(x, y, 0.3, manual).value
    assert differ


@pytest.mark.parametrize("zero_terms", ZeroTerms)
def test_zero_terms_take_part_or_not(zero_terms: ZeroTerms) -> None:
    row = dataclasses.replace(units.get("a100", inputs="bf16"), zero_terms=zero_terms)
    # 0 * 2**100 beside an accumulator that is subnormal.
    told = explain_dot([0, 0x3F80], [0x7180, 0], 0x00012345, row, codes=True)
    assert told.code == (0x00012345 if zero_terms is ZeroTerms.DROP else 0)
    assert told.steps[-1].result == told.value


def test_values_are_quantised_for_block_scaled_units() -> None:
    told = explain_dot(np.linspace(-2, 2, 40), np.linspace(1, 3, 40), unit="b200", inputs="mxfp8_e4m3")
    assert len(told.scales) == 40
    assert told.steps[-1].result == told.value
    assert abs(told.value - float(np.linspace(-2, 2, 40) @ np.linspace(1, 3, 40))) < 1


def test_errors_are_in_units_of_the_last_place() -> None:
    told = explain_dot([1.0, 2.0**-12], [1.0, 1.0], unit=units.ideal("fp16", "fp16"))
    assert (told.value, float(told.exact)) == (1.0, 1 + 2.0**-12)
    assert told.error_ulps == -0.25
    assert explain_dot([math.inf], [1.0]).error_ulps is None


def test_a_wrong_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"a is \(2,\), b is \(3,\), c is \(\); two vectors of one length"):
        explain_dot([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="order of summation belongs to NumPy"):
        explain_dot([1.0], [1.0], unit="native")


def test_no_products() -> None:
    told = explain_dot([], [], 3.0)
    assert told.value == 3.0
    assert Order.SEQUENTIAL == "sequential"
