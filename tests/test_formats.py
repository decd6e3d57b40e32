import dataclasses
import itertools
import math
from fractions import Fraction
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import mpsim.formats
from mpsim.formats import CATALOGUE, FP16, FP32, FP64, FloatFormat, Specials, finfo, get_format
from reference import rounding as twin


class Row(NamedTuple):
    """Published facts of a format: powers of two by their exponent, codes without sign."""

    name: str
    layout: tuple[int, int, int]  # sign, exponent and fraction bits
    bias: int
    emax: int
    max_significand: Fraction  # largest number = this * 2**emax
    max_code: int
    min_normal: Fraction
    min_subnormal: Fraction
    inf: int | None
    nan: int | None
    negative_zero: bool


def power(e: int) -> Fraction:
    return Fraction(2) ** e


# OCP OFP8 1.0, OCP MX 1.0, IEEE 754-2019 table 3.5, P3109 draft 4.0; smaller formats as in FloatFormat.source.
TABLE = [
    Row("fp64", (1, 11, 52), 1023, 1023, 2 - power(-52), 0x7FEFFFFFFFFFFFFF, power(-1022), power(-1074),
        0x7FF0000000000000, 0x7FF8000000000000, True),
    Row("fp32", (1, 8, 23), 127, 127, 2 - power(-23), 0x7F7FFFFF, power(-126), power(-149), 0x7F800000, 0x7FC00000,
        True),
    Row("tf32", (1, 8, 10), 127, 127, 2 - power(-10), 0x3FBFF, power(-126), power(-136), 0x3FC00, 0x3FE00, True),
    Row("fp16", (1, 5, 10), 15, 15, 2 - power(-10), 0x7BFF, power(-14), power(-24), 0x7C00, 0x7E00, True),
    Row("bf16", (1, 8, 7), 127, 127, Fraction(255, 128), 0x7F7F, power(-126), power(-133), 0x7F80, 0x7FC0, True),
    Row("fp24amd", (1, 7, 16), 63, 63, 2 - power(-16), 0x7EFFFF, power(-62), power(-78), 0x7F0000, 0x7F8000, True),
    Row("pxr24", (1, 8, 15), 127, 127, 2 - power(-15), 0x7F7FFF, power(-126), power(-141), 0x7F8000, 0x7FC000, True),
    Row("fp16alt", (1, 5, 10), 15, 16, 2 - power(-10), 0x7FFF, power(-14), power(-24), None, None, True),
    Row("e5m2", (1, 5, 2), 15, 15, Fraction(7, 4), 0x7B, power(-14), power(-16), 0x7C, 0x7E, True),
    Row("e4m3", (1, 4, 3), 7, 8, Fraction(7, 4), 0x7E, power(-6), power(-9), None, 0x7F, True),
    Row("e4m3ieee", (1, 4, 3), 7, 7, Fraction(15, 8), 0x77, power(-6), power(-9), 0x78, 0x7C, True),
    Row("e3m4", (1, 3, 4), 3, 3, Fraction(31, 16), 0x6F, power(-2), power(-6), 0x70, 0x78, True),
    Row("e4m3fnuz", (1, 4, 3), 8, 7, Fraction(15, 8), 0x7F, power(-7), power(-10), None, 0x80, False),
    Row("e5m2fnuz", (1, 5, 2), 16, 15, Fraction(7, 4), 0x7F, power(-15), power(-17), None, 0x80, False),
    Row("e4m3b11fnuz", (1, 4, 3), 11, 4, Fraction(15, 8), 0x7F, power(-10), power(-13), None, 0x80, False),
    Row("e8m0", (0, 8, 0), 127, 127, Fraction(1), 0xFE, power(-127), power(-127), None, 0xFF, False),
    Row("ue4m3", (0, 4, 3), 7, 8, Fraction(7, 4), 0x7E, power(-6), power(-9), None, 0x7F, False),
    Row("ue5m3", (0, 5, 3), 15, 16, Fraction(7, 4), 0xFE, power(-14), power(-17), None, 0xFF, False),
    Row("e2m3", (1, 2, 3), 1, 2, Fraction(15, 8), 0x1F, power(0), power(-3), None, None, True),
    Row("e3m2", (1, 3, 2), 3, 4, Fraction(7, 4), 0x1F, power(-2), power(-4), None, None, True),
    Row("e2m1", (1, 2, 1), 1, 2, Fraction(3, 2), 0x7, power(0), power(-1), None, None, True),
    Row("dlfloat16", (1, 6, 9), 31, 32, 2 - power(-8), 0x7FFE, (1 + power(-9)) * power(-31),
        (1 + power(-9)) * power(-31), None, 0x7FFF, True),
    Row("cb16", (1, 6, 9), 31, 31, 2 - power(-9), 0x7DFF, power(-30), power(-39), 0x7E00, 0x7F00, True),
    Row("binary8p3se", (1, 5, 2), 16, 15, Fraction(3, 2), 0x7E, power(-15), power(-17), 0x7F, 0x80, False),
    Row("binary8p4se", (1, 4, 3), 8, 7, Fraction(7, 4), 0x7E, power(-7), power(-10), 0x7F, 0x80, False),
    Row("binary8p5se", (1, 3, 4), 4, 3, Fraction(15, 8), 0x7E, power(-3), power(-7), 0x7F, 0x80, False),
    Row("binary8p4sf", (1, 4, 3), 8, 7, Fraction(15, 8), 0x7F, power(-7), power(-10), None, 0x80, False),
    Row("binary6p3sf", (1, 3, 2), 4, 3, Fraction(7, 4), 0x1F, power(-3), power(-5), None, 0x20, False),
    Row("binary4p2sf", (1, 2, 1), 2, 1, Fraction(3, 2), 0x7, power(-1), power(-2), None, 0x8, False),
    Row("binary8p1uf", (0, 8, 0), 128, 126, Fraction(1), 0xFE, power(-127), power(-127), None, 0xFF, False),
]  # fmt: skip

