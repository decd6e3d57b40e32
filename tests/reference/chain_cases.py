"""Operands for chains of operations, as words of float32 (uint32), that sit where rounding changes its mind."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["BF16_KINDS", "bf16_case"]

Words = np.ndarray[Any, Any]

BF16_KINDS = ("any", "close", "low", "tiny", "edge", "midpoint", "huge", "top", "cancel", "brink", "zeros", "special")


def bf16_case(rng: np.random.Generator, m: int, k: int, n: int, kind: str) -> tuple[Words, Words, Words]:
    """Return operands [M, K] and [K, N], values of bf16, and accumulators [M, N].

    The kinds: any finite bits; close exponents; products and accumulators around the smallest normal number; products
    below it; sums on its very edge; sums half way between two subnormals, or next to it; products around the
    largest number; accumulators just below it; sums that cancel; sums that cancel where tiny
    ones begin to be possible; mostly zeros; infinities and NaNs.
    """
    a, b, c = (_finite(rng.integers(0, 1 << 32, shape, np.uint32)) for shape in ((m, k), (k, n), (m, n)))
    if kind == "close":
        a, b, c = _field(rng, a, 120, 135), _field(rng, b, 120, 135), _field(rng, c, 110, 140)
    elif kind == "low":
        a, b, c = _field(rng, a, 50, 77), _field(rng, b, 50, 77), _field(rng, c, 0, 12)
    elif kind == "tiny":
        a, b, c = _field(rng, a, 0, 70), _field(rng, b, 0, 70), _field(rng, c, 0, 3)
    elif kind == "edge":
        # 2**-126 plus a few units, and products around half a unit and a quarter of one.
        a, b = _field(rng, a, 48, 54), _field(rng, b, 52, 55)
        c = (c & 0x80000000) | 0x00800000 + rng.integers(0, 3, c.shape, np.uint32)
    elif kind == "midpoint":
        # Odd multiples of 2**-150 in the even places, and next to nothing, or nothing, in the odd ones.
        a, b = _odd_multiples(rng, a), _odd_multiples(rng, b)
        a[:, 1::2], b[1::2] = _field(rng, a[:, 1::2], 0, 30), _field(rng, b[1::2], 0, 30)
        a[:, 1::2][rng.random(a[:, 1::2].shape) < 0.2] &= 0x80000000
        c = (c & 0x80000000) | rng.integers(0, 3, c.shape, np.uint32)
    elif kind == "huge":
        a, b, c = _field(rng, a, 186, 194), _field(rng, b, 186, 194), _field(rng, c, 245, 255)
    elif kind == "top":
        a, b = _field(rng, a, 175, 182), _field(rng, b, 175, 182)
        c = (c & 0x80000000) | 0x7F7FFFFF - rng.integers(0, 4, c.shape, np.uint32)
    elif kind == "cancel":
        # Every second product takes back the one before, but for a last bit; the accumulator takes back the first.
        a, b, c = _field(rng, a, 60, 190), _field(rng, b, 100, 150), _field(rng, c, 100, 140)
        even = k // 2 * 2
        a[:, 1:even:2], b[1:even:2] = a[:, 0:even:2] ^ 0x80000000, b[0:even:2]
        b[1:even:4] ^= 0x00010000
        if k:
            c = np.where(rng.random(c.shape) < 0.5, _taken_back(rng, a, b), c)
    elif kind == "brink":
        low = int(rng.integers(64, 90))
        a, b, c = _field(rng, a, low, low + 4), _field(rng, b, low, low + 4), _field(rng, c, 0, 60)
        if k:
            c = np.where(rng.random(c.shape) < 0.5, _taken_back(rng, a, b), c)
    elif kind == "zeros":
        a, b, c = (np.where(rng.random(x.shape) < 0.6, x & 0x80000000, x) for x in (a, b, c))
    elif kind == "special":
        a, b = _field(rng, a, 100, 200), _field(rng, b, 60, 200)
        few = [0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC10000, 0xFF810000, 0x7F820000, 0x00010000]
        a, b, c = (
            np.where(rng.random(x.shape) < share, rng.choice(np.array(few, np.uint32), x.shape), x)
            for x, share in ((a, 0.05), (b, 0.05), (c, 0.3))
        )
        c[rng.random(c.shape) < 0.1] |= 0x00001234
    a, b, c = (np.ascontiguousarray(x, np.uint32) for x in (a, b, c))
    return a & 0xFFFF0000, b & 0xFFFF0000, c


def _finite(words: Words) -> Words:
    return np.where(words & 0x7F800000 == 0x7F800000, words ^ 0x40000000, words)


def _field(rng: np.random.Generator, words: Words, low: int, high: int) -> Words:
    """Return the words with other exponent fields."""
    return (words & 0x807FFFFF) | rng.integers(low, high, words.shape, np.uint32) << 23


def _taken_back(rng: np.random.Generator, a: Words, b: Words) -> Words:
    """Return accumulators that the last products, as bf16, cancel but for some last places."""
    last = np.float32(-1) * (a[:, -1:] & 0xFFFF0000).view(np.float32) * (b[-1:] & 0xFFFF0000).view(np.float32)
    return last.view(np.uint32) + rng.integers(0, 3, last.shape, np.uint32) - 1


def _odd_multiples(rng: np.random.Generator, words: Words) -> Words:
    """Return odd multiples of 2**-75 of 8 bits at most."""
    odd = rng.integers(0, 128, words.shape) * 2 + 1
    return np.ldexp(odd.astype(np.float32), -75).view(np.uint32) | (words & 0x80000000)
