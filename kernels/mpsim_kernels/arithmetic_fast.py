"""The common case of arithmetic without a branch, so that the compiler works on several elements at once.

A block of elements is calculated as if all operands were finite; the others, and what only some formats or settings
ask for, are marked and then calculated by `mpsim_kernels.arithmetic`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpsim_kernels._jit import inlined_kernel, inner_kernel, kernel
from mpsim_kernels.arithmetic import (
    INEXACT,
    OVERFLOW,
    UNDERFLOW,
    Layout,
    Result,
    Target,
    add,
    divide,
    fused_multiply_add,
    is_special,
    layout_of,
    multiply,
    square_root,
    target_of,
    unpack,
)
from mpsim_kernels.significands import Int, bit_length

__all__ = ["FAST", "divide_fast_loop", "fused_fast_loop", "make_fast", "square_root_fast_loop"]

FAST = ("add", "sub", "mul")
"""Operations of two operands in the order of their numbers."""

_BLOCK = 512
_SLOW = 32
"""Above all flags: the element was not calculated."""
_NOWHERE = -(1 << 20)
"""An exponent below all others."""


class _Rule(NamedTuple):
    """What is added to twice the rest before it is compared with 2**k: see `_goes_up`."""

    plus: Int
    minus: Int
    tie: Int
    tie_odd: Int
    odd: Int


@inlined_kernel
def _rule_of(t: Target) -> _Rule:
    """Return the numbers of a rounding direction."""
    away, odd = np.int64(3), np.int64(4)
    return _Rule(
        np.int64(t.way_plus >= away) - np.int64(t.way_plus == 2),
        np.int64(t.way_minus >= away) - np.int64(t.way_minus == 2),
        np.int64(t.way_plus == 1),
        np.int64(t.way_plus == 0),
        np.int64(-2) * np.int64(t.way_plus == odd),
    )


@inlined_kernel
def _goes_up(negative: Int, rest: Int, k: Int, odd: Int, rule: _Rule) -> Int:
    """Return what `rounds_up` does, without branches.

    A magnitude goes up where 2 * rest + bias > 2**k. The bias is the parity for ties to even, 1 for ties away, 2**k to
    round away from zero (any rest then exceeds), -2**k toward zero (none does), and one of these by parity for to-odd.
    """
    bias = (((rule.minus if negative else rule.plus) + rule.odd * odd) << k) + rule.tie + rule.tie_odd * odd
    return np.int64(2 * rest + bias > np.int64(1) << k)


@inlined_kernel
def _pack(negative: Int, sig: Int, e: Int, slow: Int, t: Target, rule: _Rule) -> Result:
    """Return what `pack` does, or `exactly_zero` for sig = 0; where it takes more than this, `_SLOW` for the flags.

    Here sig is less than 2**61, which leaves room for the bias in `_goes_up`.
    """
    top = bit_length(sig | 1) - 1
    above = e + top - t.emin  # binades above the smallest normal number
    drop = max(top, t.emin - e) - t.m
    k = min(max(drop, np.int64(0)), np.int64(61))
    kept = np.int64(1) if drop > 61 and sig != 0 else sig  # less than half a quantum
    floor = (kept << max(-drop, np.int64(0))) >> k
    rest = kept & ((np.int64(1) << k) - 1)
    mag = (max(above, np.int64(0)) << t.m) + floor - t.offset
    mag = np.int64(0) if sig == 0 else mag
    mag += _goes_up(negative, rest, k, mag & 1, rule)
    # With unbounded exponent only significands of all ones, one binade below, round up to the smallest normal number.
    k = max(top - t.m, np.int64(0))
    ones = np.int64(1) << (t.m + 1)
    reaches = np.int64(above == -1) & np.int64(((sig << max(t.m - top, np.int64(0))) >> k) == ones - 1)
    reaches &= _goes_up(negative, sig & ((np.int64(1) << k) - 1), k, np.int64(t.m > 0), rule)
    tiny = np.int64(above < 0) & np.int64(sig != 0) & (t.before | (reaches ^ 1))
    slow |= (
        (tiny & t.flush) | (np.int64(sig == 0) & (t.has_zero ^ 1)) | (negative & (t.signed ^ 1) & np.int64(mag != 0))
    )
    slow |= np.int64(t.offset != 0) & np.int64(e + top < t.lowest)
    flags = np.int64(INEXACT | (UNDERFLOW if tiny else 0)) if rest != 0 else np.int64(0)
    code = mag | ((negative & (t.minus_zero | np.int64(mag != 0))) << t.width)
    if mag > t.max_code:
        flags = np.int64(OVERFLOW | INEXACT)
        code = t.over_minus if negative else t.over_plus
    return Result(code, _SLOW if slow else flags)


@inlined_kernel
def _any_special(x: Int, y: Int, f: Layout) -> Int:
    return np.int64(is_special(x, f)) | np.int64(is_special(y, f))


@inlined_kernel
def _signed_sum(xs: Int, xsig: Int, ys: Int, ysig: Int) -> Int:
    """Return the sum of two numbers of sign and magnitude; -n is ~n + 1."""
    return (xsig ^ -xs) + xs + (ysig ^ -ys) + ys


@inlined_kernel
def _jam(sig: Int, k: Int) -> Int:
    """Return `shift_right_jam` for any k."""
    k = min(k, np.int64(62))
    q = sig >> k
    return q | np.int64((q << k) != sig)


@inlined_kernel
def _fast_add(x: Int, y: Int, minus: Int, f: Layout, t: Target, rule: _Rule) -> Result:
    xs, xsig, xe = unpack(x, f)
    ys, ysig, ye = unpack(y, f)
    ys ^= minus
    less = xe < ye
    d = abs(xe - ye)
    up = min(d, np.int64(30))
    larger, smaller = (ysig if less else xsig) << up, _jam(xsig if less else ysig, d - up)
    total = _signed_sum(ys if less else xs, larger, xs if less else ys, smaller)
    # Zeros of one sign keep it; all other zero sums have the sign that the direction gives.
    negative = (xs if xs == ys else t.down) if total == 0 else np.int64(total < 0)
    return _pack(negative, abs(total), max(xe, ye) - up, _any_special(x, y, f), t, rule)


@inlined_kernel
def _fast_multiply(x: Int, y: Int, f: Layout, t: Target, rule: _Rule) -> Result:
    xs, xsig, xe = unpack(x, f)
    ys, ysig, ye = unpack(y, f)
    return _pack(xs ^ ys, xsig * ysig, xe + ye, _any_special(x, y, f), t, rule)


@inlined_kernel
def _fast_fused(x: Int, y: Int, z: Int, f: Layout, t: Target, rule: _Rule) -> Result:
    xs, xsig, xe = unpack(x, f)
    ys, ysig, ye = unpack(y, f)
    zs, zsig, ze = unpack(z, f)
    ps, psig, pe = xs ^ ys, xsig * ysig, xe + ye
    # Both at 61 bits, as in `fused_multiply_add`; a zero far below all else.
    pup, zup = 61 - bit_length(psig), 61 - bit_length(zsig)
    pe = _NOWHERE if psig == 0 else pe - pup
    ze = _NOWHERE if zsig == 0 else ze - zup
    e = max(pe, ze)
    total = _signed_sum(ps, _jam(psig << pup, e - pe), zs, _jam(zsig << zup, e - ze))
    negative = (ps if ps == zs else t.down) if total == 0 else np.int64(total < 0)
    slow = _any_special(x, y, f) | np.int64(is_special(z, f))
    wide = abs(total) >> 61
    return _pack(negative, _jam(abs(total), wide), e + wide, slow, t, rule)


@inner_kernel
def _load(x: Any, start: Int, block: Any) -> None:
    """Fill a block with elements from ``start`` on, or with the only one."""
    if x.size == 1:
        block[:] = np.int64(x[0])
    else:
        part = x[start : start + block.size]
        for i in range(block.size):
            block[i] = np.int64(part[i])


@inner_kernel
def _store(codes: Any, flags: Any, start: Int, out: Any, mask: Any, counts: Any) -> None:
    """Write a block, and keep and count its flags where they are wanted."""
    part = out[start : start + codes.size]
    for i in range(codes.size):
        part[i] = codes[i]
    if mask.size:
        wanted = mask[start : start + codes.size]
        for i in range(codes.size):
            wanted[i] = flags[i]
    if counts.size:
        for k in range(5):
            raised = np.int64(0)
            for i in range(codes.size):
                raised += (flags[i] >> k) & 1
            counts[k] += raised


@functools.cache
def make_fast(op: int) -> Callable[..., None]:
    """Return ``loop(x, y, out, mask, counts, source, target)`` for an index into `FAST`.

    The arrays are those of `mpsim_kernels.arithmetic_loops`.
    """

    @kernel
    def fast_loop(x: Any, y: Any, out: Any, mask: Any, counts: Any, source: Any, target: Any) -> None:
        f, t = layout_of(source), target_of(target)
        rule = _rule_of(t)
        xs, ys = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
        codes, flags = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
        for start in range(0, out.size, _BLOCK):
            n = min(_BLOCK, out.size - start)
            _load(x, start, xs[:n])
            _load(y, start, ys[:n])
            slow = np.int64(0)
            for i in range(n):
                if op < 2:
                    codes[i], flags[i] = _fast_add(xs[i], ys[i], np.int64(op), f, t, rule)
                else:
                    codes[i], flags[i] = _fast_multiply(xs[i], ys[i], f, t, rule)
                slow |= flags[i]
            if slow & _SLOW:
                for i in range(n):
                    if flags[i] == _SLOW and op < 2:
                        codes[i], flags[i] = add(xs[i], ys[i], np.int64(op), f, t)
                    elif flags[i] == _SLOW:
                        codes[i], flags[i] = multiply(xs[i], ys[i], f, t)
            _store(codes[:n], flags[:n], start, out, mask, counts)

    return fast_loop


@kernel
def fused_fast_loop(x: Any, y: Any, z: Any, out: Any, mask: Any, counts: Any, source: Any, target: Any) -> None:
    """Write ``x * y + z``, rounded once."""
    f, t = layout_of(source), target_of(target)
    rule = _rule_of(t)
    xs, ys, zs = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    codes, flags = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    for start in range(0, out.size, _BLOCK):
        n = min(_BLOCK, out.size - start)
        _load(x, start, xs[:n])
        _load(y, start, ys[:n])
        _load(z, start, zs[:n])
        slow = np.int64(0)
        for i in range(n):
            codes[i], flags[i] = _fast_fused(xs[i], ys[i], zs[i], f, t, rule)
            slow |= flags[i]
        if slow & _SLOW:
            for i in range(n):
                if flags[i] == _SLOW:
                    codes[i], flags[i] = fused_multiply_add(xs[i], ys[i], zs[i], f, t)
        _store(codes[:n], flags[:n], start, out, mask, counts)


# Division and square root: the part that takes one step after another stands between two that do not.


@kernel
def divide_fast_loop(x: Any, y: Any, out: Any, mask: Any, counts: Any, source: Any, target: Any) -> None:
    """Write ``x / y``, rounded once."""
    f, t = layout_of(source), target_of(target)
    rule = _rule_of(t)
    xs, ys = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    codes, flags = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    dividends, divisors = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    for start in range(0, out.size, _BLOCK):
        n = min(_BLOCK, out.size - start)
        _load(x, start, xs[:n])
        _load(y, start, ys[:n])
        for i in range(n):
            _, xsig, _ = unpack(xs[i], f)
            _, ysig, _ = unpack(ys[i], f)
            dividends[i] = xsig << (62 - bit_length(xsig))
            divisors[i] = max(ysig << (30 - bit_length(ysig)), np.int64(1))
        for i in range(n):
            dividend, divisor = np.uint64(dividends[i]), np.uint64(divisors[i])
            quotient = dividend // divisor
            codes[i] = np.int64(quotient << np.uint64(1)) | np.int64(quotient * divisor != dividend)
        slow = np.int64(0)
        for i in range(n):
            negative, xsig, xe = unpack(xs[i], f)
            other, ysig, ye = unpack(ys[i], f)
            e = xe + bit_length(xsig) - ye - bit_length(ysig) - 33
            special = _any_special(xs[i], ys[i], f) | np.int64(ysig == 0)
            codes[i], flags[i] = _pack(negative ^ other, codes[i], e, special, t, rule)
            slow |= flags[i]
        if slow & _SLOW:
            for i in range(n):
                if flags[i] == _SLOW:
                    codes[i], flags[i] = divide(xs[i], ys[i], f, t)
        _store(codes[:n], flags[:n], start, out, mask, counts)


@kernel
def square_root_fast_loop(x: Any, out: Any, mask: Any, counts: Any, source: Any, target: Any) -> None:
    """Write square roots; digits are found as in `square_root`, one digit of a whole block at a time."""
    f, t = layout_of(source), target_of(target)
    rule = _rule_of(t)
    digits = t.m + 3
    xs, codes, flags = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    radicands, rests, roots = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    for start in range(0, out.size, _BLOCK):
        n = min(_BLOCK, out.size - start)
        _load(x, start, xs[:n])
        for i in range(n):
            _, sig, e = unpack(xs[i], f)
            top = bit_length(sig | 1) - 1
            radicands[i] = sig << (60 - top + ((e + top) & 1))
            rests[i] = roots[i] = np.int64(0)
        for digit in range(digits):
            down, pair_mask = max(60 - 2 * digit, 0), np.int64(3 if digit <= 30 else 0)
            for i in range(n):
                rest = (rests[i] << 2) | ((radicands[i] >> down) & pair_mask)
                trial = (roots[i] << 2) | 1
                fits = np.int64(rest >= trial)
                rests[i] = rest - (trial & -fits)
                roots[i] = (roots[i] << 1) | fits
        slow = np.int64(0)
        for i in range(n):
            negative, sig, e = unpack(xs[i], f)
            top = bit_length(sig | 1) - 1
            special = np.int64(is_special(xs[i], f)) | (negative & np.int64(sig != 0))
            root = (roots[i] << 1) | np.int64(rests[i] != 0)
            codes[i], flags[i] = _pack(negative, root, ((e + top) >> 1) - digits, special, t, rule)
            slow |= flags[i]
        if slow & _SLOW:
            for i in range(n):
                if flags[i] == _SLOW:
                    codes[i], flags[i] = square_root(xs[i], f, t)
        _store(codes[:n], flags[:n], start, out, mask, counts)
