"""Schedules of the learning rate, with the names and the arithmetic of torch.

Most compute the next rate from the one in force, as torch does, so that a rate changed by hand stays changed. Call
``step()`` after the optimizer's.
"""

from __future__ import annotations

import abc
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from mpsim.optim.base import Optimizer

__all__ = [
    "CosineAnnealingLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "StepLR",
]


class LRScheduler(abc.ABC):
    """Base of the schedules.

    Parameters
    ----------
    optimizer : Optimizer
        Its groups are given the rate of epoch 0 at once.

    Attributes
    ----------
    last_epoch : int
        Calls of `step` so far.
    base_lrs : list of float
        Rate of each group when its first schedule was made.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer is a {type(optimizer).__name__}; an Optimizer is needed")
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs = [float(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = -1
        self.step()

    @abc.abstractmethod
    def get_lr(self) -> list[float]:
        """Return the rates of the epoch that begins, from those in force."""

    def step(self) -> None:
        """Begin the next epoch."""
        self.last_epoch += 1
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = lr

    def get_last_lr(self) -> list[float]:
        """Return the rates in force."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the schedule's position and settings; the rates in force are the optimizer's to save."""
        return {"schedule": type(self).__name__, **{k: v for k, v in vars(self).items() if k not in self._not_saved}}

    _not_saved: tuple[str, ...] = ("optimizer",)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state from `state_dict` of a schedule of this class; nothing changes if it does not fit."""
        own = self.state_dict()
        if own.keys() != state_dict.keys():
            different = sorted(own.keys() ^ state_dict.keys())
            raise ValueError(f"load_state_dict: {different[0]!r} is missing here or there")
        if state_dict["schedule"] != own["schedule"]:
            raise ValueError(f"load_state_dict: a {state_dict['schedule']}; this is a {own['schedule']}")
        if len(state_dict["base_lrs"]) != len(self.base_lrs):
            raise ValueError(
                f"load_state_dict: base_lrs has {len(state_dict['base_lrs'])} groups; {len(self.base_lrs)} are needed"
            )
        for name, value in state_dict.items():
            if name != "schedule":
                setattr(self, name, value)

    @property
    def _now(self) -> list[float]:
        return self.get_last_lr()


class LambdaLR(LRScheduler):
    """The initial rate times a function of the epoch.

    Parameters
    ----------
    optimizer : Optimizer
    lr_lambda : function, or list of one for each group
        Not saved with the state.
    """

    _not_saved = ("optimizer", "lr_lambdas")

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]]
    ) -> None:
        self.lr_lambdas = _per_group("lr_lambda", lr_lambda, optimizer)
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Return ``initial * lr_lambda(epoch)``."""
        return [base * f(self.last_epoch) for f, base in zip(self.lr_lambdas, self.base_lrs, strict=True)]


class StepLR(LRScheduler):
    """The rate times ``gamma`` every ``step_size`` epochs."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        self.step_size = _positive("step_size", step_size)
        self.gamma = gamma
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Return the rates of the epoch."""
        if self.last_epoch == 0 or self.last_epoch % self.step_size != 0:
            return self._now
        return [lr * self.gamma for lr in self._now]


class MultiStepLR(LRScheduler):
    """The rate times ``gamma`` at each of ``milestones``; twice at one that is named twice."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1) -> None:
        self.milestones = sorted(milestones)
        self.gamma = gamma
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Return the rates of the epoch."""
        times = Counter(self.milestones)[self.last_epoch]
        return [lr * self.gamma**times for lr in self._now] if times else self._now


class ExponentialLR(LRScheduler):
    """The rate times ``gamma`` every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = gamma
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Return the rates of the epoch."""
        return self._now if self.last_epoch == 0 else [lr * self.gamma for lr in self._now]


class LinearLR(LRScheduler):
    """The initial rate times a factor that goes from ``start_factor`` to ``end_factor`` in ``total_iters`` epochs."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5
    ) -> None:
        if not 0 < start_factor <= 1:
            raise ValueError(f"start_factor is {start_factor}; it must be above 0 and at most 1")
        if not 0 <= end_factor <= 1:
            raise ValueError(f"end_factor is {end_factor}; it must be from 0 to 1")
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = _positive("total_iters", total_iters)
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Return the rates of the epoch."""
        if self.last_epoch == 0:
            return [lr * self.start_factor for lr in self._now]
        if self.last_epoch > self.total_iters:
            return self._now
        rise = self.end_factor - self.start_factor
        so_far = self.total_iters * self.start_factor + (self.last_epoch - 1) * rise
        return [lr * (1.0 + rise / so_far) for lr in self._now]


