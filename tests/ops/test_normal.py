import math

import numpy as np
import pytest

from mpsim.ops.normal import erf, normal_cdf, normal_cdf_and_density
from mpsim.tensor import Tensor, apply

POINTS = np.concatenate(
    [
        np.linspace(-9, 9, 36001),
        np.random.default_rng(0).normal(size=20000) * 2.0 ** np.random.default_rng(1).integers(-40, 4, 20000),
        [0.0, -0.0, 0.5, -0.5, np.nextafter(0.5, 0), 1e-300, 5e-324],
    ]
)


def test_the_error_function_is_that_of_the_c_library_within_two_units_of_2_to_the_52():
    want = np.array([math.erf(v) for v in POINTS])
    np.testing.assert_allclose(erf(POINTS), want, rtol=2 * 2.0**-52, atol=0)


def test_both_tails_of_the_normal_distribution_are_accurate():
    x = np.concatenate([POINTS, np.linspace(-37, -9, 2801)])
    want = np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x])
    # Rounding v / sqrt(2), and v**2 / 2, moves the logarithm of a tail by up to v**2 / 2 units of 2**-53 each.
    bound = (4 + x * x) * 2.0**-52
    with np.errstate(under="ignore"):
        assert (np.abs(normal_cdf(x) - want) <= bound * want).all()


def test_the_density_is_the_derivative():
    x = np.linspace(-4, 4, 101)
    h = 1e-5
    _, density = normal_cdf_and_density(x)
    np.testing.assert_allclose(density, (normal_cdf(x + h) - normal_cdf(x - h)) / (2 * h), rtol=0, atol=1e-10)


def test_special_values_follow_the_limits():
    x = np.array([np.inf, -np.inf, np.nan])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(normal_cdf(x), [1.0, 0.0, np.nan])
        np.testing.assert_array_equal(erf(x), [1.0, -1.0, np.nan])
    assert math.copysign(1, erf(np.array([-0.0]))[0]) == -1


@pytest.mark.parametrize("name", ["erf", "gelu"])
def test_results_in_fp32_are_the_float64_ones_rounded(name: str):
    # Disagreement is only possible where float64 lies within 1e-15 of a midpoint: one in 10**7 of these.
    x = (np.random.default_rng(2).normal(size=200_000) * 3).astype(np.float32)
    v = x.astype(np.float64)
    exact = [math.erf(t) for t in v] if name == "erf" else [t * math.erfc(-t / math.sqrt(2)) / 2 for t in v]
    got = apply(name, Tensor(x)).data
    assert np.count_nonzero(got != np.array(exact).astype(np.float32)) <= 1
