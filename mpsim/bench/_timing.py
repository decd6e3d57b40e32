"""The clock of every benchmark, and peers that may not be installed."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

__all__ = ["best", "module", "seconds"]


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def best(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the least time of each call, taken in turn after one that is not counted."""
    for call in calls.values():
        call()
    rounds = [{name: seconds(call) for name, call in calls.items()} for _ in range(repeats)]
    return {name: min(times[name] for times in rounds) for name in calls}


def module(name: str) -> Any:
    """Return an optional module, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
