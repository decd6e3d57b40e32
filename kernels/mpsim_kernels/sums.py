"""Sums and dot products of codes: rounded at every step in a chosen order, or exactly and once.

Arrays are [rows, n] and contiguous; each row gives one result. An empty ``y`` [0, 0] asks for the sum of ``x`` alone.
``mask`` (uint8 [rows] or empty) receives the flags of all steps of a row together, ``counts`` (int64 [5] or empty) how
often each flag was raised by a step.
"""

from typing import Any

import numpy as np

from mpsim_kernels._jit import inlined_kernel, inner_kernel, kernel
from mpsim_kernels.arithmetic import (
    INVALID,
    Layout,
    Result,
    Target,
    add,
    exactly_zero,
    fused_multiply_add,
    is_infinite,
    is_nan,
    is_negative,
    is_signalling,
    is_special,
    layout_of,
    multiply,
    pack,
    pack_infinity,
    target_of,
    unpack,
)
from mpsim_kernels.arithmetic_loops import record, tally
from mpsim_kernels.significands import Int, bit_length

__all__ = ["exact_rows", "kahan_rows", "ordered_rows", "pairwise_rows"]


@inlined_kernel
def _term(x: Any, y: Any, r: Int, i: Int, counts: Any, f: Layout, t: Target) -> Result:
    """Return the term i of row r: an element, or a rounded product."""
    if y.size == 0:
        return Result(np.int64(x[r, i]), np.int64(0))
    code, flags = multiply(np.int64(x[r, i]), np.int64(y[r, i]), f, t)
    tally(flags, counts)
    return Result(code, flags)


@inlined_kernel
def _add(a: Int, b: Int, minus: Int, counts: Any, f: Layout, t: Target) -> Result:
    code, flags = add(a, b, np.int64(minus), f, t)
    tally(flags, counts)
    return Result(code, flags)


@inner_kernel
def _nothing(n: Int, t: Target) -> Result:
    """Return what a sum starts from, with the flags that the sum of no terms raises."""
    code, flags = exactly_zero(np.int64(0), t)
    return Result(code, np.int64(0) if n else flags)


@kernel
def ordered_rows(
    x: Any, y: Any, out: Any, mask: Any, counts: Any, source: Any, target: Any, chunk: Int, fused: Int
) -> None:
    """Add chunks of ``chunk`` terms one after another, and the sums of chunks one after another.

    With ``fused`` 1 each further product of a chunk is added by a fused multiply-add.
    """
    f, t = layout_of(source), target_of(target)
    rows, n = x.shape
    for r in range(rows):
        total, seen = _nothing(n, t)
        for start in range(0, n, chunk):
            part, flags = _term(x, y, r, start, counts, f, t)
            seen |= flags
            for i in range(start + 1, min(start + chunk, n)):
                if fused:
                    part, flags = fused_multiply_add(np.int64(x[r, i]), np.int64(y[r, i]), part, f, t)
                    tally(flags, counts)
                    seen |= flags
                else:
                    term, product_flags = _term(x, y, r, i, counts, f, t)
                    part, flags = _add(part, term, 0, counts, f, t)
                    seen |= flags | product_flags
            if start == 0:
                total = part
            else:
                total, flags = _add(total, part, 0, counts, f, t)
                seen |= flags
        out[r] = total
        if mask.size:
            mask[r] = seen


