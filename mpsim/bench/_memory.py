"""How much memory a piece of work adds to a process, measured in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

__all__ = ["added_bytes"]

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def added_bytes(prepare: Callable[[], Callable[[], object]]) -> int | None:
    """Return by how many bytes the resident memory of a new process grows at most while it does a piece of work.

    Parameters
    ----------
    prepare : callable
        Function of a module, or a `functools.partial` of one. Run first; what it returns is the work.

    Returns
    -------
    int, or None where the system does not tell (it does on Linux)
    """
    if not _CLEAR.exists():
        return None
    # Spawned, for a process that has imported and allocated nothing.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (prepare,))


def _measured(prepare: Callable[[], Callable[[], object]]) -> int | None:
    work = prepare()
    try:
        before = _field("VmRSS")
        _CLEAR.write_text("5")  # the peak so far is forgotten: proc(5)
    except OSError:
        return None
    work()
    return _field("VmHWM") - before


def _field(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])