ML_DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e4m3ieee": ml_dtypes.float8_e4m3,
    "e3m4": ml_dtypes.float8_e3m4,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}

LARGER_SET = [
    *CATALOGUE,
    *(get_format(row.name) for row in TABLE[len(CATALOGUE) :]),
    *map(get_format, ("e2m2", "e6m5", "binary6p3ue", "binary8p1uf", "binary16p11se")),
]
# A user's own formats: subnormals absent although IEEE's specials are there, and one fraction bit.
LARGER_SET += [
    FloatFormat(name="flat", p=4, w=4, bias=7, has_subnormals=False),
    FloatFormat(name="narrow", p=2, w=2, bias=5),
    FloatFormat(name="offset", p=5, w=4, bias=-3, specials=Specials.FN),
]


def test_the_table_has_a_row_for_every_format_of_the_catalogue():
    assert {fmt.name for fmt in CATALOGUE} <= {row.name for row in TABLE}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_published_facts_hold(row: Row):
    fmt = get_format(row.name)
    assert fmt.name == row.name
    assert (int(fmt.signed), fmt.w, fmt.m) == row.layout
    assert fmt.bits == sum(row.layout)
    assert fmt.p == row.layout[2] + 1
    assert (fmt.bias, fmt.emax) == (row.bias, row.emax)
    assert fmt.max_code == row.max_code
    assert Fraction(fmt.max_finite) == row.max_significand * power(row.emax)
    assert Fraction(fmt.min_normal) == row.min_normal
    assert Fraction(fmt.min_subnormal) == row.min_subnormal
    assert Fraction(fmt.eps) == power(-row.layout[2])
    assert Fraction(fmt.u) == power(-row.layout[2] - 1)
    assert (fmt.inf_code, fmt.nan_code) == (row.inf, row.nan)
    assert fmt.has_negative_zero is row.negative_zero


