"""Quantise blocks that share a scale, and back, on integers.

Two fast kernels take float32 words to codes in one pass over each block, to nearest even: `make_power_quantizer`
where scales are powers of two, `make_fp4_quantizer` where they are numbers of a small float format and elements have at
most seven magnitudes. For everything else `scale_blocks` finds the scales and `scale_elements` the quotients that are
left to be rounded, as words of float64.

Blocks lie in rows: element ``i`` of a row belongs to block ``i // length`` of that row, and the last block of a row may
be shorter. Kernels take all rows as one flat array and work on the blocks ``start`` to ``stop``.

An exact number is held as a pair of int64, ``sig * 2**e``, where ``sig`` has at most 62 bits; ``sticky`` says that
something below its last bit was cut off.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels.bits import shl, shr
from mpsim_kernels.significands import bit_length

__all__ = [
    "BLOCK_EVENTS",
    "PLAN",
    "STEPS",
    "count_bounds",
    "fill_tables",
    "largest_finite",
    "make_fp4_quantizer",
    "make_power_quantizer",
    "multiply_scales",
    "scale_blocks",
    "scale_elements",
]

BLOCK_EVENTS = ("zero_blocks", "nan_blocks", "scales_saturated", "scales_underflowed")
"""What `scale_blocks` adds up, in the order of its ``counts``."""

STEPS = 7
"""Magnitudes above zero that the elements of `make_fp4_quantizer` have."""

PLAN = np.dtype(
    [
        ("length", np.int64),  # elements in a block
        # The scale.
        ("scale_nan", np.int64),  # code of NaN
        ("power", np.bool_),  # scales are powers of two, without zero
        ("low", np.int64),  # smallest and largest exponent of such a scale; its code is exponent - low
        ("high", np.int64),
        ("base", np.int64),  # what the exponent of the scale is above that of amax,
        ("threshold", np.int64),  # and one more where the significand of amax, of 53 bits, is at least this
        ("threshold_low", np.int64),  # the same where the exponent would be low
        ("m", np.int64),  # otherwise: fraction bits of the scale format, the exponent of its smallest normal number,
        ("emin", np.int64),
        ("max_code", np.int64),  # its largest code,
        ("least", np.int64),  # the smallest code that is stored,
        ("upward", np.bool_),  # whether the scale is rounded up, not to nearest even,
        ("max_sig", np.int64),  # the largest element, and its float32 reciprocal,
        ("max_e", np.int64),
        ("inverse_sig", np.int64),
        ("inverse_e", np.int64),
        ("by_inverse", np.bool_),  # whether amax is multiplied by that;
        ("tensor_sig", np.int64),  # the scale of the tensor, and what the block's scale is multiplied by instead of
        ("tensor_e", np.int64),  # being divided by it
        ("encode_sig", np.int64),
        ("encode_e", np.int64),
        ("by_encode", np.bool_),
        ("quotients", np.int64),  # how elements are divided by the scale: EXACT, DIVIDED or MULTIPLIED
        # The element, for the fast kernels.
        ("element_m", np.int64),
        ("element_bias", np.int64),
        ("element_max", np.int64),  # its largest code without sign
        ("element_over", np.int64),  # the code, without sign, of an overflow
        ("element_nan", np.int64),  # the code of NaN
        ("flip", np.int64),  # a negative code is (code ^ flip) + shift & mask: a sign bit, or the two's complement
        ("shift", np.int64),
        ("element_mask", np.int64),
    ]
)
"""Everything about a block format but the numbers; kernels take an array of one such record."""

EXACT, DIVIDED, MULTIPLIED = 0, 1, 2
_SHIFT, _VANISH, _DIVIDE, _DIVIDE_AND_ROUND, _MULTIPLY_AND_ROUND = range(5)  # what it comes to for the block at hand

_WORD = np.int64(0x7FFFFFFFFFFFFFFF)
_HIDDEN = np.int64(1 << 52)
_INF = np.int64(0x7FF << 52)
_ONE, _ZERO = np.int64(1), np.int64(0)
_NO = np.bool_(False)


# Exact numbers.


@inner_kernel
def _float32(sig: Any, e: Any, sticky: Any) -> tuple[Any, Any]:
    """Return a number rounded to float32, nearest even, with gradual underflow and no upper bound of the exponent."""
    drop = max(bit_length(sig) - np.int64(24), np.int64(-149) - e)
    if drop <= 0:
        return sig, e
    if drop > 62:
        return _ZERO, np.int64(-149)
    q = sig >> drop
    rest = sig & ((_ONE << drop) - _ONE)
    half = _ONE << (drop - _ONE)
    if rest > half or (rest == half and (sticky or q & _ONE)):
        q += _ONE
    return q, e + drop


@inner_kernel
def _divide(sig: Any, e: Any, by_sig: Any, by_e: Any) -> tuple[Any, Any, Any]:
    """Return the quotient of positive numbers, cut to 29 bits or more; ``by_sig`` has at most 32 bits."""
    up = np.int64(62) - bit_length(sig)
    q = (sig << up) // by_sig
    return q, e - by_e - up, q * by_sig != sig << up


@inner_kernel
def _multiply(sig: Any, e: Any, by_sig: Any, by_e: Any) -> tuple[Any, Any, Any]:
    """Return the product of numbers of 53 and 24 bits, cut to 50 bits or more."""
    low = np.int64((sig & np.int64((1 << 26) - 1)) * by_sig)
    if sig >> np.int64(36) == _ZERO:
        return sig * by_sig, e + by_e, False
    high = np.int64((sig >> np.int64(26)) * by_sig) + (low >> np.int64(26))
    return high, e + by_e + np.int64(26), (low & np.int64((1 << 26) - 1)) != _ZERO


@inner_kernel
def _unpack(word: Any, narrow: Any) -> tuple[Any, Any]:
    """Return ``sig`` and ``e`` of a magnitude's float word; ``sig`` has 53 bits or is zero."""
    if narrow:
        field, sig = word >> np.int64(23), (word & np.int64(0x7FFFFF)) << np.int64(29)
        e = max(field, _ONE) - np.int64(127 + 52)
    else:
        field, sig = word >> np.int64(52), word & (_HIDDEN - _ONE)
        e = max(field, _ONE) - np.int64(1023 + 52)
    if field != _ZERO:
        return sig | _HIDDEN, e
    if sig == _ZERO:
        return sig, e
    up = np.int64(53) - bit_length(sig)
    return sig << up, e - up


