"""The safetensors file format: a length, a header in JSON, and the bytes of all tensors.

Written from its specification (huggingface.co/docs/safetensors, "Format"): 8 bytes of length, little-endian; an object
that maps each name to dtype, shape and the first and last byte within what follows; bytes in C order, little-endian,
without holes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mpsim.encoding import decode, encode
from mpsim.formats import FP32, FP64, FloatFormat, get_format
from mpsim.tensor import Tensor

__all__ = ["read", "write"]

# Names of dtypes in the file, by our format.
_FLOATS = {
    "F64": "fp64",
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "F8_E4M3": "e4m3",
    "F8_E5M2": "e5m2",
    "F8_E4M3FNUZ": "e4m3fnuz",
    "F8_E5M2FNUZ": "e5m2fnuz",
    "F8_E8M0": "e8m0",
}
_INTEGERS = {f"{kind}{8 * size}": f"{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)}
_LARGEST_HEADER = 100_000_000  # as in the reference implementation


def _stored(tensor: Tensor | NDArray[Any]) -> tuple[str, NDArray[Any]]:
    """Return a dtype of the file format, and the elements as its codes."""
    if not isinstance(tensor, Tensor):
        return f"{tensor.dtype.kind.upper()}{8 * tensor.itemsize}", tensor
    for name, held in _FLOATS.items():
        if get_format(held) == tensor.format and held not in ("fp32", "fp64"):
            return name, encode(tensor.data, tensor.format)
    return ("F64" if tensor.data.dtype == np.float64 else "F32"), tensor.data


def write(tensors: Mapping[str, Tensor | NDArray[Any]], file: IO[bytes]) -> None:
    """Write tensors, and arrays of integers, to an open file."""
    stored = {name: _stored(tensor) for name, tensor in tensors.items()}
    # The widest elements first, so that all are aligned.
    order = sorted(stored, key=lambda name: (-stored[name][1].itemsize, name))
    header, start = {}, 0
    for name in order:
        dtype, array = stored[name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, start + array.nbytes]}
        start += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        array = stored[name][1]
        file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


def read(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file as arrays of values, float32, float64 or integers.

    Raises
    ------
    ValueError
        The file is incomplete or not of this format, or has a dtype that is not known.
    """
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or not 2 <= length <= min(_LARGEST_HEADER, len(content) - 8):
        raise ValueError(f"{path} is not a complete .safetensors file: its header of {length} bytes is not there")
    try:
        header = json.loads(content[8 : 8 + length])
        entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
        spans = [(name, e["dtype"], tuple(e["shape"]), *e["data_offsets"]) for name, e in entries]
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a .safetensors file: its header cannot be read ({error!r})") from error
    body = content[8 + length :]
    end = 0
    for name, _, _, start, stop in sorted(spans, key=lambda span: span[3:]):
        if start != end or stop < start:
            raise ValueError(f"{path} is not a .safetensors file: {name} does not begin where the one before ends")
        end = stop
    if end != len(body):
        raise ValueError(f"{path} is not a complete .safetensors file: {end} bytes of data are due, {len(body)} there")
    return {name: _values(path, name, dtype, shape, body[start:stop]) for name, dtype, shape, start, stop in spans}


def _values(path: Path, name: str, dtype: str, shape: tuple[int, ...], data: bytes) -> NDArray[Any]:
    """Return the values of one tensor."""
    fmt: FloatFormat | None = get_format(_FLOATS[dtype]) if dtype in _FLOATS else None
    if fmt is None and dtype not in _INTEGERS:
        known = ", ".join([*_FLOATS, *_INTEGERS])
        raise ValueError(f"{path}: {name} has dtype {dtype}; known are {known}")
    if fmt is FP32 or fmt is FP64:
        element = np.dtype(fmt.value_dtype)
    else:
        element = np.dtype(_INTEGERS[dtype]) if fmt is None else np.dtype(fmt.code_dtype)
    if len(data) != math.prod(shape) * element.itemsize:
        raise ValueError(f"{path}: {name} has {len(data)} bytes; shape {shape} of {dtype} needs another number")
    array = np.frombuffer(data, element.newbyteorder("<")).astype(element).reshape(shape)
    return array if fmt is None or fmt is FP32 or fmt is FP64 else decode(array, fmt)
