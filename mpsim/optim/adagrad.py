"""Adagrad."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mpsim.formats import FormatLike
from mpsim.modes import Rounding
from mpsim.optim.base import Optimizer, Piece, not_negative
from mpsim.optim.updates import Direction, Update, add_square
from mpsim.stochastic import DrawsLike
from mpsim.tensor import Tensor

__all__ = ["Adagrad"]

_SUM = "sum"


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011), as in torch.

    Parameters
    ----------
    params, update, state_format, state_rounding, rng, scaled
        As for `Optimizer`.
    lr : float
        Learning rate.
    lr_decay : float
        In step t the rate is ``lr / (1 + (t - 1) * lr_decay)``.
    weight_decay : float
        This share of the weights is added to their gradients.
    initial_accumulator_value : float
        Start of the sum of squares.
    eps : float
        Added to its root.
    maximize : bool
        Climb rather than descend.

    Notes
    -----
    As for `Adam`.
    """

    _states = (_SUM,)

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
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
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
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
        not_negative(options, "lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value")

    def _initial(self, group: dict[str, Any], name: str) -> float | None:
        return float(group["initial_accumulator_value"])

    def _direction(self, group: dict[str, Any], fresh: bool, piece: Piece) -> Direction:
        real = piece.w.dtype.type
        rate = real(-(group["lr"] / (1 + (piece.slot.step - 1) * group["lr_decay"])))
        x = piece.descent(group)
        total = piece.keep(_SUM, add_square(real(1), x, piece.state[_SUM]))
        root = np.sqrt(total) + real(group["eps"])
        return Direction(rate * x / root, real(1), source=x if rate else np.zeros_like(x))
