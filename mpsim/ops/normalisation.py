"""Normalisation by mean and variance or by the mean square, and dropout.

The statistics are kept in the inner arithmetic from the forward pass to the backward pass.
"""

from __future__ import annotations

import numpy as np

from mpsim.ops import _rows
from mpsim.ops._numeric import in_float64
from mpsim.ops.table import Array, Call, Gradients, Operation
from mpsim.stochastic import Draws

__all__ = ["OPERATIONS", "dropout_mask"]


def _inverse_root(x: Array) -> Array:
    return in_float64(lambda v: np.asarray(1.0 / np.sqrt(v)), x)


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    count = np.prod([x.shape[axis] for axis in axes])
    return np.asanyarray(x.sum(axis=axes, keepdims=True) / x.dtype.type(count))


def _scaled(x: Array, weight: Array | None, bias: Array | None) -> Array:
    y = x if weight is None else x * weight
    return np.asarray(y if bias is None else y + bias)


def _normalised_vjp(g: Array, normalised: Array, rstd: Array, axes: tuple[int, ...]) -> Array:
    """Return the gradient of ``normalised = (x - mean) * rstd``, both statistics being those of ``x`` over ``axes``."""
    return np.asarray(rstd * (g - _mean(g, axes) - normalised * _mean(g * normalised, axes)))


def _last(dims: int) -> tuple[int, ...]:
    return tuple(range(-dims, 0))


def _leading(x: Array, dims: int) -> tuple[int, ...]:
    return tuple(range(x.ndim - dims))


def _layer_norm(
    call: Call, input: Array, weight: Array | None = None, bias: Array | None = None, *, dims: int, eps: float = 1e-5
) -> Array:
    """Normalise over the last ``dims`` dimensions."""
    if _rows.suit(input, weight, bias):
        y, (call.saved["mean"], call.saved["rstd"]) = _rows.normalise(input, weight, bias, dims, eps, centred=True)
        return y
    mean = _mean(input, _last(dims))
    centred = input - mean
    rstd = _inverse_root(_mean(centred * centred, _last(dims)) + input.dtype.type(eps))
    call.saved["mean"], call.saved["rstd"] = mean, rstd
    return _scaled(centred * rstd, weight, bias)


def _layer_norm_vjp(
    call: Call,
    g: Array,
    _: Array,
    input: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    dims: int,
    eps: float = 1e-5,
) -> Gradients:
    mean, rstd = call.saved["mean"], call.saved["rstd"]
    if _rows.suit(input, weight, bias):
        statistics = (mean, rstd)
        found = _rows.normalise_backward(g, input, weight, dims, statistics, centred=True, wanted=call.wanted[0])
        return found[: len(call.wanted)]
    normalised = (input - mean) * rstd
    grads = (
        _normalised_vjp(g if weight is None else g * weight, normalised, rstd, _last(dims)) if call.wanted[0] else None,
        None if weight is None else (g * normalised).sum(axis=_leading(g, dims)),
        None if bias is None else g.sum(axis=_leading(g, dims)),
    )
    return grads[: len(call.wanted)]


def _rms_norm(call: Call, input: Array, weight: Array | None = None, *, dims: int, eps: float) -> Array:
    """Divide by the root of the mean square over the last ``dims`` dimensions."""
    if _rows.suit(input, weight):
        y, (call.saved["mean"], call.saved["rstd"]) = _rows.normalise(input, weight, None, dims, eps, centred=False)
        return y
    rstd = _inverse_root(_mean(input * input, _last(dims)) + input.dtype.type(eps))
    call.saved["rstd"] = rstd
    return _scaled(input * rstd, weight, None)


def _rms_norm_vjp(
    call: Call, g: Array, _: Array, input: Array, weight: Array | None = None, *, dims: int, eps: float
) -> Gradients:
    rstd = call.saved["rstd"]
    if _rows.suit(input, weight):
        statistics = (call.saved["mean"], rstd)
        found = _rows.normalise_backward(g, input, weight, dims, statistics, centred=False, wanted=call.wanted[0])
        return found[: len(call.wanted)]
    normalised = input * rstd
    scaled = g if weight is None else g * weight
    grads = (
        rstd * (scaled - normalised * _mean(scaled * normalised, _last(dims))) if call.wanted[0] else None,
        None if weight is None else (g * normalised).sum(axis=_leading(g, dims)),
    )
    return grads[: len(call.wanted)]


def _channels(x: Array, ndim: int) -> Array:
    """Return numbers of channels in the shape that broadcasts to [batch, channels, ...]."""
    return x.reshape(-1, *(1,) * (ndim - 2))


def _batch_norm(
    call: Call,
    input: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    mean: Array,
    var: Array,
    training: bool,
    eps: float = 1e-5,
) -> Array:
    """Normalise each channel [batch, channels, ...] by statistics given; in training they are those of ``input``."""
    rstd = _inverse_root(var.astype(input.dtype) + input.dtype.type(eps))
    call.saved["rstd"] = rstd
    shaped = [None if p is None else _channels(p, input.ndim) for p in (mean.astype(input.dtype), rstd, weight, bias)]
    assert shaped[0] is not None
    assert shaped[1] is not None
    return _scaled((input - shaped[0]) * shaped[1], shaped[2], shaped[3])


def _batch_norm_vjp(
    call: Call,
    g: Array,
    _: Array,
    input: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    mean: Array,
    var: Array,
    training: bool,
    eps: float = 1e-5,
) -> Gradients:
    axes = (0, *range(2, input.ndim))
    rstd = _channels(call.saved["rstd"], input.ndim)
    normalised = (input - _channels(mean.astype(input.dtype), input.ndim)) * rstd
    scaled = g if weight is None else g * _channels(weight, input.ndim)
    by_input = None
    if call.wanted[0]:
        by_input = _normalised_vjp(scaled, normalised, rstd, axes) if training else scaled * rstd
    grads = (
        by_input,
        None if weight is None else (g * normalised).sum(axis=axes),
        None if bias is None else g.sum(axis=axes),
    )
    return grads[: len(call.wanted)]


def dropout_mask(shape: tuple[int, ...], p: float, draws: Draws) -> Array:
    """Return which elements stay: each is dropped with probability ``p``, by a random word of its own."""
    words = draws.words(0, int(np.prod(shape)), 32)
    return np.asarray(words >= np.uint64(round(p * 2**32))).reshape(shape)


def _dropped(x: Array, p: float, draws: Draws) -> Array:
    scale = x.dtype.type(1 / (1 - p) if p < 1 else 0.0)
    return np.asarray(np.where(dropout_mask(x.shape, p, draws), x * scale, x.dtype.type(0)))


def _dropout(_: Call, input: Array, p: float, draws: Draws) -> Array:
    return _dropped(input, p, draws)


def _dropout_vjp(_: Call, g: Array, __: Array, input: Array, p: float, draws: Draws) -> Gradients:
    # The words are drawn again rather than kept: they are a function of seed, stream and position.
    return (_dropped(g, p, draws),)


OPERATIONS = (
    Operation("layer_norm", _layer_norm, _layer_norm_vjp, reads=("input", "weight"), formats="first"),
    Operation("rms_norm", _rms_norm, _rms_norm_vjp, reads=("input", "weight"), formats="first"),
    Operation("batch_norm", _batch_norm, _batch_norm_vjp, reads=("input", "weight"), formats="first"),
    Operation("dropout", _dropout, _dropout_vjp, reads=()),
)
