"""The first operation that made numbers unusable, with the operands of one bad element, and what would have helped."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.counters import Counters
from mpsim.encoding import encode
from mpsim.exact import decimal_text
from mpsim.formats import FloatFormat
from mpsim.observe.operands import Operand, known, operands_of
from mpsim.ops import Part
from mpsim.rounding import round_to
from mpsim.settings import Origin

if TYPE_CHECKING:
    from mpsim.observe.record import Entry

__all__ = ["CAUSES", "Finding", "find"]

Array: TypeAlias = "NDArray[Any]"

CAUSES = ("overflow", "nan", "flushed", "clipped")
"""What can be the matter with a result."""

_SCALED = ("activation gradient", "weight gradient", "operand", "gradient operand")
"""Kinds of array that have a scale on them."""

_SHARES = ("flushed", "clipped")
"""Causes that befall some numbers in any run, and matter from a share of the nonzero ones on."""

_WORDS = {"overflow": "overflowed", "nan": "became NaN", "flushed": "became zero", "clipped": "was clipped"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An operation whose operands were usable and whose result is not."""

    cause: str
    """One of `CAUSES`."""
    number: int
    """Position among all arrays that the record saw."""
    step: int
    layer: str
    """Path of the module that ran the operation."""
    operation: str
    kind: str
    tensor: str
    """The tensor that was computed, or whose gradient was: a parameter, or a layer and the operation that made it."""
    format: FloatFormat
    share: float
    """Bad elements as a share of all; of ``"flushed"`` and ``"clipped"``, of all that were not zero before."""
    index: tuple[int, ...]
    """Place of the first bad element in the tensor."""
    value: float
    """What the operation computed there, before rounding."""
    code: int
    """What became of it, as a bit pattern of ``format``."""
    operands: tuple[Operand, ...]
    loss_scale: float | None
    """Loss scale in force, where the record knows a scaler."""
    factor: float | None
    """Power of two by which the loss scale, or the recipe's scale of an operand, must be multiplied: that nearest 1
    which flushes no more than the record allows, or overflows nothing. Scales of blocks divide, and others multiply.
    None where no scale does both, and for what does not depend on one."""

    @property
    def exact(self) -> Fraction | float:
        """The value before rounding as a fraction; infinities and NaNs as they are."""
        return Fraction(self.value) if np.isfinite(self.value) else self.value

    @property
    def saving_scale(self) -> float | None:
        """The loss scale that would have saved the tensor; None where there is none, or it is not known, or another."""
        if self.of_recipe or self.loss_scale is None or self.factor is None:
            return None
        return self.loss_scale * self.factor

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        what = f"{self.kind} {self.tensor}" if self.of_recipe else f"{self.kind} of {self.tensor}"
        lines = [
            f"step {self.step}, {self.operation} in layer {self.layer or '(none)'}: {self.share:.3g} of the {what} "
            f"{_WORDS[self.cause]} in {self.format}",
            f"  first bad element {place}: {_short(self.value)} became code {self.code:#0{self.digits}x}",
        ]
        for operand in self.operands:
            terms = (f"{c:#x} = {_short(v)}" for c, v in zip(operand.codes, operand.values, strict=True))
            shown = ", ".join(itertools.islice(terms, 3))
            more = f" and {operand.count - 3} more" if operand.count > 3 else ""
            lines.append(f"  {operand.name} in {operand.format}: {shown}{more}")
        return "\n".join([*lines, f"  {self.remedy}"])

    @property
    def digits(self) -> int:
        """Characters of the code in hexadecimal, with its prefix."""
        return 2 + -(-self.format.bits // 4)

    @property
    def of_recipe(self) -> bool:
        """Whether it was lost in a recipe's cast of an operand, under a scale of its own."""
        return self.kind.endswith("operand")

    @property
    def remedy(self) -> str:
        """What the scale could have done about it, in words."""
        if self.of_recipe:
            if self.factor is None:
                return "no scale of the recipe helps"
            return f"a scale {self._times} that of the recipe would have saved it"
        if not self.kind.endswith("gradient"):
            return "no loss scale changes a forward pass: a wider format is needed here"
        if self.factor is None:
            return "no loss scale helps"
        if self.loss_scale is None:
            return f"a loss scale {self._times} that in force would have saved it"
        scale = f"a loss scale of {self.saving_scale:g}"
        return f"{scale}, {self._times} the {self.loss_scale:g} in force, would have saved it"

    @property
    def _times(self) -> str:
        assert self.factor is not None
        return f"{self.factor:g} times" if self.factor > 1 else f"1/{1 / self.factor:g} of"


def _short(x: float) -> str:
    return decimal_text(Fraction(x), 6) if np.isfinite(x) else str(x)


def find(
    cause: str,
    entry: Entry,
    number: int,
    before: Array,
    after: Array,
    counters: Counters,
    not_finite: int,
    origin: Origin,
    allowed: float,
    scale: float | None,
) -> Finding | None:
    """Return what is the matter with one result; None if nothing is, or it was so with the operands already.

    ``allowed`` is the share of the nonzero numbers that may be flushed, or clipped.
    """
    bad = _bad(cause, before, after, counters, not_finite, origin, allowed)
    if bad is None:
        return None
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), before.shape))
    size = before.size if origin.part is None else math.prod(origin.part.shape)
    of = before.size - counters.zeros if cause in _SHARES else size
    factor = _factor(cause, before, entry.format, allowed) if entry.kind in _SCALED else None
    return Finding(
        cause=cause,
        number=number,
        step=entry.step,
        layer=origin.layer,
        operation=entry.operation,
        kind=entry.kind,
        tensor=entry.tensor,
        format=entry.format,
        share=int(np.count_nonzero(bad)) / of,
        index=index if origin.part is None else _place(index, origin.part),
        value=float(before[index]),
        code=int(encode(after[index], entry.format)),
        operands=operands_of(origin, index, before.shape, entry.format),
        loss_scale=scale,
        factor=1 / factor if factor is not None and origin.clips else factor,
    )


