import decimal
import json
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from mpsim.encoding import NumberClass, classify, decode, encode
from mpsim.exact import decimal_text, read_number
from mpsim.formats import CATALOGUE, FloatFormat, get_format
from mpsim.inspect import inspect
from reference import rounding as twin

P3109 = [get_format(name) for name in ("binary8p3se", "binary8p4sf", "binary8p1uf", "binary6p3ue")]
FORMATS = [*CATALOGUE, *P3109]
SMALL = [fmt for fmt in FORMATS if fmt.bits <= 8]
KINDS = {NumberClass[kind.upper()]: kind for kind in ("zero", "subnormal", "normal", "infinite", "nan")}


def codes_of(fmt: FloatFormat, step: int = 61) -> list[int]:
    """Every code of up to 8 bits; of wider formats a spread, with both sides of each change of kind."""
    last = (1 << fmt.bits) - 1
    if fmt.bits <= 8:
        return list(range(last + 1))
    stride = step if fmt.bits <= 16 else last // 1000 | 1
    edges = (0, 1 << fmt.m, fmt.max_code, fmt.last_code)
    near = {edge + sign + d for edge in edges for sign in (0, fmt.sign_code) for d in (-2, -1, 0, 1, 2)}
    return sorted({*range(0, last + 1, stride), *(code for code in near if 0 <= code <= last)})


def check_codes(fmt: FloatFormat, codes: list[int]) -> None:
    array = np.array(codes, fmt.code_dtype)
    values, kinds = decode(array, fmt), classify(array, fmt)
    again = encode(values, fmt)
    for code, value, kind, back in zip(codes, values.tolist(), kinds.tolist(), again.tolist(), strict=True):
        x = inspect(code=code, fmt=fmt)
        assert x.kind == KINDS[kind], x.hex
        assert x.value == value or (x.kind == "nan" and math.isnan(value)), x.hex
        assert x.negative == (math.copysign(1.0, value) < 0) or x.kind == "nan", x.hex
        assert inspect(value, fmt).code == back, x.hex


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_codes_mean_what_decode_and_encode_say(fmt: FloatFormat) -> None:
    check_codes(fmt, codes_of(fmt))


@pytest.mark.exhaustive
@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if 8 < fmt.bits <= 16], ids=str)
def test_every_code_of_16_bits_means_what_decode_and_encode_say(fmt: FloatFormat) -> None:
    check_codes(fmt, list(range(1 << fmt.bits)))


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_midpoints_and_what_is_next_to_them_round_as_the_twin(fmt: FloatFormat) -> None:
    for code in codes_of(fmt, step=257):
        if code > twin.largest(fmt):
            continue
        middle = (twin.magnitude(fmt, code) + twin.magnitude(fmt, code + 1)) // 2
        for magnitude in (middle - 1, middle, middle + 1):  # apart by 2**-1200
            for negative in (False, True):
                x = twin.Number(negative, "finite", magnitude)
                assert inspect(x.fraction, fmt).code == twin.encode(fmt, x), (code, magnitude - middle, negative)


@pytest.mark.parametrize("fmt", SMALL, ids=str)
def test_neighbours_are_adjacent_in_the_sorted_values(fmt: FloatFormat) -> None:
    items = [inspect(code=code, fmt=fmt) for code in range(1 << fmt.bits)]
    ordered = sorted({x.value for x in items if x.kind != "nan"})
    after = dict(pairwise(ordered))
    before = {high: low for low, high in pairwise(ordered)}
    for x in items:
        if x.kind == "nan":
            assert x.above is None
            assert x.below is None
            continue
        assert (x.above and x.above.value) == after.get(x.value), x.hex
        assert (x.below and x.below.value) == before.get(x.value), x.hex
        for neighbour in filter(None, (x.above, x.below)):
            assert inspect(code=neighbour.code, fmt=fmt).value == neighbour.value


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("text", ["0.1", "1/3", "-2.7", "1.9", "5.5", "1e-3"])
def test_error_is_at_most_half_an_ulp_and_a_tie_exactly_half(fmt: FloatFormat, text: str) -> None:
    x = inspect(text, fmt)
    if x.kind == "nan":
        assert not fmt.signed
        return
    assert not x.overflow
    least = Fraction(fmt.min_subnormal)
    if not fmt.has_zero and abs(x.given) < least:
        return
    assert abs(x.error_ulps) <= Fraction(1, 2)
    assert x.tie == (abs(x.error_ulps) == Fraction(1, 2))
    assert x.error == x.value - Fraction(text) == x.error_ulps * x.ulp
    assert x.error_relative == x.error / Fraction(text)


