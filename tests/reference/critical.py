"""The inputs at which rounding can go wrong, with their results by construction.

Between two neighbouring numbers of a format nothing happens except at their midpoint. So six inputs tell everything:
the lower neighbour itself, the first source number above it, the midpoint, the source numbers on either side of the
midpoint, and the last one before the upper neighbour. Which neighbour each of them goes to can be read off from where
it stands; no arithmetic is needed.
"""

import itertools
from typing import NamedTuple

import numpy as np

from mpsim.formats import FloatFormat
from reference import rounding as twin

__all__ = ["Critical", "critical_inputs"]


class Critical(NamedTuple):
    """Inputs of both signs."""

    x: np.ndarray
    lower: np.ndarray
    """Code, without sign, of the number at or below ``abs(x)``."""
    place: np.ndarray
    """0: x is a number; 1: below the midpoint; 2: the midpoint; 3: above it."""

    def codes(self, fmt: FloatFormat, mode: str, overflow: str) -> np.ndarray:
        """Return the right codes of ``x``."""
        negative = np.signbit(self.x)
        odd = self.lower % 2 == 1
        exact, tie, above = self.place == 0, self.place == 2, self.place == 3
        match mode:
            case "nearest-even":
                away = above | (tie & odd)
            case "nearest-away":
                away = above | tie
            case "toward-zero":
                away = np.zeros_like(exact)
            case "up":
                away = ~exact & ~negative
            case "down":
                away = ~exact & negative
            case "to-odd":
                away = ~exact & ~odd
        packed = [
            [twin.pack(fmt, code, sign, mode, overflow) for code in range(twin.largest(fmt) + 2)]
            for sign in (False, True)
        ]
        return np.array(packed, dtype=twin.code_dtype(fmt))[negative.astype(int), self.lower + away]


def critical_inputs(fmt: FloatFormat, dtype: type[np.floating], stride: int = 1) -> Critical:
    """Return the six inputs for every ``stride``-th pair of neighbours, and for all near both ends of the format."""
    top = twin.largest(fmt)
    # The number after the largest is where overflow is certain.
    grid = np.array([twin.magnitude(fmt, code) / (1 << twin.SCALE) for code in range(top + 2)])
    codes = np.arange(top + 1)
    normal = twin.smallest_normal(fmt)
    codes = codes[(codes % stride == 0) | (codes < 4) | (abs(codes - normal) < 4) | (codes > top - 4)]
    lower = grid[codes].astype(dtype)
    with np.errstate(over="ignore"):
        upper = grid[codes + 1].astype(dtype)
    middle = (grid[codes] / 2 + grid[codes + 1] / 2).astype(dtype)
    assert np.array_equal(lower, grid[codes])  # float64 and float32 hold the numbers and the midpoints exactly
    assert np.array_equal(middle.astype(np.float64), grid[codes] / 2 + grid[codes + 1] / 2)
    infinity, zero = dtype(np.inf), dtype(0)
    columns = [
        (lower, 0),
        (np.nextafter(lower, infinity), 1),
        (np.nextafter(middle, zero), 1),
        (middle, 2),
        (np.nextafter(middle, infinity), 3),
        (np.nextafter(upper, zero), 3),
    ]
    for earlier, later in itertools.pairwise(columns):
        assert np.all(earlier[0] <= later[0])
    assert np.all((lower < columns[1][0]) & (columns[2][0] < middle) & (columns[5][0] < upper))
    x = np.concatenate([column for column, _ in columns])
    place = np.repeat([place for _, place in columns], codes.size)
    where = np.tile(codes, len(columns))
    if np.isfinite(upper[-1]):  # and what overflows whatever the mode
        largest = np.finfo(dtype).max
        x = np.append(x, [upper[-1], np.nextafter(upper[-1], infinity), dtype(largest)])
        place, where = np.append(place, [0, 0, 0]), np.append(where, [top + 1] * 3)
    if not fmt.has_zero:  # everything below the smallest number goes to it
        x = np.append(x, [np.nextafter(zero, infinity), lower[0] / 2, np.nextafter(lower[0], zero)])
        place, where = np.append(place, [0, 0, 0]), np.append(where, [0] * 3)
    return Critical(np.concatenate([x, -x]), np.tile(where, 2), np.tile(place, 2))
