"""Pooling: the largest or the mean of each window."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from mpsim.nn.functional.products import Size, pair, windows_of
from mpsim.tensor import Tensor, apply, as_tensor

__all__ = ["avg_pool1d", "avg_pool2d", "max_pool1d", "max_pool2d"]


def max_pool2d(
    input: Tensor | ArrayLike,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
) -> Tensor:
    """Return the largest element of each window; the first of equals has the gradient.

    Parameters
    ----------
    input : Tensor [..., rows, columns]
    kernel_size : int or pair
    stride : int or pair, optional
        The size of the window unless given.
    padding : int or pair
        At most half of the window; never the largest.
    dilation : int or pair
    """
    return _pool("max_pool2d", 2, as_tensor(input), kernel_size, stride, padding, dilation)


def max_pool1d(
    input: Tensor | ArrayLike,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
) -> Tensor:
    """Return the largest element of each window of ``input`` [..., length], as `max_pool2d`."""
    return _pool("max_pool1d", 1, as_tensor(input), kernel_size, stride, padding, dilation)


def avg_pool2d(
    input: Tensor | ArrayLike,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window.

    Parameters
    ----------
    input : Tensor [..., rows, columns]
    kernel_size, stride, padding
        As for `max_pool2d`; the padding is zeros.
    count_include_pad : bool
        Divide by the size of the window, rather than by its elements inside the input.
    """
    return _pool(
        "avg_pool2d", 2, as_tensor(input), kernel_size, stride, padding, 1, count_include_pad=count_include_pad
    )


def avg_pool1d(
    input: Tensor | ArrayLike,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window of ``input`` [..., length], as `avg_pool2d`."""
    return _pool(
        "avg_pool1d", 1, as_tensor(input), kernel_size, stride, padding, 1, count_include_pad=count_include_pad
    )


def _pool(
    name: str,
    axes: int,
    x: Tensor,
    kernel_size: Size,
    stride: Size | None,
    padding: Size,
    dilation: Size,
    **options: Any,
) -> Tensor:
    if x.ndim < axes:
        raise ValueError(f"{name}: input is {x.shape}; it needs at least {axes} dimensions")
    kernel = pair(name, "kernel_size", kernel_size, axes)
    pads = pair(name, "padding", padding, axes, 0)
    if any(2 * p > k for p, k in zip(pads, kernel, strict=True)):
        raise ValueError(f"{name}: padding is {padding}; it must be at most half of kernel_size, {kernel_size}")
    windows = windows_of(
        name,
        kernel,
        kernel if stride is None else pair(name, "stride", stride, axes),
        tuple((p, p) for p in pads),
        pair(name, "dilation", dilation, axes),
        x.shape[-axes:],
    )
    images = x.unsqueeze(-2) if axes == 1 else x
    y = apply(f"{name[:3]}_pool2d", images, windows=windows, **options)
    return y.squeeze(-2) if axes == 1 else y