def _place(index: tuple[int, ...], part: Part) -> tuple[int, ...]:
    """Return the place in a whole array of an element of its slice."""
    places = np.arange(math.prod(part.shape)).reshape(part.shape)[part.index]
    return tuple(int(i) for i in np.unravel_index(places[index], part.shape))


def _bad(
    cause: str, before: Array, after: Array, counters: Counters, not_finite: int, origin: Origin, allowed: float
) -> NDArray[np.bool_] | None:
    """Return which elements are bad, or None."""
    if cause in _SHARES:
        count = counters.underflows if cause == "flushed" else counters.overflows * origin.clips
        if count <= allowed * (before.size - counters.zeros) or not count:
            return None
        return np.asarray((before != 0) & (after == 0)) if cause == "flushed" else _largest(before, count)
    if cause == "overflow" and counters.overflows and not origin.clips:
        lost = np.isfinite(before) & ~np.isfinite(after)
        return lost if lost.any() else _largest(before, counters.overflows)
    if not not_finite:
        return None
    operands = [array for _, array, _ in known(origin, origin.format)]
    if cause == "overflow":
        made, usable = np.isinf(before), all(np.isfinite(array).all() for array in operands)
    else:
        made, usable = np.isnan(before), not any(np.isnan(array).any() for array in operands)
    return made if usable and made.any() else None


def _largest(before: Array, count: int) -> NDArray[np.bool_]:
    """Return which elements were held at the largest number, so many of them.

    So are numbers a little above it that only rounded down. Rounding is monotone.
    """
    sizes = np.where(np.isfinite(before), np.abs(before), 0)
    return np.asarray(sizes >= np.partition(sizes, -count, axis=None)[-count])


def _factor(cause: str, before: Array, fmt: FloatFormat, allowed: float) -> float | None:
    """Return the power of two nearest 1 that, as a factor on all numbers, takes the cause away."""
    sizes = np.sort(np.abs(before[np.isfinite(before) & (before != 0)]).astype(np.float64))
    if cause == "nan" or not sizes.size or not np.isfinite(before).all():
        return None
    if cause in ("overflow", "clipped"):
        factors = (2.0**-e for e in range(1, 1100))
        return next((f for f in factors if _fits(sizes[-1] * f, fmt)), None)
    # Rounding is monotone: what is flushed are the smallest.
    least = sizes[int(allowed * sizes.size)] if allowed < 1 else sizes[-1]
    factors = (2.0**e for e in range(1, 1023))
    factor = next((f for f in factors if round_to(least * f, fmt) != 0), None)
    return factor if factor is not None and _fits(sizes[-1] * factor, fmt) else None


def _fits(x: float, fmt: FloatFormat) -> bool:
    """Return whether a number does not overflow."""
    counters = Counters()
    round_to(x, fmt, counters=counters)
    return counters.overflows == 0
