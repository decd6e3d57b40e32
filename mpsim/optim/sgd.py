"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mpsim.formats import FormatLike
from mpsim.modes import Rounding
from mpsim.optim.base import Optimizer, Piece, Slot, counted, not_negative
from mpsim.optim.updates import Array, Direction, Update, add_scaled
from mpsim.stochastic import DrawsLike
from mpsim.tensor import Tensor
from mpsim_kernels.updates import COUPLED, FIRST, NONE, RUNNING, make_sgd

__all__ = ["SGD"]

_BUFFER = "momentum_buffer"


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, as in torch.

    With parameters in FP32 under `amp.autocast` these are the master weights of mixed precision. With parameters in a
    narrower format the update is computed in FP32, as one fused multiply-add, and rounded once to the format of the
    weight; the momentum is kept in that format too. ``update`` and ``state_format`` say otherwise.

    Parameters
    ----------
    params, update, state_format, state_rounding, rng, scaled
        As for `Optimizer`.
    lr : float
        Learning rate.
    momentum, dampening : float
        ``v = momentum * v + (1 - dampening) * g``; the first ``v`` is ``g``.
    weight_decay : float
        This share of the weights is added to their gradients.
    nesterov : bool
        Step along ``g + momentum * v``; needs momentum and no dampening.
    maximize : bool
        Climb rather than descend.

    Notes
    -----
    Torch's operations in torch's order, with its fused multiply-adds: the bits of its single-tensor code on a CPU.

    Examples
    --------
    >>> w = Tensor([1.0], requires_grad=True, format="bf16")
    >>> w.grad = Tensor([2.0**-9], format="bf16")
    >>> optimizer = SGD([w], lr=1.0, update="master")
    >>> for _ in range(2):
    ...     optimizer.step()
    >>> w
    Tensor([0.99609375], format=bf16, requires_grad=True)
    """

    _states = (_BUFFER,)

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        update: Update | str = Update.NEAREST,
        state_format: FormatLike | None = None,
        state_rounding: Rounding | str = Rounding.NEAREST_EVEN,
        rng: DrawsLike = None,
        scaled: Mapping[str, FormatLike] | None = None,
    ) -> None:
        options = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(
            params,
            options,
            update=update,
            state_format=state_format,
            state_rounding=state_rounding,
            rng=rng,
            scaled=scaled,
        )

    def _check_options(self, options: Mapping[str, Any]) -> None:
        not_negative(options, "lr", "momentum", "weight_decay")
        if not np.isfinite(options["dampening"]):
            raise ValueError(f"dampening is {options['dampening']}; it must be finite")
        if options["nesterov"] and (options["momentum"] <= 0 or options["dampening"] != 0):
            raise ValueError("nesterov is True; it needs a momentum above 0 and dampening 0")

    def _initial(self, group: dict[str, Any], name: str) -> float | None:
        return 0.0 if group["momentum"] else None

    def _direction(self, group: dict[str, Any], fresh: bool, piece: Piece) -> Direction:
        real = piece.w.dtype.type
        momentum = real(group["momentum"])
        x = piece.descent(group)
        if group["momentum"]:
            buffer = x
            if not fresh:
                decayed = piece.between(piece.state[_BUFFER] * momentum)
                buffer = add_scaled(real(1 - group["dampening"]), x, decayed)
            buffer = piece.keep(_BUFFER, buffer)
            x = add_scaled(momentum, buffer, x) if group["nesterov"] else buffer
        return Direction(x, real(-group["lr"]), source=x)

    def _whole_step(
        self, group: dict[str, Any], fresh: bool, slot: Slot, grad: Array, out: Array
    ) -> tuple[int, int] | None:
        w = slot.weights()
        real = w.dtype.type
        running = FIRST if fresh else RUNNING
        sgd = make_sgd(
            8 * w.itemsize,
            COUPLED if group["weight_decay"] else NONE,
            running if group["momentum"] else NONE,
            bool(group["nesterov"]),
        )
        buffer = slot.arrays[_BUFFER].reshape(-1) if group["momentum"] else grad[:0]
        sign, decay = real(-1 if group["maximize"] else 1), real(group["weight_decay"])
        momentum, share, rate = real(group["momentum"]), real(1 - group["dampening"]), real(-group["lr"])

        def run(part: slice, counts: Array) -> None:
            sgd(w[part], grad[part], buffer[part], out[part], sign, decay, momentum, share, rate, counts)

        found = counted(run, w.size)
        return found if rate else (0, 0)