@pytest.mark.parametrize("fmt", LARGER_SET, ids=str)
def test_derived_facts_follow_from_the_fields(fmt: FloatFormat):
    def code_value(code: int) -> Fraction:
        return twin.decode(fmt, code).fraction

    half = 1 << (fmt.w + fmt.p - 1)  # codes without sign
    kinds = [twin.decode(fmt, code).kind for code in (range(half) if half <= 1 << 16 else ())]
    if kinds:
        assert fmt.max_code == max(code for code, kind in enumerate(kinds) if kind == "finite")
        assert fmt.inf_code == (kinds.index("infinite") if "infinite" in kinds else None)
    assert twin.decode(fmt, fmt.max_code).kind == "finite"
    assert fmt.max_code == half - 1 or twin.decode(fmt, fmt.max_code + 1).kind != "finite"
    assert Fraction(fmt.max_finite) == code_value(fmt.max_code)
    assert Fraction(fmt.min_normal) == code_value(twin.smallest_normal(fmt))
    assert Fraction(fmt.min_subnormal) == code_value(fmt.min_code) > 0
    assert fmt.min_code == 0 or code_value(fmt.min_code - 1) == 0
    assert power(fmt.emax) <= code_value(fmt.max_code) < power(fmt.emax + 1)
    assert power(fmt.emin) <= Fraction(fmt.min_normal) < power(fmt.emin + 1)
    assert power(fmt.quantum_exponent) == code_value(fmt.min_code + 1) - code_value(fmt.min_code)
    assert (fmt.last_code, fmt.sign_code) == (half - 1, half if fmt.signed else 0)
    assert fmt.code_dtype == twin.code_dtype(fmt)
    assert fmt.fits_float32 is twin.fits_float32(fmt)
    assert fmt.value_dtype == (np.float32 if twin.fits_float32(fmt) else np.float64)
    if fmt.nan_code is not None:
        assert fmt.nan_code == twin.nan(fmt, negative=False)
        assert twin.decode(fmt, fmt.nan_code).kind == "nan"
        negative = twin.nan(fmt, negative=True)
        assert negative == fmt.nan_code | (fmt.sign_code if fmt.nan_has_sign else 0)
        assert twin.decode(fmt, negative).negative is fmt.nan_has_sign
    if fmt.signed:
        zero = twin.decode(fmt, fmt.sign_code)
        assert fmt.has_negative_zero is (zero.kind == "finite" and zero.magnitude == 0)


@pytest.mark.parametrize("fmt", [f for f in LARGER_SET if f.w + f.p <= 16], ids=str)
def test_magnitudes_grow_with_their_codes(fmt: FloatFormat):
    values = [twin.magnitude(fmt, code) for code in range(fmt.max_code + 1)]
    assert all(a < b for a, b in itertools.pairwise(values))


@pytest.mark.parametrize(("name", "dtype"), [("fp16", np.float16), ("fp32", np.float32), ("fp64", np.float64)])
def test_finfo_agrees_with_numpy(name: str, dtype: Any):
    want, got = np.finfo(dtype), finfo(name)
    for attribute in _FINFO:
        assert getattr(got, attribute) == pytest.approx(getattr(want, attribute), rel=_tolerance(attribute, dtype)), (
            attribute
        )


@pytest.mark.parametrize("name", ML_DTYPES)
def test_finfo_agrees_with_ml_dtypes(name: str):
    want, got = ml_dtypes.finfo(ML_DTYPES[name]), finfo(name)
    for attribute in _FINFO:
        # ml_dtypes writes precision 1 for every 8-bit format by hand; NumPy's rule, floor(-log10(eps)), gives its
        # own float6_e2m3fn 0 and so float8_e4m3, which has the same eps.
        if attribute not in ("precision", "resolution"):
            assert getattr(got, attribute) == float(getattr(want, attribute)), attribute


_FINFO = (
    "bits", "eps", "epsneg", "iexp", "machep", "max", "maxexp", "min", "minexp", "negep", "nexp", "nmant",
    "precision", "resolution", "smallest_normal", "smallest_subnormal", "tiny",
)  # fmt: skip


def _tolerance(attribute: str, dtype: Any) -> float:
    """Only NumPy's resolution is inexact: it is 10**-precision rounded to the type itself."""
    return float(np.finfo(dtype).eps) if attribute == "resolution" else 0.0


@pytest.mark.parametrize("fmt", LARGER_SET, ids=str)
def test_epsneg_is_the_gap_below_one(fmt: FloatFormat):
    codes = range(fmt.max_code + 1) if fmt.w + fmt.p <= 16 else ()
    values = [twin.magnitude(fmt, code) for code in codes]
    one = 1 << twin.SCALE
    if one in values and one != values[0]:
        gap = Fraction(one - values[values.index(one) - 1], one)
        if gap < 1:
            assert Fraction(finfo(fmt).epsneg) == gap == power(finfo(fmt).negep)


