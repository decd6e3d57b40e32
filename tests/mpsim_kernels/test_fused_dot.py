"""The kernels of fused dot products against the exact twin, which is checked by hand first."""

import dataclasses
import json
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
from mpsim.matmul._families import fused_numbers
from mpsim.units import MatrixUnit
from mpsim_kernels.fused_dot import FusedDot, Operand, general_gemm
from mpsim_kernels.gemm import fused_gemm
from mpsim_kernels.words import words
from reference import fused_dot as twin
from reference.fused_cases import CORNERS, Case, cases, twin_of
from vectors import vectors

EXAMPLES, EVERY = (10, 10) if numba.config.DISABLE_JIT else (60, 1)
"""Generated examples of a test, and steps through recorded tiles."""


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
        ("rtx-4060", "e5m2", 0.0),
        ("h100", "e5m2", 0.0),
        ("b200", "e5m2", -0.75),
        ("rtx-5090", "e5m2", -0.75),
    ],
)
def test_small_products_beside_a_cancelling_pair_show_the_fraction_bits(device: str, inputs: str, want: float) -> None:
    rows = [unit for unit in units.UNITS if device in unit.devices]
    unit = next(unit for unit in rows if (unit.family, unit.a, unit.b, unit.out) == ("fused", inputs, inputs, "fp32"))
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


@pytest.mark.parametrize(("device", "instruction"), [("rtx-4060", "mma.m16n8k32"), ("h100", "wgmma.m64n8k32")])
def test_accumulators_alone_are_cut_to_13_fraction_bits(device: str, instruction: str) -> None:
    unit = units.get(device, inputs="e4m3", instruction=instruction)
    assert both(unit, [0] * 32, [0] * 32, 0x3FFFFFFF) == 0x3FFFFC00
    assert both(unit, [0] * 32, [0] * 32, 0x000007FF) == 0x00000400  # subnormal: the quantum is 2**-139


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


def kernel_codes(
    case: Case, unit: MatrixUnit, numbers: tuple[FusedDot, tuple[Operand, Operand]], general: bool = False
) -> Any:
    """Return the codes that the kernels give a case, on the path for any numbers if ``general``."""
    formats = twin_of(unit)
    masked = (x & np.uint32(0xFFFFE000) if unit.a == "tf32" else x for x in (case.a, case.b))
    a, b = (decode(x, fmt) for x, fmt in zip(masked, (formats.a, formats.b), strict=True))
    c = decode(case.c, formats.out)
    if general:
        d = general_gemm(words(a), words(b), words(c), *numbers).view(np.float32)
    else:
        d = fused_gemm(a, b, c, *numbers)
    if formats.out == FP32:
        return d.view(np.uint32)
    found = encode(d, formats.out)
    found[np.isnan(d)] = formats.out.last_code
    return found


@pytest.mark.parametrize("unit", CORNERS, ids=str)
def test_public_and_general_paths_equal_the_twin(unit: MatrixUnit) -> None:
    @settings(max_examples=EXAMPLES)
    @given(cases(unit))
    def check(case: Case) -> None:
        want = case.expected(unit)
        assert_same_bits(matmul_codes(case.a, case.b, case.c, unit=unit), want)
        assert_same_bits(kernel_codes(case, unit, fused_numbers(unit), general=True), want)

    check()


NO_FLOOR = -(1 << 20)


@pytest.mark.parametrize("unit", CORNERS, ids=str)
def test_units_whose_zeros_take_part_equal_the_twin(unit: MatrixUnit) -> None:
    dot, operands = fused_numbers(unit)
    numbers = dot._replace(zero_exponent=-126, floor=NO_FLOOR), operands
    other = dataclasses.replace(twin_of(unit), zero_exponent=-126, floor=NO_FLOOR)

    @settings(max_examples=EXAMPLES // 2)
    @given(cases(unit), st.randoms(use_true_random=False))
    def check(case: Case, random: Any) -> None:
        for code in (case.a, case.b, case.c):
            for index in np.ndindex(code.shape):
                if random.random() < 0.5:
                    code[index] = 0
        assert_same_bits(kernel_codes(case, unit, numbers), case.expected(unit, other))

    check()


def test_a_zero_that_takes_part_aligns_the_others() -> None:
    unit = units.get("a100", inputs="bf16")
    dot, operands = fused_numbers(unit)
    numbers = dot._replace(zero_exponent=-126, floor=NO_FLOOR), operands
    a, b = np.array([[0]], np.uint16), np.array([codes([2.0**100], "bf16")], np.uint16)
    case = Case(a, b, np.array([[0x00012345]], np.uint32))
    assert kernel_codes(case, unit, fused_numbers(unit)).item() == 0x00012345
    assert kernel_codes(case, unit, numbers).item() == 0


ARCHITECTURES = {"adalovelace": "ada", "rtxblackwell": "rtx-blackwell"}
FORMATS = {"f16": "fp16", "f32": "fp32"}


def row_of(architecture: str, meta: dict[str, Any]) -> MatrixUnit | None:
    """Return the fused row of a file of published model outputs, or None where its unit is of another family."""
    shape = meta["instruction"].split(".")[0]
    instruction = f"tcgen05.mma.k{meta['k']}" if meta["family"] == "tcgen05mma" else f"{meta['family']}.{shape}"
    names = [FORMATS.get(meta[key], meta[key]) for key in ("a_format", "b_format", "d_format")]
    for unit in units.UNITS:
        same = unit.architecture == ARCHITECTURES.get(architecture, architecture) and unit.instruction == instruction
        if same and [unit.a, unit.b, unit.out] == names and unit.family == "fused":
            return unit
    return None


@pytest.mark.parametrize(
    "architecture", ["volta", "turing", "ampere", "adalovelace", "hopper", "blackwell", "rtxblackwell"]
)
def test_published_models_and_their_own_rule_of_zeros(architecture: str) -> None:
    compared = 0
    for path in sorted(vectors("matrix-units").glob(f"{architecture}_*.npz")):
        with np.load(path) as file:
            tiles = dict(file)
        meta = json.loads(str(tiles["meta"]))
        unit = row_of(architecture, meta)
        if unit is None:
            continue
        dot, operands = fused_numbers(unit)
        with_zeros = dot._replace(zero_exponent=-126, floor=NO_FLOOR), operands
        dropped = tiles["d"].copy()
        dropped[np.unpackbits(tiles["disputed"], axis=-1, count=meta["n"]).astype(bool)] = tiles["disputed_alt"]
        widened = tiles["c"]
        if widened.dtype != get_format(unit.out).code_dtype:
            widened = decode(widened, "fp16").view(np.uint32)
        for tile in range(0, len(dropped), EVERY):
            case = Case(tiles["a"][tile], tiles["b"][tile], widened[tile])
            assert_same_bits(kernel_codes(case, unit, (dot, operands)), dropped[tile])
            assert_same_bits(kernel_codes(case, unit, with_zeros), tiles["d"][tile])
            compared += dropped[tile].size
    assert compared > 0


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
