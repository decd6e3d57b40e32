"""Formats and settings as the numbers that the kernels take."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from mpsim.arithmetic.environment import NanRule, Settings, Tininess
from mpsim.encoding import encode
from mpsim.formats import FloatFormat, Specials
from mpsim.modes import Rounding
from mpsim_kernels.arithmetic import NAN_RULES, WAYS, Layout, Target

__all__ = ["layout_for", "target_for"]


@functools.cache
def layout_for(fmt: FloatFormat, subnormals_as_zero: bool) -> NDArray[np.int64]:
    """Return the fields of the `Layout` of a format."""
    ieee = fmt.specials is Specials.IEEE
    lone_nan = fmt.nan_code is not None and fmt.nan_code == fmt.sign_code
    layout = Layout(
        m=fmt.m,
        width=fmt.w + fmt.m,
        signed=fmt.signed,
        first_field=fmt.has_subnormals,
        exponent=-fmt.bias - fmt.m,
        hidden_from=1 << fmt.m if fmt.has_subnormals else fmt.min_code,
        zero_below=1 << fmt.m if fmt.has_subnormals and subnormals_as_zero else 0,
        max_code=fmt.max_code,
        inf_code=-1 if fmt.inf_code is None else fmt.inf_code,
        nan_word=fmt.sign_code if lone_nan else -1,
        quiet=1 << (fmt.m - 1) if ieee else 0,
    )
    return _as_int64(layout)


@functools.cache
def target_for(fmt: FloatFormat, settings: Settings) -> NDArray[np.int64]:
    """Return the fields of the `Target` of a format."""
    keeps_nans = settings.nan is not NanRule.DEFAULT
    if keeps_nans and fmt.specials is not Specials.IEEE:
        raise ValueError(f"nan is {settings.nan.value!r}, but NaNs of {fmt} have no payload: choose nan='default'")
    # What `encode` makes of infinities, and of what only overflows.
    huge = np.array([np.inf, -np.inf, np.finfo(np.float64).max, -np.finfo(np.float64).max])
    special = encode(huge, fmt, settings.rounding, settings.overflow).astype(np.uint64).view(np.int64).tolist()
    nan = fmt.nan_code if fmt.nan_code is not None else fmt.nan_to
    assert nan is not None  # a format has one or the other
    target = Target(
        m=fmt.m,
        width=fmt.w + fmt.m,
        signed=fmt.signed,
        emin=fmt.emin,
        lowest=fmt.emin + (not fmt.has_subnormals),
        offset=0 if fmt.has_subnormals else 1 << fmt.m,
        has_zero=fmt.has_zero,
        minus_zero=fmt.has_negative_zero,
        min_code=fmt.min_code,
        min_normal=1 << fmt.m if fmt.has_subnormals else fmt.min_code,
        max_code=fmt.max_code,
        over_plus=special[2],
        over_minus=special[3],
        inf_plus=special[0],
        inf_minus=special[1],
        has_inf=special[0] == fmt.inf_code,
        nan=nan | (fmt.sign_code if keeps_nans else 0),
        nan_rule=NAN_RULES.index(settings.nan),
        way_plus=_way(settings.rounding, Rounding.UP),
        way_minus=_way(settings.rounding, Rounding.DOWN),
        down=settings.rounding is Rounding.DOWN,
        before=settings.tininess is Tininess.BEFORE,
        flush=settings.flush_subnormals and fmt.has_subnormals,
    )
    return _as_int64(target)


def _as_int64(numbers: Iterable[int]) -> NDArray[np.int64]:
    """Return numbers as int64; codes of 64 bits keep their bits."""
    return np.array([int(n) & (2**64 - 1) for n in numbers], np.uint64).view(np.int64)


def _way(rounding: Rounding, away: Rounding) -> int:
    """Return what a direction does to magnitudes; ``away`` is the one that leads away from zero for their sign."""
    if rounding in (Rounding.UP, Rounding.DOWN):
        return WAYS.index("away" if rounding is away else "toward-zero")
    return WAYS.index(rounding)
