"""Checks of the numbers in a configuration."""

from __future__ import annotations

from typing import Any

__all__ = ["at_least"]


def at_least(config: Any, **limits: float) -> None:
    """Raise a ValueError that names the first field that is below its limit, or not a number."""
    for name, limit in limits.items():
        value = getattr(config, name)
        if not value >= limit:
            raise ValueError(f"{name} is {value}; it must be at least {limit}")
