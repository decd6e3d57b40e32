"""Matrix products of torch on a CPU or GPU, recorded with inputs that separate the parameters of matrix units."""

from __future__ import annotations

import ctypes
import datetime
import functools
import itertools
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim._version import __version__
from mpsim.encoding import encode
from mpsim.formats import get_format
from mpsim.hardware import recording_mma
from mpsim.hardware.devices import FP8, RESULTS, codes_on, float32_products, scaled_product, torch_on
from mpsim.hardware.fixed_designs import fixed_designs
from mpsim.hardware.host import processor
from mpsim.hardware.recordings import RecordedSet, Recording, unit_of
from mpsim.modes import unknown

__all__ = ["INPUTS", "record_torch"]

_Codes = NDArray[Any]

INPUTS = ("fp16", "bf16", "fp32", "tf32", *FP8)
"""Formats of inputs that can be recorded."""
_TILE = 64
"""Rows and columns of a product of designs."""
_LONG = 512
"""K of random products, which a library may cut."""


@dataclass(frozen=True)
class _Way:
    """One way of torch to multiply matrices."""

    label: str
    options: dict[str, Any]
    """Of `mpsim.matmul`."""
    multiply: Callable[[Any, Any], Any]
    result: str


def record_torch(
    device: str = "cuda",
    inputs: Sequence[str] = ("fp16", "bf16", "tf32", "e4m3"),
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> tuple[Recording, list[str]]:
    """Record torch's products: `torch.mm`, and for FP8 `torch._scaled_mm` with fast and slow accumulation.

    Parameters
    ----------
    device : "cpu", "cuda" or "cuda:1" ...
    inputs : names of formats
        Of `INPUTS`.
    seed : int
        Of the random products.
    progress : callable, optional
        Called with what is recorded next.

    Returns
    -------
    recording : Recording
        Its sets know the unit where `mpsim.units` knows the card by name. On NVIDIA cards there are single
        instructions too.
    refused : list of str
        What torch would not compute, and why.

    Raises
    ------
    ValueError
        torch is not installed, has no such device, or nothing could be recorded.
    """
    for fmt in inputs:
        if fmt not in INPUTS:
            raise unknown("one of inputs", fmt, INPUTS)
    torch = torch_on(device)
    name = processor() if device == "cpu" else torch.cuda.get_device_name(device)
    sets: list[RecordedSet] = []
    refused: list[str] = []
    for fmt in inputs:
        for way in _ways(torch, fmt, device):
            if progress:
                progress(way.label)
            try:
                # No unit multiplies fp32: a library does that on ordinary cores, in an order of its own.
                sets += _recorded(torch, way, fmt, device, None if fmt == "fp32" else unit_of(name), seed)
            except (RuntimeError, TypeError, AttributeError) as error:
                refused.append(f"{way.label}: {str(error).strip().splitlines()[0][:200]}")
    if device != "cpu" and torch.version.hip is None:
        try:
            sets += recording_mma.sets(torch, device, inputs, unit_of(name), seed)
        except (OSError, RuntimeError) as error:
            refused.append(f"single instructions: {error}")
    if not sets:
        raise ValueError(f"nothing could be recorded: {'; '.join(refused)}")
    return (
        Recording(
            device=name,
            sets=tuple(sets),
            software=_software(torch, device),
            recorded=datetime.date.today().isoformat(),
            note=f"seed {seed}; designs of mpsim.hardware.fixed_designs and random products",
        ),
        refused,
    )


def _software(torch: Any, device: str) -> dict[str, str]:
    """Return versions of everything that has a say in the bits."""
    found = {"mpsim": __version__, "python": platform.python_version(), "system": platform.platform()}
    found |= {"torch": torch.__version__, "threads": str(torch.get_num_threads())}
    if device == "cpu":
        return found | {"oneDNN and BLAS": " ".join(torch.__config__.show().split())[:600]}
    properties = torch.cuda.get_device_properties(device)
    found |= {"CUDA": str(torch.version.cuda), "HIP": str(torch.version.hip)}
    found["compute capability"] = f"{properties.major}.{properties.minor}"
    try:
        version = ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
        found["driver"] = str(version.value)
    except OSError:
        found["driver"] = "unknown"
    return found


def _ways(torch: Any, fmt: str, device: str) -> Iterator[_Way]:
    """Yield what torch can do with inputs of a format."""
    if fmt in FP8:
        for speed, result in itertools.product(("fast", "slow"), RESULTS):
            multiply = functools.partial(scaled_product, torch, result=result, fast=speed == "fast")
            yield _Way(f"_scaled_mm {fmt} {speed} {result}", {"schedule": f"fp8-{speed}"}, multiply, result)
    elif fmt in ("tf32", "fp32"):
        yield _Way(f"mm {fmt} fp32", {}, functools.partial(_float32, torch, fmt == "tf32", device), "fp32")
    else:
        yield _Way(f"mm {fmt} {fmt}", {}, torch.mm, fmt)
        yield _Way(f"mm {fmt} fp32", {}, functools.partial(torch.mm, out_dtype=torch.float32), "fp32")


def _float32(torch: Any, tf32: bool, device: str, a: Any, b: Any) -> Any:
    if tf32 and device == "cpu":
        raise NotImplementedError("torch has no TF32 on CPUs")
    with float32_products(torch, tf32):
        return torch.mm(a, b)


def _recorded(torch: Any, way: _Way, fmt: str, device: str, unit: str | None, seed: int) -> list[RecordedSet]:
    """Return products of the designs and of random operands."""
    sets = []
    for name, a, b in _operands(fmt, seed):
        d = np.stack([_product(torch, way, x, y, fmt, device) for x, y in zip(a, b, strict=True)])
        facts = {
            "unit": unit,
            "inputs": fmt,
            "out": "fp32",
            "result": way.result,
            "options": way.options,
            "function": way.label,
            "nan": "any" if device == "cpu" else "bits",
        }
        sets.append(RecordedSet(name=f"{way.label}/{name}", kind="gemm", arrays={"a": a, "b": b, "d": d}, facts=facts))
    return sets


@functools.cache
def _operands(fmt: str, seed: int) -> list[tuple[str, _Codes, _Codes]]:
    """Return named operands [T, M, K] and [T, K, N], the same arrays whenever asked."""
    f = get_format(fmt)
    left, right = fixed_designs(f, f)
    tiles = -(-len(left) // _TILE)
    rows, columns = (np.resize(x, (tiles, _TILE, x.shape[1])) for x in (left, right))
    rng = np.random.default_rng(seed)
    normal = [encode(rng.standard_normal((1, _TILE, _LONG)), f) for _ in range(2)]
    exponents = [rng.integers(-12, 13, (1, _TILE, _TILE)) for _ in range(2)]
    wide = [encode(np.ldexp(rng.standard_normal(e.shape), e), f) for e in exponents]
    sparse = [np.zeros((1, _TILE, _TILE), f.code_dtype) for _ in range(2)]
    for x in sparse:
        chosen = np.flatnonzero(rng.random(x.size) < 0.06)
        x.reshape(-1)[chosen] = rng.integers(0, 1 << f.bits, chosen.size, np.int64).astype(f.code_dtype)
    drawn = (("designs", (rows, columns)), ("normal", normal), ("wide", wide), ("any bits, sparse", sparse))
    return [(name, _words(x, fmt), _words(np.swapaxes(y, 1, 2), fmt)) for name, (x, y) in drawn]


def _words(codes: _Codes, fmt: str) -> _Codes:
    """Return codes as matrix instructions take them: tf32 in the high bits of words."""
    codes = np.ascontiguousarray(codes)
    return codes << 13 if fmt == "tf32" else codes


def _product(torch: Any, way: _Way, a: _Codes, b: _Codes, fmt: str, device: str) -> _Codes:
    """Return the codes of one product."""
    d = way.multiply(*(codes_on(torch, x, fmt, device) for x in (a, b))).cpu().contiguous()
    word = {2: torch.int16, 4: torch.int32}[d.element_size()]
    codes: _Codes = d.view(word).numpy()
    return codes.view(f"u{d.element_size()}")
