"""Flushed products and pairwise sums against the exact twin, float32 operations of NumPy, and published outputs."""

import json
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mxcsr as fpu
from bits import assert_same_bits
from mpsim_kernels import flushed_pairs
from mpsim_kernels.flushed_pairs import flushed_pair_gemm
from reference import flushed_pairs as twin
from vectors import vectors

Floats = np.ndarray[Any, Any]

EXAMPLES = 20 if numba.config.DISABLE_JIT else 200
SIZE = 12 if numba.config.DISABLE_JIT else 60
EMIN = {"fp16": -14, "bf16": -126}
UNITS = [("fp16", 4), ("fp16", 2), ("bf16", 4), ("bf16", 2)]
NAN = np.uint32(0x7FC00000)


def values(codes: Floats, name: str) -> Floats:
    """Return the float32 numbers of codes."""
    if name == "fp16":
        return codes.astype(np.uint16).view(np.float16).astype(np.float32)
    return (codes.astype(np.uint32) << 16).view(np.float32)


def words(x: Floats) -> list[list[int]]:
    return np.ascontiguousarray(x, np.float32).view(np.uint32).tolist()


def exact(a: Floats, b: Floats, c: Floats, length: int, emin: tuple[int, int]) -> Floats:
    """Return the twin's result."""
    return np.array(twin.matmul(words(a), words(b.T), words(c), length, emin), np.uint32).view(np.float32)


def flushed(x: Floats) -> Floats:
    word = x.view(np.uint32)
    return np.where(word & 0x7F800000 == 0, word & 0x80000000, word).astype(np.uint32).view(np.float32)


def plain(a: Floats, b: Floats, c: Floats, length: int, emin: tuple[int, int]) -> Floats:
    """Return the result in NumPy's float32 operations."""
    missing = -a.shape[1] % length
    a, b = np.pad(a, ((0, 0), (0, missing))), np.pad(b, ((0, missing), (0, 0)))
    a, b, d = (np.where(np.abs(x) < 2.0**e, np.float32(0), x) for x, e in ((a, emin[0]), (b, emin[1]), (c, -126)))
    with np.errstate(all="ignore"):
        for k in range(0, a.shape[1], length):
            sums = []
            for x, y in ((a[:, i, None], b[None, i]) for i in range(k, k + length)):
                # A product that is exactly zero is +0. That of two nonzero numbers keeps its sign.
                zero = (x == 0) & np.isfinite(y) | (y == 0) & np.isfinite(x)
                sums.append(np.where(zero, np.float32(0), flushed(x * y)))
            while len(sums) > 1:
                sums = [flushed(sums[i] + sums[i + 1]) for i in range(0, len(sums), 2)]
            d = flushed(d + sums[0])
    return one_nan(d)


def one_nan(x: Floats) -> Floats:
    return np.where(np.isnan(x), NAN, x.view(np.uint32)).astype(np.uint32).view(np.float32)


KINDS = ("any", "close", "tiny", "huge", "zeros", "special")


def random_values(rng: np.random.Generator, shape: tuple[int, int], name: str, kind: str) -> Floats:
    """Return values of a format: any, or with exponents whose products lie at a boundary, or with specials."""
    m, w = (10, 5) if name == "fp16" else (7, 8)
    bias, top = (1 << (w - 1)) - 1, (1 << w) - 1
    if kind == "any":
        return values(rng.integers(0, 1 << 16, shape), name)
    middle = {"tiny": bias - 62 if name == "bf16" else 1, "huge": bias + 63 if name == "bf16" else top - 2}
    field = middle.get(kind, bias) + rng.integers(-3, 4, shape)
    fraction = rng.integers(0, 1 << m, shape)
    fraction = np.where(rng.random(shape) < 0.3, rng.choice([0, 1, (1 << m) - 1], shape), fraction)
    codes = rng.integers(0, 2, shape) << 15 | np.clip(field, 0, top - 1) << m | fraction
    if kind == "zeros":
        codes = np.where(rng.random(shape) < 0.6, codes & 0x8000, codes)
    if kind == "special":
        codes = np.where(rng.random(shape) < 0.05, rng.choice([0, 1, top << m, 1 << 15 | top << m], shape), codes)
        codes = np.where(rng.random(shape) < 0.005, top << m | 1, codes)
    return values(codes, name)


