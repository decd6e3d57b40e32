import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from mpsim.counters import Counters
from mpsim.tables import INT4, NF4, POSIT8, TableFormat

MODES = ("nearest-even", "nearest-away", "toward-zero", "up", "down")
SHUFFLED = TableFormat(name="shuffled", values=(3.0, -7.5, 0.1, math.nan, 0.3, 1e300, -1e300, 2.0**-1074), nan_code=3)
ONLY = TableFormat(name="only", values=(1.5, math.nan), nan_code=1)
TABLES = [NF4, INT4, POSIT8, SHUFFLED, ONLY]


def nearest(table: TableFormat, x: float, mode: str) -> int:
    """Return the code by trying every value, in fractions."""
    exact = {code: Fraction(v) for code, v in enumerate(table.values) if code != table.nan_code}
    if math.isinf(x):
        return (max if x > 0 else min)(exact, key=exact.__getitem__)
    y = Fraction(x)
    low = max((code for code, v in exact.items() if v <= y), key=exact.__getitem__, default=None)
    high = min((code for code, v in exact.items() if v >= y), key=exact.__getitem__, default=None)
    if low is None or high is None or low == high:
        return low if high is None else high
    match mode:
        case "up":
            chosen = high
        case "down":
            chosen = low
        case "toward-zero":
            chosen = low if y >= 0 else high
        case _:
            down, up = y - exact[low], exact[high] - y
            if down != up:
                chosen = low if down < up else high
            elif mode == "nearest-away":
                chosen = high if y >= 0 else low
            elif low % 2 != high % 2:
                chosen = low if low % 2 == 0 else high
            else:
                chosen = high if y < 0 else low
    if table.keeps_nonzero and exact[chosen] == 0 and y != 0:
        wanted = [code for code, v in exact.items() if (v > 0) == (y > 0) and v != 0]
        chosen = min(wanted, key=lambda code: abs(exact[code]))
    return chosen


def trial_inputs(table: TableFormat) -> np.ndarray:
    """Return every value, every midpoint as near as float64 holds it, their neighbours, and numbers at random."""
    values = sorted(v for v in table.values if not math.isnan(v))
    middles = [float((Fraction(a) + Fraction(b)) / 2) for a, b in itertools.pairwise(values)]
    x = np.array([*values, *middles, 0.0, 1e308, -1e308, 2.0**-1074, -(2.0**-1074)])
    x = np.concatenate(
        [x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf), np.random.default_rng(5).normal(size=300)]
    )
    return np.concatenate([x, 2 * np.random.default_rng(6).normal(size=100), [np.inf, -np.inf]])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_number_gets_the_code_that_trying_all_values_finds(table: TableFormat, mode: str):
    x = trial_inputs(table)
    want = [table.nan_code if table.nan_of_infinity and math.isinf(v) else nearest(table, v, mode) for v in x.tolist()]
    got = table.encode(x, mode)
    assert got.dtype == table.code_dtype
    assert got.tolist() == want
    assert np.array_equal(table.round_to(x, mode), table.decode(np.array(want)), equal_nan=True)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_code_comes_back_from_its_value(table: TableFormat):
    codes = np.arange(len(table.values))
    assert (
        table.encode(table.decode(codes)[codes != table.nan_code]).tolist() == codes[codes != table.nan_code].tolist()
    )


def test_posits_have_the_values_of_the_standard():
    # Posit Standard 2022: 1 is 0x40, maxPos 2**24, minPos 2**-24; the useed of es = 2 is 16.
    assert POSIT8.decode([0x40, 0x7F, 0x01, 0xC0, 0x60, 0x44, 0x00]).tolist() == [
        1.0, 2.0**24, 2.0**-24, -1.0, 16.0, 1.5, 0.0,
    ]  # fmt: skip
    assert math.isnan(POSIT8.decode(0x80))
    signed = np.arange(1, 256) + 0x80
    assert np.all(np.diff(POSIT8.decode(signed % 256)) > 0)  # posits order as two's complement integers


def test_a_posit_never_rounds_to_zero_nor_to_nar():
    assert POSIT8.encode([1e-30, -1e-30, 1e30, -1e30]).tolist() == [0x01, 0xFF, 0x7F, 0x81]
    assert POSIT8.encode([np.inf, -np.inf, np.nan]).tolist() == [0x80] * 3


def test_nf4_is_that_of_qlora():
    assert NF4.values[0] == -1
    assert NF4.values[7] == 0
    assert NF4.values[15] == 1
    assert all(np.float32(v) == v for v in NF4.values)
    assert NF4.encode([[0.0, -0.0], [5.0, -np.inf]]).tolist() == [[7, 7], [15, 0]]


@pytest.mark.parametrize(("x", "code"), [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, 14), (7.5, 7), (-9.0, 8)])
def test_ties_go_to_the_even_code(x: float, code: int):
    assert INT4.encode(x) == code


def test_a_tie_between_codes_of_one_parity_goes_toward_zero():
    table = TableFormat(name="even", values=(1.0, 9.0, 2.0, 8.0, -1.0, 7.0, -2.0))
    assert table.round_to([1.5, -1.5, 4.5, 7.5]).tolist() == [1.0, -1.0, 2.0, 7.0]


def test_counters_tell_what_a_table_did():
    seen = Counters()
    POSIT8.encode([0.0, 1e-30, 1.0, 1.01, 1e30, np.inf, np.nan], counters=seen)
    assert seen == Counters(
        elements=7, zeros=1, overflows=1, saturations=1, inexact=3, nans=1, nans_made=1, infinities=1
    )
    NF4.encode([0.01, -2.0, -np.inf], counters=seen)
    assert (seen.elements, seen.underflows, seen.overflows, seen.saturations) == (10, 1, 2, 3)


@pytest.mark.parametrize(
    ("values", "nan_code", "message"),
    [
        ((1.0, 2.0, 1.0), None, "1.0 stands there twice"),
        ((0.0, -0.0), None, "twice"),
        ((1.0, math.nan), None, "nan_code"),
        ((1.0, math.inf), None, "finite"),
        ((1.0,), None, "2 to 65536"),
        (tuple(map(float, range(65537))), None, "2 to 65536"),
        ((1.0, 2.0), 2, "codes are 0 to 1"),
    ],
    ids=["equal", "both zeros", "NaN", "infinity", "one", "too many", "nan_code"],
)
def test_a_table_that_is_none_is_refused(values: tuple[float, ...], nan_code: int | None, message: str):
    with pytest.raises(ValueError, match=message):
        TableFormat(name="bad", values=values, nan_code=nan_code)


def test_what_a_table_cannot_do_is_an_error():
    with pytest.raises(ValueError, match="NaN"):
        NF4.encode([np.nan])
    with pytest.raises(ValueError, match="to-odd"):
        NF4.encode([1.0], "to-odd")
    with pytest.raises(ValueError, match="codes 0 to 15"):
        NF4.decode([16])
    with pytest.raises(TypeError, match="codes"):
        NF4.decode([1.0])
    with pytest.raises(TypeError, match="x has dtype"):
        NF4.encode(["a"])
    with pytest.raises(ValueError, match=r"2\*\*53"):
        INT4.encode([2**53 + 1])
