"""Sums and dot products against loops of single operations, and exact ones against fractions."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import arithmetic
from mpsim.encoding import decode, encode
from mpsim.formats import FloatFormat, get_format
from reference import arithmetic as twin
from reference.arithmetic import How
from reference.rounding import MODES, code_dtype
from reference.samples import FORMATS, JIT

CALCULATED = [fmt for fmt in FORMATS if fmt.bits <= 32]
USUAL = [get_format(name) for name in ("fp32", "fp16", "bf16", "e4m3", "e5m2", "e2m1", "dlfloat16", "ue4m3", "e8m0")]


def terms(fmt: FloatFormat, rows: int, n: int, seed: int) -> np.ndarray:
    """Return codes of finite numbers of about one size and either sign, with some zeros."""
    rng = np.random.default_rng(seed)
    middle = fmt.max_code // 2
    spread = min(8 << fmt.m, middle)
    codes = rng.integers(middle - spread, middle + spread + 1, (rows, n))
    codes[rng.random((rows, n)) < 0.1] = 0
    signs = np.where(codes > 0, rng.choice([0, fmt.sign_code], (rows, n)), 0)
    return (codes | signs).astype(fmt.code_dtype)


class Steps:
    """Single operations on codes, in the twin."""

    def __init__(self, fmt: FloatFormat, how: How) -> None:
        self.fmt, self.how, self.flags = fmt, how, 0

    def __call__(self, name: str, *codes: int) -> int:
        code, flags = twin.apply(name, self.fmt, codes, self.how)
        self.flags |= flags
        return code


def total(step: Steps, x: list[int], order: str, chunk: int) -> int:
    """Return the sum of codes in an order."""
    match order:
        case "sequential":
            result = x[0]
            for term in x[1:]:
                result = step("add", result, term)
            return result
        case "chunked":
            parts = [total(step, x[i : i + chunk], "sequential", 0) for i in range(0, len(x), chunk)]
            return total(step, parts, "sequential", 0)
        case "pairwise":
            while len(x) > 1:
                x = [step("add", *x[i : i + 2]) if len(x[i : i + 2]) == 2 else x[i] for i in range(0, len(x), 2)]
            return x[0]
        case "kahan":
            result, lost = x[0], 0
            if not step.fmt.has_zero:
                lost = twin.finish(step.fmt, twin.finite(Fraction(0)), step.how)[0]
            for term in x[1:]:
                wanted = step("sub", term, lost)
                new = step("add", result, wanted)
                lost = step("sub", step("sub", new, result), wanted)
                result = new
            return result
    raise AssertionError(order)


@pytest.mark.parametrize("order", ["sequential", "pairwise", "chunked", "kahan"])
@pytest.mark.parametrize("fmt", USUAL, ids=str)
def test_sums_are_those_of_single_additions(fmt: FloatFormat, order: str):
    chunk = 4 if order == "chunked" else None
    for n, (seed, mode) in itertools.product((1, 2, 7, 16), enumerate(MODES if JIT else MODES[:1])):
        x = terms(fmt, 3, n, seed)
        got, flags = arithmetic.sum(
            x, fmt, order=order, chunk=chunk, rounding=mode, codes=True, return_flags=True, tininess="before"
        )
        for row, code, flag in zip(x.tolist(), got, flags, strict=True):
            step = Steps(fmt, How(mode, tininess="before"))
            assert total(step, row, order, 4) == code
            assert step.flags == flag


@pytest.mark.parametrize("order", ["sequential", "pairwise", "chunked", "kahan"])
@pytest.mark.parametrize("fmt", USUAL, ids=str)
def test_dots_are_those_of_single_operations(fmt: FloatFormat, order: str):
    chunk = 3 if order == "chunked" else None
    for mode in MODES if JIT else MODES[:1]:
        x, y = terms(fmt, 3, 8, 21), terms(fmt, 3, 8, 22)
        got, flags = arithmetic.dot(x, y, fmt, order=order, chunk=chunk, rounding=mode, codes=True, return_flags=True)
        for row, column, code, flag in zip(x.tolist(), y.tolist(), got, flags, strict=True):
            step = Steps(fmt, How(mode))
            products = [step("mul", a, b) for a, b in zip(row, column, strict=True)]
            assert total(step, products, order, 3) == code
            assert step.flags == flag


@pytest.mark.parametrize("fmt", USUAL, ids=str)
def test_fused_dots_round_once_a_step(fmt: FloatFormat):
    for chunk in (None, 3):
        x, y = terms(fmt, 3, 8, 23), terms(fmt, 3, 8, 24)
        order = "chunked" if chunk else "sequential"
        got = arithmetic.dot(x, y, fmt, order=order, chunk=chunk, products="fused", codes=True)
        for row, column, code in zip(x.tolist(), y.tolist(), got, strict=True):
            step = Steps(fmt, How())
            parts = []
            for start in range(0, 8, chunk or 8):
                pairs = list(zip(row, column, strict=True))[start : start + (chunk or 8)]
                part = step("mul", *pairs[0])
                for a, b in pairs[1:]:
                    part = step("fma", a, b, part)
                parts.append(part)
            assert total(step, parts, "sequential", 0) == code


def test_products_may_have_a_format_of_their_own():
    x, y = terms(get_format("e4m3"), 4, 9, 25), terms(get_format("e4m3"), 4, 9, 26)
    got = arithmetic.dot(x, y, "fp32", inputs="e4m3", products="e6m5", codes=True)
    exact = decode(x, "e4m3").astype(np.float64) * decode(y, "e4m3")
    products = decode(encode(exact, "e6m5"), "e6m5")
    assert_same_bits(got, arithmetic.sum(encode(products, "fp32"), "fp32", codes=True))


def exactly(fmt: FloatFormat, source: FloatFormat, rows: Any, how: How, columns: Any = None) -> tuple[list, list]:
    """Return codes and flags of exact sums, or dot products, of finite codes."""
    results = []
    for i, row in enumerate(rows):
        numbers = [twin.operand(source, code) for code in row]
        if columns is not None:
            others = [twin.operand(source, code) for code in columns[i]]
            numbers = [twin.mul(a, b, how) for a, b in zip(numbers, others, strict=True)]
        sign = all(x.negative for x in numbers) if all(map(twin.is_zero, numbers)) else how.mode == "down"
        if all(map(twin.is_zero, numbers)) and len({x.negative for x in numbers}) == 2:
            sign = how.mode == "down"
        results.append(twin.finish(fmt, twin.finite(sum(map(twin.signed, numbers), Fraction(0)), sign), how))
    return [code for code, _ in results], [flag for _, flag in results]


@pytest.mark.parametrize("fmt", CALCULATED, ids=str)
def test_exact_sums_and_dots_are_rounded_once(fmt: FloatFormat):
    rng = np.random.default_rng(27)
    for mode, n in itertools.product(MODES if JIT else MODES[:1], (1, 2, 5, 40)):
        shape = (6, n)
        # All exponents: terms that differ by the whole range of the format, and cancel.
        x, y = (rng.integers(0, fmt.max_code + 1, shape) for _ in range(2))
        if n == 40:
            x[:, 20:39], y[:, 20:39] = x[:, :19], y[:, :19]
        minus = rng.choice([0, fmt.sign_code], (2, *shape))
        minus[:, :, 20:39] = minus[:, :, :19] ^ np.array([fmt.sign_code, 0])[:, None, None] if n == 40 else 0
        x, y = (np.where(w > 0, w | sign, w).astype(fmt.code_dtype) for w, sign in zip((x, y), minus, strict=True))
        for columns in (None, y):
            how = {"rounding": mode, "order": "exact", "codes": True, "return_flags": True}
            got, flags = arithmetic.sum(x, fmt, **how) if columns is None else arithmetic.dot(x, y, fmt, **how)
            codes, want_flags = exactly(fmt, fmt, x.tolist(), How(mode), None if columns is None else y.tolist())
            assert_same_bits(got, np.array(codes, code_dtype(fmt)))
            assert flags.tolist() == want_flags


def test_exact_dots_of_float32_round_into_any_format():
    rng = np.random.default_rng(28)
    fp32 = get_format("fp32")
    x, y = (rng.integers(0, fp32.max_code + 1, (20, 30)).astype(np.uint32) for _ in range(2))
    x |= rng.choice(np.array([0, 1 << 31], np.uint32), x.shape)
    y[:, :15], x[:, 15:] = y[:, 15:], x[:, :15] ^ np.uint32(1 << 31)
    x[:, 0] = rng.integers(0, 1 << 23, 20)  # does not cancel
    for name in ("fp16", "bf16", "fp32", "e4m3"):
        got = arithmetic.dot(x, y, name, inputs="fp32", order="exact", codes=True)
        codes, _ = exactly(get_format(name), fp32, x.tolist(), How(), y.tolist())
        assert got.tolist() == codes


def test_exact_sums_do_not_overflow_on_the_way():
    assert arithmetic.sum([60000.0, 60000.0, -60000.0], "fp16") == np.inf
    assert arithmetic.sum([60000.0, 60000.0, -60000.0], "fp16", order="exact") == 60000.0
    big = float(np.finfo(np.float32).max)
    assert arithmetic.dot([big, 1.0, -big], [big, 2**-149, big], "fp32", order="exact") == np.float32(2**-149)


def test_special_terms_give_what_adding_them_gives():
    inf, nan = np.inf, np.nan
    for x, want, flag in (
        ([1.0, inf, 2.0], inf, 0),
        ([inf, -inf], nan, 16),
        ([inf, nan, -inf], nan, 0),
        ([1.0, nan], nan, 0),
        ([-inf, -5.0], -inf, 0),
    ):
        got, flags = arithmetic.sum(x, "fp16", order="exact", return_flags=True)
        np.testing.assert_equal(got, np.float32(want))
        assert flags == flag
    got, flags = arithmetic.dot([inf, 1.0], [0.0, 1.0], "fp16", order="exact", return_flags=True)
    assert np.isnan(got)
    assert flags == 16


@pytest.mark.parametrize("mode", ["nearest-even", "down"])
@pytest.mark.parametrize("order", ["sequential", "pairwise", "kahan", "exact"])
def test_zero_sums_have_the_sign_of_addition(order: str, mode: str):
    if (order, mode) == ("kahan", "down"):
        pytest.skip("Kahan's compensation is 0 - 0, which is -0 when rounding down")
    assert_same_bits(arithmetic.sum([-0.0], "fp16", order=order, rounding=mode), np.array(-0.0, np.float32))
    for x in ([-0.0, -0.0], [0.0, -0.0], [1.0, -1.0], [0.0, 0.0]):
        want = arithmetic.add(*x, "fp16", rounding=mode)
        assert_same_bits(arithmetic.sum(x, "fp16", order=order, rounding=mode), want)


def test_any_axis_is_summed():
    x = np.random.default_rng(29).standard_normal((3, 4, 5)).astype(np.float16)
    for axis in (-3, -1, 0, 1, 2):
        got = arithmetic.sum(x, "fp32", axis=axis, inputs="fp16", order="exact")
        assert_same_bits(got, np.sum(x.astype(np.float64), axis=axis).astype(np.float32))
    y = np.ones(5, np.float16)
    assert arithmetic.dot(x, y, "fp32").shape == (3, 4)
    assert arithmetic.sum(np.empty((2, 0)), "fp16").tolist() == [0, 0]
    assert arithmetic.sum(np.empty((0, 2)), "fp16").shape == (0,)


def test_results_do_not_depend_on_the_number_of_rows_at_once():
    x, y = terms(get_format("fp16"), 300, 200 if JIT else 4, 30), terms(get_format("fp16"), 300, 200 if JIT else 4, 31)
    for order in ("sequential", "pairwise", "kahan", "exact"):
        together = arithmetic.dot(x, y, "fp16", order=order, codes=True)
        apart = [arithmetic.dot(a, b, "fp16", order=order, codes=True) for a, b in zip(x, y, strict=True)]
        assert together.tolist() == [int(code) for code in apart]


def test_compensation_helps():
    x = np.full(4096, 0.1)
    errors = {
        order: abs(float(arithmetic.sum(x, "fp16", order=order)) - 4096 * float(np.float16(0.1)))
        for order in ("sequential", "pairwise", "kahan", "exact")
    }
    assert errors["exact"] <= errors["kahan"] <= errors["pairwise"] < errors["sequential"]
    assert errors["sequential"] > 100


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="sum: order is 'pairs': did you mean 'pairwise'"):
        arithmetic.sum([1.0], "fp16", order="pairs")
    with pytest.raises(ValueError, match="chunk is None and order 'chunked'"):
        arithmetic.sum([1.0], "fp16", order="chunked")
    with pytest.raises(ValueError, match="chunk is 4 and order 'sequential'"):
        arithmetic.sum([1.0], "fp16", chunk=4)
    with pytest.raises(ValueError, match="dot: inputs is fp32, but fp16 lacks some of its numbers"):
        arithmetic.dot([1.0], [1.0], "fp16", inputs="fp32")
    with pytest.raises(ValueError, match="products is 'fused' and order 'pairwise'"):
        arithmetic.dot([1.0], [1.0], "fp16", order="pairwise", products="fused")
    with pytest.raises(ValueError, match="axis is 1; the terms have 1 dimensions"):
        arithmetic.sum([1.0], "fp16", axis=1)
