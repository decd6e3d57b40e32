"""Operations, conversions and comparisons against their exact twin, NumPy, ml_dtypes and the laws of arithmetic."""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mxcsr
from bits import assert_same_bits
from mpsim import arithmetic
from mpsim.encoding import decode, encode
from mpsim.formats import FP16, FP32, FloatFormat, Specials, get_format
from reference import arithmetic as twin
from reference.arithmetic import How
from reference.rounding import MODES, code_dtype
from reference.samples import FORMATS, JIT, ML_DTYPES, all_codes, sample_codes

CALCULATED = [fmt for fmt in FORMATS if fmt.bits <= 32]
BYTES = [fmt for fmt in CALCULATED if fmt.bits <= 8]
HALVES = [fmt for fmt in CALCULATED if 8 < fmt.bits <= 16]
LARGE = [fmt for fmt in CALCULATED if fmt.bits > 16]
BINARY = ("add", "sub", "mul", "div", "rem")
UNARY = ("sqrt", "round_to_integral")
VARIANTS = [
    How(mode, overflow, tininess, flush, zero_inputs)
    for mode, (overflow, tininess, flush, zero_inputs) in itertools.product(
        MODES,
        [
            ("ieee", "after", False, False),
            ("ieee", "before", False, True),
            ("saturate", "after", True, False),
            ("saturate", "before", True, True),
        ],
    )
]
"""Every mode, and every setting with either value."""


def options(how: How) -> dict[str, Any]:
    return {
        "rounding": how.mode,
        "overflow": how.overflow,
        "tininess": how.tininess,
        "flush_subnormals": how.flush,
        "subnormal_inputs_as_zero": how.zero_inputs,
    }


def assert_as_twin(name: str, fmt: FloatFormat, operands: Iterable[np.ndarray], how: How) -> None:
    """Fail unless codes and flags are those of the twin."""
    arrays = list(operands)
    want = [twin.apply(name, fmt, codes, how) for codes in zip(*(x.tolist() for x in arrays), strict=True)]
    assert_gives(name, fmt, arrays, how, np.array(want))


def assert_as_twin_in_all_modes(name: str, fmt: FloatFormat, operands: Iterable[np.ndarray]) -> None:
    """As `assert_as_twin` in every mode, finding each exact result once and rounding those that are equal together."""
    arrays = list(operands)
    exact: dict[str, tuple[list[twin.Exact], np.ndarray]] = {}
    for how in map(How, MODES):
        # But for integers, the mode is seen before rounding in the sign of a zero sum alone.
        shared = how.mode if name == "round_to_integral" or how.mode == "down" else "other"
        if shared not in exact:
            places: dict[twin.Exact, int] = {}
            where = [
                places.setdefault(twin.OPERATIONS[name](*(twin.operand(fmt, code) for code in codes), how), len(places))
                for codes in zip(*(x.tolist() for x in arrays), strict=True)
            ]
            exact[shared] = list(places), np.array(where)
        results, where = exact[shared]
        assert_gives(name, fmt, arrays, how, np.array([twin.finish(fmt, x, how) for x in results])[where])


def assert_gives(name: str, fmt: FloatFormat, arrays: list[np.ndarray], how: How, want: np.ndarray) -> None:
    """Fail unless codes and flags are the columns of ``want``."""
    got, flags = getattr(arithmetic, name)(*arrays, fmt, codes=True, return_flags=True, **options(how))
    want_codes, want_flags = want.T
    shown = None
    if (got != want_codes).any() or (flags != want_flags).any():
        shown = np.array([f"{name}{tuple(map(hex, codes))} {how}" for codes in zip(*arrays, strict=True)])
    assert_same_bits(got, want_codes.astype(code_dtype(fmt)), shown)
    assert_same_bits(flags, want_flags.astype(np.uint8), shown)


