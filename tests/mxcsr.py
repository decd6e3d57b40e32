"""Run code under another x86 floating-point environment: rounding direction, flush-to-zero, denormals-are-zero."""

import contextlib
import functools
import platform
from collections.abc import Callable, Iterator
from typing import Any

import numba
import pytest
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["DAZ", "DEFAULT", "FTZ", "ROUND_DOWN", "ROUND_TO_ZERO", "ROUND_UP", "mxcsr"]

DEFAULT = 0x1F80
"""Every exception masked, nearest even, subnormals kept."""
ROUND_DOWN, ROUND_UP, ROUND_TO_ZERO = 0x2000, 0x4000, 0x6000
FTZ, DAZ = 0x8000, 0x0040


def _instruction(name: str) -> Any:
    """Return an intrinsic that hands a 32-bit word in memory to STMXCSR or LDMXCSR, and returns the word."""

    @intrinsic
    def access(_context: Any, _word: Any) -> Any:
        def codegen(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
            word = ir.IntType(32)
            pointer = cgutils.alloca_once(builder, word)
            builder.store(args[0], pointer)
            function_type = ir.FunctionType(ir.VoidType(), [ir.PointerType()])
            builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), [pointer])
            return builder.load(pointer)

        return types.uint32(types.uint32), codegen

    return access


@functools.cache
def _access() -> tuple[Callable[[], int], Callable[[int], int]]:
    store, load = _instruction("llvm.x86.sse.stmxcsr"), _instruction("llvm.x86.sse.ldmxcsr")

    @numba.njit("uint32()")
    def read() -> int:
        return store(numba.uint32(0))

    @numba.njit("uint32(uint32)")
    def write(value: int) -> int:
        return load(value)

    return read, write


@contextlib.contextmanager
def mxcsr(value: int) -> Iterator[None]:
    """Set this thread's MXCSR and restore it; threads started inside inherit it."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("MXCSR is a register of x86")
    if numba.config.DISABLE_JIT:
        pytest.skip("MXCSR is set through Numba, which is disabled")
    read, write = _access()
    before = read()
    write(value)
    try:
        assert read() & ~0x3F == value & ~0x3F  # the low six bits are sticky flags
        yield
    finally:
        write(before)
