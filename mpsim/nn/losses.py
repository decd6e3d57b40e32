"""Losses as modules."""

from __future__ import annotations

from numpy.typing import ArrayLike

from mpsim.nn import functional
from mpsim.nn.module import Module
from mpsim.ops.losses import Reduction
from mpsim.tensor import Tensor

__all__ = ["BCEWithLogitsLoss", "CrossEntropyLoss", "HuberLoss", "MSELoss", "NLLLoss"]


class CrossEntropyLoss(Module):
    """Cross-entropy of logits and class labels; see `functional.cross_entropy`."""

    def __init__(
        self,
        weight: ArrayLike | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        self.weight, self.ignore_index = weight, ignore_index
        self.reduction, self.label_smoothing = reduction, label_smoothing

    def forward(self, input: Tensor, target: ArrayLike) -> Tensor:
        """Return the loss of logits [batch, classes, ...] for labels [batch, ...]."""
        return functional.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


class NLLLoss(Module):
    """Minus the log-probability of the labels; see `functional.nll_loss`."""

    def __init__(
        self, weight: ArrayLike | None = None, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        self.weight, self.ignore_index, self.reduction = weight, ignore_index, reduction

    def forward(self, input: Tensor, target: ArrayLike) -> Tensor:
        """Return the loss of log-probabilities [batch, classes, ...] for labels [batch, ...]."""
        return functional.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class MSELoss(Module):
    """Squared differences; see `functional.mse_loss`."""

    def __init__(self, reduction: Reduction = "mean") -> None:
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor | ArrayLike) -> Tensor:
        """Return the loss of two tensors of one shape."""
        return functional.mse_loss(input, target, self.reduction)


class HuberLoss(Module):
    """Squares that go on as lines; see `functional.huber_loss`."""

    def __init__(self, reduction: Reduction = "mean", delta: float = 1.0) -> None:
        self.reduction, self.delta = reduction, delta

    def forward(self, input: Tensor, target: Tensor | ArrayLike) -> Tensor:
        """Return the loss of two tensors of one shape."""
        return functional.huber_loss(input, target, self.reduction, self.delta)


class BCEWithLogitsLoss(Module):
    """Binary cross-entropy of logits; see `functional.binary_cross_entropy_with_logits`."""

    def __init__(
        self,
        weight: ArrayLike | None = None,
        reduction: Reduction = "mean",
        pos_weight: ArrayLike | None = None,
    ) -> None:
        self.weight, self.reduction, self.pos_weight = weight, reduction, pos_weight

    def forward(self, input: Tensor, target: Tensor | ArrayLike) -> Tensor:
        """Return the loss of logits and probabilities of one shape."""
        return functional.binary_cross_entropy_with_logits(input, target, self.weight, self.reduction, self.pos_weight)
