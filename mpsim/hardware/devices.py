"""Functions that multiply matrices on real machines, for `mpsim.hardware.probe`."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim.matmul import matmul
from mpsim.units import MatrixUnit

__all__ = ["TORCH", "emulated_matmul", "float32_products", "numpy_matmul", "torch_matmul", "torch_on"]

Product = Callable[..., NDArray[Any]]

_NUMPY = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16}
_EXACT = ("fp64", "fp32", "tf32", "fp16", "bf16")
"""Formats of ``torch.mm``."""
TORCH = {
    "fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e4m3fnuz": "float8_e4m3fnuz", "e5m2fnuz": "float8_e5m2fnuz",
}  # fmt: skip
"""torch's names of the formats of operands."""


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


def torch_on(device: str) -> Any:
    """Return torch, which has a device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"`` and so on.

    Raises
    ------
    ValueError
        There is no torch, or no such device.
    """
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"device is {device!r}; it must be 'cpu', 'cuda' or 'cuda:1' and so on")
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise ValueError(
            f"device is {device!r}, but torch is not installed ({error}): pip install torch, or name another device"
        ) from error
    if device == "cpu":
        return torch
    if not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but torch {torch.__version__} sees no GPU here; 'cpu' would work")
    if int(device.partition(":")[2] or 0) >= torch.cuda.device_count():
        raise ValueError(f"device is {device!r}, and torch sees {torch.cuda.device_count()} GPUs, counted from 0")
    return torch


@contextlib.contextmanager
def float32_products(torch: Any, tf32: bool) -> Iterator[None]:
    """Let torch multiply float32 by TF32 units, or not."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def torch_matmul(device: str, inputs: str) -> Product:
    """Return ``torch.mm`` on a device (see `torch_on`); the results have the format of the inputs.

    Raises
    ------
    ValueError
        There is no torch, no such device, or no product of torch for the format there.
    """
    known = [name for name in _EXACT if name != "tf32" or device != "cpu"]
    if inputs not in known:
        raise ValueError(f"inputs is {inputs!r}; torch.mm on {device} takes {', '.join(known)}")
    torch = torch_on(device)
    dtype = getattr(torch, TORCH[inputs])

    def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        left, right = (torch.from_numpy(x).to(device=device, dtype=dtype) for x in (a, b))
        with float32_products(torch, inputs == "tf32"):
            d = torch.mm(left, right)
        result: NDArray[Any] = d.to(device="cpu", dtype=torch.float64 if inputs == "fp64" else torch.float32).numpy()
        return result

    return product


def emulated_matmul(unit: MatrixUnit) -> Product:
    """Return the product of an emulated unit, with an accumulator."""
    return functools.partial(matmul, unit=unit)
