"""Products of stacks of matrices and of vectors, by the shape rules of `numpy.matmul`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mpsim.matmul._operands import Codes, Operands, Values, result_dtype
from mpsim.units import MatrixUnit

__all__ = ["Product", "Stacked", "multiply"]

Product = Callable[[Operands, MatrixUnit], Values]
"""Multiplies two matrices [M, K] and [K, N] and adds ``c`` [M, N]."""

Stacked = Callable[[Operands, MatrixUnit], "Values | None"]
"""Does the same for all matrices of stacks [S, M, K] and [S, K, N] at once, or returns None where it cannot."""


def multiply(operands: Operands, row: MatrixUnit, product: Product, stacked: Stacked | None = None) -> Values:
    """Return the products of all matrices of a stack.

    Raises
    ------
    ValueError
        Shapes that do not go together.
    """
    a, b, c = operands[:3]
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError(f"matmul: a is {a.shape}, b is {b.shape}; both need at least one axis")
    vector_a, vector_b = a.ndim == 1, b.ndim == 1
    left = a[None, :] if vector_a else a
    right = b[:, None] if vector_b else b
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"matmul: a is {a.shape}, b is {b.shape}; a.shape[-1] must equal b.shape[{-1 if vector_b else -2}]"
        )
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise ValueError(f"matmul: a is {a.shape}, b is {b.shape}; the leading axes do not broadcast") from None
    (m, k), n = left.shape[-2:], right.shape[-1]
    scales_a, scales_b = _scales(operands, row, left.shape, right.shape, k, vector_a, vector_b)
    shape = (*batch, m, n)
    visible = (*batch, *(() if vector_a else (m,)), *(() if vector_b else (n,)))
    start = None if c is None else _broadcast_start(c, visible, shape)
    if right.ndim == 2:
        # Every matrix of a meets the same b: their rows are the rows of one matrix.
        rows = math.prod((*batch, m))
        flat = None if start is None else start.reshape(rows, n)
        flat_scales = None if scales_a is None else scales_a.reshape(rows, scales_a.shape[-1])
        one = Operands(left.reshape(rows, k), right, flat, flat_scales, scales_b)
        return product(one, row).reshape(visible)
    left, right = np.broadcast_to(left, (*batch, m, k)), np.broadcast_to(right, (*batch, k, n))
    if scales_a is not None and scales_b is not None:
        scales_a = np.broadcast_to(scales_a, (*batch, *scales_a.shape[-2:]))
        scales_b = np.broadcast_to(scales_b, (*batch, *scales_b.shape[-2:]))
    if stacked is not None and start is None and scales_a is None:
        count = math.prod(batch)
        at_once = stacked(Operands(left.reshape(count, m, k), right.reshape(count, k, n)), row)
        if at_once is not None:
            return at_once.reshape(visible)
    d = np.empty(shape, result_dtype(row))
    for index in np.ndindex(batch):
        d[index] = product(
            Operands(left[index], right[index], *(_at(x, index) for x in (start, scales_a, scales_b))), row
        )
    return d.reshape(visible)


def _at(x: Values | None, index: tuple[int, ...]) -> Values | None:
    return None if x is None else x[index]


def _broadcast_start(c: Values, visible: tuple[int, ...], shape: tuple[int, ...]) -> Values:
    try:
        return np.broadcast_to(c, visible).reshape(shape)
    except ValueError:
        raise ValueError(f"matmul: c is {c.shape}; it must broadcast to the result's shape {visible}") from None


def _scales(
    operands: Operands,
    row: MatrixUnit,
    left: tuple[int, ...],
    right: tuple[int, ...],
    k: int,
    vector_a: bool,
    vector_b: bool,
) -> tuple[Codes | None, Codes | None]:
    """Return the scales of both operands as matrices, one for each block along K."""
    if operands.scale_a is None or operands.scale_b is None:
        return None, None
    blocks = -(-k // row.scale_block)
    a = operands.scale_a[None, :] if vector_a and operands.scale_a.ndim == 1 else operands.scale_a
    b = operands.scale_b[:, None] if vector_b and operands.scale_b.ndim == 1 else operands.scale_b
    wanted = (*left[:-1], blocks), (*right[:-2], blocks, right[-1])
    for name, scale, shape in (("scale_a", a, wanted[0]), ("scale_b", b, wanted[1])):
        if scale.shape != shape:
            raise ValueError(
                f"matmul: {name} is {scale.shape}; {shape} is needed, one scale for {row.scale_block} elements along K"
            )
    return a, b
