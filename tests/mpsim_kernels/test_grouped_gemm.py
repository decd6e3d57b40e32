"""Products of FP4 matrices in groups: the kernels against the exact twin, recordings and each other."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mxcsr as fpu
from bits import assert_same_bits
from mpsim.encoding import encode
from mpsim.formats import E2M1, FP32
from mpsim_kernels import grouped_gemm as module
from mpsim_kernels.grouped_gemm import GroupedDot, general_grouped_gemm, grouped_gemm
from reference import scaled_dot as twin
from reference.scaled_cases import SCALES, STARTS, Case, cases, published, random_case

Array = np.ndarray[Any, Any]

EXAMPLES = 15 if numba.config.DISABLE_JIT else 150
TILES = 1 if numba.config.DISABLE_JIT else None
SIZE = 6 if numba.config.DISABLE_JIT else 60
ELEMENTS = ("any", "zeros")

MXFP4 = twin.Unit(
    fraction_bits=35,
    floor=-133,
    p=24,
    nearest=False,
    a=E2M1,
    b=E2M1,
    out=FP32,
    scale=twin.UE8M0,
    block=32,
    group_length=16,
    terms=4,
)
MXFP4_16 = dataclasses.replace(MXFP4, block=16)
NVFP4 = dataclasses.replace(MXFP4_16, scale=twin.UE4M3)
UNITS = [MXFP4, MXFP4_16, NVFP4]


def name(unit: twin.Unit) -> str:
    return f"{'ue4m3' if unit.scale.m else 'ue8m0'}-{unit.block}"


def numbers(unit: twin.Unit) -> tuple[GroupedDot, int]:
    """Return a unit as the kernels want it."""
    dot = GroupedDot(
        group_length=unit.group_length,
        groups=unit.terms,
        fraction_bits=unit.fraction_bits,
        floor=unit.floor,
        p=unit.p,
        emin=unit.out.emin,
        emax=unit.out.emax,
        nearest=unit.nearest,
        scale_bits=unit.scale.bits,
        scale_p=unit.scale.m + 1,
        scale_emin=(1 if unit.scale.m else 0) - unit.scale.bias,
    )
    return dot, unit.block


def both(unit: twin.Unit, a: Any, b: Any, scale: tuple[Any, Any], c: float = 0.0) -> float:
    """Return one dot product of values after the twin and both paths agreed on it; scales are codes."""
    codes_a, codes_b = encode(np.array([a]), unit.a), encode(np.array([b]), unit.b).T
    scale_a, scale_b = np.array([scale[0]], np.uint8), np.array([scale[1]], np.uint8).T
    case = Case(codes_a, codes_b, np.array([[c]], np.float32).view(np.uint32), scale_a, scale_b)
    want = case.expected(unit)
    assert_same_bits(grouped_gemm(*case.values(unit), *numbers(unit)), want)
    assert_same_bits(general_grouped_gemm(*case.values(unit), *numbers(unit)), want)
    return float(want.item())


def test_significands_of_scales_multiply_the_sum() -> None:
    # 0x39 is 1.125, 0x01 the smallest subnormal 2**-9; the sign bit of a scale counts for nothing.
    assert both(NVFP4, [6.0], [6.0], ([0x39], [0x39])) == 36 * 1.125**2
    assert both(NVFP4, [6.0], [-6.0], ([0xB9], [0x01]), c=1.0) == 1 - 36 * 1.125 * 2.0**-9
    assert both(NVFP4, [6.0], [6.0], ([0x00], [0x7E]), c=1.0) == 1.0


def test_a_group_is_summed_before_anything_is_cut() -> None:
    # Each product lies 2**-36 below the accumulator's exponent; two of one group make 2**-35.
    assert both(MXFP4, [1.0], [1.0], ([127 - 36], [127]), c=1.0) == 1.0
    small = [127 - 36 - 23], [127 + 23]
    fours = [1.0] * 2
    a = [6.0] * 4 + [0.0] * 28 + fours
    b = [6.0, -6.0, 6.0, -6.0] + [0.0] * 28 + fours
    assert both(MXFP4, a, b, ([127, *small[0]], [127, *small[1]])) == 2.0**-35
    scales = [127, 127 - 36], [127, 127]
    assert both(MXFP4, [1.0] + [0.0] * 31 + [1.0, 1.0], [1.0] * 34, scales, c=-1.0) == 2.0**-35
    apart = [1.0] + [0.0] * 31 + [1.0] + [0.0] * 15 + [1.0]
    assert both(MXFP4, apart, [1.0] * 49, scales, c=-1.0) == 0.0


def test_subnormal_scales_align_as_the_smallest_normal_one() -> None:
    # 2**-9 * 2**-9 has the exponent -12: what lies 2**-35 below that is kept, although the number is far smaller.
    tiny = 2.0 ** (-12 - 35)
    assert both(NVFP4, [1.0], [1.0], ([0x01], [0x01]), c=tiny) == 2.0**-18 + 2.0**-41 * 0
    assert both(NVFP4, [1.0, -1.0], [1.0, 1.0], ([0x01], [0x01]), c=tiny) == tiny
    exact = [1.0] + [0.0] * 15 + [-1.0], [1.0] * 17
    assert both(NVFP4, *exact, ([0x01, 0x01], [0x01, 0x01]), c=tiny) == tiny
    assert both(NVFP4, *exact, ([0x01, 0x01], [0x01, 0x01]), c=tiny / 2) == 0.0


def test_sums_of_zero_are_no_terms() -> None:
    assert both(MXFP4, [1.0, -1.0], [1.0, 1.0], ([254], [254]), c=2.0**-149) == 2.0**-149
    assert both(NVFP4, [6.0], [6.0], ([0x00], [0x7E]), c=2.0**-149) == 2.0**-149


@pytest.mark.parametrize(("exponent", "want"), [(-168, 0.0), (-169, 2.0**-149)])
def test_alignment_stops_at_the_floor(exponent: int, want: float) -> None:
    # What is taken away from 2**-149 counts down to 2**(-133 - 35) and is cut below, though it is near enough.
    a = [0.5] + [0.0] * 31 + [-0.5]
    assert both(MXFP4, a, [1.0] * 33, ([0, 0], [127 - 21, 127 + 127 + exponent + 1])) == want


def test_results_overflow_and_vanish() -> None:
    assert both(MXFP4, [1.0], [-1.0], ([254], [254])) == -np.inf
    assert both(MXFP4, [-1.0], [1.0], ([0], [0]), c=-0.0) == 0.0
    assert both(MXFP4, [1.0], [1.0], ([0], [105])) == 2.0**-149
    assert both(MXFP4, [2.0, -1.0], [1.0, 1.0], ([254], [127])) == 2.0**127


@pytest.mark.parametrize(("unit", "nan"), [(MXFP4, 0xFF), (NVFP4, 0x7F), (NVFP4, 0xFF)])
def test_a_nan_scale_makes_what_it_scales_nan(unit: twin.Unit, nan: int) -> None:
    zeros, one = [0.0] * (unit.block + 1), unit.scale.bias << unit.scale.m
    for scales in (([nan, one], [one, one]), ([one, one], [one, nan])):
        assert np.isnan(both(unit, zeros, zeros, scales, c=np.inf))


def test_special_accumulators_stay() -> None:
    for unit in UNITS:
        one = unit.scale.bias << unit.scale.m
        assert both(unit, [1.0] * 65, [1.0] * 65, ([one] * (65 // unit.block + 1),) * 2, c=-np.inf) == -np.inf
        assert np.isnan(both(unit, [1.0], [1.0], ([one], [one]), c=np.nan))


@pytest.mark.parametrize("unit", UNITS, ids=name)
def test_kernels_equal_the_twin(unit: twin.Unit) -> None:
    @settings(max_examples=EXAMPLES)
    @given(cases(unit))
    def check(case: Case) -> None:
        want = case.expected(unit)
        assert_same_bits(grouped_gemm(*case.values(unit), *numbers(unit)), want)
        assert_same_bits(general_grouped_gemm(*case.values(unit), *numbers(unit)), want)

    check()


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_units_that_might_have_been_equal_the_twin(data: st.DataObject) -> None:
    group_length = data.draw(st.sampled_from([1, 4, 8, 16, 32, 40]))
    unit = dataclasses.replace(
        data.draw(st.sampled_from(UNITS)),
        group_length=group_length,
        terms=data.draw(st.sampled_from([1, 2, 4, 5, 8])),
        block=group_length * data.draw(st.integers(1, 4)),
        fraction_bits=data.draw(st.integers(1, 46)),
        p=data.draw(st.integers(2, 24)),
        nearest=data.draw(st.integers(0, 3)) == 0,
        floor=data.draw(st.integers(-160, 20)),
    )
    if unit.scale.m:
        scale = data.draw(
            st.sampled_from([twin.UE4M3, twin.Scale(8, 3, 15), twin.Scale(8, 2, 31), twin.Scale(6, 1, 15)])
        )
        unit = dataclasses.replace(unit, scale=scale)
    case = data.draw(cases(unit))
    assert_same_bits(grouped_gemm(*case.values(unit), *numbers(unit)), case.expected(unit))


@pytest.mark.parametrize("architecture", ["blackwell_tcgen05mma", "rtxblackwell_mma"])
def test_results_of_published_models(architecture: str) -> None:
    files = list(published(f"{architecture}_block_scale_*k64-*.npz", TILES))
    assert len(files) == 3
    for meta, found in files:
        scale = {"ue8m0": twin.UE8M0, "ue4m3": twin.UE4M3}[meta["scale_format"]]
        unit = dataclasses.replace(MXFP4, scale=scale, block=meta["block_size"])
        for case, d in found:
            operands = case.values(unit)
            assert_same_bits(grouped_gemm(*operands, *numbers(unit)).view(np.uint32), d)
            assert_same_bits(general_grouped_gemm(*operands, *numbers(unit)).view(np.uint32), d)


def compare_paths(unit: twin.Unit, shape: tuple[int, int, int], kinds: tuple[str, str, str], seed: Any) -> None:
    """Fail unless both paths agree on a product of random matrices."""
    case = random_case(unit, shape, kinds, np.random.default_rng(seed))
    case.a[1 % shape[0]], case.b[:, 2 % shape[2]] = 0, 0  # outputs without a product
    a, b, c, scale_a, scale_b = case.values(unit)
    start = None if kinds[2] == "none" else c
    assert module._panels_hold(numbers(unit)[0])
    got = grouped_gemm(a, b, start, scale_a, scale_b, *numbers(unit))
    assert_same_bits(got, general_grouped_gemm(a, b, start, scale_a, scale_b, *numbers(unit)))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("elements", ELEMENTS)
@pytest.mark.parametrize("unit", UNITS, ids=name)
def test_fast_and_general_paths_agree(unit: twin.Unit, elements: str, scales: str, start: str) -> None:
    shape = SIZE, 3 * 64 + 5, SIZE + 7
    compare_paths(unit, shape, (elements, scales, start), list(f"{elements} {scales} {start}".encode()))


@pytest.mark.long
@pytest.mark.parametrize("unit", UNITS, ids=name)
def test_fast_and_general_paths_agree_on_millions_of_blocks(unit: twin.Unit) -> None:
    for index, kinds in enumerate((e, s, c) for e in ELEMENTS for s in SCALES for c in STARTS):
        compare_paths(unit, (200, 3 * 64, 340), kinds, index)


@pytest.fixture
def many_threads() -> Iterator[None]:
    """Cut work into threads however small it is."""
    before = module._WORK, module._GENERAL_WORK
    module._WORK = module._GENERAL_WORK = 1
    yield
    module._WORK, module._GENERAL_WORK = before


def problem(unit: twin.Unit, shape: tuple[int, int, int]) -> tuple[Array, ...]:
    return random_case(unit, shape, ("any", "close", "special"), np.random.default_rng(shape)).values(unit)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one thread only")
@pytest.mark.parametrize("compute", [grouped_gemm, general_grouped_gemm])
@pytest.mark.usefixtures("many_threads")
def test_the_number_of_threads_changes_nothing(compute: Any) -> None:
    operands = problem(NVFP4, (13, 130, 18))
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        one = compute(*operands, *numbers(NVFP4))
        numba.set_num_threads(2)
        two = compute(*operands, *numbers(NVFP4))
    finally:
        numba.set_num_threads(before)
    assert_same_bits(two, one)


def test_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c, scale_a, scale_b = problem(NVFP4, (70, 128, 100))
    whole = grouped_gemm(a, b, c, scale_a, scale_b, *numbers(NVFP4))
    monkeypatch.setattr(module, "_PANEL", 32)
    assert_same_bits(grouped_gemm(a, b, c, scale_a, scale_b, *numbers(NVFP4)), whole)
    rows, columns = slice(2, 4), slice(37, 60)
    part = a[rows], b[:, columns], c[rows, columns], scale_a[rows], scale_b[:, columns]
    assert_same_bits(grouped_gemm(*part, *numbers(NVFP4)), whole[rows, columns])


@pytest.mark.parametrize("compute", [grouped_gemm, general_grouped_gemm])
def test_strides_and_read_only_arrays_change_nothing(compute: Any) -> None:
    a, b, c, scale_a, scale_b = problem(NVFP4, (7, 70, 11))
    want = compute(a, b, c, scale_a, scale_b, *numbers(NVFP4))
    odd = a[::-1, ::-1].copy()[::-1, ::-1], b.T.copy().T, np.asfortranarray(c), scale_a.T.copy().T
    assert_same_bits(compute(*odd, scale_b[:, ::-1].copy()[:, ::-1], *numbers(NVFP4)), want)
    for x in (a, b, c, scale_a, scale_b):
        x.flags.writeable = False
    assert_same_bits(compute(a, b, c, scale_a, scale_b, *numbers(NVFP4)), want)


@pytest.mark.parametrize("shape", [(0, 5, 3), (3, 5, 0), (3, 0, 2), (0, 0, 0), (1, 1, 1)])
def test_empty_and_tiny_shapes(shape: tuple[int, int, int]) -> None:
    operands = problem(NVFP4, shape)
    got = grouped_gemm(*operands, *numbers(NVFP4))
    assert_same_bits(got, general_grouped_gemm(*operands, *numbers(NVFP4)))
    if shape[1] == 0:
        kept = np.where(np.isnan(operands[2]), np.uint32(0x7FFFFFFF).view(np.float32), operands[2])
        assert_same_bits(got, kept)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="MXCSR is set through Numba, which is disabled")
@pytest.mark.parametrize(
    "state",
    [fpu.FTZ | fpu.DAZ, fpu.ROUND_DOWN, fpu.ROUND_UP, fpu.ROUND_TO_ZERO, fpu.ROUND_UP | fpu.FTZ | fpu.DAZ],
    ids=["FTZ DAZ", "down", "up", "to zero", "up FTZ DAZ"],
)
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("start", ["any", "special"])
def test_the_state_of_the_processor_changes_nothing(start: str, scales: str, state: int) -> None:
    for unit in UNITS:
        case = random_case(unit, (30, 70, 50), ("any", scales, start), np.random.default_rng(state))
        operands = case.values(unit)
        want = grouped_gemm(*operands, *numbers(unit))
        with fpu.mxcsr(fpu.DEFAULT | state):
            got = grouped_gemm(*operands, *numbers(unit))
        assert_same_bits(got, want)
