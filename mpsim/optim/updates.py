"""How an update reaches weights and optimizer state that are kept in few bits, and what is lost on the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim._grids import grid_for
from mpsim.formats import FloatFormat, FormatLike, get_format
from mpsim.modes import Choice, NaN, Overflow, Rounding
from mpsim.rounding import round_to
from mpsim.stochastic import Draws, DrawsLike, as_draws
from mpsim_kernels.rounding import ANY_MODE, GENERAL, NONE, make_rounder
from mpsim_kernels.updates import make_add_scaled, make_add_square, make_lerp, sum_to_odd

__all__ = [
    "Array",
    "Direction",
    "Rounder",
    "Rules",
    "Update",
    "UpdateCounts",
    "add_scaled",
    "add_square",
    "compensated_weights",
    "lerp",
    "moved_weights",
    "positive_nan",
]

Array: TypeAlias = "NDArray[Any]"


class Update(Choice):
    """Ways to update weights of a low-precision format."""

    NEAREST = "nearest"
    """Computed in FP32 and rounded once to the format of the weight."""
    STOCHASTIC = "stochastic"
    """The same with stochastic rounding: a small update is made at random, in proportion to its size."""
    KAHAN = "kahan"
    """Compensated summation in the format of the weight: what rounding took away is added to the next update."""
    MASTER = "master"
    """The optimizer keeps the weights in FP32; the parameter is the master weight rounded."""


@dataclass(slots=True)
class UpdateCounts:
    """What became of the updates of single weights."""

    updates: int = 0
    """Updates that were not zero."""
    lost: int = 0
    """Of these, how many left the weight unchanged."""

    @property
    def share_lost(self) -> float:
        """Lost updates as a share of all that were not zero; NaN when there were none."""
        return self.lost / self.updates if self.updates else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The arithmetic that an optimizer was asked for.

    Raises
    ------
    ValueError
        An unknown name, or random numbers asked for without a seed, or a seed without a use for it.
    """

    update: Update = Update.NEAREST
    state_format: FloatFormat | None = None
    state_rounding: Rounding = Rounding.NEAREST_EVEN
    draws: Draws | None = None
    scaled: Mapping[str, FloatFormat] = dataclasses.field(default_factory=dict)
    """Formats of arrays that are stored under a scale of the whole tensor, by name."""

    @classmethod
    def of(
        cls,
        update: Update | str,
        state_format: FormatLike | None,
        state_rounding: Rounding | str,
        rng: DrawsLike,
        scaled: Mapping[str, FormatLike] | None = None,
    ) -> Rules:
        """Return the rules that an optimizer's arguments mean."""
        how = Update.of(update, "update")
        rounding = Rounding.of(state_rounding, "state_rounding")
        if rounding not in (Rounding.NEAREST_EVEN, Rounding.STOCHASTIC):
            raise ValueError(f"state_rounding is {str(rounding)!r}; it must be 'nearest-even' or 'stochastic'")
        fmt = None if state_format is None else get_format(state_format)
        if fmt is None and rounding is Rounding.STOCHASTIC:
            raise ValueError("state_rounding is 'stochastic', which needs a state_format, such as 'bf16'")
        if scaled and (how is not Update.NEAREST or fmt is not None):
            raise ValueError("scaled is given, which goes with update='nearest' and without state_format")
        random = how is Update.STOCHASTIC or rounding is Rounding.STOCHASTIC
        if not random and rng is not None:
            raise ValueError("rng is given, but neither update nor state_rounding is 'stochastic'")
        draws = as_draws(rng) if random else None
        if draws is not None and draws.stream:
            raise ValueError(f"rng has stream {draws.stream}; the optimizer numbers the streams itself: leave it 0")
        formats = {name: get_format(each) for name, each in (scaled or {}).items()}
        return cls(update=how, state_format=fmt, state_rounding=rounding, draws=draws, scaled=formats)


