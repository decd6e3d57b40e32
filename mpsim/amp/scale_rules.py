"""Rules of loss scaling, as data: when a scale grows and shrinks, and how gradients are tested and unscaled.

A rule is used in two ways: through a `LossScaler`, which goes through a training step as torch's GradScaler does, or
as functions on a frozen `ScaleState`, for which nothing is ever changed in place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from mpsim.formats import FP16, FP32, FP64
from mpsim.rounding import round_to
from mpsim.tensor import Tensor, wrap

__all__ = ["RULES", "ScaleRule", "ScaleState"]


@dataclass(frozen=True, slots=True)
class ScaleState:
    """What a rule remembers from one step to the next."""

    scale: float
    clean: int = 0
    """Steps without overflow since the last overflow or growth."""
    spare: int = 0
    """Overflows that are still let pass without a smaller scale."""
    overflows: int = 0
    """Overflows since the last one that made the scale smaller."""
    since_rescale: int = 0
    """Steps since the scale last changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRule:
    """How one system chooses its loss scale.

    Examples
    --------
    >>> rule = RULES["megatron"]
    >>> state = rule.init()
    >>> first = rule.adjust(state, finite=False)
    >>> first.scale == state.scale, rule.adjust(first, finite=False).scale / state.scale
    (True, 0.5)
    """

    name: str
    start: float
    growth: float = 2.0
    """Factor after ``interval`` clean steps in a row."""
    backoff: float = 0.5
    """Factor after an overflow."""
    interval: int | None = 2000
    """None keeps the scale constant."""
    delay: int = 0
    """Clean steps after an overflow that do not count."""
    hysteresis: int = 1
    """Which overflow is the first to make the scale smaller."""
    refill: Literal["growth", "clean step"] = "growth"
    """What lets that count start again."""
    overflow_share: float = 0.0
    """Of the steps since the scale last changed, the share that must overflow before it shrinks."""
    floor: float = 0.0
    """Smallest scale."""
    ceiling: float = math.inf
    """Largest scale."""
    keeps_finite: bool = False
    """Whether growth to infinity is left out."""
    stops: Literal["never", "at floor", "below limit"] = "never"
    """When the rule gives up with an error: overflow at the floor, or a scale that would not stay above ``limit``."""
    limit: float = 0.0
    scale_type: Literal["single", "double"] = "single"
    """Type in which the scale is kept. Products are rounded to it once."""
    test: Literal["elements", "sum", "norm", "none"] = "elements"
    """What must be finite: every element, the FP32 sum of each gradient, the FP32 norm of all, or nothing."""
    unscaling: Literal["multiply", "divide"] = "multiply"
    """Whether gradients are multiplied by the rounded inverse of the scale, or divided by it."""
    widens: bool = False
    """Whether FP16 and BF16 gradients are unscaled into FP32 (those of master weights); FP16 is refused otherwise."""

    def __post_init__(self) -> None:
        if self.hysteresis < 1:
            raise ValueError(f"hysteresis is {self.hysteresis}; it must be at least 1")
        if not self.floor <= self.ceiling:
            raise ValueError(f"floor is {self.floor}, ceiling is {self.ceiling}; the floor must not be above")

    def init(self) -> ScaleState:
        """Return the state before the first step."""
        return ScaleState(self.held(min(self.start, self.ceiling)), spare=self.hysteresis - 1)

    def scale(self, state: ScaleState, loss: Tensor) -> Tensor:
        """Return a loss, or any tensor, times the scale, with torch's promotion."""
        with np.errstate(over="ignore", under="ignore"):
            return loss * Tensor(np.float32(state.scale), format=FP32)

    def unscale(self, state: ScaleState, grads: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
        """Return new, unscaled gradients, and whether the scaled ones pass the test.

        Raises
        ------
        ValueError
            A gradient is in FP16, which the unscaled gradient could underflow, and the rule does not widen.
        """
        if not self.widens and any(grad.format == FP16 for grad in grads):
            raise ValueError(
                "Attempting to unscale FP16 gradients: keep the parameters in FP32 (master weights), "
                "or take a rule that widens"
            )
        with np.errstate(all="ignore"):
            finite = self._passes(grads)
            return [self._unscaled(state.scale, grad) for grad in grads], finite

    def adjust(self, state: ScaleState, finite: bool) -> ScaleState:
        """Return the state for the next step.

        Raises
        ------
        FloatingPointError
            The scale cannot shrink any further, where the rule ``stops``.
        """
        state = replace(state, since_rescale=state.since_rescale + 1)
        return self._after_clean(state) if finite else self._after_overflow(state)

    def held(self, scale: float) -> float:
        """Return a scale in the type that the rule keeps it in."""
        with np.errstate(over="ignore", under="ignore"):
            return float(np.float32(scale)) if self.scale_type == "single" else float(scale)

    def _after_clean(self, state: ScaleState) -> ScaleState:
        clean = state.clean + 1
        spare = self.hysteresis - 1 if self.refill == "clean step" else state.spare
        if self.interval is None or clean != self.interval + self.delay:
            return replace(state, clean=clean, spare=spare)
        grown = self.held(min(state.scale * self.growth, self.ceiling))
        if self.keeps_finite and not math.isfinite(grown):
            grown = state.scale
        return replace(state, scale=grown, clean=self.delay, spare=self.hysteresis - 1, since_rescale=0)

    def _after_overflow(self, state: ScaleState) -> ScaleState:
        state = replace(state, clean=0, overflows=state.overflows + 1)
        if state.spare:
            return replace(state, spare=state.spare - 1)
        if self.interval is None or state.overflows / state.since_rescale < self.overflow_share:
            return state
        if self.stops == "at floor" and state.scale == self.floor:
            raise FloatingPointError(f"{self.name}: overflow with the loss scale at its floor, {self.floor}")
        shrunk = max(self.held(state.scale * self.backoff), self.floor)
        if self.stops == "below limit" and shrunk <= self.limit:
            raise FloatingPointError(f"{self.name}: the loss scale would sink to {shrunk}; its limit is {self.limit}")
        return replace(state, scale=shrunk, overflows=0, since_rescale=0)

    def _passes(self, grads: Sequence[Tensor]) -> bool:
        if self.test == "none":
            return True
        if self.test == "elements":
            return all(bool(np.isfinite(grad.data).all()) for grad in grads)
        flat = [grad.data.astype(np.float32, copy=False).ravel() for grad in grads]
        if self.test == "sum":
            return all(bool(np.isfinite(x.sum(dtype=np.float32))) for x in flat)
        return bool(np.isfinite(np.sum([np.sum(x * x, dtype=np.float32) for x in flat], dtype=np.float32)))

    def _unscaled(self, scale: float, grad: Tensor) -> Tensor:
        fmt = FP32 if self.widens and grad.format != FP64 else grad.format
        if self.unscaling == "divide":
            data = grad.data / np.float32(scale)
        else:
            data = grad.data * np.float32(1.0 / np.float64(scale))
        return wrap(round_to(data, fmt).astype(fmt.value_dtype, copy=False), fmt)


def _double(name: str, **fields: object) -> ScaleRule:
    """Return a rule that keeps its scale in a Python number and has FP32 master weights."""
    return ScaleRule(name=name, scale_type="double", widens=True, **fields)  # type: ignore[arg-type]


RULES: dict[str, ScaleRule] = {
    rule.name: rule
    for rule in (
        ScaleRule(name="torch", start=2.0**16, keeps_finite=True),
        ScaleRule(name="micikevicius", start=8.0, interval=None, widens=True),
        _double("apex", start=2.0**16, ceiling=2.0**24),
        _double("apex-static", start=1.0, interval=None, test="none"),
        _double("apex-fp16-utils", start=2.0**32, interval=1000, floor=1.0, test="sum"),
        ScaleRule(name="keras", start=2.0**15, unscaling="divide"),
        ScaleRule(name="jmp", start=2.0**15, floor=1.0, keeps_finite=True),
        ScaleRule(name="megatron", start=2.0**32, interval=1000, hysteresis=2, floor=1.0, widens=True),
        _double(
            "deepspeed",
            start=2.0**16,
            interval=1000,
            delay=1,
            hysteresis=2,
            floor=1.0,
            stops="at floor",
            test="sum",
        ),
        _double("fairseq", start=2.0**15, stops="below limit", limit=1e-4, test="norm"),
    )
}
"""The rules by name.

``torch`` is torch.amp.GradScaler 2.14; ``micikevicius`` the constant of Micikevicius et al. 2018 (arXiv 1710.03740),
3.2, who report 8 to 32K; ``apex`` and ``apex-static`` the LossScaler of apex.amp, ``apex-fp16-utils`` its older
DynamicLossScaler; ``keras`` the LossScaleOptimizer of Keras 3; ``jmp`` its DynamicLossScale; ``megatron``
Megatron-Core's DynamicGradScaler; ``deepspeed`` its DynamicLossScaler with the configuration's start; ``fairseq`` its
DynamicLossScaler. The order in which a sum or norm adds up is NumPy's, not that of a GPU.
"""
