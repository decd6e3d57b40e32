import dataclasses
import itertools
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mxcsr
from bits import assert_same_bits
from mpsim.encoding import decode, encode
from mpsim.formats import BF16, E4M3, FP16, FP32, FP64, FloatFormat, get_format
from mpsim.rounding import Counters, Overflow, Rounding, round_to
from reference import rounding as twin
from reference.critical import critical_inputs
from reference.samples import (
    FORMATS,
    JIT,
    ML_DTYPES,
    NARROW,
    POLICIES,
    SOURCES,
    floats_about,
    layouts,
    random_floats,
)

OPTIONS = list(itertools.product(twin.MODES, POLICIES, (False, True)))


# Values are codes decoded.


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_values_are_decoded_codes_bit_for_bit(fmt: FloatFormat, source: Any):
    count = 20_000 if JIT else 60
    x = np.concatenate([random_floats(source, count), floats_about(fmt, source, count)])
    if fmt in NARROW and (source is np.float64 or fmt.fits_float32):
        x = np.concatenate([x, critical_inputs(fmt, source, 1 if JIT else max(1, (1 << fmt.bits) // 50)).x])
    for rounding, overflow, flush in OPTIONS:
        got = round_to(x, fmt, rounding, overflow, flush_subnormals=flush)
        want = decode(encode(x, fmt, rounding, overflow, flush_subnormals=flush), fmt).astype(got.dtype)
        assert_same_bits(got, want, x)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_values_are_those_of_the_twin(fmt: FloatFormat, source: Any):
    x = np.concatenate([random_floats(source, 40), floats_about(fmt, source, 60)])
    for rounding, overflow, flush in OPTIONS:
        got = round_to(x, fmt, rounding, overflow, flush_subnormals=flush)
        codes = twin.encode_array(fmt, x.tolist(), rounding, overflow, flush)
        assert_same_bits(got, twin.decode_array(fmt, codes.tolist(), got.dtype), x)


BORDERS = [
    FloatFormat(name="drops one bit", p=23, w=5, bias=15),
    FloatFormat(name="drops none", p=24, w=5, bias=15),
    FloatFormat(name="bias of float32", p=4, w=7, bias=127),
    FloatFormat(name="bias of float32, drops none", p=24, w=7, bias=127),
    FloatFormat(name="bias of float64, drops one bit", p=52, w=10, bias=1023),
]
"""Formats between which the shapes of the loops change."""


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("fmt", BORDERS, ids=str)
def test_codes_and_counts_at_the_borders_of_the_loops_are_those_of_the_twin(fmt: FloatFormat, source: Any):
    x = np.concatenate([random_floats(source, 40), floats_about(fmt, source, 60)])
    for rounding, overflow in itertools.product(twin.MODES, POLICIES):
        counters = Counters()
        got = encode(x, fmt, rounding, overflow, counters=counters)
        assert_same_bits(got, twin.encode_array(fmt, x.tolist(), rounding, overflow), x)
        assert_same_bits(encode(x, fmt, rounding, overflow), got, x)
        assert dataclasses.asdict(counters) == twin.count(fmt, x.tolist(), rounding, overflow)
        values = round_to(x, fmt, rounding, overflow)
        assert_same_bits(values, decode(got, fmt).astype(values.dtype), x)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("fmt", [FP32, FP64], ids=str)
def test_rounding_to_the_format_of_the_source_changes_nothing_but_nans(fmt: FloatFormat, source: Any):
    x = random_floats(np.float32, 5000)
    x = x[~np.isnan(x)].astype(source)
    for rounding in twin.MODES:
        got = round_to(x, fmt, rounding)
        assert_same_bits(got, x.astype(got.dtype), x)


@pytest.mark.parametrize("source", [np.float16, np.bool_, np.float32, *ML_DTYPES.values()])
def test_sources_exact_in_float32_give_float32_where_it_holds_the_format(source: Any):
    x = np.array([1.0, 0.5, 2.0]).astype(source)
    assert round_to(x, "e5m2").dtype == np.float32
    assert round_to(x, FP64).dtype == np.float64
    assert round_to(x, "e9m3").dtype == np.float64


@pytest.mark.parametrize("source", [np.float64, np.int8, np.uint16, np.int32, np.int64, np.uint64])
def test_other_sources_give_float64(source: Any):
    x = np.array([1, 0, 2], dtype=source)
    assert round_to(x, "e5m2").dtype == np.float64
    assert round_to(x, FP64).dtype == np.float64


def test_python_numbers_give_arrays_without_dimensions():
    for x in (1, 2.5, True, np.float32(2.5), np.float64(2.5)):
        got = round_to(x, FP16)
        assert isinstance(got, np.ndarray)
        assert got.shape == ()
        assert float(got) == float(x)


@pytest.mark.parametrize("fmt", [FP16, FP32, E4M3, get_format("e11m44")], ids=str)
def test_integers_are_rounded_once(fmt: FloatFormat):
    numbers = [
        2**53 + 1,
        2**53 + 2,
        2**53 + 3,
        2**62 + 2**38,
        2**62 + 2**38 + 1,
        2**63 - 1,
        -(2**63),
        65519,
        65520,
        464,
        465,
    ]
    x = np.array(numbers, dtype=np.int64)
    for rounding in twin.MODES:
        codes = twin.encode_array(fmt, numbers, rounding)
        assert_same_bits(round_to(x, fmt, rounding), twin.decode_array(fmt, codes.tolist(), np.float64), x)


@pytest.mark.parametrize("dtype", list(ML_DTYPES.values()), ids=lambda dtype: np.dtype(dtype).name)
def test_every_number_of_ml_dtypes_is_rounded_from_its_value(dtype: Any):
    fmt = get_format(dtype)
    codes = np.arange(1 << fmt.bits, dtype=fmt.code_dtype)
    values = decode(codes, fmt)
    assert_same_bits(round_to(codes.view(dtype), "e3m2"), round_to(values, "e3m2"))


# Double rounding, and the shape of things.


@pytest.mark.parametrize(
    ("x", "once", "twice"),
    [
        (1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-10, 1.0),
        (65520 - 2.0**-20, 65504.0, np.inf),
        (2.0**-25 + 2.0**-60, 2.0**-24, 0.0),
    ],
)
def test_float64_does_not_pass_through_float32(x: float, once: float, twice: float):
    assert float(round_to(x, FP16)) == once
    assert float(round_to(np.float32(x), FP16)) == twice
    assert float(np.float64(x).astype(np.float16)) == once


@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64, np.int32, ml_dtypes.bfloat16])
def test_rounding_does_not_depend_on_the_layout_in_memory(source: Any):
    x = (np.arange(35).reshape(5, 7) * 1.37 - 20).astype(source)
    same = layouts(x)
    if source is ml_dtypes.bfloat16:
        del same["other byte order"]  # the type has none
    for name, other in same.items():
        want = round_to(other.astype(x.dtype).copy(order="C"), "e2m3")
        before = other.copy()
        assert_same_bits(round_to(other, "e2m3"), want)
        assert np.array_equal(other, before), name


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4)])
def test_the_shape_stays(shape: tuple[int, ...]):
    assert round_to(np.ones(shape), FP16).shape == shape
    assert round_to(np.ones(shape, np.float32), get_format("e8m0")).shape == shape


