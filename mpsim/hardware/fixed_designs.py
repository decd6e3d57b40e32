"""Designs for recordings, fixed beforehand: dot products that separate the parameters of any matrix unit.

A probe chooses each question of `mpsim.hardware.designs` by the answers to those before. A recording is made in one go
and replayed later, so its designs ask about every block length and every number of bits at once, and have no
accumulator, which torch's products do not take. Each is a row and a column, of a length that holds several blocks of
any unit known, small enough to be worked out by hand. X is a large product, s one far below it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mpsim.encoding import encode
from mpsim.formats import FloatFormat

__all__ = ["LENGTH", "fixed_designs"]

LENGTH = 64
"""Products of a design."""

_Terms = dict[int, tuple[float, float]]
"""Factors by position; elsewhere both are zero."""


def fixed_designs(a: FloatFormat, b: FloatFormat) -> tuple[NDArray[np.uint8 | np.uint16 | np.uint32], ...]:
    """Return rows [n, 64] in one format and columns [n, 64] in another, as codes.

    What each family of designs tells apart is said where it is made. Numbers that a format does not have are
    rounded to it, which makes some designs equal for narrow formats.
    """
    every = [*_kept_bits(), *_blocks(), *_rounding(), *_normalisation(), *_order(), *_extremes(a, b), *_specials(a, b)]
    left, right = (np.zeros((len(every), LENGTH)) for _ in range(2))
    for i, terms in enumerate(every):
        for k, (x, y) in terms.items():
            left[i, k], right[i, k] = x, y
    return encode(left, a), encode(right, b)


def _power(e: int) -> tuple[float, float]:
    """Return two factors whose product is 2**e, with exponents as equal as can be."""
    return 2.0 ** (e // 2), 2.0 ** (e - e // 2)


def _negative(pair: tuple[float, float]) -> tuple[float, float]:
    return -pair[0], pair[1]


def _kept_bits() -> Iterator[_Terms]:
    """X + s - X within one block: the smallest s that comes out tells the fraction bits that alignment keeps.

    With -s and 1.5 s: truncation toward zero, toward minus infinity, or rounding. Last, s comes in one block, X - X in
    a later one: whether what was accumulated joins the alignment.
    """
    for e in range(8, 38):
        x, s = _power(10), _power(10 - e)
        yield {0: x, 1: s, 2: _negative(x)}
        yield {0: x, 1: _negative(s), 2: _negative(x)}
        yield {0: x, 1: (1.5 * s[0], s[1]), 2: _negative(x)}
        yield {0: x, 1: s, 3: s}
        yield {0: s, LENGTH - 2: x, LENGTH - 1: _negative(x)}


def _blocks() -> Iterator[_Terms]:
    """X - X at the start and s at k: s is lost where k is in the same block, and kept in a later one.

    The same with X - X at a distance, which tells interleaved sums from blocks of neighbours.
    """
    x, s = _power(12), _power(-18)
    for k in range(2, LENGTH):
        yield {0: x, 1: _negative(x), k: s}
    for k in range(1, LENGTH):
        yield {0: x, k: _negative(x), (1 if k != 1 else 2): s}


def _rounding() -> Iterator[_Terms]:
    """1 and small parts around half of the last bit of 24 and of 14: how a sum is converted, for both signs."""
    for p in (8, 11, 14, 22, 24):
        for parts in ((-p,), (-p, -p - 1), (1 - p, -p), (-p - 1,), (-p - 1, -p - 2)):
            for sign in (1.0, -1.0):
                yield {0: (sign, 1.0)} | {
                    i + 1: (sign * 2.0 ** (e // 2), 2.0 ** (e - e // 2)) for i, e in enumerate(parts)
                }


def _normalisation() -> Iterator[_Terms]:
    """1.5 * 1.5 and 1 * 2.25 with parts of the last kept bit: whether a product is shifted to one digit first."""
    for e in range(10, 27):
        yield {0: (1.5, 1.5), 1: _power(-e), 2: _power(-e)}
        yield {0: (1.0, 2.25), 1: _power(-e), 2: _power(-e)}


def _order() -> Iterator[_Terms]:
    """Many small products before, after and around a large one: in which order they meet it."""
    for e in (12, 14, 20, 24, 26):
        small = {k: _power(-e) for k in range(LENGTH)}
        for k in (0, 1, 7, 8, 31, 32, LENGTH - 1):
            yield small | {k: (1.0, 1.0)}
            yield small | {k: (-1.0, 1.0)}


def _extremes(a: FloatFormat, b: FloatFormat) -> Iterator[_Terms]:
    """Subnormal operands and results, the largest numbers, and differences at the bottom: flushing and the floor."""
    tiny, least = a.min_subnormal, b.min_subnormal
    yield {0: (tiny, 1.0)}
    yield {0: (1.0, least)}
    yield {0: (-tiny, least)}
    yield {0: (tiny, b.max_finite)}
    yield {0: (a.min_normal, 0.5), 1: (tiny, 1.0)}
    yield {0: (a.max_finite, b.max_finite)}
    yield {0: (a.max_finite, b.max_finite), 1: (-a.max_finite, b.max_finite)}
    yield {0: (a.max_finite, b.max_finite), LENGTH - 1: (-a.max_finite, b.max_finite)}
    yield dict.fromkeys(range(LENGTH), (a.max_finite, b.max_finite))
    yield {0: (a.max_finite, 1.0), 1: (a.max_finite, 2.0**-10)}
    smallest = math.frexp(tiny)[1] + math.frexp(least)[1] - 2  # exponent of the smallest product
    for e in range(max(smallest + 25, -140), max(smallest + 49, -116)):
        for gap in (22, 23, 24, 25):
            yield {0: _power(e), 1: _negative(_power(e - gap))}


def _specials(a: FloatFormat, b: FloatFormat) -> Iterator[_Terms]:
    """Signed zeros; infinities and NaNs alone, with zeros, and against each other."""
    yield {0: (-0.0, 1.0)}
    yield dict.fromkeys(range(LENGTH), (-0.0, 1.0))
    yield {0: (1.0, 1.0), 1: (-1.0, 1.0)}
    inf, nan = math.inf, math.nan
    if a.inf_code is not None:
        yield from ({0: (inf, 1.0)}, {0: (-inf, 1.0)}, {0: (inf, 0.0)}, {0: (inf, 1.0), 1: (-inf, 1.0)})
        yield {0: (inf, 1.0), LENGTH - 1: (-inf, 1.0)}
    if b.inf_code is not None:
        yield {5: (0.0, inf)}
    if a.nan_code is not None and b.nan_code is not None:
        yield from ({0: (nan, 1.0)}, {3: (1.0, nan)}, {0: (nan, 0.0), 1: (1.0, 1.0)})