def pairs(fmt: FloatFormat, count: int, seed: int, operands: int = 2) -> list[np.ndarray]:
    """Return operands that often meet: at random, of near exponents, the same, one step apart, special."""
    rng = np.random.default_rng(seed)
    last = (1 << fmt.bits) - 1
    edges = np.unique(sample_codes(fmt, 0)).astype(np.int64)
    x = rng.integers(0, last + 1, count)
    x = np.where(rng.random(count) < 0.15, rng.choice(edges, count), x)
    others = []
    for _ in range(operands - 1):
        y = rng.integers(0, last + 1, count)
        near = x ^ rng.integers(0, 1 << min(fmt.p + 1, fmt.bits), count)
        signs = rng.choice([0, 1 << (fmt.bits - 1)], count)
        kind = rng.random(count)
        y = np.where(kind < 0.45, near ^ signs, y)
        y = np.where(kind < 0.10, (x + rng.integers(-1, 2, count)) & last ^ signs, y)
        others.append(np.where(kind > 0.85, rng.choice(edges, count), y))
    return [z.astype(fmt.code_dtype) for z in (x, *others)]


def all_pairs(fmt: FloatFormat) -> tuple[np.ndarray, np.ndarray]:
    codes = np.arange(1 << fmt.bits, dtype=fmt.code_dtype)
    return np.repeat(codes, codes.size), np.tile(codes, codes.size)


# Against the twin.


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("fmt", CALCULATED, ids=str)
def test_sample_pairs_give_the_twins_codes_and_flags(fmt: FloatFormat, name: str):
    for seed, how in enumerate(VARIANTS):
        assert_as_twin(name, fmt, pairs(fmt, 24 if JIT else 8, seed), how)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("fmt", BYTES, ids=str)
def test_all_pairs_give_the_twins_codes_and_flags(fmt: FloatFormat, name: str):
    assert_as_twin_in_all_modes(name, fmt, all_pairs(fmt))


@pytest.mark.parametrize("name", BINARY[:4])
@pytest.mark.parametrize("fmt", [fmt for fmt in BYTES if fmt.bits <= 6], ids=str)
def test_all_pairs_of_formats_of_six_bits_give_the_twins_codes_and_flags(fmt: FloatFormat, name: str):
    x, y = all_pairs(fmt)
    for mode in MODES if JIT else MODES[:1]:
        assert_as_twin(name, fmt, (x, y), How(mode, tininess="before"))