@pytest.mark.parametrize("x", [1j, "1.0", ["a"], [None], np.array([{}], dtype=object), np.array(["2020"], "M8[Y]")])
def test_what_is_not_real_is_a_type_error(x: Any):
    with pytest.raises(TypeError, match="x"):
        round_to(x, FP16)


def test_modes_and_policies_are_accepted_as_members_and_strings():
    assert [str(mode) for mode in Rounding] == [*twin.MODES, "stochastic"]
    assert [str(policy) for policy in Overflow] == list(POLICIES)
    for mode in map(Rounding, twin.MODES):
        assert_same_bits(round_to([0.1, 1e9], FP16, mode), round_to([0.1, 1e9], FP16, str(mode)))


@pytest.mark.parametrize(
    ("wrong", "meant"), [("nearest", "nearest-even"), ("rtz", "toward-zero"), ("Up", "up"), (2, "")]
)
def test_an_unknown_mode_lists_the_known_ones(wrong: Any, meant: str):
    with pytest.raises(ValueError, match=rf"(?s)rounding.*{wrong}.*{meant}"):
        round_to(1.0, FP16, rounding=wrong)
    with pytest.raises(ValueError, match=r"(?s)overflow.*ieee.*saturate"):
        round_to(1.0, FP16, overflow=wrong)


