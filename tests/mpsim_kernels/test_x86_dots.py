"""VDPBF16PS against real processors, AMX against the manual's pseudo code, both against exact twins and themselves."""

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mxcsr as fpu
from bits import assert_same_bits
from mpsim_kernels import fma_chain, x86_dots
from mpsim_kernels.floating_point import FLUSHES_AFTER_ROUNDING
from reference import fma_chain as ieee
from reference import x86_dots as twin
from reference.chain_cases import BF16_KINDS, bf16_case
from vectors import vectors

Words = np.ndarray[Any, Any]

SIZES = (3, 10, 5) if numba.config.DISABLE_JIT else (13, 40, 36)


@pytest.fixture(params=["processor", "loops"])
def flush(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the processor flush tiny results, or the loops."""
    if request.param == "loops":
        monkeypatch.setattr(x86_dots, "FLUSHES_AFTER_ROUNDING", False)
    elif not FLUSHES_AFTER_ROUNDING:
        pytest.skip("plain Python, or a processor that judges tininess before rounding")
    return str(request.param)


def vdpbf16ps(a: Words, b: Words, c: Words | None) -> Words:
    """Return the words of the product of words."""
    floats = (None if x is None else x.view(np.float32) for x in (a, b, c))
    return x86_dots.vdpbf16ps_gemm(*floats).view(np.uint32)


def amx(a: Words, b: Words, c: Words | None, *options: Any) -> Words:
    floats = (None if x is None else x.view(np.float32) for x in (a, b, c))
    return x86_dots.amx_gemm(*floats, *options).view(np.uint32)


@pytest.mark.parametrize("kind", BF16_KINDS)
@pytest.mark.parametrize("k", [0, 1, 2, 7, 12])
@pytest.mark.usefixtures("flush")
def test_vdpbf16ps_is_its_twin(k: int, kind: str) -> None:
    a, b, c = bf16_case(np.random.default_rng(k), 6, k, 10, kind)
    assert_same_bits(vdpbf16ps(a, b, c), ieee.matmul(twin.vdpbf16ps_chain, a, b, c))
    nothing = np.zeros_like(c)
    assert_same_bits(vdpbf16ps(a, b, None), ieee.matmul(twin.vdpbf16ps_chain, a, b, nothing))


@pytest.mark.parametrize("kind", BF16_KINDS)
@pytest.mark.parametrize(("k", "tile_k"), [(1, 32), (33, 32), (71, 32), (9, 4)])
@pytest.mark.parametrize("guide", [False, True])
@pytest.mark.parametrize("daz", [False, True])
@pytest.mark.usefixtures("flush")
def test_amx_is_its_twin(daz: bool, guide: bool, k: int, tile_k: int, kind: str) -> None:
    a, b, c = bf16_case(np.random.default_rng(k), 3, k, 4, kind)

    def one(row: Any, column: Any, start: int) -> int:
        return twin.tiles(row, column, start, keep=not daz, tile_k=tile_k, older=guide)

    assert_same_bits(amx(a, b, c, daz, tile_k, guide), ieee.matmul(one, a, b, c))


@pytest.mark.parametrize("k", [2, 35])
@pytest.mark.usefixtures("flush")
def test_fp16_tiles_keep_the_subnormals_of_fp16(k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = (rng.integers(0, 0x0C00, shape, np.uint16).view(np.float16).astype(np.float32) for shape in ((4, k), (k, 5)))
    a[rng.random(a.shape) < 0.5] *= -1
    c = rng.integers(0, 1 << 32, (4, 5), np.uint32)
    words = a.view(np.uint32), b.view(np.uint32), c
    want = ieee.matmul(lambda *x: twin.tiles(*x, keep=True, tile_k=32), *words)
    assert_same_bits(amx(*words, False), want)


def test_the_two_orders_of_amx_differ() -> None:
    # 2**24 + 1 + 1: both ones at a time are lost, their sum is not.
    a = np.array([[0, 1, 0, 1]], np.float32)
    b, c = np.ones((4, 1), np.float32), np.full((1, 1), 2.0**24, np.float32)
    assert x86_dots.amx_gemm(a, b, c, True) == 2**24 + 2
    assert x86_dots.amx_gemm(a, b, c, True, guide=True) == 2**24


def test_the_odd_product_comes_first() -> None:
    a, b = np.array([[1, 2.0**12]], np.float32), np.array([[1], [2.0**12]], np.float32)
    assert x86_dots.vdpbf16ps_gemm(a, b, np.full((1, 1), -(2.0**24), np.float32)) == 1


def test_tiny_is_judged_after_rounding() -> None:
    # 2**-126 less three quarters, and less half, of the last place of 24 bits below it.
    c = np.full((1, 1), 2.0**-126, np.float32)
    for quarters, want in ((3, 0.0), (2, 2.0**-126)):
        a, b = np.array([[-(2.0**-76) * quarters]], np.float32), np.full((1, 1), 2.0**-76, np.float32)
        assert x86_dots.vdpbf16ps_gemm(a, b, c) == want


codes = st.one_of(
    st.integers(0, 0xFFFF),
    st.builds(lambda s, e, f: s << 15 | e << 7 | f, st.integers(0, 1), st.integers(60, 68), st.integers(0, 127)),
    st.sampled_from([0, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFF81, 0x7F81]),
)


@given(st.lists(codes, min_size=4, max_size=4), st.integers(0, 0xFFFFFFFF), st.integers(0, 5))
def test_single_steps(pairs: list[int], start: int, exponent: int) -> None:
    a, b = (np.array(x, np.uint32) << 16 for x in (pairs[:2], pairs[2:]))
    for c in (start, (start & 0x807FFFFF) | exponent << 23):
        got = vdpbf16ps(a[None], b[:, None], np.array([[c]], np.uint32))
        assert_same_bits(got, np.array([[twin.vdpbf16ps(c, a.tolist(), b.tolist())]], np.uint32))


def bf16(codes: Words) -> Words:
    return codes.astype(np.uint32) << np.uint32(16)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="many minutes without compilation")
@pytest.mark.parametrize(
    ("path", "result", "count"), [("x86_vdpbf16ps.npz", "d", 40960), ("x86/vdpbf16ps.npz", "z", 23991)]
)
@pytest.mark.usefixtures("flush")
def test_lanes_recorded_on_a_processor(path: str, result: str, count: int) -> None:
    with np.load(vectors("hardware", path)) as file:
        a, b, c, want = bf16(file["a"]), bf16(file["b"]), file["c"], file[result]
    assert want.size == count
    got = np.concatenate([vdpbf16ps(a[i : i + 1], b[i : i + 1].T, c[i : i + 1, None])[0] for i in range(count)])
    assert_same_bits(got, want)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="minutes without compilation")
@pytest.mark.usefixtures("flush")
def test_products_of_matrices_recorded_on_a_processor() -> None:
    with np.load(vectors("hardware", "x86", "vdpbf16ps_gemm.npz")) as file:
        keys = [key.removeprefix("A_") for key in file if key.startswith("A_")]
        assert len(keys) == 14
        for key in keys:
            a, b = bf16(file[f"A_{key}"]), bf16(file[f"Bt_{key}"]).T
            assert_same_bits(vdpbf16ps(a, b, file[f"C_{key}"]), file[f"D_{key}"])


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="minutes without compilation")
@pytest.mark.usefixtures("flush")
def test_torch_adds_chains_over_blocks_of_k() -> None:
    # oneDNN cuts K into blocks of 512, or of 1024 where K is more than that, and adds their results in float32.
    compared = 0
    with np.load(vectors("hardware", "x86", "torch_cpu_mm.npz")) as file:
        for key in (key.removeprefix("A_") for key in file if key.startswith("A_bf16")):
            a, b = bf16(file[f"A_{key}"]), bf16(file[f"Bt_{key}"]).T
            (m, k), n = a.shape, b.shape[1]
            if m * n * k <= 4096:
                continue  # computed by another library
            block = 512 if k <= 1024 else 1024
            parts = [vdpbf16ps(a[:, g : g + block], b[g : g + block], None) for g in range(0, k, block)]
            total = sum((part.view(np.float32) for part in parts[1:]), start=parts[0].view(np.float32))
            words = ieee.flushed_words(total.view(np.uint32))
            nearest = (words + 0x7FFF + (words >> 16 & 1)) >> 16
            assert np.isfinite(total).all()
            assert_same_bits(nearest.astype(np.uint16), file[f"D_{key}"])
            compared += total.size
    assert compared == 9 * 1024 + 6 * 256


def problem(kind: str) -> tuple[Words, Words, Words]:
    return bf16_case(np.random.default_rng(9), *SIZES, kind)


def products(kind: str) -> list[Words]:
    a, b, c = problem(kind)
    return [vdpbf16ps(a, b, c), amx(a, b, c, True), amx(a, b, c, False, 8), amx(a, b, c, True, 32, True)]


@pytest.fixture
def small_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cut work into threads however small it is."""
    for module, name in ((fma_chain, "_WORK"), (fma_chain, "_ELEMENTS"), (x86_dots, "_ELEMENTS")):
        monkeypatch.setattr(module, name, 1)
    before = numba.get_num_threads()
    yield
    numba.set_num_threads(before)


@pytest.mark.parametrize("kind", ["close", "low", "special"])
@pytest.mark.usefixtures("flush", "small_work")
def test_threads_change_nothing(kind: str) -> None:
    numba.set_num_threads(1)
    one = products(kind)
    numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
    for got, want in zip(products(kind), one, strict=True):
        assert_same_bits(got, want)


@pytest.mark.parametrize("kind", ["close", "low", "tiny", "edge", "special"])
@pytest.mark.parametrize("state", [fpu.FTZ | fpu.DAZ, fpu.ROUND_DOWN, fpu.ROUND_UP | fpu.DAZ, fpu.ROUND_TO_ZERO])
@pytest.mark.usefixtures("flush")
def test_the_state_of_the_processor_changes_nothing(state: int, kind: str) -> None:
    with fpu.mxcsr(fpu.DEFAULT | state):
        inside = products(kind)
    for got, want in zip(inside, products(kind), strict=True):
        assert_same_bits(got, want)


@pytest.mark.usefixtures("flush")
def test_strides_change_nothing() -> None:
    a, b, c = problem("low")
    want = vdpbf16ps(a, b, c), amx(a, b, c, True)
    apart = np.repeat(a, 2, axis=0)[::2], b.T.copy().T, np.asfortranarray(c)
    floats = [x.view(np.float32) for x in apart]
    assert_same_bits(x86_dots.vdpbf16ps_gemm(*floats).view(np.uint32), want[0])
    assert_same_bits(x86_dots.amx_gemm(*floats, True).view(np.uint32), want[1])


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="a minute without compilation")
@pytest.mark.usefixtures("flush")
def test_more_rows_and_columns_than_a_tile_and_a_panel() -> None:
    a, b, c = bf16_case(np.random.default_rng(3), 67, 3, 530, "low")
    for compute in (vdpbf16ps, lambda *x: amx(*x, True)):
        whole = compute(a, b, c)
        for rows, columns in (
            (slice(64, 67), slice(0, 2)),
            (slice(0, 1), slice(255, 275)),
            (slice(5, 6), slice(528, 530)),
        ):
            assert_same_bits(compute(a[rows], b[:, columns], c[rows, columns]), whole[rows, columns])


