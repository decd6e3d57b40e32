"""Conversions between formats, and to and from integers (IEEE 754-2019, 5.4.1, 5.4.2 and 5.8)."""

from __future__ import annotations

from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from mpsim.arithmetic._calls import Options, as_words, begin, named
from mpsim.arithmetic._numbers import layout_for, target_for
from mpsim.arithmetic.environment import NanRule
from mpsim.formats import FormatLike, Specials, get_format
from mpsim_kernels.arithmetic_loops import convert_loop, from_integer_loop, to_integer_loop

__all__ = ["convert", "from_integer", "to_integer"]

_INTEGERS = ("int32", "int64", "uint32", "uint64")


def convert(a: ArrayLike, source: FormatLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return numbers of the format ``source`` in the format ``fmt``, rounded once.

    Parameters
    ----------
    a : array_like
        Values of ``source`` (others are rounded to it first), or its codes with ``codes=True``.
    source, fmt : FloatFormat or name
        Any formats, of 64 bits too.
    **options
        As for `add`. With ``nan="x86"`` the sign and the highest bits of a NaN's payload are kept.

    Returns
    -------
    numbers : values or codes of ``fmt``
        An infinity that ``fmt`` cannot hold raises overflow and inexact.

    Examples
    --------
    >>> convert([1.0, 1e-8, 7e4], "fp32", "fp16", return_flags=True)
    (array([ 1.,  0., inf], dtype=float32), array([0, 3, 5], dtype=uint8))
    >>> convert(0x3C00, "fp16", "bf16", codes=True)
    array(16256, dtype=uint16)
    """
    call = begin("convert", options)
    f, g = get_format(source), get_format(fmt)
    if call.settings.nan is not NanRule.DEFAULT and f.specials is not Specials.IEEE:
        raise ValueError(f"nan is {call.settings.nan.value!r}, but NaNs of {f} have no payload: choose nan='default'")
    numbers = layout_for(f, call.settings.subnormal_inputs_as_zero), target_for(g, call.settings)
    return call.run(named(convert_loop, *numbers), [as_words(a, f, call.codes, "a")], g)


def from_integer(a: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return integers in the format ``fmt``, rounded once.

    Parameters
    ----------
    a : array_like of integers of any width and sign
    fmt : FloatFormat or name
    **options
        As for `add`; ``codes`` speaks of the result.

    Examples
    --------
    >>> from_integer([2049, 2051, 65520], "fp16")
    array([2048., 2052.,   inf], dtype=float32)
    """
    call = begin("from_integer", options)
    g = get_format(fmt)
    integers = np.asarray(a)
    if integers.dtype.kind not in "iu":
        raise TypeError(f"a has dtype {integers.dtype}; integers are needed (convert takes numbers of a format)")
    unsigned = integers.dtype == np.uint64
    words = integers if unsigned else integers.astype(np.int64)
    loop = named(from_integer_loop, target_for(g, call.settings), np.int64(not unsigned))
    return call.run(loop, [words], g)


def to_integer(
    a: ArrayLike,
    fmt: FormatLike,
    dtype: DTypeLike = np.int32,
    *,
    exact: bool = True,
    beyond: Literal["indefinite", "saturate"] = "indefinite",
    **options: Unpack[Options],
) -> NDArray[Any] | Any:
    """Return numbers rounded to integers.

    Parameters
    ----------
    a : array_like
        Values of ``fmt``, or codes with ``codes=True``.
    fmt : FloatFormat or name
    dtype : int32, int64, uint32 or uint64
    exact : bool
        Whether an integer that differs from ``a`` raises inexact (IEEE 754's ``convertToIntegerExact...``).
    beyond : {"indefinite", "saturate"}
        What an integer out of range, an infinity or a NaN becomes; all are invalid. ``"indefinite"`` is x86's pattern:
        the smallest signed integer, the largest unsigned one. ``"saturate"`` is the nearest integer, and 0 for NaN, as
        on Arm.
    **options
        ``rounding`` is the direction; to-odd takes the odd one of the two integers around a number.

    Returns
    -------
    integers : array of ``dtype``

    Examples
    --------
    >>> to_integer([2.5, -1.75, float("nan")], "fp16", rounding="toward-zero")
    array([          2,          -1, -2147483648], dtype=int32)
    """
    call = begin("to_integer", options)
    f, wanted = get_format(fmt), np.dtype(dtype)
    if wanted.name not in _INTEGERS:
        raise TypeError(f"dtype is {wanted}; it must be one of {', '.join(_INTEGERS)}")
    if beyond not in ("indefinite", "saturate"):
        raise ValueError(f"beyond is {beyond!r}; it must be 'indefinite' or 'saturate'")
    limits, signed = np.iinfo(wanted), wanted.kind == "i"
    indefinite = limits.min if signed else limits.max
    replacements = (0, limits.max, limits.min) if beyond == "saturate" else (indefinite,) * 3
    loop = named(
        to_integer_loop,
        layout_for(f, call.settings.subnormal_inputs_as_zero),
        target_for(f, call.settings),
        np.int64(limits.bits),
        np.int64(signed),
        np.int64(exact),
        np.array(replacements, wanted).astype(np.int64),
    )
    return call.run(loop, [as_words(a, f, call.codes, "a")], wanted)
