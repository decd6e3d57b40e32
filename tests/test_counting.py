"""What is counted of numbers that rounding leaves as they are, against rounding them, and against the slow twin."""

import numpy as np
import pytest

import reference.rounding as twin
from mpsim._counting import counts_of_values
from mpsim.counters import Counters
from mpsim.encoding import decode
from mpsim.formats import FP16, FloatFormat
from mpsim.observe import Histogram
from mpsim.rounding import round_to
from reference.samples import FORMATS, NARROW, all_codes, sample_codes


def some_values(fmt: FloatFormat) -> np.ndarray:
    return decode(all_codes(fmt) if fmt.bits <= 16 else sample_codes(fmt, 1000), fmt)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_values_count_as_if_they_were_rounded(fmt: FloatFormat):
    x = some_values(fmt)
    for values in (x, x.astype(np.float64)):
        rounded = Counters()
        round_to(values, fmt, counters=rounded)
        assert counts_of_values(values, fmt) == rounded
        finite = values[np.isfinite(values)]
        assert Histogram.of(finite).counters(finite.size, fmt) == counts_of_values(finite, fmt)
    assert rounded.inexact == 0
    assert rounded.elements == x.size


@pytest.mark.parametrize("fmt", [fmt for fmt in NARROW if fmt.bits <= 8], ids=str)
def test_values_count_as_the_twin_says(fmt: FloatFormat):
    x = some_values(fmt)
    want = twin.count(fmt, x.tolist())
    counts = counts_of_values(x, fmt)
    assert {name: getattr(counts, name) for name in want} == want


def test_the_layout_of_an_array_changes_no_count():
    x = decode(np.arange(1 << 16, dtype=np.uint16), FP16).reshape(16, 64, 64)
    layouts = [x.T, x.swapaxes(0, 1), x[::-1], x[:, ::3], np.broadcast_to(x[0], x.shape), x[:0], x[0, 0, 0], x[..., :1]]
    for layout in layouts:
        copy = np.array(layout, order="C")
        assert counts_of_values(layout, FP16) == counts_of_values(copy, FP16)
        seen, want = Histogram.of(layout), Histogram.of(copy)
        np.testing.assert_array_equal(seen.counts, want.counts)
        assert (seen.zeros, seen.not_finite, seen.largest) == (want.zeros, want.not_finite, want.largest)