@pytest.mark.parametrize("name", BINARY[:4])
@pytest.mark.parametrize("fmt", BYTES, ids=str)
def test_tables_of_all_pairs_agree_with_single_operations(fmt: FloatFormat, name: str):
    x, y = all_pairs(fmt)
    if not JIT:
        x, y = x[:: x.size // 40 + 1], y[:: y.size // 40 + 1]
    together = getattr(arithmetic, name)(x, y, fmt, codes=True, return_flags=True)
    apart = [getattr(arithmetic, name)(x[i : i + 999], y[i : i + 999], fmt, codes=True, return_flags=True)
             for i in range(0, x.size, 999)]  # fmt: skip
    for got, want in zip(together, zip(*apart, strict=True), strict=True):
        assert_same_bits(got, np.concatenate(want))


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("fmt", CALCULATED, ids=str)
def test_unary_operations_give_the_twins_codes_and_flags(fmt: FloatFormat, name: str):
    for seed, how in enumerate(VARIANTS):
        codes = all_codes(fmt) if fmt.bits <= 8 and how.overflow == "ieee" else pairs(fmt, 60, seed)[0]
        assert_as_twin(name, fmt, [codes if JIT else codes[:30]], how)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("fmt", HALVES, ids=str)
def test_unary_operations_of_all_codes_give_the_twins_codes_and_flags(fmt: FloatFormat, name: str):
    assert_as_twin_in_all_modes(name, fmt, [all_codes(fmt)])


@pytest.mark.parametrize("fmt", CALCULATED, ids=str)
def test_fused_multiply_add_gives_the_twins_codes_and_flags(fmt: FloatFormat):
    for seed, how in enumerate(VARIANTS):
        assert_as_twin("fma", fmt, pairs(fmt, 24 if JIT else 6, seed, operands=3), how)
        # The addend next to the rounded product: cancellation, and results with no bits in common with either.
        x, y, z = pairs(fmt, 24 if JIT else 6, seed + 100, operands=3)
        product = arithmetic.mul(x, y, fmt, codes=True).astype(np.int64)
        steps = np.random.default_rng(seed).integers(-2, 3, x.size)
        z = (product + steps & (1 << fmt.bits) - 1 ^ fmt.sign_code).astype(fmt.code_dtype)
        assert_as_twin("fma", fmt, (x, y, z), how)


@settings(max_examples=400 if JIT else 30)
@given(st.data(), st.sampled_from(CALCULATED), st.sampled_from(VARIANTS))
def test_any_operands_give_the_twins_codes_and_flags(data: st.DataObject, fmt: FloatFormat, how: How):
    name = data.draw(st.sampled_from((*BINARY, "fma")))
    code = st.integers(0, (1 << fmt.bits) - 1)
    operands = data.draw(st.lists(code, min_size=3, max_size=3))[: 3 if name == "fma" else 2]
    assert_as_twin(name, fmt, [np.array([c], fmt.code_dtype) for c in operands], how)


TIES = {
    # fp16: a product half way between numbers, and an addend far below that breaks the tie either way.
    "tie": (0x3C01, 0x3E00, 0x0000),
    "tie broken upward": (0x3C01, 0x3E00, 0x0001),
    "tie broken downward": (0x3C01, 0x3E00, 0x8001),
    "product cancels but for its last bit": (0x3C01, 0x3C01, 0xBC02),
    "subnormal minus half a quantum": (0x0001, 0x3800, 0x8001),
    "product below every quantum": (0x0001, 0x0001, 0x0001),
    "largest plus just less than half an ulp": (0x4BFF, 0x0C00, 0x7BFF),
    "largest plus half an ulp": (0x4C00, 0x4C00, 0x7BFF),
    "infinity that a finite sum takes back": (0x7BFF, 0x4000, 0xFBFF),
    "exact zero of a product and its negative": (0x4000, 0x4000, 0xC400),
    "zeros of two signs": (0x8000, 0x3C00, 0x0000),
    "zeros of one sign": (0x8000, 0x3C00, 0x8000),
}


@pytest.mark.parametrize("operands", TIES.values(), ids=TIES)
def test_fused_multiply_add_is_right_at_edges(operands: tuple[int, int, int]):
    for how in VARIANTS:
        assert_as_twin("fma", FP16, [np.array([code], np.uint16) for code in operands], how)


def test_tininess_without_a_fraction_takes_the_parity_of_the_exponent():
    """With p = 1 a result of 3/4 of the smallest number is a tie one binade below, whose lower end is even."""
    fmt = get_format("binary8p1se")
    cases = [(k, fmt.bias + 1 - j - k, 1) for j in range(1, 5) for k in range(1, fmt.bias - 4, 3 if JIT else 20)]
    x, y, z = np.array(cases, np.uint8).T
    for mode, tininess in itertools.product(MODES, ("after", "before")):
        for minus in ((x ^ np.uint8(fmt.sign_code), z), (x, z ^ np.uint8(fmt.sign_code))):
            assert_as_twin("fma", fmt, (minus[0], y, minus[1]), How(mode, tininess=tininess))


def test_results_are_those_of_encoding_the_exact_result():
    """In float64 sums and products of two numbers of these formats are exact."""
    for fmt in (fmt for fmt in BYTES if fmt.emax < 32 and fmt.quantum_exponent > -20):
        x, y = pairs(fmt, 500 if JIT else 20, 3)
        a, b = decode(x, fmt).astype(np.float64), decode(y, fmt).astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        a, b = np.where(finite, a, 1), np.where(finite, b, 1)
        for rounding, overflow in itertools.product(MODES, ("ieee", "saturate")):
            for exact, operation in ((a * b, arithmetic.mul), (a + b, arithmetic.add)):
                got = operation(x, y, fmt, rounding=rounding, overflow=overflow, codes=True)
                nonzero = finite & (exact != 0)
                want = encode(exact, fmt, rounding, overflow)
                assert_same_bits(got[nonzero], want[nonzero])


# Conversions.


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_conversions_give_the_twins_codes_and_flags(fmt: FloatFormat):
    for source in map(get_format, ("fp64", "fp32", "fp16", "e4m3", "e8m0", "dlfloat16")):
        how = VARIANTS[(fmt.bits + source.bits) % len(VARIANTS)]
        codes = np.concatenate([sample_codes(source, 60), critical_for(fmt, source)])
        codes = codes if JIT else codes[::7]
        got, flags = arithmetic.convert(codes, source, fmt, codes=True, return_flags=True, **options(how))
        want = [twin.convert(source, fmt, code, how) for code in codes.tolist()]
        assert_same_bits(got, np.array([code for code, _ in want], code_dtype(fmt)), codes)
        assert_same_bits(flags, np.array([flag for _, flag in want], np.uint8), codes)


def critical_for(fmt: FloatFormat, source: FloatFormat) -> np.ndarray:
    """Return codes of ``source`` near the numbers and midpoints of ``fmt`` at its ends."""
    ends = [fmt.max_finite, fmt.max_finite + 2.0 ** (fmt.emax - fmt.m - 1), fmt.min_normal, fmt.min_subnormal]
    values = np.array([*ends, fmt.min_subnormal / 2, fmt.min_normal - fmt.min_subnormal / 2, 1.5 * fmt.min_subnormal])
    near = {int(code) + step for code in encode(values, source) for step in range(-2, 3)}
    positive = [min(max(code, 0), source.max_code) for code in near]
    return np.array([*positive, *(code | source.sign_code for code in positive)], source.code_dtype)


def test_infinities_that_a_format_cannot_hold_overflow():
    flags = arithmetic.Flags
    got, mask = arithmetic.convert([np.inf, -np.inf], "fp16", "e4m3", return_flags=True)
    assert np.isnan(got).all()
    assert mask.tolist() == [flags.OVERFLOW | flags.INEXACT] * 2
    got, mask = arithmetic.convert([np.inf, -np.inf], "fp16", "e2m1", return_flags=True)
    assert got.tolist() == [6.0, -6.0]
    got, mask = arithmetic.convert([-np.inf, -1.0], "fp16", "ue4m3", return_flags=True)
    assert np.isnan(got).all()
    assert mask.tolist() == [flags.INVALID] * 2


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("fmt", [FP32, FP16, get_format("fp64"), get_format("e4m3"), get_format("ue5m3")], ids=str)
def test_numbers_become_the_twins_integers(fmt: FloatFormat, dtype: str):
    limits = np.iinfo(dtype)
    ends = [limits.max, limits.min, limits.max / 2, 0.5, 1.5, 2.5, 2.0**52 + 0.5, 2.0**63, 2.0**64]
    near = encode(np.array([*ends, *(-end for end in ends)], np.float64), fmt).astype(np.uint64)[:, None]
    near = (near + np.arange(-2, 3).astype(np.uint64)).ravel() & np.uint64((1 << fmt.bits) - 1)
    codes = np.concatenate([sample_codes(fmt, 60), near.astype(fmt.code_dtype)])
    for mode in MODES:
        want = [twin.to_integer(fmt, code, limits.bits, dtype[0] == "i", How(mode)) for code in codes.tolist()]
        indefinite = limits.min if dtype[0] == "i" else limits.max
        numbers = np.array([indefinite if n is None else n for n, _ in want], dtype)
        got, flags = arithmetic.to_integer(codes, fmt, dtype, rounding=mode, codes=True, return_flags=True)
        assert_same_bits(got, numbers, codes)
        assert flags.tolist() == [flag for _, flag in want]
        quiet = arithmetic.to_integer(codes, fmt, dtype, rounding=mode, codes=True, return_flags=True, exact=False)
        assert_same_bits(quiet[0], numbers, codes)
        assert_same_bits(quiet[1], flags & ~np.uint8(1))


def test_integers_out_of_range_saturate_on_request():
    x = [np.inf, -np.inf, np.nan, 3e9, -1.0]
    got = arithmetic.to_integer(x, "fp32", "int32", beyond="saturate")
    assert got.tolist() == [2**31 - 1, -(2**31), 0, 2**31 - 1, -1]
    got = arithmetic.to_integer(x, "fp32", "uint32", beyond="saturate")
    assert got.tolist() == [2**32 - 1, 0, 0, 3_000_000_000, 0]
    assert arithmetic.to_integer(x, "fp32", "uint64").tolist()[:3] == [2**64 - 1] * 3


@pytest.mark.parametrize("fmt", [FP16, FP32, get_format("fp64"), get_format("e5m2"), get_format("ue4m3")], ids=str)
def test_integers_become_the_twins_numbers(fmt: FloatFormat):
    rng = np.random.default_rng(4)
    long = rng.integers(0, 1 << 64, 200, dtype=np.uint64) >> rng.integers(0, 64, 200).astype(np.uint64)
    edges = [s * ((1 << k) + d) for k in range(64) for d in (-1, 0, 1) for s in (1, -1)]
    signed = np.array([n for n in edges if -(2**63) <= n < 2**63], np.int64)
    unsigned = np.concatenate([long, np.array([n for n in edges if n >= 0], np.uint64)])
    narrow = np.array([n for n in edges if -(2**15) <= n < 2**15], np.int16)
    for integers, mode in itertools.product((signed, unsigned, narrow), MODES if JIT else MODES[:1]):
        got, flags = arithmetic.from_integer(integers, fmt, rounding=mode, codes=True, return_flags=True)
        exact = [twin.finite(twin.Fraction(n)) for n in integers.tolist()]
        want = [twin.finish(fmt, x, How(mode)) for x in exact]
        assert_same_bits(got, np.array([code for code, _ in want], code_dtype(fmt)), integers)
        assert flags.tolist() == [flag for _, flag in want]


def test_round_to_integral_signals_inexact_only_when_exact_is_asked_for():
    x = [1.0, 1.5, -0.25, 1024.0, np.inf, 0.0]
    got, flags = arithmetic.round_to_integral(x, "fp16", return_flags=True)
    assert flags.tolist() == [0] * 6
    again, flags = arithmetic.round_to_integral(x, "fp16", exact=True, return_flags=True)
    assert flags.tolist() == [0, 1, 1, 0, 0, 0]
    assert_same_bits(got, again)
    assert_same_bits(got, np.array([1, 2, -0.0, 1024, np.inf, 0], np.float32))


# Comparisons and extrema.


@pytest.mark.parametrize("fmt", CALCULATED, ids=str)
def test_comparisons_are_those_of_the_values(fmt: FloatFormat):
    x, y = pairs(fmt, 400 if JIT else 40, 6)
    a, b = decode(x, fmt).astype(np.float64), decode(y, fmt).astype(np.float64)
    for name, want in {
        "eq": a == b,
        "ne": a != b,
        "lt": a < b,
        "le": a <= b,
        "gt": a > b,
        "ge": a >= b,
        "unordered": np.isnan(a) | np.isnan(b),
    }.items():
        got = getattr(arithmetic, name)(x, y, fmt, codes=True)
        assert_same_bits(got, want)
        got, flags = getattr(arithmetic, name)(x, y, fmt, codes=True, signalling=True, return_flags=True)
        assert_same_bits(got, want)
        assert_same_bits(flags, np.where(np.isnan(a) | np.isnan(b), 16, 0).astype(np.uint8))


def test_quiet_comparisons_are_invalid_for_signalling_nans_alone():
    quiet, signalling, one = 0x7E00, 0x7D00, 0x3C00
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "unordered"):
        compare = getattr(arithmetic, name)
        args = ([quiet, signalling, one], [one, one, one], "fp16")
        _, flags = compare(*args, signalling=False, codes=True, return_flags=True)
        assert flags.tolist() == [0, 16, 0]
        _, flags = compare(*args, signalling=True, codes=True, return_flags=True)
        assert flags.tolist() == [16, 16, 0]
        _, flags = compare(*args, codes=True, return_flags=True)
        assert flags.tolist() == ([0, 16, 0] if name in ("eq", "ne", "unordered") else [16, 16, 0])


