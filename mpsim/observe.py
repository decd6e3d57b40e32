"""What happened to the tensors of a run: counts of every rounding, and histograms of magnitudes."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.counters import Counters
from mpsim.formats import FloatFormat, FormatLike, get_format
from mpsim.tensor import using

__all__ = ["KINDS", "Histogram", "Record", "observe"]

Array: TypeAlias = "NDArray[Any]"

KINDS = ("activation", "activation gradient", "weight", "weight gradient")
"""Kinds of array that the engine rounds."""


@dataclass(slots=True)
class Histogram:
    """How many numbers have each binary exponent ``floor(log2 |x|)``; zeros, infinities and NaNs apart."""

    LOWEST = -1074
    HIGHEST = 1023

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2098, np.int64))
    """Counts by exponent, from -1074 to 1023."""
    zeros: int = 0
    not_finite: int = 0

    def add(self, x: Array) -> None:
        """Count the elements of an array."""
        magnitude = np.abs(x[np.isfinite(x)])
        exponents = np.frexp(magnitude[magnitude > 0])[1] - 1
        self.counts += np.bincount(exponents - self.LOWEST, minlength=self.counts.size)
        self.zeros += int(np.count_nonzero(magnitude == 0))
        self.not_finite += x.size - magnitude.size

    def occupied(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the exponents from the smallest to the largest seen, and their counts."""
        (seen,) = np.nonzero(self.counts)
        if not seen.size:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        inside = slice(int(seen[0]), int(seen[-1]) + 1)
        return np.arange(inside.start, inside.stop) + self.LOWEST, self.counts[inside].copy()


@dataclass(slots=True)
class _Entry:
    counters: Counters = field(default_factory=Counters)
    histogram: Histogram = field(default_factory=Histogram)


class Record:
    """What `observe` collected.

    Parameters
    ----------
    kinds : collection of str
        Kinds of array to look at, of `KINDS`.
    histograms : bool
        Collect the magnitudes before rounding too.
    """

    def __init__(self, kinds: Collection[str] = KINDS, histograms: bool = True) -> None:
        wrong = [kind for kind in kinds if kind not in KINDS]
        if wrong:
            raise ValueError(f"kinds has {wrong[0]!r}; each must be one of {', '.join(KINDS)}")
        self.kinds = frozenset(kinds)
        self.histograms = histograms
        self._entries: dict[tuple[str, str, str], _Entry] = {}

    def rounded(
        self, kind: str, producer: str, fmt: FloatFormat, before: Array, after: Array, counters: Counters
    ) -> None:
        """Take note of one array; called by the engine."""
        entry = self._entries.setdefault((kind, producer, fmt.name), _Entry())
        entry.counters += counters
        if self.histograms:
            entry.histogram.add(before)

    def counters(
        self, kind: str | None = None, producers: Collection[str] | None = None, fmt: FormatLike | None = None
    ) -> Counters:
        """Return the counts of all roundings of a kind, of tensors that given operations made, to a format.

        Raises
        ------
        ValueError
            ``kind`` is not one that was looked at, or there is no such format.
        """
        total = Counters()
        for entry in self._matching(kind, producers, fmt):
            total += entry.counters
        return total

    def histogram(
        self, kind: str | None = None, producers: Collection[str] | None = None, fmt: FormatLike | None = None
    ) -> Histogram:
        """Return the magnitudes before rounding, chosen as for `counters`."""
        total = Histogram()
        for entry in self._matching(kind, producers, fmt):
            total.counts += entry.histogram.counts
            total.zeros += entry.histogram.zeros
            total.not_finite += entry.histogram.not_finite
        return total

    def _matching(
        self, kind: str | None, producers: Collection[str] | None, fmt: FormatLike | None
    ) -> Iterator[_Entry]:
        if kind is not None and kind not in self.kinds:
            raise ValueError(
                f"kind is {kind!r}; this record looked at {', '.join(k for k in KINDS if k in self.kinds)}"
            )
        makers = {producers} if isinstance(producers, str) else producers
        name = None if fmt is None else get_format(fmt).name
        for (its_kind, its_producer, its_format), entry in self._entries.items():
            if (
                (kind is None or kind == its_kind)
                and (makers is None or its_producer in makers)
                and (name is None or name == its_format)
            ):
                yield entry


@contextlib.contextmanager
def observe(kinds: Collection[str] = KINDS, histograms: bool = True) -> Iterator[Record]:
    """Collect what the engine rounds inside a ``with`` block.

    Parameters
    ----------
    kinds, histograms
        As for `Record`. Fewer kinds cost less.

    Examples
    --------
    >>> from mpsim.tensor import Tensor
    >>> with observe() as record:
    ...     x = Tensor([1e-4, 1.0], requires_grad=True)
    ...     y = (x.to("fp16") * 1e-4).sum()
    >>> record.counters("activation", producers={"mul"}).underflows
    1
    """
    record = Record(kinds, histograms)
    with using(observer=record):
        yield record
