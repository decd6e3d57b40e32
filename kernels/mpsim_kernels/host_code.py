"""Machine code for single instructions of this computer, made by LLVM: what emulation is held against.

This is the one place in the package whose results may depend on the processor. Numba's own compiler is not asked,
because it targets what `NUMBA_CPU_NAME` says; LLVM is given the processor's own features instead. An instruction that
the processor lacks ends the process, so callers look at `missing` first, and work in a process that may end.

Every instruction stands in a function of its own that is called through memory: otherwise LLVM would move it across the
instructions that set and read the control register.
"""

import ctypes
import functools
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np

__all__ = [
    "Instruction",
    "Tile",
    "assembly",
    "control_word",
    "execute",
    "execute_tiles",
    "host_features",
    "host_machine",
    "missing",
]

Words = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Instruction:
    """One instruction on words: LLVM code that makes ``%z`` of ``%a``, ``%b`` and ``%c``."""

    name: str
    machine: str
    """``"x86"`` or ``"arm"``."""
    features: tuple[str, ...]
    """What the processor must have, in LLVM's words."""
    operands: tuple[int, ...]
    """Width of each operand's words: 16, 32 or 64."""
    result: int
    """Width of the result's words."""
    body: str
    declarations: str = ""


@dataclass(frozen=True)
class Tile:
    """One instruction of AMX, on tiles of 16 rows of 64 bytes."""

    name: str
    features: tuple[str, ...]


_CONTROL = {
    "x86": """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

define internal i32 @control() noinline {
  %word = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %word)
  %value = load i32, ptr %word
  ret i32 %value
}

define internal void @set(i32 %value) noinline {
  %word = alloca i32
  store i32 %value, ptr %word
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  ret void
}

define internal i8 @raised() noinline {
  %value = call i32 @control()
  %low = trunc i32 %value to i8
  %flags = and i8 %low, 63
  ret i8 %flags
}
""",
    "arm": """
declare i64 @llvm.aarch64.get.fpcr()
declare i64 @llvm.aarch64.get.fpsr()
declare void @llvm.aarch64.set.fpcr(i64)
declare void @llvm.aarch64.set.fpsr(i64)

define internal i32 @control() noinline {
  %wide = call i64 @llvm.aarch64.get.fpcr()
  %value = trunc i64 %wide to i32
  ret i32 %value
}

define internal void @set(i32 %value) noinline {
  %wide = zext i32 %value to i64
  call void @llvm.aarch64.set.fpsr(i64 0)
  call void @llvm.aarch64.set.fpcr(i64 %wide)
  ret void
}

define internal i8 @raised() noinline {
  %wide = call i64 @llvm.aarch64.get.fpsr()
  %low = trunc i64 %wide to i8
  %flags = and i8 %low, 159
  ret i8 %flags
}
""",
}
"""How the control register is read and written; on x86 its low six bits are the flags, on Arm FPSR holds them."""

_LOOP = """
define void @execute(ptr %a, ptr %b, ptr %c, ptr %z, ptr %flags, i64 %n, i32 %wanted) {
entry:
  %before = call i32 @control()
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %step ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %step, label %done
step:
PLACES
  call void @set(i32 %wanted)
  call void @once(ptr %pa, ptr %pb, ptr %pc, ptr %pz)
  %seen = call i8 @raised()
  %pf = getelementptr i8, ptr %flags, i64 %i
  store i8 %seen, ptr %pf
  %next = add i64 %i, 1
  br label %head
done:
  call void @set(i32 %before)
  ret void
}
"""

_TILES = """
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @llvm.x86.INSTRUCTION(i8 immarg, i8 immarg, i8 immarg)

define void @execute(ptr %shapes, ptr %a, ptr %b, ptr %c, i64 %n) {
entry:
  call void @llvm.x86.ldtilecfg(ptr %shapes)
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %step ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %step, label %done
step:
  %offset = mul i64 %i, 1024
  %pa = getelementptr i8, ptr %a, i64 %offset
  %pb = getelementptr i8, ptr %b, i64 %offset
  %pc = getelementptr i8, ptr %c, i64 %offset
  call void @llvm.x86.tileloadd64(i8 0, ptr %pc, i64 64)
  call void @llvm.x86.tileloadd64(i8 1, ptr %pa, i64 64)
  call void @llvm.x86.tileloadd64(i8 2, ptr %pb, i64 64)
  call void @llvm.x86.INSTRUCTION(i8 0, i8 1, i8 2)
  call void @llvm.x86.tilestored64(i8 0, ptr %pc, i64 64)
  %next = add i64 %i, 1
  br label %head
done:
  call void @llvm.x86.tilerelease()
  ret void
}
"""


def host_machine() -> str:
    """Return ``"x86"``, ``"arm"``, or the name that Python has for another machine."""
    name = platform.machine().lower()
    return {"x86_64": "x86", "amd64": "x86", "aarch64": "arm", "arm64": "arm"}.get(name, name)