@pytest.mark.parametrize("fmt", CALCULATED, ids=str)
def test_extrema_are_those_of_the_values(fmt: FloatFormat):
    x, y = pairs(fmt, 400 if JIT else 40, 7)
    a, b = decode(x, fmt).astype(np.float64), decode(y, fmt).astype(np.float64)
    nan = np.isnan(a) | np.isnan(b)
    smaller = (a < b) | ((a == b) & np.signbit(a))
    for name, first in {
        "minimum": smaller,
        "maximum": ~smaller,
        "minimum_magnitude": np.where(abs(a) == abs(b), smaller, abs(a) < abs(b)),
        "maximum_magnitude": np.where(abs(a) == abs(b), ~smaller, abs(a) > abs(b)),
    }.items():
        want = np.where(first, x, y)
        canonical = np.array(twin.default_nan(fmt), fmt.code_dtype)
        got = getattr(arithmetic, name)(x, y, fmt, codes=True)
        assert_same_bits(got[~nan], want[~nan])
        assert (got[nan] == canonical).all()
        got = getattr(arithmetic, f"{name}_number")(x, y, fmt, codes=True)
        want = np.where(np.isnan(a), y, np.where(np.isnan(b), x, want))
        both = np.isnan(a) & np.isnan(b)
        assert_same_bits(got[~both], want[~both])
        assert (got[both] == canonical).all()


