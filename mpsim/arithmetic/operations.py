"""Operations with one rounding (IEEE 754-2019, 5.3 and 5.4)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim.arithmetic._calls import Options, arithmetic_format, as_words, begin, named
from mpsim.arithmetic._numbers import layout_for, target_for
from mpsim.arithmetic.environment import Settings
from mpsim.formats import FloatFormat, FormatLike
from mpsim_kernels.arithmetic_fast import (
    FAST,
    divide_fast_loop,
    fused_fast_loop,
    make_fast,
    square_root_fast_loop,
)
from mpsim_kernels.arithmetic_loops import integral_loop, look_up_loop, remainder_loop

__all__ = ["add", "div", "fma", "mul", "rem", "round_to_integral", "sqrt", "sub"]

_TABLE_FROM = 1 << 15  # elements for which a table of all pairs of 8-bit codes is worth building


def add(a: ArrayLike, b: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return ``a + b`` in a format, rounded once.

    Parameters
    ----------
    a, b : array_like, broadcast against each other
        Values of ``fmt`` (others are rounded to it first, to nearest, ties to even), or its codes with ``codes=True``.
        NaN payloads and signalling NaNs exist in codes only.
    fmt : FloatFormat or name
        Any format of at most 32 bits.
    **options
        See `Options`: ``rounding``, ``overflow``, ``tininess``, ``flush_subnormals``, ``subnormal_inputs_as_zero``,
        ``nan``, ``codes``, ``return_flags``, ``out``.

    Returns
    -------
    sum : float32 array (float64 where float32 cannot hold the format), or codes
        ``encode`` of the exact sum. With ``return_flags=True`` a pair, the second a uint8 array of `Flags`.

    Notes
    -----
    IEEE 754-2019, 5.4.1. An exact zero sum is -0 if both operands are, or if rounding is down and they differ; else +0
    (6.3). A format without zero gives its smallest number instead, which is inexact.

    Examples
    --------
    >>> add(2048.0, [0.5, 1.0, 3.0], "fp16")
    array([2048., 2048., 2052.], dtype=float32)
    >>> add(0x7BFF, 0x7BFF, "fp16", codes=True, return_flags=True)
    (array(31744, dtype=uint16), array(5, dtype=uint8))
    """
    return _binary("add", a, b, fmt, options)


