"""Initial parameters, with torch's distributions."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from mpsim.formats import FormatLike
from mpsim.nn.module import Parameter

__all__ = ["RngLike", "constant", "fan_in_uniform", "normal", "uniform", "xavier_uniform"]

RngLike: TypeAlias = "np.random.Generator | int | None"
"""A generator or a seed; None gives other numbers in each run."""


def uniform(rng: np.random.Generator, bound: float, shape: tuple[int, ...], format: FormatLike) -> Parameter:
    """Return a parameter uniform in +-bound."""
    return Parameter(rng.uniform(-bound, bound, shape), format=format)


def fan_in_uniform(rng: np.random.Generator, fan_in: int, shape: tuple[int, ...], format: FormatLike) -> Parameter:
    """Return a parameter uniform in +-1/sqrt(fan_in): torch's kaiming_uniform_ with a = sqrt(5)."""
    return uniform(rng, 1 / math.sqrt(fan_in) if fan_in else 0.0, shape, format)


def xavier_uniform(rng: np.random.Generator, shape: tuple[int, int], format: FormatLike) -> Parameter:
    """Return a parameter uniform in +-sqrt(6 / (rows + columns))."""
    return uniform(rng, math.sqrt(6 / max(sum(shape), 1)), shape, format)


def normal(rng: np.random.Generator, shape: tuple[int, ...], format: FormatLike) -> Parameter:
    """Return a parameter of the standard normal distribution."""
    return Parameter(rng.normal(size=shape), format=format)


def constant(value: float, shape: tuple[int, ...], format: FormatLike) -> Parameter:
    """Return a parameter of equal elements."""
    return Parameter(np.full(shape, value), format=format)
