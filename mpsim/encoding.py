"""Values to codes and back, and what kind of number a code is."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim._grids import float_word, grid_for, shape_for
from mpsim.counters import Counters
from mpsim.formats import FP32, FloatFormat, FormatLike, Specials, get_format
from mpsim.modes import NaN, Overflow, Rounding
from mpsim.stochastic import Draws, DrawsLike, as_draws, in_blocks
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.decoding import LAYOUT, make_decoder, make_plain_decoder
from mpsim_kernels.rounding import ANY_MODE, EACH, EVENTS, FEW, GENERAL, MODES, NONE, make_rounder

__all__ = ["NumberClass", "classify", "decode", "encode"]

_RANGE = 1 << 16  # elements worth a thread
_WORDS: dict[int, np.dtype[Any]] = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}


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
        Unknown names; ``out`` of another shape or not contiguous.

    Notes
    -----
    Overflow and tininess are decided after rounding with unbounded exponent (IEEE 754-2019, 7.4 and 7.5).

    Examples
    --------
    >>> encode([1.0, 65504.0, 65519.99, 65520.0], "fp16")
    array([15360, 31743, 31743, 31744], dtype=uint16)
    """
    source = as_source(x)
    plan = plan_for(
        fmt,
        source.itemsize,
        True,
        rounding,
        overflow,
        flush_subnormals,
        subnormal_inputs_as_zero,
        nan,
        rng,
        counters is not None,
    )
    if plan.fmt.p > 51:
        refuse_wide_integers(x, plan.fmt)
    source = apart(source, out) if out is not None else source
    result = output_array(out, source.shape, plan.dtype)
    run(plan, source, result, counters)
    return result


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
    return _decode(words, f, output_array(out, words.shape, f.value_dtype), keep_payload)


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
    layout = _code_layout(f)
    magnitude = words & np.uint64(~f.sign_code & (2**64 - 1))
    kind = np.full(words.shape, NumberClass.NORMAL, np.uint8)
    if f.has_subnormals:
        kind[magnitude < np.uint64(1 << f.m)] = NumberClass.SUBNORMAL
    if f.has_zero:
        kind[magnitude == 0] = NumberClass.ZERO
    kind[magnitude == layout["inf"]] = NumberClass.INFINITE
    kind[(magnitude >= layout["nan_from"]) | (words == layout["nan_code"])] = NumberClass.NAN
    return kind


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


def refuse_wide_integers(x: ArrayLike, fmt: FloatFormat) -> None:
    """Raise where integers of more than 53 bits meet a format that `as_source` is not precise enough for."""
    array = np.asarray(x)
    if array.dtype.kind in "iu" and array.size and max(-int(array.min()), int(array.max())) > 1 << 53:
        raise ValueError(
            f"x has integers beyond 2**53, which cannot be rounded once to {fmt} (p = {fmt.p}): "
            "convert them to float64 first"
        )


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


class Plan(NamedTuple):
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


def plan_for(
    fmt: FormatLike,
    itemsize: int,
    codes: bool,
    rounding: Rounding | str,
    overflow: Overflow | str,
    flush_subnormals: bool,
    subnormal_inputs_as_zero: bool,
    nan: NaN | str | int,
    rng: DrawsLike,
    counted: bool,
) -> Plan:
    """Return the plan for rounding floats of ``itemsize`` bytes to codes or to values."""
    key = fmt if isinstance(fmt, FloatFormat | str) else get_format(fmt)
    draws = None
    if rounding == Rounding.STOCHASTIC:
        draws = as_draws(rng)
    elif rng is not None:
        raise ValueError(f"rng is given, but rounding is {rounding!r}; only 'stochastic' draws random numbers")
    daz = bool(subnormal_inputs_as_zero)
    return _plan(key, itemsize, codes, rounding, overflow, bool(flush_subnormals), daz, nan, draws, counted)


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
) -> Plan:
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
    # A loop of its own for what is common; each takes a second to compile.
    common = mode is Rounding.NEAREST_EVEN or (width == 32 and not counted and shape != GENERAL)
    events = EACH if counted else NONE
    if common:
        rounder = make_rounder(width, MODES.index(mode), codes, events, shape)
    else:
        rounder = make_rounder(width, ANY_MODE, codes, events, GENERAL)
    tally = (
        make_rounder(width, MODES.index(mode), codes, FEW, shape) if common and counted and shape != GENERAL else None
    )
    return Plan(f, dtype, width, grid, rounder, draws, tally, float_word(f, f.max_code, width))


