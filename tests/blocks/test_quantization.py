import itertools
from dataclasses import replace
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bits import assert_same_bits
from mpsim import blocks
from mpsim.blocks import (
    BLOCK_CATALOGUE,
    MXFP4,
    MXFP8_E4M3,
    MXINT8,
    NVFP4,
    RECIPES,
    BlockCounters,
    BlockFormat,
    IntElement,
    ScaleRecipe,
    ScaleRule,
    dequantize,
    element_scales,
    quantization,
    quantize,
    quotients,
)
from mpsim.formats import BF16, E4M3, E4M3FNUZ, UE4M3, FloatFormat, Specials
from mxcsr import DAZ, DEFAULT, FTZ, ROUND_DOWN, ROUND_TO_ZERO, ROUND_UP, mxcsr
from reference import blocks as reference
from reference import rounding as twin
from reference.samples import JIT, layouts

POWER = [fmt for fmt in BLOCK_CATALOGUE if fmt.has_power_scales]
VARIANTS = [
    *RECIPES.values(),
    replace(RECIPES["division"], name="inverse", times_inverse=True),
    replace(RECIPES["torchao"], name="upward", rounding="up", least="subnormal"),
    replace(RECIPES["transformer-engine"], name="reciprocal", times_encode=False, times_inverse=True),
    replace(RECIPES["four-over-six"], name="four-over-six-mae", four_over_six="mae", largest_scale=None),
    replace(RECIPES["torchao"], name="four-over-six-max", four_over_six="max", rounding="up"),
    replace(RECIPES["division"], name="four-over-six-inverse", four_over_six="mse", times_inverse=True),
]
WHAT_IFS = [
    replace(MXFP4, name="mxfp4-16", length=16),
    replace(MXFP8_E4M3, name="mxfp8-5", length=5),
    replace(MXFP8_E4M3, name="fnuz", element=E4M3FNUZ),
    replace(MXFP8_E4M3, name="mxbf16", element=BF16),
    replace(MXFP4, name="e3m0", element=FloatFormat(name="e3m0", p=1, w=3, bias=3, specials=Specials.NONE, nan_to=7)),
    replace(MXINT8, name="mxint6", element=IntElement(name="int6", bits=6, fraction_bits=4)),
    replace(MXINT8, name="mxint4", element=IntElement(name="int4", bits=4, fraction_bits=2, symmetric=False)),
    replace(MXFP8_E4M3, name="e4m3-ue4m3", scale=UE4M3),
    replace(NVFP4, name="nvfp4-signed", scale=E4M3),
    replace(NVFP4, name="int8-ue4m3", element=MXINT8.element),
]
PAIRS = [(fmt, rule) for fmt in BLOCK_CATALOGUE for rule in (ScaleRule if fmt.has_power_scales else VARIANTS)]
PAIRS += [
    (fmt, rule)
    for fmt in WHAT_IFS
    for rule in ((ScaleRule.EVEN, ScaleRule.NEAREST) if fmt.has_power_scales else (VARIANTS[0], VARIANTS[2]))
]
SOURCES = (np.float32, np.float64)


def pair_name(value: Any) -> str:
    return getattr(value, "name", str(value)) if not isinstance(value, ScaleRule) else value.value


EDGES = (-1074, -149, -140, -135, -130, -127, -126, -121, -119, -64, -9, 0, 1, 8, 60, 119, 127, 1023)
"""Exponents at which some range begins or ends."""


