"""Convolution and pooling of images [batch, channels, rows, columns].

A convolution is a matrix product: each window is a row of channels x kernel elements, in the order of the weight
("im2col"), and the unit multiplies the rows by the weight. The gradient of the input adds the products of overlapping
windows in the inner arithmetic, kernel element by kernel element.
"""

from __future__ import annotations

import numpy as np

from mpsim.ops.table import Array, Call, Gradients, Operation
from mpsim.ops.windows import Windows

__all__ = ["OPERATIONS"]


def _columns(x: Array, windows: Windows, groups: int) -> Array:
    """Return the windows as rows: [groups, batch * windows, channels / groups * kernel]."""
    batch, channels = x.shape[:2]
    view = windows.view(windows.padded(x).reshape(batch, groups, channels // groups, *_padded_size(x, windows)))
    down, across = view.shape[-4:-2]
    rows = view.transpose(1, 0, 3, 4, 2, 5, 6)
    return rows.reshape(groups, batch * down * across, channels // groups * view.shape[-2] * view.shape[-1])


def _padded_size(x: Array, windows: Windows) -> tuple[int, int]:
    (top, bottom), (left, right) = windows.padding
    return x.shape[-2] + top + bottom, x.shape[-1] + left + right


def _images_as_rows(g: Array, groups: int) -> Array:
    """Return [batch, groups * n, down, across] as [groups, batch * down * across, n]."""
    batch, channels, down, across = g.shape
    rows = g.reshape(batch, groups, channels // groups, down, across).transpose(1, 0, 3, 4, 2)
    return rows.reshape(groups, batch * down * across, channels // groups)


def _conv2d(
    call: Call, input: Array, weight: Array, bias: Array | None = None, *, windows: Windows, groups: int = 1
) -> Array:
    batch, out = input.shape[0], weight.shape[0]
    down, across = windows.count(*input.shape[-2:])
    kernels = weight.reshape(groups, out // groups, -1)
    y = call.matmul(_columns(input, windows, groups), kernels.swapaxes(1, 2))
    if bias is not None:
        y = y + bias.reshape(groups, 1, out // groups)
    images = y.reshape(groups, batch, down, across, out // groups).transpose(1, 0, 4, 2, 3)
    return images.reshape(batch, out, down, across)


def _conv2d_vjp(
    call: Call,
    g: Array,
    _: Array,
    input: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    windows: Windows,
    groups: int = 1,
) -> Gradients:
    rows = _images_as_rows(g, groups)
    by_input = by_weight = None
    if call.wanted[0]:
        kernels = weight.reshape(groups, weight.shape[0] // groups, -1)
        products = call.matmul(rows, kernels, "input_gradient")
        by_input = _spread_columns(products, input, windows)
    if call.wanted[1]:
        products = call.matmul(rows.swapaxes(1, 2), _columns(input, windows, groups), "weight_gradient")
        by_weight = products.reshape(weight.shape)
    by_bias = None if bias is None else rows.sum(axis=1).reshape(bias.shape)
    return (by_input, by_weight, by_bias)[: len(call.wanted)]


def _spread_columns(columns: Array, x: Array, windows: Windows) -> Array:
    """Add rows of windows up where they came from: the transpose of `_columns`."""
    batch, channels, *size = x.shape
    groups = columns.shape[0]
    shape = (groups, batch, *windows.count(*size), channels // groups, *windows.kernel)
    parts = columns.reshape(shape).transpose(1, 0, 4, 2, 3, 5, 6).reshape(batch, channels, *shape[2:4], *shape[5:])
    total = np.zeros((batch, channels, *_padded_size(x, windows)), columns.dtype)
    for i, j, (rows, cols) in windows.taps(*size):
        total[..., rows, cols] += parts[..., i, j]
    return windows.cropped(total)


# Pooling.


def _max_pool2d(call: Call, input: Array, windows: Windows) -> Array:
    padded = windows.padded(input, -np.inf)
    best: Array | None = None
    for i, j, (rows, cols) in windows.taps(*input.shape[-2:]):
        x = padded[..., rows, cols]
        position = np.int32(i * windows.kernel[1] + j)
        if best is None:
            best, chosen = x.copy(), np.zeros(x.shape, np.int32)
        else:
            larger = (x > best) | np.isnan(x)  # the first of equals, and a NaN always, as in torch
            best, chosen = np.where(larger, x, best), np.where(larger, position, chosen)
    assert best is not None
    call.saved["chosen"] = chosen
    return best


def _max_pool2d_vjp(call: Call, g: Array, _: Array, input: Array, windows: Windows) -> Gradients:
    chosen = call.saved["chosen"]
    total = np.zeros((*input.shape[:-2], *_padded_size(input, windows)), g.dtype)
    for i, j, (rows, cols) in windows.taps(*input.shape[-2:]):
        total[..., rows, cols] += np.where(chosen == i * windows.kernel[1] + j, g, g.dtype.type(0))
    return (windows.cropped(total),)


def _divisor(x: Array, windows: Windows, count_include_pad: bool) -> Array:
    """Return how many elements each window counts."""
    size = windows.kernel[0] * windows.kernel[1]
    if count_include_pad or windows.padding == ((0, 0), (0, 0)):
        return np.asarray(size, x.dtype)
    inside = windows.padded(np.ones(x.shape[-2:], x.dtype))
    return np.asarray(windows.view(inside).sum(axis=(-2, -1)))


def _avg_pool2d(_: Call, input: Array, windows: Windows, count_include_pad: bool = True) -> Array:
    padded = windows.padded(input)
    down, across = windows.count(*input.shape[-2:])
    total = np.zeros_like(input, shape=(*input.shape[:-2], down, across))
    for _i, _j, (rows, cols) in windows.taps(*input.shape[-2:]):
        total += padded[..., rows, cols]
    return np.asarray(total / _divisor(input, windows, count_include_pad))


def _avg_pool2d_vjp(
    _: Call, g: Array, __: Array, input: Array, windows: Windows, count_include_pad: bool = True
) -> Gradients:
    share = g / _divisor(input, windows, count_include_pad)
    total = np.zeros((*input.shape[:-2], *_padded_size(input, windows)), g.dtype)
    for _i, _j, (rows, cols) in windows.taps(*input.shape[-2:]):
        total[..., rows, cols] += share
    return (windows.cropped(total),)


OPERATIONS = (
    Operation("conv2d", _conv2d, _conv2d_vjp, reads=("input", "weight"), formats="equal"),
    Operation("max_pool2d", _max_pool2d, _max_pool2d_vjp, reads=(), exact=True),
    Operation("avg_pool2d", _avg_pool2d, _avg_pool2d_vjp, reads=()),
)
