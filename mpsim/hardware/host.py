"""Instructions of the processor at hand, executed and recorded, one group after another.

Each group yields sets of a recording (`mpsim.hardware.recordings`), so that the same replay checks them and recordings
from elsewhere. Of a group whose instruction is missing `unavailable` says so; executing it would end the process.
"""

from __future__ import annotations

import ctypes
import datetime
import itertools
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim.formats import FloatFormat, get_format
from mpsim.hardware.operands import boundaries, dot_operands, operands, specials, tininess_edges
from mpsim.hardware.recordings import RecordedSet, Recording
from mpsim.hardware.registers import flags_of
from mpsim_kernels import host_arm, host_x86
from mpsim_kernels.host_code import Instruction, Tile, execute, execute_tiles, missing

__all__ = ["GROUPS", "Group", "Plan", "processor", "record_host", "unavailable"]

_Codes = NDArray[Any]
_CHUNK = 1 << 22
_DENSE = 15629
"""A prime: every so many-th float32 word is converted, from another start in each setting."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is executed."""

    seed: int = 0
    count: int = 1 << 16
    """Random cases of each setting."""
    exhaustive: bool = False
    """Convert all 2^32 float32 words, rather than boundaries, every 15629th and random ones."""
    dense: bool = True
    """Convert the boundaries and every 15629th word; without it, a small recording is made of random ones alone."""


@dataclass(frozen=True)
class Group:
    """Instructions that are checked together."""

    title: str
    instruction: Instruction | Tile
    """One of them, which the processor has if it has any."""
    sets: Callable[[Plan], Iterator[RecordedSet]]


def unavailable(group: Group) -> str:
    """Return why this processor cannot execute a group; empty if it can."""
    why = missing(group.instruction)
    if not why and isinstance(group.instruction, Tile):
        why = _tiles_permitted()
    return why


def record_host(plan: Plan | None = None) -> Recording:
    """Execute every group that this processor has, and return what it answered.

    Parameters
    ----------
    plan : Plan, optional
        By default a small recording: 200 random cases of each setting, not dense.

    Raises
    ------
    ValueError
        The processor has no instruction of any group.
    """
    chosen = plan or Plan(count=200, dense=False)
    sets = [part for group in GROUPS.values() if not unavailable(group) for part in group.sets(chosen)]
    if not sets:
        raise ValueError("this processor has no instruction that mpsim knows: " + unavailable(GROUPS["vcvtps2ph"]))
    software = {"system": platform.platform(), "numpy": np.__version__, "python": platform.python_version()}
    today = datetime.date.today().isoformat()
    return Recording(
        device=processor(), sets=tuple(sets), software=software, recorded=today, note=f"seed {chosen.seed}"
    )


def processor() -> str:
    """Return what the operating system calls this processor."""
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
        facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
        if "model name" in facts:
            ids = " ".join(facts.get(name, "?") for name in ("cpu family", "model", "stepping"))
            return f"{facts['model name']}, family model stepping {ids}"
    return platform.processor() or platform.machine()


def _tiles_permitted() -> str:
    """Ask Linux for the use of tiles, which a process must do; return why not, empty if granted."""
    if sys.platform != "linux":
        return "tiles are asked for under Linux only"
    arch_prctl, request, tile_data = 158, 0x1023, 18
    refused = ctypes.CDLL(None).syscall(arch_prctl, request, tile_data)
    return "the system does not permit tiles" if refused else ""


def _words(plan: Plan, target: FloatFormat, setting: int) -> Iterator[_Codes]:
    """Yield float32 words for a conversion, in parts that fit into memory."""
    fp32 = get_format("fp32")
    if plan.exhaustive:
        for start in range(0, 1 << 32, _CHUNK):
            yield np.arange(start, start + _CHUNK, dtype=np.uint64).astype(np.uint32)
        return
    rng = np.random.default_rng((plan.seed, setting))
    parts = [operands(rng, fp32, plan.count, 1)[0], specials(fp32), tininess_edges(fp32, target)]
    if plan.dense:
        parts += [boundaries(fp32, target), np.arange(setting * 61, 1 << 32, _DENSE, dtype=np.uint64).astype(np.uint32)]
    else:
        parts += [rng.choice(boundaries(fp32, target), plan.count)]
    yield np.concatenate(parts)


def _conversion(
    instruction: Instruction, control: int, x: _Codes, formats: tuple[str, str], name: str, **facts: Any
) -> RecordedSet:
    """Execute a conversion and return its results, with flags where the options are followed by flags."""
    z, raised = execute(instruction, [x], control)
    names = host_arm.FLAGS if instruction.machine == "arm" else host_x86.FLAGS
    return RecordedSet(
        name=name,
        kind="conversion",
        arrays={"x": x, "z": z, "flags": flags_of(raised, names)},
        facts={"instruction": instruction.name.split(" imm")[0], "source": formats[0], "target": formats[1], **facts},
    )


