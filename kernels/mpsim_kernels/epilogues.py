"""What a library does to the accumulators of a matrix product after its instructions: scale, add, sum partial results.

Ordinary float32 arithmetic, each operation rounded once to nearest even, in the default environment.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import kernel
from mpsim_kernels._threads import AT_LEAST, in_ranges
from mpsim_kernels.floating_point import default_environment, fma32

__all__ = ["multiply_add", "rounded_product", "rounded_sum"]

Floats = NDArray[np.float32]


@kernel
def _multiply_add_rows(x: Any, y: Any, z: Any, first: Any, d: Any) -> None:
    """Write rows of ``x * y + z`` from row ``first`` on; an operand with one row or column repeats it."""
    for i in range(d.shape[0]):
        xi, yi, zi = (first + i) * (x.shape[0] > 1), (first + i) * (y.shape[0] > 1), (first + i) * (z.shape[0] > 1)
        for j in range(d.shape[1]):
            d[i, j] = fma32(x[xi, j * (x.shape[1] > 1)], y[yi, j * (y.shape[1] > 1)], z[zi, j * (z.shape[1] > 1)])


@kernel
def _add_rows(x: Any, y: Any, first: Any, d: Any) -> None:
    """Write rows of ``x + y`` from row ``first`` on, as `_multiply_add_rows` does."""
    for i in range(d.shape[0]):
        xi, yi = (first + i) * (x.shape[0] > 1), (first + i) * (y.shape[0] > 1)
        for j in range(d.shape[1]):
            d[i, j] = x[xi, j * (x.shape[1] > 1)] + y[yi, j * (y.shape[1] > 1)]


@kernel
def _multiply_rows(x: Any, y: Any, first: Any, d: Any) -> None:
    """Write rows of ``x * y`` from row ``first`` on, as `_multiply_add_rows` does."""
    for i in range(d.shape[0]):
        xi, yi = (first + i) * (x.shape[0] > 1), (first + i) * (y.shape[0] > 1)
        for j in range(d.shape[1]):
            d[i, j] = x[xi, j * (x.shape[1] > 1)] * y[yi, j * (y.shape[1] > 1)]


def _by_rows(kernel_of_rows: Any, *operands: Any) -> Floats:
    """Run a kernel on operands that broadcast to one matrix, in ranges of its rows."""
    matrices = [np.require(np.atleast_2d(x), np.float32, ["C", "W"]) for x in operands]
    d: Floats = np.empty(np.broadcast_shapes(*(x.shape for x in matrices)), np.float32)

    def task(start: int, stop: int) -> None:
        with default_environment(), np.errstate(all="ignore"):
            kernel_of_rows(*matrices, start, d[start:stop])

    in_ranges(task, d.shape[0], max(AT_LEAST // max(d.shape[1], 1), 1))
    return d


def multiply_add(x: Any, y: Any, z: Any) -> Floats:
    """Return ``x * y + z`` of float32 matrices, rounded once; operands broadcast to one matrix [M, N]."""
    return _by_rows(_multiply_add_rows, x, y, z)


def rounded_sum(x: Any, y: Any) -> Floats:
    """Return ``x + y`` of float32 matrices; operands broadcast to one matrix [M, N]."""
    return _by_rows(_add_rows, x, y)


def rounded_product(x: Any, y: Any) -> Floats:
    """Return ``x * y`` of float32 matrices; operands broadcast to one matrix [M, N]."""
    return _by_rows(_multiply_rows, x, y)
