"""Scales from amax, against their twins and where the systems that they come from leave ordinary numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import mxcsr as fpu
from bits import assert_same_bits
from mpsim import scales
from mpsim.amp.recipes import AmaxHistory, rolled
from mpsim.formats import get_format
from reference import recipes as twin

FORMATS = ("e4m3", "e5m2", "e4m3fnuz", "fp16")
TINY = float.fromhex("0x1p-149")
AMAX = [0.0, TINY, 2.0**-126, 1e-38, 1e-12, 9.9e-13, 0.5, 1.0, 448.0, 449.0, 1e30, twin.FLT_MAX, math.inf, math.nan]
any_amax = st.one_of(st.floats(min_value=0, width=32), st.just(math.nan))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", ["transformer-engine", "torchao"])
def test_scales_are_the_twins_at_the_edges(name: str, fmt: str):
    rule = {"transformer-engine": twin.te_scale, "torchao": twin.torchao_scale}[name]
    amax = np.array(AMAX, np.float32)
    largest = get_format(fmt).max_finite
    want = [rule(a, twin.LARGEST[fmt]) for a in amax.tolist()]
    got = scales.RULES[name](amax, largest)
    assert_same_bits(got, np.array(want, np.float32))
    powers = np.array([twin.without_significand(s) for s in want], np.float32)
    assert_same_bits(scales.power_below(got), powers)
    assert_same_bits(scales.inverse_of(got), np.array([twin.divide(1.0, s) for s in want], np.float32))


@given(any_amax)
@example(float(np.float32(448 / (2 - 2**-23))))  # the quotient is next to a power of two
def test_scales_are_the_twins(amax: float):
    for name, rule in (("transformer-engine", twin.te_scale), ("torchao", twin.torchao_scale)):
        got = scales.RULES[name](np.float32(amax), 448.0)
        assert_same_bits(np.asarray(got), np.float32(rule(amax, 448.0)))


def test_amax_sees_nan_and_nothing_in_nothing():
    x = np.float32([[1.0, -3.0], [np.nan, 2.0]])
    assert math.isnan(scales.amax_of(x))
    assert_same_bits(scales.amax_of(x, -1), np.float32([[3.0], [np.nan]]))
    assert scales.amax_of(np.zeros((0, 4), np.float32)) == 0


@given(st.lists(st.floats(width=32), min_size=1, max_size=6))
def test_arrays_under_one_scale_are_the_twins(values: list[float]):
    fmt = get_format("e4m3")
    want = twin.cast_tiles([values], fmt, twin.scales(twin.te_scale, power=True), 0, 0)
    back = [twin.times(twin.value_of(c, fmt), s) for c, s in zip(want.codes[0], want.inverse[0], strict=True)]
    assert_same_bits(scales.round_scaled(np.float32(values), fmt), np.array(back, np.float32))


def test_scales_and_casts_keep_their_bits_where_the_processor_flushes_subnormals():
    x = np.float32([1e-39, 3e-40, 2.0**-126, 1e-30])
    fmt = get_format("e5m2")

    def everything() -> list[np.ndarray]:
        amax = scales.amax_of(x)
        return [
            amax,
            scales.current_scale(amax, fmt.max_finite),
            scales.torchao_scale(amax, fmt.max_finite),
            scales.cast(x, np.float32(2.0**100), fmt),
            scales.inverse_of(np.float32([2.0**127, 3e38])),
            scales.round_scaled(x, fmt),
        ]

    want = everything()
    with fpu.mxcsr(fpu.DEFAULT | fpu.FTZ | fpu.DAZ | fpu.ROUND_UP):
        got = everything()
    for a, b in zip(got, want, strict=True):
        assert_same_bits(a, b)


# Histories.


@given(
    st.lists(st.one_of(any_amax, st.sampled_from([0.0, 1.0, math.inf])), min_size=1, max_size=12),
    st.sampled_from(["max", "most_recent"]),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_histories_roll_as_the_twins(amaxes: list[float], algorithm: str, length: int, margin: int):
    want = twin.History(448.0, length, algorithm, margin)
    got = AmaxHistory(np.zeros(length, np.float32))
    for amax in amaxes:
        want.see(amax)
        want.end_of_step()
        got.collect(np.float32(amax))
        got = rolled(got, 448.0, margin, algorithm)
        assert_same_bits(got.amax, np.array(want.amax, np.float32))
        assert_same_bits(np.asarray(got.scale), np.float32(want.scale))


def test_a_function_may_choose_the_amax_of_a_history():
    history = AmaxHistory(np.float32([1.0, 2.0, 4.0]))
    assert rolled(history, 448.0, algorithm=lambda h: float(h.mean())).scale == 448 / np.float32(7 / 3)
    assert rolled(history, 448.0).scale == 112
