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

from mpsim.encoding import encode
from mpsim.formats import get_format
from mpsim.matmul import matmul
from mpsim.modes import unknown
from mpsim.units import InputsLike, MatrixUnit

__all__ = [
    "FP8",
    "RESULTS",
    "TORCH",
    "codes_on",
    "emulated_matmul",
    "float32_products",
    "numpy_matmul",
    "scaled_product",
    "torch_formats",
    "torch_matmul",
    "torch_on",
]

Product = Callable[..., NDArray[Any]]

_NUMPY = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16}
_EXACT = ("fp64", "fp32", "tf32", "fp16", "bf16")
"""Formats of ``torch.mm``."""
TORCH = {
    "fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e4m3fnuz": "float8_e4m3fnuz", "e5m2fnuz": "float8_e5m2fnuz",
}  # fmt: skip
"""torch's names of the formats of operands."""
FP8 = ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz")
"""Formats of ``torch._scaled_mm``."""
RESULTS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""torch's names of the formats of its results."""


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


def codes_on(torch: Any, codes: NDArray[Any], fmt: str, device: str) -> Any:
    """Return codes, those of tf32 as words, as a tensor on a device."""
    signed = {1: np.uint8, 2: np.int16, 4: np.int32}[codes.itemsize]
    return torch.from_numpy(codes.view(signed)).view(getattr(torch, TORCH[fmt])).to(device)


def scaled_product(torch: Any, a: Any, b: Any, result: str, fast: bool) -> Any:
    """Return ``torch._scaled_mm`` with scales of 1; the right operand must lie column by column."""
    one = torch.ones((), device=a.device)
    columns, out = b.t().contiguous().t(), getattr(torch, RESULTS[result])
    return torch._scaled_mm(a, columns, scale_a=one, scale_b=one, out_dtype=out, use_fast_accum=fast)


def torch_matmul(device: str, inputs: InputsLike, out: str | None = None, fast: bool = True) -> Product:
    """Return a product of torch on a device (see `torch_on`): ``torch.mm``, for FP8 ``torch._scaled_mm``.

    Parameters
    ----------
    device : "cpu", "cuda" or "cuda:1" ...
    inputs : format, or two of FP8
    out : format, optional
        Of the results: that of the inputs, and of FP8 fp32, unless given.
    fast : bool
        Of FP8: the fast accumulation, which keeps partial sums in the matrix unit.

    Returns
    -------
    callable
        Takes values of the inputs, and raises ValueError where torch cannot multiply them here.

    Raises
    ------
    ValueError
        There is no torch, no such device, or no product of torch for the formats.
    """
    left, right, result = torch_formats(device, inputs, out)
    torch = torch_on(device)

    def multiplied(a: NDArray[Any], b: NDArray[Any]) -> Any:
        if left in FP8:
            codes = encode(a, left), encode(b, right)
            x, y = (codes_on(torch, x, fmt, device) for x, fmt in zip(codes, (left, right), strict=True))
            return scaled_product(torch, x, y, result, fast)
        x, y = (torch.from_numpy(v).to(device=device, dtype=getattr(torch, TORCH[left])) for v in (a, b))
        wider = {} if result == _own_result(left) else {"out_dtype": torch.float32}
        with float32_products(torch, left == "tf32"):
            return torch.mm(x, y, **wider)

    def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        try:
            d = multiplied(a, b).to(device="cpu", dtype=torch.float64 if result == "fp64" else torch.float32)
        except (RuntimeError, TypeError, AttributeError) as error:
            said = str(error).strip().splitlines()[0][:200]
            raise ValueError(f"torch {torch.__version__} on {device}, {left} x {right} -> {result}: {said}") from error
        values: NDArray[Any] = d.numpy()
        return values

    return product


def torch_formats(device: str, inputs: InputsLike, out: str | None = None) -> tuple[str, str, str]:
    """Return the formats of operands and results of a product of torch, by their names in the catalogue.

    Raises
    ------
    ValueError
        torch has no such product on such a device.
    """
    left, right = (get_format(fmt).name for fmt in (inputs if isinstance(inputs, tuple) else (inputs, inputs)))
    known = [name for name in _EXACT if name != "tf32" or device != "cpu"]
    if not (left == right and left in known) and not (left in FP8 and right in FP8):
        raise ValueError(
            f"inputs is {', '.join(dict.fromkeys((left, right)))}; torch.mm on {device} takes {', '.join(known)}, "
            f"and torch._scaled_mm two of {', '.join(FP8)}"
        )
    own = _own_result(left)
    results = tuple(RESULTS) if left in FP8 else (own, "fp32") if own in RESULTS else (own,)
    result = own if out is None else get_format(out).name
    if result not in results:
        raise unknown("out", result, dict.fromkeys(results))
    return left, right, result


def _own_result(inputs: str) -> str:
    """Return the format of torch's results unless one asks for another."""
    return "fp32" if inputs in ("tf32", *FP8) else inputs


def emulated_matmul(unit: MatrixUnit) -> Product:
    """Return the product of an emulated unit, with an accumulator."""
    return functools.partial(matmul, unit=unit)
