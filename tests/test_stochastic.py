"""Stochastic rounding: which neighbour, how often, and from which random numbers."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bits import assert_same_bits
from mpsim._grids import grid_for
from mpsim.encoding import decode, encode
from mpsim.formats import BF16, E4M3, E5M2, FP16, FloatFormat, get_format
from mpsim.modes import Overflow, Rounding
from mpsim.rounding import Counters, Draws, round_to
from mpsim.stochastic import SCHEMES
from mpsim_kernels.rounding import ANY_MODE, GENERAL, make_rounder
from reference import stochastic as twin

FORMATS = (FP16, BF16, E4M3, E5M2, get_format("e4m3fnuz"), get_format("e2m1"))


def test_philox_gives_its_known_answer():
    # Known-answer test of the Random123 distribution: counter 0, key 0.
    want = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert list(twin.philox((0, 0, 0, 0), (0, 0))) == want
    assert Draws().words(0, 4, 32).tolist() == want


@pytest.mark.parametrize(("seed", "stream"), [(0, 0), (1, 0), (0, 1), (2**64 - 1, 2**63 + 5), (0x0123456789ABCDEF, 7)])
def test_words_are_those_of_the_twin_wherever_a_range_starts(seed: int, stream: int):
    want = [twin.word(seed, stream, i) for i in range(40)]
    draws = Draws(seed=seed, stream=stream)
    for start, stop in [(0, 40), (1, 40), (3, 5), (6, 7), (8, 8)]:
        assert draws.words(start, stop, 32).tolist() == want[start:stop]
    pairs = [want[2 * i] | want[2 * i + 1] << 32 for i in range(20)]
    for start, stop in [(0, 20), (1, 20), (3, 4)]:
        assert draws.words(start, stop, 64).tolist() == pairs[start:stop]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", [1, 3, 8])
@pytest.mark.parametrize("source", [np.float32, np.float64])
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_each_random_word_decides_as_the_twin_says(fmt: FloatFormat, source: Any, bits: int, scheme: str):
    # Every value of the random bits, for tails of every kind: the probability is exact by counting.
    width = np.dtype(source).itemsize * 8
    quantum = 2.0**fmt.quantum_exponent
    tails = [Fraction(0), Fraction(1, 1 << bits), Fraction(1, 2), Fraction(3, 2 << bits), Fraction(5, 4 << bits)]
    tails += [Fraction(1, 1 << 14), 1 - Fraction(1, 1 << 14)]
    mode = Rounding.STOCHASTIC
    draws = Draws(bits=bits, scheme=scheme)
    grid = grid_for(fmt, width, True, mode, Overflow.IEEE, False, None, draws)
    rounder = make_rounder(width, ANY_MODE, True, False, GENERAL)
    random = np.arange(1 << bits, dtype=f"u{width // 8}") << (width - bits)
    if scheme == "B":
        random |= 1 << (width - bits - 1)
    for below in (0, 1, 2):  # the lower neighbour: zero and subnormals share one quantum
        for tail in tails:
            x = np.full(random.size, source(float(below + tail) * quantum))
            out = np.empty(random.size, fmt.code_dtype)
            rounder(x.view(random.dtype), out, grid, random, np.zeros(8, np.int64))
            want = [below + twin.goes_up(tail, r, bits, scheme) for r in range(1 << bits)]
            assert out.tolist() == want, (below, tail)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", [None, 1, 5, 31])
@pytest.mark.parametrize("name", ["e11m1", "e11m23", "e11m49", "e11m50", "e11m51", "fp64"])
def test_long_integers_are_decided_by_all_their_bits(name: str, bits: int | None, scheme: str):
    fmt, draws = get_format(name), Draws(seed=4, stream=2, bits=bits, scheme=scheme)
    rng = np.random.default_rng(8)
    long = rng.integers(0, 1 << 64, 300, dtype=np.uint64) >> rng.integers(0, 12, 300).astype(np.uint64)
    close = (1 << 63) + rng.integers(-5, 6, 60).astype(np.int64).view(
        np.uint64
    )  # where a probability is next to 0 or 1
    for x in (np.concatenate([long, close]), -(long >> np.uint64(1)).astype(np.int64)):
        counters = Counters()
        got = round_to(x, fmt, "stochastic", rng=draws, counters=counters)
        want, inexact = [], 0
        for i, n in enumerate(x.tolist()):
            k = max(abs(n).bit_length() - fmt.p, 0)
            floor, rest = abs(n) >> k, abs(n) % (1 << k)
            random = (twin.word(4, 2, 2 * i) | twin.word(4, 2, 2 * i + 1) << 32) >> (64 - (bits or 64))
            floor += bool(rest) and twin.goes_up(
                Fraction(rest, 1 << k), random, bits or 64, "A" if bits is None else scheme
            )
            inexact += bool(rest)
            want.append(math.copysign(math.ldexp(floor, k), n))
        assert_same_bits(got, np.array(want), x)
        assert (counters.inexact, counters.elements) == (inexact, x.size)
        assert_same_bits(decode(encode(x, fmt, "stochastic", rng=draws), fmt).astype(np.float64), got, x)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(0, 2**64 - 1))
def test_a_result_is_one_of_the_two_neighbours(fmt: FloatFormat, x: float, seed: int):
    x = min(max(x, -fmt.max_finite), fmt.max_finite)
    got = float(round_to(x, fmt, "stochastic", rng=seed))
    assert got in (float(round_to(x, fmt, "down")), float(round_to(x, fmt, "up")))


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_numbers_of_the_format_never_move(fmt: FloatFormat):
    codes = np.arange(1 << min(fmt.bits, 16), dtype=fmt.code_dtype)
    if numba.config.DISABLE_JIT:
        codes = codes[::37]
    values = decode(codes, fmt)
    for scheme in SCHEMES:
        for bits in (None, 4):
            draws = Draws(seed=3, bits=bits, scheme=scheme)
            assert_same_bits(encode(values, fmt, "stochastic", rng=draws), encode(values, fmt))


@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_the_mean_of_many_draws_is_the_number(source: Any):
    n = 2_000 if numba.config.DISABLE_JIT else 200_000
    # Hoeffding: the mean of n draws from an interval of one quantum leaves this bound once in 10**9 runs;
    # the seed is fixed, so the test does not flicker.
    bound = math.sqrt(math.log(2e9) / (2 * n))
    for x in (1.1, -3.3, 2.0**-15 * 1.0003, 3e-8, 1e-8, -700.7):
        quantum = 2.0 ** (max(math.frexp(x)[1] - 1, FP16.emin) - 10)
        mean = float(np.mean(round_to(np.full(n, source(x)), FP16, "stochastic", rng=11), dtype=np.float64))
        assert abs(mean - float(source(x))) <= bound * quantum


def test_few_bits_are_biased_toward_zero_with_scheme_a_and_not_with_c():
    # A tail of 1 - 2**-5 with 2 bits: A cuts it to 3/4, C rounds it to 1.
    x = np.full(4_096, np.float32(1 + (1 - 2.0**-5) * 2.0**-10))
    a = round_to(x, FP16, "stochastic", rng=Draws(bits=2, scheme="A"))
    c = round_to(x, FP16, "stochastic", rng=Draws(bits=2, scheme="C"))
    assert np.all(c == np.float32(1 + 2.0**-10))
    assert 0.7 < np.mean(a > 1) < 0.8


def test_draws_do_not_depend_on_threads_layout_or_counting():
    n = 1_000 if numba.config.DISABLE_JIT else 300_000
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    draws = Draws(seed=5, stream=9)
    want = round_to(x, FP16, "stochastic", rng=draws)
    assert_same_bits(round_to(x, FP16, "stochastic", rng=draws, counters=Counters()), want)
    strided = np.repeat(x, 2)[::2]
    assert_same_bits(round_to(strided, FP16, "stochastic", rng=draws), want)
    square = x[: 400 * 2].reshape(20, 40)
    assert_same_bits(round_to(np.asfortranarray(square), FP16, "stochastic", rng=draws), want[:800].reshape(20, 40))
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        assert_same_bits(round_to(x, FP16, "stochastic", rng=draws), want)
    finally:
        numba.set_num_threads(threads)


def test_other_seeds_and_streams_give_other_draws():
    x = np.full(64, np.float32(1 + 2.0**-11))
    results = {
        round_to(x, FP16, "stochastic", rng=dataclasses.replace(Draws(), seed=seed, stream=stream)).tobytes()
        for seed in range(3)
        for stream in range(3)
    }
    assert len(results) == 9


def test_a_small_update_gets_through_on_average():
    # With nearest-even 1 + 2**-13 stays 1 for ever; stochastic rounding moves it by the right amount on average.
    weights = np.ones(500, np.float32)
    nearest = weights.copy()
    steps = 20 if numba.config.DISABLE_JIT else 400
    for step in range(steps):
        weights = round_to(weights + np.float32(2.0**-13), FP16, "stochastic", rng=Draws(seed=1, stream=step))
        nearest = round_to(nearest + np.float32(2.0**-13), FP16)
    assert np.all(nearest == 1)
    # Independent draws: the standard deviation of a mean of 500 is below 2**-10 * sqrt(steps) / 2 / sqrt(500).
    assert abs(weights.mean(dtype=np.float64) - (1 + steps * 2.0**-13)) < 5 * 2.0**-10 * math.sqrt(steps / 500) / 2


def test_tiny_stochastic_results_are_flushed_on_request():
    x = np.full(100, np.float32(1.5 * 2.0**-15))
    assert not round_to(x, FP16, "stochastic", rng=0, flush_subnormals=True).any()
    assert round_to(x, FP16, "stochastic", rng=0).all()


def test_overflow_is_up_to_chance_within_the_last_quantum():
    x = np.full(1_000, np.float32(65504 + 8))
    got = round_to(x, FP16, "stochastic", rng=0)
    assert set(got.tolist()) == {65504.0, math.inf}
    assert set(round_to(x, FP16, "stochastic", "saturate", rng=0).tolist()) == {65504.0}


def test_mistakes_are_explained():
    with pytest.raises(TypeError, match=r"rng is None.*seed"):
        round_to(1.0, FP16, "stochastic")
    with pytest.raises(TypeError, match="rng is 'x'"):
        round_to(1.0, FP16, "stochastic", rng="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="only 'stochastic' draws"):
        round_to(1.0, FP16, rng=1)
    with pytest.raises(ValueError, match="dlfloat16 has no subnormals"):
        round_to(1.0, "dlfloat16", "stochastic", rng=1)
    for wrong in ({"seed": -1}, {"stream": 2**64}, {"bits": 0}, {"bits": 32}, {"scheme": "D"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Draws(**wrong)


@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_subnormal_inputs_are_read_as_signed_zero_on_request(source: Any):
    least = np.finfo(source).smallest_subnormal
    normal = np.finfo(source).smallest_normal
    x = np.array([least, -least, normal - least, normal, -normal, 0.0, -0.0, np.nan, np.inf], source)
    want = np.where(np.abs(x) < normal, np.copysign(source(0), x), x)
    for fmt in ("bf16", "fp32", "fp64", "e8m0", "fp16"):
        for rounding in ("nearest-even", "up", "down"):
            seen, clean = Counters(), Counters()
            got = encode(x, fmt, rounding, subnormal_inputs_as_zero=True, counters=seen)
            assert_same_bits(got, encode(want, fmt, rounding, counters=clean))
            assert seen == clean