def sub(a: ArrayLike, b: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return ``a - b`` in a format, rounded once; as `add`.

    Examples
    --------
    >>> sub(1.0, [1.0, 2**-12], "fp16", rounding="down")
    array([-0.       ,  0.9995117], dtype=float32)
    """
    return _binary("sub", a, b, fmt, options)


def mul(a: ArrayLike, b: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return ``a * b`` in a format, rounded once; parameters and result as `add`.

    Examples
    --------
    >>> mul(3.0, [1.125, 160.0], "e4m3", return_flags=True)
    (array([3.5, nan], dtype=float32), array([1, 5], dtype=uint8))
    """
    return _binary("mul", a, b, fmt, options)


def div(a: ArrayLike, b: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return ``a / b`` in a format, rounded once; parameters and result as `add`.

    Notes
    -----
    A finite number divided by zero raises divide-by-zero and gives infinity, or what a format without infinity has for
    it; 0/0 and infinity by infinity are invalid (IEEE 754-2019, 7.2 and 7.3).

    Examples
    --------
    >>> div(1.0, [3.0, 0.0], "bf16", return_flags=True)
    (array([0.33398438,        inf], dtype=float32), array([1, 8], dtype=uint8))
    """
    return _binary("div", a, b, fmt, options)


def rem(a: ArrayLike, b: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return the IEEE remainder ``a - b * n``, n the integer nearest to the exact a / b, ties to even; as `add`.

    Notes
    -----
    IEEE 754-2019, 5.3.1. It is always exact in a format with subnormals and a sign; a zero has the sign of ``a``.

    Examples
    --------
    >>> rem([5.0, 6.0, 7.0], 4.0, "fp16")
    array([ 1., -2., -1.], dtype=float32)
    """
    return _binary("rem", a, b, fmt, options)


def sqrt(a: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return the square root of ``a`` in a format, rounded once; parameters and result as `add`.

    Examples
    --------
    >>> sqrt([2.0, -0.0, -1.0], "fp16")
    array([ 1.4140625, -0.       ,        nan], dtype=float32)
    """
    call = begin("sqrt", options)
    f = arithmetic_format(fmt)
    loop = named(square_root_fast_loop, *_numbers(f, call.settings))
    return call.run(loop, [as_words(a, f, call.codes, "a")], f)


def fma(a: ArrayLike, b: ArrayLike, c: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return ``a * b + c`` in a format, rounded once; parameters and result as `add`.

    Notes
    -----
    IEEE 754-2019, 5.4.1. Infinity times zero plus a quiet NaN is invalid except with ``nan="x86"``.

    Examples
    --------
    >>> fma(1 + 2**-10, 1 - 2**-10, -1.0, "fp16"), mul(1 + 2**-10, 1 - 2**-10, "fp16")
    (array(-9.536743e-07, dtype=float32), array(1., dtype=float32))
    """
    call = begin("fma", options)
    f = arithmetic_format(fmt)
    operands = [as_words(x, f, call.codes, name) for x, name in ((a, "a"), (b, "b"), (c, "c"))]
    return call.run(named(fused_fast_loop, *_numbers(f, call.settings)), operands, f)


def round_to_integral(a: ArrayLike, fmt: FormatLike, *, exact: bool = False, **options: Unpack[Options]) -> Any:
    """Return ``a`` rounded to an integer, in its format; parameters and result as `add`.

    Parameters
    ----------
    a : array_like
    fmt : FormatLike
    exact : bool
        Whether a result that differs from ``a`` raises inexact (``roundToIntegralExact``).
    **options
        ``rounding`` is the direction; to-odd takes the odd one of the two integers around a number.

    Notes
    -----
    IEEE 754-2019, 5.9. A zero result keeps the sign of ``a``.

    Examples
    --------
    >>> round_to_integral([0.5, 1.5, -0.25], "fp16", exact=True, return_flags=True)
    (array([ 0.,  2., -0.], dtype=float32), array([1, 1, 1], dtype=uint8))
    """
    call = begin("round_to_integral", options)
    f = arithmetic_format(fmt)
    loop = named(integral_loop, *_numbers(f, call.settings), np.int64(exact))
    return call.run(loop, [as_words(a, f, call.codes, "a")], f)


def _binary(name: str, a: ArrayLike, b: ArrayLike, fmt: FormatLike, options: Options) -> Any:
    call = begin(name, options)
    f = arithmetic_format(fmt)
    x, y = as_words(a, f, call.codes, "a"), as_words(b, f, call.codes, "b")
    loop = {"div": divide_fast_loop, "rem": remainder_loop}[name] if name not in FAST else make_fast(FAST.index(name))
    if f.code_dtype == np.uint8 and max(x.size, y.size) >= _TABLE_FROM:
        return call.run(named(look_up_loop, *_table(loop, f, call.settings)), [x, y], f, widen=False)
    return call.run(named(loop, *_numbers(f, call.settings)), [x, y], f)


def _numbers(fmt: FloatFormat, settings: Settings) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return layout_for(fmt, settings.subnormal_inputs_as_zero), target_for(fmt, settings)


@functools.lru_cache(maxsize=64)
def _table(
    loop: Callable[..., None], fmt: FloatFormat, settings: Settings
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return results and flags for every pair of 8-bit codes, at ``x * 256 + y``; 128 KB."""
    pair = np.arange(1 << 16, dtype=np.uint16)
    last = np.uint16((1 << fmt.bits) - 1)
    codes, flags = np.empty(1 << 16, np.uint16), np.empty(1 << 16, np.uint8)
    x, y = pair >> np.uint16(8) & last, pair & np.uint16(255) & last
    loop(x, y, codes, flags, np.empty(0, np.int64), *_numbers(fmt, settings))
    return codes.astype(np.uint8), flags
