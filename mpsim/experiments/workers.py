"""Parts of a study, one after another or by several processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["finished_parts"]

PartT = TypeVar("PartT")
DoneT = TypeVar("DoneT")


def finished_parts(task: Callable[[PartT], DoneT], parts: Iterable[PartT], workers: int) -> Iterator[DoneT]:
    """Yield what ``task`` makes of each part as it finishes: in order with one worker, else in any."""
    if workers <= 1:
        yield from map(task, parts)
        return
    # Not forked: threads of the kernels would not survive. Ctrl-C is the parent's to handle.
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap_unordered(task, parts)
