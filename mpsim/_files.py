"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["replace", "write_npz"]


def replace(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside ``path``, and give it that name when it is on the disk; until then what was there stays."""
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], compressed: bool = False) -> None:
    """Write arrays by name, without pickles; see `replace`."""
    replace(path, lambda file: (np.savez_compressed if compressed else np.savez)(file, **arrays))  # type: ignore[arg-type]
