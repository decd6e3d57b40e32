"""Clipping of gradients, as in torch."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from mpsim.formats import FP64
from mpsim.optim.updates import Array, positive_nan
from mpsim.rounding import round_to
from mpsim.tensor import Tensor
from mpsim_kernels._threads import AT_LEAST, in_ranges
from mpsim_kernels.floating_point import default_environment
from mpsim_kernels.updates import SUMMED, square_sums

__all__ = ["clip_grad_norm_", "clip_grad_value_", "was_clipped"]

_clipped: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
"""Gradients that were clipped, by their id, for as long as they live."""


def clip_grad_norm_(
    parameters: Iterable[Tensor] | Tensor,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> float:
    """Shrink gradients so that the norm of all of them together is at most ``max_norm``.

    Parameters
    ----------
    parameters : Tensor or iterable of Tensor
    max_norm : float
    norm_type : {1, 2, inf}
    error_if_nonfinite : bool
        Refuse an infinite or NaN norm, which would otherwise make zeros or NaNs of gradients.

    Returns
    -------
    norm : float
        Before clipping; a number of FP32, or of FP64 where a gradient is.

    Raises
    ------
    RuntimeError
        The norm is infinite or NaN, and ``error_if_nonfinite``; nothing has changed.

    Notes
    -----
    The gradients are multiplied by ``1 / (norm + 1e-6) * max_norm`` in FP32 (FP64), at most 1, and rounded once to
    their format. Squares are summed in float64, 1024 at a time, and these sums exactly: the same for any number of
    threads, and more precise than torch's.
    """
    if norm_type not in (1, 2, math.inf):
        raise ValueError(f"norm_type is {norm_type}; it must be 1, 2 or infinity")
    if not max_norm >= 0:
        raise ValueError(f"max_norm is {max_norm}; it must not be negative")
    grads = _gradients(parameters)
    real: Any = np.float64 if any(grad.format == FP64 for grad in grads) else np.float32
    with default_environment(), np.errstate(all="ignore"):
        norm = real(_norm([grad.data for grad in grads], norm_type))
        if error_if_nonfinite and not np.isfinite(norm):
            raise RuntimeError(f"the norm of the gradients is {norm}; error_if_nonfinite=False would clip all the same")
        factor = real(1) / (norm + real(1e-6)) * real(max_norm)
        factor = real(1) if factor > 1 else factor
        if factor != 1:
            for grad in grads:
                grad.data = _held(grad.data * grad.data.dtype.type(factor), grad)
    return float(norm)


def clip_grad_value_(parameters: Iterable[Tensor] | Tensor, clip_value: float) -> None:
    """Bring every element of the gradients into the range from ``-clip_value`` to ``clip_value``; NaNs stay."""
    if not clip_value >= 0:
        raise ValueError(f"clip_value is {clip_value}; it must not be negative")
    for grad in _gradients(parameters):
        limit = grad.data.dtype.type(clip_value)
        grad.data = _held(np.clip(grad.data, -limit, limit), grad)


def was_clipped(grad: Tensor) -> bool:
    """Return whether a gradient, this very tensor, went through one of the functions above."""
    return _clipped.get(id(grad)) is grad


def _gradients(parameters: Iterable[Tensor] | Tensor) -> list[Tensor]:
    """Return the gradients, which are remembered as clipped from now on."""
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for parameter in given:
        if not isinstance(parameter, Tensor):
            raise TypeError(f"parameters has a {type(parameter).__name__}; each must be a Tensor")
    grads = [parameter.grad for parameter in given if parameter.grad is not None]
    _clipped.update((id(grad), grad) for grad in grads)
    return grads


def _norm(arrays: list[Array], norm_type: float) -> float:
    """Return the norm of arrays strung together."""
    if norm_type == math.inf:
        largest = [np.max(np.abs(a)) for a in arrays if a.size]
        return float(np.max(largest)) if largest else 0.0
    sums = [_sums(np.ascontiguousarray(a).reshape(-1), norm_type) for a in arrays]
    terms = np.concatenate(sums) if sums else np.zeros(0)
    if not np.isfinite(terms).all():
        return float("nan") if np.isnan(terms).any() else math.inf
    total = math.fsum(terms.tolist())
    return math.sqrt(total) if norm_type == 2 else total


def _sums(flat: Array, norm_type: float) -> Array:
    """Return sums over chunks of fixed length, of squares or of absolute values."""
    sums = np.zeros(-(-flat.size // SUMMED))

    def task(start: int, stop: int) -> None:
        with default_environment(), np.errstate(all="ignore"):
            if norm_type == 2:
                square_sums(flat, start, sums[start:stop])
            else:
                for j in range(start, stop):
                    sums[j] = math.fsum(np.abs(flat[j * SUMMED : (j + 1) * SUMMED]).tolist())

    in_ranges(task, sums.size, AT_LEAST // SUMMED)
    return sums


def _held(values: Array, grad: Tensor) -> Array:
    """Return values in the format of a gradient."""
    return round_to(positive_nan(values), grad.format).astype(grad.data.dtype, copy=False)