@pytest.mark.parametrize(
    ("text", "fmt", "code", "ulps"),
    [
        ("0.1", "fp16", 0x2E66, Fraction(-2, 5)),
        ("65519", "fp16", 0x7BFF, Fraction(-15, 32)),
        ("65520", "fp16", 0x7C00, None),  # a tie between 65504 and 65536, the even one of which is out of range
        ("464", "e4m3", 0x7E, Fraction(-1, 2)),
        ("464.0000001", "e4m3", 0x7F, None),
        ("-1e9", "e4m3", 0xFF, None),
        ("2^-25", "fp16", 0x0000, Fraction(-1, 2)),
        ("-2^-25", "fp16", 0x8000, Fraction(1, 2)),
        ("-2^-25", "e4m3fnuz", 0x00, Fraction(1, 2**15)),
        ("7", "e2m1", 0x7, None),
        ("inf", "e2m1", 0x7, None),
        ("-inf", "e2m1", 0xF, None),
        ("nan", "e2m1", 0x7, None),
        ("-nan", "fp16", 0xFE00, None),
        ("-nan", "e5m2fnuz", 0x80, None),
        ("-inf", "e4m3", 0xFF, None),
        ("-1", "e8m0", 0xFF, None),
        ("0", "e8m0", 0x00, Fraction(1)),
        ("3", "e8m0", 0x80, Fraction(-1, 2)),  # with one bit of significand the even exponent code wins
        ("6", "e8m0", 0x82, Fraction(1, 2)),
        ("-0", "bf16", 0x8000, Fraction(0)),
        ("1e300", "binary8p4sf", 0x7F, None),  # P3109: a finite format saturates
    ],
)
def test_codes_by_hand(text: str, fmt: str, code: int, ulps: Fraction | None) -> None:
    x = inspect(text, fmt)
    assert x.hex == f"{code:#0{len(x.hex)}x}"
    if ulps is not None:
        assert x.error_ulps == ulps


def test_events_are_told_apart() -> None:
    def events(text: str, fmt: str) -> tuple[bool, ...]:
        x = inspect(text, fmt)
        return x.tie, x.overflow, x.underflow, x.exact

    assert events("65519", "fp16") == (False, False, False, False)
    assert events("65520", "fp16") == (True, True, False, False)
    assert events("1e6", "fp16") == (False, True, False, False)
    assert events("1e-9", "fp16") == (False, False, True, False)
    assert events("0", "fp16") == (False, False, False, True)
    assert events("2^-24", "fp16") == (False, False, False, True)
    assert events("inf", "fp16") == (False, False, False, True)
    assert events("inf", "e4m3") == (False, False, False, False)
    assert events("nan", "fp16") == (False, False, False, True)
    assert events("-5", "ue4m3") == (False, False, False, False)


def test_decimal_strings_are_rounded_once() -> None:
    # One part in 10**40 above a midpoint: no float64 can tell it from the midpoint.
    for fmt, step in (("fp64", 53), ("fp32", 24), ("fp16", 11)):
        midpoint = decimal_text(1 + Fraction(1, 2**step))
        above = f"{midpoint}{'0' * 40}1"
        assert float(above) == float(Fraction(midpoint)) or fmt == "fp64"
        low, high = inspect("1", fmt), inspect("1", fmt).above
        assert inspect(midpoint, fmt).code == low.code
        assert high is not None
        assert inspect(above, fmt).code == high.code
        assert not inspect(above, fmt).tie


