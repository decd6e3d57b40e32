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
from mpsim.matmul._families import fused_numbers as _numbers
from mpsim.rounding import round_to
from mpsim.units import MatrixUnit
from mpsim_kernels import gemm, products
from mpsim_kernels.fused_dot import FusedDot, Operand, general_gemm
from mpsim_kernels.gemm import fused_gemm, fused_stack
from mpsim_kernels.lanes import WIDTH
from mpsim_kernels.packing import survey
from mpsim_kernels.products import find_window, wide_holds
from mpsim_kernels.words import words
from reference.fused_cases import CORNERS

SIZE = 9 if numba.config.DISABLE_JIT else 90

Floats = np.ndarray[Any, Any]


def random_values(rng: np.random.Generator, shape: tuple[int, ...], name: str, kind: str) -> Floats:
    """Return values of a format: any, close exponents, mostly zeros, subnormals, or specials among small or large."""
    fmt = get_format(name)
    codes = rng.integers(0, 1 << fmt.bits, shape)
    largest = fmt.max_code >> fmt.m
    sign_and_fraction = codes & ~(((1 << fmt.w) - 1) << fmt.m)
    if kind in ("close", "special", "zeros"):
        fields = rng.integers(max(fmt.bias - 6, 0), min(fmt.bias + 6, largest + 1), shape)
        codes = sign_and_fraction | fields << fmt.m
    if kind == "overflow":
        middle = (fmt.bias + largest) // 2
        codes = sign_and_fraction | rng.integers(middle - 1, middle + 1, shape) << fmt.m
    if kind == "subnormal":
        codes = np.where(rng.random(shape) < 0.7, sign_and_fraction, codes)
    if kind == "zeros":
        codes[rng.random(shape) < 0.7] = 0
    codes = np.where((codes & fmt.last_code) > fmt.max_code, sign_and_fraction, codes)
    if kind in ("special", "overflow") and fmt.nan_code is not None:
        infinities = [] if fmt.inf_code is None else [fmt.inf_code, fmt.sign_code | fmt.inf_code]
        codes = np.where(rng.random(shape) < 0.01, rng.choice([fmt.nan_code, *infinities], shape), codes)
    return decode(codes.astype(fmt.code_dtype), fmt)


def accumulators(rng: np.random.Generator, shape: tuple[int, int], name: str, kind: str) -> Floats:
    if kind == "none":
        return np.zeros(shape, np.float32)
    return random_values(rng, shape, name, kind)


KINDS = ("any", "close", "zeros", "subnormal", "special", "overflow")


def general(a: Floats, b: Floats, c: Floats | None, unit: MatrixUnit) -> Floats:
    start = None if c is None else words(c)
    return general_gemm(words(a), words(b), start, *_numbers(unit)).view(np.float32)


@pytest.mark.parametrize("kind_c", ["none", *KINDS])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", CORNERS, ids=str)
def test_fast_and_general_paths_agree(unit: MatrixUnit, kind: str, kind_c: str) -> None:
    rng = np.random.default_rng(list(f"{unit} {kind} {kind_c}".encode()))
    m, k, n = SIZE, SIZE + 3, SIZE + 7
    a, b = random_values(rng, (m, k), unit.a, kind), random_values(rng, (k, n), unit.b, kind)
    c = accumulators(rng, (m, n), unit.out, kind_c)
    a[1], b[:, 2] = 0, 0  # outputs without a product
    seen = [survey(words(x).reshape(-1))[:2] for x in (a, b)]
    assert find_window(*seen, *_numbers(unit)) is not None or unit.a in ("bf16", "tf32")
    assert wide_holds(*_numbers(unit))
    assert_same_bits(fused_gemm(a, b, c, *_numbers(unit)), general(a, b, c, unit))


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
    assert_same_bits(fused_gemm(a, b, c, *_numbers(unit)), general(a, b, c, unit))