def random_accumulators(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> Floats:
    """Return float32 of any fraction whose exponents suit those of the products."""
    if kind == "any":
        return rng.integers(0, 1 << 32, shape, dtype=np.uint32).view(np.float32)
    middle = {"tiny": 2, "huge": 252}.get(kind, 127)
    field = np.clip(middle + rng.integers(-5, 6, shape), 0, 254)
    field = np.where(rng.random(shape) < 0.1, 0, field)
    fraction = np.where(rng.random(shape) < 0.3, 0, rng.integers(0, 1 << 23, shape))
    return (rng.integers(0, 2, shape) << 31 | field << 23 | fraction).astype(np.uint32).view(np.float32)


def problem(name: str, m: int, k: int, n: int, kind: str, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng([seed, *f"{name} {kind}".encode()])
    a, b = random_values(rng, (m, k), name, kind), random_values(rng, (k, n), name, kind)
    if k > 1 and kind != "any":
        # Half of the rows cancel in pairs, but for what the last bits say.
        a[::2, 1::2], b[1::2] = -a[::2, 0 : k // 2 * 2 : 2], b[0 : k // 2 * 2 : 2]
    return a, b, random_accumulators(rng, (m, n), kind)


def both(name: str) -> tuple[int, int]:
    return EMIN[name], EMIN[name]


@pytest.mark.parametrize(("length", "want"), [(4, 0.0), (2, -0.375)])
@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_small_products_beside_a_cancelling_pair(name: str, length: int, want: float) -> None:
    a = np.array([[-(2.0**13), -0.5, -0.25, -0.125]], np.float32)
    b = np.array([[2.0**10], [1.0], [1.0], [1.0]], np.float32)
    c = np.array([[2.0**23]], np.float32)
    assert exact(a, b, c, length, both(name)).item() == want
    assert flushed_pair_gemm(a, b, c, length, both(name)).item() == want


@pytest.mark.parametrize(
    ("a", "b", "c", "want"),
    [
        ([2.0**-15], [1.0], 0.0, 0.0),  # a subnormal operand
        ([-0.0], [1.0], -0.0, 0.0),
        ([1.0], [1.0], -(2.0**-127), 1.0),
        ([0.0], [0.0], 2.0**-127, 0.0),  # a subnormal accumulator
        ([0.0], [0.0], -(2.0**-126), -(2.0**-126)),
        ([np.inf], [0.0], 0.0, np.nan),
        ([np.inf], [2.0**-15], 0.0, np.nan),  # of an infinity and what is flushed
        ([np.inf, np.inf], [1.0, -1.0], 0.0, np.nan),
        ([np.inf], [-1.0], 1.0, -np.inf),
        ([1.0], [1.0], np.nan, np.nan),
    ],
)
def test_flushed_operands_and_specials_of_fp16(a: Any, b: Any, c: float, want: float) -> None:
    x, y = np.array([a], np.float32), np.array([b], np.float32).T
    start, d = np.full((1, 1), c, np.float32), one_nan(np.full((1, 1), want, np.float32))
    for length in (2, 4):
        assert_same_bits(exact(x, y, start, length, both("fp16")), d)
        assert_same_bits(flushed_pair_gemm(x, y, start, length, both("fp16")), d)


@pytest.mark.parametrize(
    ("a", "b", "c", "want"),
    [
        # A block whose products are flushed to -0 leaves the accumulator -0 only where that was -0 by a flush.
        ([2.0**-100, 2.0**-100], [-(2.0**-100), -(2.0**-100)], 0.0, 0.0),
        ([-(2.0**-100)], [2.0**-100], -0.0, 0.0),
        # 2**-126 * 1.0078125 - 2**-126 is subnormal and negative: flushed to -0, which a block of -0 leaves alone.
        ([2.0**-63], [2.0**-63], -(2.0**-126) * 1.0078125, -0.0),
        ([2.0**-63, 0.0, -1e-30, -1e-30], [2.0**-63, 0.0, 1e-30, 1e-30], -(2.0**-126) * 1.0078125, -0.0),
        ([2.0**-63, 0.0, -1e-30, 0.0], [2.0**-63, 0.0, 1e-30, -1.0], -(2.0**-126) * 1.0078125, 0.0),
        # The sum of two halves of the smallest normal number is 0, for each is flushed.
        ([2.0**-64, 2.0**-64], [2.0**-63, 2.0**-63], 0.0, 0.0),
        ([2.0**-63 * 1.9921875], [2.0**-64 * 1.9921875], 0.0, 2.0**-127 * 1.9921875**2),
        ([2.0**-64 * 1.9921875], [2.0**-64 * 1.9921875], 0.0, 0.0),  # 2**-126 - 2**-132 - ...: no rounding reaches it
        # An overflow inside a block is an infinity, though the exact sum would be small.
        ([2.0**64, -(2.0**64)], [2.0**64, 2.0**64], 0.0, np.nan),
        ([2.0**64, 1.0], [2.0**64, 1.0], 1.0, np.inf),
    ],
)
def test_flushed_results_of_bf16(a: Any, b: Any, c: float, want: float) -> None:
    x, y = np.array([a], np.float32), np.array([b], np.float32).T
    x, y = ((z.view(np.uint32) & 0xFFFF0000).view(np.float32) for z in (x, y))
    start, d = np.full((1, 1), c, np.float32), one_nan(np.full((1, 1), want, np.float32))
    assert_same_bits(exact(x, y, start, 2, both("bf16")), d)
    assert_same_bits(flushed_pair_gemm(x, y, start, 2, both("bf16")), d)


@pytest.mark.parametrize(("name", "length"), UNITS)
@settings(max_examples=EXAMPLES)
@given(kind=st.sampled_from(KINDS), kind_c=st.sampled_from(KINDS), k=st.integers(0, 9), seed=st.integers(0, 10**9))
def test_kernel_and_numpy_equal_the_twin(name: str, length: int, kind: str, kind_c: str, k: int, seed: int) -> None:
    a, b, _ = problem(name, 3, k, 4, kind, seed)
    c = random_accumulators(np.random.default_rng(seed), (3, 4), kind_c)
    want = exact(a, b, c, length, both(name))
    assert_same_bits(flushed_pair_gemm(a, b, c, length, both(name)), want)
    assert_same_bits(plain(a, b, c, length, both(name)), want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "length"), UNITS)
def test_products_of_every_kind_equal_numpy(name: str, length: int, kind: str) -> None:
    a, b, c = problem(name, SIZE, SIZE + 3, SIZE + 7, kind)
    assert_same_bits(flushed_pair_gemm(a, b, c, length, both(name)), plain(a, b, c, length, both(name)))
    zero = np.zeros_like(c)
    assert_same_bits(flushed_pair_gemm(a, b, None, length, both(name)), plain(a, b, zero, length, both(name)))


@pytest.mark.parametrize("exponent", [-62, -58, -54, -50, -46, -42, -40, -39, -38])
@pytest.mark.parametrize("length", [2, 4])
def test_nothing_is_flushed_above_the_bound_that_says_so(length: int, exponent: int) -> None:
    # Products that cancel but for their last bits, and accumulators that cancel most of what is left.
    rng = np.random.default_rng(exponent + 100)
    a, b = (np.zeros(shape, np.float32) for shape in ((SIZE, length), (length, SIZE)))
    a[:, 0], a[:, 1] = rng.integers(128, 140, (2, SIZE)) * [[2.0 ** (exponent - 7)], [-(2.0 ** (exponent - 7))]]
    b[:2] = rng.integers(128, 140, (2, SIZE)) * 2.0 ** (exponent - 7)
    zero = np.zeros((SIZE, SIZE), np.float32)
    first = plain(a, b, zero, length, both("bf16"))
    c = np.nextafter(-first, rng.choice([-1, 1], first.shape).astype(np.float32))
    assert_same_bits(flushed_pair_gemm(a, b, c, length, both("bf16")), plain(a, b, c, length, both("bf16")))


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="needs machine code to end in time")
@pytest.mark.parametrize("sign", [1, -1])
def test_every_product_of_bf16_significands_about_the_smallest_normal_number(sign: int) -> None:
    significands = np.arange(128, 256) / 128
    a = (significands * 2.0**-63)[:, None].astype(np.float32)
    for exponent in (-62, -63, -64, -65, -100):
        b = (sign * significands * 2.0**exponent)[None, :].astype(np.float32)
        # Beside -0 from an earlier block, the sign of what was flushed can be seen.
        c = np.full((128, 128), -(2.0**-126), np.float32)
        cancelling = np.full((128, 1), 2.0**-63 * 1.0078125 * -sign, np.float32)
        for left, right in ((a, b), (np.hstack([cancelling, a * 0, a]), np.vstack([b[:1] * 0 + 1, b * 0, b]))):
            got = flushed_pair_gemm(left, right, c, 2, both("bf16"))
            assert_same_bits(got, plain(left, right, c, 2, both("bf16")))


@pytest.mark.parametrize("name", ["16x16x4f16", "16x16x16f16", "16x16x4bf16_1k", "16x16x16bf16_1k",
                                  "16x16x2bf16", "16x16x8bf16"])  # fmt: skip
def test_published_model_outputs_of_cdna2(name: str) -> None:
    with np.load(vectors("matrix-units", f"cdna2_mfma_f32_{name}.npz")) as file:
        tiles = dict(file)
    fmt = {"f16": "fp16", "bf16": "bf16"}[json.loads(str(tiles["meta"]))["a_format"]]
    length = 2 if name.endswith("bf16") else 4
    a, b = values(tiles["a"], fmt), values(tiles["b"], fmt)
    c, want = tiles["c"].view(np.float32), one_nan(tiles["d"].view(np.float32))
    assert a.shape[0] >= 10
    for t in range(a.shape[0]):
        assert_same_bits(flushed_pair_gemm(a[t], b[t], c[t], length, both(fmt)), want[t])


def test_blocks_are_filled_up_with_zeros() -> None:
    a, b, c = problem("bf16", 5, 7, 6, "tiny")
    padded = np.pad(a, ((0, 0), (0, 1))), np.pad(b, ((0, 1), (0, 0)))
    for length in (2, 4):
        got = flushed_pair_gemm(a, b, c, length, both("bf16"))
        assert_same_bits(got, flushed_pair_gemm(*padded, c, length, both("bf16")))


@pytest.mark.parametrize("shape", [(0, 5, 3), (3, 5, 0), (3, 0, 2), (0, 0, 0), (1, 1, 1)])
def test_empty_and_tiny_shapes(shape: tuple[int, int, int]) -> None:
    a, b, c = problem("bf16", *shape, "tiny")
    assert_same_bits(flushed_pair_gemm(a, b, c, 4, both("bf16")), plain(a, b, c, 4, both("bf16")))


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one thread only")
def test_threads_panels_and_strides_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = problem("bf16", 70, 10, 100, "special")
    want = flushed_pair_gemm(a, b, c, 4, both("bf16"))
    strided = a[::-1, ::-1].copy()[::-1, ::-1], b.T.copy().T, np.asfortranarray(c)
    assert_same_bits(flushed_pair_gemm(*strided, 4, both("bf16")), want)
    a.flags.writeable = False
    assert_same_bits(flushed_pair_gemm(a, np.broadcast_to(b, b.shape), c, 4, both("bf16")), want)
    monkeypatch.setattr(flushed_pairs, "_PANEL", 32)
    monkeypatch.setattr(flushed_pairs, "_WORK", 1)
    before = numba.get_num_threads()
    try:
        for threads in (1, 2):
            numba.set_num_threads(threads)
            assert_same_bits(flushed_pair_gemm(a, b, c, 4, both("bf16")), want)
    finally:
        numba.set_num_threads(before)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="MXCSR is set through Numba, which is disabled")
@pytest.mark.parametrize(
    "state",
    [fpu.FTZ | fpu.DAZ, fpu.ROUND_DOWN, fpu.ROUND_UP, fpu.ROUND_TO_ZERO, fpu.ROUND_UP | fpu.FTZ | fpu.DAZ],
    ids=["FTZ DAZ", "down", "up", "to zero", "up FTZ DAZ"],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "length"), UNITS)
def test_the_state_of_the_processor_changes_nothing(name: str, length: int, kind: str, state: int) -> None:
    a, b, c = problem(name, 30, 41, 50, kind)
    want = flushed_pair_gemm(a, b, c, length, both(name))
    with fpu.mxcsr(fpu.DEFAULT | state):
        got = flushed_pair_gemm(a, b, c, length, both(name))
    assert_same_bits(got, want)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "length"), UNITS)
def test_a_million_blocks_of_every_kind(name: str, length: int, kind: str) -> None:
    blocks = 0
    for seed in range(1, 5):
        a, b, c = problem(name, 128, 8 * length, 250, kind, seed)
        assert_same_bits(flushed_pair_gemm(a, b, c, length, both(name)), plain(a, b, c, length, both(name)))
        blocks += c.size * 8
    assert blocks >= 10**6
