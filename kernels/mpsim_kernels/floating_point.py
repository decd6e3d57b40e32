"""The processor's own floating-point arithmetic, under a known environment: fused multiply-add, and default rounding.

Most kernels keep their bits by working on integers or exact products. Those that emulate a chain of ordinary IEEE 754
operations let the processor do them, which is only right while its control register asks for rounding to nearest
even and for subnormal numbers. `default_environment` sees to that for the calling thread.
"""

import contextlib
import platform
from fractions import Fraction
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from mpsim_kernels._jit import brief_kernel

__all__ = ["FLUSHES_AFTER_ROUNDING", "default_environment", "fma", "fma32", "fma64"]

_config: Any = numba.config  # its attributes are made at run time
cgutils: Any = _cgutils  # has no types

_MACHINE = platform.machine().lower()
_X86 = _MACHINE in ("x86_64", "amd64")
_ARM = _MACHINE in ("aarch64", "arm64")
_DEFAULT = 0x1F80 if _X86 else 0
"""MXCSR with every exception masked, or FPCR: nearest even, subnormals kept."""
_FLUSH_TO_ZERO = 0x8000  # in MXCSR

FLUSHES_AFTER_ROUNDING = _X86 and not _config.DISABLE_JIT
"""Whether the processor can replace results by zeros of their sign that are tiny after rounding to full precision with
unbounded exponent. x86 judges after rounding (Intel's manual, volume 1, 4.9.1.5), Arm before."""

if _config.DISABLE_JIT:

    def fma(x: Any, y: Any, z: Any) -> Any:
        """Return ``x * y + z`` of three float32 or three float64, rounded once."""
        # Python has no fma of its own before 3.13.
        if not (np.isfinite(x) and np.isfinite(y)):
            with np.errstate(invalid="ignore", over="ignore"):
                return x * y + z
        if not np.isfinite(z):
            return z
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if exact == 0:
            with np.errstate(under="ignore"):
                product = x * y if x == 0 or y == 0 else -z
                return product + z
        info = np.finfo(type(z))
        p = info.nmant + 1
        e = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
        e -= abs(exact) < Fraction(2) ** e
        quantum = Fraction(2) ** (max(e, int(info.minexp)) - p + 1)
        rounded = round(exact / quantum) * quantum
        if abs(rounded) >= Fraction(2) ** int(info.maxexp):
            return type(z)(np.inf if exact > 0 else -np.inf)
        with np.errstate(under="ignore"):
            result = type(z)(float(rounded))
            return np.copysign(result, type(z)(-1 if exact < 0 else 1))

else:

    @intrinsic
    def fma(_context: Any, x: Any, y: Any, z: Any) -> Any:
        """Return ``x * y + z`` of three float32 or three float64, rounded once."""
        if not (x == y == z and x in (types.float32, types.float64)):
            raise TypingError(f"fma of {x}, {y} and {z}: all must be float32, or all float64")

        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            llvm = context.get_value_type(x)
            function_type = ir.FunctionType(llvm, [llvm] * 3)
            function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.fma.f{x.bitwidth}")
            return builder.call(function, args)

        return x(x, x, x), codegen


fma32 = fma64 = fma


def _stored_word(instruction: str, load: bool) -> Any:
    """Return an intrinsic that moves MXCSR to memory, or there from its argument, and returns the word in memory."""

    @intrinsic
    def access(_context: Any, _word: Any) -> Any:
        def codegen(_ctx: Any, builder: Any, _signature: Any, args: Any) -> Any:
            word = ir.IntType(32)
            pointer = cgutils.alloca_once(builder, word)
            if load:
                builder.store(args[0], pointer)
            function_type = ir.FunctionType(ir.VoidType(), [ir.PointerType()])
            builder.call(cgutils.get_or_insert_function(builder.module, function_type, instruction), [pointer])
            return builder.load(pointer)

        return types.uint32(types.uint32), codegen

    return access


def _assembled(instruction: str, constraint: str, load: bool) -> Any:
    """Return an intrinsic that moves FPCR to a register or from its argument, and returns the word."""

    @intrinsic
    def access(_context: Any, _word: Any) -> Any:
        def codegen(_ctx: Any, builder: Any, _signature: Any, args: Any) -> Any:
            word, wide = ir.IntType(32), ir.IntType(64)
            if load:
                value = builder.zext(args[0], wide)
                builder.asm(ir.FunctionType(ir.VoidType(), [wide]), instruction, constraint, [value], True)
                return args[0]
            value = builder.asm(ir.FunctionType(wide, []), instruction, constraint, [], True)
            return builder.trunc(value, word)

        return types.uint32(types.uint32), codegen

    return access


_SETS = not _config.DISABLE_JIT and (_X86 or _ARM)

if _SETS:
    if _X86:
        _read_word = _stored_word("llvm.x86.sse.stmxcsr", load=False)
        _write_word = _stored_word("llvm.x86.sse.ldmxcsr", load=True)
    else:
        _read_word = _assembled("mrs $0, fpcr", "=r", load=False)
        _write_word = _assembled("msr fpcr, $0", "r", load=True)

    @brief_kernel
    def _exchange(word: Any) -> Any:
        before = _read_word(word)
        _write_word(word)
        return before


class _Environment:
    """The control register has a word of its own inside ``with``; a class, for small products enter it often."""

    __slots__ = ("_before", "_wanted")

    def __init__(self, wanted: int) -> None:
        self._wanted = np.uint32(wanted)

    def __enter__(self) -> None:
        self._before = np.uint32(_exchange(self._wanted))

    def __exit__(self, *_: object) -> None:
        _exchange(self._before)


def default_environment(flush: bool = False) -> contextlib.AbstractContextManager[Any]:
    """Compute with rounding to nearest even, and with subnormal numbers, in the calling thread inside ``with``.

    With ``flush``, for which `FLUSHES_AFTER_ROUNDING` must hold, tiny results are zeros; operands are kept. The
    register is set by a compiled call of its own, so that no compiler moves arithmetic across it: the arithmetic
    belongs in another kernel, called inside.

    In plain Python, or on a processor whose control register is not known here, the environment stays as it is, and
    NumPy does not warn of exceptions: compiled code does not either.
    """
    if _SETS:
        return _Environment(_DEFAULT | _FLUSH_TO_ZERO if flush else _DEFAULT)
    assert not flush
    return np.errstate(all="ignore")
