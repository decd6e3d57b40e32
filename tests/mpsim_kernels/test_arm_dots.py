"""BFDOT without and with the extended behaviour, against exact twins and themselves."""

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mxcsr as fpu
from bits import assert_same_bits
from mpsim_kernels import arm_dots, fma_chain
from reference import arm_dots as twin
from reference import fma_chain as ieee
from reference.chain_cases import BF16_KINDS, bf16_case

Words = np.ndarray[Any, Any]

SIZES = (3, 10, 5) if numba.config.DISABLE_JIT else (13, 40, 36)

both = pytest.mark.parametrize("extended", [False, True], ids=["odd", "extended"])


def bfdot(a: Words, b: Words, c: Words | None, extended: bool) -> Words:
    """Return the words of the product of words."""
    floats = (None if x is None else x.view(np.float32) for x in (a, b, c))
    return arm_dots.bfdot_gemm(*floats, extended).view(np.uint32)


def expected(a: Words, b: Words, c: Words, extended: bool) -> Words:
    return ieee.matmul(lambda *x: twin.chain(*x, extended), a, b, c)


@both
@pytest.mark.parametrize("kind", BF16_KINDS)
@pytest.mark.parametrize("k", [0, 1, 2, 7, 12])
def test_every_output_is_the_chain_of_its_row_and_column(k: int, kind: str, extended: bool) -> None:
    a, b, c = bf16_case(np.random.default_rng(k), 6, k, 10, kind)
    assert_same_bits(bfdot(a, b, c, extended), expected(a, b, c, extended))
    assert_same_bits(bfdot(a, b, None, extended), expected(a, b, np.zeros_like(c), extended))


def one(a: list[float], b: list[float], c: float, extended: bool) -> float:
    row, column = np.array([a], np.float32), np.array([b], np.float32).T
    return float(arm_dots.bfdot_gemm(row, column, np.full((1, 1), c, np.float32), extended)[0, 0])


def test_sums_are_rounded_to_odd() -> None:
    # 1 and a little is the odd neighbour above, 1 less a little the odd one below; what is exact stays even.
    assert one([1, 2.0**-40], [1, 1], 0, False) == 1 + 2.0**-23
    assert one([1, -(2.0**-40)], [1, 1], 0, False) == 1 - 2.0**-24
    assert one([1, 2.0**-22], [1, 1], 0, False) == 1 + 2.0**-22
    assert one([2.0**-40, 0], [1, 0], 1, False) == 1 + 2.0**-23


def test_only_the_extended_behaviour_knows_subnormals() -> None:
    assert one([2.0**-70, 0], [2.0**-70, 0], 0, True) == 2.0**-140
    assert one([2.0**-70, 0], [2.0**-70, 0], 0, False) == 0
    # Two products that are tiny one by one.
    assert one([2.0**-64] * 2, [2.0**-63] * 2, 0, True) == 2.0**-126
    assert one([2.0**-64] * 2, [2.0**-63] * 2, 0, False) == 0


def test_only_the_extended_behaviour_sums_products_beyond_the_largest_number() -> None:
    assert one([2.0**100, -(2.0**100)], [2.0**100, 2.0**100], 3, True) == 3
    assert one([1.5 * 2.0**63, -1.5 * 2.0**63], [1.5 * 2.0**64] * 2, 3, True) == 3
    assert np.isnan(one([2.0**100, -(2.0**100)], [2.0**100, 2.0**100], 3, False))


def test_the_largest_number_absorbs_less_than_its_last_place() -> None:
    largest = float(np.finfo(np.float32).max)
    assert one([2.0**52, 2.0**10], [2.0**51, 1], largest, False) == largest  # nearest rounding would overflow
    assert one([2.0**52, 2.0**10], [2.0**51, 1], largest, True) == np.inf
    assert one([2.0**52, 0], [2.0**52, 0], largest, False) == np.inf


def test_a_pair_is_rounded_once() -> None:
    # Half of the smallest subnormal, and next to nothing above or below it.
    for little, want in ((2.0**-133, 2.0**-149), (0.0, 0.0), (-(2.0**-133), 0.0)):
        assert one([2.0**-75, little], [2.0**-75, 2.0**-130], 0, True) == want


codes = st.one_of(
    st.integers(0, 0xFFFF),
    st.builds(lambda s, e, f: s << 15 | e << 7 | f, st.integers(0, 1), st.integers(60, 68), st.integers(0, 127)),
    st.sampled_from([0, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFF81, 0x0001]),
)


@both
@given(st.lists(codes, min_size=4, max_size=4), st.integers(0, 0xFFFFFFFF), st.integers(-30, 30))
def test_single_steps(extended: bool, pairs: list[int], start: int, distance: int) -> None:
    a, b = (np.array(x, np.uint32) << 16 for x in (pairs[:2], pairs[2:]))
    field = min(max((pairs[0] >> 7 & 255) + (pairs[2] >> 7 & 255) - 127 + distance, 0), 254)
    for c in (start, (start & 0x807FFFFF) | field << 23):
        got = bfdot(a[None], b[:, None], np.array([[c]], np.uint32), extended)
        assert_same_bits(got, np.array([[twin.chain(a.tolist(), b.tolist(), c, extended)]], np.uint32))


