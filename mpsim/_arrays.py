"""Arrays at the door: sources without rounding, outputs that fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["WORDS", "apart", "as_source", "bit_lengths", "elements", "magnitudes", "output_array"]

WORDS: dict[int, np.dtype[Any]] = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}
"""Type of the words of floats, by their bytes."""


def as_source(x: ArrayLike) -> NDArray[Any]:
    """Return ``x`` as a contiguous float32 or float64 array of its shape, without rounding anything.

    Narrower floats and bool become float32, integers float64; beyond 2**53 they are rounded to odd, so that a second
    rounding to 51 bits or fewer is right (Boldo and Melquiond 2008).
    """
    array = np.asarray(x)
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "f" and size in (4, 8):
        dtype = np.dtype(f"f{size}")
    elif kind in "iu" and size == 8:
        return _odd_float64(array)
    elif kind in "iu":
        dtype = np.dtype(np.float64)
    elif kind == "b" or (kind == "f" and size <= 2) or _is_small_float(array.dtype):
        dtype = np.dtype(np.float32)
    else:
        raise TypeError(f"x has dtype {array.dtype}; real numbers are needed: float16, float32, float64 or integers")
    return np.asarray(array, dtype=dtype, order="C")


def magnitudes(x: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    """Return which integers are negative, and their magnitudes."""
    negative = x < 0
    return negative, np.where(negative, np.uint64(0) - x.astype(np.uint64), x.astype(np.uint64))


def bit_lengths(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return how many bits integers have, up to the highest that is set; 0 for 0."""
    # With the bit below the highest cleared, rounding to float64 cannot reach the next power of two.
    _, exponents = np.frexp((x & ~(x >> np.uint64(1))).astype(np.float64))
    return np.asarray(exponents, np.uint64)


def elements(x: NDArray[Any]) -> NDArray[Any]:
    """Return all elements in a row, in an order of which nothing is promised: that of the memory, if there is one."""
    if not x.flags.c_contiguous:
        x = x.transpose(sorted(range(x.ndim), key=lambda axis: -x.strides[axis]))
    return np.ascontiguousarray(x).reshape(-1)


def apart(source: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
    """Return the source, or a copy where writing ``out`` would overwrite elements not read yet."""
    same = source.itemsize == out.itemsize and source.ctypes.data == out.ctypes.data
    return source.copy() if np.may_share_memory(source, out) and not same else source


def output_array(out: NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return ``out`` after checking it, or a new array."""
    if out is None:
        return np.empty(shape, dtype)
    if out.dtype != dtype:
        raise TypeError(f"out has dtype {out.dtype}; {dtype} is needed")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; {shape} is needed")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError("out must be C-contiguous and writeable; numpy.empty(shape, dtype) makes such an array")
    return out


def _is_small_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is one of the narrow floats of ml_dtypes, all exact in float32."""
    return dtype.kind == "V" and dtype.fields is None and np.can_cast(dtype, np.float32)


def _odd_float64(array: NDArray[Any]) -> NDArray[np.float64]:
    """Return 64-bit integers as float64, rounded to odd where they have more than 53 bits."""
    negative, magnitude = magnitudes(array)
    excess = np.maximum(bit_lengths(magnitude), np.uint64(53)) - np.uint64(53)
    kept = magnitude >> excess
    kept |= (kept << excess) != magnitude
    value = np.ldexp(kept.astype(np.float64), excess.astype(np.int64))
    return np.where(negative, -value, value)
