"""Losses: a number for each element or class label, then their mean, their sum, or all of them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.ops.elementwise import sigmoid, softplus
from mpsim.ops.table import Array, Call, Gradients, Operation

__all__ = ["OPERATIONS", "Reduction"]

Reduction: TypeAlias = Literal["none", "mean", "sum"]


def _reduced(losses: Array, reduction: Reduction) -> Array:
    if reduction == "none":
        return losses
    total = np.asanyarray(losses.sum())
    return total if reduction == "sum" else np.asarray(total / losses.dtype.type(losses.size))


def _share(g: Array, size: int, reduction: Reduction) -> Array:
    """Return the gradient of each loss before the reduction."""
    return np.asarray(g / g.dtype.type(size)) if reduction == "mean" else g


def _mse_loss(_: Call, input: Array, target: Array, reduction: Reduction = "mean") -> Array:
    difference = input - target
    return _reduced(difference * difference, reduction)


def _mse_loss_vjp(
    _: Call, g: Array, __: Array, input: Array, target: Array, reduction: Reduction = "mean"
) -> Gradients:
    grad = _share(g, input.size, reduction) * (2 * (input - target))
    return grad, -grad


def _huber_loss(_: Call, input: Array, target: Array, reduction: Reduction = "mean", delta: float = 1.0) -> Array:
    d, half = input.dtype.type(delta), input.dtype.type(0.5)
    z = np.abs(input - target)
    return _reduced(np.where(z < d, half * z * z, d * (z - half * d)), reduction)


def _huber_loss_vjp(
    _: Call, g: Array, __: Array, input: Array, target: Array, reduction: Reduction = "mean", delta: float = 1.0
) -> Gradients:
    d = input.dtype.type(delta)
    grad = _share(g, input.size, reduction) * np.clip(input - target, -d, d)
    return grad, -grad


def _bce(
    _: Call,
    input: Array,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    *,
    reduction: Reduction = "mean",
) -> Array:
    """Return (1 - t) x + w log(1 + exp(-x)), w = 1 + (pos_weight - 1) t; nothing overflows."""
    losses = (1 - target) * input + _positive(target, pos_weight) * softplus(-input)
    return _reduced(np.asanyarray(losses if weight is None else losses * weight), reduction)


def _positive(target: Array, pos_weight: Array | None) -> Array:
    return np.ones_like(target) if pos_weight is None else np.asarray(1 + (pos_weight - 1) * target)


def _bce_vjp(
    call: Call,
    g: Array,
    _: Array,
    input: Array,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    *,
    reduction: Reduction = "mean",
) -> Gradients:
    share = _share(g, input.size, reduction)
    if weight is not None:
        share = share * weight
    by_target = None
    if call.wanted[1]:
        slope = -input if pos_weight is None else (pos_weight - 1) * softplus(-input) - input
        by_target = share * slope
    return (
        share * ((1 - target) - _positive(target, pos_weight) * sigmoid(-input)),
        by_target,
        None,
        None,
    )[: len(call.wanted)]


# Class labels: input [batch, classes, ...], target [batch, ...].


def _label_weights(
    call: Call, x: Array, target: NDArray[np.intp], weight: Array | None, ignore_index: int
) -> tuple[NDArray[np.intp], Array]:
    """Return labels that can be looked up, and the weight of each: 0 where it is to be ignored."""
    ignored = target == ignore_index
    labels = np.where(ignored, 0, target)
    weights = np.ones(target.shape, x.dtype) if weight is None else call.stepwise(weight[labels].astype(x.dtype))
    return labels, np.where(ignored, x.dtype.type(0), weights)


def _nll_loss(
    call: Call,
    input: Array,
    target: NDArray[np.intp],
    weight: Array | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> Array:
    """Return minus the log-probability of each label, or its mix with the mean over classes, times its weight."""
    labels, weights = _label_weights(call, input, target, weight, ignore_index)
    zero = input.dtype.type(0)
    losses = np.where(target == ignore_index, zero, -np.take_along_axis(input, labels[:, None], axis=1)[:, 0] * weights)
    if label_smoothing:
        classes = input if weight is None else input * _by_class(weight, input)
        spread = np.where(target == ignore_index, zero, -classes.sum(axis=1))
        part = input.dtype.type(label_smoothing / input.shape[1])
        losses = input.dtype.type(1 - label_smoothing) * losses + part * spread
    if reduction == "mean":
        return np.asarray(losses.sum() / weights.sum())
    return _reduced(losses, reduction)


def _by_class(weight: Array, x: Array) -> Array:
    return weight.astype(x.dtype).reshape(1, -1, *(1,) * (x.ndim - 2))


def _nll_loss_vjp(
    call: Call,
    g: Array,
    _: Array,
    input: Array,
    target: NDArray[np.intp],
    weight: Array | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> Gradients:
    labels, weights = _label_weights(call, input, target, weight, ignore_index)
    share = g / weights.sum() if reduction == "mean" else g
    per_label = np.broadcast_to(-share, target.shape)
    grad = np.zeros(input.shape, g.dtype)
    if label_smoothing:
        spread = np.where(target == ignore_index, g.dtype.type(0), per_label)[:, None]
        part = g.dtype.type(label_smoothing / input.shape[1])
        grad += spread * part if weight is None else spread * part * _by_class(weight, input)
        per_label = per_label * g.dtype.type(1 - label_smoothing)
    picked = np.take_along_axis(grad, labels[:, None], axis=1)
    np.put_along_axis(grad, labels[:, None], picked + (per_label * weights)[:, None], axis=1)
    return (grad,)


OPERATIONS = (
    Operation("mse_loss", _mse_loss, _mse_loss_vjp, reads=("input", "target")),
    Operation("huber_loss", _huber_loss, _huber_loss_vjp, reads=("input", "target")),
    Operation("binary_cross_entropy_with_logits", _bce, _bce_vjp, reads=("input", "target", "weight", "pos_weight")),
    Operation("nll_loss", _nll_loss, _nll_loss_vjp, reads=()),
)
