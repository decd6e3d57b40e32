"""Operands of matrix products as arrays of values: rounded, or decoded from bit patterns."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim.encoding import decode, encode
from mpsim.formats import FP32, FP64, TF32, FloatFormat, Specials, get_format
from mpsim.modes import NaN
from mpsim.rounding import Rounding, round_to
from mpsim.units import MatrixUnit

__all__ = ["Codes", "Operands", "Values", "accumulator_format", "decoded", "result_dtype", "scale_codes", "values"]

Values = NDArray[Any]
"""float32, or float64 where the format needs it."""
Codes = NDArray[Any]

_TF32_MASK = np.uint32(0xFFFFE000)


class Operands(NamedTuple):
    """What goes into a product: values [..., M, K], [..., K, N] and [..., M, N], and codes of the blocks' scales."""

    a: Values
    b: Values
    c: Values | None = None
    scale_a: Codes | None = None
    """[..., M, ceil(K / block)]"""
    scale_b: Codes | None = None
    """[..., ceil(K / block), N]"""


def values(x: Any, fmt: FloatFormat, rounded: bool = False) -> Values:
    """Return ``x`` as values of ``fmt``, rounded once from the source; tf32 toward zero."""
    array = np.asarray(x)
    rounding = _rounding(fmt)
    if rounding is None and fmt == FP64:
        return array.astype(np.float64, copy=False)
    if array.dtype == np.float32:
        return array if rounded or rounding is None else round_to(array, fmt, rounding)
    if rounded and array.dtype != np.float64:
        return array.astype(np.float32)
    # Through codes, so that no float64 is converted by the processor, whose flush bits reach subnormals.
    return decode(encode(array, fmt, rounding or Rounding.NEAREST_EVEN), fmt)


@functools.cache
def _rounding(fmt: FloatFormat) -> Rounding | None:
    """Return how float32 is rounded to a format of inputs, or None where it holds every float32."""
    if fmt in (FP32, FP64):
        return None
    return Rounding.TOWARD_ZERO if fmt == TF32 else Rounding.NEAREST_EVEN


def decoded(codes: ArrayLike, fmt: FloatFormat, argument: str) -> Values:
    """Return the values of codes in the layout that matrix instructions use, NaNs with their payload."""
    if fmt == FP64:
        return _words(codes, fmt, np.uint64, argument).view(np.float64)
    if fmt == FP32:
        # No decoding, which would be free to quieten NaNs.
        return _words(codes, fmt, np.uint32, argument).view(np.float32)
    if fmt == TF32:
        return (_words(codes, fmt, np.uint32, argument) & _TF32_MASK).view(np.float32)
    return decode(codes, fmt, NaN.PAYLOAD if fmt.specials is Specials.IEEE else NaN.CANONICAL)


def scale_codes(codes: ArrayLike | None, row: MatrixUnit, argument: str) -> Codes | None:
    """Return the codes of the scales of one operand as uint8."""
    if codes is None and not row.scale:
        return None
    if codes is None:
        raise ValueError(
            f"matmul: {argument} is missing; {row} takes one {row.scale} code for {row.scale_block} elements"
        )
    if not row.scale:
        raise ValueError(f"matmul: {argument} was given, but {row} has no scales for blocks")
    array = np.asarray(codes)
    if array.dtype.kind not in "iu" or (array.size and not 0 <= int(array.min()) <= int(array.max()) <= 255):
        raise TypeError(f"matmul: {argument} has dtype {array.dtype}; codes of {row.scale} in 0..255 are needed")
    return array.astype(np.uint8, copy=False)


def accumulator_format(c: ArrayLike, row: MatrixUnit) -> FloatFormat:
    """Return the format of accumulator codes, which their width tells."""
    dtype = np.asarray(c).dtype
    for name in row.accumulators:
        if dtype == get_format(name).code_dtype:
            return get_format(name)
    return get_format(row.out)


def result_dtype(row: MatrixUnit) -> type[np.floating[Any]]:
    """Return the dtype of the values of a unit's results."""
    return np.float64 if row.out == "fp64" else np.float32


def _words(codes: ArrayLike, fmt: FloatFormat, dtype: type[Any], argument: str) -> NDArray[Any]:
    array = np.asarray(codes)
    if array.dtype.kind not in "iu":
        raise TypeError(f"matmul: {argument} has dtype {array.dtype}; unsigned integers are needed, codes of {fmt}")
    return np.ascontiguousarray(array, dtype=dtype).reshape(array.shape)
