"""How a scale follows from amax, the largest magnitude of what is scaled: each system's arithmetic, in float32.

A scale multiplies numbers before they are cast to a narrow format; its reciprocal undoes that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.counters import Counters
from mpsim.formats import FloatFormat
from mpsim.rounding import round_to
from mpsim_kernels.floating_point import default_environment

__all__ = [
    "RULES",
    "ScaleRule",
    "amax_of",
    "cast",
    "current_scale",
    "inverse_of",
    "power_below",
    "round_scaled",
    "times",
    "torchao_scale",
]

Array: TypeAlias = "NDArray[Any]"
ScaleRule: TypeAlias = Callable[[Array, float], Array]
"""From amax, float32 of any shape, and the largest number of the format, to the scales."""

_LARGEST = np.finfo(np.float32).max
_SIGNIFICAND = np.uint32(0x007FFFFF)
_TORCHAO_LEAST = 1e-12


def amax_of(x: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """Return the largest magnitudes along axes, which stay with size 1; of the whole array without axes.

    Zero where there are no elements; NaN where one is NaN, as `torch.amax` has it.
    """
    with default_environment():
        return np.asarray(np.max(np.abs(x), axis=axis, keepdims=axis is not None, initial=0), np.float32)


def power_below(scale: Array) -> Array:
    """Return scales without their significands: the power of two at or below each. NaN stays.

    Torchao and MS-AMP take a float32 logarithm instead, which next below a power of two can give that power.
    """
    words = np.asarray(scale, np.float32).view(np.uint32)
    return np.where(np.isnan(scale), scale, (words & ~_SIGNIFICAND).view(np.float32))


def inverse_of(scale: Array) -> Array:
    """Return ``1 / scale`` in float32."""
    with default_environment(), np.errstate(all="ignore"):
        return np.asarray(np.float32(1) / scale)


def current_scale(amax: Array, largest: float) -> Array:
    """Return ``largest / amax``, as Transformer Engine's kernels compute it.

    1 where amax is zero, infinite or NaN; the largest float32 where the quotient overflows.

    Examples
    --------
    >>> current_scale(np.float32([7.0, 0.0, np.inf, 1e-40]), 448.0)
    array([6.4000000e+01, 1.0000000e+00, 1.0000000e+00, 3.4028235e+38],
          dtype=float32)
    """
    amax = np.asarray(amax, np.float32)
    with default_environment(), np.errstate(all="ignore"):
        scale = np.minimum(np.float32(largest) / amax, _LARGEST)
        return np.where(np.isfinite(amax) & (amax > 0), scale, np.float32(1))


def torchao_scale(amax: Array, largest: float) -> Array:
    """Return ``largest / max(amax, 1e-12)``, divided in float64 and rounded, as torchao does.

    An infinite amax gives 0 and NaN gives NaN: the tensor is lost.
    """
    with default_environment(), np.errstate(all="ignore"):
        return np.asarray(largest / np.maximum(np.asarray(amax, np.float64), _TORCHAO_LEAST)).astype(np.float32)


RULES: dict[str, ScaleRule] = {"transformer-engine": current_scale, "torchao": torchao_scale}
"""Rules by the system whose arithmetic they are."""


def times(x: Array, scale: Array) -> Array:
    """Return ``x * scale``, rounded to float32."""
    with default_environment(), np.errstate(all="ignore"):
        return np.asarray(x * scale, np.float32)


def cast(x: Array, scale: Array, fmt: FloatFormat, counters: Counters | None = None) -> Array:
    """Return ``x * scale``, rounded to float32 and then to ``fmt``, which saturates, infinities too.

    ``counters``, where given, count what the second rounding does.
    """
    return round_to(times(x, scale), fmt, overflow="saturate", counters=counters)


def round_scaled(x: Array, fmt: FloatFormat) -> Array:
    """Return what is left of an array that is stored in a narrow format under one scale, a power of two.

    Parameters
    ----------
    x : float32 array
    fmt : FloatFormat

    Returns
    -------
    array, shape of ``x``
        Values of ``fmt`` times a power of two, in float32.

    Notes
    -----
    MS-AMP's ``ScalingTensor``: the scale is the power of two at or below the largest number of ``fmt`` over amax, and
    1 where amax is zero, infinite or NaN.

    Examples
    --------
    >>> from mpsim.formats import E4M3
    >>> round_scaled(np.float32([1e-6, 3e-9, 1e-12]), E4M3)
    array([9.5367432e-07, 3.0267984e-09, 0.0000000e+00], dtype=float32)
    """
    scale = power_below(current_scale(amax_of(x), fmt.max_finite))
    with default_environment(), np.errstate(all="ignore"):
        return np.asarray(cast(x, scale, fmt) * inverse_of(scale))
