"""Chains of fused multiply-adds against their exact twin, recorded models of matrix units, and themselves."""

import json
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mxcsr as fpu
from bits import assert_same_bits
from mpsim_kernels import fma_chain
from reference import fma_chain as twin
from reference.chain_cases import BF16_KINDS, bf16_case
from vectors import vectors

Floats = np.ndarray[Any, Any]

FORMATS = {np.float32: twin.FP32, np.float64: twin.FP64}


def expected(a: Floats, b: Floats, c: Floats) -> Floats:
    """Return the twin's result; K = 0 knows only the default NaN, as the kernel does."""
    fmt = FORMATS[a.dtype.type]
    codes = [x.view(fmt.code_dtype) for x in (a, b, c)]

    def one(row: Any, column: Any, start: int) -> int:
        result = twin.chain(row, column, start, fmt)
        return twin.default_nan(fmt) if twin.is_nan(result, fmt) else result

    return twin.matmul(one, *codes).view(a.dtype)


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, kind: str) -> Floats:
    """Return any finite bits, close exponents, numbers around the smallest normal's root, or some that are special."""
    fmt = FORMATS[dtype]
    codes = rng.integers(0, 1 << 63, shape).astype(fmt.code_dtype) * fmt.code_dtype.type(3)
    fields = {
        "any": (0, (1 << fmt.w) - 1),
        "close": (fmt.bias - 4, fmt.bias + 4),
        "low": (fmt.bias // 2 - 20, fmt.bias // 2 + 20),
        "special": (fmt.bias * 3 // 2 - 30, fmt.bias * 3 // 2 + 30),
    }
    low, high = fields[kind]
    keep = fmt.code_dtype.type(fmt.sign_code | (1 << fmt.m) - 1)
    codes = codes & keep | rng.integers(low, high, shape).astype(fmt.code_dtype) << fmt.code_dtype.type(fmt.m)
    if kind == "special":
        few = np.array(
            [0, fmt.sign_code, fmt.inf_code, fmt.sign_code | (fmt.inf_code or 0), fmt.last_code], codes.dtype
        )
        codes = np.where(rng.random(shape) < 0.1, rng.choice(few, shape), codes)
    return codes.view(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["any", "close", "low", "special"])
@pytest.mark.parametrize("k", [0, 1, 2, 8, 13])
def test_every_output_is_the_chain_of_its_row_and_column(k: int, kind: str, dtype: Any) -> None:
    rng = np.random.default_rng(k)
    a, b, c = (values(rng, shape, dtype, kind) for shape in ((5, k), (k, 9), (5, 9)))
    assert_same_bits(fma_chain.fma_gemm(a, b, c), expected(a, b, c))
    assert_same_bits(fma_chain.fma_gemm(a, b, None), expected(a, b, np.zeros_like(c)))


@pytest.mark.parametrize("kind", BF16_KINDS)
def test_operands_where_rounding_changes_its_mind(kind: str) -> None:
    a, b, c = (x.view(np.float32) for x in bf16_case(np.random.default_rng(1), 7, 6, 8, kind))
    assert_same_bits(fma_chain.fma_gemm(a, b, c), expected(a, b, c))


@given(st.data())
def test_single_operations(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    floats = st.floats(width=32 if dtype is np.float32 else 64)
    x, y = data.draw(floats), data.draw(floats)
    with np.errstate(all="ignore"):
        product = dtype(x) * dtype(y)
    z = data.draw(st.one_of(floats, st.sampled_from([-product, np.nextafter(-product, dtype(0))])))
    a, b, c = (np.array([[value]], dtype) for value in (x, y, z))
    assert_same_bits(fma_chain.fma_gemm(a, b, c), expected(a, b, c))


VECTORS = {
    "adalovelace_mma_m8n8k4-f64-f64-f64-f64": 640,
    "ampere_mma_m8n8k4-f64-f64-f64-f64": 1920,
    "blackwell_mma_m8n8k4-f64-f64-f64-f64": 640,
    "cdna1_mfma_f32_16x16x4f32": 5120,
    "cdna2_mfma_f32_16x16x4f32": 2560,
    "cdna2_mfma_f64_16x16x4f64": 2560,
    "cdna3_mfma_f32_16x16x4_f32": 5120,
    "cdna3_mfma_f64_16x16x4_f64": 2560,
    "hopper_mma_m16n8k16-f64-f64-f64-f64": 1280,
    "hopper_mma_m16n8k4-f64-f64-f64-f64": 2560,
    "hopper_mma_m16n8k8-f64-f64-f64-f64": 1280,
    "hopper_mma_m8n8k4-f64-f64-f64-f64": 640,
    "rtxblackwell_mma_m8n8k4-f64-f64-f64-f64": 640,
}


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="a quarter of an hour without compilation")
@pytest.mark.parametrize("name", VECTORS)
def test_models_of_matrix_units(name: str) -> None:
    with np.load(vectors("matrix-units", f"{name}.npz")) as file:
        record = {key: file[key] for key in ("a", "b", "c", "d", "meta")}
    assert not json.loads(str(record["meta"]))["nan_bits_exact"]
    dtype = f"f{record['a'].itemsize}"
    got = np.array([fma_chain.fma_gemm(*(x.view(dtype) for x in tile))
                    for tile in zip(record["a"], record["b"], record["c"], strict=True)])  # fmt: skip
    want = record["d"].view(dtype)
    assert want.size == VECTORS[name]
    assert np.array_equal(np.isnan(got), np.isnan(want))
    number = ~np.isnan(want)
    assert number.sum() > want.size // 2
    assert_same_bits(got[number], want[number])


def problem(m: int, k: int, n: int, dtype: Any = np.float32) -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng(m * k + n)
    return (
        values(rng, (m, k), dtype, "close"),
        values(rng, (k, n), dtype, "close"),
        values(rng, (m, n), dtype, "close"),
    )


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    want = fma_chain.fma_gemm(*problem(7, 9, 20))
    for name in ("_WORK", "_ELEMENTS"):
        monkeypatch.setattr(fma_chain, name, 1)
    before = numba.get_num_threads()
    try:
        for threads in range(1, numba.config.NUMBA_NUM_THREADS + 1):
            numba.set_num_threads(threads)
            assert_same_bits(fma_chain.fma_gemm(*problem(7, 9, 20)), want)
    finally:
        numba.set_num_threads(before)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="a minute without compilation")
def test_more_rows_and_columns_than_a_tile_and_a_panel() -> None:
    a, b, c = problem(67, 3, 3)
    whole = fma_chain.fma_gemm(a, b, c)
    assert_same_bits(fma_chain.fma_gemm(a[64:], b, c[64:]), whole[64:])
    a, b, c = problem(1, 2, 1040)
    whole = fma_chain.fma_gemm(a, b, c)
    for j in (0, 346, 351, 352, 700, 1039):
        assert_same_bits(fma_chain.fma_gemm(a, b[:, j : j + 1], c[:, j : j + 1]), whole[:, j : j + 1])


def test_strides_and_read_only_arrays_change_nothing() -> None:
    a, b, c = problem(6, 9, 11)
    want = fma_chain.fma_gemm(a, b, c)
    a.flags.writeable = False
    assert_same_bits(fma_chain.fma_gemm(a, b.T.copy().T, np.asfortranarray(c)), want)
    twice = np.repeat(np.repeat(a, 2, axis=0), 2, axis=1)[::2, ::2]
    assert_same_bits(fma_chain.fma_gemm(twice, b[::-1].copy()[::-1], c), want)


@pytest.mark.parametrize("shape", [(0, 5, 3), (3, 5, 0), (3, 0, 2), (0, 0, 0), (1, 1, 1)])
def test_empty_and_tiny_shapes(shape: tuple[int, int, int]) -> None:
    a, b, c = problem(*shape)
    assert_same_bits(fma_chain.fma_gemm(a, b, c), expected(a, b, c))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["any", "low", "special"])
