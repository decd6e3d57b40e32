"""Single matrix instructions of NVIDIA cards, recorded through the driver's own assembler.

The instruction stands in a small kernel in PTX, which the driver translates, so no CUDA compiler is needed. One warp
makes one product. The host lays operands out in the registers of the 32 lanes (PTX ISA, "Matrix Fragments for
mma.m16n8k16" and kin).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim.formats import get_format
from mpsim.hardware.fixed_designs import LENGTH, fixed_designs
from mpsim.hardware.operands import dot_operands, fp32_accumulators
from mpsim.hardware.recordings import RecordedSet

__all__ = ["INSTRUCTIONS", "Mma", "packed", "ptx", "sets", "unpacked"]

_Words = NDArray[np.uint32]
_Codes = NDArray[Any]


@dataclass(frozen=True)
class Mma:
    """One form of ``mma.sync`` with an fp32 accumulator: m = 16, n = 8."""

    k: int
    inputs: str
    ptx_name: str
    """PTX's name of the format of inputs."""
    target: str
    """The oldest architecture that has it."""
    version: str = "7.0"
    """The oldest PTX that has it."""

    @property
    def elements(self) -> int:
        """Elements of A and B in a register of 32 bits."""
        return self.k // 8

    @property
    def name(self) -> str:
        """Name as in `mpsim.units`."""
        return f"mma.m16n8k{self.k}"


INSTRUCTIONS = (
    Mma(16, "fp16", "f16", "sm_80"),
    Mma(16, "bf16", "bf16", "sm_80"),
    Mma(8, "tf32", "tf32", "sm_80"),
    Mma(32, "e4m3", "e4m3", "sm_89", "8.4"),
    Mma(32, "e5m2", "e5m2", "sm_89", "8.4"),
)


def ptx(mma: Mma) -> str:
    """Return a kernel ``product(a, b, c, d)`` that each warp executes once, on its part of the arrays of registers."""
    names = {"a": 4, "b": 2, "c": 4, "d": 4}
    registers = {x: [f"%{x}{i}" for i in range(n)] for x, n in names.items()}
    lists = {x: "{" + ", ".join(names) + "}" for x, names in registers.items()}
    lines = [
        f".version {mma.version}",
        f".target {mma.target}",
        ".address_size 64",
        ".visible .entry product(" + ", ".join(f".param .u64 p{x}" for x in names) + ")",
        "{",
        "  .reg .b32 %tile, %lane, %at, " + ", ".join(r for x in "ab" for r in registers[x]) + ";",
        "  .reg .f32 " + ", ".join(r for x in "cd" for r in registers[x]) + ";",
        "  .reg .b64 %wide, %offset, " + ", ".join(f"%base{x}" for x in names) + ";",
        "  mov.u32 %tile, %ctaid.x;",
        "  mov.u32 %lane, %tid.x;",
        "  mad.lo.u32 %at, %tile, 32, %lane;",
        "  cvt.u64.u32 %wide, %at;",
    ]
    for x, count in names.items():
        lines += [
            f"  ld.param.u64 %base{x}, [p{x}];",
            f"  mul.lo.u64 %offset, %wide, {4 * count};",
            f"  add.u64 %base{x}, %base{x}, %offset;",
        ]
    for x in "abc":
        kind = "f32" if x == "c" else "b32"
        lines += [f"  ld.global.{kind} {r}, [%base{x} + {4 * i}];" for i, r in enumerate(registers[x])]
    kinds = f"f32.{mma.ptx_name}.{mma.ptx_name}.f32"
    operands = ", ".join(lists[x] for x in "dabc")
    lines.append(f"  mma.sync.aligned.m16n8k{mma.k}.row.col.{kinds} {operands};")
    lines += [f"  st.global.f32 [%based + {4 * i}], {r};" for i, r in enumerate(registers["d"])]
    return "\n".join([*lines, "  ret;", "}", ""])


def _places(mma: Mma) -> tuple[Any, Any, Any]:
    """Return row and column of what lies in each lane, register and part of a register, for A, B and C."""
    lane, e = np.arange(32), mma.elements
    group, member = (lane >> 2)[:, None, None], (lane & 3)[:, None, None]
    part, register = np.arange(e)[None, None, :], np.arange(4)[None, :, None]
    a = group + 8 * (register & 1), member * e + part + (register >> 1) * 4 * e
    b = member * e + part + register[:, :2] * 4 * e, group + 0 * (part + register[:, :2])
    register = np.arange(4)[None, :]
    c = group[..., 0] + 8 * (register >> 1), member[..., 0] * 2 + (register & 1)
    return a, b, c


