"""Round float32 or float64 words to a format, once, on integers alone.

One loop serves many formats: their numbers come in as a `GRID` record, so nothing is compiled anew for another
format. What shapes a loop - the width of the source, the rounding mode, whether codes or values come out, whether
events are counted, and which of three shapes the format has - is fixed when the loop is made.

All work is on unsigned words. Neither the rounding mode nor the flush bits of the processor can change a
result, and signalling NaNs pass unharmed.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mpsim_kernels._jit import kernel
from mpsim_kernels.bits import shl, shr

__all__ = [
    "ALIGNED",
    "ANY_BUT_DRAWN",
    "ANY_MODE",
    "EACH",
    "EVENTS",
    "FEW",
    "GENERAL",
    "GRID",
    "MODES",
    "NARROW",
    "NONE",
    "make_rounder",
]

MODES = ("nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd", "stochastic")
"""Rounding modes in the order of their numbers."""

EVENTS = (
    "zeros",
    "underflows",
    "subnormals",
    "overflows",
    "saturations",
    "inexact",
    "nans",
    "nans_made",
    "infinities",
)
"""What a counting loop adds up, in the order of its ``counts``."""

ANY_MODE, ANY_BUT_DRAWN = -1, -2
"""The mode of the grid, looked up as the loop runs; the second is faster, and not for the stochastic mode."""

NONE, EACH, FEW = range(3)
"""What a loop counts."""

ALIGNED, NARROW, GENERAL = range(3)
"""Shapes of a format, seen from the source.

ALIGNED
    The exponents of the source, subnormals included: the same bits are dropped from every word.
NARROW
    Half the smallest quantum is a normal number of the source, so that the source's own subnormals are all alike; and
    one bit is dropped, or more.
    Both these shapes have signed zeros and NaNs and keep subnormals, and the code of an overflow is that of the
    largest number or the next one.
GENERAL
    Anything: no sign, no negative zero, no subnormals or flushed ones, one NaN or none.
"""

GRID = np.dtype(
    [
        ("m", np.int32),  # fraction bits of the format
        ("bias", np.int32),  # its exponent bias, one more in a format without subnormals
        ("mode", np.int32),  # index of the rounding mode, for loops that are made for any
        ("signed", np.bool_),
        ("has_zero", np.bool_),
        ("has_nan", np.bool_),
        ("offset", np.uint64),  # 2**m in a format without subnormals: as if it had one binade more below; else 0
        ("sign", np.uint64),  # pattern of the sign bit
        ("sign_shift", np.uint64),  # which bit that is
        ("minus_zero", np.uint64),  # pattern of a negative result that rounds to zero
        ("min_pattern", np.uint64),  # pattern of the smallest positive number
        ("min_normal", np.uint64),  # pattern of the smallest normal number
        ("max_pattern", np.uint64),  # pattern of the largest finite number
        ("over_plus", np.uint64),  # patterns of overflows
        ("over_minus", np.uint64),
        ("inf_plus", np.uint64),  # patterns that infinities give
        ("inf_minus", np.uint64),
        ("nan_plus", np.uint64),  # patterns that NaNs give
        ("nan_minus", np.uint64),
        ("payload_shift", np.uint64),  # how far a NaN's fraction is shifted into the pattern, to keep its payload
        ("payload_mask", np.uint64),  # which bits of it are kept; 0 for none
        ("flush_plus", np.uint64),  # source words below which a result is tiny and flushed to zero; 0 keeps subnormals
        ("flush_minus", np.uint64),
        ("flush_result", np.uint64),  # patterns below which a stochastic result is flushed to zero
        ("daz_below", np.uint64),  # source words below which a number is read as zero
        ("tail_mask", np.uint64),  # stochastic: which bits of the dropped fraction count, from the top
        ("tail_half", np.uint64),  # half of the last of them, if they are rounded to nearest even; 0 if cut
        ("tail_shift", np.uint64),  # where the last of them is
        ("gap_end", np.uint64),  # source word of the smallest number, in a format without subnormals; else 0
        ("gap_plus", np.uint64),  # source words from which a number below gap_end goes up to the smallest number
        ("gap_minus", np.uint64),
    ]
)
"""A format as seen from one kind of source word; kernels take an array of one such record.