def _vcvtps2ph(plan: Plan) -> Iterator[RecordedSet]:
    """Yield every direction by MXCSR, and by the immediate operand while MXCSR says another; with and without DAZ."""
    ways = (True,) if plan.exhaustive else (True, False)
    settings = itertools.product(enumerate(host_x86.DIRECTIONS), (False, True), ways)
    for number, ((r, rounding), daz, by_register) in enumerate(settings):
        instruction = host_x86.VCVTPS2PH[4 if by_register else r]
        control = host_x86.control(r if by_register else 3 - r, daz, flush=by_register)
        options = {"rounding": rounding, "nan": "x86", "subnormal_inputs_as_zero": daz}
        name = f"{instruction.name}/{rounding}{'/daz' if daz else ''}"
        for i, x in enumerate(_words(plan, get_format("fp16"), number)):
            formats = "fp32", "fp16"
            yield _conversion(instruction, control, x, formats, f"{name}/{i}", options=options, denormal=True)


def _vcvtph2ps(plan: Plan) -> Iterator[RecordedSet]:
    """Yield all codes under FTZ and DAZ, which have no effect; without ``dense``, some of them."""
    codes = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    if not plan.dense:
        chosen = np.random.default_rng(plan.seed).choice(codes, 4 * plan.count)
        codes = np.concatenate([chosen, specials(get_format("fp16"))])
    for daz, ftz in itertools.product((False, True), repeat=2):
        name = f"vcvtph2ps{'/daz' if daz else ''}{'/ftz' if ftz else ''}"
        control = host_x86.control(0, daz, ftz)
        yield _conversion(host_x86.VCVTPH2PS, control, codes, ("fp16", "fp32"), name, options={"nan": "x86"})


def _vcvtneps2bf16(plan: Plan) -> Iterator[RecordedSet]:
    """Yield conversions under settings of MXCSR that have no effect; no flag is raised."""
    options = {"nan": "x86", "subnormal_inputs_as_zero": True}
    for r in (0,) if plan.exhaustive else range(4):
        for i, x in enumerate(_words(plan, get_format("bf16"), r)):
            control, formats = host_x86.control(r, r == 1, r == 2), ("fp32", "bf16")
            name = f"vcvtneps2bf16/{r}/{i}"
            yield _conversion(host_x86.VCVTNEPS2BF16, control, x, formats, name, options=options, silent=True)


