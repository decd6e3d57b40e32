"""Floored dot products: by hand, against the exact twin, against recordings, and the lanes against the integers."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mxcsr as fpu
from bits import assert_same_bits
from mpsim.encoding import decode, encode
from mpsim.formats import FP32, FloatFormat, get_format
from mpsim_kernels import floored
from mpsim_kernels.floored import Floored, floored_gemm, floored_pair_gemm
from mpsim_kernels.fused_dot import Operand
from reference import floored as twin
from vectors import vectors

JIT = not numba.config.DISABLE_JIT
SIZE = 90 if JIT else 9
EXAMPLES = 100 if JIT else 10

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Row:
    """An instruction: its numbers, its formats, and which of the two functions computes it."""

    unit: Floored
    a: FloatFormat
    b: FloatFormat
    pair: bool

    def __str__(self) -> str:
        return f"{self.a} {self.b}{' drop' if self.unit.drop_zeros else ''}"

    def values(self, a: Array, b: Array, c: Array | None) -> Array:
        """Return the result for float32 values."""
        operands = Operand(self.a.p, self.a.emin), Operand(self.b.p, self.b.emin)
        return (floored_pair_gemm if self.pair else floored_gemm)(a, b, c, self.unit, operands)

    def codes(self, a: Array, b: Array, c: Array) -> Array:
        """Return the words of the result for codes and words."""
        return self.values(decode(a, self.a), decode(b, self.b), c.view(np.float32)).view(np.uint32)

    def expected(self, a: Array, b: Array, c: Array) -> Array:
        """Return the twin's words."""
        unit = self.unit
        model = twin.Unit(
            block_length=unit.block_length,
            a=self.a,
            b=self.b,
            interleaved=self.pair,
            product_bits=unit.product_bits,
            sum_bits=unit.sum_bits,
            accumulator_bits=unit.accumulator_bits,
            accumulator_reach=unit.accumulator_reach,
            drop_zeros=unit.drop_zeros,
        )
        words = twin.matmul(model, a.tolist(), b.tolist(), c.tolist(), FP32)
        return np.array(words, np.uint32).reshape(c.shape)

    def dot(self, a: list[float], b: list[float], c: float = 0.0) -> float:
        """Return one dot product of numbers, after kernels and twin agreed on it."""
        codes = encode(np.array([a]), self.a), encode(np.array([b]).T, self.b), np.array([[c]], np.float32)
        got = self.codes(codes[0], codes[1], codes[2].view(np.uint32))
        assert_same_bits(got, self.expected(codes[0], codes[1], codes[2].view(np.uint32)))
        return float(got.view(np.float32)[0, 0])


def row(a: str, b: str | None = None, **numbers: Any) -> Row:
    """Return a row of CDNA3, with other numbers where they are given."""
    formats = get_format(a), get_format(b or a)
    pair = formats[0].bits == 8
    unit = Floored(16, accumulator_reach=25) if pair else Floored(4 if a == "tf32" else 8)
    return Row(unit._replace(**numbers), *formats, pair)


NAMES = [("fp16",), ("bf16",), ("tf32",), ("e4m3fnuz",), ("e5m2fnuz",), ("e4m3fnuz", "e5m2fnuz")]
ROWS = [row(*name, drop_zeros=drop) for name in NAMES for drop in (False, True)]
FLOATS = ROWS[:6]
FEW = [ROWS[0], ROWS[3], ROWS[4], ROWS[6]]

INF = float("inf")


