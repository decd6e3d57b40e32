"""FP8 products through two FP16 instructions and an addition: the exact twin, recordings, and the usual invariances."""

import itertools
import json
from typing import Any

import numba
import numpy as np
import pytest

import mxcsr as fpu
from bits import assert_same_bits
from mpsim.encoding import decode, encode
from mpsim.formats import FP16, FP32, FloatFormat, get_format
from mpsim_kernels import interleaved as kernels
from mpsim_kernels import products
from mpsim_kernels.fused_dot import FusedDot, Operand, general_gemm
from mpsim_kernels.interleaved import interleaved_gemm
from mpsim_kernels.words import words
from reference import fused_dot, interleaved
from vectors import vectors

SIZE, STEP = (9, 50) if numba.config.DISABLE_JIT else (90, 1)
"""Rows of a matrix, and through recorded rows."""

Array = np.ndarray[Any, Any]


def fp16_unit(out: FloatFormat, block_length: int = 16) -> FusedDot:
    """Return the numbers of the FP16 instruction that Hopper and Blackwell run FP8 through."""
    return FusedDot(
        block_length=block_length,
        fraction_bits=25,
        floor=out.emin - 7,
        p=out.p,
        emin=out.emin,
        emax=out.emax,
        nearest=out == FP16,
    )


def product(a: Array, b: Array, c: Array, inputs: tuple[str, str], out: FloatFormat, block_length: int = 16) -> Array:
    """Return the codes of the kernel's product of codes."""
    formats = [get_format(name) for name in inputs]
    operands = Operand(formats[0].p, formats[0].emin), Operand(formats[1].p, formats[1].emin)
    start = c.view(np.float32) if out == FP32 else decode(c, out)
    d = interleaved_gemm(decode(a, formats[0]), decode(b, formats[1]), start, fp16_unit(out, block_length), operands)
    if out == FP32:
        return d.view(np.uint32)
    codes = encode(d, out)
    codes[np.isnan(d)] = out.last_code
    return codes


def expected(a: Array, b: Array, c: Array, inputs: tuple[str, str], out: FloatFormat, block_length: int = 16) -> Array:
    """Return the twin's codes."""
    numbers = fp16_unit(out, block_length)
    unit = fused_dot.Unit(
        block_length, 25, numbers.floor, out.p, numbers.nearest, get_format(inputs[0]), get_format(inputs[1]), out
    )
    return np.array(interleaved.matmul(unit, a.tolist(), b.tolist(), c.tolist()), c.dtype)


