"""Exact twins of chains of ordinary operations: each operation rounds once, and the next one takes its result.

The first half is made to be read: one operation at a time on codes, in ``int`` and ``Fraction``. The second half,
`rounded_sums`, is the addition of two terms in arrays of int64, for millions of cases. Nothing here is shared with the
kernels; of mpsim only the fields of ``FloatFormat`` are read.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpsim.formats import get_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsim.formats import FloatFormat

FP32, FP64 = get_format("fp32"), get_format("fp64")

Array = np.ndarray[Any, Any]


def is_nan(code: int, fmt: FloatFormat = FP32) -> bool:
    return code & fmt.last_code > _inf(fmt)


def is_inf(code: int, fmt: FloatFormat = FP32) -> bool:
    return code & fmt.last_code == _inf(fmt)


def _inf(fmt: FloatFormat) -> int:
    assert fmt.inf_code is not None
    return fmt.inf_code


def default_nan(fmt: FloatFormat = FP32) -> int:
    """Return the NaN whose only fraction bit is the quiet bit, sign 0."""
    return _inf(fmt) | 1 << (fmt.m - 1)


def value(code: int, fmt: FloatFormat = FP32) -> Fraction:
    """Return the number a finite code stands for."""
    magnitude = code & fmt.last_code
    field, fraction = magnitude >> fmt.m, magnitude & ((1 << fmt.m) - 1)
    sig = fraction + (1 << fmt.m) if field else fraction
    return Fraction(-sig if code & fmt.sign_code else sig) * Fraction(2) ** (max(field, 1) - fmt.bias - fmt.m)


def flushed(code: int, fmt: FloatFormat = FP32) -> int:
    """Return the code, or the zero of its sign where it is subnormal."""
    return code & fmt.sign_code if code & fmt.last_code < 1 << fmt.m else code


def exponent_of(x: Fraction) -> int:
    """Return ``e`` with ``2**e <= |x| < 2**(e+1)``."""
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    return e if abs(x) >= Fraction(2) ** e else e - 1


def rounded(x: Fraction, fmt: FloatFormat = FP32, *, odd: bool = False, flush: bool = False) -> int:
    """Return the code of a nonzero number, rounded once: to nearest even, or to odd.

    Parameters
    ----------
    odd
        A number between two neighbours becomes the one whose last bit is 1. No finite number beyond the largest is
        rounded back to it: from ``2**(emax + 1)`` on the result is an infinity.
    flush
        What is below the normal numbers after rounding with unbounded exponent becomes a zero of its sign.
    """
    sign = fmt.sign_code if x < 0 else 0
    x = abs(x)
    free = _to_grid(x, exponent_of(x) - fmt.m, odd)
    if flush and free < Fraction(2) ** fmt.emin:
        return sign
    y = _to_grid(x, max(exponent_of(x), fmt.emin) - fmt.m, odd)
    if y >= Fraction(2) ** (fmt.emax + 1):
        return sign | _inf(fmt)
    if y < Fraction(2) ** fmt.emin:
        return sign | int(y / Fraction(2) ** (fmt.emin - fmt.m))
    e = exponent_of(y)
    return sign | (e + fmt.bias - 1 << fmt.m) + int(y / Fraction(2) ** (e - fmt.m))


def _to_grid(x: Fraction, exponent: int, odd: bool) -> Fraction:
    """Return a positive number rounded to a multiple of ``2**exponent``."""
    units = x / Fraction(2) ** exponent
    if not odd:
        return round(units) * Fraction(2) ** exponent  # Python's round takes ties to even
    below = units.numerator // units.denominator
    return (below if below == units else below | 1) * Fraction(2) ** exponent


def fma(x: int, y: int, z: int, fmt: FloatFormat = FP32, *, odd: bool = False, flush: bool = False) -> int:
    """Return the code of ``x * y + z``, rounded once; every NaN is the default NaN.

    ``flush`` takes subnormal operands for zeros of their sign, and makes tiny results such zeros.
    """
    if flush:
        x, y, z = (flushed(code, fmt) for code in (x, y, z))
    if any(is_nan(code, fmt) for code in (x, y, z)):
        return default_nan(fmt)
    sign = (x ^ y) & fmt.sign_code
    if is_inf(x, fmt) or is_inf(y, fmt):
        if 0 in (x & fmt.last_code, y & fmt.last_code) or (is_inf(z, fmt) and sign != z & fmt.sign_code):
            return default_nan(fmt)
        return sign | _inf(fmt)
    if is_inf(z, fmt):
        return z
    exact = value(x, fmt) * value(y, fmt) + value(z, fmt)
    if exact == 0:
        # Two zeros of one sign keep it; what cancels is +0.
        both_zero = value(z, fmt) == 0
        return sign if both_zero and sign == z & fmt.sign_code else 0
    return rounded(exact, fmt, odd=odd, flush=flush)


def add(x: int, y: int, fmt: FloatFormat = FP32, *, odd: bool = False, flush: bool = False) -> int:
    """Return the code of ``x + y``, as `fma` does."""
    return fma(x, fmt.bias << fmt.m, y, fmt, odd=odd, flush=flush)


def multiply(x: int, y: int, fmt: FloatFormat = FP32, *, odd: bool = False, flush: bool = False) -> int:
    """Return the code of ``x * y``, as `fma` does."""
    return fma(x, y, (x ^ y) & fmt.sign_code, fmt, odd=odd, flush=flush)


def chain(a: Sequence[int], b: Sequence[int], c: int, fmt: FloatFormat = FP32) -> int:
    """Return the code of ``c`` after ``c = fma(a[k], b[k], c)`` for increasing k; K = 0 leaves ``c`` as it is."""
    for x, y in zip(a, b, strict=True):
        c = fma(x, y, c, fmt)
    return c


def matmul(one: Any, a: Any, b: Any, c: Any) -> Array:
    """Return ``one(row, column, start)`` for every output; ``a`` [M, K], ``b`` [K, N] and ``c`` [M, N] are codes."""
    columns = [column.tolist() for column in b.T]
    rows = [[one(row, column, start) for column, start in zip(columns, starts, strict=True)]
            for row, starts in zip(a.tolist(), c.tolist(), strict=True)]  # fmt: skip
    return np.array(rows, c.dtype).reshape(c.shape)


class Terms(NamedTuple):
    """Numbers in arrays of one shape."""

    sig: Array
    """Signed significand, int64, below 2**24 in magnitude; of no meaning where ``wide`` is not finite."""
    e: Array
    """Exponent, int64: value = sig * 2**e."""
    wide: Array
    """The same in float64, which holds infinities, NaNs, and the signs of zeros."""


NOTHING = Terms(np.int64(0), np.int64(0), np.float64(-0.0))
"""What changes no number that it is added to."""


def terms(words: Array) -> Terms:
    """Return the numbers of float32 words (uint32)."""
    bits = words.astype(np.int64)
    field = bits >> 23 & 255
    sig = np.where(field != 0, bits & 0x7FFFFF | 1 << 23, bits & 0x7FFFFF)
    with np.errstate(invalid="ignore"):
        wide = words.view(np.float32).astype(np.float64)
    return Terms(np.where(bits >> 31 != 0, -sig, sig), np.maximum(field, 1) - 150, wide)


def product(x: Array, y: Array) -> Terms:
    """Return the products of float32 words that have at most 12 bits of significand each."""
    a, b = terms(x), terms(y)
    assert not ((a.sig | b.sig) & 0xFFF).any()
    with np.errstate(invalid="ignore"):
        return Terms((a.sig >> 12) * (b.sig >> 12), a.e + b.e + 24, a.wide * b.wide)


def flushed_words(words: Array) -> Array:
    """Return words (uint32), the subnormal ones replaced by zeros of their sign."""
    return np.where(words & 0x7F800000 == 0, words & 0x80000000, words)


def rounded_sums(x: Terms, y: Terms, *, odd: bool = False, flush: bool = False) -> Array:
    """Return the float32 words (uint32) of ``x + y``, rounded once as in `rounded`; every NaN is the default NaN."""
    swapped = (y.sig != 0) & ((y.e > x.e) | (x.sig == 0))
    big, small = np.where(swapped, y.sig, x.sig), np.where(swapped, x.sig, y.sig)
    e, e_small = np.where(swapped, y.e, x.e), np.where(swapped, x.e, y.e)
    distance = np.where(small != 0, e - e_small, 0)
    # 37 places below the larger exponent and a last bit for whatever lies deeper: 24 bits of result are far above.
    left = np.minimum(distance, 37)
    right = np.minimum(distance - left, 63)
    cut = small >> right
    total = ((big << left) + cut) * 2 + ((cut << right) != small)
    words = _rounded(total, e - left - 1, odd, flush)
    # No sum or product of float32 numbers leaves the exponents of float64.
    with np.errstate(invalid="ignore"):
        wide = x.wide + y.wide
    words = np.where(wide == 0, np.signbit(wide).astype(np.uint32) << 31, words)
    words = np.where(np.isinf(wide), np.where(wide > 0, 0x7F800000, 0xFF800000), words)
    return np.where(np.isnan(wide), default_nan(), words).astype(np.uint32)


def _rounded(total: Array, e: Array, odd: bool, flush: bool) -> Array:
    """Return the words of ``total * 2**e`` (int64 below 2**63 in magnitude)."""
    sign, magnitude = (total < 0).astype(np.int64) << 31, np.abs(total)
    length = np.zeros_like(magnitude)
    rest = magnitude.copy()
    for step in (32, 16, 8, 4, 2, 1):
        longer = rest >> step != 0
        length += np.where(longer, step, 0)
        rest = np.where(longer, rest >> step, rest)
    length += rest
    free = length - 24
    shift = np.maximum(free, -149 - e)
    sig = _shifted(magnitude, shift, odd)
    # sig may have become 2**24: the carry runs into the exponent field as it should.
    biased = e + shift + 150
    word = np.where(sig < 1 << 23, sig, (biased - 1 << 23) + sig)
    word = np.where(word >= 255 << 23, 255 << 23, word)
    if flush:
        unbounded = _shifted(magnitude, free, odd)
        tiny = (e + free + 150 < 0) | ((e + free + 150 == 0) & (unbounded < 1 << 24))
        word = np.where(tiny, 0, word)
    return np.where(magnitude == 0, 0, sign | word).astype(np.uint32)


def _shifted(magnitude: Array, shift: Array, odd: bool) -> Array:
    """Return ``magnitude / 2**shift`` as an integer: nearest even, or to odd."""
    deep = shift > 62  # far below half a unit: a smaller number with the same last bit will do
    magnitude = np.where(deep, magnitude >> 8 | (magnitude & 255 != 0), magnitude)
    left, right = np.maximum(-shift, 0), np.clip(shift, 0, 62)
    sig = magnitude << left >> right
    rest = (magnitude << left) - (sig << right)
    if odd:
        return sig | (rest != 0)
    half = np.int64(1) << right >> 1
    return sig + ((rest > half) | ((rest == half) & (rest > 0) & (sig & 1 != 0)))
