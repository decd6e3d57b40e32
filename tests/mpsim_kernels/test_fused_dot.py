"""The kernels of fused dot products against the exact twin, which is checked by hand first."""

import dataclasses
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bits import assert_same_bits
from mpsim import units
from mpsim.encoding import decode, encode
from mpsim.formats import FP16, FP32, get_format
from mpsim.matmul import matmul_codes
from mpsim.units import MatrixUnit
from reference import fused_dot as twin
from reference.fused_cases import CORNERS, Case, cases, twin_of

EXAMPLES = 10 if numba.config.DISABLE_JIT else 60


def codes(values: Any, fmt: Any) -> list[int]:
    """Return codes of values that are exact in the format; tf32 as words of 32 bits."""
    fmt = FP32 if get_format(fmt).name == "tf32" else get_format(fmt)
    found = encode(np.array(values, np.float64), fmt)
    assert (decode(found, fmt) == values).all()
    return [int(code) for code in found]


def both(unit: MatrixUnit, a: Any, b: Any, c: Any) -> int:
    """Return the code of one dot product after the twin and the kernels agreed on it; arguments are codes."""
    want = twin.dot(twin_of(unit), a, b, c)
    got = matmul_codes(
        np.array([a], twin_of(unit).a.code_dtype),
        np.array([b], twin_of(unit).b.code_dtype).T,
        np.array([[c]], twin_of(unit).out.code_dtype),
        unit=unit,
    )
    assert int(got[0, 0]) == want, f"{unit}: kernel {int(got[0, 0]):#x}, twin {want:#x}"
    return want


@pytest.mark.parametrize(
    ("device", "inputs", "want"),
    [
        ("v100", "fp16", 0.0),
        ("t4", "fp16", -0.5),
        ("a100", "fp16", -0.5),
        ("a100", "bf16", -0.5),
        ("a100", "tf32", -0.5),
        ("l40s", "fp16", -0.5),
        ("h100", "fp16", -0.75),
        ("h100", "bf16", -0.75),
        ("h100", "tf32", -0.75),
        ("b200", "fp16", -0.75),
        ("rtx-5090", "bf16", -0.75),
    ],
)
def test_small_products_beside_a_cancelling_pair_show_the_fraction_bits(device: str, inputs: str, want: float) -> None:
    unit = units.get(device, inputs)
    a, b = codes([-(2.0**13), -0.5, -0.25, -0.125], inputs), codes([2.0**10, 1.0, 1.0, 1.0], inputs)
    assert decode([both(unit, a, b, codes([2.0**23], FP32)[0])], FP32)[0] == want


@pytest.mark.parametrize(
    ("device", "a", "b", "want"),
    [
        ("v100", [1.5, 2.0**-11, 2.0**-11], [1.5, 2.0**-12, 2.0**-12], 2.25 + 2.0**-22),
        ("v100", [1.0, 2.0**-11, 2.0**-11], [2.25, 2.0**-12, 2.0**-12], 2.25),
        ("a100", [1.5, 2.0**-11, 2.0**-12, 2.0**-12], [1.5, 2.0**-12, 2.0**-12, 2.0**-12], 2.25 + 2.0**-22),
    ],
)
def test_products_are_not_normalised_before_alignment(device: str, a: Any, b: Any, want: float) -> None:
    assert decode([both(units.get(device), codes(a, FP16), codes(b, FP16), 0)], FP32)[0] == want


@pytest.mark.parametrize(("exponent", "want"), [(-132, 0x1FFFF), (-133, 0x10000)])
def test_alignment_stops_at_the_floor(exponent: int, want: int) -> None:
    # 2**-133 is the code 0x10000; what is taken away lies 24 bits lower and is cut unless the floor is in the way.
    unit = units.get("a100", inputs="bf16")
    half, rest = exponent // 2, exponent - exponent // 2
    a = codes([2.0**half, -(2.0 ** (half - 12))], "bf16")
    b = codes([2.0**rest, 2.0 ** (rest - 12)], "bf16")
    got = both(unit, a, b, 0)
    assert (got != codes([2.0**exponent], FP32)[0]) == (exponent == -132)
    assert got == want


