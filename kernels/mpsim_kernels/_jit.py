"""The one place that compiles: Numba decorators whose disk cache follows every kernel source.

Numba's own cache watches only the file that defines a function, so an edit or an upgrade of a shared
primitive would leave stale machine code behind. Here the cache folder is named after a digest of all
kernel sources: new sources, new folder.
"""

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import platformdirs
from numba.core.registry import CPUDispatcher as _CPUDispatcher

__all__ = ["brief_kernel", "cache_folder", "inlined_kernel", "inner_kernel", "kernel", "source_digest"]

F = TypeVar("F", bound=Callable[..., Any])

_config: Any = numba.config  # its attributes are made at run time


@functools.cache
def source_digest() -> str:
    """Return twelve hex digits that change whenever any kernel source changes."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


@functools.cache
def cache_folder() -> Path | None:
    """Return the folder of compiled kernels, or None where nothing can be written.

    ``NUMBA_CACHE_DIR`` is honoured; otherwise the user's cache folder is taken, never the folder of the
    installed package, which may be read-only. Without a writable folder kernels are compiled in each process.
    """
    base = os.environ.get("NUMBA_CACHE_DIR") or platformdirs.user_cache_path("mpsim")
    folder = Path(base) / f"kernels-{source_digest()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def _compile(function: F, **options: Any) -> F:
    folder = cache_folder()
    njit: Any = functools.partial(numba.njit, no_cfunc_wrapper=True)  # nothing calls kernels through C
    if folder is None:
        return cast(F, njit(**options)(function))
    # Numba reads CACHE_DIR once, when the function is decorated; other users of Numba keep their own.
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(folder)
    try:
        return cast(F, njit(cache=True, **options)(function))
    finally:
        _config.CACHE_DIR = before


class _Part(_CPUDispatcher):
    """A part of kernels, compiled without the wrapper that calls from Python go through."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self.py_func.__name__} is a part of kernels, which alone can call it")


def _compile_part(function: F, **options: Any) -> F:
    compiled: Any = _compile(function, no_cpython_wrapper=True, **options)
    if isinstance(compiled, _CPUDispatcher):  # not where the compiler is off
        compiled.__class__ = _Part  # without the wrapper, a call from Python would crash
    return cast(F, compiled)


def kernel(function: F) -> F:
    """Compile a serial kernel.

    ``fastmath`` is off: it would let LLVM fuse ``a*b + c`` and forget the signs of zeros.
    """
    return _compile(function, fastmath=False, error_model="numpy", nogil=True)


def brief_kernel(function: F) -> F:
    """Compile a kernel that keeps the GIL: it takes less time than another thread takes to hand the GIL back."""
    return _compile(function, fastmath=False, error_model="numpy")


def inner_kernel(function: F) -> F:
    """Compile a part of kernels, inlined where it is small; that takes less time than a whole `kernel`."""
    return _compile_part(function, fastmath=False, error_model="numpy", nogil=True)


def inlined_kernel(function: F) -> F:
    """Compile a part of kernels that is copied into every caller, however large both are."""
    return _compile_part(function, fastmath=False, error_model="numpy", nogil=True, forceinline=True)
