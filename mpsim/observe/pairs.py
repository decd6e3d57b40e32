"""One run beside another: how far a low-precision run is from its reference, tensor by tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim._noise import sqnr
from mpsim.counters import Counters
from mpsim.formats import FloatFormat
from mpsim.observe.record import Record
from mpsim.settings import Origin, using

__all__ = ["Comparison", "Pair", "compare"]

Array: TypeAlias = "NDArray[Any]"
Key: TypeAlias = "tuple[str, str, str, str, int]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One tensor in both runs."""

    kind: str
    layer: str
    tensor: str
    operation: str
    format: FloatFormat
    """Format in the run that was looked at."""
    sqnr: float
    """Signal over quantisation noise in dB: the mean square of the reference over that of the difference."""
    ulps: float
    """The largest error, in units in the last place of ``format`` at the reference; infinite for what is not finite."""
    mean_ulps: float


@dataclass(frozen=True, slots=True)
class Pair:
    """What `compare` found, in the order of the run."""

    rows: tuple[Comparison, ...]

    def first_divergence(self, ulps: float = 1.0) -> Comparison | None:
        """Return the first tensor with an error of more than so many units in the last place; None if none has."""
        return next((row for row in self.rows if row.ulps > ulps), None)

    def of(self, kind: str) -> tuple[Comparison, ...]:
        """Return the tensors of one kind."""
        return tuple(row for row in self.rows if row.kind == kind)

    def __str__(self) -> str:
        lines = [f"{'tensor':<24} {'kind':<20} {'format':<8} {'SQNR dB':>8} {'mean ulps':>11} {'largest':>11}"]
        lines += [
            f"{r.tensor:<24} {r.kind:<20} {r.format.name:<8} {r.sqnr:>8.1f} {r.mean_ulps:>11.3g} {r.ulps:>11.3g}"
            for r in self.rows
        ]
        return "\n".join(lines)


def compare(run: Callable[[], object], reference: Callable[[], object], factor: float = 1.0) -> Pair:
    """Run two computations that differ in their arithmetic alone, and compare every tensor of the first with its twin.

    Parameters
    ----------
    run, reference : callable
        Each does the same on the same data and weights, such as one forward and backward pass. The reference is run
        first; put the weights back in between where a run changes them.
    factor : float
        Gradients of the reference are multiplied by this: the loss scale of ``run`` over that of the reference.

    Returns
    -------
    Pair
        Tensors that both have; casts, which only one may have, are left out.

    Notes
    -----
    The arrays of the reference are held until the end.
    """
    kept = _Keeper()
    with using(observer=kept):
        reference()
    comparer = _Comparer(kept.arrays, factor)
    with using(observer=comparer):
        run()
    return Pair(tuple(comparer.rows))


class _Keeper(Record):
    """Keeps every array under the place that it has in the run."""

    def __init__(self) -> None:
        super().__init__(("activation", "activation gradient", "weight gradient"), histograms=False)
        self.arrays: dict[Key, Array] = {}
        self._counts: Counter[tuple[str, str, str, str]] = Counter()

    def rounded(
        self,
        kind: str,
        producer: str,
        fmt: FloatFormat,
        before: Array,
        after: Array,
        counters: Counters | None,
        origin: Origin | None = None,
    ) -> None:
        layer, name, operation = self.place(producer, origin)
        if producer == "cast" or (operation.startswith("cast") and not name):
            return
        place = kind, layer, name or producer, operation.removeprefix("cast backward") or "leaf"
        if kind == "weight gradient":
            # The last operation before a leaf is a cast in one run and the product itself in the other.
            place = kind, layer, name, "leaf"
        self._counts[place] += 1
        self.take((*place, self._counts[place]), after, fmt, operation)

    def take(self, key: Key, array: Array, fmt: FloatFormat, operation: str) -> None:
        """Keep an array."""
        self.arrays[key] = array


class _Comparer(_Keeper):
    """Compares every array with the one that has its place in the reference."""

    def __init__(self, reference: dict[Key, Array], factor: float) -> None:
        super().__init__()
        self._reference, self._factor = reference, factor
        self.rows: list[Comparison] = []

    def take(self, key: Key, array: Array, fmt: FloatFormat, operation: str) -> None:
        """Compare an array."""
        want = self._reference.get(key)
        if want is None or want.shape != array.shape:
            return
        kind, layer, tensor, *_ = key
        factor = self._factor if kind.endswith("gradient") else 1.0
        got, wanted = array.astype(np.float64), want.astype(np.float64) * factor
        ulps, mean = _errors(got, wanted, fmt)
        named = tensor if kind == "weight gradient" or not layer else f"{layer} {tensor}"
        self.rows.append(
            Comparison(
                kind=kind,
                layer=layer,
                tensor=named,
                operation=operation,
                format=fmt,
                sqnr=sqnr(wanted, got),
                ulps=ulps,
                mean_ulps=mean,
            )
        )


def _errors(got: Array, want: Array, fmt: FloatFormat) -> tuple[float, float]:
    """Return the largest and the mean error in ulps."""
    if not want.size:
        return 0.0, 0.0
    with np.errstate(all="ignore"):
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        difference = np.where(same, 0.0, got - want)
        # frexp gives zero, whose ulp is that of the smallest numbers, the exponent of 1/2.
        exponents = np.where(want == 0, fmt.emin, np.maximum(np.frexp(np.abs(want))[1] - 1, fmt.emin))
        ulps = np.abs(difference) / np.ldexp(1.0, exponents - (fmt.p - 1))
        ulps = np.where(np.isnan(ulps), np.inf, ulps)
    return float(ulps.max()), float(ulps.mean())
