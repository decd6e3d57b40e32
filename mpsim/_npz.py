"""Files of arrays (``.npz``): read without executing anything, checked before memory is taken, and written whole."""

from __future__ import annotations

import lzma
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mpsim._files import replace

__all__ = ["BROKEN", "read_array", "read_arrays", "write_arrays"]

MAX_BYTES = 4 << 30
"""Largest array that is read; a file may claim any size."""
BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)
"""What reading a damaged or foreign archive raises."""


def read_arrays(path: Path, most: int = MAX_BYTES) -> dict[str, NDArray[Any]]:
    """Return all arrays of a file.

    Parameters
    ----------
    path : path of an ``.npz`` file
    most : int
        Bytes that its arrays may have together.

    Raises
    ------
    OSError
        There is no such file, or it cannot be read.
    ValueError
        It is no such archive, it is cut short, or holds pickled objects; the message begins with the path.
    """
    with path.open("rb") as file:
        try:
            if not zipfile.is_zipfile(file):
                raise ValueError("it is not an .npz archive, or it is cut short")
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()
                if foreign := [name for name in names if not name.endswith(".npy")]:
                    raise ValueError(f"it holds {foreign[0]}, which is no array")
                if (size := sum(info.file_size for info in archive.infolist())) > most:
                    raise ValueError(f"its arrays claim {size:,} bytes; at most {most:,} are read")
                return {name[:-4]: read_array(archive, name[:-4]) for name in names}
        except BROKEN as error:
            raise ValueError(f"{path}: {' '.join(str(error).split())}") from error


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], compressed: bool = False) -> None:
    """Write arrays by name, without pickles; the file appears whole or not at all."""
    write: Any = np.savez_compressed if compressed else np.savez
    replace(path, lambda file: write(file, **arrays))


def read_array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """Return one array, after checking its header against what the archive holds."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as file:
        shape, column_major, dtype = _read_header(file, name)
        if dtype.hasobject:
            raise ValueError(f"{name} holds pickled Python objects, which are never loaded; save numbers instead")
        size = math.prod(shape) * dtype.itemsize
        if size > MAX_BYTES:
            raise ValueError(f"{name} claims {size:,} bytes; at most {MAX_BYTES:,} are read")
        if size != info.file_size - file.tell():
            raise ValueError(f"{name} claims shape {shape}, which is not what the file holds; it is damaged")
        data = file.read()
    return np.frombuffer(data, dtype).reshape(shape, order="F" if column_major else "C")


def _read_header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and dtype of an ``.npy`` file, and leave the file at its data."""
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        version = npy.read_magic(file)
        if version in readers:
            return readers[version](file)
    except Exception as error:  # the parser of a header that is no header raises anything
        raise ValueError(f"the header of {name} is damaged: {error}") from error
    raise ValueError(f"{name} has .npy version {version}; 1.0 or 2.0 are read")
