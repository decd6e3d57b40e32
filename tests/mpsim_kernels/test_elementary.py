import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import numba
import numpy as np
import pytest

import mxcsr
from mpsim.ops._numeric import function, slope
from mpsim.tensor import Tensor, apply
from mpsim_kernels.elementary import FUNCTIONS, SLOPES, normal_probability

POINTS = np.concatenate(
    [
        np.linspace(-9, 9, 36001),
        np.random.default_rng(0).normal(size=20000) * 2.0 ** np.random.default_rng(1).integers(-40, 4, 20000),
        [0.0, -0.0, 0.5, -0.5, np.nextafter(0.5, 0), 1e-300, 5e-324],
    ]
)
ALL: list[tuple[Callable[..., Any], str]] = [(function, name) for name in FUNCTIONS] + [(slope, n) for n in SLOPES]


@numba.njit
def probabilities(x: Any) -> Any:
    return [normal_probability(v) for v in x]


def values(make: Callable[..., Any], name: str, x: Any) -> Any:
    return make(name, x) if make is function else make(name, np.ones_like(x), x)


def test_the_exponential_is_within_a_unit_of_the_last_place():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-708, 709.7, 3000), rng.uniform(-0.4, 0.4, 3000), rng.normal(size=1000) * 1e-6])
    got = function("exp", x)
    with localcontext() as context:
        context.prec = 40
        pairs = zip(x.tolist(), got.tolist(), strict=True)
        error = [abs(Decimal(y) - Decimal(v).exp()) / Decimal(math.ulp(y)) for v, y in pairs]
    assert max(error) < 1


def logistic(x: Decimal) -> Decimal:
    return 1 / (1 + (-x).exp())


ROOT, CUBIC = (Decimal.from_float(x) for x in (2 * math.sqrt(2 / math.pi), 0.044715))


def argument(x: Decimal) -> Decimal:
    return ROOT * (x + CUBIC * x**3)


TWINS = {
    "sigmoid": logistic,
    "silu": lambda x: x * logistic(x),
    "gelu_tanh": lambda x: x * logistic(argument(x)),
}


@pytest.mark.parametrize("name", TWINS)
def test_what_is_made_of_the_exponential_is_as_accurate(name: str):
    x = np.concatenate([np.linspace(-15, 15, 1501), np.random.default_rng(6).normal(size=500)])
    got = function(name, x)
    # One unit of 2**-52 for the exponential, half a one for each of sum and quotient, and those by which five
    # roundings of the argument, of half a unit each, move the logarithm of the exponential.
    with localcontext() as context:
        context.prec = 40
        for v, y in zip(map(Decimal, x.tolist()), map(Decimal, got.tolist()), strict=True):
            moved = abs(argument(v)) * 5 / 2 if name == "gelu_tanh" else 0
            assert abs(y - TWINS[name](v)) <= (2 + moved) * Decimal(2) ** -52 * abs(TWINS[name](v))


def test_the_exponential_ends_in_zero_and_infinity():
    x = np.array([-745.1, -745.14, -1e300, -np.inf, 709.782, 709.79, 1e300, np.inf, np.nan, -0.0])
    most = math.exp(709.782)
    want = [5e-324, 0.0, 0.0, 0.0, most, np.inf, np.inf, np.inf, np.nan, 1.0]
    got = function("exp", x)
    assert abs(got[4] - most) <= math.ulp(most)
    got[4] = most
    np.testing.assert_array_equal(got, want)


def test_the_error_function_is_that_of_the_c_library_within_two_units_of_2_to_the_52():
    want = np.array([math.erf(v) for v in POINTS])
    np.testing.assert_allclose(function("erf", POINTS), want, rtol=2 * 2.0**-52, atol=0)


def test_both_tails_of_the_normal_distribution_are_accurate():
    x = np.concatenate([POINTS[::8], np.linspace(-37, -9, 2801)])
    got = np.array(probabilities(x))
    want = np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x])
    # Rounding v / sqrt(2), and v**2 / 2, moves the logarithm of a tail by up to v**2 / 2 units of 2**-53 each.
    assert (np.abs(got - want) <= (4 + x * x) * 2.0**-52 * want).all()


@pytest.mark.parametrize("name", SLOPES)
def test_slopes_are_derivatives(name: str):
    x, h = np.linspace(-4, 4, 101), 1e-5
    difference = (function(name, x + h) - function(name, x - h)) / (2 * h)
    # Of third order in h, and 2e-16 of values to 4 divided by 2e-5.
    np.testing.assert_allclose(slope(name, np.full_like(x, 2.0), x), 2 * difference, rtol=0, atol=4e-10)


def test_special_values_follow_the_limits():
    x = np.array([np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(probabilities(x), [1.0, 0.0, np.nan])
    np.testing.assert_array_equal(function("erf", x), [1.0, -1.0, np.nan])
    np.testing.assert_array_equal(function("sigmoid", x), [1.0, 0.0, np.nan])
    np.testing.assert_array_equal(function("gelu", x[::2]), [np.inf, np.nan])
    assert math.copysign(1, function("erf", np.array([-0.0]))[0]) == -1


@pytest.mark.parametrize("name", ["erf", "gelu"])
def test_results_in_fp32_are_the_float64_ones_rounded(name: str):
    # Disagreement is only possible where float64 lies within 1e-15 of a midpoint: one in 10**7 of these.
    x = (np.random.default_rng(2).normal(size=200_000) * 3).astype(np.float32)
    v = x.astype(np.float64)
    exact = [math.erf(t) for t in v] if name == "erf" else [t * math.erfc(-t / math.sqrt(2)) / 2 for t in v]
    got = apply(name, Tensor(x)).data
    assert np.count_nonzero(got != np.array(exact).astype(np.float32)) <= 1


@pytest.mark.parametrize(("make", "name"), ALL)
def test_neither_threads_nor_the_place_in_an_array_nor_its_layout_matter(make: Callable[..., Any], name: str):
    x = (np.random.default_rng(3).normal(size=(150, 201)) * 3).astype(np.float32)
    want = values(make, name, x)
    assert want.shape == x.shape
    np.testing.assert_array_equal(values(make, name, np.asfortranarray(x)), want)
    np.testing.assert_array_equal(values(make, name, x[:, 1:]), want[:, 1:])
    np.testing.assert_array_equal([values(make, name, v) for v in x[0]], want[0])
    assert values(make, name, x[:0]).shape == (0, 201)
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        np.testing.assert_array_equal(values(make, name, x), want)
    finally:
        numba.set_num_threads(threads)


@pytest.mark.parametrize("word", [mxcsr.ROUND_DOWN, mxcsr.ROUND_UP, mxcsr.ROUND_TO_ZERO, mxcsr.FTZ | mxcsr.DAZ])
@pytest.mark.parametrize(("make", "name"), ALL)
def test_the_environment_of_the_processor_does_not_matter(make: Callable[..., Any], name: str, word: int):
    x = np.concatenate([np.random.default_rng(4).normal(size=1000) * 3, [1e-310, 2.0**-1074, -1e-310, -100, -740]])
    want, want32 = values(make, name, x), values(make, name, x.astype(np.float32))
    numbers = x.astype(np.float32)
    with mxcsr.mxcsr(mxcsr.DEFAULT | word):
        got, got32 = values(make, name, x), values(make, name, numbers)
    np.testing.assert_array_equal(got.view(np.uint64), want.view(np.uint64))
    np.testing.assert_array_equal(got32.view(np.uint32), want32.view(np.uint32))