# The output array.


def test_out_is_written_and_returned():
    out = np.zeros((2, 2), np.float32)
    x = np.array([[0.1, 1e-9], [70000, -0.0]], dtype=np.float32)
    assert round_to(x, FP16, out=out) is out
    assert_same_bits(out, round_to(x, FP16))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ["fp16", "e8m0", "dlfloat16", "e4m3fnuz"])
def test_out_may_be_the_source(name: str, source: Any):
    x = random_floats(source, 1000)
    want = round_to(x.copy(), name)
    assert round_to(x, name, out=x) is x
    assert_same_bits(x, want)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("shift", [1, -1, 3, -3])
def test_out_may_overlap_the_source(source: Any, shift: int):
    buffer = random_floats(source, 1003)
    low, high = buffer[: -abs(shift)], buffer[abs(shift) :]
    x, out = (low, high) if shift > 0 else (high, low)
    want = round_to(x.copy(), BF16)
    assert_same_bits(round_to(x, BF16, out=out), want)


@pytest.mark.skipif(not JIT, reason="long without the compiler")
def test_codes_may_be_written_into_the_memory_of_their_source():
    # Two codes fit where one float32 was, so ranges worked on side by side would get in each other's way.
    x = random_floats(np.float32, 4_000_000)
    want = encode(x.copy(), FP16)
    assert_same_bits(encode(x, FP16, out=x.view(np.uint16)[: x.size]), want)


@pytest.mark.parametrize(
    ("x", "out", "error"),
    [
        (np.ones(3), np.empty(3, np.float32), TypeError),
        (np.ones(3, np.float32), np.empty(3, np.float64), TypeError),
        (np.ones(3), np.empty(3, ">f8"), TypeError),
        (np.ones(3), np.empty(3, np.uint64), TypeError),
        (np.ones(3), np.empty(4), ValueError),
        (np.ones(3), np.empty((1, 3)), ValueError),
        (np.ones(3), np.empty(6)[::2], ValueError),
        (np.ones(3), np.broadcast_to(1.0, (3,)), ValueError),
    ],
    ids=["narrower", "wider", "byte order", "integers", "longer", "another shape", "strided", "read-only"],
)
def test_an_out_of_another_kind_is_refused(x: np.ndarray, out: np.ndarray, error: type[Exception]):
    with pytest.raises(error, match="out"):
        round_to(x, FP16, out=out)


# Counting.


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_counts_are_those_of_the_twin(fmt: FloatFormat, source: Any):
    x = np.concatenate([random_floats(source, 30), floats_about(fmt, source, 60)])
    with np.errstate(over="ignore"):
        limits = np.array([fmt.max_finite, fmt.min_normal, fmt.min_subnormal]).astype(source)
        x = np.concatenate([x, limits, -limits, limits / 2, limits * source(1.5)])
    for rounding, overflow, flush in OPTIONS:
        want = twin.count(fmt, x.tolist(), rounding, overflow, flush)
        for function in (round_to, encode):
            counters = Counters()
            function(x, fmt, rounding, overflow, flush_subnormals=flush, counters=counters)
            differ = {
                name: (getattr(counters, name), want[name]) for name in want if getattr(counters, name) != want[name]
            }
            assert not differ, f"{rounding}, {overflow}, flush {flush}: (got, should be) {differ}"