@pytest.mark.parametrize(
    ("names", "want"),
    [
        ("fp64 float64 double binary64 f64 e11m52", "fp64"),
        ("fp32 float32 single binary32 f32 e8m23", "fp32"),
        ("tf32 tensorfloat32 e8m10", "tf32"),
        ("fp16 float16 half binary16 f16 e5m10 FP16 Half torch.float16", "fp16"),
        ("bf16 bfloat16 e8m7 torch.bfloat16", "bf16"),
        ("e4m3 float8_e4m3fn e4m3fn fp8_e4m3fn torch.float8_e4m3fn", "e4m3"),
        ("e4m3ieee float8_e4m3", "e4m3ieee"),
        ("e5m2 float8_e5m2 fp8_e5m2", "e5m2"),
        ("e3m4 float8_e3m4", "e3m4"),
        ("e4m3fnuz float8_e4m3fnuz", "e4m3fnuz"),
        ("e5m2fnuz float8_e5m2fnuz", "e5m2fnuz"),
        ("e4m3b11fnuz float8_e4m3b11fnuz", "e4m3b11fnuz"),
        ("e8m0 float8_e8m0fnu ue8m0", "e8m0"),
        ("e3m2 float6_e3m2fn fp6_e3m2", "e3m2"),
        ("e2m3 float6_e2m3fn fp6_e2m3", "e2m3"),
        ("e2m1 float4_e2m1fn fp4_e2m1 fp4", "e2m1"),
        ("dlfloat16 dlfloat", "dlfloat16"),
        ("fp24amd fp24_amd", "fp24amd"),
    ],
)
def test_every_alias_means_the_same_object(names: str, want: str):
    formats = {get_format(name) for name in names.split()}
    assert [fmt.name for fmt in formats] == [want]


def test_constants_names_and_dtypes_mean_the_same_objects():
    for fmt in CATALOGUE:
        assert getattr(mpsim.formats, fmt.name.upper()) is fmt
        assert get_format(fmt.name) is fmt
        assert get_format(fmt) is fmt
    assert get_format(np.float16) is FP16
    assert get_format(np.dtype(np.float32)) is FP32
    assert get_format(np.dtype(np.float64)) is FP64
    for name, dtype in ML_DTYPES.items():
        assert get_format(dtype) is get_format(np.dtype(dtype)) is get_format(name)


