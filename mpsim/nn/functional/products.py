"""Affine maps, convolutions and tables: what has a weight."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from mpsim.ops.windows import Windows
from mpsim.tensor import Tensor, apply, as_tensor

__all__ = ["Size", "conv1d", "conv2d", "embedding", "linear", "pair"]

Size: TypeAlias = "int | tuple[int, ...]"
"""One number for all axes, or one for each."""


def linear(input: Tensor | ArrayLike, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``input @ weight.T + bias``, rounded once: the bias is added in the FP32 of the product.

    Parameters
    ----------
    input : Tensor [..., in_features]
    weight : Tensor [out_features, in_features]
    bias : Tensor [out_features], optional
    """
    x = as_tensor(input)
    if weight.ndim != 2:
        raise ValueError(f"linear: weight is {weight.shape}; it must be [out_features, in_features]")
    _check_bias("linear", weight, bias)
    if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"linear: input is {x.shape}, weight is {weight.shape}; input.shape[-1] must equal weight.shape[1]"
        )
    return apply("linear", x, weight, bias)


def embedding(input: ArrayLike, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Return rows of a table.

    Parameters
    ----------
    input : integers [...], 0 <= input < rows
    weight : Tensor [rows, columns]
    padding_idx : int, optional
        A row whose gradient stays zero.

    Returns
    -------
    Tensor [..., columns]
    """
    index = np.asarray(input)
    if index.dtype.kind not in "iu":
        raise TypeError(f"embedding: input has dtype {index.dtype}; integers are needed")
    if weight.ndim != 2:
        raise ValueError(f"embedding: weight is {weight.shape}; it must be [rows, columns]")
    rows = weight.shape[0]
    if index.size and not 0 <= int(index.min()) <= int(index.max()) < rows:
        raise IndexError(f"embedding: input reaches from {index.min()} to {index.max()}; it must be 0 to {rows - 1}")
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise ValueError(f"embedding: padding_idx is {padding_idx}; it must be {-rows} to {rows - 1}")
    return apply("embedding", weight, index=index.astype(np.intp), padding_idx=padding_idx)


def conv2d(
    input: Tensor | ArrayLike,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Return the cross-correlation of images with kernels, rounded once, with the bias added before.

    Parameters
    ----------
    input : Tensor [batch, channels, rows, columns] or [channels, rows, columns]
    weight : Tensor [out_channels, channels / groups, kernel rows, kernel columns]
    bias : Tensor [out_channels], optional
    stride, dilation : int or pair
    padding : int, pair, "valid" or "same"
        Zeros on either side; ``"same"`` keeps the size, for stride 1.
    groups : int
        Into how many groups of channels the input and the output are cut; each output sees its own group.

    Returns
    -------
    Tensor [batch, out_channels, rows, columns], or without the batch
    """
    return _convolution("conv2d", 2, as_tensor(input), weight, bias, stride, padding, dilation, groups)


def conv1d(
    input: Tensor | ArrayLike,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Return the cross-correlation of sequences with kernels: `conv2d` with one axis.

    Parameters
    ----------
    input : Tensor [batch, channels, length] or [channels, length]
    weight : Tensor [out_channels, channels / groups, kernel]
    bias, stride, padding, dilation, groups
        As for `conv2d`.
    """
    return _convolution("conv1d", 1, as_tensor(input), weight, bias, stride, padding, dilation, groups)


def _convolution(
    name: str,
    axes: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
) -> Tensor:
    if weight.ndim != axes + 2:
        raise ValueError(f"{name}: weight is {weight.shape}; it must have {axes + 2} dimensions")
    if x.ndim not in (axes + 1, axes + 2):
        raise ValueError(f"{name}: input is {x.shape}; it must have {axes + 2} dimensions, or {axes + 1} without batch")
    _check_bias(name, weight, bias)
    channels, out = x.shape[-axes - 1], weight.shape[0]
    if groups < 1 or channels % groups or out % groups:
        raise ValueError(
            f"{name}: groups is {groups}; it must divide the {channels} channels of input and {out} of weight"
        )
    if channels != weight.shape[1] * groups:
        raise ValueError(
            f"{name}: input is {x.shape}, weight is {weight.shape}; with groups={groups} "
            f"input needs {weight.shape[1] * groups} channels"
        )
    kernel = weight.shape[2:]
    strides, dilations = pair(name, "stride", stride, axes), pair(name, "dilation", dilation, axes)
    pads = _padding(name, padding, kernel, strides, dilations)
    windows = windows_of(name, kernel, strides, pads, dilations, x.shape[-axes:])
    # A sequence is an image of one row.
    images = x if x.ndim == axes + 2 else x.unsqueeze(0)
    if axes == 1:
        images, weight = images.unsqueeze(2), weight.unsqueeze(2)
    y = apply("conv2d", images, weight, bias, windows=windows, groups=groups)
    if axes == 1:
        y = y.squeeze(2)
    return y if x.ndim == axes + 2 else y.squeeze(0)


def pair(name: str, argument: str, size: Size, axes: int, least: int = 1) -> tuple[int, ...]:
    """Return one number for each axis, checked."""
    sizes = (size,) * axes if isinstance(size, int) else tuple(size)
    if len(sizes) == 1:
        sizes *= axes
    if len(sizes) != axes or any(n < least for n in sizes):
        raise ValueError(f"{name}: {argument} is {size}; an integer of at least {least} is needed, or {axes} of them")
    return sizes


def windows_of(
    name: str,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    size: tuple[int, ...],
) -> Windows:
    """Return windows over one or two axes; an error where an image of ``size`` has no room for one."""
    for k, pad, d, n in zip(kernel, padding, dilation, size, strict=True):
        span = d * (k - 1) + 1
        if n + sum(pad) < span:
            raise ValueError(
                f"{name}: an input of size {n} with padding {sum(pad)} has no room for a kernel that spans {span}"
            )
    if len(kernel) == 1:
        kernel, stride, padding, dilation = (1, *kernel), (1, *stride), ((0, 0), *padding), (1, *dilation)
    (k0, k1), (s0, s1), (p0, p1), (d0, d1) = kernel, stride, padding, dilation
    return Windows((k0, k1), (s0, s1), (p0, p1), (d0, d1))


def _padding(
    name: str, padding: Size | str, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    if isinstance(padding, str):
        if padding not in ("valid", "same"):
            raise ValueError(f'{name}: padding is {padding!r}; it must be "valid", "same" or numbers')
        if padding == "valid":
            return ((0, 0),) * len(kernel)
        if any(s != 1 for s in stride):
            raise ValueError(f'{name}: padding="same" is for stride 1; stride is {stride}')
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((n, n) for n in pair(name, "padding", padding, len(kernel), 0))


def _check_bias(name: str, weight: Tensor, bias: Tensor | None) -> None:
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"{name}: weight is {weight.shape}, bias is {bias.shape}; bias.shape must be {weight.shape[:1]}"
        )