def test_each_event_is_counted_where_it_happens():
    counters = Counters()
    #     zero  zero   underflow subnormal inexact exact overflow  infinite NaN
    x = [0.0, -0.0, 1e-9, 2.0**-20, 0.1, 1.5, 70000.0, np.inf, np.nan]
    round_to(x, FP16, counters=counters)
    want = {"elements": 9, "zeros": 2, "underflows": 1, "subnormals": 1, "overflows": 1, "saturations": 0}
    assert dataclasses.asdict(counters) == want | {"inexact": 3, "nans": 1, "nans_made": 0, "infinities": 1}
    counters = Counters()
    round_to(x, E4M3, overflow="saturate", flush_subnormals=True, counters=counters)
    want = {"elements": 9, "zeros": 2, "underflows": 2, "subnormals": 0, "overflows": 1, "saturations": 2}
    assert dataclasses.asdict(counters) == want | {"inexact": 4, "nans": 1, "nans_made": 0, "infinities": 1}
    counters = Counters()
    round_to(x, E4M3, counters=counters)
    assert (counters.nans, counters.nans_made, counters.saturations) == (1, 2, 0)


def test_counters_accumulate_add_and_clear():
    counters = Counters()
    round_to([1e-9, 1.0], FP16, counters=counters)
    encode([1e-9, 0.0], FP16, counters=counters)
    assert (counters.elements, counters.underflows, counters.zeros) == (4, 2, 1)
    other = Counters(elements=6, overflows=1)
    total = counters + other
    assert (total.elements, total.underflows, total.overflows) == (10, 2, 1)
    assert (counters.elements, other.elements) == (4, 6)
    counters += other
    assert counters == total
    assert total.share("underflows") == 0.2
    assert np.isnan(Counters().share("zeros"))
    with pytest.raises(ValueError, match=r"(?s)event.*losses.*underflows"):
        total.share("losses")
    total.clear()
    assert total == Counters()


@pytest.mark.skipif(not JIT, reason="long without the compiler")
def test_counts_and_values_do_not_depend_on_how_ranges_are_cut():
    x = random_floats(np.float32, 1_000_003)
    whole, sum_of_pieces = Counters(), Counters()
    values = round_to(x, E4M3, counters=whole)
    pieces = [round_to(piece, E4M3, counters=sum_of_pieces) for piece in np.array_split(x, 50)]
    assert whole == sum_of_pieces
    assert whole.elements == x.size
    assert_same_bits(values, np.concatenate(pieces), x)


def test_an_empty_array_counts_nothing():
    counters = Counters()
    round_to(np.empty((0, 3)), FP16, counters=counters)
    assert counters == Counters()


# Properties.

formats = st.sampled_from(FORMATS)
modes = st.sampled_from(twin.MODES)
policies = st.sampled_from(POLICIES)


@st.composite
def numbers(draw: st.DrawFn, fmt: FloatFormat) -> float:
    """Draw a float64: any, or one within reach of the format."""
    if draw(st.booleans()):
        return draw(st.floats())
    sig = draw(st.integers(-(1 << (fmt.p + 3)), 1 << (fmt.p + 3)))
    e = draw(st.integers(max(fmt.quantum_exponent - 4, -1074), min(fmt.emax - fmt.p, 960)))
    return float(np.ldexp(float(sig), e))


def value_bits(x: np.ndarray) -> int:
    return int(x.astype(np.float64).view(np.uint64))


@given(st.data(), formats, modes, policies, st.booleans())
def test_rounding_twice_is_rounding_once(data: Any, fmt: FloatFormat, mode: str, policy: str, flush: bool):
    once = round_to(data.draw(numbers(fmt)), fmt, mode, policy, flush_subnormals=flush)
    assert value_bits(round_to(once, fmt, mode, policy, flush_subnormals=flush)) == value_bits(once)
    assert value_bits(round_to(once, fmt)) == value_bits(once) or (np.isinf(once) and fmt.inf_code is None)


@given(st.data(), formats, modes, policies, st.booleans())
def test_rounding_keeps_order(data: Any, fmt: FloatFormat, mode: str, policy: str, flush: bool):
    x, y = sorted(data.draw(numbers(fmt).filter(lambda v: v == v)) for _ in range(2))
    low, high = (
        float(round_to(x, fmt, mode, policy, flush_subnormals=flush)),
        float(round_to(y, fmt, mode, policy, flush_subnormals=flush)),
    )
    assert low <= high or low != low or high != high


