"""Products of block-scaled matrices: the kernels against the exact twin, recordings and each other."""

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
from mpsim.formats import E2M1, E2M3, E3M2, E4M3, E5M2, FP32, FloatFormat, get_format
from mpsim_kernels import scaled_gemm as module
from mpsim_kernels.fused_dot import FusedDot, Operand
from mpsim_kernels.packing import survey
from mpsim_kernels.scaled_gemm import general_scaled_gemm, scaled_gemm
from mpsim_kernels.words import words
from reference import scaled_dot as twin
from reference.scaled_cases import ELEMENTS, SCALES, STARTS, Case, cases, published, random_case

Array = np.ndarray[Any, Any]

EXAMPLES = 15 if numba.config.DISABLE_JIT else 150
TILES = 1 if numba.config.DISABLE_JIT else None
SIZE = 6 if numba.config.DISABLE_JIT else 60


def blackwell(a: FloatFormat, b: FloatFormat) -> twin.Unit:
    """Return the unit of MXFP8, MXFP6 and MXFP4 in blocks of 32."""
    return twin.Unit(
        fraction_bits=25,
        floor=-133,
        p=24,
        nearest=False,
        a=a,
        b=b,
        out=FP32,
        scale=twin.UE8M0,
        block=32,
        group_length=None,
        terms=32,
    )


UNITS = [
    blackwell(E4M3, E4M3),
    blackwell(E5M2, E5M2),
    blackwell(E4M3, E5M2),
    blackwell(E3M2, E2M1),
    blackwell(E2M3, E4M3),
]


def name(unit: twin.Unit) -> str:
    return f"{unit.a}-{unit.b}"


def numbers(unit: twin.Unit) -> tuple[FusedDot, tuple[Operand, Operand], int]:
    """Return a unit as the kernels want it."""
    dot = FusedDot(unit.terms, unit.fraction_bits, unit.floor, unit.p, unit.out.emin, unit.out.emax, unit.nearest)
    return dot, (Operand(unit.a.p, unit.a.emin), Operand(unit.b.p, unit.b.emin)), unit.block


def general(a: Array, b: Array, c: Array | None, scale_a: Array, scale_b: Array, unit: twin.Unit) -> Array:
    found = [None if x is None else words(x) for x in (a, b, c)]
    return general_scaled_gemm(*found, scale_a, scale_b, *numbers(unit)).view(np.float32)


def on_panels(a: Array, b: Array, unit: twin.Unit) -> bool:
    """Return whether the vectorised path takes these operands."""
    dot, operands, block = numbers(unit)
    seen = (survey(words(x).reshape(-1))[:2] for x in (a, b))
    return module._least_exponent(*seen, operands) is not None and module._panels_hold(dot, operands, block)


def both(unit: twin.Unit, a: Any, b: Any, scale: tuple[Any, Any], c: float = 0.0) -> float:
    """Return one dot product of values after the twin and both paths agreed on it; scales are exponents or codes."""
    codes_a, codes_b = encode(np.array([a]), unit.a), encode(np.array([b]), unit.b).T
    scale_a, scale_b = np.array([scale[0]], np.uint8), np.array([scale[1]], np.uint8).T
    case = Case(codes_a, codes_b, np.array([[c]], np.float32).view(np.uint32), scale_a, scale_b)
    want = case.expected(unit)
    assert_same_bits(scaled_gemm(*case.values(unit), *numbers(unit)), want)
    assert_same_bits(general(*case.values(unit), unit), want)
    return float(want.item())


def test_scales_multiply_products_but_not_the_accumulator() -> None:
    assert both(UNITS[0], [3.0, 1.0], [2.0, 0.5], ([129], [126]), c=1.0) == 6.5 * 4 / 2 + 1


def test_each_block_has_its_own_scales() -> None:
    ones = [1.0] * 33
    assert both(UNITS[0], ones, ones, ([127, 130], [127, 128])) == 32 + 16


def test_scales_reach_beyond_the_result_on_both_sides() -> None:
    assert both(UNITS[1], [1.0], [1.0], ([254], [0])) == 1.0
    assert both(UNITS[1], [1.0], [1.0], ([254], [254])) == np.inf
    assert both(UNITS[1], [-1.0], [1.0], ([254], [128])) == -np.inf
    assert both(UNITS[1], [1.0], [-1.0], ([0], [0]), c=-0.0) == 0.0
    assert both(UNITS[1], [1.0], [1.0], ([0], [105])) == 2.0**-149
    assert both(UNITS[1], [1.0], [1.0], ([0], [104])) == 0.0


def test_a_sum_may_leave_the_range_inside_a_block() -> None:
    assert both(UNITS[1], [1.0, -1.0, 0.5], [1.0, 1.0, 1.0], ([191], [191])) == 2.0**127


