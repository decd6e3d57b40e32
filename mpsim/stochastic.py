"""Random numbers for stochastic rounding: which ones, how many bits, and how they are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.modes import unknown
from mpsim_kernels.philox import philox_fill

__all__ = ["SCHEMES", "Draws", "DrawsLike", "as_draws", "in_blocks"]

SCHEMES = ("A", "B", "C")
"""Ways to compare the dropped fraction with N random bits R (IEEE P3109 draft, stochastic rounding).

A
    The fraction is cut to N bits and R added: up if there is a carry. Biased toward zero by up to 2**-N ulp.
B
    The fraction is cut to N + 1 bits and 2R + 1 added: unbiased for fractions of N bits or fewer.
C
    The fraction is rounded to N bits, to nearest even, and R added.
"""

_BLOCK = 1 << 14  # random words made at a time; they stay in a cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Which random numbers stochastic rounding uses.

    A draw is a function of ``seed``, ``stream`` and the position of the element in its array, in C order: the same for
    any number of threads, any memory layout and any order of calls. Two arrays rounded with the same seed and
    stream share their draws; give each array of a computation a stream of its own.

    Parameters
    ----------
    seed, stream : int
        0 to 2**64 - 1. The generator is Philox4x32-10 with ``seed`` as key and ``stream`` as the high half of the
        counter.
    bits : int, optional
        Random bits for each element. Without it all of a word: 32 for float32 sources, 64 for float64; enough for
        probabilities that are exact, but for numbers far below the smallest quantum.
    scheme : {"A", "B", "C"}
        How they are used; see `SCHEMES`. With all bits A is exact.
    """

    seed: int = 0
    stream: int = 0
    bits: int | None = None
    scheme: str = "A"

    def __post_init__(self) -> None:
        for name in ("seed", "stream"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or not 0 <= value < 1 << 64:
                raise ValueError(f"{name} is {value!r}; an integer from 0 to 2**64 - 1 is needed")
        if self.bits is not None and not 1 <= self.bits <= 31:
            raise ValueError(f"bits is {self.bits}; it must be from 1 to 31, or None for as many as there are")
        if self.scheme not in SCHEMES:
            raise unknown("scheme", self.scheme, SCHEMES)

    def counted_bits(self, width: int) -> int:
        """Return how many bits of the dropped fraction are looked at, for words of ``width`` bits."""
        if self.bits is None:
            return width
        return self.bits + (self.scheme == "B")

    def words(self, start: int, stop: int, width: int) -> NDArray[Any]:
        """Return the random words of elements ``start`` to ``stop``, their random bits at the top."""
        per_element = width // 32
        first = start * per_element & ~3
        raw = np.empty((stop * per_element - first + 3) & ~3, np.uint32)
        philox_fill(np.uint64(self.seed), np.uint64(self.stream), np.uint64(first), raw)
        words: NDArray[Any] = raw[start * per_element - first :][: (stop - start) * per_element].view(f"u{width // 8}")
        if self.bits is not None:
            unit = 1 << (width - self.bits)
            words &= words.dtype.type((1 << width) - unit)
            if self.scheme == "B":
                words |= words.dtype.type(unit >> 1)
        return words


DrawsLike: TypeAlias = "Draws | int | None"


def as_draws(rng: DrawsLike) -> Draws:
    """Return the draws that ``rng`` means: a seed, or Draws as they are.

    Raises
    ------
    TypeError
        Anything else; None too, because results must be reproducible.
    """
    if isinstance(rng, Draws):
        return rng
    if isinstance(rng, int | np.integer) and not isinstance(rng, bool):
        return Draws(seed=int(rng))
    raise TypeError(f"rng is {rng!r}; stochastic rounding needs a seed or mpsim.Draws(seed=..., stream=...)")


def in_blocks(start: int, stop: int) -> list[tuple[int, int]]:
    """Cut a range into pieces for which random words are made at a time."""
    return [(first, min(first + _BLOCK, stop)) for first in range(start, stop, _BLOCK)]
