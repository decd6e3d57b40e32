"""Loss scaling through a training step, by any rule, with the states and errors of torch's GradScaler."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim.amp.notices import Kind, Notices
from mpsim.amp.scale_rules import ScaleRule, ScaleState
from mpsim.nn import Module
from mpsim.optim import Optimizer
from mpsim.optim.clipping import was_clipped
from mpsim.tensor import Tensor

__all__ = ["LossScaler", "require_state"]

_RECENT = 100
"""Steps over which the skip rate is taken."""


class _Stage(enum.Enum):
    READY = enum.auto()
    UNSCALED = enum.auto()
    STEPPED = enum.auto()


@dataclass(slots=True)
class _Progress:
    """How far one optimizer is in the current iteration."""

    stage: _Stage = _Stage.READY
    found_inf: bool | None = None
    """Whether a gradient failed the test; None before any was looked at."""


@dataclass(slots=True)
class _Watched:
    """Buffers that a skipped step must not have changed."""

    model: Module
    before: dict[str, NDArray[Any]] = field(default_factory=dict)


class LossScaler:
    """Loss scaling by any rule, with the methods and errors of torch.amp.GradScaler.

    Parameters
    ----------
    rule : ScaleRule
    enabled : bool
        False turns every method into its plain counterpart without scaling.

    Attributes
    ----------
    skipped : int
        Optimizer steps skipped so far.
    notices : Notices
        What the run should be told: a scale below 1, a high skip rate, a loss that is not finite, clipping before
        unscaling, and buffers changed by a skipped step (see `watch`).
    skip_rate_limit : float
        Share of skipped steps, of the last 100 or all since the start if those are at least 20, that is worth a notice.

    Examples
    --------
    >>> from mpsim.amp import RULES
    >>> scaler = LossScaler(RULES["keras"])
    >>> scaler.scale(Tensor(0.5))
    Tensor(16384., format=fp32)
    """

    skip_rate_limit = 0.1

    def __init__(self, rule: ScaleRule, enabled: bool = True) -> None:
        if enabled and not rule.growth > 1.0:
            raise ValueError(f"growth is {rule.growth}; it must be larger than 1")
        if enabled and not rule.backoff < 1.0:
            raise ValueError(f"backoff is {rule.backoff}; it must be smaller than 1")
        self.rule = rule
        self.state = rule.init()
        self.enabled = enabled
        self.skipped = 0
        self.notices = Notices()
        self._step = 0
        self._used = False
        self._progress: dict[int, _Progress] = {}
        self._recent: deque[bool] = deque(maxlen=_RECENT)
        self._watched: _Watched | None = None

    def get_scale(self) -> float:
        """Return the scale; 1 when disabled."""
        return self.state.scale if self.enabled else 1.0

    def is_enabled(self) -> bool:
        """Return whether the scaler scales at all."""
        return self.enabled

    def watch(self, model: Module) -> None:
        """Compare the buffers of a model before and after each step, so that one that is skipped is noticed."""
        self._watched = _Watched(model, _buffers(model))

    def scale(self, outputs: Any) -> Any:
        """Return a tensor, or every tensor of an iterable, multiplied by the scale."""
        if not self.enabled:
            return outputs
        if isinstance(outputs, Tensor):
            self._used = True
            if not np.isfinite(outputs.data).all():
                self._note(Kind.FORWARD, "the loss is infinite or NaN before it is scaled; no scale can help")
            return self.rule.scale(self.state, outputs)
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
            A gradient is in FP16, which the unscaled gradient could underflow, and the rule does not widen.
        """
        if not self.enabled:
            return
        self._require_use("unscale_()")
        progress = self._progress_of(optimizer)
        if progress.stage is _Stage.UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update()")
        if progress.stage is _Stage.STEPPED:
            raise RuntimeError("unscale_() is being called after step()")
        grads = [p.grad for p in optimizer.params if p.grad is not None]
        unscaled, finite = self.rule.unscale(self.state, grads)
        if any(map(was_clipped, grads)):
            self._note(Kind.CLIPPED, f"gradients were clipped while scaled by {self.state.scale:g}: unscale_() first")
        for grad, new in zip(grads, unscaled, strict=True):
            grad.data, grad.format = new.data, new.format
        progress.found_inf = not finite if grads else None
        progress.stage = _Stage.UNSCALED

    def step(self, optimizer: Optimizer, closure: None = None) -> None:
        """Unscale if that is still to be done, then call ``optimizer.step()`` unless a gradient failed the test.

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
        progress = self._progress_of(optimizer)
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
        """Adjust the scale for the next iteration, or set it to ``new_scale``.

        Raises
        ------
        AssertionError
            Nothing was scaled yet, or nothing was unscaled since the last update.
        FloatingPointError
            The rule gives up, as those of DeepSpeed and fairseq do when the scale cannot shrink any further.
        """
        if not self.enabled:
            return
        self._require_use("update()")
        if new_scale is not None:
            if isinstance(new_scale, Tensor) and new_scale.size != 1:
                raise ValueError(f"new_scale has shape {new_scale.shape}; a single element is needed")
            scale = new_scale.item() if isinstance(new_scale, Tensor) else float(new_scale)
            self.state = replace(self.state, scale=self.rule.held(scale))
        else:
            checks = [p.found_inf for p in self._progress.values() if p.found_inf is not None]
            if not checks:
                raise AssertionError("No inf checks were recorded prior to update(): call step() or unscale_() first")
            self.state = self.rule.adjust(self.state, finite=not any(checks))
        self._look()
        self._progress.clear()
        self._step += 1

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as numbers and strings; empty when disabled."""
        return {"rule": self.rule.name, **asdict(self.state)} if self.enabled else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state from `state_dict`.

        Raises
        ------
        RuntimeError
            The state is that of a disabled scaler.
        ValueError
            It belongs to another rule.
        """
        if not self.enabled:
            return
        require_state(state)
        if state.get("rule") != self.rule.name:
            raise ValueError(f"state is of rule {state.get('rule')!r}; this scaler follows {self.rule.name!r}")
        self.state = ScaleState(**{f.name: state[f.name] for f in fields(ScaleState)})

    def _look(self) -> None:
        """Take note of what a finished iteration should be told."""
        skipped = any(p.found_inf and p.stage is _Stage.STEPPED for p in self._progress.values())
        self._recent.append(skipped)
        rate = sum(self._recent) / len(self._recent)
        if len(self._recent) >= 20 and rate > self.skip_rate_limit:
            self._note(Kind.SKIP_RATE, f"{rate:.0%} of the last {len(self._recent)} steps were skipped")
        if self.state.scale < 1:
            self._note(Kind.SCALE_BELOW_ONE, f"the scale is {self.state.scale:g}")
        if self._watched is not None:
            now = _buffers(self._watched.model)
            for name in now if skipped else ():
                if not np.array_equal(now[name], self._watched.before.get(name, now[name]), equal_nan=True):
                    self._note(Kind.BUFFERS, f"{name} changed although the step was skipped", name)
            self._watched.before = now

    def _note(self, kind: Kind, message: str, subject: str = "") -> None:
        self.notices.add(kind, self._step, message, subject)

    def _require_use(self, method: str) -> None:
        if not self._used:
            raise AssertionError(f"{method} was called before scale(): call scale(loss).backward() first")

    def _progress_of(self, optimizer: Optimizer) -> _Progress:
        return self._progress.setdefault(id(optimizer), _Progress())


def _buffers(model: Module) -> dict[str, NDArray[Any]]:
    """Return copies of the buffers of a model that hold numbers."""
    return {name: b.data.copy() for name, b in model.named_buffers() if isinstance(b, Tensor)}


def require_state(state: Mapping[str, Any]) -> None:
    """Raise unless a state is that of an enabled scaler."""
    if not state:
        raise RuntimeError("The source state dict is empty, possibly because it was saved from a disabled scaler")
