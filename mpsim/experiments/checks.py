"""Checks of the numbers in a configuration, and of those that were measured."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["at_least", "two_standard_errors"]


def at_least(config: Any, **limits: float) -> None:
    """Raise a ValueError that names the first field that is below its limit, or not a number."""
    for name, limit in limits.items():
        value = getattr(config, name)
        if not value >= limit:
            raise ValueError(f"{name} is {value}; it must be at least {limit}")


def two_standard_errors(accuracy: float, tested: int) -> float:
    """Return the margin within which accuracies on so many examples are not told apart.

    Examples
    --------
    >>> two_standard_errors(0.5, 100)
    0.1
    """
    n = max(tested, 1)
    return 2 * math.sqrt(max(accuracy * (1 - accuracy), 1 / n) / n)
