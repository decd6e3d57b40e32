"""Block sums with one rounding against the exact twin: every way of adding up, and published model outputs."""

import json
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mxcsr as fpu
from bits import assert_same_bits
from mpsim_kernels import exact_blocks
from mpsim_kernels.exact_blocks import exact_block_gemm, exact_gemm
from mpsim_kernels.exact_lanes import any_block, cut_products, exact_block_2, exact_block_4, pair_block, round_cut
from mpsim_kernels.exact_sums import LIMBS, add_exactly, rounded_sum
from mpsim_kernels.floating_point import default_environment
from reference import exact_blocks as twin
from vectors import vectors

Floats = np.ndarray[Any, Any]

EXAMPLES = 20 if numba.config.DISABLE_JIT else 200
SIZE = 5 if numba.config.DISABLE_JIT else 60
ROWS = 5 if numba.config.DISABLE_JIT else 70  # more than a tile
COLUMNS = 16 if numba.config.DISABLE_JIT else 512
LENGTHS = {"fp16": 4, "bf16": 2}
STEP = 7 if numba.config.DISABLE_JIT else 1


def values(codes: Floats, name: str) -> Floats:
    """Return the float32 numbers of codes."""
    if name == "fp16":
        return codes.astype(np.uint16).view(np.float16).astype(np.float32)
    return (codes.astype(np.uint32) << 16).view(np.float32)


def words(x: Floats) -> list[list[int]]:
    return np.ascontiguousarray(x, np.float32).view(np.uint32).tolist()


def exact(a: Floats, b: Floats, c: Floats, length: int) -> Floats:
    """Return the twin's result."""
    columns = words(b.T) if b.shape[0] else [[]] * b.shape[1]
    return np.array(twin.matmul(words(a), columns, words(c), length), np.uint32).view(np.float32)


def one_nan(x: Floats) -> Floats:
    return np.where(np.isnan(x), np.uint32(twin.NAN), x.view(np.uint32)).astype(np.uint32).view(np.float32)