@pytest.mark.parametrize("state", [fpu.FTZ | fpu.DAZ, fpu.ROUND_DOWN, fpu.ROUND_UP | fpu.FTZ, fpu.ROUND_TO_ZERO])
def test_the_state_of_the_processor_changes_nothing(state: int, kind: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    a, b, c = (values(rng, shape, dtype, kind) for shape in ((30, 20), (20, 40), (30, 40)))
    with fpu.mxcsr(fpu.DEFAULT | state):
        got = fma_chain.fma_gemm(a, b, c)
    assert_same_bits(got, fma_chain.fma_gemm(a, b, c))


@pytest.mark.parametrize(("odd", "flush"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("kind", BF16_KINDS)
def test_the_twin_in_arrays_is_the_twin_in_fractions(kind: str, odd: bool, flush: bool) -> None:
    a, b, c = bf16_case(np.random.default_rng(2), 20, 1, 20, kind)
    if flush:
        a, b, c = (twin.flushed_words(x) for x in (a, b, c))
    got = twin.rounded_sums(twin.product(a, b), twin.terms(c), odd=odd, flush=flush)
    want = twin.matmul(lambda row, column, start: twin.fma(row[0], column[0], start, odd=odd, flush=flush), a, b, c)
    assert_same_bits(got, want)