class Rounder:
    """Rounds float64 arrays to a format, piece by piece.

    Parameters
    ----------
    fmt : FloatFormat
    draws : Draws, optional
        Round stochastically, with these random numbers.
    """

    def __init__(self, fmt: FloatFormat, draws: Draws | None = None) -> None:
        self._fmt, self._draws = fmt, draws
        if draws is not None:
            self._rounder = make_rounder(64, ANY_MODE, False, NONE, GENERAL)
            self._grid = grid_for(fmt, 64, False, Rounding.STOCHASTIC, Overflow.IEEE, False, None, draws, NaN.CANONICAL)

    def __call__(self, exact: Array, start: int = 0, stream: int = 0) -> Array:
        """Return the numbers of ``exact``, elements ``start`` onward of an array, rounded; float64."""
        if self._draws is None:
            return round_to(exact, self._fmt)
        words = exact.view(np.uint64)
        rounded = np.empty_like(words)
        # As `round_to` draws them for the whole array.
        random = dataclasses.replace(self._draws, stream=stream).words(start, start + exact.size, 64)
        self._rounder(words, rounded, self._grid, random, np.zeros(0, np.int64))
        return rounded.view(np.float64)


@dataclass(slots=True)
class Direction:
    """One update before it is added: ``decay * w + scale * x``, with all scalars in the working type."""

    x: Array
    scale: Any
    source: Array
    """Zero where no update is meant; x itself may have underflowed."""
    decay: Any = None
    """Factor on the weights, or None."""
    shrink: Any = 0.0
    """The factor less one, where there is one."""

    def meant(self, w: Array) -> NDArray[np.bool_]:
        """Return where an update was meant."""
        meant = (self.source != 0) & (self.scale != 0)
        if self.decay is not None and self.decay != 1:
            meant |= w != 0
        return np.asarray(meant)


def moved_weights(direction: Direction, w: Array, rounder: Rounder | None, start: int, stream: int) -> Array:
    """Return new weights, rounded once by ``rounder``; without one in their working type, FP32 or FP64."""
    base = w if direction.decay is None else w * direction.decay
    if rounder is None:
        return positive_nan(add_scaled(direction.scale, direction.x, base))
    return rounder(_exact_sum(direction.scale, direction.x, base), start, stream).astype(w.dtype)


def compensated_weights(direction: Direction, w: Array, compensation: Array, rounder: Rounder) -> tuple[Array, Array]:
    """Return new weights and what rounding added to them, both in the format of ``rounder``.

    Notes
    -----
    Kahan's summation as in Zamirai et al. 2020 (arXiv 2010.06192), every operation rounded to the format. A sum of two
    of its numbers may be rounded to float64 first where the format has no more than 25 bits.
    """
    x, scale = direction.x, direction.scale
    if direction.decay is not None:
        x, scale = add_scaled(direction.shrink, w, scale * x), w.dtype.type(1)
    update = rounder(_exact_sum(scale, x, np.zeros_like(w)))
    wide = w.astype(np.float64)
    y = rounder(update - compensation)
    new = rounder(positive_nan(wide + y))
    error = rounder(rounder(new - wide) - y)
    # An infinite weight stays infinite.
    error[~np.isfinite(new)] = 0
    return new.astype(w.dtype), error.astype(w.dtype)


def _exact_sum(scale: Any, x: Array, y: Array) -> Array:
    """Return ``scale * x + y`` as float64, rounded to odd; of float64 numbers rounded to nearest."""
    if x.dtype == np.float64:
        return positive_nan(add_scaled(scale, x, y))
    total = np.empty(x.shape)
    sum_to_odd(scale, x, y, total)
    return total


def positive_nan(x: Array) -> Array:
    """Make every NaN the positive quiet one, in place."""
    np.copyto(x, np.nan, where=x != x)
    return x


# Operations as torch's kernels do them, on contiguous arrays; scalars in the type of the arrays.


def add_scaled(a: Any, x: Array, y: Array) -> Array:
    """Return ``a * x + y``, rounded once: ``y.add(x, alpha=a)``."""
    out = np.empty_like(y)
    make_add_scaled(8 * y.itemsize)(a, x, y, out)
    return out


def add_square(a: Any, x: Array, y: Array) -> Array:
    """Return ``(a * x) * x + y``, the product with ``a`` rounded, the rest once: ``y.addcmul(x, x, value=a)``."""
    out = np.empty_like(y)
    make_add_square(8 * y.itemsize)(a, x, y, out)
    return out


def lerp(x: Array, y: Array, share: Any) -> Array:
    """Return ``x`` moved towards ``y`` by a share of the distance: ``x.lerp(y, share)``."""
    out = x.copy()
    make_lerp(8 * x.itemsize)(out, y, share)
    return out