def general(a: Floats, b: Floats, c: Floats, length: int) -> Floats:
    """Return the result of the long accumulator alone."""
    columns = -(-b.shape[1] // 8) * 8
    wide = np.zeros((b.shape[0], columns))
    d = np.zeros((a.shape[0], columns), np.float32)
    limbs = np.zeros((8, LIMBS), np.int64)
    with default_environment(), np.errstate(all="ignore"):
        wide[:, : b.shape[1]] = b
        d[:, : b.shape[1]] = c
        for i, row in enumerate(a.astype(np.float64)):
            for k in range(0, max(a.shape[1], 1), length):
                any_block(row[k : k + length], wide[k : k + length], limbs, d[i])
    return one_nan(np.ascontiguousarray(d[:, : b.shape[1]]))


KINDS = ("any", "close", "far", "small", "huge", "zeros", "special")


def random_values(rng: np.random.Generator, shape: tuple[int, ...], name: str, kind: str) -> Floats:
    """Return numbers of a format: any, or with exponents close together, far apart, or near a limit of the results."""
    w, m = {"fp16": (5, 10), "bf16": (8, 7), "fp32": (8, 23)}[name]
    bias, top = (1 << (w - 1)) - 1, (1 << w) - 1
    middle = {"small": max(bias - 72, 1), "huge": min(bias + 62, top - 2)}.get(kind, bias)
    spread = {"any": top, "far": top // 4, "zeros": top}.get(kind, 5)
    field = np.clip(middle + rng.integers(-spread, spread + 1, shape), 0, top - 1)
    fraction = rng.integers(0, 1 << m, shape)
    fraction = np.where(rng.random(shape) < 0.4, rng.choice([0, 1, (1 << m) - 1, 1 << (m - 1)], shape), fraction)
    codes = rng.integers(0, 2, shape) << (m + w) | field << m | fraction
    if kind == "zeros":
        codes = np.where(rng.random(shape) < 0.6, codes & 1 << (m + w), codes)
    if kind in ("special", "any"):
        some = np.array([0, 1, top << m, 1 << (m + w) | top << m])
        codes = np.where(rng.random(shape) < 0.02, rng.choice(some, shape), codes)
        codes = np.where(rng.random(shape) < 0.002, top << m | 1, codes)
    return codes.astype(np.uint32).view(np.float32) if name == "fp32" else values(codes, name)


def problem(name: str, m: int, k: int, n: int, kind: str, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """Return operands half of whose products cancel in pairs, and accumulators half of which cancel a block."""
    rng = np.random.default_rng([seed, *f"{name} {kind}".encode()])
    a, b = random_values(rng, (m, k), name, kind), random_values(rng, (k, n), name, kind)
    c = random_values(rng, (m, n), "fp32", kind)
    if k > 1 and kind != "any":
        a[::2, 1::2], b[1::2] = -a[::2, 0 : k // 2 * 2 : 2], b[0 : k // 2 * 2 : 2]
    with np.errstate(all="ignore"):
        near = (a[:, :2].astype(np.float64) @ b[:2].astype(np.float64)).astype(np.float32)
    return a, b, np.where(rng.random((m, n)) < 0.5, -near, c)


def near_ties(seed: int, length: int, columns: int, reach: int) -> tuple[Floats, Floats, Floats]:
    """Return one row [1, L], columns [L, N] and accumulators [1, N] whose exact sums lie at and beside midpoints.

    Terms sit at the last bits of the largest one, cancel it, or are smaller by up to 2**reach; the accumulator is
    any of them.
    """
    rng = np.random.default_rng([seed, length, reach])
    shape = (length + 1, columns)
    place = rng.choice([0, 0, -1, -7, -22, -23, -24, -25, -26, -52, -53, -54, -55], shape)
    place = np.where(rng.random(shape) < 0.3, -rng.integers(0, reach, shape), place)
    bits = rng.choice([0, 0, 1, 7, 15, 23], shape)
    fraction = rng.integers(0, 1 << 23, shape) >> (23 - bits) << (23 - bits)
    fraction = np.where(rng.random(shape) < 0.2, (1 << 23) - (1 << (23 - bits)), fraction)
    terms = rng.choice([-1, 1], shape) * (1 + fraction / 2**23) * 2.0**place
    # Half of the sums: a float32 and exactly half of its last bit, then what is small, if anything.
    half = rng.random(columns) < 0.5
    terms[:2, half] = rng.choice([-1, 1], (2, half.sum())) * [
        1 + fraction[0, half] / 2**23,
        np.full(half.sum(), 2.0**-24),
    ]
    terms[2:, half] *= rng.choice([0, 2.0**-30], half.sum())
    terms = rng.permuted(terms, axis=0)
    for source, target in rng.integers(0, length + 1, (length, 2)):
        copied = rng.random(columns) < 0.15
        terms[target] = np.where(copied, -terms[source], terms[target])
    powers = 2.0 ** rng.integers(-20, 21, (1, length))
    return powers.astype(np.float32), (terms[1:] / powers.T).astype(np.float32), terms[:1].astype(np.float32)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_small_products_beside_a_cancelling_pair(name: str) -> None:
    a = np.array([[-(2.0**13), -0.5, -0.25, -0.125]], np.float32)
    b = np.array([[2.0**10], [1.0], [1.0], [1.0]], np.float32)
    c = np.array([[2.0**23]], np.float32)
    assert exact(a, b, c, LENGTHS[name]).item() == -0.875
    assert exact_block_gemm(a, b, c, LENGTHS[name]).item() == -0.875


@pytest.mark.parametrize(
    ("a", "b", "c", "want"),
    [
        # One rounding of everything: neither term alone reaches past half a unit of c.
        ([2.0**-25, 2.0**-25], [1.0, 1.0], 1.0, 1.0),
        ([2.0**-25, 2.0**-25 + 2.0**-48], [1.0, 1.0], 1.0, 1.0 + 2.0**-23),
        ([2.0**-24, 2.0**-125], [1.0, 2.0**-125], 1.0, 1.0 + 2.0**-23),
        ([2.0**-24, -(2.0**-125)], [1.0, 2.0**-125], 1.0, 1.0),
        ([2.0**-24, 2.0**-125], [1.0, 2.0**-125], -1.0, -1.0 + 2.0**-24),
        # Products beyond float32's range, and below it.
        ([2.0**127, -(2.0**127)], [2.0**127, 2.0**127], 3.0, 3.0),
        ([2.0**127, -(2.0**126)], [2.0**127, 2.0**127], 0.0, np.inf),
        ([-(2.0**127), 1.0], [2.0, 2.0**127], 0.0, -(2.0**127)),
        ([2.0**-100, 2.0**-100], [2.0**-50, 2.0**-50], 0.0, 2.0**-149),
        ([2.0**-100, 0.0], [2.0**-50, 0.0], 0.0, 0.0),  # half of the smallest number: to even
        ([2.0**-100, 2.0**-133], [2.0**-50, 2.0**-133], 0.0, 2.0**-149),
        ([-(2.0**-100), 0.0], [2.0**-100, 0.0], 0.0, -0.0),  # not an exact zero: it keeps its sign
        ([2.0**-100, -(2.0**-100)], [2.0**-100, 2.0**-100], -0.0, 0.0),
        ([-0.0, 0.0], [1.0, -1.0], -0.0, 0.0),
        ([-(2.0**-100), 0.0, 0.0, 0.0], [2.0**-100, 0.0, -0.0, -0.0], 0.0, 0.0),  # -0 is the next block's zero
        # The largest float32, and half a unit more.
        ([2.0**64, -(2.0**51)], [2.0**64, 2.0**52], 0.0, np.inf),
        ([2.0**64, -(2.0**51) * 1.0078125], [2.0**64, 2.0**52], 0.0, 3.4028234663852886e38),
        ([np.inf, 1.0], [1.0, 1.0], 0.0, np.inf),
        ([np.inf, np.inf], [1.0, -1.0], 0.0, np.nan),
        ([-np.inf, 1.0], [0.0, 1.0], 0.0, np.nan),
        ([2.0**127, 1.0, -np.inf, 0.0], [2.0, 1.0, 1.0, 0.0], 0.0, np.nan),  # the first block has overflowed
        ([-np.inf, 1.0, 2.0**127, 0.0], [1.0, 1.0, 2.0, 0.0], 0.0, -np.inf),
        ([1.0, 1.0], [1.0, 1.0], -np.inf, -np.inf),
        ([1.0, np.nan], [1.0, 1.0], 0.0, np.nan),
    ],
)
def test_roundings_ranges_zeros_and_specials(a: Any, b: Any, c: float, want: float) -> None:
    x, y = np.array([a], np.float32), np.array([b], np.float32).T
    start, d = np.full((1, 1), c, np.float32), one_nan(np.full((1, 1), want, np.float32))
    assert_same_bits(exact(x, y, start, 2), d)
    assert_same_bits(general(x, y, start, 2), d)
    assert_same_bits(exact_block_gemm(x, y, start, 2), d)
    # Longer blocks take another way: here one of each block of 2, filled up with zeros.
    long_x, long_y = (np.pad(z.reshape(-1, 2), ((0, 0), (0, 3))).reshape(-1) for z in (x, y))
    assert_same_bits(exact_block_gemm(long_x[None], long_y[:, None], start, 5), d)


@settings(max_examples=EXAMPLES)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=12), st.booleans())
def test_the_long_accumulator_equals_the_twin(codes: list[int], cancel: bool) -> None:
    terms = np.array([*codes, *([code ^ twin.SIGN for code in codes[1:]] if cancel else [])], np.uint32)
    terms = terms[(terms & 0x7F800000) != 0x7F800000].view(np.float32)
    limbs = np.zeros(LIMBS, np.int64)
    products = terms.astype(np.float64) * terms[::-1].astype(np.float64)
    for product in products:
        add_exactly(product, limbs)
    numbers = [twin.number(word) for word in words(terms)]
    want = twin.add([x * y for x, y in zip(numbers, reversed(numbers), strict=True)])
    assert_same_bits(np.array([rounded_sum(limbs)], np.float32), np.array([want], np.uint32).view(np.float32))
    assert not limbs.any()


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32"])
@settings(max_examples=EXAMPLES)
@given(
    kind=st.sampled_from(KINDS),
    length=st.sampled_from([1, 2, 2, 3, 4, 4, 5, 8, 16, 17]),
    k=st.integers(0, 20),
    seed=st.integers(0, 10**9),
)
def test_kernels_equal_the_twin(name: str, kind: str, length: int, k: int, seed: int) -> None:
    a, b, c = problem(name, 3, k, 4, kind, seed)
    want = exact(a, b, c, length)
    assert_same_bits(exact_block_gemm(a, b, c, length), want)
    assert_same_bits(general(a, b, c, length), want)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
@settings(max_examples=EXAMPLES // 2)
@given(seed=st.integers(0, 10**9), columns=st.sampled_from([1, 5]), reach=st.sampled_from([30, 60, 90, 110]))
def test_sums_beside_midpoints_equal_the_twin(length: int, seed: int, columns: int, reach: int) -> None:
    a, b, c = near_ties(seed, length, columns, reach)
    assert_same_bits(exact_block_gemm(a, b, c, length), exact(a, b, c, length))


def block_of(terms: list[float], start: float) -> tuple[float, float]:
    """Return the sum of one block of products, and of three blocks: the first product, none, and the others."""
    row, c = np.array([terms], np.float32), np.full((1, 1), start, np.float32)
    first = np.where(np.arange(len(terms)) == 0, row, np.float32(0))
    chain = np.hstack([first, np.zeros_like(row), row - first])
    one, three = (exact_block_gemm(x, np.ones_like(x.T), c, len(terms)).item() for x in (row, chain))
    return one, three


@pytest.mark.parametrize("apart", range(40, 60, STEP))
def test_a_unit_far_below_two_terms_that_cancel(apart: int) -> None:
    big = 2.0**apart
    for terms in ([big, 1.0, -big, 0.0], [1.0, big, -big, 0.0], [-big, 0.0, 1.0, big]):
        assert block_of(terms, 0.0)[0] == 1.0
        assert block_of([*terms, 0.0, 0.0, 0.0, 0.0], 0.0)[0] == 1.0
    assert block_of([1.0, 0.0, big, 0.0], -big)[0] == 1.0
    assert block_of([big, 1.0], -big)[0] == 1.0


@pytest.mark.parametrize("apart", range(25, 60, STEP))
def test_a_small_term_decides_a_tie(apart: int) -> None:
    # In one block, and in a block that comes after the large term.
    tie, small = 2.0**-24, 2.0**-apart
    for length in (2, 3, 4, 8):
        terms = [1.0, tie, small, *[0.0] * (length - 3)]
        if length > 2:
            assert block_of(terms, 0.0) == (1 + 2.0**-23,) * 2
            assert block_of([1.0, tie, -small, *terms[3:]], 0.0) == (1.0,) * 2
        assert block_of([tie, small, *[0.0] * (length - 2)], 1.0)[0] == 1 + 2.0**-23
        assert block_of([tie, -small, *[0.0] * (length - 2)], 1.0)[0] == 1.0


@pytest.mark.parametrize("apart", range(40, 56, STEP))
@pytest.mark.parametrize("place", range(40, 56, STEP))
def test_a_tie_far_below_two_terms_that_cancel(place: int, apart: int) -> None:
    # Where the parts above and below the grid end, and where the lower one runs out of bits.
    big, one = 2.0**60, 2.0 ** (60 - place)
    terms = [one, one * 2.0**-24, big, one * 2.0**-apart]
    for shift in range(4):
        assert block_of([*terms[shift:], *terms[:shift]], -big)[0] == one * (1 + 2.0**-23)
    terms[3] *= -1
    for shift in range(4):
        assert block_of([*terms[shift:], *terms[:shift]], -big)[0] == one


def test_sums_beside_midpoints_are_there() -> None:
    # The generator is worth something: many sums are exact ties, and many would be wrong if they were rounded twice.
    a, b, c = near_ties(1, 2, 8 * COLUMNS, 90)
    terms = np.vstack([c, a.T * b]).astype(np.float64)
    total = terms.sum(axis=0)
    once = general(a, b, c, 2)[0]
    halves = np.abs(total / np.spacing(np.abs(once))) % 1 == 0.5
    assert halves.sum() > COLUMNS
    assert (total.astype(np.float32) != once).sum() > COLUMNS // 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 4, 6, 16])
@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32"])
def test_the_ways_of_adding_up_agree(name: str, length: int, kind: str) -> None:
    a, b, c = problem(name, SIZE, SIZE + 3, SIZE + 7, kind)
    assert_same_bits(exact_block_gemm(a, b, c, length), general(a, b, c, length))
    assert_same_bits(exact_block_gemm(a, b, None, length), general(a, b, np.zeros_like(c), length))


@pytest.mark.parametrize("kind", ["close", "far", "zeros"])
def test_one_rounding_over_all_of_k(kind: str) -> None:
    for name in ("fp16", "bf16", "fp32"):
        a, b, c = problem(name, 3, 2 * SIZE + 10, 4, kind)
        want = exact(a, b, c, a.shape[1])
        assert_same_bits(exact_gemm(a, b, c), want)
        assert_same_bits(exact_block_gemm(a, b, c, 1000), want)
    nothing = exact_gemm(a[:, :0], b[:0], c)
    assert_same_bits(nothing, np.where(c == 0, np.float32(0), c))


def test_each_way_is_right_where_it_is_taken() -> None:
    # The lanes called one by one on the same block: small integers, which every way can add.
    rng = np.random.default_rng(8)
    for length in (2, 4):
        a = rng.integers(-9, 10, length).astype(np.float64)
        b = rng.integers(-9, 10, (length, COLUMNS)).astype(np.float64)
        c = rng.integers(-99, 100, COLUMNS).astype(np.float32)
        want = c + (a @ b).astype(np.float32)
        with default_environment():
            for block in (exact_block_2, pair_block) if length == 2 else (exact_block_4,):
                d = c.copy()
                block(a, b, d)
                assert_same_bits(d, want)
            if length == 4:
                d, anchor = c.copy(), 1.5 * 2.0**52
                high, low = np.full(COLUMNS, anchor), np.zeros(COLUMNS)
                cut_products(a, b, high, low)
                assert (high != anchor).any()
                round_cut(high, low, anchor, d)
                assert_same_bits(d, want)


@pytest.mark.parametrize("name", ["16x16x4f16", "16x16x16f16", "16x16x2bf16", "16x16x8bf16"])
def test_published_model_outputs_of_cdna1(name: str) -> None:
    with np.load(vectors("matrix-units", f"cdna1_mfma_f32_{name}.npz")) as file:
        tiles = dict(file)
    fmt = {"f16": "fp16", "bf16": "bf16"}[json.loads(str(tiles["meta"]))["a_format"]]
    a, b = values(tiles["a"], fmt), values(tiles["b"], fmt)
    c, want = tiles["c"].view(np.float32), one_nan(tiles["d"].view(np.float32))
    assert a.shape[0] >= 10
    for t in range(0, a.shape[0], STEP):
        assert_same_bits(exact_block_gemm(a[t], b[t], c[t], LENGTHS[fmt]), want[t])


@pytest.mark.parametrize("shape", [(0, 5, 3), (3, 5, 0), (3, 0, 2), (0, 0, 0), (1, 1, 1)])
def test_empty_and_tiny_shapes(shape: tuple[int, int, int]) -> None:
    a, b, c = problem("bf16", *shape, "zeros")
    for length in (2, 4):
        assert_same_bits(exact_block_gemm(a, b, c, length), general(a, b, c, length))


def test_accumulators_that_grow_and_vanish() -> None:
    # What is known of the accumulators must follow them: large sums that cancel, then products far below.
    rng = np.random.default_rng(3)
    blocks = ROWS // 2 + 5
    exponents = np.repeat(rng.choice([-40, -12, 0, 3, 30], blocks), 4)
    a = np.ldexp(rng.integers(1, 2048, (ROWS, 4 * blocks)), exponents).astype(np.float32)
    b = (rng.integers(-1024, 1025, (4 * blocks, COLUMNS // 8))).astype(np.float32)
    a[:, 4:8], b[4:8] = -a[:, :4], b[:4]
    c = np.zeros((ROWS, b.shape[1]), np.float32)
    assert_same_bits(exact_block_gemm(a, b, c, 4), general(a, b, c, 4))
    assert_same_bits(exact_block_gemm(a, b, c, 2), general(a, b, c, 2))


def test_threads_panels_and_strides_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, length in (("fp16", 4), ("bf16", 2)):
        a, b, c = problem(name, ROWS, 10, 100, "any")
        want = exact_block_gemm(a, b, c, length)
        strided = a[::-1, ::-1].copy()[::-1, ::-1], b.T.copy().T, np.asfortranarray(c)
        assert_same_bits(exact_block_gemm(*strided, length), want)
        a.flags.writeable = False
        assert_same_bits(exact_block_gemm(a, np.broadcast_to(b, b.shape), c, length), want)
        monkeypatch.setattr(exact_blocks, "_BLOCK", 1)
        monkeypatch.setattr(exact_blocks, "_WORK", 1)
        before = numba.get_num_threads()
        try:
            for threads in range(1, min(numba.config.NUMBA_NUM_THREADS, 2) + 1):
                numba.set_num_threads(threads)
                assert_same_bits(exact_block_gemm(a, b, c, length), want)
        finally:
            numba.set_num_threads(before)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="MXCSR is set through Numba, which is disabled")
@pytest.mark.parametrize(
    "state",
    [fpu.FTZ | fpu.DAZ, fpu.ROUND_DOWN, fpu.ROUND_UP, fpu.ROUND_TO_ZERO, fpu.ROUND_UP | fpu.FTZ | fpu.DAZ],
    ids=["FTZ DAZ", "down", "up", "to zero", "up FTZ DAZ"],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "length"), [("fp16", 4), ("bf16", 2), ("bf16", 4), ("fp32", 41)])
def test_the_state_of_the_processor_changes_nothing(name: str, length: int, kind: str, state: int) -> None:
    a, b, c = problem(name, 30, 41, 50, kind)
    want = exact_block_gemm(a, b, c, length)
    with fpu.mxcsr(fpu.DEFAULT | state):
        got = exact_block_gemm(a, b, c, length)
    assert_same_bits(got, want)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "length"), [("fp16", 4), ("bf16", 2), ("bf16", 4), ("fp32", 2)])
def test_a_million_blocks_of_every_kind(name: str, length: int, kind: str) -> None:
    blocks = 0
    for seed in range(1, 5):
        a, b, c = problem(name, 128, 4 * length, 512, kind, seed)
        assert_same_bits(exact_block_gemm(a, b, c, length), general(a, b, c, length))
        blocks += c.size * 4
    assert blocks >= 10**6


@pytest.mark.long
@pytest.mark.parametrize("reach", [30, 60, 90, 110])
@pytest.mark.parametrize("length", [2, 4])
def test_a_million_sums_beside_midpoints(length: int, reach: int) -> None:
    blocks = 0
    for seed in range(2048):
        a, b, c = near_ties(seed, length, 512, reach)
        assert_same_bits(exact_block_gemm(a, b, c, length), general(a, b, c, length))
        blocks += c.size
    assert blocks >= 10**6
