"""Conversions as Berkeley TestFloat 3e has them, in its six rounding modes."""

from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim.encoding import decode, encode
from mpsim.formats import get_format
from mpsim.rounding import Counters, round_to
from vectors import vectors

MODES = ("nearest-even", "toward-zero", "down", "up", "nearest-away", "to-odd")
"""In the order of the vectors."""
NAMES = {"f16": "fp16", "f32": "fp32", "f64": "fp64", "bf16": "bf16"}
INEXACT, OVERFLOW = 1, 4


def load(function: str) -> tuple[Any, str, str]:
    data = np.load(vectors("testfloat", f"{function}.npz"))
    source, target = function.split("_to_")
    return data, NAMES[source], NAMES[target]


@pytest.mark.parametrize("mode", range(6), ids=MODES)
@pytest.mark.parametrize("function", ["f32_to_f16", "f64_to_f16", "f64_to_f32", "f32_to_bf16"])
def test_narrowing_gives_testfloats_codes_and_events(function: str, mode: int):
    data, _, target = load(function)
    x = data["a"].view(f"f{data['a'].itemsize}")
    want, flags = data["z"][mode], data["flags"][mode, 0]
    got = encode(x, target, MODES[mode])
    numbers = ~np.isnan(x)
    assert numbers.sum() > 9000
    assert_same_bits(got[numbers], want[numbers], x[numbers])
    assert np.isnan(decode(got[~numbers], target)).all()
    assert np.isnan(decode(want[~numbers], target)).all()
    counters = Counters()
    assert_same_bits(round_to(x, target, MODES[mode], counters=counters).astype(np.float64)[numbers],
                     decode(want, target).astype(np.float64)[numbers], x[numbers])  # fmt: skip
    assert counters.inexact == np.count_nonzero(flags & INEXACT)
    assert counters.overflows == np.count_nonzero(flags & OVERFLOW)
    assert counters.nans == np.count_nonzero(~numbers)
    assert counters.subnormals == np.count_nonzero(is_subnormal(want, target))


def is_subnormal(codes: np.ndarray, name: str) -> np.ndarray:
    """Whether the exponent field is 0 and the fraction is not."""
    fmt = get_format(name)
    field = (codes >> (fmt.p - 1)) & ((1 << fmt.w) - 1)
    return (field == 0) & (codes & ((1 << (fmt.p - 1)) - 1) != 0)


@pytest.mark.parametrize("mode", range(6), ids=MODES)
def test_integers_give_testfloats_codes(mode: int):
    data = np.load(vectors("testfloat", "i32_to_f16.npz"))
    x = data["a"].view(np.int32)
    assert_same_bits(encode(x, "fp16", MODES[mode]), data["z"][mode], x)


@pytest.mark.parametrize("function", ["f16_to_f32", "f16_to_f64", "bf16_to_f32"])
def test_widening_gives_testfloats_values(function: str):
    data, source, target = load(function)
    want = data["z"].view(f"f{data['z'].itemsize}")
    got = decode(data["a"], source).astype(want.dtype)
    numbers = ~np.isnan(want)
    assert numbers.sum() > 9000
    assert np.array_equal(np.isnan(got), ~numbers)
    assert_same_bits(got[numbers], want[numbers], data["a"][numbers])
    for mode in MODES:
        assert_same_bits(encode(got, target, mode)[numbers], data["z"][numbers], data["a"][numbers])
