"""The exact twin of a library's walk along K and of its epilogue, one output element at a time.

A chain of the unit's instructions is a function from k to an exact value; everything around it is ordinary rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

Chain = Callable[[Sequence[int]], Fraction]


def rounded(x: Fraction, p: int, emin: int) -> Fraction:
    """Return ``x`` rounded to nearest even on p bits; no test comes near overflow."""
    if x == 0:
        return x
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    e -= abs(x) < Fraction(2) ** e
    quantum = Fraction(2) ** (max(e, emin) - p + 1)
    return round(x / quantum) * quantum


def fp32(x: Fraction) -> Fraction:
    """Return ``x`` as a float32."""
    return rounded(x, 24, -126)


def total(parts: Sequence[Fraction]) -> Fraction:
    """Return the parts added from left to right."""
    result = parts[0]
    for part in parts[1:]:
        result = fp32(result + part)
    return result


def accumulator(
    chain: Chain, k: int, splits: int, kind: str, tile: int, stripes: int, promotion: int
) -> list[Fraction]:
    """Return the partial result of each split."""
    tiles = [list(range(t, min(t + tile, k))) for t in range(0, k, tile)]
    each = -(-len(tiles) // splits)
    parts = []
    for s in range(splits):
        own = tiles[s::splits] if kind == "interleaved" else tiles[s * each : (s + 1) * each]
        width = tile // stripes
        sums = []
        for stripe in range(stripes):
            ks = [i for t in own for i in t if (i % tile) // width == stripe]
            if promotion:
                sums.append(total([Fraction(0), *(chain(ks[i : i + promotion]) for i in range(0, len(ks), promotion))]))
            else:
                sums.append(chain(ks))
        parts.append(total(sums))
    return parts


def joined(parts: list[Fraction], how: str, narrow: Callable[[Fraction], Fraction]) -> Fraction:
    """Return the sum of partial results; ``narrow`` rounds to the format of the result."""
    if how == "in-place":
        out = narrow(parts[0])
        for part in parts[1:]:
            out = narrow(fp32(out + part))
        return out
    if how == "workspace":
        return total([Fraction(0), *map(narrow, parts)])
    if how == "pairwise":
        s, h = len(parts), (len(parts) + 1) // 2
        slots = []
        for i in range(h):
            if i + h < s - 1:
                slots.append(fp32(parts[i] + parts[i + h]))
            elif i < s - 1:
                slots.append(parts[i])
        return total([parts[-1], *slots])
    return total(parts)