@inner_kernel
def _pack_odd(sig: Any, e: Any, sticky: Any) -> Any:
    """Return the float64 word of a number rounded to odd, within the normal numbers; zero becomes the least of them."""
    if sig == _ZERO:
        return _HIDDEN
    up = np.int64(53) - bit_length(sig)
    if up < 0:
        sticky = sticky or (sig & ((_ONE << -up) - _ONE)) != _ZERO
        sig = sig >> -up
    else:
        sig = sig << up
    field = e - up + np.int64(1023 + 52)
    if field < 1:
        return _HIDDEN
    if field > 2046:
        return _INF - _ONE
    if sticky:
        sig = sig | _ONE
    return (field << np.int64(52)) | (sig & (_HIDDEN - _ONE))


# Scales.


@inner_kernel
def _power_code(sig: Any, e: Any, p: Any) -> Any:
    """Return the exponent, before it is held in range, of the scale of a block whose amax has a 53-bit ``sig``."""
    exponent = e + np.int64(52) + p["base"]
    threshold = p["threshold_low"] if exponent == p["low"] else p["threshold"]
    return exponent + (_ONE if sig >= threshold else _ZERO)


@inner_kernel
def _float_code(sig: Any, e: Any, p: Any) -> Any:
    """Return the code, before it is held in range, of the scale of a block with a nonzero amax."""
    sig, e = _float32(sig, e, _NO)
    if sig == _ZERO:
        return _ZERO
    sticky = False
    if p["by_inverse"]:
        sig, e, sticky = _multiply(sig, e, p["inverse_sig"], p["inverse_e"])
    else:
        sig, e, sticky = _divide(sig, e, p["max_sig"], p["max_e"])
    sig, e = _float32(sig, e, sticky)
    if sig == _ZERO:
        return _ZERO
    if p["by_encode"]:
        sig, e, sticky = _multiply(sig, e, p["encode_sig"], p["encode_e"])
    else:
        sig, e, sticky = _divide(sig, e, p["tensor_sig"], p["tensor_e"])
    sig, e = _float32(sig, e, sticky)
    if sig == _ZERO:
        return _ZERO
    exponent = max(e + bit_length(sig) - _ONE, p["emin"])
    above = exponent - p["emin"]
    if above > 2000:
        return p["max_code"] + _ONE
    drop = exponent - p["m"] - e
    if drop <= 0:
        q = sig << -drop
    elif drop > 32:
        q = _ONE if p["upward"] else _ZERO
    else:
        q = sig >> drop
        rest = sig & ((_ONE << drop) - _ONE)
        half = _ONE << (drop - _ONE)
        if p["upward"]:
            q += _ONE if rest != _ZERO else _ZERO
        elif rest > half or (rest == half and q & _ONE):
            q += _ONE
    # Fields and fractions are adjacent in a code, so a carry out of the fraction steps the exponent.
    return (above << p["m"]) + q


