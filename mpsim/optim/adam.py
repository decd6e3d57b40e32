"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from mpsim.formats import FormatLike
from mpsim.modes import Rounding
from mpsim.optim.base import Optimizer, Piece, Slot, counted, not_negative, share
from mpsim.optim.updates import Array, Direction, Update, add_square, lerp
from mpsim.stochastic import DrawsLike
from mpsim.tensor import Tensor
from mpsim_kernels.updates import COUPLED, DECOUPLED, NONE, make_adam

__all__ = ["Adam", "AdamW"]

_M, _V, _LARGEST = "exp_avg", "exp_avg_sq", "max_exp_avg_sq"


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, arXiv 1412.6980), as in torch.

    Parameters
    ----------
    params, update, state_format, state_rounding, rng, scaled
        As for `Optimizer`.
    lr : float
        Learning rate.
    betas : pair of float
        Factors of the running means of the gradient and of its square.
    eps : float
        Added to the root of the second moment.
    weight_decay : float
        This share of the weights is added to their gradients.
    amsgrad : bool
        Divide by the largest second moment so far (Reddi et al. 2018).
    maximize : bool
        Climb rather than descend.

    Notes
    -----
    Torch's operations in torch's order, with its fused multiply-adds; the bias corrections and the step size are
    computed in double and rounded to the working type. The square root is correctly rounded, which that of torch's
    vector library on a CPU is not always: there a step can differ in the last bit.
    """

    _states = (_M, _V, _LARGEST)
    _decoupled: ClassVar[bool] = False

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
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
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
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
        not_negative(options, "lr", "eps", "weight_decay")
        if len(options["betas"]) != 2:
            raise ValueError(f"betas is {options['betas']}; two numbers are needed")
        for i, beta in enumerate(options["betas"]):
            share(beta, f"betas[{i}]")

    def _initial(self, group: dict[str, Any], name: str) -> float | None:
        return 0.0 if name != _LARGEST or group["amsgrad"] else None

    def _direction(self, group: dict[str, Any], fresh: bool, piece: Piece) -> Direction:
        real = piece.w.dtype.type
        _, decay, share1, beta2, share2, correction, eps, rate = self._scalars(group, piece.slot.step, real)
        x = piece.descent(group, decay=not self._decoupled)
        mean = piece.keep(_M, lerp(piece.state[_M], x, share1))
        square = piece.keep(_V, add_square(share2, x, piece.between(piece.state[_V] * beta2)))
        if group["amsgrad"]:
            square = piece.keep(_LARGEST, np.maximum(piece.state[_LARGEST], square))
        step = rate * mean / (np.sqrt(square) / correction + eps)
        direction = Direction(step, real(1), source=mean if rate else np.zeros_like(mean))
        if group["weight_decay"] and self._decoupled:
            direction.decay, direction.shrink = decay, real(-group["lr"] * group["weight_decay"])
        return direction

    def _scalars(self, group: dict[str, Any], step: int, real: Any) -> Array:
        """Return what the formula needs besides arrays, each rounded once to the working type; see `make_adam`."""
        beta1, beta2 = group["betas"]
        lr, decay = group["lr"], group["weight_decay"]
        return np.array(
            [
                -1 if group["maximize"] else 1,
                1 - lr * decay if self._decoupled else decay,
                1 - beta1,
                beta2,
                1 - beta2,
                (1 - beta2**step) ** 0.5,
                group["eps"],
                -(lr / (1 - beta1**step)),
            ],
            real,
        )

    def _whole_step(
        self, group: dict[str, Any], fresh: bool, slot: Slot, grad: Array, out: Array
    ) -> tuple[int, int] | None:
        w = slot.weights()
        scalars = self._scalars(group, slot.step, w.dtype.type)
        decay = DECOUPLED if self._decoupled else COUPLED
        adam = make_adam(
            8 * w.itemsize, decay if group["weight_decay"] else NONE, bool(group["amsgrad"]), bool(scalars[2] >= 0.5)
        )
        m, v = slot.arrays[_M].reshape(-1), slot.arrays[_V].reshape(-1)
        largest = slot.arrays[_LARGEST].reshape(-1) if group["amsgrad"] else grad[:0]

        def run(part: slice, counts: Array) -> None:
            adam(w[part], grad[part], m[part], v[part], largest[part], out[part], scalars, counts)

        return counted(run, w.size)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101), as in torch.

    Parameters
    ----------
    params, lr, betas, eps, amsgrad, maximize, update, state_format, state_rounding, rng, scaled
        As for `Adam`.
    weight_decay : float
        In each step the weights are first multiplied by ``1 - lr * weight_decay``.
    """

    _decoupled = True

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        update: Update | str = Update.NEAREST,
        state_format: FormatLike | None = None,
        state_rounding: Rounding | str = Rounding.NEAREST_EVEN,
        rng: DrawsLike = None,
        scaled: Mapping[str, FormatLike] | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            update=update,
            state_format=state_format,
            state_rounding=state_rounding,
            rng=rng,
            scaled=scaled,
        )
