"""The loss scalers by name: torch's GradScaler, a constant scale, and those of other systems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from mpsim.amp.loss_scaling import LossScaler, require_state
from mpsim.amp.scale_rules import RULES, ScaleRule
from mpsim.modes import unknown

__all__ = ["ConstantScaler", "GradScaler", "loss_scaler"]


class GradScaler(LossScaler):
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
    skipped, notices, skip_rate_limit
        See `LossScaler`.

    Notes
    -----
    State and arithmetic follow torch 2.14: the scale is float32, products are taken in double and rounded once, growth
    that would overflow is not applied, and the scale has no floor. Finiteness is judged on the scaled gradients.

    Examples
    --------
    >>> from mpsim import Tensor
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
        changes = {"growth": growth_factor, "backoff": backoff_factor, "interval": growth_interval}
        super().__init__(replace(RULES["torch"], start=init_scale, **changes), enabled)  # type: ignore[arg-type]

    @property
    def growth_factor(self) -> float:
        """Factor after ``growth_interval`` clean iterations; may be set."""
        return self.rule.growth

    @growth_factor.setter
    def growth_factor(self, value: float) -> None:
        self.rule = replace(self.rule, growth=value)

    @property
    def backoff_factor(self) -> float:
        """Factor after an overflow; may be set."""
        return self.rule.backoff

    @backoff_factor.setter
    def backoff_factor(self, value: float) -> None:
        self.rule = replace(self.rule, backoff=value)

    @property
    def growth_interval(self) -> int | None:
        """Clean iterations before growth; may be set. One below the count of those so far is jumped over."""
        return self.rule.interval

    @growth_interval.setter
    def growth_interval(self, value: int) -> None:
        self.rule = replace(self.rule, interval=value)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, here or in torch, under torch's names; empty when disabled."""
        if not self.enabled:
            return {}
        return {
            "scale": self.state.scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self.state.clean,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state from `state_dict`, ours or torch's."""
        if not self.enabled:
            return
        require_state(state)
        changes = {"growth": "growth_factor", "backoff": "backoff_factor", "interval": "growth_interval"}
        rule = replace(self.rule, **{name: state[theirs] for name, theirs in changes.items()})
        scale, tracker = self.rule.held(state["scale"]), int(state["_growth_tracker"])
        self.rule, self.state = rule, replace(self.state, scale=scale, clean=tracker)


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
        self.rule = replace(self.rule, interval=None)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the scale from a `state_dict`, which stays constant from now on."""
        super().load_state_dict(state)
        self.rule = replace(self.rule, interval=None)


def loss_scaler(name: str, enabled: bool = True, **changes: Any) -> LossScaler:
    """Return the loss scaler of a system.

    Parameters
    ----------
    name : str
        A key of `RULES`: torch, micikevicius, apex, apex-static, apex-fp16-utils, keras, jmp, megatron, deepspeed or
        fairseq.
    enabled : bool
    **changes
        Fields of the `ScaleRule` that are to differ, such as ``start`` or ``interval``.

    Raises
    ------
    ValueError
        There is no such system or field.

    Examples
    --------
    >>> loss_scaler("megatron", start=2.0**10).get_scale()
    1024.0
    >>> loss_scaler("megatrno")
    Traceback (most recent call last):
    ValueError: loss_scaler: name is 'megatrno': did you mean 'megatron'? it must be one of torch, micikevicius, \
apex, apex-static, apex-fp16-utils, keras, jmp, megatron, deepspeed, fairseq
    """
    if name not in RULES:
        raise unknown("loss_scaler: name", name, RULES)
    known = [f.name for f in fields(ScaleRule)]
    for key in changes:
        if key not in known:
            raise unknown("loss_scaler: setting", key, known)
    return LossScaler(replace(RULES[name], **changes), enabled)
