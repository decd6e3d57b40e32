"""Matrix products and affine maps, through the matrix unit of the call."""

from __future__ import annotations

import math

import numpy as np

from mpsim.ops._numeric import summed_to
from mpsim.ops.table import Array, Call, Gradients, Operation

__all__ = ["OPERATIONS"]


def _transposed(a: Array) -> Array:
    return a.swapaxes(-1, -2)


def _matmul(call: Call, input: Array, other: Array) -> Array:
    return call.matmul(input, other)


def _matmul_vjp(call: Call, g: Array, _: Array, input: Array, other: Array) -> Gradients:
    return (
        summed_to(call.matmul(g, _transposed(other), "input_gradient"), input.shape) if call.wanted[0] else None,
        summed_to(call.matmul(_transposed(input), g, "weight_gradient"), other.shape) if call.wanted[1] else None,
    )


def _linear(call: Call, input: Array, weight: Array, bias: Array | None = None) -> Array:
    """Return ``input @ weight.T + bias``; the bias is added in FP32, as a GEMM's epilogue does."""
    y = call.matmul(input, weight.T)
    return y if bias is None else np.add(y, bias, out=y)  # nothing else refers to the product


def _linear_vjp(call: Call, g: Array, _: Array, input: Array, weight: Array, bias: Array | None = None) -> Gradients:
    count = math.prod(input.shape[:-1])  # -1 would not do for rows of no elements
    rows, inputs = g.reshape(count, g.shape[-1]), input.reshape(count, input.shape[-1])
    return (
        call.matmul(rows, weight, "input_gradient").reshape(input.shape) if call.wanted[0] else None,
        call.matmul(rows.T, inputs, "weight_gradient") if call.wanted[1] else None,
        None if bias is None else rows.sum(axis=0),
    )[: len(call.wanted)]


OPERATIONS = (
    Operation("matmul", _matmul, _matmul_vjp, reads=("input", "other"), formats="equal"),
    Operation("linear", _linear, _linear_vjp, reads=("input", "weight"), formats="equal"),
)