@inner_kernel
def _scale_number(code: Any, p: Any) -> tuple[Any, Any]:
    """Return what a scale code stands for."""
    if p["power"]:
        return _ONE, code + p["low"]
    field, sig = code >> p["m"], code & ((_ONE << p["m"]) - _ONE)
    if field != _ZERO:
        sig |= _ONE << p["m"]
    return sig, max(field, _ONE) - _ONE + p["emin"] - p["m"]


@inner_kernel
def _largest_of(words: Any, start: Any, stop: Any, magnitude: Any) -> Any:
    """Return the largest magnitude word; with a NaN among them it is above infinity's."""
    largest = _ZERO
    for i in range(start, stop):
        largest = max(largest, np.int64(words[i]) & magnitude)
    return largest


@kernel
def largest_finite(words: Any, magnitude: Any, infinity: Any) -> Any:
    """Return the largest magnitude word below ``infinity``; everything has one unsigned type."""
    none = infinity ^ infinity
    largest = none
    for i in range(words.size):
        a = words[i] & magnitude
        largest = max(largest, a if a < infinity else none)
    return largest


@kernel
def scale_blocks(words: Any, narrow: Any, n: Any, start: Any, stop: Any, plan: Any, scales: Any, counts: Any) -> None:
    """Write the codes of the scales of blocks, and count what happens to scales.

    Parameters
    ----------
    words
        Words of rows of ``n`` elements: uint32 of float32 where ``narrow``, else uint64 of float64.
    start, stop
        First block, and the one after the last.
    plan
        One `PLAN` record.
    scales
        Unsigned integers, one for each block.
    counts
        int64, in the order of `BLOCK_EVENTS`.
    """
    p = plan[0]
    length = p["length"]
    per_row = (n + length - 1) // length
    magnitude = np.int64(0x7FFFFFFF) if narrow else _WORD
    infinity = np.int64(0x7F800000) if narrow else _INF
    for block in range(start, stop):
        row, k = block // per_row, block % per_row
        first = row * n + k * length
        amax = _largest_of(words, first, min(first + length, row * n + n), magnitude)
        if amax >= infinity:
            scales[block] = p["scale_nan"]
            counts[1] += 1
            continue
        if amax == _ZERO:
            scales[block] = _ZERO if p["power"] else p["least"]
            counts[0] += 1
            continue
        sig, e = _unpack(amax, narrow)
        if p["power"]:
            exponent = _power_code(sig, e, p)
            code, last, least = exponent - p["low"], p["high"] - p["low"], _ZERO
            underflow = code < least
        else:
            code, last, least = _float_code(sig, e, p), p["max_code"], p["least"]
            underflow = code < max(least, _ONE)
        counts[2] += code > last
        counts[3] += underflow
        scales[block] = max(min(code, last), least)


# Elements.