def critical_blocks(fmt: BlockFormat, dtype: type[np.floating], count: int, seed: int = 0) -> np.ndarray:
    """Return blocks whose amax lies where rules change their mind, and whose elements lie where rounding does."""
    rng = np.random.default_rng(seed)
    least, most = (-149, 127) if dtype is np.float32 else (-1074, 1023)
    exponents = [e for e in EDGES if least <= e <= most] + list(range(-3, 4))
    emax, bits = fmt.emax_element, reference.fraction_bits(fmt)
    top = float(fmt.max_element) / 2.0**emax
    half = 2.0 ** -(bits + 1)
    significands = [1.0, top, 2 - half, 2 - 2 * half, 1.5, 1.5 - half, 1.75, 2**0.5, top / 2**0.5, top * 2**0.5 / 2]
    rows = np.zeros((count, fmt.length), dtype)
    for row in rows:
        amax = dtype(np.ldexp(rng.choice(significands), rng.choice(exponents)))
        for _ in range(rng.integers(0, 3)):
            amax = np.nextafter(amax, dtype(rng.choice([0.0, 4.0]))) if amax else np.finfo(dtype).smallest_subnormal
        exponent = int(np.frexp(amax)[1])
        with np.errstate(over="ignore", under="ignore"):
            # Short numbers, which are elements and midpoints of them under any power-of-two scale near that of the
            # block, or of amax / 6 in a block of FP4.
            short = rng.integers(0, 1 << (bits + 2), row.size) * rng.choice([1.0, float(np.frexp(amax)[0]) / 3])
            x = np.ldexp(short, exponent - bits - 2 - rng.integers(0, 8, row.size)).astype(dtype)
            long = (rng.random(row.size) * float(amax)).astype(dtype)
        x = np.where(rng.random(row.size) < 0.3, long, x)
        nudge = rng.integers(-1, 2, row.size)
        x = np.where(nudge < 0, np.nextafter(x, dtype(0)), np.where(nudge > 0, np.nextafter(x, dtype(4)), x))
        row[:] = np.minimum(x, amax) * rng.choice([-1, 1], row.size)
        row[rng.integers(row.size)] = amax * rng.choice([-1, 1])
    rows[0] = 0
    rows[1] = -0.0
    rows[2, -1] = np.nan
    rows[3, 0], rows[3, -1] = -np.inf, np.nan
    rows[4, fmt.length // 2] = np.inf
    return rows


def check_rows(fmt: BlockFormat, x: np.ndarray, rule: Any, mode: str, overflow: str, **options: Any) -> None:
    """Compare codes, scales and values with the twin, and with the path that counts."""
    codes, scales, tensor = reference.quantize_rows(fmt, x, rule, mode, overflow, **options)
    counters = BlockCounters()
    for seen in (None, counters):
        q = quantize(x, fmt, -1, rule, mode, overflow, counters=seen, **options)
        assert_same_bits(q.scales, scales)
        assert_same_bits(q.codes, codes, x)
        assert q.tensor_scale == tensor
    assert counters.blocks == scales.size
    assert counters.elements.elements == x.size


# Against the twin.


@pytest.mark.parametrize(("fmt", "rule"), PAIRS, ids=pair_name)
def test_quotients_are_what_elements_were_rounded_from(fmt: BlockFormat, rule: Any):
    count = (60 if JIT else 10) // fmt.length + 4
    x = critical_blocks(fmt, np.float32, count, seed=3)
    q = quantize(x, fmt, -1, rule)
    got, scales, tensor = quotients(x, q, rule), element_scales(q), Fraction(q.tensor_scale)
    recipe = rule if isinstance(rule, ScaleRecipe) else None
    for place, number in np.ndenumerate(x):
        code = int(q.scales[place[0], place[1] // fmt.length])
        scale = reference.scale_value(fmt, code)
        if scale is None:
            assert np.isnan(got[place])
            assert np.isnan(scales[place])
            continue
        assert scales[place] == scale
        want = reference.divided(recipe, abs(Fraction(float(number))), scale, tensor) if number else Fraction(0)
        quotient = abs(float(got[place]))
        assert np.signbit(got[place]) == np.signbit(number)
        if want == reference.TINY:  # it vanished, and is only known not to be zero
            assert 0 < quotient < 2.0**-500
        elif Fraction(quotient) != want:  # more than 53 bits, rounded to odd
            assert int(np.float64(quotient).view(np.uint64)) % 2 == 1
            assert min(np.nextafter(quotient, 0), quotient) < want < np.nextafter(quotient, np.inf)
    for axis in (0, 1):
        turned = np.ascontiguousarray(x[:7, :9])
        along = quantize(turned, fmt, axis, rule)
        other = quantize(np.ascontiguousarray(turned.T), fmt, 1 - axis, rule)
        assert_same_bits(quotients(turned, along, rule), np.ascontiguousarray(quotients(turned.T, other, rule).T))
        assert_same_bits(element_scales(along), np.ascontiguousarray(element_scales(other).T))
    with pytest.raises(ValueError, match=r"x is \(3,\), q is"):
        quotients(np.zeros(3, np.float32), q, rule)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("fmt", "rule"), PAIRS, ids=pair_name)
def test_critical_blocks_are_quantised_as_the_twin_says(fmt: BlockFormat, rule: Any, source: Any, monkeypatch: Any):
    monkeypatch.setattr(quantization, "_TABLES_FROM", 0 if JIT else 1 << 15)
    count = (200 if JIT else 30) // fmt.length + 8
    modes = [*zip(itertools.cycle(("saturate", "ieee")), twin.MODES), ("ieee", "nearest-even")]
    for overflow, mode in modes:
        x = critical_blocks(fmt, source, 4 * count if mode == "nearest-even" and JIT else count, seed=len(mode))
        check_rows(fmt, x, rule, mode, overflow)


def float_words(dtype: type[np.floating]) -> st.SearchStrategy[float]:
    width = 32 if dtype is np.float32 else 64
    return st.floats(width=width) | st.floats(width=width, min_value=-1000.0, max_value=1000.0)


@settings(max_examples=100 if JIT else 20)
@given(st.data())
def test_any_block_is_quantised_as_the_twin_says(data: st.DataObject):
    fmt, rule = data.draw(st.sampled_from(PAIRS))
    source = data.draw(st.sampled_from(SOURCES))
    numbers = data.draw(st.lists(float_words(source), min_size=1, max_size=2 * fmt.length + 3))
    mode, overflow = data.draw(st.sampled_from(twin.MODES)), data.draw(st.sampled_from(["saturate", "ieee"]))
    check_rows(fmt, np.array([numbers], dtype=source), rule, mode, overflow)


@pytest.mark.parametrize("rule", VARIANTS, ids=pair_name)
@pytest.mark.parametrize("tensor_scale", [1.0, 0.37, 2.0**-149, 2.0**-140 * 3, 2.0**100, 3e-5])
def test_a_tensor_scale_that_is_given_is_used(rule: ScaleRecipe, tensor_scale: float, monkeypatch: Any):
    monkeypatch.setattr(quantization, "_TABLES_FROM", 0 if JIT else 1 << 15)
    x = critical_blocks(NVFP4, np.float32, 40)
    rng = np.random.default_rng(1)
    x[10:] = rng.standard_normal((30, 16)) * rng.choice([1.0, 5.0, 400.0, 2600.0, 3000.0], (30, 1)) * tensor_scale
    check_rows(NVFP4, x, rule, "nearest-even", "saturate", tensor_scale=tensor_scale)


@pytest.mark.parametrize("rule", VARIANTS, ids=pair_name)
def test_the_tables_of_the_fast_kernel_give_what_rounding_quotients_gives(rule: ScaleRecipe, monkeypatch: Any):
    monkeypatch.setattr(quantization, "_TABLES_FROM", 0)
    count = 1 << 18 if JIT else 1 << 10
    rng = np.random.default_rng(5)
    x = rng.standard_normal(count, dtype=np.float32) * np.exp2(rng.integers(-9, 9, count // 16)).repeat(16).astype(
        np.float32
    )
    fast, slow = quantize(x, NVFP4, scale_rule=rule), quantize(x, NVFP4, scale_rule=rule, counters=BlockCounters())
    assert_same_bits(fast.scales, slow.scales)
    assert_same_bits(fast.codes, slow.codes, x)


@pytest.mark.parametrize("fmt", POWER, ids=str)
@pytest.mark.parametrize("rule", ScaleRule)
def test_the_fast_kernel_gives_what_rounding_quotients_gives(fmt: BlockFormat, rule: ScaleRule):
    words = np.random.default_rng(6).integers(0, 1 << 32, 1 << 18 if JIT else 1 << 11, dtype=np.uint32)
    # All exponents, but the same within a block, give or take some.
    exponents = np.random.default_rng(7).integers(0, 255, words.size // 32, dtype=np.uint32).repeat(32)
    exponents = np.maximum(exponents, words >> 28) - (words >> 28)
    x = ((words & 0x807FFFFF) | (exponents << 23)).view(np.float32)
    fast, slow = quantize(x, fmt, scale_rule=rule), quantize(x, fmt, scale_rule=rule, counters=BlockCounters())
    assert_same_bits(fast.scales, slow.scales)
    assert_same_bits(fast.codes, slow.codes, x)


@pytest.mark.parametrize("dtype", SOURCES)
@pytest.mark.parametrize("fmt", [*BLOCK_CATALOGUE, *WHAT_IFS], ids=str)
def test_every_code_under_every_scale_has_the_value_of_the_twin(fmt: BlockFormat, dtype: Any):
    tensor = 3 * 2.0**-140 if fmt.tensor_scale else 1.0
    bits = fmt.element.bits
    codes = np.arange(1 << bits, dtype=fmt.element.code_dtype)[:: 1 if bits <= 8 else 997]
    codes = np.resize(codes, (256, -(-codes.size // fmt.length) * fmt.length))
    scales = np.arange(256, dtype=np.uint8).repeat(codes.shape[1] // fmt.length).reshape(256, -1)
    if fmt.scale.signed:
        codes, scales = codes[:127], scales[:127]
    q = blocks.BlockArray(format=fmt, codes=codes, scales=scales, axis=1, tensor_scale=tensor)
    got = dequantize(q, dtype)
    for i in {*range(0, len(codes), 9 if JIT else 29), 1, 2, 126, len(codes) - 2, len(codes) - 1}:
        row = [reference.value(fmt, code, i, Fraction(tensor), dtype) for code in codes[i].tolist()]
        assert_same_bits(got[i], np.array(row, dtype))


@pytest.mark.parametrize(("fmt", "rule"), PAIRS, ids=pair_name)
def test_events_are_counted_as_the_twin_sees_them(fmt: BlockFormat, rule: Any):
    x = critical_blocks(fmt, np.float32, 40, seed=3)
    counters = BlockCounters()
    q = quantize(x, fmt, -1, rule, counters=counters)
    seen = []
    for row in x.tolist():
        tensor, encode = Fraction(1), Fraction(1)
        if isinstance(rule, ScaleRecipe):
            amax = max(abs(Fraction(v)) for v in x.reshape(-1).tolist() if np.isfinite(v))
            tensor, encode = reference.tensor_scales(fmt, rule, amax)
        seen.append(reference.quantize_block(fmt, row, rule, tensor=tensor, encode=encode))
    for name in ("zero_blocks", "nan_blocks", "scales_saturated", "scales_underflowed"):
        assert getattr(counters, name) == sum(name in block.events for block in seen), name
    nan = twin.nan(fmt.scale, False)
    finite = (q.scales != nan).repeat(fmt.length, axis=1)
    assert counters.elements.nans == np.count_nonzero(~finite)
    assert counters.elements.zeros == np.count_nonzero(finite & (x == 0))
    values = q.dequantize(np.float64)
    if not isinstance(rule, ScaleRecipe) or rule.quotients == "exact":
        lost = finite & (x != 0) & (q.codes & 0x7F == 0)
        if fmt.element.bits == 8 and fmt.element is not E4M3FNUZ:
            assert counters.elements.underflows == np.count_nonzero(lost)
        if fmt.has_power_scales:
            assert counters.elements.inexact == np.count_nonzero(finite & (values != x))


def test_all_zero_tensors_have_the_tensor_scale_one():
    for recipe in VARIANTS:
        q = quantize(np.zeros(16, np.float32), NVFP4, scale_rule=recipe)
        assert q.tensor_scale == 1.0
        assert not q.dequantize().any()


# There and back.


@pytest.mark.parametrize("fmt", POWER, ids=str)
def test_values_whose_scale_is_canonical_survive_another_quantisation(fmt: BlockFormat):
    # Canonical under "floor": the largest element of the block lies in the top binade of the element format.
    every = _finite_codes(fmt)
    top = every[abs(_values(fmt, every)) >= 2.0**fmt.emax_element]
    rng = np.random.default_rng(3)
    codes = rng.choice(every, (255, fmt.length)).astype(np.uint8)
    codes[:, 7] = np.resize(top, 255)
    scales = np.arange(255, dtype=np.uint8)[:, None]
    q = blocks.BlockArray(format=fmt, codes=codes, scales=scales, axis=1)
    again = quantize(q.dequantize(np.float64), fmt)
    assert_same_bits(again.scales, scales)
    assert_same_bits(again.codes, codes)
    in_range = np.isfinite(q.dequantize()).all(axis=1) & (scales[:, 0] >= 40)
    in_float32 = quantize(q.dequantize()[in_range], fmt)
    assert_same_bits(in_float32.codes, codes[in_range])
    assert_same_bits(in_float32.scales, scales[in_range])


@pytest.mark.parametrize("rule", ["floor", "even", "rceil", "ceil"])
@pytest.mark.parametrize("fmt", POWER, ids=str)
def test_rounding_again_changes_nothing(fmt: BlockFormat, rule: str):
    x = np.random.default_rng(8).standard_normal((64, fmt.length))
    once = blocks.round_to(x, fmt, scale_rule=rule)
    assert_same_bits(blocks.round_to(once, fmt, scale_rule=rule), once)


def test_nvfp4_values_survive_where_the_block_reaches_six():
    rng = np.random.default_rng(9)
    scales = np.arange(1, 127, dtype=np.uint8)[:, None]
    codes = rng.integers(0, 16, (126, 16), dtype=np.uint8)
    codes[:, 3] = 7
    q = blocks.BlockArray(format=NVFP4, codes=codes, scales=scales, axis=1)
    again = quantize(q.dequantize(), NVFP4, tensor_scale=1.0)
    assert_same_bits(again.scales, scales)
    assert_same_bits(again.codes, codes)


def _finite_codes(fmt: BlockFormat) -> np.ndarray:
    codes = np.arange(1 << fmt.element.bits, dtype=np.uint8)
    if isinstance(fmt.element, IntElement):
        return codes[codes != 128]
    return codes[np.isfinite(_values(fmt, codes))]


def _values(fmt: BlockFormat, codes: np.ndarray) -> np.ndarray:
    padded = np.resize(codes, (-(-codes.size // 32), 32))
    scales = np.full((len(padded), 1), 127, np.uint8)
    return blocks.BlockArray(format=fmt, codes=padded, scales=scales, axis=1).dequantize().reshape(-1)[: codes.size]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("fmt", BLOCK_CATALOGUE, ids=str)
def test_round_to_is_quantise_and_dequantise(fmt: BlockFormat, source: Any):
    x = np.random.default_rng(4).standard_normal((5, 70)).astype(source)
    for rule in fmt.rules:
        want = quantize(x, fmt, scale_rule=rule).dequantize(source)
        assert_same_bits(blocks.round_to(x, fmt, scale_rule=rule), want)
    out = x.copy()
    assert blocks.round_to(out, fmt, scale_rule=fmt.rules[0], out=out) is out
    assert_same_bits(out, blocks.round_to(x, fmt))


def test_stochastic_rounding_takes_neighbours_and_is_right_on_average():
    x = np.full((2000 if JIT else 100, 32), 1.0625, np.float32)  # half-way between 1 and 1.125
    x[:, 1] = 256.0
    values = blocks.round_to(x, "mxfp8_e4m3", rounding="stochastic", rng=7)
    assert set(np.unique(values)) == {1.0, 1.125, 256.0}
    assert abs(np.mean(values[:, 2:] == 1.0) - 0.5) < 4 * 0.5 / (len(x) * 30) ** 0.5
    turned = blocks.round_to(np.ascontiguousarray(x.T), "mxfp8_e4m3", 0, rounding="stochastic", rng=7)
    assert set(np.unique(turned)) == {1.0, 1.125, 256.0}
    square = np.random.default_rng(0).random((32, 32), dtype=np.float32)
    # Draws go by the place in the array: with one scale for all, the axis makes no difference.
    square[range(32), range(32)] = 1.0
    rows, columns = (quantize(square, "mxfp4", axis, rounding="stochastic", rng=3) for axis in (1, 0))
    assert_same_bits(rows.codes, columns.codes)


# Layouts.


@pytest.mark.parametrize("fmt", [MXFP8_E4M3, NVFP4, WHAT_IFS[1]], ids=str)
@pytest.mark.parametrize(
    "shape", [(70,), (3, 70), (70, 3), (2, 35, 5), (64, 300) if JIT else (20, 7), (1, 1), (33, 1, 2)]
)
def test_every_axis_gives_what_moving_it_to_the_end_gives(fmt: BlockFormat, shape: tuple[int, ...]):
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    for source in (x, x.astype(np.float64)):
        for axis in range(-len(shape), len(shape)):
            counters, q = BlockCounters(), quantize(source, fmt, axis)
            moved = quantize(np.moveaxis(source, axis, -1), fmt, counters=counters)
            assert_same_bits(q.codes, np.moveaxis(moved.codes, -1, axis))
            assert_same_bits(q.scales, np.moveaxis(moved.scales, -1, axis))
            assert_same_bits(q.dequantize(), np.moveaxis(moved.dequantize(), -1, axis))
            assert q.axis == axis % len(shape)
            again = BlockCounters()
            quantize(source, fmt, axis, counters=again)
            assert again == counters


@pytest.mark.parametrize("fmt", [MXFP8_E4M3, NVFP4, MXINT8], ids=str)
def test_memory_layout_makes_no_difference(fmt: BlockFormat):
    x = np.random.default_rng(6).standard_normal((20, 50)).astype(np.float32)
    for source in (x, x.astype(np.float64)):
        for laid_out in layouts(source).values():
            plain = np.array(laid_out, dtype=source.dtype)
            for axis in (0, 1):
                q, want = quantize(laid_out, fmt, axis), quantize(plain, fmt, axis)
                assert_same_bits(q.codes, want.codes)
                assert_same_bits(q.scales, want.scales)


def test_a_short_last_block_is_a_block_of_its_own():
    x = np.arange(1, 41, dtype=np.float32)
    whole, tail = quantize(x, "mxfp8_e4m3"), quantize(x[32:], "mxfp8_e4m3")
    assert whole.scales.shape == (2,)
    assert_same_bits(whole.codes[32:], tail.codes)
    assert_same_bits(whole.scales[1:], tail.scales)
    assert whole.scales[0] == quantize(x[:32], "mxfp8_e4m3").scales[0]


@pytest.mark.parametrize(
    ("shape", "axis", "scales"),
    [((0,), 0, (0,)), ((3, 0), 1, (3, 0)), ((0, 64), 1, (0, 2)), ((0, 64), 0, (0, 64)), ((2, 0, 3), 2, (2, 0, 1))],
)
def test_empty_arrays_stay_empty(shape: tuple[int, ...], axis: int, scales: tuple[int, ...]):
    for fmt in BLOCK_CATALOGUE:
        counters = BlockCounters()
        length = fmt.length
        q = quantize(np.zeros(shape, np.float32), fmt, axis, counters=counters)
        want = list(scales)
        want[axis] = -(-shape[axis] // length)
        assert q.shape == shape
        assert q.scales.shape == tuple(want)
        assert q.dequantize().shape == shape
        assert counters == BlockCounters()
        assert quantize(np.zeros(shape, np.float32), fmt, axis).codes.size == 0


def test_many_threads_give_the_same_as_one(monkeypatch: Any):
    x = np.random.default_rng(7).standard_normal((513, 300 if JIT else 7)).astype(np.float32)
    want = {}
    for fmt in (MXFP8_E4M3, NVFP4):
        want[fmt.name] = quantize(x, fmt).codes, quantize(x, fmt, 0).codes
    monkeypatch.setattr(quantization, "_RANGE", 1 << 9)
    monkeypatch.setattr(quantization, "_CHUNK", 1 << 11)
    for fmt in (MXFP8_E4M3, NVFP4):
        for axis, codes in zip((1, 0), want[fmt.name], strict=True):
            assert_same_bits(quantize(x, fmt, axis).codes, codes)
            counters = BlockCounters()
            assert_same_bits(quantize(x, fmt, axis, counters=counters).codes, codes)
            assert counters.elements.elements == x.size


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int8, np.int64, bool])
def test_other_dtypes_are_read_exactly(dtype: Any):
    x = np.arange(-20, 60).astype(dtype)
    for fmt in (MXFP8_E4M3, NVFP4):
        assert_same_bits(quantize(x, fmt).codes, quantize(x.astype(np.float64), fmt).codes)


def test_out_is_written_and_shared():
    x = np.random.default_rng(1).standard_normal((4, 64), dtype=np.float32)
    out = quantize(np.zeros_like(x), "mxfp8_e4m3")
    q = quantize(x, "mxfp8_e4m3", out=out)
    assert q.codes is out.codes
    assert q.scales is out.scales
    assert_same_bits(out.codes, quantize(x, "mxfp8_e4m3").codes)
    with pytest.raises(ValueError, match="format mxfp4 with blocks along axis 1"):
        quantize(x, "mxfp4", out=out)
    with pytest.raises(ValueError, match="axis 0"):
        quantize(x, "mxfp8_e4m3", 0, out=out)
    with pytest.raises(ValueError, match="out has shape"):
        quantize(x[:2], "mxfp8_e4m3", out=out)


@pytest.mark.parametrize(
    "value", [DEFAULT | FTZ | DAZ, DEFAULT | ROUND_UP, DEFAULT | ROUND_DOWN, DEFAULT | ROUND_TO_ZERO]
)
def test_the_processors_modes_change_nothing(value: int):
    cases = [(fmt, rule) for fmt, rule in PAIRS if fmt in BLOCK_CATALOGUE]

    def everything() -> list[Any]:
        results = []
        for fmt, rule in cases:
            for source, seen in itertools.product(sources[fmt.name], (None, BlockCounters())):
                q = quantize(source, fmt, 1, rule, counters=seen)
                results += [q.codes, q.scales, q.tensor_scale, q.dequantize(), q.dequantize(np.float64), seen]
        return results

    sources = {fmt.name: [critical_blocks(fmt, dtype, 30, seed=4) for dtype in SOURCES] for fmt, _ in cases}
    with mxcsr(value):
        got = everything()
    want = everything()
    for a, b in zip(got, want, strict=True):
        if isinstance(b, np.ndarray):
            assert_same_bits(a, b)
        else:
            assert a == b
