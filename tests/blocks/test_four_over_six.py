"""Blocks that choose between 4 and 6 as their largest element."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim.blocks import NVFP4, NVFP4_UE5M3, RECIPES, BlockCounters, compare_rules, quantize, quotients
from mpsim.blocks._choice import block_errors, scaled
from mpsim.counters import Counters
from mpsim.encoding import decode, encode
from mpsim.formats import E2M1, E4M3, UE4M3
from reference import blocks as reference
from reference.samples import JIT

FOUR_OVER_SIX = RECIPES["four-over-six"]


def test_a_block_takes_4_where_that_is_nearer():
    # Multiples of 10 are elements under a scale of 10 (Cook et al. 2025); under 40 / 6 they are 1.5, 3, 4.5 and 6.
    x = np.zeros((2, 16), np.float32)
    x[0, :4], x[1, 0] = (10, 20, 30, 40), 1536
    q = quantize(x, "nvfp4", scale_rule=FOUR_OVER_SIX)
    assert (q.tensor_scale, q.scales[:, 0].tolist()) == (1.0, [0x52, 0x78])
    assert q.dequantize()[0, :4].tolist() == [10, 20, 30, 40]
    six = quantize(x, "nvfp4", scale_rule=replace(FOUR_OVER_SIX, four_over_six=None))
    assert six.dequantize()[0, :4].tolist() == [9.75, 19.5, 26.0, 39.0]


def test_equal_errors_take_6():
    # 6 under a scale of 1, or 4 under 1.5.
    x = np.zeros((2, 16), np.float32)
    x[0, 0], x[1, 0] = 6, 1536
    for kind in ("mse", "mae", "max"):
        q = quantize(x, "nvfp4", scale_rule=replace(FOUR_OVER_SIX, four_over_six=kind))
        assert q.scales[:, 0].tolist() == [0x38, 0x78]
        assert q.codes[0, 0] == 7


def test_kinds_of_errors_differ():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 16)).astype(np.float32)
    found = [
        quantize(x, "nvfp4", scale_rule=replace(FOUR_OVER_SIX, four_over_six=kind)) for kind in ("mse", "mae", "max")
    ]
    errors = [abs(q.dequantize(np.float64) - x) for q in found]
    measures = (lambda e: (e * e).sum(axis=1), lambda e: e.sum(axis=1), lambda e: e.max(axis=1))
    for i, measure in enumerate(measures):
        own = measure(errors[i])
        for j, other in enumerate(errors):
            if i != j:
                assert np.all(own <= measure(other) * (1 + 2.0**-18))  # errors have 24 bits
                assert np.any(own < measure(other))


def test_under_256_a_block_that_takes_4_is_not_clipped():
    x = np.zeros((1, 16), np.float32)
    x[0, :4] = (10, 20, 30, 40)
    counters = BlockCounters()
    q = quantize(x, "nvfp4", scale_rule=FOUR_OVER_SIX, counters=counters)
    assert (counters.scales_saturated, counters.clipped, int(q.scales[0, 0])) == (0, 0, 0x7C)  # 384
    # Under 448 it would need 672: 6 is as good.
    q = quantize(x, "nvfp4", scale_rule=replace(FOUR_OVER_SIX, largest_scale=None), counters=counters)
    assert (counters.scales_saturated, int(q.scales[0, 0])) == (0, 0x7E)


def test_only_what_was_kept_is_counted():
    x = np.random.default_rng(1).standard_normal((50, 16)).astype(np.float32)
    x[3] *= np.float32(1e-6)
    x[4], x[5, 2] = 0, np.nan
    for rule in (FOUR_OVER_SIX, replace(FOUR_OVER_SIX, largest_scale=None)):
        counters = BlockCounters()
        q = quantize(x, "nvfp4", scale_rule=rule, counters=counters)
        expected = Counters()
        encode(quotients(x, q, rule), E2M1, overflow="saturate", counters=expected)
        assert counters.elements == expected
        assert (counters.blocks, counters.zero_blocks, counters.nan_blocks) == (50, 1, 1)
        assert counters.scales_underflowed == 1
        assert counters.clipped == int(np.count_nonzero(abs(quotients(x, q, rule)) > 6))


def test_four_over_six_makes_less_noise():
    x = np.random.default_rng(2).standard_normal(1 << 14 if JIT else 1 << 10)
    rows = {row.scale_rule: row for row in compare_rules(x, "nvfp4")}
    assert rows["four-over-six"].sqnr_db > rows["transformer-engine"].sqnr_db + 0.3


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_blocks_choose_along_any_axis_and_at_any_length(axis: int):
    x = np.random.default_rng(3).standard_normal((20, 37, 5)).astype(np.float32)
    q = quantize(x, "nvfp4", axis, FOUR_OVER_SIX)
    rows = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    flat = quantize(rows, "nvfp4", -1, FOUR_OVER_SIX)
    assert_same_bits(np.moveaxis(q.codes, axis, -1), flat.codes)
    assert_same_bits(np.moveaxis(q.scales, axis, -1), flat.scales)
    codes, scales, _ = reference.quantize_rows(NVFP4, rows.reshape(-1, rows.shape[-1]), FOUR_OVER_SIX)
    assert_same_bits(flat.codes.reshape(codes.shape), codes)
    assert_same_bits(flat.scales.reshape(scales.shape), scales)
    assert quantize(x[:0], "nvfp4", axis, FOUR_OVER_SIX).codes.size == 0


def test_what_cannot_choose_is_an_error():
    with pytest.raises(ValueError, match="rounding is 'stochastic', but 'four-over-six' compares errors"):
        quantize(np.ones(16), "nvfp4", scale_rule="four-over-six", rounding="stochastic")
    wide = replace(NVFP4, name="nvfp8", element=E4M3)
    with pytest.raises(ValueError, match="'four-over-six' chooses between 4 and 6, which is for e2m1"):
        quantize(np.ones(16), wide, scale_rule="four-over-six")


# The two scales and the two errors, by themselves.


@pytest.mark.parametrize("rule", ["four-over-six", "division", "torchao"])
def test_both_scales_are_the_twins_next_to_every_midpoint(rule: str):
    recipe, fmt = RECIPES[rule], NVFP4_UE5M3
    middles = np.ldexp(np.arange(17, 32, 2)[:, None] / 16, np.arange(-18, 17)).reshape(-1)
    centres = (middles[:, None] * [6.0, 4.0]).reshape(-1)
    # Under half and over half an ulp of float32, from which float64 is rounded first.
    steps = np.array([-1.0, -0.51, -0.49, 0.0, 0.49, 0.51, 1.0])
    amax = (centres[:, None] + steps * np.spacing(centres.astype(np.float32))[:, None]).reshape(-1)
    for four, got in enumerate(scaled(fmt, recipe, amax, 1.0, 1.0)):
        codes = [
            reference.float_scale(fmt, recipe, Fraction(a), Fraction(1), Fraction(1), bool(four)) for a in amax.tolist()
        ]
        last, least = fmt.scale.max_code, {"zero": 0, "normal": 8}[recipe.least]
        assert_same_bits(got.codes, np.clip(codes, least, last).astype(np.uint8))
        assert_same_bits(got.saturated, np.array(codes) > last)
        assert_same_bits(got.underflowed, np.array(codes) < max(least, 1))


@pytest.mark.parametrize("length", [16, 7, 40, 256])
@pytest.mark.parametrize("kind", ["mse", "mae", "max"])
@pytest.mark.parametrize("given", [False, True])
def test_errors_are_the_twins_bit_for_bit(length: int, kind: str, given: bool):
    recipe = replace(FOUR_OVER_SIX, four_over_six=kind)
    rng = np.random.default_rng(length)
    x = (rng.standard_normal((20, length)) * 2.0 ** rng.integers(-20, 20, (20, 1))).astype(np.float32)
    codes, scales = rng.integers(0, 16, x.shape).astype(np.uint8), rng.integers(1, 0x7E, 20).astype(np.uint8)
    elements, numbers = decode(codes, E2M1), decode(scales, UE4M3)
    tensor = float(np.float32(rng.random()))
    got = block_errors(recipe, x, elements, numbers, tensor, 1.0 if given else 1536.0)
    want = [
        reference.block_error(
            NVFP4,
            recipe,
            x[i].tolist(),
            reference.Block(int(scales[i]), codes[i].tolist(), set()),
            Fraction(tensor),
            None if given else Fraction(tensor),
        )
        for i in range(20)
    ]
    assert_same_bits(got, np.float32(want))