@inner_kernel
def _divisor(scale: Any, p: Any) -> tuple[Any, Any, Any]:
    """Return what elements are divided by under a scale, or multiplied by, and how: one of the ways below."""
    sig, e = _scale_number(scale, p)
    if p["power"]:
        return _SHIFT, _ONE, e
    sig, e = sig * p["tensor_sig"], e + p["tensor_e"]
    how = p["quotients"]
    if how == EXACT:
        return (_DIVIDE if sig != _ZERO else _VANISH), sig, e
    sig, e = _float32(sig, e, _NO)
    if how != MULTIPLIED:
        return (_DIVIDE_AND_ROUND if sig != _ZERO else _VANISH), sig, e
    by_sig, by_e = np.int64(0xFFFFFF), np.int64(104)  # the largest float32, where the scale is too small
    if sig != _ZERO:
        one_sig, one_e, sticky = _divide(_ONE, _ZERO, sig, e)
        one_sig, one_e = _float32(one_sig, one_e, sticky)
        if one_e + bit_length(one_sig) <= np.int64(128):
            by_sig, by_e = one_sig, one_e
    return _MULTIPLY_AND_ROUND, by_sig, by_e


@inner_kernel
def _quotient(sig: Any, e: Any, how: Any, by_sig: Any, by_e: Any) -> tuple[Any, Any, Any]:
    """Return a nonzero magnitude, of 53 bits, divided by a scale; the last three arguments come from `_divisor`."""
    if how == _SHIFT:
        return sig, e - by_e, False
    if how == _VANISH:
        return _ZERO, e, False
    if how == _MULTIPLY_AND_ROUND:
        sig, e, sticky = _multiply(sig, e, by_sig, by_e)
    else:
        sig, e, sticky = _divide(sig, e, by_sig, by_e)
        if how == _DIVIDE:
            return sig, e, sticky
    sig, e = _float32(sig, e, sticky)
    return sig, e, False


@kernel
def scale_elements(
    words: Any, narrow: Any, n: Any, start: Any, stop: Any, plan: Any, scales: Any, origin: Any, out: Any
) -> None:
    """Write the words of float64 that elements of the blocks ``start`` to ``stop`` have to be rounded from.

    Quotients of more than 53 bits are rounded to odd, so that a second rounding is right; one that vanishes is left
    tiny, not zero. ``out`` is uint64 and begins with element ``origin``; the other arguments are those of
    `scale_blocks`.
    """
    p = plan[0]
    length = p["length"]
    per_row = (n + length - 1) // length
    magnitude = np.uint64(0x7FFFFFFF) if narrow else np.uint64(0x7FFFFFFFFFFFFFFF)
    sign_shift = np.uint64(31 if narrow else 63)
    nan = np.uint64(0x7FF8 << 48)
    for block in range(start, stop):
        row, k = block // per_row, block % per_row
        first = row * n + k * length
        last = min(first + length, row * n + n)
        scale = np.int64(scales[block])
        if scale == p["scale_nan"]:
            for i in range(first, last):
                out[i - origin] = nan
            continue
        how, by_sig, by_e = _divisor(scale, p)
        for i in range(first, last):
            word = np.uint64(words[i])
            sign = np.uint64(word >> sign_shift) << np.uint64(63)
            sig, e = _unpack(np.int64(word & magnitude), narrow)
            if sig == _ZERO:
                out[i - origin] = sign
            else:
                sig, e, sticky = _quotient(sig, e, how, by_sig, by_e)
                out[i - origin] = sign | np.uint64(_pack_odd(sig, e, sticky))


@kernel
def count_bounds(words: Any, bounds: Any, plan: Any, start: Any, stop: Any, codes: Any) -> None:
    """Write the codes ``start`` to ``stop`` of float64 words, for elements with a sign and few magnitudes.

    Parameters
    ----------
    words
        uint64.
    bounds
        uint64 [STEPS]: the first word that rounds to each of the codes above zero.
    plan
        One `PLAN` record.
    codes
        uint8, written.
    """
    sign, nan = np.uint8(plan[0]["shift"]), np.uint8(plan[0]["element_nan"])
    for i in range(start, stop):
        word = words[i]
        a = np.uint64(word & np.uint64(_WORD))
        r = np.uint8(0)
        for j in range(STEPS):
            r = np.uint8(r + np.uint8(a >= bounds[j]))
        r = np.uint8(r + sign) if word != a else r
        codes[i] = nan if a > np.uint64(_INF) else r


