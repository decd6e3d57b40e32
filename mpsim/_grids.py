"""Work out what the rounding kernel needs to know of a format, a mode and an overflow policy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim.formats import FloatFormat, Specials
from mpsim.modes import NaN, Overflow, Rounding
from mpsim.stochastic import Draws
from mpsim_kernels.rounding import ALIGNED, GENERAL, GRID, MODES, NARROW

__all__ = ["float_word", "grid_for", "shape_for"]

_NEAREST = (Rounding.NEAREST_EVEN, Rounding.NEAREST_AWAY)
_TO_INFINITY = (*_NEAREST, Rounding.STOCHASTIC)
"""Modes that overflow to infinity on both sides."""


def _goes_away(rounding: Rounding, negative: bool) -> bool:
    """Return whether a number between two others goes to the one farther from zero, ties and odd apart."""
    return rounding is (Rounding.DOWN if negative else Rounding.UP)


def _word(sig: int, exponent: int, width: int) -> int:
    """Return the float word of ``sig * 2**exponent``, which must be exact, without any float arithmetic.

    Flush bits of the processor could change what `math.ldexp` and `struct.pack` make of subnormal numbers.
    """
    fraction_bits, bias = (23, 127) if width == 32 else (52, 1023)
    top = sig.bit_length() - 1
    shift = max(exponent + top, 1 - bias) - fraction_bits - exponent  # of the unit of the last place
    significand = sig << -shift if shift <= 0 else sig >> shift
    # The hidden bit adds 1 to the field below it; a subnormal has none.
    return ((max(exponent + top + bias, 1) - 1) << fraction_bits) + significand if sig else 0


def float_word(fmt: FloatFormat, code: int, width: int) -> int:
    """Return the float word of a finite code without sign."""
    sig, exponent = fmt.parts(code)
    return _word(sig, exponent, width)


@functools.cache
def shape_for(fmt: FloatFormat, width: int, special: bool) -> int:
    """Return the shape of a format's loop; ``special`` asks for flushing of results or inputs."""
    plain = fmt.has_negative_zero and fmt.nan_has_sign and fmt.has_subnormals and not special and fmt.m > 0
    if not plain or fmt.emax > (127 if width == 32 else 1023):
        return GENERAL
    if fmt.bias == (127 if width == 32 else 1023):
        return ALIGNED
    # 40 binades are room for 32 random bits too.
    return NARROW if fmt.quantum_exponent > (-126 if width == 32 else -1022) + 40 else GENERAL


