"""Loss scaling: torch's GradScaler, state by state, and a constant scale."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpsim.formats import FP16, FP32
from mpsim.optim import Optimizer
from mpsim.rounding import round_to
from mpsim.tensor import Tensor

__all__ = ["ConstantScaler", "GradScaler"]


class _Stage(enum.Enum):
    READY = enum.auto()
    UNSCALED = enum.auto()
    STEPPED = enum.auto()


@dataclass(slots=True)
class _Progress:
    """How far one optimizer is in the current iteration."""

    stage: _Stage = _Stage.READY
    found_inf: bool | None = None
    """Whether a gradient was infinite or NaN; None before any was looked at."""


@dataclass(slots=True)
class _State:
    scale: np.float32
    growth_tracker: int = 0
    used: bool = False
    """Whether anything was scaled yet."""
    optimizers: dict[int, _Progress] = field(default_factory=dict)


class GradScaler:
    """Dynamic loss scaling with the semantics and defaults of torch.amp.GradScaler.

    Parameters
    ----------
    init_scale : float
    growth_factor : float, > 1
        Factor after ``growth_interval`` iterations in a row without inf or NaN.
    backoff_factor : float, < 1
        Factor after an iteration with one.
    growth_interval : int
    enabled : bool
        False turns every method into its plain counterpart without scaling.

    Attributes
    ----------
    skipped : int
        Optimizer steps skipped so far.

    Notes
    -----
    State and arithmetic follow torch 2.14: the scale is float32, products are taken in double and rounded once, growth
    that would overflow is not applied, and the scale has no floor. Finiteness is judged on the scaled gradients.

    Examples
    --------
    >>> scaler = GradScaler(init_scale=1024.0)
    >>> scaler.scale(Tensor(0.5))
    Tensor(512., format=fp32)
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled and not growth_factor > 1.0:
            raise ValueError(f"growth_factor is {growth_factor}; it must be larger than 1")
        if enabled and not backoff_factor < 1.0:
            raise ValueError(f"backoff_factor is {backoff_factor}; it must be smaller than 1")
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.enabled = enabled
        self.skipped = 0
        self._state = _State(np.float32(init_scale))

    def get_scale(self) -> float:
        """Return the scale; 1 when disabled."""
        return float(self._state.scale) if self.enabled else 1.0

    def scale(self, outputs: Any) -> Any:
        """Return a tensor, or every tensor of an iterable, multiplied by the scale."""
        if not self.enabled:
            return outputs
        if isinstance(outputs, Tensor):
            self._state.used = True
            return outputs * Tensor(self._state.scale, format=FP32)
        if isinstance(outputs, Iterable) and not isinstance(outputs, str | Mapping):
            scaled = (self.scale(x) for x in outputs)
            return list(scaled) if isinstance(outputs, list) else tuple(scaled)
        raise TypeError(f"outputs is {type(outputs).__name__}; a Tensor or an iterable of Tensors is needed")

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, in place, and look for inf and NaN.

        Raises
        ------
        AssertionError
            Nothing was scaled yet.
        RuntimeError
            Called twice, or after `step`, in one iteration.
        ValueError
            A gradient is in FP16, which the unscaled gradient could underflow.
        """
        if not self.enabled:
            return
        self._require_use("unscale_()")
        progress = self._progress(optimizer)
        if progress.stage is _Stage.UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update()")
        if progress.stage is _Stage.STEPPED:
            raise RuntimeError("unscale_() is being called after step()")
        grads = [p.grad for p in optimizer.params if p.grad is not None]
        if any(grad.format == FP16 for grad in grads):
            raise ValueError("Attempting to unscale FP16 gradients: keep the parameters in FP32 (master weights)")
        with np.errstate(all="ignore"):
            inverse = np.float32(1.0 / np.float64(self._state.scale))
            for grad in grads:
                finite = bool(np.isfinite(grad.data).all())
                progress.found_inf = bool(progress.found_inf) or not finite
                grad.data = round_to(grad.data * inverse, grad.format).astype(grad.data.dtype, copy=False)
        progress.stage = _Stage.UNSCALED

    def step(self, optimizer: Optimizer, closure: None = None) -> None:
        """Unscale if that is still to be done, then call ``optimizer.step()`` unless a gradient was inf or NaN.

        Raises
        ------
        AssertionError
            Nothing was scaled yet, or no parameter has a gradient.
        RuntimeError
            Called twice in one iteration, or with a closure.
        """
        if not self.enabled:
            optimizer.step()
            return
        if closure is not None:
            raise RuntimeError("step() takes no closure while loss scaling is enabled")
        self._require_use("step()")
        progress = self._progress(optimizer)
        if progress.stage is _Stage.STEPPED:
            raise RuntimeError("step() has already been called since the last update()")
        if progress.stage is _Stage.READY:
            self.unscale_(optimizer)
        if progress.found_inf is None:
            raise AssertionError("No inf checks were recorded for this optimizer: no parameter has a gradient")
        if progress.found_inf:
            self.skipped += 1
        else:
            optimizer.step()
        progress.stage = _Stage.STEPPED

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Adjust the scale for the next iteration, or set it to ``new_scale``."""
        if not self.enabled:
            return
        self._require_use("update()")
        if new_scale is not None:
            if isinstance(new_scale, Tensor) and new_scale.size != 1:
                raise ValueError(f"new_scale has shape {new_scale.shape}; a single element is needed")
            self._state.scale = np.float32(new_scale.item() if isinstance(new_scale, Tensor) else new_scale)
        else:
            checks = [p.found_inf for p in self._state.optimizers.values() if p.found_inf is not None]
            if not checks:
                raise AssertionError("No inf checks were recorded prior to update(): call step() or unscale_() first")
            self._adjust(any(checks))
        self._state.optimizers.clear()

    def _adjust(self, found_inf: bool) -> None:
        """Back off, or count a clean iteration and perhaps grow."""
        state = self._state
        with np.errstate(over="ignore", under="ignore"):
            if found_inf:
                state.scale = np.float32(np.float64(state.scale) * self.backoff_factor)
                state.growth_tracker = 0
                return
            state.growth_tracker += 1
            if state.growth_tracker == self.growth_interval:
                grown = np.float32(np.float64(state.scale) * self.growth_factor)
                if np.isfinite(grown):
                    state.scale = grown
                state.growth_tracker = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, under torch's names; empty when disabled."""
        if not self.enabled:
            return {}
        return {
            "scale": float(self._state.scale),
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._state.growth_tracker,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state from `state_dict`, ours or torch's."""
        if not self.enabled:
            return
        if not state:
            raise RuntimeError("The source state dict is empty, possibly because it was saved from a disabled scaler")
        self._state.scale = np.float32(state["scale"])
        self.growth_factor = state["growth_factor"]
        self.backoff_factor = state["backoff_factor"]
        self.growth_interval = state["growth_interval"]
        self._state.growth_tracker = state["_growth_tracker"]

    def _require_use(self, method: str) -> None:
        if not self._state.used:
            raise AssertionError(f"{method} was called before scale(): call scale(loss).backward() first")

    def _progress(self, optimizer: Optimizer) -> _Progress:
        return self._state.optimizers.setdefault(id(optimizer), _Progress())


class ConstantScaler(GradScaler):
    """A loss scale that never changes; steps with inf or NaN gradients are still skipped.

    Parameters
    ----------
    scale : float

    Raises
    ------
    ValueError
        ``scale`` is not a positive number of FP32.

    Notes
    -----
    Section 3.2 of Micikevicius et al. 2018 (arXiv 1710.03740): constants from 8 to 32K, with the update skipped when
    an overflow is found in the weight gradients.
    """

    def __init__(self, scale: float) -> None:
        with np.errstate(over="ignore", under="ignore"):
            held = np.float32(scale)
        if not (held > 0 and np.isfinite(held)):
            raise ValueError(f"scale is {scale}; it must be positive and within FP32")
        super().__init__(init_scale=scale)

    def _adjust(self, found_inf: bool) -> None:
        """Leave the scale as it is."""
