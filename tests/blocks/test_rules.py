from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import blocks
from mpsim.blocks import (
    BLOCK_CATALOGUE,
    MXINT8,
    RECIPES,
    BlockCounters,
    BlockFormat,
    get_block_format,
    quantize,
)
from reference import blocks as reference
from reference.samples import JIT

POWER = [fmt for fmt in BLOCK_CATALOGUE if fmt.has_power_scales]
SOURCES = (np.float32, np.float64)


@pytest.mark.parametrize(
    ("amax", "rule", "code"),
    [
        (150.0, "floor", 126),
        (150.0, "ceil", 127),
        (150.0, "rceil", 126),
        (600.0, "floor", 128),
        (600.0, "ceil", 129),
        (600.0, "rceil", 128),
        (448.0, "rceil", 127),
        (np.nextafter(np.float32(448), np.float32(999)), "rceil", 128),
        (500.0, "floor", 127),
        (500.0, "even", 128),  # 500 rounds to 512 in four bits
        (495.0, "even", 127),
        (496.0, "even", 128),  # half-way between 480 and 512 goes up
        (256.0, "ceil", 127),
        (2.0**-149, "floor", 0),
        (0.0, "floor", 0),
        (0.0, "rceil", 0),
        (3.4e38, "floor", 246),
        (3.4e38, "ceil", 247),
        (633.5, "nearest", 127),  # 448 * sqrt(2) = 633.57
        (633.6, "nearest", 128),
        (316.7, "nearest", 126),
        (316.8, "nearest", 127),
    ],
)
def test_scales_of_e4m3_blocks(amax: float, rule: str, code: int):
    for dtype in SOURCES:
        assert int(quantize(np.array([0.1 * amax, -amax], dtype), "mxfp8_e4m3", scale_rule=rule).scales[0]) == code


def test_957_is_quantised_as_896_unless_the_scale_is_rounded_up():
    block = [957.0, 3.0, -12.5]
    for rule, value in (("floor", 896.0), ("rceil", 960.0), ("ceil", 960.0), ("even", 896.0), ("nearest", 896.0)):
        assert quantize(block, "mxfp8_e4m3", scale_rule=rule).dequantize()[0] == value
    counters = BlockCounters()
    blocks.round_to(block, "mxfp8_e4m3", counters=counters)
    assert (counters.clipped, counters.elements.saturations, counters.blocks) == (1, 1, 1)


@pytest.mark.parametrize("fmt", POWER, ids=str)
def test_where_the_reciprocal_rule_of_gpus_differs(fmt: BlockFormat):
    largest = np.float32(float(fmt.max_element))
    inverse = np.float32(1) / largest
    for k in (-100, -20, 0, 1, 30):
        base = np.ldexp(largest, k)
        for amax in (np.nextafter(base, np.float32(0)), base, np.nextafter(base, np.float32(1e9))):
            product = Fraction(float(amax * inverse))
            want = next(e for e in range(-140, 140) if product <= reference.power(e)) + 127
            exact, gpu = (int(quantize([amax], fmt, scale_rule=rule).scales[0]) for rule in ("rceil", "rceil-fp32"))
            assert gpu == want
            # 1 / 1.984375 is rounded down far enough that the float above the largest element counts as it does.
            assert exact - gpu == int(fmt is MXINT8 and amax > base)
    # A float32 division is exact enough.
    assert np.nextafter(largest, np.float32(1e9)) / largest > 1


def test_even_rounds_amax_to_the_precision_of_the_element():
    # With one fraction bit 3.5 is half-way between 3 and 4.
    assert int(quantize([3.5], "mxfp4", scale_rule="even").scales[0]) == 127
    assert int(quantize([3.4999], "mxfp4", scale_rule="even").scales[0]) == 126
    assert quantize([3.4999], "mxfp4", scale_rule="even").dequantize() == [3.0]


def test_a_scale_of_the_least_exponent_keeps_subnormals_exact():
    # 2**-127 is subnormal in float32, and its reciprocal nearly out of range.
    x = np.ldexp(np.array([1.0, 1.75, -0.875, 2.0, 0.25]), -127).astype(np.float32)
    q = quantize(x, "mxfp8_e4m3")
    assert q.scales.tolist() == [0]
    assert_same_bits(q.dequantize(), x)
    assert q.codes.tolist() == [0x38, 0x3E, 0xB6, 0x40, 0x28]


