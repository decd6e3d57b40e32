"""Run a serial kernel over ranges of a large array, on Numba's number of threads."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numba

__all__ = ["AT_LEAST", "in_ranges"]

AT_LEAST = 1 << 18
"""Elements of a simple loop that are worth a thread, which takes some 0.1 ms to wake."""

_config: Any = numba.config  # its attributes are made at run time
_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)  # threads do not survive a fork


def in_ranges(task: Callable[[int, int], None], size: int, at_least: int) -> None:
    """Call ``task(start, stop)`` over consecutive ranges that cover ``0..size``.

    Kernels release the GIL, so the ranges run side by side. ``NUMBA_NUM_THREADS`` and
    ``numba.set_num_threads`` set how many there are. The results of ``task`` must not depend on
    where the ranges are cut.

    Parameters
    ----------
    task
        Works on one range; called from several threads at once, the calling one among them.
    size
        End of the last range.
    at_least
        Smallest range worth a thread; up to this size ``task`` runs in the calling thread.
    """
    global _pool
    threads = numba.get_num_threads() if size > at_least else 1
    if threads == 1:
        task(0, size)
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(max(_config.NUMBA_NUM_THREADS - 1, 1), thread_name_prefix="mpsim")
    step = max(-(-size // threads), at_least)
    others = [_pool.submit(task, start, min(start + step, size)) for start in range(step, size, step)]
    try:
        task(0, min(step, size))
    finally:
        wait(others)
    for other in others:
        other.result()