@pytest.mark.parametrize("unit", CORNERS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_both_fast_paths_agree(unit: MatrixUnit, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = problem(unit, SIZE, SIZE, SIZE, kind)
    want = fused_gemm(*operands, *_numbers(unit))
    monkeypatch.setattr(gemm, "find_window", lambda *_: None)
    assert_same_bits(fused_gemm(*operands, *_numbers(unit)), want)


@pytest.mark.parametrize("shape", [(5, SIZE // 3, SIZE // 4, SIZE // 2), (3, 1, 40, 1), (1, 7, 1, WIDTH + 9)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", CORNERS, ids=str)
def test_a_stack_is_its_products(unit: MatrixUnit, kind: str, shape: tuple[int, int, int, int]) -> None:
    stack, m, k, n = shape
    rng = np.random.default_rng(list(f"{unit} {kind} {shape}".encode()))
    a, b = random_values(rng, (stack, m, k), unit.a, kind), random_values(rng, (stack, k, n), unit.b, kind)
    a[-1, 0] = 0
    d = fused_stack(a, b, *_numbers(unit))
    finite = bool(np.isfinite(a).all() and np.isfinite(b).all())
    if d is None:  # one by one, then
        assert not finite or unit.a in ("bf16", "tf32")
        return
    assert finite
    for own, left, right in zip(d, a, b, strict=True):
        assert_same_bits(own, general(left, right, None, unit))


@pytest.mark.usefixtures("many_threads")
@pytest.mark.parametrize("unit", [CORNERS[0], CORNERS[3], CORNERS[9]], ids=str)
def test_threads_may_part_a_stack_anywhere(unit: MatrixUnit) -> None:
    rng = np.random.default_rng(0)
    a, b = random_values(rng, (3, 5, 40), unit.a, "close"), random_values(rng, (3, 40, 6), unit.b, "close")
    d = fused_stack(a, b, *_numbers(unit))
    assert d is not None
    for own, left, right in zip(d, a, b, strict=True):
        assert_same_bits(own, fused_gemm(left, right, None, *_numbers(unit)))


def test_an_empty_stack_goes_one_by_one() -> None:
    numbers = _numbers(units.get("a100"))
    for a, b in (((0, 2, 3), (0, 3, 4)), ((2, 0, 3), (2, 3, 4)), ((2, 2, 0), (2, 0, 4)), ((2, 2, 3), (2, 3, 0))):
        assert fused_stack(np.zeros(a, np.float32), np.zeros(b, np.float32), *numbers) is None


def test_block_sums_of_both_signs_may_need_33_bits() -> None:
    # 16 products just below 4 and an accumulator just below 2, in units of 2**-25, are more than 2**31.
    a = np.full((2, 16), FP16.max_finite / 2**15, np.float32)
    a[1] *= -1
    c = np.array([[1.9999999], [-1.9999999]], np.float32)
    for unit in (units.get("h100"), units.get("h100", out="fp16")):
        start = c if unit.out == "fp32" else c / c.max()
        assert_same_bits(fused_gemm(a, a[:1].T, start, *_numbers(unit)), general(a, a[:1].T, start, unit))


def test_what_stands_for_an_infinity_may_be_a_result() -> None:
    unit, operands = _numbers(units.get("a100"))
    nearest = unit._replace(nearest=True), operands
    one, c = np.ones((1, 1), np.float32), np.array([[2.0**100]], np.float32)
    assert_same_bits(fused_gemm(one, one, c, *nearest), c)
    wide = np.full((1, 1), 2.0**-100, np.float32)
    for huge in (2.0**127, -(2.0**127)):
        c = np.array([[huge]], np.float32)
        assert_same_bits(fused_gemm(wide, one, c, *_numbers(units.get("a100", inputs="bf16"))), c)


@pytest.fixture
def many_threads() -> Iterator[None]:
    """Cut work into threads however small it is."""
    before = products.WORK, products._PACKED
    products.WORK, products._PACKED = 1, 0
    yield
    products.WORK, products._PACKED = before


def problem(unit: MatrixUnit, m: int, k: int, n: int, kind: str = "special") -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng(m * k + n)
    return (
        random_values(rng, (m, k), unit.a, kind),
        random_values(rng, (k, n), unit.b, kind),
        random_values(rng, (m, n), unit.out, kind),
    )


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one thread only")
@pytest.mark.parametrize("unit", [CORNERS[0], CORNERS[3], CORNERS[4], CORNERS[9], CORNERS[14]], ids=str)
@pytest.mark.usefixtures("many_threads")
def test_the_number_of_threads_changes_nothing(unit: MatrixUnit) -> None:
    operands = problem(unit, 13, 20, 18)
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        one = fused_gemm(*operands, *_numbers(unit))
        numba.set_num_threads(2)
        two = fused_gemm(*operands, *_numbers(unit))
    finally:
        numba.set_num_threads(before)
    assert_same_bits(two, one)


@pytest.mark.parametrize("unit", CORNERS, ids=str)
def test_panels_change_nothing(unit: MatrixUnit) -> None:
    a, b, c = problem(unit, 4, 2 * unit.block_length, WIDTH + 40)
    whole = fused_gemm(a, b, c, *_numbers(unit))
    for left, right in ((0, 5), (37, 60), (WIDTH - 3, WIDTH + 3)):
        part = fused_gemm(a[1:3], b[:, left:right], c[1:3, left:right], *_numbers(unit))
        assert_same_bits(part, whole[1:3, left:right])


@pytest.mark.parametrize("unit", [CORNERS[1], CORNERS[9], CORNERS[13]], ids=str)
def test_more_rows_than_a_tile_of_accumulators(unit: MatrixUnit) -> None:
    a, b, c = problem(unit, 150, 4, 3)
    assert_same_bits(fused_gemm(a, b, c, *_numbers(unit)), general(a, b, c, unit))


@pytest.mark.parametrize("unit", [CORNERS[0], CORNERS[3], CORNERS[4], CORNERS[9], CORNERS[14]], ids=str)
def test_strides_and_read_only_arrays_change_nothing(unit: MatrixUnit) -> None:
    a, b, c = problem(unit, 7, 9, 11)
    want = fused_gemm(a, b, c, *_numbers(unit))
    reversed_twice = a[::-1, ::-1].copy()[::-1, ::-1]
    assert_same_bits(fused_gemm(reversed_twice, b.T.copy().T, np.asfortranarray(c), *_numbers(unit)), want)
    a.flags.writeable = False
    assert_same_bits(fused_gemm(a, np.broadcast_to(b, b.shape), c, *_numbers(unit)), want)


@pytest.mark.parametrize("shape", [(0, 5, 3), (3, 5, 0), (3, 0, 2), (0, 0, 0), (1, 1, 1)])
@pytest.mark.parametrize("unit", [CORNERS[0], CORNERS[3], CORNERS[4], CORNERS[9], CORNERS[14]], ids=str)
def test_empty_and_tiny_shapes(unit: MatrixUnit, shape: tuple[int, int, int]) -> None:
    a, b, c = problem(unit, *shape, kind="close")
    got = fused_gemm(a, b, c, *_numbers(unit))
    assert_same_bits(got, general(a, b, c, unit))
    if shape[1] == 0 and unit.result_precision == get_format(unit.out).p:
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
    want = fused_gemm(a, b, c, *_numbers(unit))
    with fpu.mxcsr(fpu.DEFAULT | state):
        got = fused_gemm(a, b, c, *_numbers(unit))
    assert_same_bits(got, want)


def what_if(rng: np.random.Generator) -> tuple[FusedDot, tuple[str, str], str]:
    """Return numbers that no device need have, formats of the operands, and of the result."""
    out = str(rng.choice(["fp32", "fp16"]))
    result = get_format(out)
    inputs = [str(name) for name in rng.choice(["fp16", "bf16", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1"], 2)]
    unit = FusedDot(
        block_length=int(rng.choice([4, 8, 12, 16, 32, 48])),
        fraction_bits=int(rng.integers(3, 30)),
        floor=result.emin - int(rng.integers(0, 9)),
        p=int(rng.integers(2, result.p + 1)),
        emin=result.emin,
        emax=result.emax,
        nearest=bool(rng.integers(0, 2)),
    )
    return unit, (inputs[0], inputs[1]), out


def aimed(
    rng: np.random.Generator, unit: FusedDot, inputs: tuple[str, str], out: str, rows: int, columns: int
) -> tuple[Floats, Floats, Floats, int]:
    """Return a product of matrices whose terms lie where a block's sum changes, and how many blocks it has."""
    k = unit.block_length * int(rng.integers(1, 5)) - int(rng.integers(0, 2))
    shapes = (rows, k), (k, columns), (rows, columns)
    a, b, c = (
        random_values(rng, shape, name, str(rng.choice(KINDS)))
        for shape, name in zip(shapes, (*inputs, out), strict=True)
    )
    if rng.integers(0, 2):  # the second half of K cancels the first, but for the last place of some factors
        half = k // 2
        a[:, half : 2 * half], b[half : 2 * half] = -a[:, :half], b[:half]
        b[half] = random_values(rng, (1, columns), inputs[1], "any")
    if rng.integers(0, 2):  # accumulators near the cut of the products, and ties of the result
        with np.errstate(all="ignore"):
            size = float(
                np.nanmax(np.where(np.isfinite(a), np.abs(a), 0)) * np.nanmax(np.where(np.isfinite(b), np.abs(b), 0))
            )
            c = np.ldexp(
                rng.choice([1.0, 1.5, -1.0, -1.75], shapes[2]) * size, rng.integers(-unit.fraction_bits - 2, 3)
            )
            c = round_to(c.astype(np.float32), out)
    return a, b, c, rows * columns * -(-k // unit.block_length)


def compare_aimed(rng: np.random.Generator, unit: FusedDot, inputs: tuple[str, str], out: str, size: int) -> int:
    """Compare every path that takes such a product with the general one; return how many blocks there were."""
    a, b, c, blocks = aimed(rng, unit, inputs, out, size, size + 5)
    formats = [get_format(name) for name in inputs]
    numbers = unit, (Operand(formats[0].p, formats[0].emin), Operand(formats[1].p, formats[1].emin))
    want = general_gemm(words(a), words(b), words(c), *numbers).view(np.float32)
    assert_same_bits(fused_gemm(a, b, c, *numbers), want)
    return blocks


def test_aimed_products_agree_with_the_general_path() -> None:
    rng = np.random.default_rng(11)
    for unit in CORNERS:
        compare_aimed(rng, _numbers(unit)[0], (unit.a, unit.b), unit.out, 9 if numba.config.DISABLE_JIT else 60)


@pytest.mark.long
@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="takes hours as plain Python")
@pytest.mark.parametrize("unit", CORNERS, ids=str)
def test_many_aimed_products_agree_with_the_general_path(unit: MatrixUnit, monkeypatch: pytest.MonkeyPatch) -> None:
    # 2 times 600,000 blocks at least for each of the 18 units: on the path that is chosen, and on the wide one.
    rng = np.random.default_rng(12)
    for _ in range(2):
        blocks = 0
        while blocks < 600_000:
            blocks += compare_aimed(rng, _numbers(unit)[0], (unit.a, unit.b), unit.out, 128)
        monkeypatch.setattr(gemm, "find_window", lambda *_: None)


@pytest.mark.long
@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="takes hours as plain Python")
@pytest.mark.parametrize("seed", range(8))
def test_units_that_might_have_been_agree_with_the_general_path(seed: int) -> None:
    # 1,250,000 blocks for each seed, of a new unit every 20,000 or so.
    rng = np.random.default_rng(seed)
    blocks = 0
    while blocks < 1_250_000:
        blocks += compare_aimed(rng, *what_if(rng), 90)


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