def test_a_block_of_the_largest_floats_does_not_overflow():
    x = np.array([np.finfo(np.float32).max, -np.finfo(np.float32).max, 1.0], np.float32)
    for fmt in POWER:
        assert np.isfinite(quantize(x, fmt).dequantize()).all()
        if fmt is MXINT8:  # whose scale would have to be 2**128
            continue
        assert quantize(x, fmt, scale_rule="ceil").dequantize()[0] == np.inf  # 2**128, which float32 lacks
        assert quantize(x, fmt, scale_rule="ceil").dequantize(np.float64)[0] == 2.0**128


def test_float64_is_rounded_once():
    tie = 1 + 2.0**-4
    assert quantize([tie, 256.0], "mxfp8_e4m3").dequantize()[0] == 1.0
    assert quantize([tie + 2.0**-50, 256.0], "mxfp8_e4m3").dequantize()[0] == 1.125  # float32 would lose the bit
    assert int(quantize([448 + 2.0**-40], "mxfp8_e4m3", scale_rule="rceil").scales[0]) == 128
    x = np.array([1e300, -1e-300, 1e-5])
    assert quantize(x, "mxfp8_e4m3").scales.tolist() == [254]
    assert quantize(x, "mxfp8_e4m3").codes.tolist() == [0x7E, 0x80, 0x00]


def test_integers_are_in_twos_complement_and_symmetric():
    q = quantize([1.0, -1.0, 1.9921875, -1.9921875, 0.0, -0.0, 0.0078125], MXINT8)
    assert q.codes.tolist() == [64, 192, 127, 129, 0, 0, 0]
    whole = replace(MXINT8, name="whole", element=replace(MXINT8.element, symmetric=False))
    assert quantize([1.0, -1.9999], whole).codes.tolist() == [64, 128]
    assert quantize([1.0, -1.9999], whole).dequantize().tolist() == [1.0, -2.0]


def test_a_block_with_an_infinity_or_a_nan_is_nan():
    x = np.ones((3, 64), np.float32)
    x[1, 3], x[2, 40] = np.inf, np.nan
    for fmt in BLOCK_CATALOGUE:
        for dtype in SOURCES:
            q = quantize(x.astype(dtype), fmt)
            values = q.dequantize()
            bad = np.isnan(values).reshape(3, -1, fmt.length)
            assert np.array_equal(bad.any(axis=2), bad.all(axis=2))
            assert bad.any(axis=2).sum() == 2
            assert (q.scales == fmt.scale.nan_code).sum() == 2
            assert q.tensor_scale == (float(np.float32(1) / np.float32(2688)) if fmt.tensor_scale else 1.0)


def test_nvfp4_uses_both_scales():
    x = np.zeros((4, 16), np.float32)
    x[0, 0], x[1, 0], x[1, 1], x[2, 0] = 2688.0, 6.0, -2.5, 1e-4
    q = quantize(x, "nvfp4")
    assert q.tensor_scale == 1.0
    assert q.scales.tolist() == [[0x7E], [0x38], [0x00], [0x00]]
    assert q.codes[:2, :2].tolist() == [[7, 0], [7, 0xC]]
    assert quantize(x, "nvfp4", scale_rule="torchao").scales.tolist() == [[0x7E], [0x38], [0x08], [0x08]]
    assert quantize(x, "nvfp4", scale_rule=replace(RECIPES["division"], least="subnormal")).scales[3, 0] == 1
    counters = BlockCounters()
    quantize(x, "nvfp4", counters=counters)
    assert (counters.zero_blocks, counters.scales_underflowed, counters.elements.underflows) == (1, 1, 1)


def test_a_block_beyond_the_tensor_scale_is_clipped_and_counted():
    counters = BlockCounters()
    q = quantize([3000.0, 2688.0, 100.0], "nvfp4", tensor_scale=1.0, counters=counters)
    assert q.dequantize().tolist() == [2688.0, 2688.0, 0.0]
    assert (counters.scales_saturated, counters.clipped) == (1, 1)


