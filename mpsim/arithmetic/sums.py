"""Sums and dot products: every intermediate in a chosen format and order, or exact and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim.arithmetic._calls import Call, Options, arithmetic_format, as_words, begin, named
from mpsim.arithmetic._numbers import layout_for, target_for
from mpsim.arithmetic.environment import NanRule, Settings
from mpsim.formats import FloatFormat, FormatLike, Specials
from mpsim.modes import unknown
from mpsim_kernels import sums as kernels
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.arithmetic_fast import FAST, make_fast
from mpsim_kernels.arithmetic_loops import convert_loop

__all__ = ["dot", "sum"]

_ORDERS = ("sequential", "pairwise", "chunked", "kahan", "exact")
_RANGE = 1 << 13  # terms worth a thread


def sum(
    x: ArrayLike,
    fmt: FormatLike,
    *,
    axis: int = -1,
    order: str = "sequential",
    chunk: int | None = None,
    inputs: FormatLike | None = None,
    **options: Unpack[Options],
) -> Any:
    """Return sums along an axis, every partial sum rounded to a format.

    Parameters
    ----------
    x : array_like
        Values of ``inputs`` (others are rounded to it first), or codes with ``codes=True``.
    fmt : FloatFormat or name
        Format of every partial sum and of the result.
    axis : int
    order : {"sequential", "pairwise", "chunked", "kahan", "exact"}
        ``"sequential"``: from the first term to the last. ``"pairwise"``: neighbours, then neighbouring sums, level by
        level. ``"chunked"``: chunks of ``chunk`` terms sequentially, then their sums sequentially. ``"kahan"``:
        sequentially with compensation. ``"exact"``: the correctly rounded sum, by an accumulator as long as the range
        of the format.
    chunk : int, optional
        Length of the chunks; needed for, and only for, ``"chunked"``.
    inputs : FloatFormat or name, optional
        Format of the terms, by default ``fmt``. Except for ``"exact"`` each of its numbers must be one of ``fmt`` too.
    **options
        As for `add`. A mask has the flags of all steps of a sum, `env` counts every step.

    Returns
    -------
    sums : array, the shape of ``x`` without ``axis``
        The sum of no terms is +0. An exact sum with a NaN is the NaN that an invalid operation makes, without payload.

    Notes
    -----
    The exact sum follows Kulisch (2013); IEEE 754-2019, 9.4, leaves the order of a sum open.

    Examples
    --------
    >>> terms = [2048.0] + 7 * [1.0]
    >>> {order: float(sum(terms, "fp16", order=order)) for order in ("sequential", "pairwise", "kahan", "exact")}
    {'sequential': 2048.0, 'pairwise': 2054.0, 'kahan': 2056.0, 'exact': 2056.0}
    """
    call = begin("sum", options)
    f, g = _formats("sum", fmt, inputs, order, chunk)
    words = _rows("sum", as_words(x, f, call.codes, "x"), axis)
    if order == "exact":
        return _reduce(call, words, None, f, g, order)
    return _reduce(call, _widened(call, words, f, g, "inputs"), None, g, g, order, chunk)


def dot(
    a: ArrayLike,
    b: ArrayLike,
    fmt: FormatLike,
    *,
    axis: int = -1,
    order: str = "sequential",
    chunk: int | None = None,
    products: FormatLike | Literal["fused"] | None = None,
    inputs: FormatLike | None = None,
    **options: Unpack[Options],
) -> Any:
    """Return dot products along an axis, every product and partial sum rounded to a format.

    Parameters
    ----------
    a, b : array_like, broadcast against each other
        Values of ``inputs`` (others are rounded to it first), or codes with ``codes=True``.
    fmt : FloatFormat or name
        Format of every partial sum and of the result.
    axis, order, chunk, inputs, **options
        As for `sum`. ``"exact"`` rounds nothing but the result.
    products : FloatFormat, name or "fused", optional
        Format that each product is rounded to, by default ``fmt``; one whose numbers are all numbers of ``fmt``.
        ``"fused"`` adds products unrounded, by `fma`, in the orders ``"sequential"`` and ``"chunked"``; the first
        product of a chunk is rounded.

    Returns
    -------
    dots : array, the shape of ``a * b`` without ``axis``

    Examples
    --------
    >>> a, b = [3e4, 1.0, 3e4], [1.0, 2**-10, -1.0]
    >>> dot(a, b, "fp16"), dot(a, b, "fp16", order="exact"), dot(a, b, "fp32", inputs="fp16")
    (array(0., dtype=float32), array(0.00097656, dtype=float32), array(0., dtype=float32))
    """
    call = begin("dot", options)
    f, g = _formats("dot", fmt, inputs, order, chunk)
    x, y = np.broadcast_arrays(as_words(a, f, call.codes, "a"), as_words(b, f, call.codes, "b"))
    x, y = _rows("dot", x, axis), _rows("dot", y, axis)
    fused = products == "fused"
    if order == "exact":
        return _reduce(call, x, y, f, g, order)
    if fused and order not in ("sequential", "chunked"):
        raise ValueError(f"dot: products is 'fused' and order {order!r}; fused products are added one after another")
    if products is None or fused:
        x, y = _widened(call, x, f, g, "inputs"), _widened(call, y, f, g, "inputs")
        return _reduce(call, x, y, g, g, order, chunk, fused)
    return _dot_of_rounded(call, x, y, f, arithmetic_format(products), g, order, chunk)


def _dot_of_rounded(
    call: Call,
    x: NDArray[Any],
    y: NDArray[Any],
    f: FloatFormat,
    between: FloatFormat,
    g: FloatFormat,
    order: str,
    chunk: int | None,
) -> Any:
    """Return sums in ``g`` of products that are rounded to the format ``between``."""
    loop = named(make_fast(FAST.index("mul")), *_numbers(f, between, call.settings))
    rounded = call._replace(codes=True, out=None).run(loop, [x, y], between)
    terms, product_mask = rounded if call.return_flags else (rounded, None)
    result = _reduce(call, _widened(call, terms, between, g, "products"), None, g, g, order, chunk)
    if product_mask is None:
        return result
    sums, mask = result
    return sums, mask | np.bitwise_or.reduce(product_mask, axis=-1)


def _formats(
    name: str, fmt: FormatLike, inputs: FormatLike | None, order: str, chunk: int | None
) -> tuple[FloatFormat, FloatFormat]:
    """Return the formats of terms and sums, after checking how to add."""
    if order not in _ORDERS:
        raise unknown(f"{name}: order", order, _ORDERS)
    if (order == "chunked") != (chunk is not None) or (chunk is not None and chunk < 1):
        raise ValueError(f"{name}: chunk is {chunk} and order {order!r}; 'chunked', and only that, needs a length >= 1")
    g = arithmetic_format(fmt)
    return g if inputs is None else arithmetic_format(inputs), g


def _numbers(f: FloatFormat, g: FloatFormat, settings: Settings) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return layout_for(f, settings.subnormal_inputs_as_zero), target_for(g, settings)


def _rows(name: str, words: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return codes with the axis of the sum last."""
    if not -words.ndim <= axis < words.ndim:
        raise ValueError(f"{name}: axis is {axis}; the terms have {words.ndim} dimensions")
    return np.moveaxis(words, axis, -1)