@pytest.fixture
def integers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the kernel on integers alone."""
    monkeypatch.setattr(floored, "_lanes", lambda *_: None)


# By hand.


@pytest.mark.parametrize(
    ("unit", "want"), [("fp16", -0.5), ("bf16", -0.5), ("tf32", -0.5), ("e5m2fnuz", -1.0)], ids=lambda x: str(x)
)
def test_small_products_beside_a_cancelling_pair_show_the_bits(unit: str, want: float) -> None:
    assert row(unit).dot([-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1.0, 1.0, 1.0], 2.0**23) == want


@pytest.mark.parametrize("unit", FLOATS, ids=str)
def test_the_negative_of_the_operands_is_not_the_negative_of_the_result(unit: Row) -> None:
    tiny = 2.0**-40
    assert unit.dot([-1.0], [1.0], tiny) == -1.0
    assert unit.dot([1.0], [1.0], -tiny) == 1.0 - 2.0**-24
    # A little more than a tie, of which the sum keeps 31 bits: cut if positive.
    x, y = 2.0**-12, 2.0**-24
    assert unit.dot([x, y], [x, y], 1.0) == 1.0
    assert unit.dot([-x, -y], [x, y], -1.0) == -1.0 - 2.0**-23


def test_an_accumulator_out_of_reach_adds_nothing() -> None:
    fp8 = row("e4m3fnuz")
    assert fp8.dot([1.0], [1.0], -(2.0**-25)) == 1.0 - 2.0**-24
    assert fp8.dot([1.0], [1.0], -(2.0**-26)) == 1.0
    assert dataclasses.replace(fp8, unit=fp8.unit._replace(accumulator_reach=26)).dot([1.0], [1.0], -(2.0**-26)) < 1.0


@pytest.mark.parametrize("unit", ["fp16", "bf16", "tf32", "e4m3fnuz"])
def test_zero_products_align_a_tiny_accumulator_unless_they_are_dropped(unit: str) -> None:
    # 0 * 2**7 has the exponent -119: the accumulator keeps multiples of 2**-143.
    assert row(unit).dot([0.0], [2.0**7], 2.0**-149) == 0.0
    assert row(unit).dot([0.0], [2.0**7], 2.0**-143) == 2.0**-143
    assert row(unit, drop_zeros=True).dot([0.0], [2.0**7], 2.0**-149) == 2.0**-149


@pytest.mark.parametrize("unit", ROWS, ids=str)
def test_signs_of_zero(unit: Row) -> None:
    def sign(a: list[float], b: list[float], c: float) -> float:
        result = unit.dot(a, b, c)
        assert result == 0
        return float(np.copysign(1, result))

    assert sign([0.0], [0.0], -0.0) == 1
    assert sign([1.0, -1.0], [1.0, 1.0], 0.0) == 1
    if unit.a.emin == -126:
        assert sign([-(2.0**-100)], [2.0**-100], 0.0) == -1


@pytest.mark.parametrize("unit", FLOATS[2:], ids=str)
def test_a_product_past_the_range_is_infinite_and_a_sum_may_not_be(unit: Row) -> None:
    big = [2.0**64, 2.0**64], [2.0**64, -(2.0**64)]
    assert unit.dot(big[0][:1], big[1][:1]) == INF
    assert np.isnan(unit.dot(*big))
    assert unit.dot([-INF, 2.0**64], [1.0, 2.0**64]) == -INF  # beside an infinity it changes nothing
    assert unit.dot([1.0, 2.0**64], [1.0, 2.0**64], -INF) == -INF
    assert unit.dot([2.0**64, 2.0**64, -(2.0**64)], [2.0**63, 2.0**63, 2.0**63]) == 2.0**127
    assert unit.dot([2.0**64, 2.0**64], [2.0**63, 2.0**63]) == INF


@pytest.mark.parametrize("unit", FLOATS, ids=str)
def test_infinities_and_nan(unit: Row) -> None:
    assert unit.dot([INF], [-1.0]) == -INF
    assert unit.dot([1.0], [1.0], INF) == INF
    for operands in (([INF], [0.0], 0.0), ([INF], [1.0], -INF), ([INF, INF], [1.0, -1.0], 0.0), ([1.0], [1.0], np.nan)):
        assert np.isnan(unit.dot(*operands))
    length = unit.unit.block_length
    later = [1.0] * length + [-INF], [1.0] * (length + 1)
    assert unit.dot(*later) == -INF
    assert np.isnan(unit.dot(*later, INF))


# Against the twin.


def random_codes(rng: np.random.Generator, fmt: FloatFormat, shape: Any, center: int, spread: int, kind: str) -> Array:
    """Return codes whose exponents lie within ``spread`` of ``center``, with telling fractions."""
    mask = (1 << fmt.m) - 1
    fields = np.clip(rng.integers(center - spread, center + spread + 1, shape) + fmt.bias, 0, fmt.max_code >> fmt.m)
    telling = rng.choice(np.array([0, mask, 1 << (fmt.m - 1), 1, mask - 1]), shape)
    fractions = np.where(rng.random(shape) < 0.5, telling, rng.integers(0, mask + 1, shape))
    codes = fields << fmt.m | fractions
    codes = np.minimum(codes, fmt.max_code) | rng.integers(0, 2, shape) * fmt.sign_code
    few = [0, 0, fmt.min_code, fmt.sign_code | fmt.min_code]
    if kind == "special":
        few += [fmt.nan_code or 0]
        few += [] if fmt.inf_code is None else [fmt.inf_code, fmt.sign_code | fmt.inf_code] * 2
    share = {"dense": 0.0, "zeros": 0.7}.get(kind, 0.1)
    codes = np.where(rng.random(shape) < share, rng.choice(np.array(few), shape), codes)
    if kind != "special":
        codes[(codes & ~fmt.sign_code) == 0] = 0  # the negative zero of some formats is NaN
    return codes.astype(fmt.code_dtype)


@st.composite
def cases(draw: st.DrawFn, unit: Row) -> tuple[Array, Array, Array]:
    """Draw a small product of matrices; in half of them later products cancel earlier ones but for a last bit."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    length = unit.unit.block_length
    m, n, k = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.sampled_from([0, 1, 3, length, 2 * length + 1]))
    kind = draw(st.sampled_from(["dense", "some", "zeros", "special"]))
    a, b = unit.a, unit.b
    center_a = draw(st.integers(a.emin, a.emax))
    # The exponents of the products fall anywhere, at both ends of the range of the result, or in the middle.
    target = draw(st.sampled_from([-150, -126, 0, 126, 2 * center_a]))
    center_b = min(max(target - center_a, b.emin), b.emax)
    spread = draw(st.sampled_from([0, 1, 3, 12, 40]))
    rows = random_codes(rng, a, (m, k), center_a, spread, kind)
    columns = random_codes(rng, b, (k, n), center_b, spread, kind)
    if k > 1 and kind == "dense":
        half = k // 2
        rows[:, half : 2 * half] = rows[:, :half] ^ rows.dtype.type(a.sign_code)
        columns[half : 2 * half] = columns[:half]
        columns[half] ^= columns.dtype.type(draw(st.sampled_from([0, 1])))
    near = center_a + center_b + draw(st.sampled_from([0, -1, 1, 2, 7, 24, 31, -7, -24, -25, -26, -31, -200, 200]))
    return rows, columns, random_codes(rng, FP32, (m, n), near, 1, kind)


