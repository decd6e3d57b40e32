"""In which format numbers of several formats meet, and in which format data come."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import ArrayLike

from mpsim.formats import FP32, FP64, FloatFormat, get_format

__all__ = ["meet", "natural_format"]


@functools.cache
def meet(a: FloatFormat, b: FloatFormat) -> FloatFormat:
    """Return the format in which two meet: for those of torch, as `torch.promote_types`.

    The wider one, where it holds every value of the other; else fp32, where that holds both, as for fp16 and bf16;
    else fp64. Torch refuses to promote its formats of 8 bits, which the same rule serves here.

    Examples
    --------
    >>> from mpsim.formats import BF16, E4M3, FP16
    >>> [meet(a, b).name for a, b in ((FP16, FP32), (FP16, BF16), (E4M3, BF16), (FP32, FP64))]
    ['fp32', 'fp32', 'bf16', 'fp64']
    """
    if _holds(a, b):
        return a
    if _holds(b, a):
        return b
    return FP32 if _holds(FP32, a) and _holds(FP32, b) else FP64


def _holds(wide: FloatFormat, narrow: FloatFormat) -> bool:
    """Return whether every finite value of ``narrow`` is one of ``wide``."""
    return (
        wide.p >= narrow.p
        and wide.max_finite >= narrow.max_finite
        and wide.quantum_exponent <= narrow.quantum_exponent
        and (wide.has_subnormals or wide.min_normal <= narrow.min_subnormal)
    )


def natural_format(data: ArrayLike) -> FloatFormat:
    """Return the format of data that come without one: fp32 for Python numbers and integers, else that of the dtype."""
    array = np.asarray(data)
    if array.dtype.kind in "cOSU":
        raise TypeError(f"data has dtype {array.dtype}; real numbers are needed")
    if array.dtype.kind in "biu" or (array.dtype == np.float64 and not hasattr(data, "dtype")):
        return FP32
    return get_format(array.dtype)
