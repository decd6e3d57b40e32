"""How much of a signal quantisation leaves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["sqnr"]


def sqnr(exact: NDArray[Any], got: NDArray[Any]) -> float:
    """Return the signal to quantisation noise in dB: squares of exact numbers over those of the errors.

    Parameters
    ----------
    exact, got : real arrays of one shape

    Returns
    -------
    float
        Infinite where nothing differs; minus infinity where an error is not finite, or nothing is exact but zeros.

    Notes
    -----
    Equal infinities are no error, nor is NaN for NaN, and neither counts as signal.

    Examples
    --------
    >>> sqnr(np.array([10.0, np.inf]), np.array([9.0, np.inf]))
    20.0
    """
    x, y = np.asarray(exact, np.float64), np.asarray(got, np.float64)
    with np.errstate(all="ignore"):
        error = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, y - x)
        noise = float(np.sum(error * error))
        signal = float(np.sum(np.square(x, where=np.isfinite(x), out=np.zeros_like(x))))
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal and math.isfinite(noise) else -math.inf
