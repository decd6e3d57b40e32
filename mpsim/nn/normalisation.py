"""Layers that normalise, and dropout."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mpsim.formats import FormatLike
from mpsim.nn import functional
from mpsim.nn.functional.normalisation import fresh_draws
from mpsim.nn.initialisation import constant
from mpsim.nn.module import Module
from mpsim.stochastic import DrawsLike
from mpsim.tensor import Tensor, as_tensor

__all__ = ["BatchNorm1d", "BatchNorm2d", "Dropout", "LayerNorm", "RMSNorm"]


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last dimensions, then a scale and a shift.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        Sizes of the last dimensions.
    eps : float
    elementwise_affine, bias : bool
        Whether there is a weight, all ones at first, and a bias, zeros.
    format : FloatFormat or name
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        format: FormatLike = "fp32",
    ) -> None:
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.weight = constant(1.0, self.normalized_shape, format) if elementwise_affine else None
        self.bias = constant(0.0, self.normalized_shape, format) if elementwise_affine and bias else None

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Normalise ``input`` [..., *normalized_shape]."""
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Mean square 1 over the last dimensions, then a scale.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        Sizes of the last dimensions.
    eps : float, optional
        The distance from 1 to the next number of the input's format unless given.
    elementwise_affine : bool
        Whether there is a weight, all ones at first.
    format : FloatFormat or name
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        format: FormatLike = "fp32",
    ) -> None:
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.weight = constant(1.0, self.normalized_shape, format) if elementwise_affine else None

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Normalise ``input`` [..., *normalized_shape]."""
        return functional.rms_norm(input, self.normalized_shape, self.weight, self.eps)


class BatchNorm1d(Module):
    """Mean 0 and variance 1 of each channel over a batch, then a scale and a shift.

    Parameters
    ----------
    num_features : int
        Channels.
    eps : float
    momentum : float, optional
        Share of the new statistics in the running ones; None gives all batches the same share.
    affine : bool
        Whether there is a weight, all ones at first, and a bias, zeros.
    track_running_stats : bool
        False uses the statistics of the batch in evaluation too.
    format : FloatFormat or name
        Of parameters and running statistics.

    Attributes
    ----------
    running_mean, running_var, num_batches_tracked
        Buffers, in the state of the module.
    """

    dimensions: tuple[int, ...] = (2, 3)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        format: FormatLike = "fp32",
    ) -> None:
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = constant(1.0, (num_features,), format) if affine else None
        self.bias = constant(0.0, (num_features,), format) if affine else None
        self.running_mean: Tensor | None
        self.running_var: Tensor | None
        self.num_batches_tracked: np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None
        tracked = track_running_stats
        self.register_buffer("running_mean", Tensor(np.zeros(num_features), format=format) if tracked else None)
        self.register_buffer("running_var", Tensor(np.ones(num_features), format=format) if tracked else None)
        self.register_buffer("num_batches_tracked", np.array(0, np.int64) if tracked else None)

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Normalise ``input`` [batch, num_features, ...]."""
        x = as_tensor(input)
        if x.ndim not in self.dimensions:
            wanted = " or ".join(map(str, self.dimensions))
            raise ValueError(f"{type(self).__name__}: input is {x.shape}; it must have {wanted} dimensions")
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
            if self.momentum is None:
                momentum = 1 / int(self.num_batches_tracked)
        training = self.training or self.running_mean is None
        return functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training, momentum, self.eps
        )


class BatchNorm2d(BatchNorm1d):
    """`BatchNorm1d` for images [batch, num_features, rows, columns]."""

    dimensions = (4,)


class Dropout(Module):
    """In training, elements set to zero with probability ``p`` and the others scaled by 1 / (1 - p).

    Parameters
    ----------
    p : float, 0 to 1
    rng : int or Draws, optional
        Seed of the draws, which are others in each call: the n-th call draws from the n-th stream after that given.
        Without one they differ from run to run.
    """

    def __init__(self, p: float = 0.5, rng: DrawsLike = None) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"p is {p}; it must be from 0 to 1")
        self.p = p
        self.draws = fresh_draws(rng)

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Drop elements of ``input``."""
        if not self.training or not self.p:
            return as_tensor(input)
        draws, self.draws = self.draws, dataclasses.replace(self.draws, stream=self.draws.stream + 1)
        return functional.dropout(input, self.p, rng=draws)


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)