@pytest.mark.parametrize("unit", ROWS, ids=str)
def test_lanes_equal_the_twin(unit: Row) -> None:
    @settings(max_examples=EXAMPLES)
    @given(cases(unit))
    def check(case: tuple[Array, Array, Array]) -> None:
        assert_same_bits(unit.codes(*case), unit.expected(*case))

    check()


@pytest.mark.usefixtures("integers_only")
@pytest.mark.parametrize("unit", ROWS, ids=str)
def test_integers_equal_the_twin(unit: Row) -> None:
    @settings(max_examples=EXAMPLES)
    @given(cases(unit))
    def check(case: tuple[Array, Array, Array]) -> None:
        assert_same_bits(unit.codes(*case), unit.expected(*case))

    check()


@settings(max_examples=2 * EXAMPLES)
@given(st.data())
def test_units_that_might_have_been_equal_the_twin(data: st.DataObject) -> None:
    base = data.draw(st.sampled_from([*ROWS, row("fp32", block_length=4), row("fp16", "bf16")]))
    bits = st.integers(1, 44)
    numbers = Floored(
        block_length=data.draw(st.sampled_from([2, 4, 6, 8, 16, 24, 32])),
        product_bits=data.draw(st.just(24) | bits),
        sum_bits=data.draw(st.just(31) | bits),
        accumulator_bits=data.draw(st.just(24) | bits),
        accumulator_reach=data.draw(st.sampled_from([0, 20, 25, 1000])),
        drop_zeros=data.draw(st.booleans()),
    )
    unit = dataclasses.replace(base, unit=numbers, pair=data.draw(st.booleans()))
    case = data.draw(cases(unit))
    assert_same_bits(unit.codes(*case), unit.expected(*case))


# Against recordings.