class CosineAnnealingLR(LRScheduler):
    """Half a cosine wave from the initial rate to ``eta_min`` in ``T_max`` epochs, and back (arXiv 1608.03983)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        self.T_max = _positive("T_max", T_max)
        self.eta_min = eta_min
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Return the rates of the epoch."""
        epoch, half = self.last_epoch, self.T_max
        if epoch == 0:
            return self._now
        if (epoch - 1 - half) % (2 * half) == 0:  # from the bottom, where the ratio below has a zero in it
            rise = 1 - math.cos(math.pi / half)
            return [lr + (base - self.eta_min) * rise / 2 for lr, base in zip(self._now, self.base_lrs, strict=True)]
        ratio = (1 + math.cos(math.pi * epoch / half)) / (1 + math.cos(math.pi * (epoch - 1) / half))
        return [ratio * (lr - self.eta_min) + self.eta_min for lr in self._now]


class OneCycleLR(LRScheduler):
    """Up to a largest rate and down again, with the momentum the other way (Smith and Topin 2018, arXiv 1708.07120).

    With ``cycle_momentum=False`` this is the usual warm-up followed by a cosine.

    Parameters
    ----------
    optimizer : Optimizer
    max_lr : float, or list of one for each group
    total_steps : int, optional
        Or ``epochs`` and ``steps_per_epoch``, whose product it is.
    pct_start : float
        Share of the steps in which the rate rises.
    anneal_strategy : {"cos", "linear"}
    cycle_momentum : bool
        Move the momentum, or the first of the betas, between ``max_momentum`` and ``base_momentum``.
    base_momentum, max_momentum : float, or list of one for each group
    div_factor : float
        The first rate is ``max_lr / div_factor``.
    final_div_factor : float
        The last rate is the first over this.
    three_phase : bool
        Come down as long as it went up, and then to the last rate.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("total_steps is missing; pass it, or epochs and steps_per_epoch")
            total_steps = _positive("epochs", epochs) * _positive("steps_per_epoch", steps_per_epoch)
        self.total_steps = _positive("total_steps", total_steps)
        if not 0 <= pct_start <= 1:
            raise ValueError(f"pct_start is {pct_start}; it must be from 0 to 1")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy is {anneal_strategy!r}; it must be 'cos' or 'linear'")
        self.anneal_strategy = anneal_strategy
        up, last = float(pct_start * self.total_steps) - 1, float(self.total_steps - 1)
        self.ends = [up, float(2 * pct_start * self.total_steps) - 2, last] if three_phase else [up, last]
        self.rates = [
            _corners(peak / div_factor, peak, peak / div_factor / final_div_factor, three_phase)
            for peak in _per_group("max_lr", max_lr, optimizer)
        ]
        self.momenta = None
        if cycle_momentum:
            if not {"momentum", "betas"} & optimizer.defaults.keys():
                raise ValueError("cycle_momentum is True; the optimizer has neither momentum nor betas")
            highs = _per_group("max_momentum", max_momentum, optimizer)
            lows = _per_group("base_momentum", base_momentum, optimizer)
            self.momenta = [_corners(high, low, high, three_phase) for high, low in zip(highs, lows, strict=True)]
        for group, corners in zip(optimizer.param_groups, self.rates, strict=True):
            group["initial_lr"] = corners[0]
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Return the rates of the step, and set the momenta."""
        step, start, phase = self.last_epoch, 0.0, 0
        if step > self.total_steps:
            raise ValueError(f"step() was called {step} times; total_steps is {self.total_steps}")
        while step > self.ends[phase] and phase < len(self.ends) - 1:
            start, phase = self.ends[phase], phase + 1
        share = (step - start) / (self.ends[phase] - start)
        for group, momenta in zip(self.optimizer.param_groups, self.momenta or (), strict=self.momenta is not None):
            momentum = self._between(momenta[phase], momenta[phase + 1], share)
            if "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            else:
                group["momentum"] = momentum
        return [self._between(corners[phase], corners[phase + 1], share) for corners in self.rates]

    def _between(self, start: float, end: float, share: float) -> float:
        if self.anneal_strategy == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)


def _corners(start: float, peak: float, end: float, three_phase: bool) -> list[float]:
    """Return the values at which phases begin and end."""
    return [start, peak, start, end] if three_phase else [start, peak, end]


def _positive(name: str, value: int) -> int:
    """Return a number that must be a positive integer."""
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise ValueError(f"{name} is {value}; a positive integer is needed")
    return int(value)


def _per_group(name: str, value: Any, optimizer: Optimizer) -> list[Any]:
    """Return one value for each group."""
    groups = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [value] * groups
    if len(value) != groups:
        raise ValueError(f"{name} has {len(value)} entries; the optimizer has {groups} groups")
    return list(value)
