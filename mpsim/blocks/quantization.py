"""Scale blocks, and round their elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim._arrays import apart, as_source, output_array
from mpsim.blocks._choice import block_errors, cut, scaled, uncut
from mpsim.blocks._plans import element_bounds, plan_for, rule_for, tensor_scales
from mpsim.blocks.arrays import BlockArray, Place, dequantize, element_scales, first_element, scale_values
from mpsim.blocks.formats import BlockFormat, BlockFormatLike, IntElement, get_block_format
from mpsim.blocks.rules import RuleLike, ScaleRecipe
from mpsim.counters import Counters
from mpsim.encoding import decode, encode
from mpsim.formats import E8M0, FloatFormat
from mpsim.modes import Overflow, Rounding
from mpsim.stochastic import DrawsLike
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.blocks import (
    BLOCK_EVENTS,
    STEPS,
    count_bounds,
    fill_tables,
    make_fp4_quantizer,
    make_power_quantizer,
    scale_blocks,
    scale_elements,
)
from mpsim_kernels.floating_point import default_environment

__all__ = ["BlockCounters", "quantize", "quotients", "round_to"]

_RANGE = 1 << 16  # elements worth a thread
_CHUNK = 1 << 18  # elements whose quotients are held at a time
_TABLES_FROM = 1 << 14  # elements from which on the tables of the fast FP4 kernel pay
_FAST_LENGTHS = (16, 32)  # blocks that the fast kernels are compiled for


@dataclass(slots=True)
class BlockCounters:
    """What happened to blocks and to their elements; accumulates over calls.

    Pass one as ``counters=`` to `quantize` or `round_to`.

    Examples
    --------
    >>> seen = BlockCounters()
    >>> _ = quantize([500.0, 1.0, 1e-9, 0.0], "mxfp8_e4m3", counters=seen)
    >>> seen.blocks, seen.clipped, seen.elements.underflows, seen.elements.zeros
    (1, 1, 1, 1)
    """

    elements: Counters = field(default_factory=Counters)
    """What rounding did to the quotients of elements and scales; every element of a NaN block counts as a NaN."""
    blocks: int = 0
    zero_blocks: int = 0
    """Blocks of zeros."""
    nan_blocks: int = 0
    """Blocks with an infinity or a NaN, which are NaN altogether."""
    scales_saturated: int = 0
    """Scales held at the largest one."""
    scales_underflowed: int = 0
    """Scales of nonzero blocks held at the smallest one, or rounded to zero."""
    clipped: int = 0
    """Elements beyond the largest one, times the scale; of these, ``elements.overflows`` would round farther out."""

    def __iadd__(self, other: BlockCounters) -> BlockCounters:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        return self

    def clear(self) -> None:
        """Set every count to 0."""
        self.elements.clear()
        for each in fields(self)[1:]:
            setattr(self, each.name, 0)


def quantize(
    x: ArrayLike,
    fmt: BlockFormatLike,
    axis: int = -1,
    scale_rule: RuleLike = None,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.SATURATE,
    rng: DrawsLike = None,
    counters: BlockCounters | None = None,
    tensor_scale: float | None = None,
    out: BlockArray | None = None,
) -> BlockArray:
    """Scale blocks and round their elements.

    Parameters
    ----------
    x : array_like of real numbers, one axis or more, any strides
        float64 and integers are rounded once, never through float32.
    fmt : BlockFormat or name
    axis : int
        Blocks lie along it; where its length is no multiple of the block's, the last block is shorter.
    scale_rule : ScaleRule, ScaleRecipe or name, optional
        A `ScaleRule` for scales that are powers of two, by default ``"floor"``; otherwise a `ScaleRecipe`, by default
        ``"division"``.
    rounding : Rounding or name
        Of elements.
    overflow : {"saturate", "ieee"}
        Of elements: ``"ieee"`` makes infinities or NaNs of clipped elements, in formats that have them.
    rng : Draws or int
        Random numbers of stochastic rounding, or their seed.
    counters : BlockCounters, optional
        Counts what was lost; accumulates.
    tensor_scale : float, optional
        Scale of the tensor, rounded to float32. By default it follows from the largest finite magnitude of ``x``, and
        is 1 where all is zero.
    out : BlockArray, optional
        Of this format, axis and shape: its C-contiguous arrays are written, and shared by the result.

    Returns
    -------
    BlockArray

    Raises
    ------
    TypeError
        ``x`` is not real, or ``out`` has other dtypes.
    ValueError
        Unknown names; ``x`` without axes; ``tensor_scale`` not positive, or given to a format that has none.

    Notes
    -----
    A block with an infinity or a NaN gets the NaN scale, and NaN for every element (code 0 of integers); elsewhere an
    element is rounded from the exact quotient of number and scale, unless a recipe says otherwise. A block of zeros
    gets the smallest scale (MX 1.0, 6.3).

    Examples
    --------
    >>> q = quantize([957.0, 100.0], "mxfp8_e4m3")
    >>> int(q.scales[0]) - 127, q.dequantize()
    (1, array([896.,  96.], dtype=float32))
    >>> quantize([957.0, 100.0], "mxfp8_e4m3", scale_rule="rceil").dequantize()
    array([960.,  96.], dtype=float32)
    """
    f = get_block_format(fmt)
    rule = rule_for(f, scale_rule)
    source = as_source(x)
    place = Place.of(source.shape, axis, f.length)
    codes_out, scales_out = _outputs(out, f, place)
    codes = output_array(codes_out, source.shape, f.element.code_dtype)
    scales = output_array(scales_out, place.scales_shape, np.dtype(np.uint8))
    source = apart(source, codes)
    words: NDArray[Any] = source.reshape(-1).view(f"u{source.itemsize}")
    tensor, encode_scale = tensor_scales(f, rule, tensor_scale, words)
    mode, policy = Rounding.of(rounding, "rounding"), Overflow.of(overflow, "overflow")
    if rng is not None and mode is not Rounding.STOCHASTIC:
        raise ValueError(f"rng is given, but rounding is {mode.value!r}; only 'stochastic' draws random numbers")
    job = _Job(f, plan_for(f, rule, policy, tensor, encode_scale), mode, policy, rng, counters)
    q = BlockArray(format=f, codes=codes, scales=scales, axis=place.axis, tensor_scale=math.ldexp(*tensor))
    if isinstance(rule, ScaleRecipe) and rule.four_over_six is not None:
        _choose(job, rule, source, q, math.ldexp(*encode_scale), tensor_scale is not None or not f.tensor_scale)
    elif words.size:
        _run(job, words, place, scales.reshape(-1), codes.reshape(-1))
    if counters is not None:
        counters.blocks += scales.size
    return q


def round_to(
    x: ArrayLike,
    fmt: BlockFormatLike,
    axis: int = -1,
    scale_rule: RuleLike = None,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.SATURATE,
    rng: DrawsLike = None,
    counters: BlockCounters | None = None,
    tensor_scale: float | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Round to values of a block format: the bits of ``dequantize(quantize(x))``.

    Parameters
    ----------
    x, fmt, axis, scale_rule, rounding, overflow, rng, counters, tensor_scale
        As for `quantize`.
    out : array of the result's shape and dtype, C-contiguous, optional
        Written and returned; may be ``x`` itself.

    Returns
    -------
    values : float32 or float64 array, shape of ``x``
        float64 for float64 and integers, otherwise float32.

    Examples
    --------
    >>> round_to([500.0, 3.1], "mxfp8_e4m3"), round_to([500.0, 3.1], "mxfp8_e4m3", scale_rule="ceil")
    (array([448.,   3.]), array([512.,   3.]))
    """
    source = as_source(x)
    result = output_array(out, source.shape, source.dtype)
    q = quantize(source, fmt, axis, scale_rule, rounding, overflow, rng, counters, tensor_scale)
    return dequantize(q, source.dtype, result)


