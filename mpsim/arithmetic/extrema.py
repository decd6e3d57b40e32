"""Minimum and maximum (IEEE 754-2019, 9.6)."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from mpsim.arithmetic._calls import Options, arithmetic_format, as_words, begin, named
from mpsim.arithmetic._numbers import layout_for, target_for
from mpsim.formats import FormatLike
from mpsim_kernels.arithmetic_loops import extremum_loop

__all__ = [
    "maximum",
    "maximum_magnitude",
    "maximum_magnitude_number",
    "maximum_number",
    "minimum",
    "minimum_magnitude",
    "minimum_magnitude_number",
    "minimum_number",
]


def minimum(a: ArrayLike, b: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return the smaller of ``a`` and ``b``; NaN if one is NaN, and -0 is less than +0.

    Parameters
    ----------
    a, b, fmt, **options
        As for `add`; nothing is rounded.

    Examples
    --------
    >>> minimum([0.0, 1.0], [-0.0, float("nan")], "fp16"), minimum_number(1.0, float("nan"), "fp16")
    (array([-0., nan], dtype=float32), array(1., dtype=float32))
    """
    return _extremum("minimum", a, b, fmt, options)


def maximum(a: ArrayLike, b: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return the larger of ``a`` and ``b``; NaN if one is NaN, and -0 is less than +0."""
    return _extremum("maximum", a, b, fmt, options)


def minimum_number(a: ArrayLike, b: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return the smaller of ``a`` and ``b``, or the one that is a number; a signalling NaN is invalid all the same."""
    return _extremum("minimum_number", a, b, fmt, options)


def maximum_number(a: ArrayLike, b: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return the larger of ``a`` and ``b``, or the one that is a number; a signalling NaN is invalid all the same."""
    return _extremum("maximum_number", a, b, fmt, options)


def minimum_magnitude(a: ArrayLike, b: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return the one of smaller absolute value, of two equal ones the `minimum`."""
    return _extremum("minimum_magnitude", a, b, fmt, options)


def maximum_magnitude(a: ArrayLike, b: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return the one of larger absolute value, of two equal ones the `maximum`."""
    return _extremum("maximum_magnitude", a, b, fmt, options)


def minimum_magnitude_number(a: ArrayLike, b: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return the one of smaller absolute value, or the one that is a number."""
    return _extremum("minimum_magnitude_number", a, b, fmt, options)


def maximum_magnitude_number(a: ArrayLike, b: ArrayLike, fmt: FormatLike, **options: Unpack[Options]) -> Any:
    """Return the one of larger absolute value, or the one that is a number."""
    return _extremum("maximum_magnitude_number", a, b, fmt, options)


def _extremum(name: str, a: ArrayLike, b: ArrayLike, fmt: FormatLike, options: Options) -> Any:
    call = begin(name, options)
    f = arithmetic_format(fmt)
    words = name.split("_")
    choices = (np.int64(choice in words) for choice in ("maximum", "magnitude", "number"))
    numbers = layout_for(f, call.settings.subnormal_inputs_as_zero), target_for(f, call.settings)
    operands = [as_words(a, f, call.codes, "a"), as_words(b, f, call.codes, "b")]
    return call.run(named(extremum_loop, *numbers, *choices), operands, f)