def test_a_zero_product_does_not_align_the_others() -> None:
    a, b = codes([0.0], "bf16"), codes([2.0**100], "bf16")
    assert both(units.get("a100", inputs="bf16"), a, b, 0x00012345) == 0x00012345


def test_a_sum_may_leave_the_range_inside_a_block() -> None:
    unit = units.get("h100", inputs="bf16")
    a, b = codes([2.0**64, -(2.0**64), 2.0**64], "bf16"), codes([2.0**64, 2.0**64, 2.0**63], "bf16")
    assert both(unit, a, b, 0) == codes([2.0**127], FP32)[0]


@pytest.mark.parametrize(("sign", "want"), [(1.0, 0x7F800000), (-1.0, 0xFF800000)])
def test_truncation_overflows_to_infinity(sign: float, want: int) -> None:
    unit = units.get("a100", inputs="bf16")
    assert both(unit, codes([sign * 2.0**127], "bf16"), codes([2.0], "bf16"), 0) == want


@pytest.mark.parametrize("unit", [unit for unit in CORNERS if unit.a == "fp16"], ids=str)
def test_zero_results_are_positive(unit: MatrixUnit) -> None:
    minus = twin_of(unit).out.sign_code
    assert both(unit, [0x8000], [0x0000], minus) == 0
    assert both(unit, [0xBC00, 0x3C00], [0x3C00, 0x3C00], minus) == 0


def test_a_negative_sum_that_rounds_to_zero_is_positive() -> None:
    assert both(units.get("a100", out="fp16"), [0x8001], [0x0001], 0) == 0


@pytest.mark.parametrize("unit", [unit for unit in CORNERS if unit.a == "fp16"], ids=str)
def test_infinities_and_the_one_nan(unit: MatrixUnit) -> None:
    out = twin_of(unit).out
    inf, nan, minus = out.inf_code, out.last_code, out.sign_code
    assert inf is not None
    assert both(unit, [0x7C00], [0x3C00], 0) == inf
    assert both(unit, [0x7C00], [0xBC00], 0) == minus | inf
    assert both(unit, [0x7C00], [0x0000], 0) == nan
    assert both(unit, [0x7C00, 0x7C00], [0x3C00, 0xBC00], 0) == nan
    assert both(unit, [0x7C00], [0x3C00], minus | inf) == nan
    assert both(unit, [0xFE01], [0x3C00], 0) == nan
    assert both(unit, [0x3C00], [0x3C00], minus | nan) == nan


def test_an_overflow_in_one_block_meets_an_infinity_in_another() -> None:
    # Which comes first decides: an infinity of the other sign stops what would have overflowed.
    unit = units.get("v100", out="fp16")
    big, late = [0x7BFF] * 4, [0x7C00, 0, 0, 0]
    ones, minus = [0x3C00] * 4, [0xBC00] * 4
    assert both(unit, big + late, ones + minus, 0) == FP16.last_code
    assert both(unit, late + big, minus + ones, 0) == 0xFC00
    assert both(unit, big, ones, 0) == 0x7C00
    assert both(unit, big + big + big, ones + minus + minus, 0) == 0x7C00


@pytest.mark.parametrize("unit", CORNERS, ids=str)
def test_kernels_equal_the_twin(unit: MatrixUnit) -> None:
    @settings(max_examples=EXAMPLES)
    @given(cases(unit))
    def check(case: Case) -> None:
        assert_same_bits(matmul_codes(case.a, case.b, case.c, unit=unit), case.expected(unit))

    check()


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_units_that_might_have_been_equal_the_twin(data: st.DataObject) -> None:
    base = data.draw(st.sampled_from(CORNERS))
    unit = dataclasses.replace(
        base,
        block_length=data.draw(st.sampled_from([1, 2, 4, 5, 8, 12, 16, 32])),
        fraction_bits=data.draw(st.integers(1, 46)),
        result_precision=data.draw(st.integers(2, get_format(base.out).p)),
        rounding=data.draw(st.sampled_from(["toward-zero", "nearest-even"])),
        alignment_floor=data.draw(st.none() | st.integers(-160, 20)),
    )
    case = data.draw(cases(unit))
    assert_same_bits(matmul_codes(case.a, case.b, case.c, unit=unit), case.expected(unit))
