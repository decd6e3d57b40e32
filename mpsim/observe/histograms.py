"""Histograms of magnitudes: how many numbers have each binary exponent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim._arrays import elements
from mpsim.counters import Counters
from mpsim.formats import FloatFormat
from mpsim_kernels.magnitudes import make_magnitudes

__all__ = ["Histogram"]

Array: TypeAlias = "NDArray[Any]"

_EMPTY: NDArray[np.int64] = np.empty(0, np.int64)
_SIZES = {4: 279, 8: 2100}
_FIRST = {4: -149, 8: -1074}
_WORDS: dict[int, type[np.unsignedinteger[Any]]] = {4: np.uint32, 8: np.uint64}


@dataclass(slots=True)
class Histogram:
    """How many numbers have each binary exponent ``floor(log2 |x|)``; zeros, infinities and NaNs apart."""

    LOWEST = -1074
    HIGHEST = 1023

    first: int = 0
    """Exponent of the first of ``occupied_counts``."""
    occupied_counts: NDArray[np.int64] = field(default_factory=lambda: _EMPTY)
    zeros: int = 0
    not_finite: int = 0
    smallest: float = float("inf")
    """The smallest magnitude that is not zero."""
    largest: float = 0.0
    """The largest finite magnitude."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """Counts by exponent, from -1074 to 1023."""
        dense = np.zeros(self.HIGHEST - self.LOWEST + 1, np.int64)
        start = self.first - self.LOWEST
        dense[start : start + self.occupied_counts.size] = self.occupied_counts
        return dense

    def add(self, x: Array) -> None:
        """Count the elements of a float32 or float64 array."""
        self.merge(Histogram.of(x))

    @classmethod
    def of(cls, x: Array) -> Histogram:
        """Return the histogram of a float32 or float64 array."""
        size = x.itemsize
        counts, extremes = np.zeros(_SIZES[size], np.int64), np.empty(2, _WORDS[size])
        low, high = make_magnitudes(8 * size)(elements(x).view(_WORDS[size]), counts, extremes)
        zeros, not_finite = int(counts[-2]), int(counts[-1])
        if zeros + not_finite == x.size:
            return cls(zeros=zeros, not_finite=not_finite)
        extremes[0] += 1
        smallest, largest = extremes.view(x.dtype).tolist()
        return cls(_FIRST[size] + low, counts[low : high + 1].copy(), zeros, not_finite, smallest, largest)

    def counters(self, size: int, fmt: FloatFormat) -> Counters:
        """Return what rounding ``size`` finite values of a format to that format counts."""
        subnormals = int(self.occupied_counts[: fmt.emin - self.first].sum()) if self.first < fmt.emin else 0
        return Counters(size, zeros=self.zeros, subnormals=subnormals)

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        self.zeros += other.zeros
        self.not_finite += other.not_finite
        self.smallest, self.largest = min(self.smallest, other.smallest), max(self.largest, other.largest)
        if not other.occupied_counts.size:
            return
        if not self.occupied_counts.size:
            self.first, self.occupied_counts = other.first, other.occupied_counts.copy()
            return
        first = min(self.first, other.first)
        stop = max(self.first + self.occupied_counts.size, other.first + other.occupied_counts.size)
        total = np.zeros(stop - first, np.int64)
        for part in (self, other):
            start = part.first - first
            total[start : start + part.occupied_counts.size] += part.occupied_counts
        self.first, self.occupied_counts = first, total

    def occupied(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the exponents from the smallest to the largest seen, and their counts."""
        return self.first + np.arange(self.occupied_counts.size), self.occupied_counts.copy()