@kernel
def pairwise_rows(x: Any, y: Any, out: Any, mask: Any, counts: Any, source: Any, target: Any) -> None:
    """Add neighbours, then neighbouring sums, level by level; an odd last one goes up as it is."""
    f, t = layout_of(source), target_of(target)
    rows, n = x.shape
    level = np.zeros(max(n, 1), np.int64)
    for r in range(rows):
        level[0], seen = _nothing(n, t)
        for i in range(n):
            level[i], flags = _term(x, y, r, i, counts, f, t)
            seen |= flags
        left = n
        while left > 1:
            for i in range(left // 2):
                level[i], flags = _add(level[2 * i], level[2 * i + 1], 0, counts, f, t)
                seen |= flags
            if left % 2:
                level[left // 2] = level[left - 1]
            left = (left + 1) // 2
        out[r] = level[0]
        if mask.size:
            mask[r] = seen


@kernel
def kahan_rows(x: Any, y: Any, out: Any, mask: Any, counts: Any, source: Any, target: Any) -> None:
    """Add terms one after another and carry what each addition lost (Kahan 1965), every step rounded."""
    f, t = layout_of(source), target_of(target)
    rows, n = x.shape
    for r in range(rows):
        zero, seen = _nothing(n, t)
        total, lost = zero, zero
        for i in range(n):
            term, flags = _term(x, y, r, i, counts, f, t)
            if i == 0:
                total = term
                seen |= flags
                continue
            wanted, flags_1 = _add(term, lost, 1, counts, f, t)
            new, flags_2 = _add(total, wanted, 0, counts, f, t)
            gained, flags_3 = _add(new, total, 1, counts, f, t)
            lost, flags_4 = _add(gained, wanted, 1, counts, f, t)
            total = new
            seen |= flags | flags_1 | flags_2 | flags_3 | flags_4
        out[r] = total
        if mask.size:
            mask[r] = seen


# The exact sum: a fixed-point number as long as the range of the terms (Kulisch), in limbs of 32 bits each held in an
# int64, so that 2**30 terms can be added before a carry must be passed on.

_MASK = (1 << 32) - 1
_TERMS_BEFORE_CARRY = 1 << 30


@inner_kernel
def _deposit(limbs: Any, negative: Int, sig: Int, position: Int) -> None:
    """Add ``sig * 2**position`` to the limbs; 0 <= sig < 2**62."""
    k, shift = position >> 5, position & 31
    low = (sig & _MASK) << shift
    high = ((sig >> 32) << shift) + (low >> 32)
    sign = np.int64(-1) if negative else np.int64(1)
    limbs[k] += sign * (low & _MASK)
    limbs[k + 1] += sign * (high & _MASK)
    limbs[k + 2] += sign * (high >> 32)


@inner_kernel
def _carry(limbs: Any) -> None:
    """Bring every limb but the last to 0 .. 2**32 - 1; the last then has the sign of the number."""
    for k in range(limbs.size - 1):
        limbs[k + 1] += limbs[k] >> 32
        limbs[k] &= _MASK


@inner_kernel
def _round_limbs(limbs: Any, exponent: Int, t: Target) -> Result:
    """Return the rounded number ``limbs * 2**exponent``, which is not zero after `_carry`."""
    negative = np.int64(limbs[limbs.size - 1] < 0)
    if negative:
        for k in range(limbs.size):
            limbs[k] = -limbs[k]
        _carry(limbs)
    k = limbs.size - 1
    while k > 1 and limbs[k] == 0:
        k -= 1
    # 61 bits from the highest one down; the rest jams.
    used = bit_length(limbs[k])
    if used == 0:
        return pack(negative, limbs[0], exponent, t)
    sig = (limbs[k] << (61 - used)) | ((limbs[k - 1] << 29) >> used)
    below = limbs[k - 1] & ((np.int64(1) << max(used - 29, 0)) - 1)
    position = 32 * k - (61 - used)
    if k > 1 and used < 29:
        sig |= limbs[k - 2] >> (used + 3)
        below |= limbs[k - 2] & ((np.int64(1) << (used + 3)) - 1)
        k -= 1
    for j in range(k - 1):
        below |= limbs[j]
    return pack(negative, sig | np.int64(below != 0), exponent + position, t)


@kernel
def exact_rows(
    x: Any, y: Any, out: Any, mask: Any, counts: Any, source: Any, target: Any, exponent: Int, limbs_needed: Int
) -> None:
    """Round the exact sum once; every term is a multiple of ``2**exponent``.

    Infinities and NaNs give what adding them in any order would.
    """
    f, t = layout_of(source), target_of(target)
    rows, n = x.shape
    limbs = np.zeros(limbs_needed, np.int64)
    products = y.size > 0
    for r in range(rows):
        limbs[:] = 0
        nan = invalid = plus_infinity = minus_infinity = plus_zero = minus_zero = False
        for i in range(n):
            a = np.int64(x[r, i])
            b = np.int64(y[r, i]) if products else a
            if is_special(a, f) or is_special(b, f):
                if is_nan(a, f) or is_nan(b, f):
                    nan = True
                    invalid = invalid or is_signalling(a, f) or is_signalling(b, f)
                    continue
                _, asig, _ = unpack(a, f)
                _, bsig, _ = unpack(b, f)
                if (not is_infinite(a, f) and asig == 0) or (not is_infinite(b, f) and bsig == 0):
                    invalid = True
                elif is_negative(a, f) ^ (is_negative(b, f) if products else 0):
                    minus_infinity = True
                else:
                    plus_infinity = True
                continue
            negative, sig, e = unpack(a, f)
            if products:
                other_negative, other_sig, other_e = unpack(b, f)
                negative, sig, e = negative ^ other_negative, sig * other_sig, e + other_e
            if sig != 0:
                _deposit(limbs, negative, sig, e - exponent)
                plus_zero = minus_zero = True  # if all cancels, zero has no sign of its own
            elif negative:
                minus_zero = True
            else:
                plus_zero = True
            if i % _TERMS_BEFORE_CARRY == _TERMS_BEFORE_CARRY - 1:
                _carry(limbs)
        _carry(limbs)
        if nan or invalid or (plus_infinity and minus_infinity):
            code = t.nan
            flags = np.int64(INVALID if invalid or not nan else 0)
        elif plus_infinity or minus_infinity:
            code, flags = pack_infinity(np.int64(minus_infinity), t)
        elif np.any(limbs != 0):
            code, flags = _round_limbs(limbs, exponent, t)
        else:
            negative = np.int64(t.down) if plus_zero and minus_zero else np.int64(minus_zero)
            code, flags = exactly_zero(negative, t)
        out[r] = code
        record(flags, r, mask, counts)