@functools.cache
def grid_for(
    fmt: FloatFormat,
    width: int,
    codes: bool,
    rounding: Rounding,
    overflow: Overflow,
    flush_subnormals: bool,
    zero_below: int | None = None,
    draws: Draws | None = None,
    nan_choice: NaN | int = NaN.CANONICAL,
) -> NDArray[Any]:
    """Return the `GRID` record of ``fmt`` for source words of ``width`` bits, writing codes or values.

    Sources below ``2**zero_below`` are read as zero.
    """
    sign = fmt.sign_code if codes else int(fmt.signed) << (width - 1)
    quiet_nan, infinity = (0x7FC00000, 0x7F800000) if width == 32 else (0x7FF8 << 48, 0x7FF0 << 48)

    def pattern(code: int) -> int:
        return code if codes else float_word(fmt, code, width)

    largest = pattern(fmt.max_code)
    has_nan = fmt.nan_code is not None
    nan = pattern(fmt.nan_to or 0)
    if fmt.nan_code is not None:
        nan = fmt.nan_code if codes else quiet_nan
    nans = (nan, nan | sign if fmt.nan_has_sign else nan)
    if not isinstance(nan_choice, NaN):
        nans = _chosen_nans(fmt, codes, nan_choice, quiet_nan, sign)

    def beyond(negative: bool, infinite: bool) -> int:
        """Return the pattern of an overflow, or of an infinite input."""
        if negative and not fmt.signed:
            return nan
        signed = sign if negative else 0
        to_max = overflow is Overflow.SATURATE or fmt.saturates
        if not infinite and rounding not in _TO_INFINITY:
            # Between max and infinity, odd is infinity where max is even and infinity a number (P3109).
            odd = rounding is Rounding.TO_ODD and fmt.inf_code is not None and fmt.inf_code % 2 == 1
            to_max |= not (odd or _goes_away(rounding, negative))
        if to_max or (fmt.inf_code is None and not has_nan):
            return largest | signed
        if fmt.inf_code is not None:
            return (fmt.inf_code if codes else infinity) | signed
        return nans[negative]

    no_subnormals = not fmt.has_subnormals
    gap_end = float_word(fmt, fmt.min_code, width) if no_subnormals else 0

    grid = np.zeros(1, GRID)
    grid["m"] = fmt.m
    grid["mode"] = MODES.index(rounding)
    grid["bias"] = fmt.bias + no_subnormals
    grid["offset"] = no_subnormals << fmt.m
    grid["signed"] = fmt.signed
    grid["has_zero"] = fmt.has_zero
    grid["has_nan"] = has_nan
    grid["sign"] = sign
    grid["sign_shift"] = max(sign.bit_length() - 1, 0)
    grid["minus_zero"] = sign if fmt.has_negative_zero else 0
    grid["min_pattern"] = pattern(fmt.min_code)
    grid["min_normal"] = pattern(1 << fmt.m if fmt.has_subnormals else fmt.min_code)
    grid["max_pattern"] = largest
    grid["gap_end"] = gap_end
    grid["daz_below"] = 0 if zero_below is None else _word(1, zero_below, width)
    if nan_choice is NaN.PAYLOAD:
        if fmt.specials is not Specials.IEEE:
            raise ValueError(f"nan is 'payload', but NaNs of {fmt} have none; choose 'canonical' or a code")
        dropped = (23 if width == 32 else 52) - fmt.m
        kept = (1 << fmt.m) - 1 if dropped >= 0 else 0
        grid["payload_shift"] = max(dropped, 0) if codes else 0
        grid["payload_mask"] = kept if codes else kept << max(dropped, 0)
    if rounding is Rounding.STOCHASTIC:
        if fmt.has_zero and not fmt.has_subnormals:
            raise ValueError(
                f"{fmt} has no subnormals: stochastic rounding between zero and its smallest number is not supported"
            )
        bits = draws.counted_bits(width) if draws else width
        grid["tail_mask"] = (1 << width) - (1 << (width - bits))
        grid["tail_half"] = 1 << (width - bits) >> 1 if draws and draws.scheme == "C" else 0
        grid["tail_shift"] = width - bits
        grid["flush_result"] = pattern(1 << fmt.m) if flush_subnormals and fmt.has_subnormals else 0
        flush_subnormals = False
    for negative, suffix in ((False, "plus"), (True, "minus")):
        grid[f"over_{suffix}"] = beyond(negative, infinite=False)
        grid[f"inf_{suffix}"] = beyond(negative, infinite=True)
        grid[f"nan_{suffix}"] = nans[negative]
        grid[f"flush_{suffix}"] = _flush_below(fmt, width, rounding, negative) if flush_subnormals else 0
        grid[f"gap_{suffix}"] = _gap_up(fmt, width, rounding, gap_end, negative)
    return grid


def _chosen_nans(fmt: FloatFormat, codes: bool, code: int, quiet_nan: int, sign: int) -> tuple[int, int]:
    """Return the patterns of NaNs where one code is to stand for all."""
    magnitude = code & ~fmt.sign_code
    is_nan = magnitude > (fmt.inf_code or 0) if fmt.specials is Specials.IEEE else code == fmt.nan_code
    is_nan |= fmt.specials is Specials.FN and magnitude == fmt.last_code
    if not 0 <= code < 1 << fmt.bits or not is_nan:
        raise ValueError(f"nan is {code:#x}, which is not a NaN of {fmt}; choose 'canonical' or such a code")
    pattern = code if codes else quiet_nan | (sign if code & fmt.sign_code and fmt.nan_has_sign else 0)
    return pattern, pattern


def _flush_below(fmt: FloatFormat, width: int, rounding: Rounding, negative: bool) -> int:
    """Return the smallest source word that is not tiny after rounding with unbounded exponent."""
    if not fmt.has_subnormals:
        return 0
    normal = _word(1, fmt.emin, width)
    fraction_bits, source_emin = (23, -126) if width == 32 else (52, -1022)
    # Words per ulp in the binade below min_normal; there the source has one bit less if it is subnormal itself.
    step = 1 << max(fraction_bits - fmt.m - (fmt.emin == source_emin), 0)
    if rounding in _NEAREST and step > 1:
        # The tie goes up: below min_normal lies an odd significand. With p = 1 it is even.
        return normal - step // 2 + (rounding is Rounding.NEAREST_EVEN and fmt.m == 0)
    # With p = 1 it is also the code of min_normal that is odd.
    up = _goes_away(rounding, negative) or (rounding is Rounding.TO_ODD and fmt.m == 0)
    return normal - step + 1 if up else normal


def _gap_up(fmt: FloatFormat, width: int, rounding: Rounding, gap_end: int, negative: bool) -> int:
    """Return from which source word a number between zero and the smallest number goes up."""
    if not gap_end or not fmt.has_zero:
        return 0
    sig, exponent = fmt.parts(fmt.min_code)
    half = _word(sig, exponent - 1, width)
    match rounding:
        case Rounding.NEAREST_EVEN:
            return half + 1
        case Rounding.NEAREST_AWAY:
            return half
        case Rounding.TO_ODD:
            return 1  # the smallest number has the odd code 1
        case _:
            return 1 if _goes_away(rounding, negative) else gap_end