# Fast kernels.

_HIDDEN32, _FRACTION32 = np.uint32(1 << 23), np.uint32((1 << 23) - 1)
_MAGNITUDE32, _INF32 = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
_ZERO32, _ONE32, _TOP, _F32 = np.uint32(0), np.uint32(1), np.uint32(31), np.uint32(23)
_ZERO_I32, _DEEPEST = np.int32(0), np.int32(25)
_LIFT = np.int64(64)  # binades by which the numbers of a block are lifted out of float32's subnormal range


@inner_kernel
def _lifted(word: Any) -> Any:
    """Return the word of a float32 times 2**64, which must be finite."""
    a = np.int64(word & _MAGNITUDE32)
    sign = np.int64(word >> _TOP) << np.int64(31)
    if a == _ZERO:
        return np.uint32(sign)
    up = np.int64(24) - min(bit_length(a), np.int64(24))
    field = max(a >> np.int64(23), _ONE) + _LIFT - up
    return np.uint32(sign | (field << np.int64(23)) | ((a << up) & np.int64(0x7FFFFF)))


@inner_kernel
def _element_code(
    word: Any, rebias: Any, keep: Any, m: Any, largest: Any, over: Any, flip: Any, shift: Any, mask: Any
) -> Any:
    """Return the code of a float32 word rounded to nearest even.

    ``rebias`` is the exponent field that the element's smallest normal number has, times the scale. Half the smallest
    quantum must be a normal number, so that subnormal words may count as up to twice their size.
    """
    a = np.uint32(word & _MAGNITUDE32)
    sig = np.uint32(np.uint32(a & _FRACTION32) | _HIDDEN32)
    above = np.int32(np.int32(shr(a, _F32)) - rebias)  # binades above the smallest normal one
    drop = np.uint32(min(max(np.int32(keep - above), keep), _DEEPEST))
    floor = shr(sig, drop)
    rest = np.uint32(sig - shl(floor, drop))
    up = np.uint32(np.uint32(np.uint32(rest + rest) + np.uint32(floor & _ONE32)) > shl(_ONE32, drop))
    # Fields and fractions are adjacent in a code, so a carry out of the fraction steps the exponent.
    r = np.uint32(np.uint32(floor + up) + shl(np.uint32(max(above, _ZERO_I32)), m))
    r = over if r > largest else r
    r = np.uint32(np.uint32(r ^ flip) + shift) if word > _MAGNITUDE32 else r
    return np.uint8(r & mask)


@functools.cache
def make_power_quantizer(length: int) -> Callable[..., None]:
    """Return ``quantizer(words, n, start, stop, plan, scales, codes)`` for blocks of ``length`` float32 words.

    Scales are powers of two in E8M0; elements have at most eight bits, one fraction bit or more, zeros of both signs
    or the two's complement, and ``element_m + element_bias <= 63``. Codes are uint8. The other arguments are those of
    `scale_blocks`.
    """
    LENGTH = length

    @kernel
    def quantizer(words: Any, n: Any, start: Any, stop: Any, plan: Any, scales: Any, codes: Any) -> None:
        p = plan[0]
        per_row = (n + LENGTH - 1) // LENGTH
        largest, over, nan = np.uint32(p["element_max"]), np.uint32(p["element_over"]), np.uint8(p["element_nan"])
        flip, shift, mask = np.uint32(p["flip"]), np.uint32(p["shift"]), np.uint32(p["element_mask"])
        m = np.uint32(p["element_m"])
        keep = np.int32(np.int64(23) - p["element_m"])
        normal_field = np.int64(128) - p["element_bias"]  # of the smallest normal element, unscaled
        lift_below = p["element_m"] + p["element_bias"] - np.int64(126)
        low, high, scale_nan = p["low"], p["high"], p["scale_nan"]
        row, k = start // per_row, start % per_row
        for block in range(start, stop):
            first = np.uint64(row * n + k * LENGTH)
            count = min(LENGTH, n - k * LENGTH)
            k += 1
            if k == per_row:
                row, k = row + 1, 0
            amax = _ZERO32
            if count == LENGTH:
                for j in range(LENGTH):
                    a = np.uint32(words[first + np.uint64(j)] & _MAGNITUDE32)
                    amax = a if a > amax else amax
            else:
                for j in range(count):
                    a = np.uint32(words[first + np.uint64(j)] & _MAGNITUDE32)
                    amax = a if a > amax else amax
            if amax >= _INF32:
                scales[block] = scale_nan
                for j in range(count):
                    codes[first + np.uint64(j)] = nan
                continue
            scale = low
            if amax != _ZERO32:
                sig, e = _unpack(np.int64(amax), True)
                scale = min(max(_power_code(sig, e, p), low), high)
            scales[block] = scale - low
            rebias = np.int32(normal_field + scale)
            if scale < lift_below:
                rebias = np.int32(normal_field + scale + _LIFT)
                for j in range(count):
                    i = first + np.uint64(j)
                    codes[i] = _element_code(_lifted(words[i]), rebias, keep, m, largest, over, flip, shift, mask)
            elif count == LENGTH:
                for j in range(LENGTH):
                    i = first + np.uint64(j)
                    codes[i] = _element_code(words[i], rebias, keep, m, largest, over, flip, shift, mask)
            else:
                for j in range(count):
                    i = first + np.uint64(j)
                    codes[i] = _element_code(words[i], rebias, keep, m, largest, over, flip, shift, mask)

    return quantizer


