"""Operands that find faults: ordinary numbers, any bits, special values; results near underflow, overflow and zero."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim.encoding import decode, encode
from mpsim.formats import FloatFormat, get_format

__all__ = ["boundaries", "dot_operands", "fp32_accumulators", "operands", "specials", "tininess_edges"]

_Codes = NDArray[Any]


def specials(fmt: FloatFormat) -> _Codes:
    """Return codes with both signs: zeros, ends of the subnormal and normal ranges, numbers around 1, infinity, NaNs.

    Among the NaNs are quiet and signalling ones with payloads, in formats that have them.
    """
    one, m = fmt.bias << fmt.m, fmt.m
    positive = [0, 1, 2, (1 << m) - 1, 1 << m, (1 << m) + 1, one - 1, one, one + 1, one + (1 << (m - 1)), fmt.max_code]
    if fmt.inf_code is not None:
        inf = fmt.inf_code
        positive += [inf, inf + 1, inf | 1 << (m - 1), inf | (1 << m) - 1, inf | 5, inf | 1 << (m - 1) | 3]
    codes = np.array(sorted({min(code, fmt.sign_code - 1) for code in positive}), np.uint64)
    return np.concatenate([codes, codes | np.uint64(fmt.sign_code)]).astype(fmt.code_dtype)


def boundaries(source: FloatFormat, target: FloatFormat) -> _Codes:
    """Return codes of ``source`` where rounding to a narrower format of 16 bits or fewer changes: exhaustively.

    Every number of ``target``, every midpoint of neighbours, and for both the next codes of ``source`` on either side.
    """
    magnitudes = np.arange(target.max_code + 1, dtype=np.uint64).astype(target.code_dtype)
    numbers = decode(magnitudes, target).astype(np.float64)
    points = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2, [target.max_finite * (1 + 0.5**target.p)]])
    codes = encode(points, source).astype(np.int64)
    near = np.unique(np.clip(np.concatenate([codes - 1, codes, codes + 1]), 0, source.sign_code - 1))
    both = np.concatenate([near, near | source.sign_code]).astype(source.code_dtype)
    return np.concatenate([both, specials(source)])


def tininess_edges(source: FloatFormat, target: FloatFormat) -> _Codes:
    """Return codes of ``source`` around where a number is tiny before rounding to ``target``, and not after.

    Those are the smallest normal number of ``target``, and the last number that rounds to it where exponents have no
    bound; for both the next codes of ``source`` on either side, and all with both signs.
    """
    points = np.array([target.min_normal, target.min_normal * (1 - 0.5 ** (target.p + 1))])
    codes = encode(points, source).astype(np.int64)
    near = np.concatenate([codes - 1, codes, codes + 1])
    return np.concatenate([near, near | source.sign_code]).astype(source.code_dtype)


def operands(rng: np.random.Generator, fmt: FloatFormat, n: int, arity: int) -> list[_Codes]:
    """Return ``arity`` arrays of n codes, shuffled: kinds of cases in equal parts, all signs.

    Ordinary; any bits; special values; products near the smallest normal number; products near the largest; last
    operands that, added or subtracted, nearly cancel the first, or the product of the first two; and products that
    round to the smallest normal number from below.
    """
    kinds = 6 if arity == 1 else 7
    size = -(-n // kinds)
    blocks = [
        _ordinary(rng, fmt, size, arity),
        [_any(rng, fmt, size) for _ in range(arity)],
        [rng.choice(specials(fmt), size) for _ in range(arity)],
        _band(rng, fmt, size, arity, fmt.emin),
        _band(rng, fmt, size, arity, fmt.emax),
        _cancelling(rng, fmt, size, arity),
    ]
    if arity > 1:
        blocks.append(_barely_tiny(rng, fmt, size, arity))
    order = rng.permutation(kinds * size)[:n]
    return [np.concatenate(list(column))[order] for column in zip(*blocks, strict=True)]


def dot_operands(
    rng: np.random.Generator, inputs: FloatFormat, shape: tuple[int, int, int, int]
) -> tuple[_Codes, _Codes, _Codes]:
    """Return a [T, M, K], b [T, K, N] of a format, and fp32 accumulators c [T, M, N].

    Tiles take turns: ordinary numbers with an accumulator of the sum's size; any bits; special values among ordinary
    ones; products around the smallest normal number of fp32; products around the largest; accumulators that nearly
    cancel.
    """
    t, m, k, n = shape
    a, c = _ordinary(rng, inputs, t * m * k, 1)[0].reshape(t, m, k), np.empty((t, m, n), np.uint32)
    b = _ordinary(rng, inputs, t * k * n, 1)[0].reshape(t, k, n)
    fp32 = get_format("fp32")
    for i in range(t):
        kind = i % 6
        if kind == 1:
            a[i], b[i] = _any(rng, inputs, m * k).reshape(m, k), _any(rng, inputs, k * n).reshape(k, n)
        elif kind in (3, 4):
            target = fp32.emin if kind == 3 else fp32.emax
            a[i] = _scaled(rng, inputs, a[i], target // 2)
            b[i] = _scaled(rng, inputs, b[i], target - target // 2)
        if kind == 2:
            for x in (a[i], b[i]):
                x[rng.random(x.shape) < 0.2] = rng.choice(specials(inputs))
        with np.errstate(all="ignore"):
            sums = decode(a[i], inputs).astype(np.float64) @ decode(b[i], inputs).astype(np.float64)
            scale = -(1 + rng.standard_normal((m, n)) * 2.0**-20) if kind == 5 else rng.standard_normal((m, n))
            c[i] = encode(sums * scale, "fp32")
        if kind == 2:
            chosen = rng.random((m, n)) < 0.2
            c[i][chosen] = rng.choice(specials(fp32), int(chosen.sum()))
    return a, b, c


def fp32_accumulators(rng: np.random.Generator, n: int) -> NDArray[np.uint32]:
    """Return codes of accumulators: zeros of both signs, special values, and numbers of every size."""
    fp32 = get_format("fp32")
    words = rng.integers(0, 1 << 32, n, np.uint64).astype(np.uint32)
    words[0::4] = 0
    words[1::8] = rng.choice(specials(fp32), words[1::8].size)
    words[2::4] = encode(rng.standard_normal(words[2::4].size) * 4, fp32)
    return words


def _any(rng: np.random.Generator, fmt: FloatFormat, n: int) -> _Codes:
    return rng.integers(0, 1 << fmt.bits, n, np.uint64).astype(fmt.code_dtype)


def _ordinary(rng: np.random.Generator, fmt: FloatFormat, n: int, arity: int) -> list[_Codes]:
    return [encode(rng.standard_normal(n), fmt) for _ in range(arity)]


def _with_exponents(rng: np.random.Generator, fmt: FloatFormat, exponents: NDArray[np.int64]) -> _Codes:
    """Return codes with given exponents, as far as the format has them, and any sign and fraction."""
    fields = np.clip(exponents + fmt.bias, 0, (fmt.max_code >> fmt.m)).astype(np.uint64)
    fraction_and_sign = _any(rng, fmt, fields.size).astype(np.uint64) & np.uint64(fmt.sign_code | (1 << fmt.m) - 1)
    return (fields << np.uint64(fmt.m) | fraction_and_sign).astype(fmt.code_dtype)


def _scaled(rng: np.random.Generator, fmt: FloatFormat, like: _Codes, exponent: int) -> _Codes:
    return _with_exponents(rng, fmt, exponent + rng.integers(-8, 8, like.size)).reshape(like.shape)


def _band(rng: np.random.Generator, fmt: FloatFormat, n: int, arity: int, target: int) -> list[_Codes]:
    """Return factors whose products have exponents around ``target``; a third operand is around it too."""
    first = rng.integers(fmt.emin, fmt.emax + 1, n)
    near = target - first + rng.integers(-fmt.p, 3, n)
    third = target + rng.integers(-fmt.p, 3, n)
    return [_with_exponents(rng, fmt, e) for e in (first, near, third)][:arity]


def _barely_tiny(rng: np.random.Generator, fmt: FloatFormat, n: int, arity: int) -> list[_Codes]:
    """Return factors 1 + d and 1 - d, scaled, and a third operand of zero.

    The product is ``1 - d**2`` of the smallest normal number, and d is so small that it rounds to that number if
    exponents have no bound: it is tiny before rounding, and not after.
    """
    d = np.ldexp(rng.integers(1, (1 << (fmt.p - 3) // 2) + 1, n).astype(np.float64), 1 - fmt.p)
    e = rng.integers(fmt.emin + 1, 0, n)
    signs = rng.choice([-1.0, 1.0], (2, n))
    factors = [np.ldexp(signs[0] * (1 + d), e), np.ldexp(signs[1] * (1 - d), fmt.emin - e), np.zeros(n)]
    return [encode(x, fmt) for x in factors[:arity]]


def _cancelling(rng: np.random.Generator, fmt: FloatFormat, n: int, arity: int) -> list[_Codes]:
    """Return a last operand that is the others' product, a few units beside it, with either sign.

    Half of the products are around the smallest normal number, so that what is left of them is subnormal.
    """
    codes = _ordinary(rng, fmt, n, arity)
    if arity == 1:
        return codes
    e = rng.integers(fmt.emin, fmt.emin + fmt.p, n) * rng.integers(0, 2, n)
    codes[0] = encode(np.ldexp(decode(codes[0], fmt).astype(np.float64), e), fmt)
    factors = [decode(x, fmt).astype(np.float64) for x in codes[:-1]]
    product = factors[0] if arity == 2 else factors[0] * factors[1]
    last = encode(rng.choice([-1.0, 1.0], n) * product, fmt).astype(np.int64) + rng.integers(-2, 3, n)
    return [*codes[:-1], (last & ((1 << fmt.bits) - 1)).astype(fmt.code_dtype)]
