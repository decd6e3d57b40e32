"""RMSprop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mpsim.formats import FormatLike
from mpsim.modes import Rounding
from mpsim.optim.base import Optimizer, Piece, not_negative, share
from mpsim.optim.updates import Direction, Update, add_square, lerp
from mpsim.stochastic import DrawsLike
from mpsim.tensor import Tensor

__all__ = ["RMSprop"]

_SQUARE, _MEAN, _BUFFER = "square_avg", "grad_avg", "momentum_buffer"


class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton 2012), as in torch.

    Parameters
    ----------
    params, update, state_format, state_rounding, rng, scaled
        As for `Optimizer`.
    lr : float
        Learning rate.
    alpha : float
        Factor of the running mean of the squared gradient.
    eps : float
        Added to its root.
    weight_decay : float
        This share of the weights is added to their gradients.
    momentum : float
    centered : bool
        Divide by the root of an estimate of the variance (Graves 2013) rather than of the second moment.
    maximize : bool
        Climb rather than descend.

    Notes
    -----
    As for `Adam`. With ``centered`` the estimate can come out negative where the variance is lost in the rounding of
    the second moment; its root is NaN then, as in torch.
    """

    _states = (_SQUARE, _MEAN, _BUFFER)

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
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
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
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
        not_negative(options, "lr", "eps", "weight_decay", "momentum")
        share(options["alpha"], "alpha")

    def _initial(self, group: dict[str, Any], name: str) -> float | None:
        wanted = {_SQUARE: True, _MEAN: group["centered"], _BUFFER: group["momentum"] > 0}[name]
        return 0.0 if wanted else None

    def _direction(self, group: dict[str, Any], fresh: bool, piece: Piece) -> Direction:
        real = piece.w.dtype.type
        rest, rate = real(1 - group["alpha"]), real(-group["lr"])
        x = piece.descent(group)
        decayed = piece.between(piece.state[_SQUARE] * real(group["alpha"]))
        square = piece.keep(_SQUARE, add_square(rest, x, decayed))
        if group["centered"]:
            mean = piece.keep(_MEAN, lerp(piece.state[_MEAN], x, rest))
            square = add_square(real(-1), mean, square)
        root = np.sqrt(square) + real(group["eps"])
        if group["momentum"] > 0:
            decayed = piece.between(piece.state[_BUFFER] * real(group["momentum"]))
            buffer = piece.keep(_BUFFER, decayed + x / root)
            return Direction(buffer, rate, source=buffer)
        return Direction(rate * x / root, real(1), source=x if rate else np.zeros_like(x))
