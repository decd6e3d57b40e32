"""Memory that one step of training frees is kept for the next.

glibc gives large freed blocks back to the system, which hands out fresh pages for the next ones, one page fault for
each 4096 bytes; on small arithmetic that costs more than the arithmetic. Both thresholds below are settings of
mallopt(3).
"""

from __future__ import annotations

import ctypes
import functools
import os

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_KEPT = 256 << 20
"""Bytes of freed memory that a process keeps."""
_BLOCK = 32 << 20
"""Bytes of the largest arrays that come from the kept memory; the largest number that glibc takes."""
_CHOICES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables by which a user tells glibc otherwise."""


@functools.cache
def keep_freed_memory() -> bool:
    """Tell the C library to keep freed memory, once; return whether it does.

    It does not where it is not glibc, nor where the environment variable MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_
    or GLIBC_TUNABLES is set: what they say holds.
    """
    if any(name in os.environ for name in _CHOICES) or "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT)) and bool(mallopt(_MMAP_THRESHOLD, _BLOCK))
