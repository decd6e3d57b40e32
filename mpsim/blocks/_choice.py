"""Four over six: two scales for each block, and the error that each of them leaves."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.blocks.formats import BlockFormat
from mpsim.blocks.rules import ScaleRecipe
from mpsim.encoding import encode
from mpsim_kernels.floating_point import default_environment

__all__ = ["Scaled", "block_errors", "cut", "scaled", "uncut"]

Array: TypeAlias = "NDArray[Any]"

_ROW = 16  # elements whose errors are added from left to right


class Scaled(NamedTuple):
    """Scales of blocks, of any shape."""

    codes: NDArray[np.uint8]
    saturated: NDArray[np.bool_]
    """Where a scale is held at the largest one."""
    underflowed: NDArray[np.bool_]
    """Where the scale of a nonzero block is held at the smallest one, or is zero."""


def cut(x: Array, axis: int, length: int) -> Array:
    """Return an array in blocks [..., blocks, length], the axis last, the last block filled up with zeros."""
    moved = np.moveaxis(x, axis, -1)
    full = np.pad(moved, ((0, 0),) * (x.ndim - 1) + ((0, -x.shape[axis] % length),))
    return full.reshape(*full.shape[:-1], -1, length)


def uncut(blocks: Array, axis: int, n: int) -> Array:
    """Return what `cut` was given: an axis of ``n`` elements where it was."""
    flat = blocks.reshape(*blocks.shape[:-2], -1)
    return np.moveaxis(flat[..., :n], -1, axis)


def scaled(fmt: BlockFormat, recipe: ScaleRecipe, amax: Array, tensor: float, encode_scale: float) -> list[Scaled]:
    """Return the scales that make the largest element of each block 6, and those that make it 4.

    ``amax`` is float64, NaN for blocks that are not finite.
    """
    largest = float(fmt.max_element)
    with default_environment(), np.errstate(all="ignore"):
        amax = _single(amax)
        ratio = _single(amax * float(np.float32(1 / largest)) if recipe.times_inverse else amax / largest)
        ratio = _single(ratio * encode_scale if recipe.times_encode else ratio / tensor)
        return [_coded(fmt, recipe, amax, each) for each in (ratio, _single(ratio * 1.5))]


def _coded(fmt: BlockFormat, recipe: ScaleRecipe, amax: Array, ratio: Array) -> Scaled:
    """Return scales rounded to their format, and held within its range."""
    scale, bad = fmt.scale, np.isnan(amax)
    assert scale.nan_code is not None
    whole = _rounded(np.where(bad, 0, ratio), scale.p, scale.emin, upward=recipe.rounding == "up")
    saturated = whole > scale.max_finite
    codes = encode(np.minimum(whole, scale.max_finite), scale)
    least = {"zero": 0, "subnormal": 1, "normal": 1 << scale.m}[recipe.least]
    underflowed = ~bad & (amax != 0) & (codes < max(least, 1))
    return Scaled(np.where(bad, scale.nan_code, np.maximum(codes, least)).astype(np.uint8), saturated, underflowed)


def _rounded(x: Array, p: int, emin: int, upward: bool = False) -> Array:
    """Return float64 numbers, not negative, rounded to ``p`` bits, subnormals kept, without a largest number."""
    quantum = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 1, emin) - p + 1)
    return np.asarray((np.ceil if upward else np.rint)(x / quantum) * quantum)


def _single(x: Array) -> Array:
    """Return float64 numbers rounded to float32, which goes on beyond its largest number.

    Quotients and products of two such numbers, rounded to float64 before, are rounded as the exact ones: 53 bits are
    more than twice 24.
    """
    return _rounded(x, 24, -126)


def block_errors(recipe: ScaleRecipe, x: Array, elements: Array, scales: Array, tensor: float, full: float) -> Array:
    """Return how far blocks are from their numbers, in float32.

    Parameters
    ----------
    recipe : ScaleRecipe
    x, elements : float32 arrays [..., length]
        Numbers, and the elements that they became.
    scales : float32 array [...]
    tensor, full : float
        A value is ``element * scale * tensor / full``; the scale of the tensor and 1, or its amax and the largest
        number of the format, block scale included.
    """
    with default_environment(), np.errstate(all="ignore"):
        values = elements * scales[..., None] * np.float32(tensor)
        difference = abs((values if full == 1 else values / np.float32(full)) - x)
        if recipe.four_over_six == "max":
            return np.asarray(np.max(difference, axis=-1))
        errors = difference * difference if recipe.four_over_six == "mse" else difference
        rows = cut(errors, -1, _ROW)
        sums = np.zeros(rows.shape[:-1], np.float32)
        for i in range(_ROW):
            sums += rows[..., i]
        known = rows.shape[-2]
        count = 1 << (known - 1).bit_length()
        sums = np.pad(sums, ((0, 0),) * (sums.ndim - 1) + ((0, count - known),))
        while count > 1:
            count //= 2
            sums = sums[..., :count] + sums[..., count:]
        return np.asarray(sums[..., 0])