def _widened(call: Call, words: NDArray[Any], f: FloatFormat, g: FloatFormat, argument: str) -> NDArray[Any]:
    """Return codes of ``f`` as codes of ``g``, which must have all its numbers."""
    if f == g:
        return words
    ranges = f.p <= g.p and f.max_finite <= g.max_finite and f.quantum_exponent >= g.quantum_exponent
    kinds = (f.signed <= g.signed, f.has_zero <= g.has_zero, f.inf_code is None or g.inf_code is not None)
    gapless = g.has_subnormals or f.min_subnormal >= g.min_subnormal
    if not (ranges and gapless and all(kinds)):
        raise ValueError(f"{call.name}: {argument} is {f}, but {g} lacks some of its numbers; convert them first")
    kept = call.settings.nan if f.specials is g.specials is Specials.IEEE else NanRule.DEFAULT
    exact = call._replace(codes=True, return_flags=False, out=None, settings=Settings(nan=kept))
    widened: NDArray[Any] = exact.run(named(convert_loop, *_numbers(f, g, exact.settings)), [words], g)
    return widened


def _reduce(
    call: Call,
    x: NDArray[Any],
    y: NDArray[Any] | None,
    f: FloatFormat,
    g: FloatFormat,
    order: str,
    chunk: int | None = None,
    fused: bool = False,
) -> Any:
    """Return what the kernel of an order makes of the last axis."""
    shape, n = x.shape[:-1], x.shape[-1]
    rows = math.prod(shape)
    x = _flat_rows(x, rows)
    y = np.empty((0, 0), x.dtype) if y is None else _flat_rows(y, rows)
    numbers = _numbers(f, g, call.settings)
    extra: tuple[int, ...] = ()
    kernel: Callable[..., None]
    match order:
        case "pairwise":
            kernel = kernels.pairwise_rows
        case "kahan":
            kernel = kernels.kahan_rows
        case "exact":
            kernel, extra = kernels.exact_rows, _accumulator(f, 2 if y.size else 1)
        case _:
            kernel, extra = kernels.ordered_rows, (max(chunk or n, 1), int(fused))
    words = np.empty(rows, np.uint16 if g.code_dtype == np.uint8 else g.code_dtype)
    mask, counts = call.wanted(rows)
    tallies: list[NDArray[np.int64]] = []

    def task(start: int, stop: int) -> None:
        tally = np.zeros(counts.size, np.int64)
        tallies.append(tally)
        part = y[start:stop] if y.size else y
        kernel(x[start:stop], part, words[start:stop], mask[start:stop], tally, *numbers, *map(np.int64, extra))

    in_ranges(task, rows, max(_RANGE // max(n, 1), 1))
    for tally in tallies:
        counts += tally
    return call.finish(words.astype(g.code_dtype).reshape(shape), mask, counts, g)


def _flat_rows(words: NDArray[Any], rows: int) -> NDArray[Any]:
    dtype = np.dtype(np.uint16) if words.dtype == np.uint8 else words.dtype
    return np.ascontiguousarray(words.reshape(rows, words.shape[-1]), dtype)


def _accumulator(f: FloatFormat, factors: int) -> tuple[int, int]:
    """Return exponent and length, in limbs of 32 bits, of an accumulator for products of ``factors`` numbers."""
    exponent = factors * f.quantum_exponent
    return exponent, (factors * (f.emax + 1) - exponent) // 32 + 4