def packed(mma: Mma, a: _Codes, b: _Codes, c: _Words) -> tuple[_Words, _Words, _Words]:
    """Return operands [T, 16, k], [T, k, 8] and [T, 16, 8] as registers [T, 32, 4], [T, 32, 2] and [T, 32, 4]."""
    in_a, in_b, in_c = _places(mma)
    shifts = (np.arange(mma.elements) * (32 // mma.elements)).astype(np.uint32)

    def joined(parts: _Codes) -> _Words:
        words: _Words = np.bitwise_or.reduce(parts.astype(np.uint32) << shifts, axis=-1)
        return np.ascontiguousarray(words)

    return joined(a[:, *in_a]), joined(b[:, *in_b]), np.ascontiguousarray(c[:, *in_c])


def unpacked(mma: Mma, registers: _Words) -> _Words:
    """Return results [T, 16, 8] from registers [T, 32, 4]."""
    d = np.empty((len(registers), 16, 8), np.uint32)
    d[:, *_places(mma)[2]] = registers
    return d


def sets(torch: Any, device: str, inputs: Sequence[str], unit: str | None, seed: int) -> list[RecordedSet]:
    """Record every instruction that a card has, on the designs and on random tiles, with accumulators.

    Raises
    ------
    RuntimeError
        The driver refuses.
    OSError
        There is no driver.
    """
    properties = torch.cuda.get_device_properties(device)
    capability = 10 * properties.major + properties.minor
    found = []
    for mma in INSTRUCTIONS:
        if mma.inputs not in inputs or capability < int(mma.target.removeprefix("sm_")):
            continue
        a, b, c = _tiles(mma, seed)
        d = unpacked(mma, _launched(torch, device, mma, packed(mma, a, b, c)))
        facts = {"unit": unit, "inputs": mma.inputs, "out": "fp32", "instruction": mma.name}
        arrays = {"a": a, "b": b, "c": c, "d": d}
        found.append(RecordedSet(name=f"{mma.name} {mma.inputs}", kind="instruction", arrays=arrays, facts=facts))
    return found


def _tiles(mma: Mma, seed: int) -> tuple[_Codes, _Codes, _Words]:
    """Return the beginnings of the designs, cut to k, and random tiles."""
    fmt, rng = get_format(mma.inputs), np.random.default_rng(seed)
    left, right = (x.reshape(-1, LENGTH)[:, : mma.k] for x in fixed_designs(fmt, fmt))
    t = -(-len(left) // 8)
    rows, columns = np.resize(left, (t, 16, mma.k)), np.swapaxes(np.resize(right, (t, 8, mma.k)), 1, 2)
    c = fp32_accumulators(rng, t * 128).reshape(t, 16, 8)
    x, y, z = dot_operands(rng, fmt, (120, 16, mma.k, 8))
    a, b, c = np.concatenate([rows, x]), np.concatenate([columns, y]), np.concatenate([c, z])
    return (a << 13, b << 13, c) if mma.inputs == "tf32" else (a, b, c)


def _launched(torch: Any, device: str, mma: Mma, registers: tuple[_Words, _Words, _Words]) -> _Words:
    """Return the registers of the results."""
    driver = ctypes.CDLL("libcuda.so.1")
    torch.zeros(1, device=device)  # makes the context

    def call(name: str, *arguments: Any) -> None:
        if code := getattr(driver, name)(*arguments):
            raise RuntimeError(f"{name} failed with code {code} for {mma.name} on {mma.inputs}")

    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), ptx(mma).encode() + b"\0")
    call("cuModuleGetFunction", ctypes.byref(function), module, b"product")
    tensors = [torch.from_numpy(x.view(np.int32)).to(device) for x in registers]
    tensors.append(torch.empty_like(tensors[2]))
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    addresses = (ctypes.c_void_p * 4)(*(ctypes.cast(ctypes.pointer(p), ctypes.c_void_p) for p in pointers))
    torch.cuda.synchronize(device)
    call("cuLaunchKernel", function, len(registers[0]), 1, 1, 32, 1, 1, 0, None, addresses, None)
    torch.cuda.synchronize(device)
    call("cuModuleUnload", module)
    words: _Words = tensors[3].cpu().numpy().view(np.uint32)
    return words
