"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO

__all__ = ["replace"]


def replace(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside ``path``, and give it that name when it is on the disk; until then what was there stays."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:  # its mode is what the umask leaves; mkstemp's is the owner's alone
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
