"""What rounding would count, for numbers that it would leave as they are."""

from __future__ import annotations

import functools
from typing import Any

from numpy.typing import NDArray

from mpsim._arrays import WORDS, elements
from mpsim._grids import float_word
from mpsim.counters import Counters
from mpsim.formats import FloatFormat
from mpsim_kernels.magnitudes import make_class_counts

__all__ = ["counts_of_values"]


def counts_of_values(x: NDArray[Any], fmt: FloatFormat) -> Counters:
    """Return what `round_to` counts when it rounds values of a format, float32 or float64, to that format."""
    words = elements(x).view(WORDS[x.itemsize])
    zeros, subnormals, infinities, nans = make_class_counts(8 * x.itemsize)(words, _normal(fmt, x.itemsize))
    return Counters(words.size, zeros=zeros, subnormals=subnormals, nans=nans, infinities=infinities)


@functools.cache
def _normal(fmt: FloatFormat, itemsize: int) -> Any:
    """Return the word of the smallest normal number."""
    code = 1 << fmt.m if fmt.has_subnormals else fmt.min_code
    return WORDS[itemsize].type(float_word(fmt, code, 8 * itemsize))