def _vdpbf16ps(plan: Plan) -> Iterator[RecordedSet]:
    """Yield dot products of pairs under settings of MXCSR that have no effect."""
    for r in range(4):
        rng = np.random.default_rng((plan.seed, r))
        a, b, c = dot_operands(rng, get_format("bf16"), (-(-plan.count // 64), 8, 2, 8))
        yield _pairs(host_x86.VDPBF16PS, "avx512-bf16", "vdpbf16ps", a, b, c, host_x86.control(r, r == 1, r == 2))


def _pairs(
    instruction: Instruction, unit: str, name: str, a: _Codes, b: _Codes, c: _Codes, control: int
) -> RecordedSet:
    """Execute one instruction for each element of products with K = 2."""
    left = a[..., 0].astype(np.uint32) | a[..., 1].astype(np.uint32) << 16
    right = b[:, 0].astype(np.uint32) | b[:, 1].astype(np.uint32) << 16
    spread = [np.ascontiguousarray(np.broadcast_to(x, c.shape)).ravel() for x in (left[:, :, None], right[:, None, :])]
    d, _ = execute(instruction, [*spread, np.ascontiguousarray(c).ravel()], control)
    return RecordedSet(
        name=f"{name}/{control:#x}",
        kind="instruction",
        arrays={"a": a, "b": b, "c": c, "d": d.reshape(c.shape)},
        facts={"unit": unit, "inputs": "bf16", "out": "fp32", "instruction": name, "nan": "bits"},
    )


def _scalar(
    instructions: dict[str, Instruction], fmt: FloatFormat, honours_flush: bool
) -> Callable[[Plan], Iterator[RecordedSet]]:
    """Return a maker of arithmetic in every rounding, with and without DAZ and FTZ."""

    def sets(plan: Plan) -> Iterator[RecordedSet]:
        settings = list(itertools.product(enumerate(host_x86.DIRECTIONS), (False, True), (False, True)))
        for number, (operation, instruction) in enumerate(instructions.items()):
            rng = np.random.default_rng((plan.seed, number))
            arguments = operands(rng, fmt, plan.count, len(instruction.operands))
            for (r, rounding), daz, ftz in settings:
                z, raised = execute(instruction, arguments, host_x86.control(r, daz, ftz))
                options: dict[str, Any] = {"rounding": rounding, "nan": "x86"}
                options |= {
                    "subnormal_inputs_as_zero": daz and honours_flush,
                    "flush_subnormals": ftz and honours_flush,
                }
                parts = dict(zip("abc", arguments, strict=False)) | {"z": z, "flags": flags_of(raised, host_x86.FLAGS)}
                facts = {"instruction": instruction.name, "operation": operation, "format": fmt.name}
                yield RecordedSet(
                    name=f"{instruction.name}/{rounding}{'/daz' if daz else ''}{'/ftz' if ftz else ''}",
                    kind="arithmetic",
                    arrays=parts,
                    facts={**facts, "options": options, "denormal": True},
                )

    return sets


def _tile(tile: Tile, inputs: str) -> Callable[[Plan], Iterator[RecordedSet]]:
    """Return a maker of AMX products."""

    def sets(plan: Plan) -> Iterator[RecordedSet]:
        rng = np.random.default_rng(plan.seed)
        a, b, c = dot_operands(rng, get_format(inputs), (-(-plan.count // 256), 16, 32, 16))
        left = np.ascontiguousarray(a).view(np.uint32)
        right = np.ascontiguousarray(b[:, 0::2].astype(np.uint32) | b[:, 1::2].astype(np.uint32) << 16)
        d = execute_tiles(tile, left, right, c)
        facts = {"unit": "amx", "inputs": inputs, "out": "fp32", "instruction": tile.name, "nan": "any"}
        yield RecordedSet(name=tile.name, kind="instruction", arrays={"a": a, "b": b, "c": c, "d": d}, facts=facts)

    return sets


def _fcvt(plan: Plan) -> Iterator[RecordedSet]:
    """Yield Arm's conversions between float32 and FP16; it finds tininess before rounding."""
    for r, rounding in enumerate(host_arm.DIRECTIONS):
        options = {"rounding": rounding, "nan": "x86", "tininess": "before"}
        for i, x in enumerate(_words(plan, get_format("fp16"), r)):
            name = f"fcvt/{rounding}/{i}"
            yield _conversion(
                host_arm.FCVT_NARROW, host_arm.control(r), x, ("fp32", "fp16"), name, options=options, nan="any"
            )
    codes = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    options = {"nan": "x86"}
    control = host_arm.control(0)
    yield _conversion(host_arm.FCVT_WIDEN, control, codes, ("fp16", "fp32"), "fcvt/widen", options=options, nan="any")


def _bfdot(plan: Plan) -> Iterator[RecordedSet]:
    """Yield Arm's dot products of pairs."""
    a, b, c = dot_operands(np.random.default_rng(plan.seed), get_format("bf16"), (-(-plan.count // 64), 8, 2, 8))
    yield _pairs(host_arm.BFDOT, "arm-bf16", "bfdot", a, b, c, host_arm.control(0))


GROUPS: dict[str, Group] = {
    "vcvtps2ph": Group("float32 to FP16, x86", host_x86.VCVTPS2PH[4], _vcvtps2ph),
    "vcvtph2ps": Group("FP16 to float32, x86", host_x86.VCVTPH2PS, _vcvtph2ps),
    "float32": Group(
        "float32 arithmetic, x86", host_x86.FLOAT32["fma"], _scalar(host_x86.FLOAT32, get_format("fp32"), True)
    ),
    "vcvtneps2bf16": Group("float32 to BF16, x86", host_x86.VCVTNEPS2BF16, _vcvtneps2bf16),
    "vdpbf16ps": Group("BF16 dot products, x86", host_x86.VDPBF16PS, _vdpbf16ps),
    "float16": Group(
        "FP16 arithmetic, x86", host_x86.FLOAT16["add"], _scalar(host_x86.FLOAT16, get_format("fp16"), False)
    ),
    "tdpbf16ps": Group("BF16 tiles, x86 AMX", host_x86.TDPBF16PS, _tile(host_x86.TDPBF16PS, "bf16")),
    "tdpfp16ps": Group("FP16 tiles, x86 AMX", host_x86.TDPFP16PS, _tile(host_x86.TDPFP16PS, "fp16")),
    "fcvt": Group("float32 to FP16 and back, Arm", host_arm.FCVT_NARROW, _fcvt),
    "bfdot": Group("BF16 dot products, Arm", host_arm.BFDOT, _bfdot),
}
"""Every group by name, in the order in which they are checked."""