RECORDED = {
    "16x16x16_f16": ("fp16",),
    "16x16x4_4b_f16": ("fp16",),
    "32x32x8_f16": ("fp16",),
    "4x4x4_16b_f16": ("fp16",),
    "16x16x16_bf16": ("bf16",),
    "16x16x4_4b_bf16": ("bf16",),
    "16x16x8_xf32": ("tf32",),
    "32x32x4_xf32": ("tf32",),
    "16x16x32_fp8_fp8": ("e4m3fnuz",),
    "16x16x32_fp8_bf8": ("e4m3fnuz", "e5m2fnuz"),
    "16x16x32_bf8_fp8": ("e5m2fnuz", "e4m3fnuz"),
    "16x16x32_bf8_bf8": ("e5m2fnuz",),
    "32x32x16_fp8_fp8": ("e4m3fnuz",),
}


@pytest.mark.parametrize("integers", [False, True], ids=["lanes", "integers"])
@pytest.mark.parametrize("drop_zeros", [False, True])
@pytest.mark.parametrize("name", RECORDED)
def test_outputs_of_the_published_models(
    name: str, drop_zeros: bool, integers: bool, request: pytest.FixtureRequest
) -> None:
    if integers:
        request.getfixturevalue("integers_only")
    file = np.load(vectors("matrix-units", f"cdna3_mfma_f32_{name}.npz"))
    meta = json.loads(str(file["meta"]))
    unit = row(*RECORDED[name], drop_zeros=drop_zeros)
    low = np.uint32(13) if unit.a.name == "tf32" else file["a"].dtype.type(0)
    want = file["d"].copy()
    if drop_zeros:
        want[np.unpackbits(file["disputed"], axis=-1, count=meta["n"]).astype(bool)] = file["disputed_alt"]
    tiles = range(len(want) if JIT else 2)
    for tile in tiles:
        got = unit.codes(file["a"][tile] >> low, file["b"][tile] >> low, file["c"][tile])
        both_nan = np.isnan(got.view(np.float32)) & np.isnan(want[tile].view(np.float32))
        assert_same_bits(got, np.where(both_nan, got, want[tile]))


# The lanes against the integers, and what must not change a bit.

KINDS = ("normal", "any", "zeros", "subnormal", "special", "overflow")


