"""How libraries cut K, join partial results and finish, against an exact twin."""

import dataclasses
import itertools
from fractions import Fraction
from typing import Any

import numba
import numpy as np
import pytest

import mxcsr as fpu
from bits import assert_same_bits
from mpsim import units
from mpsim.blocks import quantize
from mpsim.encoding import decode, encode
from mpsim.formats import get_format
from mpsim.matmul import SCHEDULES, MatmulCounters, Schedule, explain_dot, matmul
from mpsim.rounding import round_to
from reference import gemm as twin

Array = np.ndarray[Any, Any]
M, K, N = 2, 300, 3


def operands(seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    a = round_to(rng.standard_normal((M, K)).astype(np.float32), "bf16")
    return a, round_to(rng.standard_normal((K, N)).astype(np.float32), "bf16")


def each(function: Any, a: Array, b: Array) -> Array:
    """Return what a function makes of every row and column, as float32."""
    return np.array([[float(function(i, j)) for j in range(b.shape[1])] for i in range(a.shape[0])], np.float32)


@pytest.mark.parametrize("promotion", [0, 32])
@pytest.mark.parametrize("stripes", [1, 2])
@pytest.mark.parametrize(
    ("splits", "kind"), [(1, "contiguous"), (2, "contiguous"), (3, "interleaved"), (7, "contiguous")]
)
@pytest.mark.parametrize("how", ["serial", "pairwise", "in-place", "workspace"])
def test_every_way_to_cut_k(how: str, splits: int, kind: str, stripes: int, promotion: int) -> None:
    a, b = operands()
    narrow = lambda x: twin.rounded(x, 8, -126)  # noqa: E731

    def element(i: int, j: int) -> Fraction:
        def chain(ks: Any) -> Fraction:
            ks = list(ks)
            return Fraction(matmul(a[i : i + 1, ks], b[ks, j : j + 1], unit="a100", inputs="bf16").item())

        parts = twin.accumulator(chain, K, splits, kind, 64, stripes, promotion)
        return narrow(twin.joined(parts, how, narrow))

    got = matmul(a, b, unit="a100", inputs="bf16", split_k=splits, split=kind, stripes=stripes, promotion=promotion,
                 reduction=how, result="bf16")  # fmt: skip
    assert_same_bits(got, each(element, a, b))


def test_schedules_give_different_bits() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((20, K)), rng.standard_normal((K, 20))
    seen = {
        matmul(a, b, unit="h100", inputs="bf16", **choice).tobytes()
        for choice in (
            {},
            {"split_k": 2},
            {"split_k": 4},
            {"promotion": 64},
            {"stripes": 2},
            {"split_k": 4, "reduction": "pairwise"},
        )
    }
    assert len(seen) == 6


def test_alpha_and_beta_are_one_fused_multiply_add() -> None:
    a, b = operands(2)
    c = np.linspace(-3, 3, M * N).reshape(M, N).astype(np.float32)
    acc = matmul(a, b, unit="a100", inputs="bf16")
    alpha, beta = np.float32(0.3), np.float32(-1.7)

    def element(i: int, j: int) -> Fraction:
        addend = twin.fp32(Fraction(float(beta)) * Fraction(float(c[i, j])))
        return twin.fp32(Fraction(float(alpha)) * Fraction(float(acc[i, j])) + addend)

    got = matmul(a, b, c, unit="a100", inputs="bf16", alpha=float(alpha), beta=float(beta))
    assert_same_bits(got, each(element, a, b))
    assert_same_bits(matmul(a, b, c, unit="a100", inputs="bf16", alpha=0.0), c)
    # Without either the accumulator starts from c.
    inside = matmul(a, b, c, unit="a100", inputs="bf16")
    assert not np.array_equal(inside, matmul(a, b, c, unit="a100", inputs="bf16", alpha=1.0))


def test_scales_of_rows_and_columns_multiply_in_turn() -> None:
    a, b = operands(3)
    rows, columns = np.array([[0.1], [0.7]], np.float32), np.array([[3.3, 0.01, 1.9]], np.float32)
    acc = matmul(a, b, unit="a100", inputs="bf16")

    def element(i: int, j: int) -> Fraction:
        first = twin.fp32(Fraction(float(acc[i, j])) * Fraction(float(columns[0, j])))
        return twin.fp32(first * Fraction(float(rows[i, 0])))

    got = matmul(a, b, unit="a100", inputs="bf16", scale_a=rows, scale_b=columns)
    assert_same_bits(got, each(element, a, b))


@pytest.mark.parametrize("by_blocks_of_columns", [True, False])
def test_scales_of_blocks_join_with_promotion(by_blocks_of_columns: bool) -> None:
    a, b = operands(4)
    rng = np.random.default_rng(0)
    rows = rng.uniform(0.5, 2, (M, 3)).astype(np.float32)
    columns = rng.uniform(0.5, 2, (3, 1 if by_blocks_of_columns else N)).astype(np.float32)

    def element(i: int, j: int) -> Fraction:
        acc = Fraction(0)
        for block, start in enumerate(range(0, K, 128)):
            ks = slice(start, start + 128)
            part = Fraction(matmul(a[i : i + 1, ks], b[ks, j : j + 1], unit="h100", inputs="e4m3").item())
            scale = twin.fp32(Fraction(float(rows[i, block])) * Fraction(float(columns[block, j % columns.shape[1]])))
            acc = twin.fp32(part * scale + acc)
        return acc

    got = matmul(a, b, unit="h100", inputs="e4m3", scale_a=rows, scale_b=columns)
    assert_same_bits(got, each(element, a, b))


def test_fp8_results_saturate_and_keep_nan() -> None:
    a = np.array([[400.0], [1.0], [np.nan], [3.0]])
    got = matmul(a, [[448.0]], unit="h100", inputs="e4m3", result="e4m3", scale_result=0.5)
    assert_same_bits(encode(got, "e4m3"), np.array([[0x7E], [0x76], [0x7F], [0x7E]], np.uint8))
    infinite = matmul([[np.inf]], [[1.0]], unit="h100", inputs="e5m2", result="e5m2")
    assert infinite.item() == 57344.0


def test_results_are_rounded_twice_as_in_hardware() -> None:
    # 1 + 2**-11 + 2**-30 is cut to a tie in fp32's last bits before it is rounded to fp16.
    a, b = [[1.0, 2.0**-11, 2.0**-15]], [[1.0], [1.0], [2.0**-15]]
    assert matmul(a, b, unit="a100").item() == 1 + 2.0**-11
    assert matmul(a, b, unit="a100", result="fp16").item() == 1.0


@pytest.mark.parametrize("name", SCHEDULES)
def test_presets_leave_exact_sums_alone(name: str) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(-2, 3, (4, 500)), rng.integers(-2, 3, (500, 6))
    got = matmul(a, b, unit="h100", inputs="fp16", schedule=name, split_k=3)
    assert_same_bits(
        got, (a @ b).astype(np.float32) if "cublas-" not in name else round_to((a @ b).astype(np.float32), "fp32")
    )


def test_stacks_of_matrices_take_schedules_too() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((3, 2, 5, 200)), rng.standard_normal((2, 200, 4))
    got = matmul(a, b, unit="h100", promotion=64, alpha=0.5)
    for i, j in itertools.product(range(3), range(2)):
        assert_same_bits(got[i, j], matmul(a[i, j], b[j], unit="h100", promotion=64, alpha=0.5))


def test_the_state_of_the_processor_changes_nothing() -> None:
    if numba.config.DISABLE_JIT:
        pytest.skip("MXCSR is set through Numba, which is disabled")
    a, b = operands(7)
    keywords: dict[str, Any] = {
        "unit": "a100",
        "inputs": "bf16",
        "split_k": 3,
        "promotion": 32,
        "alpha": 1e-38,
        "result": "fp16",
    }
    want = matmul(a, b, **keywords)
    for state in (fpu.FTZ | fpu.DAZ, fpu.ROUND_UP, fpu.ROUND_TO_ZERO):
        with fpu.mxcsr(fpu.DEFAULT | state):
            assert_same_bits(matmul(a, b, **keywords), want)


def test_block_formats_are_quantised_on_the_way() -> None:
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((4, 100)), rng.standard_normal((100, 5))
    for name in ("mxfp8_e4m3", "mxfp6_e2m3", "mxfp4", "nvfp4"):
        qa, qb = quantize(a, name), quantize(b, name, axis=0)
        want = matmul(qa, qb, unit="b200", inputs=name)
        assert_same_bits(matmul(a, b, unit="b200", inputs=name), want)
        near = qa.dequantize().astype(np.float64) @ qb.dequantize().astype(np.float64)
        np.testing.assert_allclose(want, near, rtol=0, atol=2e-5)  # 100 products below 20, cut at 2**-25 of the largest
    with pytest.raises(ValueError, match=r"blocks of b lie along axis 1; they must lie along K, axis -2"):
        matmul(qa, quantize(b, "nvfp4"), unit="b200", inputs="nvfp4")
    with pytest.raises(ValueError, match="a is in nvfp4, but ampere"):
        matmul(qa, b)
    with pytest.raises(ValueError, match="a is in nvfp4; blackwell"):
        matmul(qa, qb, unit="b200", inputs="mxfp8_e4m3")


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp4", "nvfp4"])
def test_blocks_keep_their_scales_however_k_is_cut(name: str) -> None:
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((4, 300)), rng.standard_normal((300, 5)) * 2.0 ** rng.integers(-9, 9, (300, 1))
    qa, qb = (dataclasses.replace(q, tensor_scale=1.0) for q in (quantize(a, name), quantize(b, name, axis=0)))

    def part(*pieces: range) -> Array:
        """Return the product of some whole blocks, put side by side."""
        length = qa.format.length
        ks = np.concatenate(pieces)
        blocks = np.unique(ks // length)
        left = dataclasses.replace(qa, codes=qa.codes[:, ks], scales=qa.scales[:, blocks])
        right = dataclasses.replace(qb, codes=qb.codes[ks], scales=qb.scales[blocks])
        return matmul(left, right, unit="b200", inputs=name)

    both = matmul(qa, qb, unit="b200", inputs=name, split_k=2)
    assert_same_bits(both, part(range(192)) + part(range(192, 300)))
    promoted = matmul(qa, qb, unit="b200", inputs=name, promotion=128)
    uncut = Schedule(promotion=128, tile=8)  # whose tiles cut nothing
    assert_same_bits(matmul(qa, qb, unit="b200", inputs=name, schedule=uncut), promoted)
    assert_same_bits(promoted, part(range(128)) + part(range(128, 256)) + part(range(256, 300)))
    striped = matmul(qa, qb, unit="b200", inputs=name, stripes=2)
    even, odd = ([range(k, min(k + 32, 300)) for k in range(first, 300, 64)] for first in (0, 32))
    assert_same_bits(striped, part(*even) + part(*odd))
    with pytest.raises(ValueError, match=r"promotion is 100; .* takes whole blocks of"):
        matmul(qa, qb, unit="b200", inputs=name, promotion=100)


def test_wrong_choices_say_what_would_do() -> None:
    a, b = operands()
    with pytest.raises(TypeError, match="unknown keyword split_n; beside the unit's there are alpha, beta"):
        matmul(a, b, split_n=2)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="schedule is 'fast'; it must be a Schedule or one of one-chain"):
        matmul(a, b, schedule="fast")
    with pytest.raises(ValueError, match="split_k is 0; it must be at least 1"):
        matmul(a, b, split_k=0)
    with pytest.raises(ValueError, match="reduction is 'serail': did you mean 'serial'"):
        matmul(a, b, reduction="serail")
    with pytest.raises(ValueError, match="stripes must divide the tile"):
        Schedule(stripes=3)
    with pytest.raises(ValueError, match=r"scale_a is \(5,\) and scale_b \(\); two numbers are needed"):
        matmul(a, b, scale_a=np.ones(5), scale_b=1.0)
    with pytest.raises(ValueError, match="scale_result was given, but result is fp32"):
        matmul(a, b, scale_result=2.0)
    with pytest.raises(ValueError, match="is one chain"):
        matmul(a, b, unit="a100", inputs="fp64", split_k=2)


@pytest.mark.parametrize(
    ("unit", "inputs"), [("v100", "fp16"), ("a100", "bf16"), ("h100", "e4m3"), ("b200", "mxfp8_e4m3")]
)
def test_cuts_are_counted_as_the_steps_show_them(unit: str, inputs: str) -> None:
    rng = np.random.default_rng(9)
    a, b = (np.ldexp(rng.standard_normal(s), rng.integers(-12, 3, s)) for s in ((2, 50), (50, 2)))
    a[:, ::7] = 0
    seen = MatmulCounters(errors=True)
    want = matmul(a, b, unit=unit, inputs=inputs)
    assert_same_bits(matmul(a, b, unit=unit, inputs=inputs, counters=seen), want)
    cut = np.zeros(3, int)
    errors = []
    for i, j in itertools.product(range(2), range(2)):
        told = explain_dot(a[i], b[:, j], unit=unit, inputs=inputs)
        errors.append(abs(told.error_ulps or 0.0))
        for step in told.steps:
            terms = [row for row in step.rows if row[0] != "c" and row[1] != 0]
            cut += [len(terms), sum(row[3] == 0 for row in terms), sum(row[3] != 0 and row[4] != 0 for row in terms)]
    assert (seen.products, seen.cut_to_zero, seen.cut_in_part) == tuple(cut)
    assert seen.cut_in_part > 0
    assert seen.results == seen.measured == 4
    assert seen.max_error_ulps == max(errors)
    assert seen.mean_error_ulps == pytest.approx(sum(errors) / 4)


def test_overflows_and_flushed_inputs_are_counted() -> None:
    seen = MatmulCounters()
    matmul([[6e4, 6e4], [np.inf, 0.0]], [[6e4], [6e4]], unit="v100", out="fp16", counters=seen)
    assert (seen.results, seen.overflows) == (2, 1)
    seen = MatmulCounters()
    matmul([[1e-7, 1.0, 0.0]], [[1.0], [1.0], [1e-6]], unit="mi250x", counters=seen)
    assert seen.flushed_inputs == 2
    seen = MatmulCounters()
    matmul([[1e-7, 1.0, 0.0]], [[1.0], [1.0], [1e-6]], unit="mi300x", counters=seen)
    assert seen.flushed_inputs == 0
    assert np.isnan(MatmulCounters().mean_error_ulps)


def test_units_and_formats_of_the_catalogue_are_meant() -> None:
    assert units.get("b200", inputs="nvfp4").scale == "ue4m3"
    assert decode(np.array([0x38], np.uint8), "ue4m3").item() == 1.0
    assert get_format("e8m0").has_zero is False
