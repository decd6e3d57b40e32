"""Integers beyond 2**53 rounded once to the precision of a format, where float64 has too few bits to go through."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim._arrays import bit_lengths, magnitudes
from mpsim.formats import FloatFormat
from mpsim.modes import Rounding
from mpsim.stochastic import Draws

__all__ = ["are_wide", "round_wide"]

_EXACT = 53  # bits of an integer that float64 always holds


def are_wide(x: NDArray[Any]) -> bool:
    """Return whether some elements are integers beyond 2**53."""
    if x.dtype.kind not in "iu" or x.itemsize < 8 or not x.size:
        return False
    return max(-int(x.min()), int(x.max())) > 1 << _EXACT


def round_wide(
    x: NDArray[Any], fmt: FloatFormat, rounding: Rounding, draws: Draws | None, grid: NDArray[Any]
) -> tuple[NDArray[np.float64], int]:
    """Return integers as float64, those beyond 2**53 rounded to the precision of a format, its range left out.

    Parameters
    ----------
    x : int64 or uint64 array
    fmt : FloatFormat
    rounding : Rounding
        Any, of precisions above 51; stochastic of every precision.
    draws : Draws, optional
    grid : `GRID` record for words of 64 bits
        Says which bits stochastic rounding looks at.

    Returns
    -------
    values : float64 array, shape of ``x``
        Rounding them to the format again decides over- and underflow, and changes nothing else.
    inexact : int
        How many were changed, and stay finite in the format: what that second rounding cannot count.

    Raises
    ------
    ValueError
        Integers beyond 2**53 may be subnormal in the format.
    """
    if fmt.min_normal > 1 << _EXACT:
        raise ValueError(
            f"x has integers beyond 2**53, which cannot be rounded once to {fmt} where they are subnormal, "
            f"below {fmt.min_normal:g}: convert them to float64 first"
        )
    negative, magnitude = magnitudes(x.reshape(-1))
    length = bit_lengths(magnitude)
    excess = np.where(length > _EXACT, length - np.uint64(min(fmt.p, _EXACT)), np.uint64(0))
    floor = magnitude >> excess
    rest = magnitude - (floor << excess)
    if draws is not None:
        up = _carries(rest << (np.uint64(64) - np.maximum(excess, np.uint64(1))), draws, grid)
    else:
        up = _goes_up(rounding, floor, rest, (np.uint64(1) << excess) >> np.uint64(1), negative)
    floor += up & (rest != 0)
    value = np.ldexp(floor.astype(np.float64), excess.astype(np.int64))
    kept = (value <= fmt.max_finite) & (fmt.signed | ~negative)
    return np.where(negative, -value, value).reshape(x.shape), int(np.count_nonzero((rest != 0) & kept))


def _goes_up(
    rounding: Rounding,
    floor: NDArray[np.uint64],
    rest: NDArray[np.uint64],
    half: NDArray[np.uint64],
    negative: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return where a magnitude with a rest goes to the next one."""
    odd = (floor & np.uint64(1)) != 0
    match rounding:
        case Rounding.NEAREST_EVEN:
            return np.asarray((rest > half) | ((rest == half) & odd))
        case Rounding.NEAREST_AWAY:
            return np.asarray(rest >= half)
        case Rounding.TO_ODD:
            return np.asarray(~odd)
        case Rounding.UP:
            return np.asarray(~negative)
        case Rounding.DOWN:
            return np.asarray(negative)
        case _:
            return np.zeros(rest.shape, np.bool_)


def _carries(tail: NDArray[np.uint64], draws: Draws, grid: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where a dropped fraction, at the top of its word, and the random word of its place make a carry."""
    mask, half, shift = (np.uint64(grid[name][0]) for name in ("tail_mask", "tail_half", "tail_shift"))
    nearest = np.zeros_like(tail)
    if half:
        nearest = (half - np.uint64(1)) + ((tail >> shift) & np.uint64(1))
    carry = nearest > ~tail
    kept = np.where(carry, np.uint64(0), (tail + nearest) & mask)
    return np.asarray(carry | (draws.words(0, tail.size, 64) > ~kept))