@pytest.mark.parametrize(("exponent", "want"), [(-158, 0.0), (-159, 2.0**-149)])
def test_alignment_stops_at_the_floor(exponent: int, want: float) -> None:
    # What is taken away from 2**-149 counts down to 2**(-133 - 25) and is cut below, though it is near enough.
    scaled = exponent + 140
    a, b = [2.0**-9, -(2.0 ** (scaled // 2))], [1.0, 2.0 ** (scaled - scaled // 2)]
    assert both(UNITS[1], a, b, ([0], [114])) == want


def test_fraction_bits_end_where_the_largest_product_says() -> None:
    assert both(UNITS[1], [2.0**12, 2.0**-13, -(2.0**12)], [1.0, 1.0, 1.0], ([127], [127])) == 2.0**-13
    assert both(UNITS[1], [2.0**12, 2.0**-14, -(2.0**12)], [1.0, 1.0, 1.0], ([127], [127])) == 0.0


def test_zero_products_do_not_align_the_others() -> None:
    assert both(UNITS[1], [0.0, 0.0], [2.0**15, -1.0], ([254], [254]), c=2.0**-149) == 2.0**-149


def test_scales_far_above_the_accumulator_do_nothing_to_zeros() -> None:
    # The power of two that would align products passes every exponent of a float32 here, those of specials included.
    for exponent in range(90, 128):
        for c in (1.0, -(2.0**-149), 0.0):
            assert both(UNITS[1], [0.0, -0.0], [1.0, 2.0], ([127 + exponent], [127]), c=c) == c


@pytest.mark.parametrize("side", [0, 1])
def test_a_nan_scale_makes_what_it_scales_nan(side: int) -> None:
    scales = ([255, 127], [127, 127])[:: 1 - 2 * side]
    assert np.isnan(both(UNITS[0], [0.0] * 33, [0.0] * 33, scales, c=np.inf))
    assert np.isnan(both(UNITS[0], [1.0] * 33, [0.0] * 33, tuple(x[::-1] for x in scales)))


def test_infinities_and_the_one_nan() -> None:
    unit, inf, ones = UNITS[1], np.inf, ([127], [127])
    assert both(unit, [inf], [1.0], ones) == inf
    assert both(unit, [inf], [-1.0], ones, c=1.0) == -inf
    assert both(unit, [inf, 1.0], [1.0, -inf], ones) != both(unit, [inf, -1.0], [1.0, -inf], ones) == inf
    assert np.isnan(both(unit, [inf], [0.0], ones))
    assert np.isnan(both(unit, [0.0], [-inf], ones))
    assert np.isnan(both(unit, [inf], [-1.0], ones, c=inf))
    assert np.isnan(both(unit, [np.nan], [0.0], ones))
    assert both(unit, [1.0], [1.0], ones, c=-inf) == -inf


def test_an_overflow_meets_an_infinity_in_a_later_block_only() -> None:
    unit, inf = UNITS[1], np.inf
    big, none = [1.0] + [0.0] * 31, [0.0] * 31
    scales = [254, 127], [254, 127]
    assert np.isnan(both(unit, [*big, -inf], [1.0] * 33, scales))
    assert both(unit, [-inf, *none, 1.0], [1.0] * 33, tuple(x[::-1] for x in scales)) == -inf
    assert both(unit, [1.0, -inf, *none], [1.0] * 33, scales) == -inf


@pytest.mark.parametrize("unit", UNITS, ids=name)
def test_kernels_equal_the_twin(unit: twin.Unit) -> None:
    @settings(max_examples=EXAMPLES)
    @given(cases(unit))
    def check(case: Case) -> None:
        want = case.expected(unit)
        assert_same_bits(scaled_gemm(*case.values(unit), *numbers(unit)), want)
        assert_same_bits(general(*case.values(unit), unit), want)

    check()


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_units_that_might_have_been_equal_the_twin(data: st.DataObject) -> None:
    unit = dataclasses.replace(
        data.draw(st.sampled_from(UNITS)),
        terms=data.draw(st.sampled_from([1, 3, 8, 16, 32, 48, 64])),
        block=data.draw(st.sampled_from([8, 16, 32, 64])),
        fraction_bits=data.draw(st.integers(1, 46)),
        p=data.draw(st.integers(2, 24)),
        nearest=data.draw(st.booleans()),
        floor=data.draw(st.integers(-160, 20)),
    )
    case = data.draw(cases(unit))
    assert_same_bits(scaled_gemm(*case.values(unit), *numbers(unit)), case.expected(unit))


@pytest.mark.parametrize("architecture", ["blackwell_tcgen05mma", "rtxblackwell_mma"])
def test_results_of_published_models(architecture: str) -> None:
    files = list(published(f"{architecture}_block_scale_*k32-block32*.npz", TILES))
    assert len(files) == 4
    for meta, found in files:
        unit = blackwell(get_format(meta["a_format"]), get_format(meta["b_format"]))
        for case, d in found:
            operands = case.values(unit)
            assert_same_bits(scaled_gemm(*operands, *numbers(unit)).view(np.uint32), d)
            assert_same_bits(general(*operands, unit).view(np.uint32), d)


def compare_paths(unit: twin.Unit, shape: tuple[int, int, int], kinds: tuple[str, str, str], seed: Any) -> None:
    """Fail unless both paths agree on a product of random matrices."""
    case = random_case(unit, shape, kinds, np.random.default_rng(seed))
    case.a[1 % shape[0]], case.b[:, 2 % shape[2]] = 0, 0  # outputs without a product
    a, b, c, scale_a, scale_b = case.values(unit)
    start = None if kinds[2] == "none" else c
    assert on_panels(a, b, unit)
    got = scaled_gemm(a, b, start, scale_a, scale_b, *numbers(unit))
    assert_same_bits(got, general(a, b, start, scale_a, scale_b, unit))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("elements", ELEMENTS)
@pytest.mark.parametrize("unit", UNITS[:3], ids=name)
def test_fast_and_general_paths_agree(unit: twin.Unit, elements: str, scales: str, start: str) -> None:
    shape = SIZE, 3 * 32 + 5, SIZE + 7
    compare_paths(unit, shape, (elements, scales, start), list(f"{elements} {scales} {start}".encode()))


@pytest.mark.long
@pytest.mark.parametrize("unit", UNITS, ids=name)
def test_fast_and_general_paths_agree_on_a_million_blocks_of_each_kind(unit: twin.Unit) -> None:
    for index, kinds in enumerate((e, s, c) for e in ELEMENTS for s in SCALES for c in STARTS):
        compare_paths(unit, (200, 3 * 32, 340), kinds, index)
    for seed in range(10):
        compare_paths(unit, (260, 3 * 32, 1300), ("any", "close", "close"), 1000 + seed)


@pytest.fixture
def many_threads() -> Iterator[None]:
    """Cut work into threads however small it is."""
    before = module._WORK, module._GENERAL_WORK
    module._WORK = module._GENERAL_WORK = 1
    yield
    module._WORK, module._GENERAL_WORK = before


def problem(unit: twin.Unit, shape: tuple[int, int, int], elements: str = "special") -> tuple[Array, ...]:
    return random_case(unit, shape, (elements, "any", "special"), np.random.default_rng(shape)).values(unit)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one thread only")
@pytest.mark.parametrize("compute", [lambda *x: scaled_gemm(*x, *numbers(UNITS[1])), lambda *x: general(*x, UNITS[1])])
@pytest.mark.usefixtures("many_threads")
def test_the_number_of_threads_changes_nothing(compute: Any) -> None:
    operands = problem(UNITS[1], (13, 70, 18))
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        one = compute(*operands)
        numba.set_num_threads(2)
        two = compute(*operands)
    finally:
        numba.set_num_threads(before)
    assert_same_bits(two, one)


def test_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c, scale_a, scale_b = problem(UNITS[1], (70, 64, 100))
    whole = scaled_gemm(a, b, c, scale_a, scale_b, *numbers(UNITS[1]))
    monkeypatch.setattr(module, "_PANEL", 32)
    assert_same_bits(scaled_gemm(a, b, c, scale_a, scale_b, *numbers(UNITS[1])), whole)
    rows, columns = slice(2, 4), slice(37, 60)
    part = a[rows], b[:, columns], c[rows, columns], scale_a[rows], scale_b[:, columns]
    assert_same_bits(scaled_gemm(*part, *numbers(UNITS[1])), whole[rows, columns])


def test_strides_and_read_only_arrays_change_nothing() -> None:
    a, b, c, scale_a, scale_b = problem(UNITS[1], (7, 70, 11))
    want = scaled_gemm(a, b, c, scale_a, scale_b, *numbers(UNITS[1]))
    odd = a[::-1, ::-1].copy()[::-1, ::-1], b.T.copy().T, np.asfortranarray(c), scale_a.T.copy().T, scale_b[:, ::-1]
    assert_same_bits(scaled_gemm(*odd[:4], odd[4].copy()[:, ::-1], *numbers(UNITS[1])), want)
    for x in (a, b, c, scale_a, scale_b):
        x.flags.writeable = False
    assert_same_bits(scaled_gemm(a, b, c, scale_a, scale_b, *numbers(UNITS[1])), want)
    assert_same_bits(general(a, b, c, scale_a, scale_b, UNITS[1]), want)


@pytest.mark.parametrize("shape", [(0, 5, 3), (3, 5, 0), (3, 0, 2), (0, 0, 0), (1, 1, 1)])
def test_empty_and_tiny_shapes(shape: tuple[int, int, int]) -> None:
    operands = problem(UNITS[0], shape, "close")
    got = scaled_gemm(*operands, *numbers(UNITS[0]))
    assert_same_bits(got, general(*operands, UNITS[0]))
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
def test_the_state_of_the_processor_changes_nothing(scales: str, state: int) -> None:
    for unit in UNITS[:2]:
        for elements in ("any", "close", "special"):
            case = random_case(unit, (30, 70, 50), (elements, scales, "special"), np.random.default_rng(state))
            operands = case.values(unit)
            want = scaled_gemm(*operands, *numbers(unit))
            with fpu.mxcsr(fpu.DEFAULT | state):
                got = scaled_gemm(*operands, *numbers(unit))
            assert_same_bits(got, want)