def test_zeros_are_ordered_in_extrema_only():
    zeros = (0.0, -0.0)
    assert_same_bits(arithmetic.minimum(*zeros, "fp16"), np.array(-0.0, np.float32))
    assert_same_bits(arithmetic.maximum(*zeros[::-1], "fp16"), np.array(0.0, np.float32))
    assert arithmetic.eq(*zeros, "fp16")


# NaNs.


def test_payloads_are_kept_under_the_x86_rule_alone():
    first, second, one = 0x7C01, 0xFE02, 0x3C00
    add, fma = arithmetic.add, arithmetic.fma
    assert add(first, second, "fp16", codes=True) == 0x7E00
    assert add(first, second, "fp16", codes=True, nan="x86") == 0x7E01
    assert add(one, second, "fp16", codes=True, nan="x86") == 0xFE02
    assert add(0x7C00, 0xFC00, "fp16", codes=True, nan="x86") == 0xFE00
    for rule, code, flags in (("default", 0x7E00, 16), ("x86", 0x7E05, 0), ("softfloat", 0xFE00, 16)):
        got = fma(0x7C00, 0x0000, 0x7E05, "fp16", codes=True, nan=rule, return_flags=True)
        assert got == (code, flags)


def test_a_signalling_nan_is_invalid_wherever_it_stands():
    operands = [0x3C00, 0x3C00, 0x3C00]
    for place in range(3):
        codes = operands.copy()
        codes[place] = 0x7C01
        for rule in ("default", "x86", "softfloat"):
            _, flags = arithmetic.fma(*codes, "fp16", codes=True, nan=rule, return_flags=True)
            assert flags == arithmetic.Flags.INVALID


