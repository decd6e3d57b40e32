"""What rounding recorded numbers to other formats would lose, from their histogram alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mpsim.counters import Counters
from mpsim.formats import FP32, FloatFormat, FormatLike, get_format
from mpsim.observe.histograms import Histogram
from mpsim.rounding import round_to

if TYPE_CHECKING:
    from mpsim.observe.record import Record

__all__ = ["Loss", "WhatIf", "Window", "scale_windows", "what_if"]


@dataclass(frozen=True, slots=True)
class Loss:
    """What one format at one scale would do to numbers that are not zero."""

    format: FloatFormat
    scale: float
    numbers: int
    lost: int
    """Rounded to zero."""
    subnormal: int
    overflow: int

    @property
    def lost_share(self) -> float:
        """Numbers rounded to zero as a share of those that were not; NaN when there were none."""
        return self.lost / self.numbers if self.numbers else math.nan


@dataclass(frozen=True, slots=True)
class Window:
    """Scales that neither lose nor overflow too much."""

    smallest: float
    """The smallest power of two that loses no more than was allowed; infinite where not even 2**1023 does."""
    largest: float
    """The largest power of two, up to 2**1023, at which no number overflows."""

    @property
    def is_open(self) -> bool:
        """Whether there is a scale between the two."""
        return self.smallest <= self.largest


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Losses of every format at every scale that was asked for."""

    losses: tuple[Loss, ...]
    histogram: Histogram

    def loss(self, fmt: FormatLike, scale: float = 1.0) -> Loss:
        """Return the loss of one format at any power of two, also one that was not asked for before."""
        return _loss(self.histogram, get_format(fmt), scale)

    def window(self, fmt: FormatLike, lost: float = 1e-3) -> Window:
        """Return the scales at which a format loses no more than a share of the numbers, and overflows none.

        Raises
        ------
        ValueError
            There were no numbers but zero.
        """
        return _window(self.histogram, get_format(fmt), lost)

    def smallest_scale(self, fmt: FormatLike, lost: float = 1e-3) -> float:
        """Return the smallest power of two at which a format rounds no more than a share of the numbers to zero."""
        return self.window(fmt, lost).smallest

    def __str__(self) -> str:
        lines = ["format      scale      lost   subnormal    overflow"]
        for loss in self.losses:
            n = max(loss.numbers, 1)
            shares = "".join(f"{count / n:>12.2%}" for count in (loss.subnormal, loss.overflow))
            lines.append(f"{loss.format.name:<8} {_power(loss.scale):>8} {loss.lost / n:>9.2%}{shares}")
        return "\n".join(lines)


def what_if(
    histogram: Histogram, formats: FormatLike | Collection[FormatLike], scales: Collection[float] = (1.0,)
) -> WhatIf:
    """Return what formats would lose of the numbers of a histogram, multiplied by scales.

    Parameters
    ----------
    histogram : Histogram
    formats : FloatFormat, name, or collection of those
    scales : collection of float
        Powers of two.

    Raises
    ------
    ValueError
        A scale is no power of two: it would cut the bins of a histogram.

    Notes
    -----
    Under round to nearest. Losses are exact, but for numbers that are half the smallest subnormal to the bit, a tie
    that goes to zero: they count as kept. Numbers with the exponent of the largest finite number count as overflows
    together, if the largest of them is one. Numbers that were zero when they were recorded stay so: what was lost
    before is not seen.

    Examples
    --------
    >>> numbers = Histogram.of(np.array([2.0**-30, 2.0**-20, 1.0]))
    >>> print(what_if(numbers, ["fp16", "bf16"], [1, 64]))
    format      scale      lost   subnormal    overflow
    fp16          2^0    33.33%      33.33%       0.00%
    fp16          2^6     0.00%      33.33%       0.00%
    bf16          2^0     0.00%       0.00%       0.00%
    bf16          2^6     0.00%       0.00%       0.00%
    """
    named = (formats,) if isinstance(formats, FloatFormat | str) or not isinstance(formats, Collection) else formats
    found = [get_format(fmt) for fmt in named]
    losses = (_loss(histogram, fmt, scale) for fmt in found for scale in scales)
    return WhatIf(tuple(losses), histogram)


def scale_windows(record: Record, fmt: FormatLike, lost: float = 1e-3) -> Iterator[tuple[int, Window]]:
    """Yield, for each step of a record, the loss scales that its activation gradients admit in a format.

    The scale that was in force, where the record knows it, is taken out of the numbers first. In a run that has
    gradients in formats narrower than FP32, only those count: the gradient of the loss itself is in FP32 there.
    """
    f = get_format(fmt)
    steps: dict[bool, dict[int, Histogram]] = {False: {}, True: {}}
    for entry in record.entries("activation gradient"):
        steps[entry.format.bits < FP32.bits].setdefault(entry.step, Histogram()).merge(entry.histogram)
    for step, histogram in (steps[True] or steps[False]).items():
        if histogram.occupied_counts.size:
            window = _window(histogram, f, lost)
            scale = record.scales.get(step, 1.0)
            yield step, Window(window.smallest * scale, window.largest * scale)


def _loss(histogram: Histogram, fmt: FloatFormat, scale: float) -> Loss:
    fraction, exponent = math.frexp(scale)
    if fraction != 0.5:
        raise ValueError(f"scale is {scale}; a power of two is needed")
    exponents, counts = histogram.occupied()
    exponents = exponents + (exponent - 1)
    lost = exponents < _first_kept(fmt)
    low = (exponents < fmt.emin) & ~lost
    high = exponents > fmt.emax
    if _overflows(histogram.largest, exponent - 1, fmt):
        high |= exponents == fmt.emax
    number, gone, subnormal, overflow = (int(counts[part].sum()) for part in (..., lost, low, high))
    return Loss(fmt, float(scale), number, gone, subnormal, overflow)


def _window(histogram: Histogram, fmt: FloatFormat, lost: float) -> Window:
    exponents, counts = histogram.occupied()
    if not counts.size:
        raise ValueError("window: there are no numbers but zero")
    # Everything below the first exponent that must be kept may be lost.
    below = np.cumsum(counts)
    first = int(np.searchsorted(below, lost * below[-1], side="right"))
    kept = int(exponents[min(first, counts.size - 1)])  # the largest, where all may be lost
    smallest = max(_first_kept(fmt) - kept, -1074)
    largest = fmt.emax + 1 - int(exponents[-1])
    while _overflows(histogram.largest, largest, fmt):
        largest -= 1
    return Window(
        math.ldexp(1.0, smallest) if smallest <= 1023 else math.inf,
        math.ldexp(1.0, min(largest, 1023)),
    )


@functools.cache
def _first_kept(fmt: FloatFormat) -> int:
    """Return the smallest exponent of numbers that do not all round to zero."""
    exponent = fmt.quantum_exponent - 2
    while round_to(np.nextafter(math.ldexp(1.0, exponent + 1), 0.0), fmt) == 0:
        exponent += 1
    return exponent


def _overflows(x: float, exponent: int, fmt: FloatFormat) -> bool:
    """Return whether ``x * 2**exponent`` rounds beyond the largest finite number of a format."""
    if x == 0:
        return False
    fraction, own = math.frexp(x)
    if own + exponent > fmt.emax + 1:  # at least 2**(emax + 1)
        return True
    counters = Counters()
    round_to(math.ldexp(fraction, own + exponent), fmt, counters=counters)
    return counters.overflows > 0


def _power(scale: float) -> str:
    return f"2^{math.frexp(scale)[1] - 1}"
