"""Values to codes and back, and what kind of number a code is."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim._arrays import apart, output_array
from mpsim._decoding import code_layout, decode_words
from mpsim._plans import rounded
from mpsim.counters import Counters
from mpsim.formats import FloatFormat, FormatLike, Specials, get_format
from mpsim.modes import NaN, Overflow, Rounding
from mpsim.stochastic import DrawsLike

__all__ = ["NumberClass", "classify", "decode", "encode"]


def encode(
    x: ArrayLike,
    fmt: FormatLike,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.IEEE,
    *,
    flush_subnormals: bool = False,
    subnormal_inputs_as_zero: bool = False,
    nan: NaN | str | int = NaN.CANONICAL,
    rng: DrawsLike = None,
    counters: Counters | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Round to a format and return the codes.

    Parameters
    ----------
    x : array_like of real numbers, any shape and strides
        float64 and integers are rounded once, never through float32.
    fmt : FloatFormat or name
    rounding : Rounding or name
        ``"nearest-even"``, ``"nearest-away"``, ``"toward-zero"``, ``"up"``, ``"down"``, ``"to-odd"`` or
        ``"stochastic"``.
    overflow : {"ieee", "saturate"}
        ``"ieee"`` is the rule of the format's standard: infinity, else NaN, else the largest finite number.
        ``"saturate"`` gives the largest finite number, for infinite inputs too.
    flush_subnormals : bool
        Results that are tiny after rounding become signed zero, as under x86's FTZ.
    subnormal_inputs_as_zero : bool
        Numbers that are subnormal in the dtype of ``x`` are read as signed zero, as under x86's DAZ.
    nan : {"canonical", "payload"} or int
        Which NaN comes out: a quiet one without payload, one that keeps sign and leading payload bits (formats with
        IEEE 754's NaNs), or always this code.
    rng : Draws or int
        Random numbers of stochastic rounding, or their seed; needed there, and only there.
    counters : Counters, optional
        Counts what was lost; accumulates.
    out : array of ``fmt.code_dtype``, shape of ``x``, C-contiguous, optional
        Written and returned.

    Returns
    -------
    codes : array of ``fmt.code_dtype``, shape of ``x``
        NaNs give the format's quiet NaN, with their sign where it has two, unless ``nan`` says otherwise; in a format
        without NaN, the code ``fmt.nan_to``. Negative numbers that do not round to zero are NaN in an unsigned format.

    Raises
    ------
    TypeError
        ``x`` is not real, or ``out`` has another dtype.
    ValueError
        Unknown names; ``out`` of another shape or not contiguous; integers beyond 2**53 that may be subnormal in a
        format with p above 51, or under stochastic rounding.

    Notes
    -----
    Overflow and tininess are decided after rounding with unbounded exponent (IEEE 754-2019, 7.4 and 7.5).

    Examples
    --------
    >>> encode([1.0, 65504.0, 65519.99, 65520.0], "fp16")
    array([15360, 31743, 31743, 31744], dtype=uint16)
    """
    return rounded(
        x, fmt, True, rounding, overflow, flush_subnormals, subnormal_inputs_as_zero, nan, rng, counters, out
    )


def decode(
    codes: ArrayLike, fmt: FormatLike, nan: NaN | str = NaN.CANONICAL, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return the values of codes.

    Parameters
    ----------
    codes : array_like of integers, any shape
        Bit patterns of the format, each in the low bits of an integer.
    fmt : FloatFormat or name
    nan : {"canonical", "payload"}
        Whether NaNs keep their payload, in the leading fraction bits.
    out : array of the result's shape and dtype, C-contiguous, optional

    Returns
    -------
    values : float32 array, shape of ``codes``
        float64 where float32 cannot hold the format. NaNs are quiet.

    Raises
    ------
    TypeError
        ``codes`` are not integers.
    ValueError
        A code has more bits than the format.

    Examples
    --------
    >>> decode([0x7B, 0x7E, 0xFF], "e4m3")
    array([352., 448.,  nan], dtype=float32)
    """
    f = get_format(fmt)
    words = _as_codes(codes, f)
    words = apart(words, out) if out is not None else words
    keep_payload = NaN.of(nan, "nan") is NaN.PAYLOAD
    if keep_payload and f.specials is not Specials.IEEE:
        raise ValueError(f"nan is 'payload', but NaNs of {f} have none; choose 'canonical'")
    return decode_words(words, f, output_array(out, words.shape, f.value_dtype), keep_payload)


class NumberClass(enum.IntEnum):
    """Kinds of number a code can be (IEEE 754-2019, 5.7.2, without signs)."""

    ZERO = 0
    SUBNORMAL = 1
    NORMAL = 2
    INFINITE = 3
    NAN = 4


def classify(codes: ArrayLike, fmt: FormatLike) -> NDArray[np.uint8]:
    """Return the `NumberClass` of each code, as uint8 in the shape of ``codes``.

    Examples
    --------
    >>> classify([0x0000, 0x0001, 0x3C00, 0x7C00, 0x7E00], "fp16")
    array([0, 1, 2, 3, 4], dtype=uint8)
    """
    f = get_format(fmt)
    words = _as_codes(codes, f).astype(np.uint64)
    layout = code_layout(f)
    magnitude = words & np.uint64(~f.sign_code & (2**64 - 1))
    kind = np.full(words.shape, NumberClass.NORMAL, np.uint8)
    if f.has_subnormals:
        kind[magnitude < np.uint64(1 << f.m)] = NumberClass.SUBNORMAL
    if f.has_zero:
        kind[magnitude == 0] = NumberClass.ZERO
    kind[magnitude == layout["inf"]] = NumberClass.INFINITE
    kind[(magnitude >= layout["nan_from"]) | (words == layout["nan_code"])] = NumberClass.NAN
    return kind


def _as_codes(codes: ArrayLike, fmt: FloatFormat) -> NDArray[Any]:
    array = np.asarray(codes)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(fmt.code_dtype)  # an empty list
    if array.dtype.kind not in "iu":
        raise TypeError(f"codes have dtype {array.dtype}; unsigned integers are needed (numpy.view shows a float's)")
    if array.dtype == fmt.code_dtype and fmt.bits == 8 * fmt.code_dtype.itemsize:
        return np.ascontiguousarray(array).reshape(array.shape)
    last = (1 << fmt.bits) - 1
    if array.size and (int(array.min()) < 0 or int(array.max()) > last):
        raise ValueError(f"codes reach from {array.min()} to {array.max()}; {fmt} has codes 0 to {last:#x}")
    return np.asarray(array, dtype=fmt.code_dtype, order="C")