@kernel
def fill_tables(plan: Any, bounds: Any, buckets: Any, scale_first: Any, element_first: Any) -> None:
    """Work out from which float32 words on a scale and an element has which code.

    Parameters
    ----------
    plan
        One `PLAN` record of a format whose scales are no powers of two.
    bounds
        uint64 [STEPS]: the first word of float64 that rounds to each of the element's codes above zero.
    buckets
        uint8 [2**(8 + m + 2)], written: code of the scale of the smallest amax with given upper bits.
    scale_first
        uint32 [max_code + 2], written: the first amax of each code of the scale; infinity after the last one.
    element_first
        uint32 [max_code + 1, STEPS], written: for each code of the scale, the first word of each element's code.
    """
    p = plan[0]
    last = p["max_code"]
    scale_first[0] = _ZERO32
    scale_first[last + 1] = _INF32
    for code in range(1, last + 1):
        low, high = np.int64(scale_first[code - 1]), np.int64(_INF32)
        while low < high:
            middle = (low + high) >> _ONE
            sig, e = _unpack(middle, True)
            if sig != _ZERO and _float_code(sig, e, p) >= code:
                high = middle
            else:
                low = middle + _ONE
        scale_first[code] = np.uint32(low)
    for code in range(p["least"] + 1):
        scale_first[code] = _ZERO32
    code = p["least"]
    shift = np.int64(23 - 2) - p["m"]
    for i in range(buckets.size):
        while code < last and np.int64(scale_first[code + 1]) <= np.int64(i) << shift:
            code += 1
        buckets[i] = code
    for code in range(last + 1):
        how, by_sig, by_e = _divisor(np.int64(code), p)
        low = _ZERO
        for step in range(STEPS):
            high = np.int64(_INF32)
            bound = np.int64(bounds[step])
            if step > 0 and low < high - np.int64(1 << 24):
                high = low + np.int64(1 << 24)  # no bound is more than four times the one below it
            while low < high:
                middle = (low + high) >> _ONE
                sig, e = _unpack(middle, True)
                reached = False
                if sig != _ZERO:
                    sig, e, sticky = _quotient(sig, e, how, by_sig, by_e)
                    reached = _pack_odd(sig, e, sticky) >= bound
                if reached:
                    high = middle
                else:
                    low = middle + _ONE
            element_first[code, step] = np.uint32(low)


@inner_kernel
def _step_code(word: Any, b1: Any, b2: Any, b3: Any, b4: Any, b5: Any, b6: Any, b7: Any, sign: Any) -> Any:
    """Return how many of the bounds a word has reached, with its sign."""
    a = np.uint32(word & _MAGNITUDE32)
    low = np.uint32(np.uint32(a >= b1) + np.uint32(a >= b2))
    middle = np.uint32(np.uint32(a >= b3) + np.uint32(a >= b4))
    high = np.uint32(np.uint32(np.uint32(a >= b5) + np.uint32(a >= b6)) + np.uint32(a >= b7))
    r = np.uint32(np.uint32(low + middle) + high)
    return np.uint8(np.uint32(r + sign) if word > _MAGNITUDE32 else r)