# Others' arithmetic.


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_numpy_calculates_alike(name: str):
    operation = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name]
    for fmt, dtype in ((FP16, np.float16), (FP32, np.float32)):
        x, y = pairs(fmt, 200_000 if JIT else 500, 8)
        with np.errstate(all="ignore"):
            want = operation(x.view(dtype), y.view(dtype))
        got = getattr(arithmetic, name)(x, y, fmt, codes=True)
        numbers = ~np.isnan(want)
        assert_same_bits(got[numbers], want.view(fmt.code_dtype)[numbers], x[numbers])
        assert (got[~numbers] == fmt.nan_code).all()


@pytest.mark.parametrize("name", sorted(set(ML_DTYPES) - {"e8m0"}))
def test_ml_dtypes_calculates_alike(name: str):
    fmt, dtype = get_format(name), ML_DTYPES[name]
    x, y = pairs(fmt, 60_000 if JIT else 300, 9)
    x, y = x.view(dtype), y.view(dtype)
    for ours, theirs in ((arithmetic.add, np.add), (arithmetic.sub, np.subtract), (arithmetic.mul, np.multiply)):
        with np.errstate(all="ignore"):
            want = theirs(x, y)
        numbers = ~np.isnan(want.astype(np.float32))
        numbers &= fmt.specials is not Specials.NONE or np.isfinite(want.astype(np.float32))
        got = ours(x.view(fmt.code_dtype), y.view(fmt.code_dtype), fmt, codes=True)
        assert_same_bits(got[numbers], want.view(fmt.code_dtype)[numbers])


