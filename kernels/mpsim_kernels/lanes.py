"""Steps that the kernels of whole rows share, on one float32 or int32 lane each."""

from typing import Any

import numpy as np

from mpsim_kernels._jit import inlined_kernel, inner_kernel

__all__ = [
    "INF",
    "MAGNITUDE",
    "SIGN",
    "TILE",
    "WIDE_WIDTH",
    "WIDTH",
    "higher",
    "lower",
    "power_of_two",
    "sign_and_magnitude",
    "sum_32",
    "sum_of_4_cut",
]

MAGNITUDE, SIGN, INF = np.int32(0x7FFFFFFF), np.int32(-(1 << 31)), np.int32(0x7F800000)
"""Parts of a float32 word, and the word of infinity."""

TILE = 64
"""Rows of accumulators that stay in the second-level cache while the blocks of a panel pass."""

WIDTH = 256
"""Columns of a panel of float32: 16 of its rows and a row of accumulators fit the first-level cache."""

WIDE_WIDTH = 128
"""Columns of a panel of float64."""

# Casts such as np.int32(a + b) are not decoration: Numba would widen the sum to 64 bits and so halve the lanes.


@inlined_kernel
def higher(a: Any, b: Any) -> Any:
    """Return the larger of two numbers of one type."""
    return a if a > b else b


@inlined_kernel
def lower(a: Any, b: Any) -> Any:
    """Return the smaller of two numbers of one type."""
    return a if a < b else b


@inner_kernel
def sum_32(a: Any, b: Any) -> Any:
    """Return the sum of two int32, which must fit."""
    return np.int32(a + b)


@inner_kernel
def _cut(a: Any, b: Any, scale: Any) -> Any:
    """Return the product in units of ``1 / scale``, cut toward zero; it must fit an int32."""
    return np.int32(a * b * scale)


@inner_kernel
def sum_of_4_cut(a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, b2: Any, b3: Any, scale: Any) -> Any:
    """Return the sum of 4 products in units of ``1 / scale``, each cut toward zero."""
    low = sum_32(_cut(a0, b0, scale), _cut(a1, b1, scale))
    return sum_32(low, sum_32(_cut(a2, b2, scale), _cut(a3, b3, scale)))


@inner_kernel
def power_of_two(biased: Any) -> Any:
    """Return the float32 with this biased exponent and no fraction."""
    return np.int32(np.int32(biased) << 23).view(np.float32)


@inner_kernel
def sign_and_magnitude(low: Any, high: Any) -> Any:
    """Return the sign bit and the magnitude of ``low + high``, below 2**32, and whether the magnitude was halved.

    A large sum is halved to fit an int32. No result keeps its last bit; where rounding may look at it, it is sticky.
    """
    wrapped = np.int32(np.int64(low) + np.int64(high))
    # Two numbers of one sign whose sum shows the other: it has left 32 bits, and its sign is theirs.
    left = np.int32(np.int32(low ^ wrapped) & np.int32(high ^ wrapped))
    sign = np.int32(np.int32(wrapped ^ left) & SIGN)
    magnitude = np.uint32(-np.int64(wrapped) if sign != 0 else np.int64(wrapped))
    large = magnitude >= np.uint32(1 << 30)
    halved = np.uint32(np.uint32(magnitude >> np.uint32(1)) | np.uint32(magnitude & np.uint32(1)))
    return sign, np.int32(halved if large else magnitude), large
