"""States in files: NumPy's ``.npz``, and ``.safetensors``, which other libraries read."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim._files import replace
from mpsim._npz import BROKEN
from mpsim.nn import safetensors
from mpsim.nn.module import Module
from mpsim.tensor import Tensor

__all__ = ["load", "save"]

State: TypeAlias = "Mapping[str, Tensor | ArrayLike]"

_MARK = "__mpsim_state__"
_VERSION = 1


def save(state: Module | State, path: str | os.PathLike[str]) -> None:
    """Write a state to a file, all of it or nothing: a file that was there stays until the new one is complete.

    Parameters
    ----------
    state : Module, or mapping of names to tensors or arrays
        Of a module its parameters and buffers.
    path : str or path
        ``.npz`` holds float32 and float64 arrays, ``.safetensors`` each tensor in its own format where the file
        format has it (fp16, bf16, e4m3, ...) and as float32 or float64 otherwise. Values are exact in both.

    Examples
    --------
    >>> import tempfile
    >>> from mpsim import nn
    >>> layer, other = nn.Linear(3, 2, rng=0), nn.Linear(3, 2, rng=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nn.save(layer, f"{folder}/layer.npz")
    ...     other.load_state_dict(nn.load(f"{folder}/layer.npz"))
    >>> bool((other.weight.data == layer.weight.data).all())
    True
    """
    target = Path(path)
    write, _ = _codec(target)
    held = state.state_tensors() if isinstance(state, Module) else state
    tensors = {name: _checked(name, value) for name, value in held.items()}
    replace(target, lambda file: write(tensors, file))


def load(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name, for `Module.load_state_dict`.

    Raises
    ------
    ValueError
        The file is incomplete, or not one that `save` or another writer of ``.safetensors`` made.
    """
    source = Path(path)
    _, read = _codec(source)
    return read(source)


def _checked(name: str, value: Tensor | ArrayLike) -> Tensor | NDArray[Any]:
    """Return floats as a tensor, integers as an array."""
    if name == _MARK:
        raise ValueError(f"save: {name!r} is the name of the mark of such files; another name is needed")
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)
    return array if array.dtype.kind in "iu" else Tensor(array)


def _write_npz(tensors: Mapping[str, Tensor | NDArray[Any]], file: IO[bytes]) -> None:
    arrays = {name: t.data if isinstance(t, Tensor) else t for name, t in tensors.items()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in {**arrays, _MARK: np.array(_VERSION)}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    with path.open("rb") as file:
        try:
            stored = np.load(file, allow_pickle=False)
            arrays = dict(stored) if isinstance(stored, np.lib.npyio.NpzFile) else {}
        except BROKEN as error:
            raise ValueError(f"{path} is not a complete .npz file: {error}") from error
    if _MARK not in arrays:
        raise ValueError(f"{path} is an .npz file that mpsim.nn.save did not write: it has no {_MARK}")
    version = int(arrays.pop(_MARK))
    if version > _VERSION:
        raise ValueError(f"{path} has version {version} of the format; this mpsim reads up to {_VERSION}")
    return arrays


_Writer: TypeAlias = Callable[[Mapping[str, "Tensor | NDArray[Any]"], IO[bytes]], None]
_Reader: TypeAlias = Callable[[Path], "dict[str, NDArray[Any]]"]

_CODECS: dict[str, tuple[_Writer, _Reader]] = {
    ".npz": (_write_npz, _read_npz),
    ".safetensors": (safetensors.write, safetensors.read),
}


def _codec(path: Path) -> tuple[_Writer, _Reader]:
    if path.suffix not in _CODECS:
        raise ValueError(f"{path} ends in {path.suffix!r}; {' or '.join(_CODECS)} is needed")
    return _CODECS[path.suffix]