A *pattern* is what the loop writes: a code, or the word of a float of the source's width. Patterns without
sign grow with the magnitude that they stand for, so they compare as the values do.
"""


@functools.cache
def make_rounder(width: int, mode: int, codes: bool, counted: int, shape: int) -> Callable[..., None]:
    """Return ``rounder(x, out, grid, random, counts)`` for one kind of source and result.

    Parameters
    ----------
    width
        32 or 64: bits of a source word.
    mode
        0 for nearest-even, 6 for stochastic, or `ANY_BUT_DRAWN`; for the shape GENERAL also `ANY_MODE`. Each
        takes a second to compile, so the modes that are used less share a loop.
    codes
        Write codes of the format, rather than floats of the source's width.
    counted
        `EACH` adds events to ``counts``, an int64 array in the order of `EVENTS`. `FEW` does the same in half the time
        for numbers no larger than the largest of the format, and puts the largest source word behind them, so that
        the caller can tell. `NONE` counts nothing. FEW is for nearest-even and not for the shape GENERAL.
    shape
        ALIGNED, NARROW or GENERAL.

    Returns
    -------
    kernel
        ``x``: source words [n]; ``out``: unsigned integers [n] that hold a pattern; ``random``: for the stochastic
        mode, words [n] of the source's width whose top bits are random; all contiguous.
        A grid for 32-bit sources must have ``m <= 23``, ``bias <= 127`` and ``offset == 0``, so that numbers that
        are subnormal in float32 are not normal in the format.
    """
    U: Any = np.uint32 if width == 32 else np.uint64
    S: Any = np.int32 if width == 32 else np.int64
    F = 23 if width == 32 else 52
    F_WORD, F_SIGNED, DEEPEST, ALL_DROPPED = U(F), S(F), S(F + 2), U(F + 1)
    LARGEST = len(EVENTS)
    HIDDEN, FRACTION = U(1 << F), U((1 << F) - 1)
    INF = U((2 ** (width - 1 - F) - 1) << F)
    MAGNITUDE, SIGN, TOP = U((1 << (width - 1)) - 1), U(1 << (width - 1)), U(width - 1)
    ALL = U(2**width - 1)
    BIAS = S(127 if width == 32 else 1023)
    ZERO, ONE, ZERO_SIGNED, ONE_SIGNED = U(0), U(1), S(0), S(1)
    WIDTH, WIDTH_WORD, LAST = S(width), U(width), S(width - 1)
    EVEN, DRAWN = mode == 0, mode == 6

    @kernel
    def rounder(x: Any, out: Any, grid: Any, random: Any, counts: Any) -> None:
        g = grid[0]
        m, bias, offset = S(g["m"]), S(g["bias"]), U(g["offset"])
        signed, has_zero, has_nan = g["signed"], g["has_zero"], g["has_nan"]
        sign, minus_zero, sign_shift = U(g["sign"]), U(g["minus_zero"]), U(g["sign_shift"])
        min_pattern, min_normal, max_pattern = U(g["min_pattern"]), U(g["min_normal"]), U(g["max_pattern"])
        over_plus, over_minus = U(g["over_plus"]), U(g["over_minus"])
        inf_plus, inf_minus = U(g["inf_plus"]), U(g["inf_minus"])
        nan_plus, nan_minus = U(g["nan_plus"]), U(g["nan_minus"])
        payload_shift, payload_mask = U(g["payload_shift"]), U(g["payload_mask"])
        flush_plus, flush_minus = U(g["flush_plus"]), U(g["flush_minus"])
        gap_end, gap_plus, gap_minus = U(g["gap_end"]), U(g["gap_plus"]), U(g["gap_minus"])
        daz_below, flush_result = U(g["daz_below"]), U(g["flush_result"])
        tail_mask, tail_half, tail_shift = U(g["tail_mask"]), U(g["tail_half"]), U(g["tail_shift"])
        which = g["mode"] if mode < 0 else mode
        keep = S(F_SIGNED - m)
        rebias = S(S(BIAS - bias) + ONE_SIGNED)
        m_unsigned, keep_unsigned = U(m), U(keep)
        sign_down = U(TOP - sign_shift)
        # The modes without branches: 1 where a sign goes up at all, and where odd numbers do not; and from which
        # rest on: any, a tie, a tie above an odd number, else more than a tie.
        moves_plus = ONE if which != 2 and which != 4 else ZERO
        moves_minus = ONE if which != 2 and which != 3 else ZERO
        odd_stays = ONE if which == 5 else ZERO
        any_rest = ALL if which >= 3 else ZERO
        any_tie, odd_tie = ONE if which == 1 else ZERO, ONE if which == 0 else ZERO
        if shape == ALIGNED:
            dropped = U(shl(ONE, keep_unsigned) - ONE)  # which bits are
            last = ONE if keep_unsigned != ZERO else ZERO
            # What is added before the bits are dropped: all ones goes up from any rest on.
            lift = U(shr(dropped, ONE) + U(last & any_tie)) if which < 2 else dropped
            lift_plus = lift if moves_plus != ZERO else ZERO
            lift_minus = lift if moves_minus != ZERO else ZERO
        elif shape == NARROW:
            normal, deep = shl(U(rebias), F_WORD), U(keep + rebias)  # normal: word of the smallest normal number
            # Half the smallest quantum goes to zero itself, to nearest even; to nearest away, what is less.
            least = U(shl(U(deep - ALL_DROPPED), F_WORD) - any_tie)
            # The rest, at the top of a word, above which a number goes up.
            limit = ZERO if which >= 3 else U(SIGN - any_tie)
            limit_plus = limit if moves_plus != ZERO else ALL
            limit_minus = limit if moves_minus != ZERO else ALL
        # A 1 that the compiler does not know is one instruction where it is added to some lanes alone, not two.
        one = ONE if shape == GENERAL else shr(sign, sign_shift)
        # Two 64-bit words cut to 32 bits would be chosen from before they are cut.
        over_plus_bare, over_minus_bare = U(min(over_plus, MAGNITUDE)), U(over_minus & U(~sign))
        zeros = underflows = subnormals = overflows = ZERO
        saturations = inexacts = nans = nans_made = infinities = largest = ZERO

        for i in range(x.size):
            word = x[i]
            negative = word > MAGNITUDE
            a = U(word & MAGNITUDE)
            if shape == GENERAL and a < daz_below:
                a = ZERO

            # 1. The significand as an integer, and how many of its bits to drop.
            if shape == ALIGNED:
                sig = a  # with its exponent: the significand's carry steps it, and the dropped bits are the same
                k = keep_unsigned
                base = ZERO
            elif shape == NARROW:
                # What is less than half the smallest quantum rounds as that does, unless it is drawn.
                b = a if DRAWN else U(max(a, least))
                e = U(min(U(b & INF), normal))
                # Above it stay the binades beyond the smallest normal one, so that carries step the exponent.
                sig = U(U(b - e) + HIDDEN)
                depth = U(deep - shr(e, F_WORD))
                k = U(min(depth, ALL_DROPPED)) if DRAWN else depth
                base = ZERO
                if not EVEN:
                    sig = sig if a != ZERO else ZERO
            else:
                field = S(shr(a, F_WORD))
                is_normal = a >= HIDDEN
                sig = U(U(a & FRACTION) | (HIDDEN if is_normal else ZERO))
                field = field if is_normal else ONE_SIGNED
                above = S(field - rebias)  # binades above the smallest normal one
                drop = max(S(keep - above), keep)
                k = U(min(drop, DEEPEST))  # from there on the number is below half the smallest quantum
                # Fields and fractions are adjacent in a code, so a carry out of the fraction steps the exponent.
                base = shl(U(max(above, ZERO_SIGNED)), m_unsigned)

            # 2. Drop them.
            floor = shr(sig, k)
            if shape == ALIGNED:
                rest = U(sig & dropped)
            elif shape == NARROW and not DRAWN:
                rest = shl(sig, U(WIDTH_WORD - k))  # at the top of the word
            else:
                rest = U(sig - shl(floor, k))
            if shape == GENERAL and (mode == ANY_BUT_DRAWN or which != 6):
                # The parity of the code decides, which is the exponent's where there is no fraction (p = 1).
                odd = U(U(U(floor + base) + offset) & ONE)
                moves = U((moves_minus if negative else moves_plus) & U(ONE ^ U(odd & odd_stays)))
                more = U(U(U(shl(ONE, k) - ONE) & any_rest) + U(U(odd & odd_tie) + any_tie))
                q = U(floor + U(moves & U(U(U(rest + rest) + more) > shl(ONE, k))))
            elif EVEN and shape == ALIGNED:
                q = shr(U(U(sig + lift) + U(floor & last)), k)
            elif EVEN:
                q = U(floor + one) if U(rest | U(floor & ONE)) > SIGN else floor
            elif not DRAWN and shape == ALIGNED:
                added = ZERO if U(floor & odd_stays) != ZERO else (lift_minus if negative else lift_plus)
                q = shr(U(U(sig + added) + U(floor & U(last & odd_tie))), k)
            elif not DRAWN and shape == NARROW:
                goes_up = U(rest | U(floor & odd_tie)) > (limit_minus if negative else limit_plus)
                q = U(floor + U(one ^ U(floor & odd_stays))) if goes_up else floor
            else:
                # What is dropped, as a binary fraction of the word's width, against a random one.
                deepest = keep if shape == ALIGNED else (S(depth) if shape == NARROW else drop)
                beyond = S(deepest - WIDTH)
                up, down = U(min(max(S(-beyond), ZERO_SIGNED), LAST)), U(min(max(beyond, ZERO_SIGNED), LAST))
                tail = shr(shl(rest, up), down)
                # Cut to the bits that count, or rounded to them; then up if a sum with the random word would carry.
                nearest = U(U(tail_half - ONE) + U(shr(tail, tail_shift) & ONE)) if tail_half != ZERO else ZERO
                carry = nearest > U(~tail)
                kept = ZERO if carry else U(U(tail + nearest) & tail_mask)
                carry = carry or random[i] > U(~kept)
                q = U(floor + U(carry))

            # 3. The pattern of the magnitude.
            if codes:
                r = U(q + base)
                if shape == GENERAL:
                    r = U(max(r, offset) - offset)
            elif shape == ALIGNED:
                r = shl(q, k)
            elif shape == NARROW:
                e = U(max(e, least)) if DRAWN else e
                r = U(shl(q, k) + (U(e - HIDDEN) if q != ZERO else ZERO))
            else:
                # Beyond F dropped bits q is 0 or 1: nothing, or the smallest number.
                in_place = U(shl(U(max(field, ONE_SIGNED) - ONE_SIGNED), F_WORD) + shl(q, U(min(k, F_WORD))))
                r = (min_pattern if q != ZERO else ZERO) if k > F_WORD else in_place
            if shape == GENERAL:
                if r < flush_result:
                    r = ZERO
                if a < (flush_minus if negative else flush_plus):
                    r = ZERO
                if a < gap_end:
                    r = min_pattern if a >= (gap_minus if negative else gap_plus) else ZERO

            # 4. Overflow, sign, special values.
            overflow = r > max_pattern
            infinite = a == INF
            is_nan = a > INF
            vanished = r == ZERO and has_zero
            invalid = False
            if shape == GENERAL:
                invalid = negative and not signed and a != ZERO and not vanished
                result = r
                if negative:
                    result = minus_zero if vanished else (nan_plus if invalid else U(r | sign))
                if overflow:
                    result = over_minus if negative else over_plus
                if infinite:
                    result = inf_minus if negative else inf_plus
                if is_nan:
                    payload = U(shr(a, payload_shift) & payload_mask)
                    result = U((nan_minus if negative else nan_plus) | payload)
            else:
                if mode == ANY_BUT_DRAWN:
                    bare = (over_minus_bare if negative else over_plus_bare) if overflow else r
                elif codes:  # the largest one, or what comes after it
                    bare = U(min(r, over_plus))
                else:
                    bare = over_plus if overflow else r
                if not EVEN:  # to nearest, infinity and overflow give the same
                    bare = inf_plus if infinite else bare
                bare = nan_plus if is_nan else bare
                result = U(bare | (U(shr(word, sign_down) & sign) if codes else U(word & SIGN)))
            out[i] = result

            if counted == FEW:
                zeros = U(zeros + one) if a == ZERO else zeros
                underflows = U(underflows + one) if r == ZERO else underflows
                subnormals = U(subnormals + one) if r < min_normal else subnormals
                inexacts = U(inexacts + one) if rest != ZERO else inexacts
                largest = max(largest, a)
            elif counted == EACH:
                nonzero = a != ZERO and a < INF
                lost = rest != ZERO or vanished or overflow or a < gap_end or invalid
                clamped = U(result & U(~sign)) == max_pattern
                zeros = U(zeros + U(a == ZERO))
                underflows = U(underflows + U(nonzero and vanished))
                subnormals = U(subnormals + U(nonzero and not vanished and r < min_normal and not invalid))
                overflows = U(overflows + U(nonzero and overflow and not invalid))
                saturations = U(saturations + U(((nonzero and overflow) or infinite) and clamped))
                inexacts = U(inexacts + U((nonzero and lost) or (a == ZERO and not has_zero)))
                nans = U(nans + U(is_nan))
                infinities = U(infinities + U(infinite))
                made = (result == nan_plus) | (result == nan_minus)
                nans_made = U(nans_made + U(has_nan and not is_nan and made))

        if counted == FEW:
            counts[0] += np.int64(zeros)
            counts[1] += np.int64(underflows) - np.int64(zeros)
            counts[2] += np.int64(subnormals) - np.int64(underflows)
            zeros_lost = zeros if shape == NARROW else ZERO  # NARROW takes zero for half the smallest quantum
            counts[5] += np.int64(inexacts) - np.int64(zeros_lost)
            counts[LARGEST] = max(counts[LARGEST], np.int64(largest))
        elif counted == EACH:
            counts[0] += np.int64(zeros)
            counts[1] += np.int64(underflows)
            counts[2] += np.int64(subnormals)
            counts[3] += np.int64(overflows)
            counts[4] += np.int64(saturations)
            counts[5] += np.int64(inexacts)
            counts[6] += np.int64(nans)
            counts[7] += np.int64(nans_made)
            counts[8] += np.int64(infinities)

    return rounder