# Laws.


@pytest.mark.parametrize("fmt", CALCULATED, ids=str)
def test_sums_and_products_commute(fmt: FloatFormat):
    x, y = pairs(fmt, 2000 if JIT else 50, 10)
    for operation in (arithmetic.add, arithmetic.mul):
        assert_same_bits(operation(x, y, fmt, codes=True), operation(y, x, fmt, codes=True))


@pytest.mark.parametrize("mode", MODES[:5])
def test_sums_grow_with_their_operands(mode: str):
    codes = np.arange(0x7C01, dtype=np.uint16)[:: 1 if JIT else 99]
    for addend in (0x0001, 0x3C00, 0xBC01, 0x7BFF):
        sums = arithmetic.add(codes, addend, FP16, rounding=mode, codes=True)
        values = decode(sums, FP16)
        assert (np.diff(values[np.isfinite(values)]) >= 0).all()


@pytest.mark.parametrize("fmt", [fmt for fmt in CALCULATED if fmt.has_subnormals and fmt.signed], ids=str)
def test_differences_of_near_numbers_are_exact(fmt: FloatFormat):
    """Sterbenz: if y / 2 <= x <= 2 y, then x - y is a number of the format, in any rounding mode."""
    rng = np.random.default_rng(11)
    x = rng.integers(1, fmt.max_code + 1, 2000 if JIT else 50)
    y = np.clip(x + rng.integers(-(2 << fmt.m), (2 << fmt.m) + 1, x.size), 1, fmt.max_code)
    x, y = x.astype(fmt.code_dtype), y.astype(fmt.code_dtype)
    a, b = decode(x, fmt).astype(np.float64), decode(y, fmt).astype(np.float64)
    near = (b / 2 <= a) & (a <= 2 * b)
    assert near.sum() > x.size // 3
    for mode in MODES:
        difference, flags = arithmetic.sub(x, y, fmt, rounding=mode, codes=True, return_flags=True)
        assert not flags[near].any()
        assert np.array_equal(decode(difference, fmt)[near].astype(np.float64), (a - b)[near])


def test_directed_modes_enclose_the_exact_result():
    x, y = pairs(FP16, 5000 if JIT else 200, 12)
    a, b = decode(x, FP16).astype(np.float64), decode(y, FP16).astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    down, up = (decode(arithmetic.mul(x, y, FP16, rounding=mode, codes=True), FP16) for mode in ("down", "up"))
    exact = a[finite] * b[finite]
    assert (down[finite] <= exact).all()
    assert (exact <= up[finite]).all()


# Values, shapes, processors, mistakes.


def test_values_are_rounded_to_the_format_first():
    assert arithmetic.add(2049.0, 0.0, "fp16") == 2048.0
    assert arithmetic.add(0.1, 0.2, "fp16") == decode(
        arithmetic.add(*encode([0.1, 0.2], "fp16"), "fp16", codes=True), FP16
    )


def test_values_come_in_the_dtype_that_holds_the_format():
    assert arithmetic.add(1.0, 2.0, "fp16").dtype == np.float32
    assert arithmetic.mul(1.0, 2.0, FORMATS[-1]).dtype == np.float64
    assert arithmetic.convert(0.1, "fp32", "fp64").dtype == np.float64


def test_operands_are_broadcast():
    a, b = np.arange(6.0).reshape(2, 3, 1), np.arange(4.0)
    got, flags = arithmetic.mul(a, b, "fp16", return_flags=True)
    assert_same_bits(got, (a * b).astype(np.float32))
    assert flags.shape == (2, 3, 4)
    assert arithmetic.add(1.0, 2.0, "fp16").shape == ()
    assert arithmetic.add(np.empty((0, 3)), 1.0, "fp16").shape == (0, 3)


