"""Normalisation and dropout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mpsim.autograd import held
from mpsim.formats import finfo
from mpsim.stochastic import Draws, DrawsLike, as_draws
from mpsim.tensor import Tensor, apply, as_tensor

__all__ = ["batch_norm", "dropout", "fresh_draws", "layer_norm", "rms_norm"]


def layer_norm(
    input: Tensor | ArrayLike,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Subtract the mean over the last dimensions and divide by the standard deviation; then scale and shift.

    Parameters
    ----------
    input : Tensor [..., *normalized_shape]
    normalized_shape : int or sequence of int
    weight, bias : Tensor [*normalized_shape], optional
    eps : float
        Added to the variance.
    """
    x = as_tensor(input)
    dims = _check_normalized("layer_norm", x, normalized_shape, weight=weight, bias=bias)
    return apply("layer_norm", x, weight, bias, dims=dims, eps=eps)


def rms_norm(
    input: Tensor | ArrayLike,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Divide by the root of the mean square over the last dimensions; then scale.

    Parameters
    ----------
    input : Tensor [..., *normalized_shape]
    normalized_shape : int or sequence of int
    weight : Tensor [*normalized_shape], optional
    eps : float, optional
        Added to the mean square; the format's distance from 1 to the next number unless given.
    """
    x = as_tensor(input)
    dims = _check_normalized("rms_norm", x, normalized_shape, weight=weight)
    return apply("rms_norm", x, weight, dims=dims, eps=float(finfo(x.format).eps) if eps is None else eps)


def _check_normalized(name: str, x: Tensor, normalized_shape: int | Sequence[int], **parameters: Tensor | None) -> int:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape:
        raise ValueError(f"{name}: input is {x.shape}, normalized_shape {shape}; input must end in it")
    for argument, parameter in parameters.items():
        if parameter is not None and parameter.shape != shape:
            raise ValueError(f"{name}: {argument} is {parameter.shape}; normalized_shape, {shape}, is needed")
    return len(shape)


def batch_norm(
    input: Tensor | ArrayLike,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel by its mean and variance; then scale and shift.

    Parameters
    ----------
    input : Tensor [batch, channels, ...]
    running_mean, running_var : Tensor [channels], or None
        The statistics used in evaluation. In training those of the input are used, and these are moved toward
        them, in place: ``running = (1 - momentum) * running + momentum * statistic``, with the variance over n - 1.
    weight, bias : Tensor [channels], optional
    training : bool
    momentum : float
    eps : float
        Added to the variance.
    """
    x = as_tensor(input)
    if x.ndim < 2:
        raise ValueError(f"batch_norm: input is {x.shape}; it must be [batch, channels, ...]")
    channels = x.shape[1]
    named = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    for argument, parameter in named.items():
        if parameter is not None and parameter.shape != (channels,):
            raise ValueError(f"batch_norm: {argument} is {parameter.shape}; ({channels},) is needed")
    if training:
        axes = (0, *range(2, x.ndim))
        count = x.size // max(channels, 1)
        if count <= 1:
            raise ValueError(f"batch_norm: input is {x.shape}; training needs more than 1 value for each channel")
        mean = x.data.sum(axis=axes) / x.data.dtype.type(count)
        centred = x.data - mean.reshape(-1, *(1,) * (x.ndim - 2))
        squares = (centred * centred).sum(axis=axes)
        var = squares / x.data.dtype.type(count)
        _move(running_mean, mean, momentum)
        _move(running_var, squares / x.data.dtype.type(count - 1), momentum)
    else:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm: running_mean and running_var are needed when training is False")
        mean, var = running_mean.data, running_var.data
    return apply("batch_norm", x, weight, bias, mean=mean, var=var, training=training, eps=eps)


def _move(running: Tensor | None, statistic: np.ndarray[tuple[int, ...], np.dtype[np.float32]], step: float) -> None:
    """Move running statistics toward those of a batch, with one rounding to their format."""
    if running is not None:
        real = running.data.dtype.type
        moved = real(1 - step) * running.data + real(step) * statistic.astype(running.data.dtype)
        running.data = held(moved, running.format)


def dropout(input: Tensor | ArrayLike, p: float = 0.5, training: bool = True, rng: DrawsLike = None) -> Tensor:
    """Set elements to zero with probability ``p`` and scale the others by 1 / (1 - p); nothing outside training.

    Parameters
    ----------
    input : Tensor
    p : float, 0 to 1
    training : bool
    rng : int or Draws, optional
        Which elements: a function of seed, stream and position. Without it they differ from call to call.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p is {p}; it must be from 0 to 1")
    x = as_tensor(input)
    if not training or p == 0:
        return x
    return apply("dropout", x, p=p, draws=fresh_draws(rng))


def fresh_draws(rng: DrawsLike) -> Draws:
    """Return the draws that ``rng`` means; some that nobody has seen, for None."""
    return Draws(seed=int(np.random.default_rng().integers(1 << 63))) if rng is None else as_draws(rng)