def quotients(x: ArrayLike, q: BlockArray, scale_rule: RuleLike = None) -> NDArray[np.float64]:
    """Return what the elements of a quantised array were rounded from.

    Parameters
    ----------
    x : array_like of real numbers
        What was quantised.
    q : BlockArray
        What `quantize` made of it.
    scale_rule
        As for `quantize`; a recipe says how elements are divided by scales.

    Returns
    -------
    array, shape of ``x``
        Quotients of more than 53 bits are rounded to odd; those of blocks with the NaN scale are NaN.

    Examples
    --------
    >>> x = [957.0, 100.0]
    >>> quotients(x, quantize(x, "mxfp8_e4m3"))
    array([478.5,  50. ])
    """
    f, source = q.format, as_source(x)
    if source.shape != q.shape:
        raise ValueError(f"x is {source.shape}, q is {q.shape}; q must be what x became")
    if f.has_power_scales and source.dtype == np.float32:
        with default_environment(), np.errstate(all="ignore"):
            return source / element_scales(q)  # exact in float64
    rule, words = rule_for(f, scale_rule), source.reshape(-1).view(f"u{source.itemsize}")
    tensor = tensor_scales(f, rule, q.tensor_scale if f.tensor_scale else None, words)
    return _divided(source, q.scales, q.axis, plan_for(f, rule, Overflow.SATURATE, *tensor), f.length)


