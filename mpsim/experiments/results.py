"""Results on disk: a folder with ``result.json``, never half written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mpsim._files import replace
from mpsim.experiments.registry import Result

__all__ = ["open_folder", "read_result", "write_result"]

_FILE = "result.json"


def open_folder(path: str | os.PathLike[str], force: bool = False) -> Path:
    """Make a folder for results, and make sure that it can be written.

    Parameters
    ----------
    path
    force : bool
        Accept a folder that is there already; files of the same names are replaced.

    Raises
    ------
    ValueError
        The folder exists and is not empty, or cannot be written.
    """
    folder = Path(path)
    try:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"output {folder} is a file; choose another folder with -o")
        if folder.is_dir() and any(folder.iterdir()) and not force:
            raise ValueError(
                f"output {folder} exists already; choose another folder with -o, or replace it with --force"
            )
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{_FILE}.tmp"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise ValueError(f"output {folder} cannot be written ({error.strerror}); choose another with -o") from error
    return folder


def write_result(result: Result, folder: Path) -> Path:
    """Write ``result.json`` into a folder, replacing an older one in one step."""
    target = folder / _FILE
    text = json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n"
    replace(target, lambda file: file.write(text.encode()))
    return target


def read_result(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what `write_result` wrote.

    Raises
    ------
    ValueError
        There is no readable ``result.json``.
    """
    path = Path(folder) / _FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a result: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds {type(data).__name__}; the JSON object that write_result makes is needed")
    return data