@pytest.mark.parametrize(
    ("given", "exact"),
    [
        ("0.1", Fraction(1, 10)),
        (0.1, Fraction(0.1)),
        (" -1e-8 ", Fraction(-1, 10**8)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("+1E2", 100),
        ("-1/3", Fraction(-1, 3)),
        ("2^-24", Fraction(1, 2**24)),
        ("2**10", 1024),
        ("-1.5*2^-3", Fraction(-3, 16)),
        ("0x1.8p3", 12),
        ("-0X.8P-1", Fraction(-1, 4)),
        ("0x1.8", Fraction(3, 2)),
        (7, 7),
        (10**400, 10**400),
        (Fraction(1, 3), Fraction(1, 3)),
        (decimal.Decimal("-0.1"), Fraction(-1, 10)),
        (decimal.Decimal("1e-400"), Fraction(1, 10**400)),
        (np.float16(0.1), Fraction(1638, 2**14)),
        (np.float32(0.1), Fraction(float(np.float32(0.1)))),
        (np.int64(-3), -3),
        (np.array(0.5), Fraction(1, 2)),
        (np.longdouble(1) + np.longdouble(2) ** -60, 1 + Fraction(1, 2**60)),
    ],
)
def test_numbers_are_read_exactly(given: object, exact: Fraction | int) -> None:
    negative, magnitude = read_number(given)
    assert (-magnitude if negative else magnitude) == exact


@pytest.mark.parametrize("zero", ["-0", "-0.0", -0.0, np.float32(-0.0), decimal.Decimal("-0")])
def test_the_sign_of_zero_is_kept(zero: object) -> None:
    assert inspect(zero, "fp16").code == 0x8000
    assert inspect(zero, "fp16").text == "-0"
    assert inspect(zero, "e5m2fnuz").code == 0


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "abc",
        "1e",
        "0x",
        "--1",
        "1/-3",
        "1_000",
        "2^",
        "1e99999999999",
        "1/0",
        "0x3c00",
        "9" * 2000,
        "\N{FULLWIDTH DIGIT ONE}",
    ],
)
def test_what_is_no_number_is_refused_in_one_line(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"^value ") as caught:
        inspect(wrong, "fp16")
    assert "\n" not in str(caught.value)


def test_arguments_that_make_no_sense_are_named() -> None:
    with pytest.raises(TypeError, match="fmt is missing"):
        inspect(0.1)
    with pytest.raises(TypeError, match="either a value"):
        inspect(0.1, "fp16", code=3)
    with pytest.raises(TypeError, match="either a value"):
        inspect(fmt="fp16")
    with pytest.raises(TypeError, match=r"array of shape \(2,\)"):
        inspect(np.zeros(2), "fp16")
    with pytest.raises(TypeError, match="a number or a string"):
        inspect(1j, "fp16")
    with pytest.raises(TypeError, match=r"code is 1\.0"):
        inspect(code=1.0, fmt="fp16")
    with pytest.raises(ValueError, match="0x100 does not fit the 8 bits of e4m3"):
        inspect(code=0x100, fmt="e4m3")
    with pytest.raises(ValueError, match="nearest: "):
        inspect(1, "fp17")


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("text", ["0.1", "1/3", "1e-2000", "-1e2000", "inf", "nan", "-0", "0"])
def test_the_dictionary_is_json_and_exact(fmt: FloatFormat, text: str) -> None:
    x = inspect(text, fmt)
    data = json.loads(json.dumps(x.to_dict(), allow_nan=False))
    assert "".join(data["bits"].values()) == f"{x.code:0{fmt.bits}b}"
    assert int(data["code"], 16) == x.code
    if x.is_finite:
        assert Fraction(data["value"]) == x.value == (-1) ** x.negative * x.sig * Fraction(2) ** (x.e - fmt.m)
    for key in ("error", "error_ulps", "error_relative", "ulp"):
        want = getattr(x, key)
        assert want is None if data[key] is None else Fraction(data[key]) == want


