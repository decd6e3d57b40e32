"""Exact sums of float64 numbers in a long fixed-point accumulator, rounded once to float32.

The accumulator is a row of limbs of 32 bits, each kept in an int64, so that carries can wait: a thousand million
terms may be added before they are passed on. Its lowest bit is ``2**-384``, and its highest is far above the products
of float32 numbers. Slow, and right for any terms.
"""

from typing import Any

import numpy as np

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels.significands import bit_length

__all__ = ["LIMBS", "add_exactly", "rounded_sum"]

LIMBS = 23
_LOWEST = 384  # the first bit of the first limb is 2**-384
_MASK = np.int64(0xFFFFFFFF)


@kernel
def add_exactly(x: Any, limbs: Any) -> None:
    """Add a float64, 0 or between ``2**-298`` and ``2**287`` in magnitude, to ``limbs`` int64 [`LIMBS`]."""
    word = np.float64(x).view(np.int64)
    field = (word >> np.int64(52)) & np.int64(2047)
    if field == 0:
        return
    sig = (word & np.int64((1 << 52) - 1)) | np.int64(1 << 52)
    if word < 0:
        sig = -sig
    place = field + np.int64(_LOWEST - 1075)
    limb, shift = place >> np.int64(5), place & np.int64(31)
    low = (sig & _MASK) << shift
    middle = ((sig >> np.int64(32)) << shift) + (low >> np.int64(32))  # the upper half has the sign
    limbs[limb] += low & _MASK
    limbs[limb + 1] += middle & _MASK
    limbs[limb + 2] += middle >> np.int64(32)


@inner_kernel
def _carry(limbs: Any) -> Any:
    """Pass all carries on, so that limbs are between 0 and 2**32; return the last: -1 for a negative sum, else 0."""
    carry = np.int64(0)
    for i in range(LIMBS):
        total = limbs[i] + carry
        limbs[i] = total & _MASK
        carry = total >> np.int64(32)
    return carry


@kernel
def rounded_sum(limbs: Any) -> Any:
    """Return the float32 next to the sum, ties to even, and clear the limbs. An exact zero is +0."""
    sign = np.int64(0)
    if _carry(limbs) < 0:
        sign = np.int64(1)
        for i in range(LIMBS):
            limbs[i] = -limbs[i]
        _carry(limbs)
    top = LIMBS - 1
    while top > 0 and limbs[top] == 0:
        top -= 1
    word = np.int64(0)
    if limbs[top] != 0:
        # The leading 63 bits; the last is set where others follow. No term reaches into the first limb alone.
        sticky = limbs[top - 1] & np.int64(1)
        for i in range(top - 1):
            sticky |= np.int64(limbs[i] != 0)
        sig = (limbs[top] << np.int64(31)) | (limbs[top - 1] >> np.int64(1)) | sticky
        e = np.int64(32 * (top - 1) + 1 - _LOWEST)
        # At least 8 bits are rounded off. If it were 63 or more, what is left would be far less than half a quantum.
        drop = max(bit_length(sig) - np.int64(24), np.int64(-149) - e)
        if drop > 62:
            sig, drop = np.int64(0), np.int64(62)
        kept = sig >> drop
        rest = sig - (kept << drop)
        half = np.int64(1) << (drop - np.int64(1))
        if rest > half or (rest == half and kept & np.int64(1)):
            kept += np.int64(1)
        # The hidden bit adds one to the field, and so does a carry to 2**24.
        field = max(e + drop + np.int64(149), np.int64(0))
        word = (sign << np.int64(31)) | min((field << np.int64(23)) + kept, np.int64(0x7F800000))
    limbs[:] = 0
    return np.uint32(word).view(np.float32)
