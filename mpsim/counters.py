"""Counts of what rounding does to numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from mpsim.modes import unknown

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """What happened to the elements that were rounded; accumulates over calls.

    After ``elements`` the fields stand in the order in which the kernels count.

    Pass one as ``counters=`` to `round_to` or `encode`.

    Examples
    --------
    >>> from mpsim.rounding import round_to
    >>> seen = Counters()
    >>> _ = round_to([0.0, 1e-8, 3e-6, 1.0, 7e4], "fp16", counters=seen)
    >>> seen.zeros, seen.underflows, seen.subnormals, seen.overflows
    (1, 1, 1, 1)
    >>> seen.share("underflows")
    0.2
    """

    elements: int = 0
    """Elements rounded."""
    zeros: int = 0
    """Inputs that were zero already."""
    underflows: int = 0
    """Nonzero inputs whose result is zero."""
    subnormals: int = 0
    """Results that are subnormal numbers."""
    overflows: int = 0
    """Finite inputs that round, with unbounded exponent, beyond the largest finite number."""
    saturations: int = 0
    """Results held at the largest finite number, for an input that overflowed or was infinite."""
    inexact: int = 0
    """Finite inputs whose result differs from them in value."""
    nans: int = 0
    """Inputs that were NaN."""
    nans_made: int = 0
    """NaN results of inputs that were not NaN."""
    infinities: int = 0
    """Inputs that were infinite."""

    def __iadd__(self, other: Counters) -> Counters:
        # Written out: an observed run adds counts hundreds of times in a training step.
        self.elements += other.elements
        self.zeros += other.zeros
        self.underflows += other.underflows
        self.subnormals += other.subnormals
        self.overflows += other.overflows
        self.saturations += other.saturations
        self.inexact += other.inexact
        self.nans += other.nans
        self.nans_made += other.nans_made
        self.infinities += other.infinities
        return self

    def __add__(self, other: Counters) -> Counters:
        total = Counters()
        total += self
        total += other
        return total

    def share(self, event: str) -> float:
        """Return the count called ``event`` as a share of all elements; NaN when there were none."""
        names = [field.name for field in fields(self)]
        if event not in names:
            raise unknown("event", event, names)
        return float(getattr(self, event)) / self.elements if self.elements else float("nan")

    def clear(self) -> None:
        """Set every count to 0."""
        for field in fields(self):
            setattr(self, field.name, 0)
