"""All 2**32 float32 words into every narrow format.

Rounding is monotone, so the words of one sign that round to one number form an interval. Its ends follow from the
exact numbers of the format alone, and the twin confirms the word on either side of each. A sweep then asks that the
results change at those words and nowhere else.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from mpsim.counters import Counters
from mpsim.encoding import encode
from mpsim.formats import CATALOGUE, FP16, FloatFormat, get_format
from mpsim.rounding import round_to
from reference import rounding as twin

P3109 = ("binary8p3se", "binary8p4sf", "binary8p1uf", "binary6p3ue")
FORMATS = [*(fmt for fmt in CATALOGUE if fmt.bits <= 16), *map(get_format, P3109)]
ROUNDINGS = ("nearest-even", "toward-zero", "up", "down", "to-odd")
CHUNK = 1 << 18
INFINITY, END = 0x7F800000, 1 << 31


def floor_word(magnitude: int) -> tuple[int, bool]:
    """Return the last float32 word, without sign, of at most ``magnitude / 2**SCALE``, and whether it is equal."""
    field = max(magnitude.bit_length() - twin.SCALE + 126, 1)
    sig, rest = divmod(magnitude, 1 << (twin.SCALE + field - 150))
    return sig + ((field - 1) << 23), rest == 0


def first_from(magnitude: int) -> int:
    word, exact = floor_word(magnitude)
    return word + (not exact)


def first_after(magnitude: int) -> int:
    return floor_word(magnitude)[0] + 1


def first_word(fmt: FloatFormat, code: int, negative: bool, rounding: str) -> int:
    """Return the first float32 word, without sign, whose magnitude rounds to ``code`` >= 1 or beyond."""
    lower, upper = twin.magnitude(fmt, code - 1), twin.magnitude(fmt, code)
    odd = code % 2 == 1
    if rounding == "nearest-even":  # the midpoint goes to the even one of its neighbours
        return first_after((lower + upper) // 2) if odd else first_from((lower + upper) // 2)
    away = {"toward-zero": False, "up": not negative, "down": negative, "to-odd": odd}[rounding]
    return first_after(lower) if away else first_from(upper)


def intervals(fmt: FloatFormat, negative: bool, rounding: str) -> tuple[list[int], list[int]]:
    """Return the words, without sign, at which a new code begins, and those codes."""
    found = [(0, twin.encode(fmt, twin.number(-0.0 if negative else 0.0), rounding))]
    if not fmt.has_zero:  # what is below the smallest number goes to it
        found.append((1, twin.pack(fmt, 0, negative, rounding, "ieee")))
    for code in range(1, twin.largest(fmt) + 2):
        word = min(first_word(fmt, code, negative, rounding), INFINITY)
        found.append((word, twin.pack(fmt, code, negative, rounding, "ieee")))
    infinity = twin.number(-np.inf if negative else np.inf)
    found += [(INFINITY, twin.encode(fmt, infinity, rounding)), (INFINITY + 1, twin.nan(fmt, negative))]
    # Where two begin at one word the later holds; where two neighbours are alike there is no change.
    starts = dict(found)
    assert list(starts) == sorted(starts)
    kept = [0, *(word for before, word in pairwise(starts) if starts[before] != starts[word])]
    return kept, [starts[word] for word in kept]


def assert_twin_agrees(fmt: FloatFormat, negative: bool, rounding: str, starts: list[int], codes: list[int]) -> None:
    """Fail unless the twin gives each interval's code to its first and to its last word."""
    ends = np.array([*starts, *(start - 1 for start in starts[1:])], dtype=np.uint32)
    x = (ends | np.uint32(negative << 31)).view(np.float32)
    numbers = [twin.Number(negative, "nan") if np.isnan(v) else twin.number(v) for v in x.tolist()]
    assert [twin.encode(fmt, number, rounding) for number in numbers] == [*codes, *codes[:-1]]


def sweep(convert: Callable[[np.ndarray, np.ndarray], object], negative: bool, starts: list[int], want: np.ndarray):
    """Fail unless the results of all words of one sign change at ``starts`` only, to ``want``."""
    begins = np.array(starts, dtype=np.int64)
    words = np.arange(CHUNK, dtype=np.uint32) | np.uint32(negative << 31)
    got = np.empty(CHUNK, want.dtype)
    changed = np.empty(CHUNK, np.bool_)
    for first in range(0, END, CHUNK):
        convert(words.view(np.float32), got)
        low, high = np.searchsorted(begins, [first, first + CHUNK])
        places, values = begins[low:high] - first, want[low:high]
        if low == high or places[0] != 0:  # the chunk begins inside an interval
            places, values = np.append(0, places), np.append(want[low - 1], values)
        changed[0] = True
        np.not_equal(got[1:], got[:-1], out=changed[1:])
        at = np.flatnonzero(changed)
        if not (np.array_equal(at, places) and np.array_equal(got[at], values)):
            right = np.repeat(values, np.diff(np.append(places, CHUNK)))
            i = int(np.flatnonzero(got != right)[0])
            raise AssertionError(f"word {int(words[i]):#010x} gives {int(got[i]):#x}, should be {int(right[i]):#x}")
        words += np.uint32(CHUNK)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_every_float32_has_the_code_of_its_interval(fmt: FloatFormat, rounding: str):
    for negative in (False, True):
        starts, codes = intervals(fmt, negative, rounding)
        assert_twin_agrees(fmt, negative, rounding, starts, codes)
        want = np.array(codes, dtype=twin.code_dtype(fmt))
        sweep(lambda x, out: encode(x, fmt, rounding, out=out), negative, starts, want)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_every_float32_rounds_to_the_value_of_its_interval(fmt: FloatFormat):
    for negative in (False, True):
        starts, codes = intervals(fmt, negative, "nearest-even")
        values = twin.decode_array(fmt, codes, np.float32).view(np.uint32)
        kept = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
        begins = np.array(starts)[kept].tolist()
        sweep(lambda x, out: round_to(x, fmt, out=out.view(np.float32)), negative, begins, values[kept])


@pytest.mark.exhaustive
def test_counters_over_every_float32_are_the_lengths_of_the_intervals():
    seen = Counters()
    words, out = np.arange(CHUNK, dtype=np.uint32), np.empty(CHUNK, np.uint16)
    for _ in range(2 * END // CHUNK):
        encode(words.view(np.float32), FP16, out=out, counters=seen)
        words += np.uint32(CHUNK)
    smallest, normal, beyond = (first_word(FP16, code, False, "nearest-even") for code in (1, 0x400, 0x7C00))
    assert seen == Counters(
        elements=1 << 32,
        zeros=2,
        underflows=2 * (smallest - 1),
        subnormals=2 * (normal - smallest),
        overflows=2 * (INFINITY - beyond),
        inexact=2 * (INFINITY - 0x7C00),  # 0x7C00 numbers of either sign are held exactly
        nans=2 * (END - INFINITY - 1),
        infinities=2,
    )


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt.bits <= 8], ids=str)
def test_the_ends_of_the_intervals_are_those_of_the_twin_and_of_encode(fmt: FloatFormat, rounding: str):
    for negative in (False, True):
        starts, codes = intervals(fmt, negative, rounding)
        assert_twin_agrees(fmt, negative, rounding, starts, codes)
        words = np.array(starts, dtype=np.uint32) | np.uint32(negative << 31)
        assert encode(words.view(np.float32), fmt, rounding).tolist() == codes
