"""Comparisons (IEEE 754-2019, 5.11)."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from mpsim.arithmetic._calls import Options, arithmetic_format, as_words, begin, named
from mpsim.arithmetic._numbers import layout_for
from mpsim.formats import FormatLike
from mpsim_kernels.arithmetic_loops import compare_loop

__all__ = ["eq", "ge", "gt", "le", "lt", "ne", "unordered"]

_LESS, _EQUAL, _GREATER, _UNORDERED = 1, 2, 4, 8


def eq(a: ArrayLike, b: ArrayLike, fmt: FormatLike, *, signalling: bool = False, **options: Unpack[Options]) -> Any:
    """Return whether ``a == b``; both zeros are equal, and a NaN equals nothing.

    Parameters
    ----------
    a, b : array_like, broadcast against each other
        Values of ``fmt`` (others are rounded to it first), or codes with ``codes=True``.
    fmt : FloatFormat or name
    signalling : bool
        Whether a quiet NaN is invalid too; a signalling NaN always is. By default equality is quiet and the relations
        of order are signalling, as in IEEE 754.
    **options
        Those of `add` that concern comparisons: ``subnormal_inputs_as_zero``, ``codes``, ``return_flags``, ``out``.

    Returns
    -------
    bool array
        With ``return_flags=True`` a pair, the second a uint8 array of `Flags`.

    Examples
    --------
    >>> eq([0.0, 1.0, float("nan")], [-0.0, 2.0, float("nan")], "fp16")
    array([ True, False, False])
    """
    return _compare("eq", a, b, fmt, _EQUAL, signalling, options)


def ne(a: ArrayLike, b: ArrayLike, fmt: FormatLike, *, signalling: bool = False, **options: Unpack[Options]) -> Any:
    """Return whether ``a != b``, which holds where one is NaN; as `eq`."""
    return _compare("ne", a, b, fmt, _LESS | _GREATER | _UNORDERED, signalling, options)


def lt(a: ArrayLike, b: ArrayLike, fmt: FormatLike, *, signalling: bool = True, **options: Unpack[Options]) -> Any:
    """Return whether ``a < b``; as `eq`.

    Examples
    --------
    >>> lt(float("nan"), 1.0, "fp16", return_flags=True)
    (array(False), array(16, dtype=uint8))
    """
    return _compare("lt", a, b, fmt, _LESS, signalling, options)


def le(a: ArrayLike, b: ArrayLike, fmt: FormatLike, *, signalling: bool = True, **options: Unpack[Options]) -> Any:
    """Return whether ``a <= b``; as `eq`."""
    return _compare("le", a, b, fmt, _LESS | _EQUAL, signalling, options)


def gt(a: ArrayLike, b: ArrayLike, fmt: FormatLike, *, signalling: bool = True, **options: Unpack[Options]) -> Any:
    """Return whether ``a > b``; as `eq`."""
    return _compare("gt", a, b, fmt, _GREATER, signalling, options)


def ge(a: ArrayLike, b: ArrayLike, fmt: FormatLike, *, signalling: bool = True, **options: Unpack[Options]) -> Any:
    """Return whether ``a >= b``; as `eq`."""
    return _compare("ge", a, b, fmt, _GREATER | _EQUAL, signalling, options)


def unordered(
    a: ArrayLike, b: ArrayLike, fmt: FormatLike, *, signalling: bool = False, **options: Unpack[Options]
) -> Any:
    """Return whether ``a`` or ``b`` is NaN; as `eq`."""
    return _compare("unordered", a, b, fmt, _UNORDERED, signalling, options)


def _compare(
    name: str, a: ArrayLike, b: ArrayLike, fmt: FormatLike, wanted: int, signalling: bool, options: Options
) -> Any:
    call = begin(name, options)
    f = arithmetic_format(fmt)
    layout = layout_for(f, call.settings.subnormal_inputs_as_zero)
    loop = named(compare_loop, layout, np.int64(wanted), np.int64(signalling))
    operands = [as_words(a, f, call.codes, "a"), as_words(b, f, call.codes, "b")]
    return call.run(loop, operands, np.dtype(np.bool_))