def nvfp4_like_torchao(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Follow torchao's steps in NumPy float32."""
    f = np.float32
    tensor = f(abs(x).max()) / f(2688)
    scale = np.clip(abs(x).max(axis=1) / f(6) / tensor, f(2.0**-6), f(448)).astype(ml_dtypes.float8_e4m3fn)
    total = tensor * scale.astype(f)
    codes = np.clip(x / total[:, None], f(-6), f(6)).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return scale.view(np.uint8), codes, tensor


def nvfp4_like_transformer_engine(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Follow the steps of Transformer Engine's reference in NumPy float32."""
    f = np.float32
    encode = f(2688) / f(abs(x).max())
    decode = f(1) / encode
    scale = np.clip(abs(x).max(axis=1) / f(6) * encode, f(-448), f(448)).astype(ml_dtypes.float8_e4m3fn)
    with np.errstate(divide="ignore"):
        factor = np.minimum(f(1) / (scale.astype(f) * decode), np.finfo(f).max)
    codes = np.clip(x * factor[:, None], f(-6), f(6)).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return scale.view(np.uint8), codes, decode


def nvfp4_like_four_over_six(x: np.ndarray, largest: int = 256) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Follow the steps of Transformer Engine's reference with 4 over 6 and squared errors in NumPy float32."""
    f = np.float32
    amax, full = f(abs(x).max()), f(6) * f(largest)
    encode = full / amax
    base, found = abs(x).max(axis=1) / f(6) * encode, []
    for ratio in (base * f(1.5), base):
        scale = np.minimum(ratio, f(448)).astype(ml_dtypes.float8_e4m3fn)
        sf = scale.astype(f)
        with np.errstate(divide="ignore", over="ignore"):
            factor = np.minimum(f(1) / (sf * (f(1) / encode)), np.finfo(f).max)
        codes = np.clip(x * factor[:, None], f(-6), f(6)).astype(ml_dtypes.float4_e2m1fn)
        error = np.zeros(len(x), f)
        for i in range(16):
            difference = codes[:, i].astype(f) * sf * amax / full - x[:, i]
            error = error + difference * difference
        found.append((error, scale.view(np.uint8), codes.view(np.uint8)))
    (four, *a), (six, *b) = found
    scales, codes = (np.where((four < six).reshape(-1, *(1,) * (p.ndim - 1)), p, q) for p, q in zip(a, b, strict=True))
    return scales, codes, f(1) / encode


LIBRARIES = {
    "torchao": nvfp4_like_torchao,
    "transformer-engine": nvfp4_like_transformer_engine,
    "four-over-six": nvfp4_like_four_over_six,
}


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("seed", range(4))
def test_recipes_follow_the_float32_steps_of_their_libraries(name: str, seed: int):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4096 if JIT else 64, 16), dtype=np.float32) * np.float32(rng.random() * 100)
    x[1::7] = rng.integers(-12, 13, x[1::7].shape) * np.float32(rng.choice([0.25, 0.1, 3.0]))
    x[3], x[5] = 0, x[5] * np.float32(1e-7)
    scales, codes, tensor = LIBRARIES[name](x)
    q = quantize(x, "nvfp4", scale_rule=name)
    assert q.tensor_scale == float(tensor)
    assert_same_bits(q.scales[:, 0], scales)
    assert_same_bits(q.codes, codes, x)


ELEMENTS = {
    "mxfp8_e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8_e5m2": ml_dtypes.float8_e5m2,
    "mxfp6_e3m2": ml_dtypes.float6_e3m2fn,
    "mxfp6_e2m3": ml_dtypes.float6_e2m3fn,
    "mxfp4": ml_dtypes.float4_e2m1fn,
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_ml_dtypes_rounds_elements_alike(name: str):
    fmt = get_block_format(name)
    x = np.random.default_rng(2).standard_normal(1 << 16 if JIT else 1 << 11, dtype=np.float32)
    q = quantize(x, fmt, scale_rule="rceil")  # which never clips
    scales = np.ldexp(np.float32(1), q.scales.astype(int) - 127).repeat(32)
    assert_same_bits(q.codes, (x / scales).astype(ELEMENTS[name]).view(np.uint8), x)
    assert_same_bits(q.dequantize(), q.codes.view(ELEMENTS[name]).astype(np.float32) * scales)