def _divided(
    x: NDArray[Any], scales: NDArray[np.uint8], axis: int, plan: NDArray[Any], length: int
) -> NDArray[np.float64]:
    """Return what numbers are rounded from under scales along an axis."""
    source, scales = (np.ascontiguousarray(np.moveaxis(a, axis, -1)) for a in (x, scales))
    words: NDArray[Any] = source.reshape(-1).view(f"u{source.itemsize}")
    found = np.empty(words.size, np.uint64)
    if words.size:
        narrow, n, flat = words.itemsize == 4, source.shape[-1], scales.reshape(-1)
        in_ranges(
            lambda start, stop: scale_elements(words, narrow, n, start, stop, plan, flat, 0, found),
            flat.size,
            max(_RANGE // 8 // length, 1),
        )
    return np.ascontiguousarray(np.moveaxis(found.view(np.float64).reshape(source.shape), -1, axis))


class _Job(NamedTuple):
    """Everything about a quantisation but the numbers."""

    fmt: BlockFormat
    plan: NDArray[Any]
    rounding: Rounding
    overflow: Overflow
    rng: DrawsLike
    counters: BlockCounters | None


_Fast: TypeAlias = "Callable[[NDArray[Any], int, int, int, NDArray[Any], NDArray[Any]], None]"


def _run(job: _Job, words: NDArray[Any], place: Place, scales: NDArray[Any], codes: NDArray[Any]) -> None:
    fast = _fast_kernel(job, words)
    if place.inner == 1:
        # Where no block is shorter than the others, all rows are one.
        n = words.size if place.n % place.length == 0 else place.n
        _quantize_rows(job, fast, words, n, scales, codes)
        return
    if job.rounding is Rounding.STOCHASTIC:
        _run_transposed(job, words, place, scales, codes)
        return
    source = words.reshape(place.outer, place.n, place.inner)
    target = codes.reshape(source.shape)
    scale_target = scales.reshape(place.outer, place.per_row, place.inner)
    tiles = list(place.tiles())

    def task(start: int, stop: int) -> None:
        for o, rows, blocks, columns in tiles[start:stop]:
            block_words = np.ascontiguousarray(source[o, rows, columns].T)
            width, n = block_words.shape
            block_codes = np.empty((width, n), codes.dtype)
            block_scales = np.empty((width, blocks.stop - blocks.start), np.uint8)
            flat = block_words.reshape(-1), n, block_scales.reshape(-1), block_codes.reshape(-1)
            if fast is None:
                _quantize_rows(job, None, *flat)
            else:
                fast(flat[0], n, 0, flat[2].size, *flat[2:])
            target[o, rows, columns] = block_codes.T
            scale_target[o, blocks, columns] = block_scales.T

    if fast is None:  # which uses the threads itself
        task(0, len(tiles))
    else:
        in_ranges(task, len(tiles), 2)


def _run_transposed(job: _Job, words: NDArray[Any], place: Place, scales: NDArray[Any], codes: NDArray[Any]) -> None:
    """Round with draws that follow the order of the elements in the array, not that of the blocks."""
    moved = np.ascontiguousarray(np.swapaxes(words.reshape(place.outer, place.n, place.inner), 1, 2))
    own_scales = np.empty((place.outer, place.inner, place.per_row), np.uint8)
    quotients = _quotients(job, moved.reshape(-1), place.n, own_scales.reshape(-1), 0, own_scales.size)
    back = np.ascontiguousarray(np.swapaxes(quotients.reshape(moved.shape), 1, 2))
    _round_quotients(job, back.reshape(-1), codes)
    scales.reshape(place.outer, place.per_row, place.inner)[...] = np.swapaxes(own_scales, 1, 2)


def _quantize_rows(
    job: _Job, fast: _Fast | None, words: NDArray[Any], n: int, scales: NDArray[Any], codes: NDArray[Any]
) -> None:
    """Quantise rows of ``n`` elements; all arrays are flat."""
    length = job.fmt.length
    if fast is not None:
        in_ranges(lambda start, stop: fast(words, n, start, stop, scales, codes), scales.size, max(_RANGE // length, 1))
        return
    # Random numbers go by the place in the array, so that all of it is rounded at once.
    step = scales.size if job.rounding is Rounding.STOCHASTIC else max(_CHUNK // length, 1)
    for start in range(0, scales.size, step):
        stop = min(start + step, scales.size)
        quotients = _quotients(job, words, n, scales, start, stop)
        first = first_element(start, n, length)
        _round_quotients(job, quotients, codes[first : first + quotients.size])


def _quotients(
    job: _Job, words: NDArray[Any], n: int, scales: NDArray[Any], start: int, stop: int
) -> NDArray[np.float64]:
    """Find the scales of the blocks ``start`` to ``stop``; return what their elements have to be rounded from."""
    length, narrow = job.fmt.length, words.itemsize == 4
    first, last = first_element(start, n, length), first_element(stop, n, length)
    quotients = np.empty(last - first, np.uint64)
    counts: list[NDArray[np.int64]] = []

    def task(begin: int, end: int) -> None:
        mine = np.zeros(len(BLOCK_EVENTS), np.int64)
        counts.append(mine)
        scale_blocks(words, narrow, n, start + begin, start + end, job.plan, scales, mine)
        scale_elements(words, narrow, n, start + begin, start + end, job.plan, scales, first, quotients)

    in_ranges(task, stop - start, max(_RANGE // 8 // length, 1))
    if job.counters is not None:
        for name, count in zip(BLOCK_EVENTS, np.sum(counts, axis=0).tolist(), strict=True):
            setattr(job.counters, name, getattr(job.counters, name) + count)
    return quotients.view(np.float64)


def _round_quotients(job: _Job, quotients: NDArray[np.float64], codes: NDArray[Any]) -> None:
    """Round to the element format."""
    element = job.fmt.element
    elements = None if job.counters is None else job.counters.elements
    if job.counters is not None:
        job.counters.clipped += int(np.count_nonzero(abs(quotients) > float(job.fmt.max_element)))
    if isinstance(element, FloatFormat):
        if _is_plain(job) and _has_few_codes(job):
            words, bounds, plan = quotients.view(np.uint64), element_bounds(element), job.plan
            in_ranges(lambda start, stop: count_bounds(words, bounds, plan, start, stop, codes), words.size, _RANGE)
            return
        encode(quotients, element, job.rounding, job.overflow, rng=job.rng, counters=elements, out=codes)
        return
    # Integers are the subnormals of a float format that goes on beyond them.
    magnitudes = element.magnitudes
    seen = None if elements is None else Counters()
    floats = encode(quotients, magnitudes, job.rounding, rng=job.rng, counters=seen)
    sign = floats.dtype.type(magnitudes.sign_code)
    size, negative = floats & ~sign, (floats & sign) != 0
    limit = np.where(negative, element.largest + (not element.symmetric), element.largest)
    clipped = size > limit
    if elements is not None and seen is not None:
        exact = int(np.count_nonzero(decode(floats[clipped], magnitudes) == quotients[clipped]))
        seen.overflows = seen.saturations = int(np.count_nonzero(clipped))
        seen.inexact += exact
        seen.subnormals = 0
        elements += seen
    integers = np.where(clipped, limit, size).astype(np.int64)
    codes[...] = np.where(negative, -integers, integers) & ((1 << element.bits) - 1)


def _is_plain(job: _Job) -> bool:
    return job.rounding is Rounding.NEAREST_EVEN and job.counters is None


def _has_few_codes(job: _Job) -> bool:
    """Whether elements have a sign and the codes 0 to `STEPS`, where they stay."""
    element = job.fmt.element
    return (
        isinstance(element, FloatFormat)
        and element.has_negative_zero
        and element.has_subnormals
        and element.max_code == STEPS == job.plan["element_over"]
    )


def _choose(
    job: _Job, recipe: ScaleRecipe, source: NDArray[Any], q: BlockArray, encode_scale: float, given: bool
) -> None:
    """Quantise into ``q`` with the largest elements of blocks at 6 and at 4, and keep what is nearer."""
    f, axis = q.format, q.axis
    element = f.element
    assert isinstance(element, FloatFormat)
    if job.rounding is Rounding.STOCHASTIC:
        raise ValueError(f"rounding is 'stochastic', but {recipe.name!r} compares errors: choose another rounding")
    if source.size == 0:
        return
    with default_environment(), np.errstate(all="ignore"):
        x = cut(source, axis, f.length)
        sizes = abs(x)
        amax = np.max(sizes, axis=-1).astype(np.float64)
        amax[np.isinf(amax)] = np.nan
        whole = np.max(sizes, initial=0, where=np.isfinite(x))
        x = x.astype(np.float32)
    full = (recipe.largest_scale or f.scale.max_finite) * float(f.max_element)
    undone = (q.tensor_scale, 1.0) if given else (whole, full)
    both, found, errors = scaled(f, recipe, amax, q.tensor_scale, encode_scale), [], []
    for each in both:
        found.append(_divided(source, np.moveaxis(each.codes, -1, axis), axis, job.plan, f.length))
        values = decode(encode(found[-1], element, job.rounding, job.overflow), element)
        numbers = scale_values(f.scale, 1.0)[each.codes].astype(np.float32)
        errors.append(block_errors(recipe, x, cut(values, axis, f.length), numbers, *undone))
    four = errors[1] < errors[0]
    spread = uncut(np.broadcast_to(four[..., None], x.shape), axis, source.shape[axis])
    _round_quotients(job, np.where(spread, found[1], found[0]).reshape(-1), q.codes.reshape(-1))
    codes, saturated, underflowed = (np.where(four, b, a) for a, b in zip(*both, strict=True))
    q.scales[...] = np.moveaxis(codes, -1, axis)
    if job.counters is not None:
        job.counters.zero_blocks += int(np.count_nonzero(amax == 0))
        job.counters.nan_blocks += int(np.count_nonzero(np.isnan(amax)))
        job.counters.scales_saturated += int(np.count_nonzero(saturated))
        job.counters.scales_underflowed += int(np.count_nonzero(underflowed))


def _fast_kernel(job: _Job, words: NDArray[Any]) -> _Fast | None:
    """Return the kernel that does everything in one pass, or None where there is none."""
    f, plan = job.fmt, job.plan
    if words.itemsize != 4 or not _is_plain(job) or f.length not in _FAST_LENGTHS or f.element.bits > 8:
        return None
    element = f.element
    # It treats both signs alike.
    symmetric = element.symmetric if isinstance(element, IntElement) else element.has_negative_zero
    if not symmetric or (isinstance(element, FloatFormat) and not element.has_subnormals):
        return None
    if f.has_power_scales:
        m, bias = int(plan["element_m"][0]), int(plan["element_bias"][0])
        if f.scale != E8M0 or m < 1 or m + bias > 63 or bias < -63:
            return None
        power = make_power_quantizer(f.length)
        return lambda x, n, start, stop, scales, codes: power(x, n, start, stop, plan, scales, codes)
    if isinstance(element, IntElement) or not _has_few_codes(job) or words.size < _TABLES_FROM:
        return None
    fp4 = make_fp4_quantizer(f.length)
    buckets = np.empty(1 << (8 + f.scale.m + 2), np.uint8)
    scale_first = np.empty(f.scale.max_code + 2, np.uint32)
    element_first = np.empty((f.scale.max_code + 1, STEPS), np.uint32)
    fill_tables(plan, element_bounds(element), buckets, scale_first, element_first)
    tables = buckets, scale_first, element_first
    return lambda x, n, start, stop, scales, codes: fp4(x, n, start, stop, plan, *tables, scales, codes)


def _outputs(out: BlockArray | None, fmt: BlockFormat, place: Place) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    if out is None:
        return None, None
    if out.format != fmt or out.axis != place.axis:
        raise ValueError(f"out is {out!r}; one of format {fmt} with blocks along axis {place.axis} is needed")
    return out.codes, out.scales
