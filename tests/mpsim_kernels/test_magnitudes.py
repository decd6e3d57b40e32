"""The histogram kernel against plain Python, at every boundary of both widths."""

import math

import numpy as np
import pytest

from mpsim.observe import Histogram
from reference.magnitudes import exponents


def boundaries(dtype: type) -> np.ndarray:
    info = np.finfo(dtype)
    powers = [math.ldexp(1.0, e) for e in range(info.minexp - info.nmant, info.maxexp, 7)]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, info.max, info.smallest_subnormal, info.smallest_normal]
    edges = np.array([*powers, *special], dtype)
    with np.errstate(all="ignore"):
        return np.concatenate([edges, -edges, np.nextafter(edges, dtype(0)), np.nextafter(edges, dtype(np.inf))])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_exponent_is_counted_as_in_plain_python(dtype: type):
    x = boundaries(dtype)
    histogram = Histogram.of(x)
    found, counts = histogram.occupied()
    assert {e: n for e, n in zip(found.tolist(), counts.tolist(), strict=True) if n} == exponents(x.tolist())
    finite = np.abs(x[np.isfinite(x)])
    assert (histogram.zeros, histogram.not_finite) == (int((x == 0).sum()), int((~np.isfinite(x)).sum()))
    assert (histogram.smallest, histogram.largest) == (finite[finite > 0].min(), finite.max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("values", [[], [0.0], [np.inf, np.nan], [-0.0, np.nan]])
def test_without_numbers_nothing_is_occupied(dtype: type, values: list[float]):
    histogram = Histogram.of(np.array(values, dtype))
    assert histogram.occupied()[0].size == 0
    assert (histogram.smallest, histogram.largest) == (np.inf, 0.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_single_numbers_are_their_own_extremes(dtype: type):
    for x in boundaries(dtype):
        if np.isfinite(x) and x != 0:
            histogram = Histogram.of(np.array([x], dtype))
            assert histogram.smallest == histogram.largest == abs(x)
            assert histogram.occupied()[0].tolist() == [math.frexp(x)[1] - 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mixed", [(), (0.0,), (np.inf,), (np.nan, 0.0, -np.inf)])
@pytest.mark.parametrize("spread", [0, 3, 15, 18, 19, 20, 40])
def test_blocks_of_few_and_of_many_exponents_count_alike(dtype: type, mixed: tuple[float, ...], spread: int):
    """Few are found by comparisons, four at a time, up to the largest finite exponent and below the smallest normal."""
    info = np.finfo(dtype)
    rng = np.random.default_rng(spread)
    for top in (info.minexp - 2, info.minexp + 2, 0, info.maxexp - 2, info.maxexp - 1):
        significands = 1 + rng.integers(0, 1 << info.nmant, 4099) / (1 << info.nmant)
        x = np.ldexp(significands, top - rng.integers(0, spread + 1, 4099)).astype(dtype)
        for i, special in enumerate(mixed):
            x[i::61] = special
        histogram = Histogram.of(x)
        found, counts = histogram.occupied()
        assert {e: n for e, n in zip(found.tolist(), counts.tolist(), strict=True) if n} == exponents(x.tolist())
        assert histogram.zeros == np.count_nonzero(x == 0)
        assert histogram.not_finite == np.count_nonzero(~np.isfinite(x))