@functools.cache
def make_fp4_quantizer(length: int) -> Callable[..., None]:
    """Return ``quantizer(words, n, start, stop, plan, buckets, scale_first, element_first, scales, codes)``.

    It is for blocks of ``length`` float32 words, with the tables of `fill_tables`; elements have a sign and the codes 0
    to STEPS without it. The other arguments are those of `make_power_quantizer`.
    """
    LENGTH = length

    @kernel
    def quantizer(
        words: Any,
        n: Any,
        start: Any,
        stop: Any,
        plan: Any,
        buckets: Any,
        scale_first: Any,
        element_first: Any,
        scales: Any,
        codes: Any,
    ) -> None:
        p = plan[0]
        per_row = (n + LENGTH - 1) // LENGTH
        nan, sign = np.uint8(p["element_nan"]), np.uint32(p["shift"])
        bucket_shift = np.uint32(np.int64(23 - 2) - p["m"])
        scale_nan = p["scale_nan"]
        row, k = start // per_row, start % per_row
        for block in range(start, stop):
            first = np.uint64(row * n + k * LENGTH)
            count = min(LENGTH, n - k * LENGTH)
            k += 1
            if k == per_row:
                row, k = row + 1, 0
            amax = _ZERO32
            if count == LENGTH:
                for j in range(LENGTH):
                    a = np.uint32(words[first + np.uint64(j)] & _MAGNITUDE32)
                    amax = a if a > amax else amax
            else:
                for j in range(count):
                    a = np.uint32(words[first + np.uint64(j)] & _MAGNITUDE32)
                    amax = a if a > amax else amax
            if amax >= _INF32:
                scales[block] = scale_nan
                for j in range(count):
                    codes[first + np.uint64(j)] = nan
                continue
            # A bucket is narrower than the step from one scale to the next: one more at most, but for subnormal amax.
            # The step is taken without a branch, which would go either way too often; past the last code is infinity.
            scale = np.int64(buckets[shr(amax, bucket_shift)])
            scale += np.int64(amax >= scale_first[scale + 1])
            while amax >= scale_first[scale + 1]:
                scale += 1
            scales[block] = scale
            b1, b2, b3 = element_first[scale, 0], element_first[scale, 1], element_first[scale, 2]
            b4, b5 = element_first[scale, 3], element_first[scale, 4]
            b6, b7 = element_first[scale, 5], element_first[scale, 6]
            if count == LENGTH:
                for j in range(LENGTH):
                    i = first + np.uint64(j)
                    codes[i] = _step_code(words[i], b1, b2, b3, b4, b5, b6, b7, sign)
            else:
                for j in range(count):
                    i = first + np.uint64(j)
                    codes[i] = _step_code(words[i], b1, b2, b3, b4, b5, b6, b7, sign)

    return quantizer


# Back.


@kernel
def multiply_scales(
    codes: Any,
    n: Any,
    length: Any,
    elements: Any,
    scales: Any,
    numbers: Any,
    origin: Any,
    out: Any,
    base: Any,
    start: Any,
    stop: Any,
) -> None:
    """Write the values of the blocks ``base + start`` to ``base + stop``.

    Parameters
    ----------
    codes
        Of rows of ``n`` elements.
    elements
        float64: the value of each code.
    scales
        Codes of the scales.
    numbers
        float64: the value of each code of a scale, times the scale of the tensor. No product becomes subnormal,
        and each fits the significand, so that products are exact under any rounding mode and flush bits.
    origin, out
        float64, beginning with element ``origin``; a NaN is the positive quiet one.
    """
    per_row = (n + length - 1) // length
    for block in range(base + start, base + stop):
        row, k = block // per_row, block % per_row
        first = row * n + k * length
        number = numbers[scales[block]]
        for i in range(first, min(first + length, row * n + n)):
            value = elements[codes[i]] * number
            out[i - origin] = value if value == value else np.nan