@functools.cache
def host_features() -> frozenset[str]:
    """Return what LLVM says that this processor, and its operating system, can do."""
    return frozenset(name for name, there in llvm.get_host_cpu_features().items() if there)


def missing(instruction: Instruction | Tile) -> str:
    """Return why this computer cannot execute an instruction; empty if it can."""
    machine = instruction.machine if isinstance(instruction, Instruction) else "x86"
    if machine != host_machine():
        return f"an instruction of {machine}, and this is {host_machine()}"
    lacking = [name for name in instruction.features if name not in host_features()]
    return f"the processor has no {', '.join(lacking)}" if lacking else ""


def execute(instruction: Instruction, operands: Sequence[Words], control: int) -> tuple[Words, Words]:
    """Execute an instruction on each element of arrays, and read its flags.

    Parameters
    ----------
    instruction : Instruction
        One that the processor has.
    operands : contiguous arrays of unsigned words [n]
    control : int
        What MXCSR or FPCR holds meanwhile; it is set anew, with no flag raised, before every element.

    Returns
    -------
    z : array of unsigned words [n]
    flags : uint8 array [n]
        On x86 the low six bits of MXCSR; on Arm FPSR's bits 0 to 4 and 7.
    """
    n = operands[0].size
    z, flags = np.empty(n, f"u{instruction.result // 8}"), np.empty(n, np.uint8)
    places = [x.ctypes.data for x in operands]
    _function(instruction)(*places, *[None] * (3 - len(places)), z.ctypes.data, flags.ctypes.data, n, control)
    return z, flags


def execute_tiles(tile: Tile, a: Words, b: Words, c: Words) -> Words:
    """Execute an instruction of AMX: arrays of 16 x 32-bit rows, [n, 16, 16]; return the new accumulators.

    A row of ``a`` holds pairs of neighbouring k, a row of ``b`` a pair for each column, as the instruction wants them.
    """
    shapes = np.zeros(64, np.uint8)  # Intel's manual, LDTILECFG: palette, 16 column sizes in bytes, 8 row counts
    shapes[0] = 1
    shapes[16:22:2] = 64
    shapes[48:51] = 16
    d = np.array(c, order="C")
    _function(tile)(shapes.ctypes.data, *(x.ctypes.data for x in (a, b, d)), len(d))
    return d


def control_word() -> int:
    """Return MXCSR or FPCR of the calling thread."""
    if host_machine() not in _CONTROL:
        raise ValueError(f"the control register of {host_machine()} is not known")
    asking = "define i32 @asking() {\n  %value = call i32 @control()\n  ret i32 %value\n}"
    engine = _engine(_CONTROL[host_machine()] + asking)
    return int(ctypes.CFUNCTYPE(ctypes.c_uint32)(engine.get_function_address("asking"))())


def assembly(instruction: Instruction | Tile, triple: str, cpu: str) -> str:
    """Return the machine code of an instruction's loop as text, for any processor that LLVM knows.

    Inline assembly can be translated for this machine's own family alone: for another, LLVM ends the process.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    module = llvm.parse_assembly(_source(instruction))
    return str(llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=2).emit_assembly(module))


def _source(instruction: Instruction | Tile) -> str:
    """Return a module whose function ``execute`` is a loop around the instruction."""
    if isinstance(instruction, Tile):
        return _TILES.replace("INSTRUCTION", instruction.name)
    widths = dict(zip("abc", instruction.operands, strict=False))
    loads = [f"  %{name} = load i{width}, ptr %p{name}" for name, width in widths.items()]
    once = [
        "define internal void @once(ptr %pa, ptr %pb, ptr %pc, ptr %pz) noinline {",
        *loads,
        instruction.body,
        f"  store i{instruction.result} %z, ptr %pz",
        "  ret void",
        "}",
    ]
    steps = {"a": 8, "b": 8, "c": 8} | widths | {"z": instruction.result}
    places = [f"  %p{name} = getelementptr i{width}, ptr %{name}, i64 %i" for name, width in steps.items()]
    loop = _LOOP.replace("PLACES", "\n".join(places))
    return "\n".join([_CONTROL[instruction.machine], instruction.declarations, *once, loop])


@functools.cache
def _engine(source: str) -> Any:
    """Return compiled code; it is kept, for functions must not outlive it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # without it LLVM ends the process at inline assembly
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2, jit=True
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(source), machine)
    engine.finalize_object()
    return engine


@functools.cache
def _function(instruction: Instruction | Tile) -> Any:
    """Return the compiled loop."""
    places = 4 if isinstance(instruction, Tile) else 5
    rest = [ctypes.c_int64] if isinstance(instruction, Tile) else [ctypes.c_int64, ctypes.c_uint32]
    address = _engine(_source(instruction)).get_function_address("execute")
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * places, *rest)(address)
