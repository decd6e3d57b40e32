import math
from fractions import Fraction

import numpy as np
import pytest

from mpsim._noise import sqnr
from mpsim.amp.statistics import tensor_statistics
from mpsim.blocks import compare_rules, quantize
from mpsim.counters import Counters
from mpsim.formats import FP16
from mpsim.rounding import round_to

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("exact", "got", "want"),
    [
        ([3.0, 4.0], [3.0, 4.0], INF),
        ([], [], INF),
        ([0.0], [0.0], INF),
        ([0.0], [1.0], -INF),
        ([10.0, 0.0], [10.0, 1.0], 20.0),
        ([1.0], [INF], -INF),
        ([INF], [1.0], -INF),
        ([1.0], [NAN], -INF),
        ([INF], [-INF], -INF),
        ([INF, NAN], [INF, NAN], INF),
        ([INF, NAN, 10.0], [INF, NAN, 9.0], 20.0),
    ],
)
def test_noise_over_signal(exact: list[float], got: list[float], want: float) -> None:
    assert sqnr(np.array(exact), np.array(got)) == want


def test_it_is_the_ratio_of_exact_sums() -> None:
    x = np.random.default_rng(0).standard_normal(1000)
    y = round_to(x, "e4m3")
    errors = [Fraction(a) - Fraction(b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    ratio = sum(Fraction(a) ** 2 for a in x.tolist()) / sum(e * e for e in errors)
    # Sums of 1000 squares in float64 are off by less than 1000 * 2**-53 each; a dB is a factor of 10**0.1.
    assert abs(sqnr(x, y) - 10 * math.log10(ratio)) < 20 / math.log(10) * 1000 * 2.0**-53 + 2.0**-45


def test_float32_errors_are_not_rounded() -> None:
    x, tiny = np.array([1 + 2.0**-23], np.float32), np.array([2.0**-30], np.float32)
    assert sqnr(x, tiny) == 10 * math.log10((1 + 2.0**-23) ** 2 / (1 + 2.0**-23 - 2.0**-30) ** 2)


def test_training_and_block_formats_measure_alike() -> None:
    x = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    rounded = round_to(x, FP16)
    assert tensor_statistics(x, rounded, FP16, Counters(), 1.0).sqnr == sqnr(x, rounded)
    row = compare_rules(x, "mxfp8_e4m3", rules=["floor"])[0]
    assert row.sqnr_db == sqnr(x, quantize(x, "mxfp8_e4m3", scale_rule="floor").dequantize(np.float64))
