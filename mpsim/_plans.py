"""Rounding of arrays: planned once - which loop, which record, what comes out - and run over the elements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim._arrays import WORDS, apart, as_source, output_array
from mpsim._decoding import decode_words
from mpsim._grids import float_word, grid_for, shape_for
from mpsim._integers import are_wide, round_wide
from mpsim.counters import Counters
from mpsim.formats import FP32, FloatFormat, FormatLike, get_format
from mpsim.modes import NaN, Overflow, Rounding
from mpsim.stochastic import Draws, DrawsLike, as_draws, in_blocks
from mpsim_kernels._threads import AT_LEAST, in_ranges
from mpsim_kernels.floating_point import default_environment
from mpsim_kernels.rounding import (
    ANY_BUT_DRAWN,
    ANY_MODE,
    EACH,
    EVENTS,
    FEW,
    GENERAL,
    MODES,
    NARROW,
    NONE,
    make_rounder,
)
from mpsim_kernels.rounding_nearest import make_nearest_rounder

__all__ = ["rounded"]

_TALLIED = 1 << 17
"""Elements that are counted again, one by one, where one of them is too large."""


class _Plan(NamedTuple):
    """Everything about a rounding but the numbers."""

    fmt: FloatFormat
    dtype: np.dtype[Any]
    """dtype of the result."""
    width: int
    """Bits of the words that the kernel takes; float32 sources may have to be widened."""
    grid: NDArray[Any]
    rounder: Callable[..., None]
    draws: Draws | None
    tally: Callable[..., None] | None
    """Counts in half the time, as long as no source word is larger than ``largest``."""
    largest: int
    adds: bool
    """Whether the loop adds floats, for which it needs the default environment."""


def rounded(
    x: ArrayLike,
    fmt: FormatLike,
    codes: bool,
    rounding: Rounding | str,
    overflow: Overflow | str,
    flush_subnormals: bool,
    subnormal_inputs_as_zero: bool,
    nan: NaN | str | int,
    rng: DrawsLike,
    counters: Counters | None,
    out: NDArray[Any] | None,
) -> NDArray[Any]:
    """Return the codes of numbers in a format, or the values of those codes; for the rest see `encode`."""
    given = np.asarray(x)
    source = as_source(given)
    key = fmt if isinstance(fmt, FloatFormat | str) else get_format(fmt)
    draws = None
    if rounding == Rounding.STOCHASTIC:
        draws = as_draws(rng)
    elif rng is not None:
        raise ValueError(f"rng is given, but rounding is {rounding!r}; only 'stochastic' draws random numbers")
    options = rounding, overflow, bool(flush_subnormals), bool(subnormal_inputs_as_zero), nan, draws
    plan = _plan(key, source.itemsize, codes, *options, counters is not None)
    inexact = 0
    if (plan.fmt.p > 51 or draws is not None) and are_wide(given):
        # Integers rounded to odd, as the source has them, are not enough.
        source, inexact = round_wide(given, plan.fmt, Rounding(rounding), draws, plan.grid)
    if out is not None:
        source = apart(source, out)
    if not codes and plan.fmt.fits_float32 and plan.width > 8 * source.itemsize:
        # Numbers subnormal in float32 may be normal here: go through float64 words and the code.
        plan = _plan(key, source.itemsize, True, *options, counters is not None)
        found = np.empty(source.shape, plan.dtype)
        _run(plan, source, found, counters)
        return decode_words(found, plan.fmt, output_array(out, source.shape, source.dtype), keep_payload=False)
    result = output_array(out, source.shape, plan.dtype)
    _run(plan, source, result, counters)
    if counters is not None:
        counters.inexact += inexact
    return result


@functools.lru_cache(maxsize=1024)
def _plan(
    fmt: FloatFormat | str,
    itemsize: int,
    codes: bool,
    rounding: Rounding | str,
    overflow: Overflow | str,
    flush_subnormals: bool,
    subnormal_inputs_as_zero: bool,
    nan: NaN | str | int,
    draws: Draws | None,
    counted: bool,
) -> _Plan:
    f = get_format(fmt)
    mode = Rounding.of(rounding, "rounding")
    policy = Overflow.of(overflow, "overflow")
    nan_choice = nan if isinstance(nan, int) else NaN.of(nan, "nan")
    # Numbers subnormal in float32 must not be normal in the format: the 32-bit kernel does not normalise them.
    narrow = itemsize == 4 and f.m <= 23 and f.bias <= 127 and f.has_subnormals and (codes or f.fits_float32)
    width = 32 if narrow else 64
    # Below the smallest normal number of the source's own dtype, widened or not.
    zero_below = (-126 if itemsize == 4 else -1022) if subnormal_inputs_as_zero else None
    grid = grid_for(f, width, codes, mode, policy, flush_subnormals, zero_below, draws, nan_choice)
    dtype = f.code_dtype if codes else np.dtype(f"f{width // 8}")
    shape = shape_for(f, width, flush_subnormals or subnormal_inputs_as_zero or nan_choice is not NaN.CANONICAL)
    if shape == NARROW and f.m >= (23 if width == 32 else 52):
        shape = GENERAL  # NARROW drops a bit at least
    # A loop of its own for what is common; each takes seconds to compile.
    to_nearest = mode is Rounding.NEAREST_EVEN
    adds = to_nearest and shape == NARROW and not counted
    any_shape = GENERAL if width == 64 else shape
    if counted:
        rounder = make_rounder(width, ANY_MODE if draws else ANY_BUT_DRAWN, codes, EACH, GENERAL)
    elif adds:
        rounder = make_nearest_rounder(width, codes)
    elif to_nearest:
        rounder = make_rounder(width, MODES.index(mode), codes, NONE, shape)
    elif draws:
        stochastic = ANY_MODE if any_shape == GENERAL else MODES.index(mode)
        rounder = make_rounder(width, stochastic, codes, NONE, any_shape)
    else:
        rounder = make_rounder(width, ANY_BUT_DRAWN, codes, NONE, any_shape)
    few = counted and to_nearest and shape != GENERAL
    tally = make_rounder(width, MODES.index(mode), codes, FEW, shape) if few else None
    return _Plan(f, dtype, width, grid, rounder, draws, tally, float_word(f, f.max_code, width), adds)


def _run(plan: _Plan, source: NDArray[Any], out: NDArray[Any], counters: Counters | None) -> None:
    """Round ``source`` into ``out``, and count."""
    words: NDArray[Any] = source.reshape(-1).view(WORDS[source.itemsize])
    if source.itemsize * 8 < plan.width:
        words = decode_words(words, FP32, np.empty(words.shape), keep_payload=True).view(np.uint64)
    target: NDArray[Any] = out.reshape(-1)
    if out.dtype.kind == "f":
        target = target.view(WORDS[out.itemsize])
    grid, rounder, draws = plan.grid, plan.rounder, plan.draws
    counts: list[NDArray[np.int64]] = []
    # A piece may have to be rounded twice, which a source written over does not allow.
    tally = None if np.may_share_memory(words, target) else plan.tally

    def task(start: int, stop: int) -> None:
        mine = np.zeros(len(EVENTS), np.int64)
        counts.append(mine)
        if counters is not None and tally is not None:
            for first in range(start, stop, _TALLIED):
                last = min(first + _TALLIED, stop)
                piece = np.zeros(len(EVENTS) + 1, np.int64)
                tally(words[first:last], target[first:last], grid, words[:0], piece)
                if piece[-1] > plan.largest:
                    rounder(words[first:last], target[first:last], grid, words[:0], mine)
                else:
                    mine += piece[:-1]
            return
        if plan.adds:
            with default_environment():
                rounder(words[start:stop], target[start:stop], grid, words[:0], mine)
            return
        if draws is None:
            rounder(words[start:stop], target[start:stop], grid, words[:0], mine)
            return
        for first, last in in_blocks(start, stop):
            rounder(words[first:last], target[first:last], grid, draws.words(first, last, plan.width), mine)

    in_ranges(task, words.size, AT_LEAST)
    if counters is not None:
        totals = np.sum(counts, axis=0).tolist()
        counters += Counters(words.size, *totals)