@pytest.mark.parametrize("fmt", [FP16, FP32, get_format("e4m3")], ids=str)
def test_out_is_written_and_may_be_an_operand(fmt: FloatFormat):
    x, y = pairs(fmt, 40_000 if JIT else 100, 13)
    want = arithmetic.add(x, y, fmt, codes=True)
    out = np.empty_like(x)
    assert arithmetic.add(x, y, fmt, codes=True, out=out) is out
    assert_same_bits(out, want)
    again = x.copy()
    assert arithmetic.add(again, y, fmt, codes=True, out=again) is again
    assert_same_bits(again, want)
    shifted = np.concatenate([x[:1], x])
    arithmetic.add(shifted[:-1], y, fmt, codes=True, out=shifted[1:])
    assert_same_bits(shifted[1:], arithmetic.add(np.concatenate([x[:1], x])[:-1], y, fmt, codes=True))
    values = np.empty(x.shape, np.float32)
    assert arithmetic.add(decode(x, fmt), decode(y, fmt), fmt, out=values) is values
    numbers = ~np.isnan(values)
    assert_same_bits(values[numbers], decode(want, fmt)[numbers])


@pytest.mark.parametrize("word", [mxcsr.ROUND_DOWN, mxcsr.ROUND_UP, mxcsr.ROUND_TO_ZERO, mxcsr.FTZ | mxcsr.DAZ])
def test_the_processors_modes_change_nothing(word: int):
    x, y, z = pairs(FP32, 20_000 if JIT else 100, 14, operands=3)
    half = [w.astype(np.uint16) for w in (x, y, z)]

    def calculate() -> list[Any]:
        results = []
        for fmt, (a, b, c) in ((FP32, (x, y, z)), (FP16, half)):
            for name in BINARY:
                results += getattr(arithmetic, name)(a, b, fmt, codes=True, return_flags=True)
            results += arithmetic.fma(a, b, c, fmt, codes=True, return_flags=True)
            results += arithmetic.sqrt(a, fmt, codes=True, return_flags=True)
            values = decode(a, fmt)
            results += arithmetic.add(values, decode(b, fmt), fmt, rounding="up", return_flags=True)
            results.append(arithmetic.dot(a.reshape(100, -1), b.reshape(100, -1), fmt, order="exact", codes=True))
        return results

    before = calculate()
    with mxcsr.mxcsr(mxcsr.DEFAULT | word):
        inside = calculate()
    for got, want in zip(inside, before, strict=True):
        assert_same_bits(got, want)


def test_mistakes_are_named():
    add = arithmetic.add
    with pytest.raises(ValueError, match="fp64 has 64 bits"):
        add(1.0, 2.0, "fp64")
    with pytest.raises(ValueError, match="rounding is 'nearest'"):
        add(1.0, 2.0, "fp16", rounding="nearest")
    with pytest.raises(ValueError, match="rounding is 'stochastic'"):
        add(1.0, 2.0, "fp16", rounding="stochastic")
    with pytest.raises(ValueError, match="tininess is 'later'"):
        add(1.0, 2.0, "fp16", tininess="later")
    with pytest.raises(ValueError, match="nan is 'x86', but NaNs of e4m3 have no payload"):
        add(1.0, 2.0, "e4m3", nan="x86")
    with pytest.raises(TypeError, match="b has dtype float64; codes are unsigned integers"):
        add(1, 2.0, "fp16", codes=True)
    with pytest.raises(ValueError, match="a has codes from 256 to 256; those of e4m3 are 0 to 0xff"):
        add(256, 1, "e4m3", codes=True)
    with pytest.raises(TypeError, match="add has no option 'round'"):
        add(1.0, 2.0, "fp16", round="up")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="shape mismatch"):
        add([1.0, 2.0], [1.0, 2.0, 3.0], "fp16")
    with pytest.raises(TypeError, match="out has dtype float64"):
        add([1.0], 2.0, "fp16", out=np.empty(1))
    with pytest.raises(ValueError, match="out has shape"):
        add([1.0], 2.0, "fp16", codes=False, out=np.empty(2, np.float32))
    with pytest.raises(TypeError, match="a has dtype float64; integers are needed"):
        arithmetic.from_integer([1.5], "fp16")
    with pytest.raises(TypeError, match="dtype is int16; it must be one of int32"):
        arithmetic.to_integer([1.5], "fp16", "int16")
    with pytest.raises(ValueError, match="beyond is 'wrap'"):
        arithmetic.to_integer([1.5], "fp16", beyond="wrap")  # type: ignore[arg-type]