def random_codes(rng: np.random.Generator, shape: tuple[int, ...], fmt: FloatFormat, kind: str) -> Array:
    """Return codes: any finite ones, close exponents, many zeros and subnormals, or specials among the others."""
    codes = rng.integers(0, 1 << fmt.bits, shape)
    fraction = codes & (fmt.sign_code | ((1 << fmt.m) - 1))
    middle = rng.integers(fmt.bias // 2, fmt.bias + 2)
    if kind == "close":
        codes = fraction | rng.integers(middle, middle + 4, shape) << fmt.m
    if kind == "small":
        codes = np.where(rng.random(shape) < 0.6, fraction * rng.integers(0, 2, shape), codes)
    if kind != "special":
        codes = np.where((codes & fmt.last_code) > fmt.max_code, fraction, codes)
    elif fmt.bits > 8:  # NaNs would leave nothing to see
        codes = np.where(
            rng.random(shape) < 0.2, rng.choice([fmt.inf_code, fmt.sign_code | fmt.inf_code], shape), codes
        )
    return codes.astype(fmt.code_dtype)


KINDS = ("any", "close", "small", "special")
PAIRS = list(itertools.product(("e4m3", "e5m2"), repeat=2))
OUTS = [FP32, FP16]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_length", [16, 8])
@pytest.mark.parametrize("out", OUTS, ids=str)
@pytest.mark.parametrize("inputs", PAIRS, ids="-".join)
def test_kernels_equal_the_twin(inputs: tuple[str, str], out: FloatFormat, block_length: int, kind: str) -> None:
    rng = np.random.default_rng(list(f"{inputs} {out} {block_length} {kind}".encode()))
    formats = [get_format(name) for name in inputs]
    for k in (0, 1, 2, 3, 4, 2 * block_length - 1, 2 * block_length, 4 * block_length + 6):
        a, b = random_codes(rng, (2, k), formats[0], kind), random_codes(rng, (k, 3), formats[1], kind)
        c = random_codes(rng, (2, 3), out, kind)
        if k > 8:  # much of the second half cancels the first
            half = k // 2
            a[0, half : 2 * half] = a[0, :half] ^ formats[0].sign_code
            b[half : 2 * half, 0] = b[:half, 0]
        padded = (a, b) if k else (np.zeros((2, 1), a.dtype), np.zeros((1, 3), b.dtype))  # products of zeros are none
        want = expected(*padded, c, inputs, out, block_length)
        assert_same_bits(product(a, b, c, inputs, out, block_length), want)


@pytest.mark.parametrize(
    ("large", "ones", "c", "want"),
    [
        (0, (1, 4), 0.0, 2050.0),  # one half
        (0, (2, 7), 0.0, 2050.0),  # the other
        (0, (1, 2), 0.0, 2048.0),  # 2049 is rounded to 2048, twice
        (5, (4, 31), 0.0, 2048.0),
        (2, (0, 3), 0.0, 2050.0),  # the first half is a single 1
        (2, (3, 30), 0.0, 2050.0),
        (0, (1,), 1.0, 2048.0),  # the accumulator comes last, and is rounded on its own
        (0, (), 2.0, 2050.0),
    ],
)
def test_where_a_product_stands_decides_what_it_is_rounded_with(
    large: int, ones: tuple[int, ...], c: float, want: float
) -> None:
    # 2048 and two ones in fp16, where numbers from 2048 on are even.
    a = np.zeros((1, 32))
    a[0, list(ones)], a[0, large] = 1, 64
    b = np.where(np.arange(32) == large, 32.0, 1.0)[:, None]
    codes = encode(a, "e4m3"), encode(b, "e4m3"), encode(np.array([[c]]), FP16)
    for found in (product(*codes, PAIRS[0], FP16), expected(*codes, PAIRS[0], FP16)):
        assert decode(found, FP16).item() == want


@pytest.mark.parametrize("out", OUTS, ids=str)
def test_recorded_dot_products_of_real_gpus(out: FloatFormat) -> None:
    compared = 0
    with np.load(vectors("hardware", "nvidia_toolbox.npz")) as file:
        records = [row for row in json.loads(str(file["meta"])) if row["input_format"] in ("e4m3", "e5m2")]
        for row in records:
            gpu, inputs = row["gpu"], row["input_format"]
            if row["output"] != out.name or gpu not in ("H100", "H200", "B200") or (gpu != "B200" and out == FP32):
                continue  # wgmma, and Ada's own unit
            a, b = (file[f"inputs/{row['inputs']}/{side}"][::STEP] for side in "ab")
            c, want = (file[f"{gpu}/{inputs}/{array}"][::STEP] for array in ("c_fp32", f"d_{out.name}"))
            if out == FP16:
                c = encode(c.view(np.float32), out)
            got = [
                product(x[None, :], y[:, None], np.array([[z]], c.dtype), (inputs, inputs), out)
                for x, y, z in zip(a, b, c, strict=True)
            ]
            assert_same_bits(np.array(got).reshape(-1), want)
            compared += len(got)
    assert compared >= 8000 // STEP


def problem(
    rng: np.random.Generator, m: int, k: int, n: int, inputs: tuple[str, str], out: FloatFormat, kind: str
) -> Any:
    formats = [get_format(name) for name in inputs]
    return (
        random_codes(rng, (m, k), formats[0], kind),
        random_codes(rng, (k, n), formats[1], kind),
        random_codes(rng, (m, n), out, kind),
    )


@pytest.mark.parametrize("kind", ["any", "close", "small"])
@pytest.mark.parametrize("out", OUTS, ids=str)
@pytest.mark.parametrize("inputs", PAIRS[1:3], ids="-".join)
def test_tiles_and_single_instructions_agree(
    inputs: tuple[str, str], out: FloatFormat, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = problem(np.random.default_rng(5), SIZE, SIZE + 9, 3 * SIZE, inputs, out, kind)
    want = product(*operands, inputs, out)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "_TILE", 1 << 10)
        assert_same_bits(product(*operands, inputs, out), want)
    monkeypatch.setattr(kernels, "find_window", lambda *_: None)
    assert_same_bits(product(*operands, inputs, out), want)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one thread only")
@pytest.mark.parametrize("kind", ["any", "special"])
@pytest.mark.parametrize("out", OUTS, ids=str)
def test_the_number_of_threads_changes_nothing(out: FloatFormat, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = problem(np.random.default_rng(6), 13, 70, 18, PAIRS[0], out, kind)
    monkeypatch.setattr(kernels, "WORK", 1)
    monkeypatch.setattr(kernels, "_ADDITIONS", 1)
    monkeypatch.setattr(products, "WORK", 1)
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        one = product(*operands, PAIRS[0], out)
        numba.set_num_threads(2)
        two = product(*operands, PAIRS[0], out)
    finally:
        numba.set_num_threads(before)
    assert_same_bits(two, one)


@pytest.mark.parametrize("kind", ["any", "special"])
def test_strides_change_nothing(kind: str) -> None:
    a, b, c = problem(np.random.default_rng(7), 7, 41, 11, PAIRS[2], FP32, kind)
    formats = [get_format(name) for name in PAIRS[2]]
    operands = Operand(formats[0].p, formats[0].emin), Operand(formats[1].p, formats[1].emin)
    x, y, z = decode(a, formats[0]), decode(b, formats[1]), c.view(np.float32)
    want = interleaved_gemm(x, y, z, fp16_unit(FP32), operands)
    turned = x[::-1, ::-1].copy()[::-1, ::-1], y.T.copy().T, np.asfortranarray(z)
    for array in turned:
        array.flags.writeable = False
    assert_same_bits(interleaved_gemm(*turned, fp16_unit(FP32), operands), want)


@pytest.mark.parametrize(
    "state",
    [fpu.FTZ | fpu.DAZ, fpu.ROUND_DOWN, fpu.ROUND_UP, fpu.ROUND_TO_ZERO, fpu.ROUND_UP | fpu.FTZ | fpu.DAZ],
    ids=["FTZ DAZ", "down", "up", "to zero", "up FTZ DAZ"],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("out", OUTS, ids=str)
def test_the_state_of_the_processor_changes_nothing(out: FloatFormat, kind: str, state: int) -> None:
    a, b, c = problem(np.random.default_rng(8), 30, 70, 50, PAIRS[1], out, kind)
    c[::2] &= out.sign_code | ((1 << out.m) - 1)  # subnormals, beside products that are zero
    a[::3] = 0
    want = product(a, b, c, PAIRS[1], out)
    with fpu.mxcsr(fpu.DEFAULT | state):
        got = product(a, b, c, PAIRS[1], out)
    assert_same_bits(got, want)


def fp16_sums(rng: np.random.Generator, n: int) -> None:
    """Compare ``n`` sums of fp16 numbers with sums in float64, which are exact, rounded once."""
    x, y = (rng.integers(0, 1 << 16, (1, n), dtype=np.uint16).view(np.float16).astype(np.float32) for _ in range(2))
    with np.errstate(all="ignore"):
        near = x * (rng.choice([0.0, 2.0**-9, -(2.0**-10)], x.shape) - 1)
        y[:, ::2] = near[:, ::2].astype(np.float16)
        want = (x.astype(np.float64) + y.astype(np.float64)).astype(np.float16).astype(np.float32)
    want.view(np.int32)[np.isnan(want)] = 0x7FFFFFFF
    d = y.copy()
    with np.errstate(all="ignore"):
        kernels._add_fp16(x.copy(), d)
    assert_same_bits(d, want)


def test_fp16_sums_are_rounded_once() -> None:
    fp16_sums(np.random.default_rng(9), 2000 if numba.config.DISABLE_JIT else 1 << 20)


@pytest.mark.long
@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="takes hours as plain Python")
def test_many_fp16_sums_are_rounded_once() -> None:
    rng = np.random.default_rng(10)
    for _ in range(100):
        fp16_sums(rng, 1 << 20)


@pytest.mark.long
@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="takes hours as plain Python")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("out", OUTS, ids=str)
@pytest.mark.parametrize("inputs", PAIRS, ids="-".join)
def test_many_instructions_equal_their_parts(inputs: tuple[str, str], out: FloatFormat, kind: str) -> None:
    # 32 cases of 10 times 32768 instructions.
    formats = [get_format(name) for name in inputs]
    operands = Operand(formats[0].p, formats[0].emin), Operand(formats[1].p, formats[1].emin)
    rng = np.random.default_rng(list(f"{inputs} {out} {kind}".encode()))
    for _ in range(10):
        a, b, c = problem(rng, 64, 128, 128, inputs, out, kind)
        x, y, unit = decode(a, formats[0]), decode(b, formats[1]), fp16_unit(out)
        d = decode(c, out).astype(np.float32)
        for start in range(0, 128, 32):
            t = None
            for half in (0, 2):
                ks = [start + k for k in range(32) if k % 4 in (half, half + 1)]
                t = general_gemm(words(x[:, ks]), words(y[ks]), t, unit, operands)
            with np.errstate(all="ignore"):
                total = t.view(np.float32).astype(np.float64) + d.astype(np.float64)
                d = total.astype(np.float32 if out == FP32 else np.float16).astype(np.float32)
            d.view(np.int32)[np.isnan(d)] = 0x7FFFFFFF
        got = interleaved_gemm(x, y, decode(c, out), unit, operands)
        assert_same_bits(got, d)
