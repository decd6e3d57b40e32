"""Functions that multiply matrices on real machines, for `mpsim.hardware.probe`."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim.matmul import matmul
from mpsim.units import MatrixUnit

__all__ = ["emulated_matmul", "numpy_matmul", "torch_matmul"]

Product = Callable[..., NDArray[Any]]

_NUMPY = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16}
_TORCH = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def numpy_matmul(inputs: str) -> Product:
    """Return NumPy's ``a @ b`` in fp64, fp32 or fp16.

    Raises
    ------
    ValueError
        NumPy has no such format.
    """
    if inputs not in _NUMPY:
        raise ValueError(f"inputs is {inputs!r}; NumPy multiplies matrices of {', '.join(_NUMPY)}")
    dtype = _NUMPY[inputs]

    def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        d: NDArray[Any] = a.astype(dtype) @ b.astype(dtype)
        return d

    return product


def torch_matmul(device: str, inputs: str) -> Product:
    """Return ``torch.mm`` on a device, ``"cpu"`` or ``"cuda"``; the results have the format of the inputs.

    Raises
    ------
    ImportError
        There is no torch.
    ValueError
        torch has no product for the format here, or no such device.
    """
    if inputs not in _TORCH or (inputs == "tf32" and device == "cpu"):
        known = [name for name in _TORCH if name != "tf32" or device != "cpu"]
        raise ValueError(f"inputs is {inputs!r}; torch.mm on {device} takes {', '.join(known)}")
    torch: Any = importlib.import_module("torch")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch finds no GPU here; 'cpu' works everywhere")
    dtype = getattr(torch, _TORCH[inputs])

    def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        left, right = (torch.from_numpy(x).to(device=device, dtype=dtype) for x in (a, b))
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = inputs == "tf32"
        try:
            d = torch.mm(left, right)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
        result: NDArray[Any] = d.to(device="cpu", dtype=torch.float64 if inputs == "fp64" else torch.float32).numpy()
        return result

    return product


def emulated_matmul(unit: MatrixUnit) -> Product:
    """Return the product of an emulated unit, with an accumulator."""
    return functools.partial(matmul, unit=unit)