def run(plan: Plan, source: NDArray[Any], out: NDArray[Any], counters: Counters | None) -> None:
    """Round ``source`` into ``out``, and count."""
    words: NDArray[Any] = source.reshape(-1).view(_WORDS[source.itemsize])
    if source.itemsize * 8 < plan.width:
        words = _decode(words, FP32, np.empty(words.shape), keep_payload=True).view(np.uint64)
    target: NDArray[Any] = out.reshape(-1)
    if out.dtype.kind == "f":
        target = target.view(_WORDS[out.itemsize])
    grid, rounder, draws = plan.grid, plan.rounder, plan.draws
    counts: list[NDArray[np.int64]] = []
    # A piece may have to be rounded twice, which a source written over does not allow.
    tally = None if np.may_share_memory(words, target) else plan.tally

    def task(start: int, stop: int) -> None:
        mine = np.zeros(len(EVENTS), np.int64)
        counts.append(mine)
        if counters is not None and tally is not None:
            for first, last in in_blocks(start, stop):
                piece = np.zeros(len(EVENTS) + 1, np.int64)
                tally(words[first:last], target[first:last], grid, words[:0], piece)
                if piece[-1] > plan.largest:
                    rounder(words[first:last], target[first:last], grid, words[:0], mine)
                else:
                    mine += piece[:-1]
            return
        if draws is None:
            rounder(words[start:stop], target[start:stop], grid, words[:0], mine)
            return
        for first, last in in_blocks(start, stop):
            rounder(words[first:last], target[first:last], grid, draws.words(first, last, plan.width), mine)

    in_ranges(task, words.size, _RANGE)
    if counters is not None:
        totals = np.sum(counts, axis=0).tolist()
        counters += Counters(words.size, *totals)


def _decode(words: NDArray[Any], fmt: FloatFormat, out: NDArray[Any], keep_payload: bool = False) -> NDArray[Any]:
    lowest, bias = (-126, 127) if out.itemsize == 4 else (-1022, 1023)
    plain = fmt.has_subnormals and (fmt.quantum_exponent >= lowest or fmt.bias == bias)
    decoder = (make_plain_decoder if plain else make_decoder)(8 * out.itemsize)
    codes, layout = words.reshape(-1), _code_layout(fmt, keep_payload)
    target: NDArray[Any] = out.reshape(-1).view(_WORDS[out.itemsize])
    in_ranges(lambda start, stop: decoder(codes[start:stop], target[start:stop], layout), codes.size, _RANGE)
    return out


@functools.cache
def _code_layout(fmt: FloatFormat, keep_payload: bool = False) -> NDArray[Any]:
    never = 2**64 - 1  # as a code a NaN of binary64, so it is never mistaken for anything else
    nan_from, nan_code = never, never
    if fmt.specials is Specials.IEEE:
        nan_from = fmt.max_code + 2
    elif fmt.nan_code is not None and fmt.nan_code == fmt.last_code:
        nan_from = fmt.nan_code
    elif fmt.nan_code is not None:
        nan_code = fmt.nan_code
    layout = np.zeros(1, LAYOUT)
    layout["m"] = fmt.m
    layout["bias"] = fmt.bias
    layout["has_subnormals"] = fmt.has_subnormals
    layout["has_zero"] = fmt.has_zero
    layout["nan_has_sign"] = fmt.nan_has_sign
    layout["sign"] = fmt.sign_code
    layout["sign_bit"] = max(fmt.sign_code.bit_length() - 1, 0)
    layout["inf"] = never if fmt.inf_code is None else fmt.inf_code
    layout["payload_mask"] = (1 << fmt.m) - 1 if keep_payload else 0
    layout["nan_from"] = nan_from
    layout["nan_code"] = nan_code
    return layout


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


def _is_small_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is one of the narrow floats of ml_dtypes, all exact in float32."""
    return dtype.kind == "V" and dtype.fields is None and np.can_cast(dtype, np.float32)


def _odd_float64(array: NDArray[Any]) -> NDArray[np.float64]:
    """Return 64-bit integers as float64, rounded to odd where they have more than 53 bits."""
    negative = array < 0
    magnitude = np.where(negative, np.uint64(0) - array.astype(np.uint64), array.astype(np.uint64))
    # Bits beyond the 53rd: 64 - 53 at most, one fewer for each power of two below 2**63.
    excess = np.zeros(array.shape, np.uint64)
    for power in range(53, 64):
        excess += (magnitude >> np.uint64(power)) != 0
    kept = magnitude >> excess
    kept |= (kept << excess) != magnitude
    value = np.ldexp(kept.astype(np.float64), excess.astype(np.int64))
    return np.where(negative, -value, value)
