"""Functions on tensors, as in torch.nn.functional."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mpsim.tensor import Tensor, apply, as_tensor

__all__ = ["cross_entropy", "linear", "log_softmax", "nll_loss", "relu", "tanh"]


def linear(x: Tensor | ArrayLike, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``, rounded once: the bias is added in the FP32 of the product.

    Parameters
    ----------
    x : Tensor [..., in_features]
    weight : Tensor [out_features, in_features]
    bias : Tensor [out_features], optional
    """
    x = as_tensor(x)
    if weight.ndim != 2:
        raise ValueError(f"linear: weight is {weight.shape}; it must be [out_features, in_features]")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"linear: weight is {weight.shape}, bias is {bias.shape}; bias.shape must be {weight.shape[:1]}"
        )
    if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"linear: x is {x.shape}, weight is {weight.shape}; x.shape[-1] must equal weight.shape[1]")
    return apply("linear", x, weight) if bias is None else apply("linear", x, weight, bias)


def relu(x: Tensor | ArrayLike) -> Tensor:
    """Return max(x, 0)."""
    return as_tensor(x).relu()


def tanh(x: Tensor | ArrayLike) -> Tensor:
    """Return the hyperbolic tangent."""
    return as_tensor(x).tanh()


def log_softmax(x: Tensor | ArrayLike, dim: int = -1) -> Tensor:
    """Return the logarithm of the softmax along ``dim``."""
    return as_tensor(x).log_softmax(dim)


def nll_loss(log_probabilities: Tensor, target: ArrayLike) -> Tensor:
    """Return minus the mean log-probability of the target classes.

    Parameters
    ----------
    log_probabilities : Tensor [n, classes]
    target : integers [n], 0 <= target < classes
    """
    labels = np.asarray(target)
    n, classes = _rows_and_classes(log_probabilities)
    if labels.dtype.kind not in "iu":
        raise TypeError(f"target has dtype {labels.dtype}; integer class labels are needed")
    if labels.shape != (n,):
        raise ValueError(f"target has shape {labels.shape}; ({n},) is needed, one label for each row")
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"target reaches from {labels.min()} to {labels.max()}; labels must be 0 to {classes - 1}")
    return apply("nll_loss", log_probabilities, target=labels)


def cross_entropy(logits: Tensor, target: ArrayLike) -> Tensor:
    """Return the mean cross-entropy: `log_softmax`, then `nll_loss`.

    Parameters
    ----------
    logits : Tensor [n, classes]
    target : integers [n], 0 <= target < classes
    """
    _rows_and_classes(logits)
    return nll_loss(log_softmax(logits), target)


def _rows_and_classes(x: Tensor) -> tuple[int, int]:
    if x.ndim != 2:
        raise ValueError(f"input has shape {x.shape}; (n, classes) is needed")
    return x.shape[0], x.shape[1]
