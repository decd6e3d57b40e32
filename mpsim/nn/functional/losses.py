"""Losses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim.ops.losses import Reduction
from mpsim.tensor import Tensor, apply, as_tensor

__all__ = [
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "mse_loss",
    "nll_loss",
]


def mse_loss(input: Tensor, target: Tensor | ArrayLike, reduction: Reduction = "mean") -> Tensor:
    """Return the squared differences: their mean, their sum, or all of them (``"none"``)."""
    x, t = _same_shapes("mse_loss", input, target)
    return apply("mse_loss", x, t, reduction=_checked("mse_loss", reduction))


def huber_loss(input: Tensor, target: Tensor | ArrayLike, reduction: Reduction = "mean", delta: float = 1.0) -> Tensor:
    """Return half the squared difference up to ``delta``, and from there on the line that goes on from it."""
    x, t = _same_shapes("huber_loss", input, target)
    if not delta > 0:
        raise ValueError(f"huber_loss: delta is {delta}; it must be positive")
    return apply("huber_loss", x, t, reduction=_checked("huber_loss", reduction), delta=delta)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor | ArrayLike,
    weight: Tensor | ArrayLike | None = None,
    reduction: Reduction = "mean",
    pos_weight: Tensor | ArrayLike | None = None,
) -> Tensor:
    """Return the cross-entropy of the probabilities sigmoid(input) with ``target``.

    Parameters
    ----------
    input : Tensor, logits
    target : Tensor of the same shape, probabilities from 0 to 1
    weight : Tensor, broadcast to the shape, optional
        Factor of each loss.
    reduction : {"mean", "sum", "none"}
    pos_weight : Tensor, broadcast to the shape, optional
        Factor of the part for 1.
    """
    name = "binary_cross_entropy_with_logits"
    x, t = _same_shapes(name, input, target)
    factors = [None if w is None else as_tensor(w) for w in (weight, pos_weight)]
    for argument, w in zip(("weight", "pos_weight"), factors, strict=True):
        if w is not None and np.broadcast_shapes(w.shape, x.shape) != x.shape:
            raise ValueError(f"{name}: {argument} is {w.shape}; it must broadcast to {x.shape}")
    return apply(name, x, t, *factors, reduction=_checked(name, reduction))


def nll_loss(
    input: Tensor,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return minus the log-probability of the target classes.

    Parameters
    ----------
    input : Tensor [batch, classes, ...] or [classes], log-probabilities
    target : integers [batch, ...] or one, 0 <= target < classes
    weight : array [classes], optional
        Factor of each class; the mean is over the sum of those of the targets.
    ignore_index : int
        A target that counts for nothing.
    reduction : {"mean", "sum", "none"}
    """
    return _class_loss(input, target, weight, ignore_index, reduction, 0.0)


def cross_entropy(
    input: Tensor,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the cross-entropy of logits: `log_softmax` over the classes, then `nll_loss`.

    Parameters
    ----------
    input : Tensor [batch, classes, ...] or [classes], logits
    target : integers [batch, ...] or one, 0 <= target < classes
    weight, ignore_index, reduction
        As for `nll_loss`.
    label_smoothing : float, 0 to 1
        Share of each target that is spread evenly over all classes.
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing is {label_smoothing}; it must be from 0 to 1")
    labels = _labels(input, target, ignore_index)  # before anything is computed
    logits = input.log_softmax(min(input.ndim - 1, 1))
    return _class_loss(logits, labels, weight, ignore_index, reduction, label_smoothing)


def _class_loss(
    input: Tensor,
    target: ArrayLike,
    weight: ArrayLike | None,
    ignore_index: int,
    reduction: Reduction,
    label_smoothing: float,
) -> Tensor:
    labels = _labels(input, target, ignore_index)
    factors = None
    if weight is not None:
        factors = as_tensor(weight).data
        classes = input.shape[min(input.ndim - 1, 1)]
        if factors.shape != (classes,):
            raise ValueError(f"weight has shape {factors.shape}; ({classes},) is needed, one for each class")
    alone = input.ndim == 1
    options: dict[str, Any] = {
        "weight": factors,
        "ignore_index": ignore_index,
        "reduction": _checked("nll_loss", reduction),
        "label_smoothing": label_smoothing,
    }
    loss = apply(
        "nll_loss", input.unsqueeze(0) if alone else input, target=labels[None] if alone else labels, **options
    )
    return loss.squeeze(0) if alone and reduction == "none" else loss


def _labels(input: Tensor, target: ArrayLike, ignore_index: int) -> NDArray[np.intp]:
    """Return class labels, checked against [batch, classes, ...]."""
    labels = np.asarray(target)
    if input.ndim == 0:
        raise ValueError("input has shape (); (batch, classes, ...) or (classes,) is needed")
    if labels.dtype.kind not in "iu":
        raise TypeError(f"target has dtype {labels.dtype}; integer class labels are needed")
    classes = input.shape[min(input.ndim - 1, 1)]
    shape = input.shape[:1] * (input.ndim > 1) + input.shape[2:]
    if labels.shape != shape:
        raise ValueError(f"target has shape {labels.shape}; {shape} is needed, one label for each row of classes")
    counted = labels[labels != ignore_index]
    if counted.size and not 0 <= int(counted.min()) <= int(counted.max()) < classes:
        raise ValueError(f"target reaches from {counted.min()} to {counted.max()}; labels must be 0 to {classes - 1}")
    return labels.astype(np.intp)


def _same_shapes(name: str, input: Tensor, target: Tensor | ArrayLike) -> tuple[Tensor, Tensor]:
    x, t = as_tensor(input), as_tensor(target)
    if x.shape != t.shape:
        raise ValueError(f"{name}: input is {x.shape}, target is {t.shape}; they must be equal")
    return x, t


def _checked(name: str, reduction: str) -> Reduction:
    if reduction in ("mean", "sum", "none"):
        return reduction  # type: ignore[return-value]
    raise ValueError(f'{name}: reduction is {reduction!r}; it must be "mean", "sum" or "none"')
