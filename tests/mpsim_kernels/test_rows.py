"""Kernels of whole rows against the same steps in NumPy, one array at a time, whose sums along rows go in one order."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

import mxcsr
from bits import assert_same_bits
from mpsim.ops import _rows
from mpsim_kernels.elementary import make_function
from mpsim_kernels.floating_point import default_environment
from mpsim_kernels.rows import row_sum

Array = np.ndarray[Any, Any]
LENGTHS = (1, 2, 7, 8, 9, 64, 127, 129, 300, 1000)
DTYPES = (np.float32, np.float64)


def numbers(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def exp(x: Array) -> Array:
    out = np.empty(x.size, x.dtype)
    with default_environment():
        make_function("exp", 8 * x.itemsize)(np.ascontiguousarray(x).reshape(-1), out)
    return out.reshape(x.shape)


# Twins: whole arrays, step by step.


def total(terms: Array) -> Any:
    """Return the sum of a row: eight running sums up to 128 terms, added in pairs; longer rows are halved."""
    n = len(terms)
    if n > 128:
        middle = n // 2 // 8 * 8
        return total(terms[:middle]) + total(terms[middle:])
    result = terms.dtype.type(0)
    whole = n // 8 * 8
    if whole:
        running = terms[:8].copy()
        for start in range(8, whole, 8):
            running += terms[start : start + 8]
        pairs = running[0::2] + running[1::2]
        result = (pairs[0] + pairs[1]) + (pairs[2] + pairs[3])
    for i in range(whole, n):
        result = terms[i] if i == 0 else result + terms[i]
    return result


def totals(x: Array) -> Array:
    return np.array([total(row) for row in x], x.dtype).reshape(-1, 1)


def weights(x: Array) -> tuple[Array, Array]:
    largest = x.max(axis=-1, keepdims=True)
    e = exp(x - np.where(np.isneginf(largest), x.dtype.type(0), largest))
    return e, totals(e)


def softmax(x: Array) -> Array:
    e, sums = weights(x)
    return np.asarray(e / sums)


def softmax_backward(g: Array, y: Array) -> Array:
    return np.asarray((g - totals(g * y)) * y)


def normalised(x: Array, centred: bool, eps: float) -> tuple[Array, Array, Array]:
    F = x.dtype.type
    count = F(x.shape[1])
    mean = totals(x) / count if centred else np.zeros((len(x), 1), x.dtype)
    deviations = x - mean
    rstd = (1 / np.sqrt((totals(deviations * deviations) / count + F(eps)).astype(np.float64))).astype(x.dtype)
    return (x - mean) * rstd, mean, rstd


def normalised_backward(g: Array, x: Array, weight: Array, centred: bool, eps: float) -> tuple[Array, Array, Array]:
    y, _, rstd = normalised(x, centred, eps)
    count, scaled = x.dtype.type(x.shape[1]), g * weight
    shift = totals(scaled) / count if centred else x.dtype.type(0)
    by_input = rstd * (scaled - shift - y * (totals(scaled * y) / count))
    by_weight, by_bias = (g * y)[0], g[0].copy()
    for i in range(1, len(x)):
        by_weight, by_bias = by_weight + (g * y)[i], by_bias + g[i]
    return by_input, by_weight, by_bias


# The kernels.


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_is_that_of_numpy_whatever_its_length(dtype: Any):
    for n in (*range(270), 1000, 1024, 4097, 70001):
        x = numbers((n,), dtype)
        assert_same_bits(dtype(row_sum(x, 0, n)), total(x))
        assert_same_bits(dtype(row_sum(x, 0, n)), x.sum())
        assert_same_bits(dtype(row_sum(np.concatenate([x, x]), n, 2 * n)), x.sum())
    assert_same_bits(dtype(row_sum(np.full(3, -0.0, dtype), 0, 3)), dtype(-0.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_softmax_and_its_gradient_are_their_steps(n: int, dtype: Any):
    x, g = 20 * numbers((9, n), dtype), numbers((9, n), dtype, 1)
    y = _rows.softmax(x)
    assert_same_bits(y, softmax(x))
    assert_same_bits(_rows.softmax_backward(g, y), softmax_backward(g, y))


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_normalisation_and_its_gradients_are_their_steps(n: int, dtype: Any, centred: bool):
    x, g, weight, bias = numbers((11, n), dtype), numbers((11, n), dtype, 1), *numbers((2, n), dtype, 2)
    y, statistics = _rows.normalise(x, weight, bias, 1, 1e-5, centred)
    plain, mean, rstd = normalised(x, centred, 1e-5)
    assert_same_bits(y, plain * weight + bias)
    for got, want in zip(statistics, (mean, rstd), strict=True):
        assert_same_bits(got, want[:, 0])
    assert_same_bits(_rows.normalise(x, None, None, 1, 1e-5, centred)[0], plain)
    found = _rows.normalise_backward(g, x, weight, 1, statistics, centred, wanted=True)
    for got, want in zip(found, normalised_backward(g, x, weight, centred, 1e-5), strict=True):
        assert got is not None
        assert_same_bits(got, want)
    assert _rows.normalise_backward(g, x, weight, 1, statistics, centred, wanted=False)[0] is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (4, 3, 5, 7), (2, 1, 9, 200)])
def test_attention_weights_are_their_steps(shape: tuple[int, ...], dtype: Any):
    x, length = numbers(shape, dtype), shape[-1]
    rng = np.random.default_rng(3)
    biases = [None, *(numbers(shape[i:], dtype, 4) for i in range(len(shape))), numbers((*shape[:-1], 1), dtype, 5)]
    masks = [None, *(rng.random(shape[i:]) < 0.6 for i in range(len(shape))), np.zeros(length, np.bool_)]
    for bias in biases:
        for allowed in masks:
            scores = x * dtype(0.3)
            scores = scores if bias is None else scores + bias
            scores = scores if allowed is None else np.where(allowed, scores, dtype(-np.inf))
            e, sums = weights(scores.reshape(-1, length))
            sums = np.where(sums == 0, dtype(1), sums)
            for divided in (False, True):
                got, got_sums = _rows.attention_weights(x.copy(), 0.3, bias, allowed, divided)
                assert_same_bits(got, (e / sums if divided else e).reshape(shape))
                assert_same_bits(got_sums, sums.reshape(*shape[:-1], 1))


def test_scores_take_the_shape_of_a_bias_for_each_head():
    x, bias = numbers((3, 5)), numbers((2, 3, 5), seed=1)
    got, sums = _rows.attention_weights(x.copy(), 1.0, bias, None, divided=True)
    assert_same_bits(got, _rows.softmax(x + bias))
    assert sums.shape == (2, 3, 1)


def test_nan_and_infinities_spoil_their_row_alone():
    x = np.array([[1, np.nan, 2], [np.inf, 1, 2], [-np.inf, 0, 1], [-np.inf] * 3, [0, 0, 0]], np.float32)
    y = _rows.softmax(x)
    assert np.isnan(y[[0, 1, 3]]).all()  # as in torch
    assert_same_bits(y[[2, 4]], softmax(x[[2, 4]]))
    e, sums = _rows.attention_weights(x.copy(), 1.0, None, None, divided=False)
    assert np.isnan(e[0]).all()
    assert np.isnan(e[1, 0])
    assert e[3].tolist() == [0, 0, 0]
    assert sums[3] == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_far_below_the_largest_score_is_rounded_as_the_exponential_is(dtype: Any):
    x = np.concatenate([[0], -np.linspace(80, 110, 5000), -np.linspace(700, 760, 5000), [-1e30]]).astype(dtype)
    e, _ = _rows.attention_weights(x[None].copy(), 1.0, None, None, divided=False)
    assert_same_bits(e[0], exp(x))


# What must not change a bit.


def results(x: Array) -> list[Array]:
    """Return what every kernel makes of [M, N] numbers."""
    g = np.ascontiguousarray(x[::-1])
    mask = np.tri(*x.shape, dtype=np.bool_)[: len(x) // 3 or 1]
    repeated = x.reshape(-1, len(mask), x.shape[1])
    y, statistics = _rows.normalise(x, x[0], None, 1, 1e-5, centred=True)
    backward = _rows.normalise_backward(g, x, x[0], 1, statistics, centred=True, wanted=True)
    attention = _rows.attention_weights(repeated.copy(), 0.5, repeated[0], mask, divided=True)
    softmax = _rows.softmax(x)
    return [y, *statistics, *(b for b in backward if b is not None), *attention, _rows.softmax_backward(g, softmax)]


def test_threads_do_not_matter(monkeypatch: pytest.MonkeyPatch):
    x = numbers((33, 70))
    want = results(x)
    monkeypatch.setattr(_rows, "AT_LEAST", 1)
    before = numba.get_num_threads()
    for threads in (1, before):
        numba.set_num_threads(threads)
        try:
            for got, expected in zip(results(x), want, strict=True):
                assert_same_bits(got, expected)
        finally:
            numba.set_num_threads(before)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="MXCSR is set through Numba, which is disabled")
@pytest.mark.parametrize("word", [mxcsr.ROUND_DOWN, mxcsr.ROUND_UP, mxcsr.ROUND_TO_ZERO, mxcsr.FTZ | mxcsr.DAZ])
def test_the_environment_of_the_processor_does_not_matter(word: int):
    x = numbers((33, 70))
    x[:3] *= np.float32(1e-36)
    x[3:6] *= np.float32(60)
    want = results(x)
    with mxcsr.mxcsr(mxcsr.DEFAULT | word):
        got = results(x)
    for one, expected in zip(got, want, strict=True):
        assert_same_bits(one, expected)


@pytest.mark.parametrize("change", [np.asfortranarray, lambda x: np.repeat(x, 2, axis=1)[:, ::2], np.broadcast_to])
def test_the_layout_does_not_matter(change: Callable[..., Array]):
    x = np.ascontiguousarray(np.broadcast_to(numbers((30,)), (9, 30)))
    given = np.broadcast_to(x[0], x.shape) if change is np.broadcast_to else change(x)
    for got, want in zip(results(given), results(x), strict=True):
        assert_same_bits(got, want)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_no_elements_give_no_elements(shape: tuple[int, int]):
    x = np.zeros(shape, np.float32)
    weight = np.ones(shape[1], np.float32)
    assert _rows.softmax(x).shape == shape
    assert _rows.attention_weights(x, 1.0, None, None, divided=True)[0].shape == shape
    y, statistics = _rows.normalise(x, weight, None, 1, 1e-5, centred=True)
    assert y.shape == shape
    by_input, by_weight, by_bias = _rows.normalise_backward(x, x, weight, 1, statistics, centred=True, wanted=True)
    assert by_input is not None
    assert by_input.shape == shape
    assert by_weight.tolist() == by_bias.tolist() == [0.0] * shape[1]
