"""The processor's own fused multiply-add, and the environment it runs in."""

import contextlib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim_kernels._jit import kernel
from mpsim_kernels.floating_point import default_environment, fma32, fma64
from mxcsr import DAZ, DEFAULT, FTZ, ROUND_DOWN, ROUND_TO_ZERO, ROUND_UP, mxcsr


@kernel
def _each32(x: Any, y: Any, z: Any, d: Any) -> None:
    for i in range(x.size):
        d[i] = fma32(x[i], y[i], z[i])


@kernel
def _each64(x: Any, y: Any, z: Any, d: Any) -> None:
    for i in range(x.size):
        d[i] = fma64(x[i], y[i], z[i])


def _nearest(exact: Fraction, p: int, emin: int) -> float:
    """Return the p-bit number next to a nonzero number, which must be below float64's limit; ties to even."""
    e = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
    e -= abs(exact) < Fraction(2) ** e
    quantum = Fraction(2) ** (max(e, emin) - p + 1)
    return float(round(exact / quantum) * quantum)


def _triples(dtype: type[np.floating[Any]], low: int, high: int) -> list[Any]:
    rng = np.random.default_rng(5)
    x, y = (np.ldexp(rng.uniform(-2, 2, 3000), rng.integers(low, high, 3000)).astype(dtype) for _ in range(2))
    near = (-x.astype(np.float64) * y.astype(np.float64)).astype(dtype)
    far = np.ldexp(rng.uniform(-2, 2, 3000), rng.integers(low, high, 3000)).astype(dtype)
    return [x, y, np.where(rng.random(3000) < 0.5, near, far)]


@pytest.mark.parametrize("word", [DEFAULT, DEFAULT | FTZ | DAZ, DEFAULT | ROUND_UP, DEFAULT | ROUND_DOWN | FTZ,
                                  DEFAULT | ROUND_TO_ZERO | DAZ])  # fmt: skip
def test_fused_multiply_add_rounds_once_whatever_the_callers_environment(word: int) -> None:
    for dtype, call, p, emin, low, high in (
        (np.float32, _each32, 24, -126, -74, 40),
        (np.float64, _each64, 53, -1022, -520, 200),
    ):
        x, y, z = _triples(dtype, low, high)
        got = np.empty_like(x)
        with mxcsr(word) if word != DEFAULT else contextlib.nullcontext(), default_environment():
            call(x, y, z, got)
        exact = [Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)) for a, b, c in zip(x, y, z, strict=True)]
        want = np.array([_nearest(value, p, emin) if value else 0.0 for value in exact]).astype(dtype)
        assert (want != 0).sum() > 2500
        assert_same_bits(got[want != 0], want[want != 0])


def test_the_callers_environment_comes_back() -> None:
    with mxcsr(DEFAULT | ROUND_UP | FTZ):
        with default_environment():
            pass
        one, tiny, d = np.ones(1, np.float32), np.full(1, 2.0**-60, np.float32), np.empty(1, np.float32)
        _each32(one, tiny, one, d)
        assert d[0] > 1


def test_signed_zeros_infinities_and_nan() -> None:
    rows = [
        (0.0, -1.0, 0.0, 0.0),
        (0.0, -1.0, -0.0, -0.0),
        (1.0, 1.0, -1.0, 0.0),
        (np.inf, 2.0, 1.0, np.inf),
        (3e38, 3e38, -np.inf, -np.inf),
        (3e38, 3e38, 0.0, np.inf),
        (-1e-30, 1e-30, 0.0, -0.0),
    ]
    x, y, z, want = (np.array(column, np.float32) for column in zip(*rows, strict=True))
    d = np.empty_like(x)
    with default_environment():
        _each32(x, y, z, d)
    assert_same_bits(d, want)
    with default_environment():
        _each32(x[:1], np.array([np.inf], np.float32), z[:1], d[:1])
    assert np.isnan(d[0])
