"""Round arrays to values of a format."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike, NDArray

from mpsim._plans import rounded
from mpsim.counters import Counters
from mpsim.formats import FormatLike
from mpsim.modes import NaN, Overflow, Rounding
from mpsim.stochastic import Draws, DrawsLike

__all__ = ["Counters", "Draws", "NaN", "Overflow", "Rounding", "round_to"]


def round_to(
    x: ArrayLike,
    fmt: FormatLike,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.IEEE,
    *,
    flush_subnormals: bool = False,
    subnormal_inputs_as_zero: bool = False,
    nan: NaN | str | int = NaN.CANONICAL,
    rng: DrawsLike = None,
    counters: Counters | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Round to values of a format.

    Parameters
    ----------
    x : array_like of real numbers, any shape and strides
        float64 and integers are rounded once, never through float32.
    fmt : FloatFormat or name
        Subnormals are rounded at its fixed quantum ``2**(emin - p + 1)``.
    rounding, overflow, flush_subnormals, subnormal_inputs_as_zero, nan, rng, counters
        As for `encode`.
    out : array of the result's shape and dtype, C-contiguous, optional
        Written and returned; may be ``x`` itself.

    Returns
    -------
    values : float32 or float64 array, shape of ``x``
        Each element is a value of ``fmt``, held exactly: the bits of ``decode(encode(x))``. The dtype is that of
        ``x``; float32 for float16 and narrower, float64 for integers and where float32 cannot hold the format.

    Raises
    ------
    TypeError
        ``x`` is not real, or ``out`` has another dtype.
    ValueError
        Unknown names; ``out`` of another shape or not contiguous.

    Notes
    -----
    Overflow and tininess are decided after rounding with unbounded exponent (IEEE 754-2019, 7.4 and 7.5).

    Examples
    --------
    >>> round_to([1 + 2**-11, 65519.0, 65520.0, 1e-8], "fp16")
    array([1.0000e+00, 6.5504e+04,        inf, 0.0000e+00])
    """
    return rounded(
        x, fmt, False, rounding, overflow, flush_subnormals, subnormal_inputs_as_zero, nan, rng, counters, out
    )