@given(st.data(), formats, st.sampled_from(("nearest-even", "nearest-away", "toward-zero", "to-odd")), policies)
def test_rounding_is_odd_where_the_mode_has_no_direction(data: Any, fmt: FloatFormat, mode: str, policy: str):
    x = data.draw(numbers(fmt))
    if fmt.has_negative_zero and x == x:
        assert value_bits(round_to(-x, fmt, mode, policy)) == value_bits(-round_to(x, fmt, mode, policy))


@given(st.data(), formats, policies)
def test_up_and_down_mirror_each_other(data: Any, fmt: FloatFormat, policy: str):
    x = data.draw(numbers(fmt))
    if fmt.has_negative_zero and x == x:
        assert value_bits(round_to(-x, fmt, "down", policy)) == value_bits(-round_to(x, fmt, "up", policy))


@given(st.data(), formats, modes)
def test_a_result_is_one_of_the_two_neighbours_on_the_side_that_the_mode_says(data: Any, fmt: FloatFormat, mode: str):
    x = data.draw(numbers(fmt))
    result = float(round_to(x, fmt, mode))
    if not np.isfinite([x, result]).all() or abs(x) >= fmt.max_finite or (x < 0 and not fmt.signed):
        return
    exact, rounded = Fraction(x), Fraction(result)
    code = twin.below_by_division(fmt, twin.number(x).magnitude)
    pair = [Fraction(twin.magnitude(fmt, c), 1 << twin.SCALE) for c in (code, code + 1)]
    assert abs(rounded) in pair
    if abs(exact) < pair[0]:  # below the smallest number of a format without zero
        return
    match mode:
        case "nearest-even" | "nearest-away":
            assert abs(rounded - exact) == min(abs(abs(exact) - p) for p in pair)
        case "toward-zero":
            assert abs(rounded) <= abs(exact)
        case "up":
            assert rounded >= exact
        case "down":
            assert rounded <= exact


# The processor's floating-point environment.

ENVIRONMENTS = {
    "flush to zero, denormals are zero": mxcsr.DEFAULT | mxcsr.FTZ | mxcsr.DAZ,
    "toward zero": mxcsr.DEFAULT | mxcsr.ROUND_TO_ZERO,
    "up": mxcsr.DEFAULT | mxcsr.ROUND_UP,
    "down, flush to zero": mxcsr.DEFAULT | mxcsr.ROUND_DOWN | mxcsr.FTZ,
}


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
@pytest.mark.parametrize("source", SOURCES)
def test_bits_do_not_depend_on_the_floating_point_environment(source: Any, environment: int):
    def everything(x: np.ndarray, fmt: FloatFormat, rounding: str, overflow: str, flush: bool) -> list[Any]:
        counters = Counters()
        options = {"flush_subnormals": flush, "counters": counters}
        codes = encode(x, fmt, rounding, overflow, **options)
        return [codes, decode(codes, fmt), round_to(x, fmt, rounding, overflow, **options), counters]

    for fmt in FORMATS:
        x = np.concatenate([random_floats(source, 100), floats_about(fmt, source, 100)])
        x = np.concatenate([x, np.finfo(source).smallest_subnormal * np.arange(-20, 20, dtype=source)])
        # A format of another name, so that what is worked out once a format is worked out in there.
        fresh = dataclasses.replace(fmt, name=f"{fmt}, {source.__name__}, {environment:#x}")
        for options in OPTIONS:
            want = everything(x, fmt, *options)
            with mxcsr.mxcsr(environment):
                got = everything(x, fresh, *options)
            assert got[3] == want[3]
            for a, b in zip(got[:3], want[:3], strict=True):
                assert_same_bits(a, b)


def test_the_environment_really_changes():
    least, third = np.array([5e-324]), np.array([1.0]) / 3
    with mxcsr.mxcsr(mxcsr.DEFAULT | mxcsr.DAZ | mxcsr.ROUND_UP):
        flushed, up = least * 1.0, np.array([1.0]) / 3
    assert flushed[0] == 0
    assert up[0] > third[0] == np.array([1.0])[0] / 3
    assert (least * 1.0)[0] > 0