@both
@pytest.mark.parametrize("length", [2, 4])
def test_exact_steps_agree_with_a_matrix_unit_that_sums_exactly(length: int, extended: bool) -> None:
    # With small integers nothing is rounded, so every unit gives the exact sum.
    rng = np.random.default_rng(length)
    a, b, c = (rng.integers(-100, 100, shape).astype(np.float32) for shape in ((5, length), (length, 6), (5, 6)))
    assert_same_bits(arm_dots.bfdot_gemm(a, b, c, extended), a @ b + c)


def problem(kind: str) -> tuple[Words, Words, Words]:
    return bf16_case(np.random.default_rng(9), *SIZES, kind)


@pytest.fixture
def small_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cut work into threads however small it is."""
    for name in ("_WORK", "_ELEMENTS"):
        monkeypatch.setattr(fma_chain, name, 1)
    before = numba.get_num_threads()
    yield
    numba.set_num_threads(before)


@both
@pytest.mark.parametrize("kind", ["close", "low", "special"])
@pytest.mark.usefixtures("small_work")
def test_threads_change_nothing(kind: str, extended: bool) -> None:
    numba.set_num_threads(1)
    want = bfdot(*problem(kind), extended)
    numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
    assert_same_bits(bfdot(*problem(kind), extended), want)


@both
@pytest.mark.parametrize("kind", ["close", "low", "tiny", "midpoint", "huge", "special"])
@pytest.mark.parametrize("state", [fpu.FTZ | fpu.DAZ, fpu.ROUND_DOWN, fpu.ROUND_UP | fpu.DAZ, fpu.ROUND_TO_ZERO])
def test_the_state_of_the_processor_changes_nothing(state: int, kind: str, extended: bool) -> None:
    with fpu.mxcsr(fpu.DEFAULT | state):
        got = bfdot(*problem(kind), extended)
    assert_same_bits(got, bfdot(*problem(kind), extended))


@both
def test_strides_change_nothing(extended: bool) -> None:
    a, b, c = problem("low")
    apart = [x.view(np.float32) for x in (np.repeat(a, 2, axis=0)[::2], b.T.copy().T, np.asfortranarray(c))]
    assert_same_bits(arm_dots.bfdot_gemm(*apart, extended).view(np.uint32), bfdot(a, b, c, extended))


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="a minute without compilation")
@both
@pytest.mark.parametrize("kind", ["close", "any"])
def test_more_rows_and_columns_than_a_tile_and_a_panel(kind: str, extended: bool) -> None:
    a, b, c = bf16_case(np.random.default_rng(3), 67, 3, 530, kind)
    whole = bfdot(a, b, c, extended)
    for rows, columns in ((slice(64, 67), slice(0, 2)), (slice(0, 1), slice(265, 275)), (slice(5, 6), slice(528, 530))):
        assert_same_bits(bfdot(a[rows], b[:, columns], c[rows, columns], extended), whole[rows, columns])


@both
@pytest.mark.parametrize("shape", [(0, 5, 3), (3, 5, 0), (3, 0, 2), (0, 0, 0)])
def test_empty_shapes(shape: tuple[int, int, int], extended: bool) -> None:
    a, b, c = bf16_case(np.random.default_rng(0), *shape, "special")
    assert_same_bits(bfdot(a, b, c, extended), c if shape[1] == 0 else np.empty_like(c))


def chain_in_arrays(a: Words, b: Words, c: Words, extended: bool) -> Words:
    """Return the twin's chain in arrays."""
    options = {} if extended else {"odd": True, "flush": True}
    if not extended:
        a, b, c = (ieee.flushed_words(x) for x in (a, b, c))
    for k in range(0, a.shape[1], 2):
        pair = [ieee.product(*np.broadcast_arrays(a[:, i : i + 1], b[i])) for i in (k, k + 1)]
        if not extended:
            pair = [ieee.terms(ieee.rounded_sums(p, ieee.NOTHING, odd=True, flush=True)) for p in pair]
        c = ieee.rounded_sums(ieee.terms(c), ieee.terms(ieee.rounded_sums(*pair, **options)), **options)
    return c


def compare_blocks(extended: bool, blocks: int, seed: int) -> None:
    """Compare at least so many steps of two products."""
    rng = np.random.default_rng(seed)
    m, k, n = 64, 8, 128
    for i in range(-(-blocks // (m * (k // 2) * n))):
        a, b, c = bf16_case(rng, m, k, n, BF16_KINDS[i % len(BF16_KINDS)])
        assert_same_bits(bfdot(a, b, c, extended), chain_in_arrays(a, b, c, extended))


@both
@pytest.mark.parametrize("kind", BF16_KINDS)
def test_the_twin_in_arrays_is_the_twin_in_fractions(kind: str, extended: bool) -> None:
    a, b, c = bf16_case(np.random.default_rng(4), 12, 4, 12, kind)
    assert_same_bits(chain_in_arrays(a, b, c, extended), expected(a, b, c, extended))


@both
@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="many minutes without compilation")
def test_many_blocks(extended: bool) -> None:
    compare_blocks(extended, blocks=700_000, seed=1)


@pytest.mark.long
@both
def test_ten_million_blocks(extended: bool) -> None:
    compare_blocks(extended, blocks=10_000_000, seed=2)
