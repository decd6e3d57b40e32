"""Round float32 or float64 words to a format, once, on integers alone.

One loop serves every format: the format's numbers come in as a `GRID` record, so nothing is compiled anew for
another format. What shapes the loop - the width of the source, the rounding mode, whether codes or values
come out, whether events are counted - is fixed when a loop is made.

All work is on unsigned words. Neither the rounding mode nor the flush bits of the processor can change a
result, and signalling NaNs pass unharmed.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mpsim_kernels._jit import kernel

__all__ = ["EVENTS", "GRID", "MODES", "make_rounder"]

MODES = ("nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd")
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
)
"""What a counting loop adds up, in the order of its ``counts``."""


GRID = np.dtype(
    [
        ("m", np.int32),  # fraction bits of the format
        ("bias", np.int32),  # its exponent bias, one more in a format without subnormals
        ("signed", np.bool_),
        ("has_zero", np.bool_),
        ("has_nan", np.bool_),
        ("offset", np.uint64),  # 2**m in a format without subnormals: as if it had one binade more below; else 0
        ("sign", np.uint64),  # pattern of the sign bit
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
        ("flush_plus", np.uint64),  # source words below which a result is tiny and flushed to zero; 0 keeps subnormals
        ("flush_minus", np.uint64),
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
def make_rounder(width: int, mode: int, codes: bool, counted: bool) -> Callable[..., None]:
    """Return ``rounder(x, out, grid, counts)`` for one kind of source and result.

    Parameters
    ----------
    width
        32 or 64: bits of a source word.
    mode
        Index into `MODES`.
    codes
        Write codes of the format, rather than floats of the source's width.
    counted
        Add events to ``counts``, an int64 array in the order of `EVENTS`.

    Returns
    -------
    kernel
        ``x``: source words [n], ``out``: unsigned integers [n] that hold a pattern; both contiguous.
        A grid for 32-bit sources must have ``m <= 23``, ``bias <= 127`` and ``offset == 0``, so that numbers that
        are subnormal in float32 are not normal in the format.
    """
    U: Any = np.uint32 if width == 32 else np.uint64
    F = U(23 if width == 32 else 52)
    HIDDEN = U(1 << int(F))
    FRACTION = U((1 << int(F)) - 1)
    INF = U((2 ** (width - 1 - int(F)) - 1) << int(F))
    MAGNITUDE = U((1 << (width - 1)) - 1)
    BIAS = 127 if width == 32 else 1023
    ZERO, ONE = U(0), U(1)

    @kernel
    def rounder(x: Any, out: Any, grid: Any, counts: Any) -> None:
        g = grid[0]
        m, bias, offset = g["m"], g["bias"], U(g["offset"])
        signed, has_zero, has_nan = g["signed"], g["has_zero"], g["has_nan"]
        sign, minus_zero = U(g["sign"]), U(g["minus_zero"])
        min_pattern, min_normal, max_pattern = U(g["min_pattern"]), U(g["min_normal"]), U(g["max_pattern"])
        over_plus, over_minus = U(g["over_plus"]), U(g["over_minus"])
        inf_plus, inf_minus = U(g["inf_plus"]), U(g["inf_minus"])
        nan_plus, nan_minus = U(g["nan_plus"]), U(g["nan_minus"])
        flush_plus, flush_minus = U(g["flush_plus"]), U(g["flush_minus"])
        gap_end, gap_plus, gap_minus = U(g["gap_end"]), U(g["gap_plus"]), U(g["gap_minus"])
        keep = np.int32(F) - m
        deepest = np.int32(F) + np.int32(2)
        zeros = underflows = subnormals = overflows = U(0)
        saturations = inexacts = nans = nans_made = U(0)

        for i in range(x.size):
            word = x[i]
            negative = word > MAGNITUDE
            a = U(word & MAGNITUDE)
            # The significand as an integer, its exponent field, and the field it would have in the format.
            normal = a >= HIDDEN
            sig = U((a & FRACTION) | (HIDDEN if normal else ZERO))
            field = np.int32(a >> F) if normal else np.int32(1)
            target = np.int32(field - np.int32(BIAS) + bias)
            # Bits to drop. From deepest on the number is below half the smallest quantum.
            drop = np.int32(keep + max(np.int32(np.int32(1) - target), np.int32(0)))
            k = U(min(drop, deepest))
            rest_mask = U((ONE << k) - ONE)
            floor = U(sig >> k)
            # Fields and fractions are adjacent in a code, so a carry out of the fraction steps the exponent.
            base = U(U(np.int32(max(target, np.int32(1)) - np.int32(1))) << U(m))
            if mode == 0:
                # The parity of the code decides, which is the exponent's where there is no fraction (p = 1).
                odd = U(U(floor + base) + offset) & ONE if k > ZERO else ZERO
                q = U(U(sig + U(rest_mask >> ONE) + odd) >> k)
            elif mode == 1:
                q = U(U(sig + U(U(rest_mask + ONE) >> ONE)) >> k)
            elif mode == 2:
                q = floor
            elif mode == 3:
                q = floor if negative else U(U(sig + rest_mask) >> k)
            elif mode == 4:
                q = U(U(sig + rest_mask) >> k) if negative else floor
            else:
                odd = ONE if (sig & rest_mask) != ZERO else ZERO
                q = U(U(U(U(U(floor + base) + offset) | odd) - base) - offset)
            if codes:
                r = U(max(U(q + base), offset) - offset)
            elif drop > np.int32(F):
                r = min_pattern if q != ZERO else ZERO  # here q is 0 or 1
            else:
                r = U(U(U(field - np.int32(1)) << F) + U(q << k))
            if a < (flush_minus if negative else flush_plus):
                r = ZERO
            if a < gap_end:
                r = min_pattern if a >= (gap_minus if negative else gap_plus) else ZERO
            vanished = r == ZERO and has_zero
            invalid = negative and not signed and a != ZERO and not vanished
            overflow = r > max_pattern
            result = r
            if negative:
                result = minus_zero if vanished else (nan_plus if invalid else U(r | sign))
            if overflow:
                result = over_minus if negative else over_plus
            infinite = a == INF
            if infinite:
                result = inf_minus if negative else inf_plus
            is_nan = a > INF
            if is_nan:
                result = nan_minus if negative else nan_plus
            out[i] = result

            if counted:
                nonzero = a != ZERO and a < INF
                lost = (sig & rest_mask) != ZERO or vanished or overflow or a < gap_end or invalid
                clamped = U(result & U(~sign)) == max_pattern
                zeros = U(zeros + U(a == ZERO))
                underflows = U(underflows + U(nonzero and vanished))
                subnormals = U(subnormals + U(nonzero and not vanished and r < min_normal and not invalid))
                overflows = U(overflows + U(nonzero and overflow and not invalid))
                saturations = U(saturations + U(((nonzero and overflow) or infinite) and clamped))
                inexacts = U(inexacts + U((nonzero and lost) or (a == ZERO and not has_zero)))
                nans = U(nans + U(is_nan))
                made = (result == nan_plus) | (result == nan_minus)
                nans_made = U(nans_made + U(has_nan and not is_nan and made))

        if counted:
            counts[0] += zeros
            counts[1] += underflows
            counts[2] += subnormals
            counts[3] += overflows
            counts[4] += saturations
            counts[5] += inexacts
            counts[6] += nans
            counts[7] += nans_made

    return rounder