def problem(unit: Row, kind: str, kind_c: str, shape: tuple[int, int, int]) -> tuple[Array, Array, Array | None]:
    """Return values of a kind; in the second row and the third column of the result every product is zero."""
    rng = np.random.default_rng(list(f"{unit} {kind} {kind_c} {shape}".encode()))
    m, k, n = shape

    def values(fmt: FloatFormat, size: tuple[int, int], kind: str) -> Array:
        middle = (fmt.emin + fmt.emax) // 2
        center, spread = {"normal": (0, 3), "subnormal": (fmt.emin, 2), "overflow": (fmt.emax // 2, 3)}.get(
            kind, (middle, fmt.emax - middle)
        )
        return decode(random_codes(rng, fmt, size, center, spread, kind), fmt)

    a, b = values(unit.a, (m, k), kind), values(unit.b, (k, n), kind)
    a[1:2], b[:, 2:3] = 0, 0
    return a, b, None if kind_c == "none" else values(FP32, (m, n), kind_c)


@pytest.mark.parametrize("kind_c", ["none", *KINDS])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", ROWS, ids=str)
def test_lanes_equal_integers(unit: Row, kind: str, kind_c: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = problem(unit, kind, kind_c, (SIZE, SIZE + 3, SIZE + 7))
    got = unit.values(*operands)
    seen: list[bool] = []
    double = floored._lanes

    def remember(*arguments: Any) -> Any:
        lanes = double(*arguments)
        assert lanes is not None
        seen.append(lanes.double)
        return None

    monkeypatch.setattr(floored, "_lanes", remember)
    assert_same_bits(got, unit.values(*operands))
    if seen == [False]:  # float64 holds what float32 does
        monkeypatch.setattr(floored, "_lanes", lambda *x: double(*x)._replace(double=True, shift_a=0, shift_b=0))
        assert_same_bits(unit.values(*operands), got)


@pytest.mark.long
@pytest.mark.skipif(not JIT, reason="millions of blocks take hours in plain Python")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", ROWS, ids=str)
def test_lanes_equal_integers_on_many_blocks(unit: Row, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = 20  # times 200 * 200 outputs, 3 kinds of accumulators, 6 of operands and 12 rows: 170 million
    lanes = floored._lanes
    for kind_c in ("any", "subnormal", "special"):
        operands = problem(unit, kind, kind_c, (200, blocks * unit.unit.block_length, 200))
        monkeypatch.setattr(floored, "_lanes", lanes)
        got = unit.values(*operands)
        monkeypatch.setattr(floored, "_lanes", lambda *_: None)
        assert_same_bits(got, unit.values(*operands))


@pytest.mark.parametrize("unit", FEW, ids=str)
def test_a_product_is_a_chain_of_its_blocks(unit: Row) -> None:
    a, b, c = problem(unit, "normal", "normal", (7, 48, 9))
    length = unit.unit.block_length
    whole = unit.values(a, b, c)
    for k in range(0, 48, length):
        c = unit.values(a[:, k : k + length], b[k : k + length], c)
    assert c is not None
    assert_same_bits(c, whole)


@pytest.fixture
def many_threads() -> Iterator[None]:
    """Cut work into threads however small it is."""
    before = floored._WORK
    floored._WORK = 1
    yield
    floored._WORK = before


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one thread only")
@pytest.mark.parametrize("kind", ["normal", "special", "overflow"])
@pytest.mark.parametrize("unit", FEW, ids=str)
@pytest.mark.usefixtures("many_threads")
def test_the_number_of_threads_changes_nothing(unit: Row, kind: str) -> None:
    operands = problem(unit, kind, "any", (13, 20, 18))
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        one = unit.values(*operands)
        numba.set_num_threads(2)
        two = unit.values(*operands)
    finally:
        numba.set_num_threads(before)
    assert_same_bits(two, one)


@pytest.mark.parametrize("kind", ["normal", "special", "overflow"])
@pytest.mark.parametrize("unit", FEW, ids=str)
def test_tiles_change_nothing(unit: Row, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = problem(unit, kind, "any", (70, 32, 100))
    assert c is not None
    whole = unit.values(a, b, c)
    monkeypatch.setattr(floored, "_PANEL", 32)
    assert_same_bits(unit.values(a, b, c), whole)
    assert_same_bits(unit.values(a[2:67], b[:, 37:60], c[2:67, 37:60]), whole[2:67, 37:60])


@pytest.mark.parametrize("unit", FEW, ids=str)
def test_strides_and_read_only_arrays_change_nothing(unit: Row) -> None:
    a, b, c = problem(unit, "any", "any", (7, 9, 11))
    want = unit.values(a, b, c)
    reversed_twice = a[::-1, ::-1].copy()[::-1, ::-1]
    assert_same_bits(unit.values(reversed_twice, b.T.copy().T, np.asfortranarray(c)), want)
    a.flags.writeable = False
    assert_same_bits(unit.values(a, np.broadcast_to(b, b.shape), c), want)


@pytest.mark.parametrize("shape", [(0, 5, 3), (3, 5, 0), (3, 0, 2), (0, 0, 0), (1, 1, 1)])
@pytest.mark.parametrize("unit", FEW, ids=str)
def test_empty_and_tiny_shapes(unit: Row, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = problem(unit, "normal", "normal", shape)
    got = unit.values(a, b, c)
    if shape[1] == 0:
        assert_same_bits(got, c)
    monkeypatch.setattr(floored, "_lanes", lambda *_: None)
    assert_same_bits(unit.values(a, b, c), got)


@pytest.mark.skipif(not JIT, reason="MXCSR is set through Numba, which is disabled")
@pytest.mark.parametrize(
    "state",
    [fpu.FTZ | fpu.DAZ, fpu.ROUND_DOWN, fpu.ROUND_UP, fpu.ROUND_TO_ZERO, fpu.ROUND_UP | fpu.FTZ | fpu.DAZ],
    ids=["FTZ DAZ", "down", "up", "to zero", "up FTZ DAZ"],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", ROWS, ids=str)
def test_the_state_of_the_processor_changes_nothing(unit: Row, kind: str, state: int) -> None:
    operands = problem(unit, kind, "subnormal" if kind == "any" else "any", (30, 41, 50))
    want = unit.values(*operands)
    with fpu.mxcsr(fpu.DEFAULT | state):
        got = unit.values(*operands)
    assert_same_bits(got, want)