@pytest.mark.parametrize(
    ("text", "fmt", "sentence"),
    [
        ("0.1", "fp16", "0.1 lies between 0.0999755859375 and 0.10003662109375; the first is nearer."),
        ("65519", "fp16", "65519 lies between 65504 and 65536; the first is nearer. The other would be infinite."),
        ("-65519", "fp16", "-65519 lies between -65536 and -65504; the second is nearer. The other would be infinite."),
        ("449", "e4m3", "449 lies between 448 and 480; the first is nearer. The other is out of range."),
        ("-464", "e4m3", "-464 lies exactly half-way between -480 and -448; the even code is taken: -448."),
        ("1000", "e4m3", "1000 rounds to 1024, past the largest finite number 448: overflow gives nan."),
        ("1e-9", "fp16", "1e-9 lies between 0 and 5.9604644775390625e-8; the first is nearer. It underflows to zero."),
        ("0.5", "fp16", "0.5 is a value of fp16: nothing is lost."),
        ("inf", "e4m3", "e4m3 has no infinity: inf becomes nan."),
        ("nan", "e3m2", "e3m2 has no NaN: nan becomes 28."),
        ("-2", "ue4m3", "ue4m3 has no sign: -2 becomes nan."),
        ("-inf", "bf16", "-inf is a special value of bf16."),
        ("0", "e8m0", "0 lies below the least number of e8m0, 2^-127."),
    ],
)
def test_explanations(text: str, fmt: str, sentence: str) -> None:
    assert inspect(text, fmt).explanation == sentence


def test_long_decimals_are_cut_with_an_ellipsis_and_never_rounded_up() -> None:
    assert decimal_text(Fraction(2, 3), 5) == "0.66666…"
    assert decimal_text(Fraction(0.1), 17) == "0.10000000000000000…"
    assert decimal_text(Fraction(1, 2**24), 4) == "5.960…e-8"
    assert decimal_text(Fraction(1, 2**24)) == "5.9604644775390625e-8"
    assert decimal_text(Fraction(-65504), 5) == "-65504"
    assert decimal_text(Fraction(10) ** 50) == "1e+50"
    assert decimal_text(math.inf) == "inf"


def test_an_inspection_prints_as_text() -> None:
    x = inspect("1e-8", "fp16")
    assert repr(x) == "<1e-8 in fp16: 0x0000 = 0, -0.168 ulp>"
    assert str(x).splitlines() == [
        "1e-8 in fp16",
        "code         0x0000",
        "bits         0 00000 0000000000",
        "             s eeeee ffffffffff",
        "class        zero",
        "exponent     field 0: the least exponent, -14",
        "significand  0.0000000000 in binary = 0 / 2^10",
        "value        0 = 0 * 2^-24",
        "next above   5.9604644775390625e-8  (code 0x0001)",
        "next below   -5.9604644775390625e-8  (code 0x8001)",
        "ulp          2^-24 = 5.96046447753…e-8",
        "error        -1e-8 = -0.168 ulp, -1.00e+00 relative",
        "",
        "1e-8 lies between 0 and 5.9604644775390625e-8; the first is nearer. It underflows to zero.",
    ]
    assert "error" not in str(inspect(code=1, fmt="fp16"))
    assert repr(inspect("nan", "e8m0")) == "<nan in e8m0: 0xff = nan>"


def test_a_number_that_rounding_twice_gets_wrong_is_pointed_out():
    # Just above the midpoint of 1 and 1 + 2**-10; float32 cannot tell it from the midpoint.
    x = inspect("0x1.0020000001p0", "fp16")
    assert (x.hex, x.twice_rounded) == ("0x3c01", 0x3C00)
    assert "Rounded to fp32 first, it would become 1" in x.explanation
    assert x.to_dict()["twice_rounded"] == "0x3c00"
    assert inspect("-0x1.0020000001p0", "fp16").twice_rounded == 0xBC00
    for other in ("0.1", "1.5", "65520", "inf", "nan", "-0", "1e-400", "1e400"):
        assert inspect(other, "fp16").twice_rounded is None
    assert inspect(code=0x3C00, fmt="fp16").twice_rounded is None
    assert inspect("0x1.0020000001p0", "fp64").twice_rounded is None


def test_twice_rounded_is_what_numpy_casts_in_two_steps_give():
    rng = np.random.default_rng(0)
    midpoints = (1 + (2 * rng.integers(0, 1024, 200) + 1) * 2.0**-11) * 2.0 ** rng.integers(-10, 10, 200)
    for x in midpoints * (1 + rng.choice([-1, 1], 200) * 2.0**-40):
        twice = int(np.float16(np.float32(x)).view(np.uint16))
        seen = inspect(float(x), "fp16")
        assert (seen.code if seen.twice_rounded is None else seen.twice_rounded) == twice