def test_no_two_formats_share_a_name():
    names = [name for fmt in CATALOGUE for name in (fmt.name, *fmt.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("typo", "meant"), [("fp61", "fp16"), ("bfloat61", "bfloat16"), ("e4m3fnzu", "e4m3fnuz"), ("flaot16", "float16")]
)
def test_a_typo_is_answered_with_the_nearest_names(typo: str, meant: str):
    with pytest.raises(ValueError, match=f"(?s)unknown format '{typo}'.*{meant}"):
        get_format(typo)


@pytest.mark.parametrize("name", ["", "int8", "fp", "e4", "m3", "e4m3x", "binary8p4", "binary8p4xe"])
def test_what_is_no_name_of_a_format_is_refused(name: str):
    with pytest.raises(ValueError, match="unknown format"):
        get_format(name)


def test_an_integer_dtype_is_no_format():
    with pytest.raises(ValueError, match="int32"):
        get_format(np.int32)


@pytest.mark.parametrize("thing", [16, 3.5, None, object()])
def test_what_is_neither_format_nor_name_nor_dtype_is_a_type_error(thing: Any):
    with pytest.raises(TypeError, match="fmt is"):
        get_format(thing)


@pytest.mark.parametrize("w", range(2, 12))
@pytest.mark.parametrize("m", [1, 2, 3, 7, 10, 23, 52])
def test_a_name_by_widths_gives_the_rules_of_ieee_754(w: int, m: int):
    fmt = get_format(f"e{w}m{m}")
    catalogue = {"e4m3", "e3m2", "e2m3", "e2m1"}
    if fmt.name in catalogue:
        return
    emax = 2 ** (w - 1) - 1
    assert (fmt.specials, fmt.signed, fmt.has_subnormals, fmt.has_zero) == (Specials.IEEE, True, True, True)
    assert (fmt.p, fmt.w, fmt.bias, fmt.emin, fmt.emax) == (m + 1, w, emax, 1 - emax, emax)
    assert Fraction(fmt.max_finite) == (2 - power(-m)) * power(emax)


@pytest.mark.parametrize("name", ["e1m3", "e5m0", "e12m3", "e5m53", "e0m0"])
def test_a_name_by_widths_that_cannot_be_a_format_says_why(name: str):
    with pytest.raises(ValueError, match=name):
        get_format(name)


@pytest.mark.parametrize(
    ("name", "fields"),
    [  # exponent width K-P signed, K-P+1 unsigned; bias half of its range
        ("binary8p3se", (3, 5, 16, "extended", True)),
        ("binary8p4sf", (4, 4, 8, "fnuz", True)),
        ("binary8p1ue", (1, 8, 128, "extended", False)),
        ("binary8p4uf", (4, 5, 16, "fn", False)),
        ("binary16p11se", (11, 5, 16, "extended", True)),
        ("Binary4P2SE", (2, 2, 2, "extended", True)),
    ],
)
def test_p3109_names_give_the_fields_of_the_draft(name: str, fields: tuple[int, int, int, str, bool]):
    fmt = get_format(name)
    assert (fmt.p, fmt.w, fmt.bias, str(fmt.specials), fmt.signed) == fields
    k = fmt.bits
    assert k == int(name.lower().removeprefix("binary").split("p")[0])
    nan, inf = (2 ** (k - 1), 2 ** (k - 1) - 1) if fmt.signed else (2**k - 1, 2**k - 2)
    assert (fmt.nan_code, fmt.inf_code) == (nan, inf if fields[3] == "extended" else None)


@pytest.mark.parametrize("name", ["binary8p8se", "binary8p9se", "binary30p3se", "binary8p0se"])
def test_p3109_names_without_room_for_an_exponent_are_refused(name: str):
    with pytest.raises(ValueError, match=name):
        get_format(name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"p": 0}, "p = 0"),
        ({"p": 54}, "p = 54"),
        ({"w": 0}, "w = 0"),
        ({"w": 12}, "w = 12"),
        ({"p": 1}, "fraction"),
        ({"w": 1}, "w >= 2"),
        ({"bias": 1100}, "float64"),
        ({"bias": -1100}, "float64"),
        ({"specials": Specials.NONE}, "nan_to"),
    ],
)
def test_impossible_fields_are_refused_with_a_reason(fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=f"mine.*{message}"):
        FloatFormat(**{"name": "mine", "p": 4, "w": 4, "bias": 7} | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"specials": Specials.FNUZ, "signed": False},  # the code of negative zero, which is to be NaN, does not exist
        {"has_zero": False},  # with subnormals code 0 is zero
        {"specials": Specials.NONE, "nan_to": 1 << 8},  # not a code
    ],
    ids=["fnuz without sign", "subnormals without zero", "nan_to too large"],
)
def test_contradictory_fields_are_refused(fields: dict[str, Any]):
    with pytest.raises(ValueError, match="mine"):
        FloatFormat(**{"name": "mine", "p": 4, "w": 4, "bias": 7} | fields)


def test_a_format_is_frozen_hashable_and_prints_its_name():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FP16.p = 12  # type: ignore[misc]
    assert {FP16: 1}[dataclasses.replace(FP16)] == 1
    assert str(FP16) == f"{FP16}" == "fp16"


def test_limits_are_python_floats_within_float64():
    for fmt in CATALOGUE:
        for name in ("max_finite", "min_normal", "min_subnormal", "eps", "u"):
            value = getattr(fmt, name)
            assert type(value) is float
            assert 0 < value < math.inf


def test_a_registered_format_is_known_by_name_and_keeps_its_meaning():
    own = FloatFormat(name="E7M2-Lab", p=3, w=7, bias=63, specials=Specials.FN, aliases=("lab10",))
    assert mpsim.formats.register(own) is own
    assert get_format("e7m2-lab") is own
    assert get_format("LAB10") is own
    assert mpsim.formats.register(dataclasses.replace(own)) == own
    other = dataclasses.replace(own, bias=62)
    with pytest.raises(ValueError, match="'e7m2-lab' is the name of"):
        mpsim.formats.register(other)
    with pytest.raises(ValueError, match="'fp16' is the name of"):
        mpsim.formats.register(dataclasses.replace(own, name="fp16"))
