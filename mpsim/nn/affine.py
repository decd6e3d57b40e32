"""Layers with a weight that multiplies: affine maps, convolutions, tables."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from mpsim.formats import FormatLike
from mpsim.nn import functional
from mpsim.nn.functional.products import Size, pair
from mpsim.nn.initialisation import RngLike, fan_in_uniform, normal
from mpsim.nn.module import Module
from mpsim.tensor import Tensor

__all__ = ["Conv1d", "Conv2d", "Embedding", "Linear"]


class Linear(Module):
    """Affine map ``x @ weight.T + bias``.

    Parameters
    ----------
    in_features, out_features : int
    bias : bool
    format : FloatFormat or name
        Format of the parameters.
    rng : numpy.random.Generator or seed
        Source of the initial parameters, uniform in +-1/sqrt(in_features) as in torch. Without one they
        differ from run to run.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        format: FormatLike = "fp32",
        rng: RngLike = None,
    ) -> None:
        if in_features < 0 or out_features < 0:
            raise ValueError(f"in_features is {in_features}, out_features {out_features}; neither may be negative")
        generator = np.random.default_rng(rng)
        self.weight = fan_in_uniform(generator, in_features, (out_features, in_features), format)
        self.bias = fan_in_uniform(generator, in_features, (out_features,), format) if bias else None

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Map ``input`` [..., in_features] to [..., out_features]."""
        return functional.linear(input, self.weight, self.bias)

    def __repr__(self) -> str:
        out_features, in_features = self.weight.shape
        return f"Linear({in_features}, {out_features}, bias={self.bias is not None})"


class _Convolution(Module):
    """What convolutions of one and two axes share."""

    axes: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        format: FormatLike = "fp32",
        rng: RngLike = None,
    ) -> None:
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"groups is {groups}; it must divide in_channels, {in_channels}, and out_channels, {out_channels}"
            )
        kernel = pair(type(self).__name__, "kernel_size", kernel_size, self.axes)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        generator = np.random.default_rng(rng)
        fan_in = in_channels // groups * math.prod(kernel)
        self.weight = fan_in_uniform(generator, fan_in, (out_channels, in_channels // groups, *kernel), format)
        self.bias = fan_in_uniform(generator, fan_in, (out_channels,), format) if bias else None


class Conv1d(_Convolution):
    """Cross-correlation of sequences with kernels.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias
        As in torch; see `functional.conv1d`.
    format, rng
        As for `Linear`; uniform in +-1/sqrt(in_channels / groups * kernel_size).
    """

    axes = 1

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Map ``input`` [batch, in_channels, length] to [batch, out_channels, length]."""
        return functional.conv1d(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Conv2d(_Convolution):
    """Cross-correlation of images with kernels.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias
        As in torch; see `functional.conv2d`.
    format, rng
        As for `Linear`; uniform in +-1/sqrt(in_channels / groups * kernel rows * kernel columns).
    """

    axes = 2

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Map ``input`` [batch, in_channels, rows, columns] to [batch, out_channels, rows, columns]."""
        return functional.conv2d(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Embedding(Module):
    """A table of vectors, looked up by integers.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
    padding_idx : int, optional
        A row that starts at zero and has no gradient.
    format, rng
        As for `Linear`; standard normal.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        format: FormatLike = "fp32",
        rng: RngLike = None,
    ) -> None:
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx is {padding_idx}; it must be below num_embeddings, {num_embeddings}")
        self.padding_idx = padding_idx
        self.weight = normal(np.random.default_rng(rng), (num_embeddings, embedding_dim), format)
        if padding_idx is not None:
            self.weight.data[padding_idx] = 0

    def forward(self, input: ArrayLike) -> Tensor:
        """Map integers [...] to vectors [..., embedding_dim]."""
        return functional.embedding(input, self.weight, self.padding_idx)
