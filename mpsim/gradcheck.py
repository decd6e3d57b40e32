"""Numerical gradients in binary64, to check rules of differentiation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpsim.formats import FP64
from mpsim.tensor import Tensor

__all__ = ["gradcheck"]


def gradcheck(
    function: Callable[..., Tensor],
    *inputs: Tensor,
    eps: float = 1e-6,
    atol: float = 1e-7,
    rtol: float = 1e-5,
) -> bool:
    """Compare the gradients of ``function`` with central differences.

    Parameters
    ----------
    function : callable
        Maps the inputs to a tensor of any shape.
    *inputs : Tensor in fp64
        Those that require grad are checked.
    eps : float
        Half the distance of the two points of a difference. Its error is of order ``eps**2`` from the third
        derivative and ``2**-53 / eps`` from rounding: with 1e-6 both are well below ``atol`` for values of order 1.
    atol, rtol : float
        Largest difference accepted: ``atol + rtol * abs(numerical)``.

    Returns
    -------
    bool
        True; a difference raises.

    Raises
    ------
    AssertionError
        Names the input, the element and both gradients.
    ValueError
        An input is not fp64, or none requires grad.
    """
    for i, x in enumerate(inputs):
        if x.format is not FP64:
            raise ValueError(f"gradcheck: input {i} has format {x.format}; fp64 is needed")
    if not any(x.requires_grad for x in inputs):
        raise ValueError("gradcheck: no input requires grad")
    for x in inputs:
        x.grad = None
    output = function(*inputs)
    # Weights of no special structure, so that errors in different outputs cannot cancel.
    weights = np.cos(np.arange(1.0, output.size + 1.0)).reshape(output.shape)
    output.backward(weights)

    def loss() -> float:
        return float(np.sum(function(*inputs).data * weights))

    for i, x in enumerate(inputs):
        if not x.requires_grad:
            continue
        analytical = np.zeros(x.shape) if x.grad is None else x.grad.data
        for index in np.ndindex(x.shape):
            kept = x.data[index]
            x.data[index] = kept + eps
            above = loss()
            x.data[index] = kept - eps
            below = loss()
            x.data[index] = kept
            numerical = (above - below) / (2 * eps)
            if not abs(analytical[index] - numerical) <= atol + rtol * abs(numerical):
                raise AssertionError(
                    f"gradcheck: input {i}, element {index}: backward gives {analytical[index]!r}, "
                    f"differences give {numerical!r}"
                )
    return True