@pytest.mark.parametrize("shape", [(0, 5, 3), (3, 5, 0), (3, 0, 2), (0, 0, 0)])
def test_empty_shapes(shape: tuple[int, int, int]) -> None:
    a, b, c = bf16_case(np.random.default_rng(0), *shape, "special")
    for got in (vdpbf16ps(a, b, c), amx(a, b, c, True)):
        assert_same_bits(got, c if shape[1] == 0 else np.empty_like(c))
    assert_same_bits(vdpbf16ps(a, b, None), np.zeros_like(c))


def chain_in_arrays(a: Words, b: Words, c: Words) -> Words:
    """Return the twin's chain of VDPBF16PS in arrays, for operands without NaN."""
    a, b, c = (ieee.flushed_words(x) for x in (a, b, c))
    for k in range(0, a.shape[1], 2):
        for i in (k + 1, k):
            x, y = np.broadcast_arrays(a[:, i : i + 1], b[i])
            c = ieee.rounded_sums(ieee.product(x, y), ieee.terms(c), flush=True)
    return np.where(c == ieee.default_nan(), twin.INDEFINITE, c).astype(np.uint32)


def compare_blocks(blocks: int, kinds: tuple[str, ...], seed: int) -> None:
    """Compare at least so many steps of two products."""
    rng = np.random.default_rng(seed)
    m, k, n = 64, 8, 128
    for i in range(-(-blocks // (m * (k // 2) * n))):
        a, b, c = bf16_case(rng, m, k, n, kinds[i % len(kinds)])
        assert_same_bits(vdpbf16ps(a, b, c), chain_in_arrays(a, b, c))


FINITE_KINDS = tuple(kind for kind in BF16_KINDS if kind != "special")


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="many minutes without compilation")
@pytest.mark.usefixtures("flush")
def test_many_blocks() -> None:
    compare_blocks(blocks=600_000, kinds=FINITE_KINDS, seed=1)


@pytest.mark.long
@pytest.mark.usefixtures("flush")
def test_ten_million_blocks() -> None:
    compare_blocks(blocks=10_000_000, kinds=FINITE_KINDS, seed=2)
