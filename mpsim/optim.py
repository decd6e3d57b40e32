"""Optimizers, with a count of the updates that rounding loses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpsim.formats import FP64
from mpsim.rounding import round_to
from mpsim.tensor import Tensor

__all__ = ["SGD", "Optimizer", "UpdateCounts"]


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


class Optimizer(Protocol):
    """What a loss scaler needs to know of an optimizer."""

    params: list[Tensor]

    def step(self) -> None:
        """Update the parameters from their gradients."""

    def zero_grad(self) -> None:
        """Forget all gradients."""


class SGD:
    """Stochastic gradient descent with momentum, as in torch.

    With parameters in FP32 under `amp.autocast` these are the master weights of mixed precision. With parameters
    in a narrower format the update is computed in FP32, as one fused multiply-add, and rounded once to the format of
    the weight; the momentum is kept in that format too.

    Parameters
    ----------
    params : iterable of Tensor
    lr : float
        Learning rate.
    momentum : float

    Attributes
    ----------
    counts : UpdateCounts
        Updates seen and lost since the start, or since it was replaced.

    Notes
    -----
    ``v = momentum * v + g``, ``w = w - lr * v``; the first ``v`` is ``g``.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.0) -> None:
        self.params = _checked(params)
        if not lr >= 0:
            raise ValueError(f"lr is {lr}; it must not be negative")
        if not momentum >= 0:
            raise ValueError(f"momentum is {momentum}; it must not be negative")
        self.lr = lr
        self.momentum = momentum
        self.counts = UpdateCounts()
        self._velocity: dict[int, NDArray[Any]] = {}

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.params:
            parameter.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        with np.errstate(all="ignore"):
            for i, parameter in enumerate(self.params):
                if parameter.grad is not None:
                    self._update(i, parameter, parameter.grad.data)

    def _update(self, i: int, parameter: Tensor, grad: NDArray[Any]) -> None:
        fmt = parameter.format
        real = parameter.data.dtype.type
        velocity = grad
        if self.momentum:
            if i not in self._velocity:
                velocity = grad.copy()
            else:
                velocity = round_to(round_to(self._velocity[i] * real(self.momentum), fmt) + grad, fmt)
            self._velocity[i] = velocity
        step = real(-self.lr)
        if fmt is FP64:
            new = parameter.data + step * velocity
        else:
            new = round_to(_fma_to_odd(step, velocity, parameter.data), fmt).astype(parameter.data.dtype)
        moved = (velocity != 0) & (step != 0)  # not by their product, which may underflow
        self.counts.updates += int(np.count_nonzero(moved))
        self.counts.lost += int(np.count_nonzero(moved & (new == parameter.data)))
        parameter.data = new


def _checked(params: Iterable[Tensor]) -> list[Tensor]:
    """Return the parameters, which must be tensors, each once."""
    if isinstance(params, Tensor):
        raise TypeError("params is a Tensor; an iterable of tensors is needed, such as model.parameters()")
    checked = list(params)
    if not checked:
        raise ValueError("params is empty; pass model.parameters() of a model with at least one layer")
    for parameter in checked:
        if not isinstance(parameter, Tensor):
            raise TypeError(f"params has a {type(parameter).__name__}; each must be a Tensor, as of model.parameters()")
    if len({id(parameter) for parameter in checked}) < len(checked):
        raise ValueError("params has a tensor more than once, which would be updated twice")
    return checked


def _fma_to_odd(a: Any, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Return ``a * x + y`` of float32 numbers as float64, rounded to odd.

    The product is exact in float64 (24 + 24 bits). The error of the sum is found exactly (Knuth's TwoSum) and, where
    the sum is inexact and even, moves it to its odd neighbour; a second rounding to 50 bits or fewer is then right
    (Boldo and Melquiond 2008).
    """
    product = np.float64(a) * x.astype(np.float64)
    addend = y.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    word = np.ascontiguousarray(total).view(np.int64)
    # One word up is one step away from zero: right when the error has the sign of the sum.
    step = np.where((error > 0) == (total > 0), 1, -1)
    inexact_and_even = (error != 0) & np.isfinite(error) & ((word & 1) == 0)
    return (word + np.where(inexact_and_even, step, 0)).view(np.float64)
