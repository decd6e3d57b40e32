"""The fast paths against the general one, and what must not change a bit: threads, tiles, strides, MXCSR."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import mxcsr as fpu
from bits import assert_same_bits
from mpsim import units
from mpsim.encoding import decode
from mpsim.formats import FP16, get_format
from mpsim.matmul import _numbers
from mpsim.units import MatrixUnit
from mpsim_kernels import gemm
from mpsim_kernels.fused_dot import general_gemm
from mpsim_kernels.packing import survey
from reference.fused_cases import CORNERS

SIZE = 9 if numba.config.DISABLE_JIT else 90
FP16_UNITS = [unit for unit in CORNERS if unit.a == "fp16"]

Floats = np.ndarray[Any, Any]


def random_values(rng: np.random.Generator, shape: tuple[int, int], name: str, kind: str) -> Floats:
    """Return values of a format: any, close exponents, mostly zeros, subnormals, or specials among small or large."""
    fmt = get_format(name)
    codes = rng.integers(0, 1 << fmt.bits, shape)
    field_mask = ((1 << fmt.w) - 1) << fmt.m
    sign_and_fraction = codes & ~field_mask
    if kind in ("close", "special", "zeros"):
        codes = sign_and_fraction | rng.integers(fmt.bias - 6, fmt.bias + 6, shape) << fmt.m
    if kind == "overflow":
        largest = fmt.max_code >> fmt.m
        codes = (
            sign_and_fraction
            | rng.integers((fmt.bias + largest) // 2 - 1, (fmt.bias + largest) // 2 + 1, shape) << fmt.m
        )
    if kind == "subnormal":
        codes = np.where(rng.random(shape) < 0.7, sign_and_fraction, codes)
    if kind == "zeros":
        codes[rng.random(shape) < 0.7] = 0
    if kind not in ("special", "overflow"):
        codes = np.where((codes & field_mask) == field_mask, sign_and_fraction, codes)
    else:
        specials = np.array([fmt.inf_code, fmt.sign_code | (fmt.inf_code or 0), fmt.nan_code])
        codes = np.where(rng.random(shape) < 0.01, rng.choice(specials, shape), codes)
    return decode(codes.astype(fmt.code_dtype), fmt)


def accumulators(rng: np.random.Generator, shape: tuple[int, int], name: str, kind: str) -> Floats:
    if kind == "none":
        return np.zeros(shape, np.float32)
    return random_values(rng, shape, name, kind)


KINDS = ("any", "close", "zeros", "subnormal", "special", "overflow")


def general(a: Floats, b: Floats, c: Floats | None, unit: MatrixUnit) -> Floats:
    start = None if c is None else gemm._words(c)
    return general_gemm(gemm._words(a), gemm._words(b), start, *_numbers(unit)).view(np.float32)


@pytest.mark.parametrize("kind_c", ["none", *KINDS])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", CORNERS, ids=str)
def test_fast_and_general_paths_agree(unit: MatrixUnit, kind: str, kind_c: str) -> None:
    rng = np.random.default_rng(list(f"{unit} {kind} {kind_c}".encode()))
    m, k, n = SIZE, SIZE + 3, SIZE + 7
    a, b = random_values(rng, (m, k), unit.a, kind), random_values(rng, (k, n), unit.b, kind)
    c = accumulators(rng, (m, n), unit.out, kind_c)
    a[1], b[:, 2] = 0, 0  # outputs without a product
    seen = [survey(gemm._words(x).reshape(-1))[:2] for x in (a, b)]
    assert gemm._window(*seen, *_numbers(unit)) is not None or unit.a != "fp16"
    assert gemm._wide_holds(*_numbers(unit)) or unit.out == "fp16"
    assert_same_bits(gemm.fused_gemm(a, b, c, *_numbers(unit)), general(a, b, c, unit))


@pytest.mark.parametrize("inputs", ["bf16", "tf32"])
@pytest.mark.parametrize("exponents", [(-45, -20), (-8, 8), (10, 28), (-60, 60)])
def test_wide_formats_agree_wherever_their_exponents_lie(inputs: str, exponents: tuple[int, int]) -> None:
    rng = np.random.default_rng(exponents[1] - exponents[0])
    unit = units.get("a100", inputs=inputs)
    m, k, n = SIZE, SIZE + 3, SIZE + 7

    def values(*shape: int) -> Floats:
        significands = rng.integers(128, 256, shape) / 128 * rng.choice([-1.0, 0.0, 1.0], shape, p=[0.45, 0.1, 0.45])
        return np.ldexp(significands, rng.integers(*exponents, shape)).astype(np.float32)

    a, b, c = values(m, k), values(k, n), random_values(rng, (m, n), "fp32", "any")
    assert_same_bits(gemm.fused_gemm(a, b, c, *_numbers(unit)), general(a, b, c, unit))


@pytest.mark.parametrize("unit", [unit for unit in CORNERS if unit.out == "fp32"], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_both_fast_paths_agree(unit: MatrixUnit, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = problem(unit, SIZE, SIZE, SIZE, kind)
    want = gemm.fused_gemm(*operands, *_numbers(unit))
    monkeypatch.setattr(gemm, "_window", lambda *_: None)
    assert_same_bits(gemm.fused_gemm(*operands, *_numbers(unit)), want)


def test_block_sums_of_both_signs_may_need_33_bits() -> None:
    # 16 products just below 4 and an accumulator just below 2, in units of 2**-25, are more than 2**31.
    a = np.full((2, 16), FP16.max_finite / 2**15, np.float32)
    a[1] *= -1
    c = np.array([[1.9999999], [-1.9999999]], np.float32)
    for unit in (units.get("h100"), units.get("h100", out="fp16")):
        start = c if unit.out == "fp32" else c / c.max()
        assert_same_bits(gemm.fused_gemm(a, a[:1].T, start, *_numbers(unit)), general(a, a[:1].T, start, unit))


@pytest.fixture
def many_threads() -> Iterator[None]:
    """Cut work into threads however small it is."""
    before = gemm._WORK
    gemm._WORK = 1
    yield
    gemm._WORK = before


def problem(unit: MatrixUnit, m: int, k: int, n: int, kind: str = "special") -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng(m * k + n)
    return (
        random_values(rng, (m, k), unit.a, kind),
        random_values(rng, (k, n), unit.b, kind),
        random_values(rng, (m, n), unit.out, kind),
    )


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one thread only")
@pytest.mark.parametrize("unit", [CORNERS[0], CORNERS[3], CORNERS[4]], ids=str)
@pytest.mark.usefixtures("many_threads")
def test_the_number_of_threads_changes_nothing(unit: MatrixUnit) -> None:
    operands = problem(unit, 13, 20, 18)
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        one = gemm.fused_gemm(*operands, *_numbers(unit))
        numba.set_num_threads(2)
        two = gemm.fused_gemm(*operands, *_numbers(unit))
    finally:
        numba.set_num_threads(before)
    assert_same_bits(two, one)


@pytest.mark.parametrize("unit", FP16_UNITS, ids=str)
def test_tiles_change_nothing(unit: MatrixUnit, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = problem(unit, 5, 16, 100)
    whole = gemm.fused_gemm(a, b, c, *_numbers(unit))
    monkeypatch.setattr(gemm, "_PANEL", 32)
    assert_same_bits(gemm.fused_gemm(a, b, c, *_numbers(unit)), whole)
    part = gemm.fused_gemm(a[2:4], b[:, 37:60], c[2:4, 37:60], *_numbers(unit))
    assert_same_bits(part, whole[2:4, 37:60])


def test_more_rows_than_a_tile_of_accumulators() -> None:
    unit = CORNERS[1]
    a, b, c = problem(unit, 150, 4, 3)
    assert_same_bits(gemm.fused_gemm(a, b, c, *_numbers(unit)), general(a, b, c, unit))


@pytest.mark.parametrize("unit", [CORNERS[0], CORNERS[3], CORNERS[4]], ids=str)
def test_strides_and_read_only_arrays_change_nothing(unit: MatrixUnit) -> None:
    a, b, c = problem(unit, 7, 9, 11)
    want = gemm.fused_gemm(a, b, c, *_numbers(unit))
    reversed_twice = a[::-1, ::-1].copy()[::-1, ::-1]
    assert_same_bits(gemm.fused_gemm(reversed_twice, b.T.copy().T, np.asfortranarray(c), *_numbers(unit)), want)
    a.flags.writeable = False
    assert_same_bits(gemm.fused_gemm(a, np.broadcast_to(b, b.shape), c, *_numbers(unit)), want)


@pytest.mark.parametrize("shape", [(0, 5, 3), (3, 5, 0), (3, 0, 2), (0, 0, 0), (1, 1, 1)])
@pytest.mark.parametrize("unit", [CORNERS[0], CORNERS[3], CORNERS[4]], ids=str)
def test_empty_and_tiny_shapes(unit: MatrixUnit, shape: tuple[int, int, int]) -> None:
    a, b, c = problem(unit, *shape, kind="close")
    got = gemm.fused_gemm(a, b, c, *_numbers(unit))
    assert_same_bits(got, general(a, b, c, unit))
    if shape[1] == 0:
        assert_same_bits(got, c)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="MXCSR is set through Numba, which is disabled")
@pytest.mark.parametrize(
    "state",
    [fpu.FTZ | fpu.DAZ, fpu.ROUND_DOWN, fpu.ROUND_UP, fpu.ROUND_TO_ZERO, fpu.ROUND_UP | fpu.FTZ | fpu.DAZ],
    ids=["FTZ DAZ", "down", "up", "to zero", "up FTZ DAZ"],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", CORNERS, ids=str)
def test_the_state_of_the_processor_changes_nothing(unit: MatrixUnit, kind: str, state: int) -> None:
    a, b, c = problem(unit, 30, 41, 50, kind)
    want = gemm.fused_gemm(a, b, c, *_numbers(unit))
    with fpu.mxcsr(fpu.DEFAULT | state):
        got = gemm.fused_gemm(a, b, c, *_numbers(unit))
    assert_same_bits(got, want)


PROGRAM = """
import numpy as np
from mpsim.matmul import matmul
for unit, inputs, out in (("v100", "fp16", "fp16"), ("a100", "bf16", "fp32")):
    print(matmul([[2.0, 2.0**-130]], [[3.0], [1.0]], unit=unit, inputs=inputs, out=out).item())
"""


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_specialised_kernels_come_back_from_the_disk(tmp_path: Path) -> None:
    # A closure over a compiled function would be saved under another name by every process.
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": f"{root}{os.pathsep}{root / 'kernels'}"}
    kept = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
        )
        assert (done.stdout.split(), done.stderr) == (["6.0", "6.0"], "")
        kept.append({path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")})
    assert any("panel_rows" in name for name in kept[0])
    assert kept[1] == kept[0]
