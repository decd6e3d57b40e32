"""What a run should be told: misuse and trouble that training goes through without an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mpsim.modes import Choice

__all__ = ["Kind", "Notice", "Notices"]


class Kind(Choice):
    """What a notice is about."""

    SCALE_BELOW_ONE = "scale below 1"
    """The scale shrinks gradients by now: overflow has another cause than a scale that is too large."""
    SKIP_RATE = "skip rate"
    """A large share of the last steps was skipped."""
    FORWARD = "forward pass not finite"
    """The loss itself is infinite or NaN, which no scale can help."""
    CLIPPED = "clipped before unscaling"
    """Gradients were clipped while they were scaled, so the limit was off by the factor of the scale."""
    BUFFERS = "buffers changed by a skipped step"
    """Running statistics moved in a forward pass whose step was skipped."""
    STALE_CAST = "stale cached cast"
    """A weight changed inside an autocast region that goes on using the cast of its old values."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened, once or more often."""

    kind: Kind
    subject: str
    """Which tensor or buffer; empty where it is the run as a whole."""
    message: str
    """What was seen the first time."""
    first: int
    """Step in which it was seen first, counted from 0."""
    last: int
    times: int = 1

    def __str__(self) -> str:
        steps = f"step {self.first}" if self.times == 1 else f"steps {self.first} to {self.last}, {self.times} times"
        return f"{self.kind} ({steps}): {self.message}"


class Notices:
    """Notices in the order in which they came up; the same thing again counts up the one that is there.

    Examples
    --------
    >>> notices = Notices()
    >>> notices.add("scale below 1", 7, "the scale is 0.5")
    >>> notices.add("scale below 1", 9, "the scale is 0.25")
    >>> print(notices)
    scale below 1 (steps 7 to 9, 2 times): the scale is 0.5
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Kind, str], Notice] = {}

    def add(self, kind: Kind | str, step: int, message: str, subject: str = "") -> None:
        """Take note of something."""
        kind = Kind.of(kind, "kind")
        old = self._found.get((kind, subject))
        new = (
            Notice(kind, subject, message, step, step) if old is None else replace(old, last=step, times=old.times + 1)
        )
        self._found[kind, subject] = new

    def of(self, kind: Kind | str) -> tuple[Notice, ...]:
        """Return the notices of one kind."""
        kind = Kind.of(kind, "kind")
        return tuple(notice for notice in self if notice.kind is kind)

    def __iter__(self) -> Iterator[Notice]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)

    def __str__(self) -> str:
        return "\n".join(map(str, self))
