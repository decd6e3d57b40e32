"""Windows that slide over the last two axes of an image: where their elements lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mpsim.ops.table import Array

__all__ = ["Windows"]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of one size over the last two axes, rows and columns; of each pair the first is for the rows."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    """Before and after, for each axis."""
    dilation: tuple[int, int] = (1, 1)

    def count(self, rows: int, columns: int) -> tuple[int, int]:
        """Return how many windows an image of this size has along each axis."""
        spans = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
        sizes = [n + sum(pad) for n, pad in zip((rows, columns), self.padding, strict=True)]
        down, across = ((n - span) // s + 1 for n, span, s in zip(sizes, spans, self.stride, strict=True))
        return down, across

    def padded(self, x: Array, value: float = 0.0) -> Array:
        """Return the images with their padding."""
        if self.padding == ((0, 0), (0, 0)):
            return x
        (top, bottom), (left, right) = self.padding
        rows, columns = x.shape[-2:]
        result = np.full_like(x, value, shape=(*x.shape[:-2], rows + top + bottom, columns + left + right))
        result[..., top : top + rows, left : left + columns] = x
        return result

    def cropped(self, x: Array) -> Array:
        """Return padded images without their padding."""
        (top, bottom), (left, right) = self.padding
        return x[..., top : x.shape[-2] - bottom, left : x.shape[-1] - right]

    def taps(self, rows: int, columns: int) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
        """Yield for each element (i, j) of a window where it lies in the padded image, for all windows at once."""
        down, across = self.count(rows, columns)
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                starts = i * self.dilation[0], j * self.dilation[1]
                yield (
                    i,
                    j,
                    (
                        slice(starts[0], starts[0] + (down - 1) * self.stride[0] + 1, self.stride[0]),
                        slice(starts[1], starts[1] + (across - 1) * self.stride[1] + 1, self.stride[1]),
                    ),
                )

    def view(self, padded: Array) -> Array:
        """Return a view [..., down, across, *kernel] of the windows of padded images."""
        spans = tuple(d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True))
        view = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=(-2, -1))
        (down, across), (vertical, horizontal) = self.stride, self.dilation
        return view[..., ::down, ::across, ::vertical, ::horizontal]
