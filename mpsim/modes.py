"""Choices by name: those that every rounding makes, and the error that explains an unknown name of any kind."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable
from typing import Self

__all__ = ["Choice", "NaN", "Overflow", "Rounding", "nearest", "unknown"]


def nearest(name: object, known: Iterable[str], count: int = 4) -> list[str]:
    """Return the names that are most like another one, the likest first; none where none is like it."""
    return difflib.get_close_matches(str(name), list(known), n=count, cutoff=0.4)


def unknown(argument: str, name: object, known: Iterable[str]) -> ValueError:
    """Return the error for a name that is none of those known: it has the nearest, and all of them."""
    names = [str(each) for each in known]
    near = nearest(name, names, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ValueError(f"{argument} is {name!r}: {hint}it must be one of {', '.join(names)}")


class Choice(enum.StrEnum):
    """A string enumeration that accepts its members by value and explains a wrong name."""

    @classmethod
    def of(cls, name: Self | str, argument: str) -> Self:
        """Return the member called ``name``; a ValueError that names ``argument`` lists the others."""
        try:
            return cls(name)
        except ValueError:
            raise unknown(argument, name, cls) from None


class Rounding(Choice):
    """Rounding-direction attributes (IEEE 754-2019, 4.3), and rounding to odd (Boldo and Melquiond 2008)."""

    NEAREST_EVEN = "nearest-even"
    NEAREST_AWAY = "nearest-away"
    TOWARD_ZERO = "toward-zero"
    UP = "up"
    DOWN = "down"
    TO_ODD = "to-odd"
    STOCHASTIC = "stochastic"
    """Up or down at random, with the probability of the distance (Croci et al. 2022)."""


class Overflow(Choice):
    """What becomes of a result beyond the largest finite number."""

    IEEE = "ieee"
    """What the format's standard says: infinity, else NaN, else the largest finite number."""
    SATURATE = "saturate"
    """The largest finite number with the sign of the result; infinite inputs too. NaNs stay."""


class NaN(Choice):
    """Which NaN a conversion gives (IEEE 754-2019, 6.2.3 leaves it open)."""

    CANONICAL = "canonical"
    """The quiet NaN without payload, with the sign of the input where the format's NaNs have one."""
    PAYLOAD = "payload"
    """Sign and leading payload bits kept, quieted: what x86's VCVTPS2PH does."""
