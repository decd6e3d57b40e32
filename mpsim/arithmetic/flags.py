"""The five exceptions of IEEE 754: as a mask for one result, and counted over many."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EXCEPTIONS", "ExceptionCounts", "Flags"]


class Flags(enum.IntFlag):
    """Exceptions that an operation raised (IEEE 754-2019, 7)."""

    INEXACT = 1
    """The result differs from the exact one (7.6)."""
    UNDERFLOW = 2
    """The result is tiny and inexact (7.5), or was flushed to zero."""
    OVERFLOW = 4
    """The rounded result is beyond the largest finite number (7.4), whether it saturates or not."""
    DIVIDE_BY_ZERO = 8
    """An exact infinity from finite operands (7.3)."""
    INVALID = 16
    """There is no result: it is NaN, or what the format has for it (7.2)."""


EXCEPTIONS = tuple(str(flag.name).lower() for flag in Flags)
"""Names of the exceptions in the order of their bits."""


@dataclass
class ExceptionCounts:
    """How many operations raised each exception; only ever grows, until `clear`."""

    inexact: int = 0
    underflow: int = 0
    overflow: int = 0
    divide_by_zero: int = 0
    invalid: int = 0
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def raised(self) -> Flags:
        """The exceptions that were raised at least once."""
        return Flags(sum(flag for flag, name in zip(Flags, EXCEPTIONS, strict=True) if getattr(self, name)))

    def add(self, counts: list[int]) -> None:
        """Add counts in the order of `EXCEPTIONS`; several threads may do so at once."""
        with self._lock:
            for name, count in zip(EXCEPTIONS, counts, strict=True):
                setattr(self, name, getattr(self, name) + count)

    def clear(self) -> None:
        """Set every count to 0."""
        with self._lock:
            for name in EXCEPTIONS:
                setattr(self, name, 0)
