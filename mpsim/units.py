"""Matrix units as data: one row for each real instruction, found by device name."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from mpsim.formats import FloatFormat, FormatLike, get_format

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["NATIVE", "UNITS", "Family", "InputsLike", "MatrixUnit", "UnitLike", "ZeroTerms", "devices", "get"]


class Family(enum.StrEnum):
    """How a unit adds the products."""

    FUSED = "fused"
    """Blocks of products and the accumulator, aligned, truncated and summed exactly (NVIDIA tensor cores)."""
    NATIVE = "native"
    """NumPy's float32 matmul: not emulated, and not the same bits on every computer."""


class ZeroTerms(enum.StrEnum):
    """What a product or accumulator that is zero does to the alignment of the others."""

    DROP = "drop"
    """Nothing: only nonzero terms are aligned to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixUnit:
    """One matrix instruction: what comes in, what comes out, and how its adder cuts and rounds.

    A row is plain data, so ``dataclasses.replace(unit, fraction_bits=20)`` is a unit that might have been.
    """

    family: Family
    architecture: str
    """Name of the generation, such as ``"ampere"``."""
    devices: tuple[str, ...] = ()
    """Products, boards and compiler targets that have this instruction."""
    instruction: str
    a: str
    """Format of the left operand."""
    b: str
    """Format of the right operand."""
    out: str
    """Format of the result, and of the accumulator between blocks and instructions."""
    accumulators: tuple[str, ...] = ()
    """Formats in which ``c`` may come; a narrower one than ``out`` is widened first."""
    k: int = 0
    """Products of one instruction."""
    block_length: int = 0
    """Products that are summed at once; an instruction of larger ``k`` chains blocks in increasing k."""
    fraction_bits: int = 0
    """Bits kept below the largest exponent when terms are aligned; what lies lower is cut off."""
    result_precision: int = 24
    """Significand bits, the hidden bit included, that the conversion of a block's sum keeps."""
    rounding: str = "toward-zero"
    """How the block's sum is converted: ``"toward-zero"`` or ``"nearest-even"``; overflow is an infinity in both."""
    integer_bits: int = 0
    """Width of the adder left of the point, which decides the alignment floor."""
    alignment_floor: int | None = None
    """Smallest exponent that terms are aligned to; None: ``emin`` of the result less ``integer_bits``."""
    zero_terms: ZeroTerms = ZeroTerms.DROP
    evidence: str = "E"
    """A: recordings replayed; B: validated on devices by two groups; C: by one; D: vendor document; E: inferred."""
    source: str = ""

    def __post_init__(self) -> None:
        if self.family is Family.FUSED:
            if self.block_length < 1 or not 1 <= self.fraction_bits <= 46:
                raise ValueError(
                    f"{self}: block_length = {self.block_length}, fraction_bits = {self.fraction_bits}; "
                    "they must be at least 1, and fraction_bits at most 46"
                )
            if self.rounding not in ("toward-zero", "nearest-even"):
                raise ValueError(f"{self}: rounding is {self.rounding!r}; it must be 'toward-zero' or 'nearest-even'")
            if not 1 <= self.result_precision <= get_format(self.out).p:
                raise ValueError(
                    f"{self}: result_precision = {self.result_precision} is not a precision within {self.out}"
                )

    @property
    def floor(self) -> int:
        """Smallest exponent that terms are aligned to."""
        if self.alignment_floor is not None:
            return self.alignment_floor
        return get_format(self.out).emin - self.integer_bits

    @property
    def inputs(self) -> tuple[FloatFormat, FloatFormat]:
        """Formats of the two operands."""
        return get_format(self.a), get_format(self.b)

    def __str__(self) -> str:
        return f"{self.architecture} {self.instruction} ({self.a} x {self.b} -> {self.out})"


UnitLike: TypeAlias = "MatrixUnit | str"
InputsLike: TypeAlias = "FormatLike | tuple[FormatLike, FormatLike]"

_SOURCES = {
    "A": "recorded results of MATLAB-tensor-core (Khattak and Mikaitis); models of arXiv 2512.07004 and 2511.10909",
    "B": "MMA-Sim, arXiv 2511.10909 v2; Khattak and Mikaitis, arXiv 2512.07004 v2",
    "C": "MMA-Sim, arXiv 2511.10909 v2",
}

_DEVICES = {
    "volta": ("v100", "sm_70"),
    "turing": ("t4", "sm_75"),
    "ampere": ("a100", "a2", "sm_80", "sm_86"),
    "ada": ("rtx-1000-ada", "rtx-4060", "rtx-4090", "l40s", "sm_89"),
    "hopper": ("h100", "h200", "sm_90"),
    "blackwell": ("b200", "sm_100"),
    "rtx-blackwell": ("rtx-5090", "rtx-pro-6000", "sm_120"),
}

_INTEGER_BITS = {"volta": 5, "turing": 6, "ampere": 6, "ada": 6, "hopper": 7, "blackwell": 7, "rtx-blackwell": 7}
"""Measured through the alignment floor: A100 and H100 (fp32), V100, A100, Ada, H100 and B200 (fp16)."""


def _fused(
    architecture: str, instruction: str, inputs: str, out: str, k: int, length: int, bits: int, evidence: str
) -> MatrixUnit:
    """Return the row of a 16-bit or tf32 instruction of an NVIDIA tensor core; two inputs have a blank between."""
    a, b = (inputs.split() * 2)[:2]
    return MatrixUnit(
        family=Family.FUSED,
        architecture=architecture,
        devices=_DEVICES[architecture],
        instruction=instruction,
        a=a,
        b=b,
        out=out,
        accumulators=("fp32", "fp16") if instruction == "mma.m8n8k4" and out == "fp32" else (out,),
        k=k,
        block_length=length,
        fraction_bits=bits,
        result_precision=get_format(out).p,
        rounding="toward-zero" if out == "fp32" else "nearest-even",
        integer_bits=_INTEGER_BITS[architecture],
        evidence=evidence,
        source=_SOURCES[evidence],
    )


def _hopper_like(architecture: str, evidence: str) -> list[MatrixUnit]:
    """Return the warp-level rows of the generations whose adder takes 16 products and keeps 25 fraction bits."""
    return [
        *(
            _fused(architecture, f"mma.m16n8k{k}", inputs, out, k, k, 25, evidence if k == 16 else "C")
            for k in (16, 8)
            for inputs, out in (("fp16", "fp32"), ("fp16", "fp16"), ("bf16", "fp32"))
        ),
        _fused(architecture, "mma.m16n8k8", "tf32", "fp32", 8, 8, 25, "C" if architecture == "blackwell" else "B"),
        _fused(architecture, "mma.m16n8k4", "tf32", "fp32", 4, 4, 25, evidence),
    ]


def _ampere_like(architecture: str) -> list[MatrixUnit]:
    """Return the rows of the generations whose adder takes 8 products and keeps 24 fraction bits."""
    return [
        *(
            _fused(architecture, f"mma.m16n8k{k}", inputs, out, k, 8, 24, "A")
            for k in (16, 8)
            for inputs, out in (("fp16", "fp32"), ("fp16", "fp16"), ("bf16", "fp32"))
        ),
        *(_fused(architecture, f"mma.m16n8k{k}", "tf32", "fp32", k, 4, 24, "A") for k in (8, 4)),
    ]


UNITS: tuple[MatrixUnit, ...] = (
    _fused("volta", "mma.m8n8k4", "fp16", "fp32", 4, 4, 23, "A"),
    _fused("volta", "mma.m8n8k4", "fp16", "fp16", 4, 4, 23, "A"),
    _fused("turing", "mma.m16n8k8", "fp16", "fp32", 8, 8, 24, "C"),
    _fused("turing", "mma.m16n8k8", "fp16", "fp16", 8, 8, 24, "C"),
    _fused("turing", "mma.m8n8k4", "fp16", "fp32", 4, 4, 24, "C"),
    _fused("turing", "mma.m8n8k4", "fp16", "fp16", 4, 4, 24, "C"),
    *_ampere_like("ampere"),
    *_ampere_like("ada"),
    *_hopper_like("hopper", "A"),
    *(
        _fused("hopper", f"wgmma.m64n8k{k}", inputs, out, k, k, 25, "B")
        for inputs, out, k in (("fp16", "fp32", 16), ("fp16", "fp16", 16), ("bf16", "fp32", 16), ("tf32", "fp32", 8))
    ),
    *_hopper_like("blackwell", "A"),
    *(
        _fused("blackwell", f"tcgen05.mma.k{k}", inputs, out, k, k, 25, "C")
        for inputs, out, k in (
            ("fp16", "fp32", 16),
            ("fp16", "fp16", 16),
            ("bf16", "fp32", 16),
            ("fp16 bf16", "fp32", 16),
            ("tf32", "fp32", 8),
        )
    ),
    *_hopper_like("rtx-blackwell", "B"),
)
"""Every emulated instruction; of several that fit a question, the first is the answer."""

NATIVE = MatrixUnit(
    family=Family.NATIVE,
    architecture="native",
    instruction="numpy.matmul",
    a="fp32",
    b="fp32",
    out="fp32",
    accumulators=("fp32",),
    source="NumPy's BLAS: float32 arithmetic in an order that differs between computers",
)
"""NumPy's float32 matmul, for comparison: not emulated."""


def devices() -> tuple[str, ...]:
    """Return every name that `get` knows: generations, their products and compiler targets, and ``"native"``."""
    names = dict.fromkeys(name for unit in UNITS for name in (unit.architecture, *unit.devices))
    return (*names, "native")


def get(
    unit: UnitLike,
    inputs: InputsLike | None = None,
    out: FormatLike | None = None,
    instruction: str | None = None,
) -> MatrixUnit:
    """Return the row of a device's instruction.

    Parameters
    ----------
    unit : MatrixUnit or str
        A device, generation or compiler target in any case: ``"v100"``, ``"Volta"``, ``"sm_70"``; ``"native"`` is
        NumPy's float32 matmul. A MatrixUnit is returned as it is.
    inputs : format, or a pair of formats
        Formats of the operands; fp16 unless given, fp32 for ``"native"``.
    out : format
        Format of the result; fp32 unless given.
    instruction : str, optional
        Which instruction, where the device has several for these formats; by default the first of `UNITS`.

    Raises
    ------
    ValueError
        No such device, or the device has no such instruction; the message lists what there is. Also where a
        MatrixUnit comes with formats that are not its own.

    Examples
    --------
    >>> get("V100").block_length, get("sm_80", inputs="bf16").fraction_bits
    (4, 24)
    """
    if isinstance(unit, MatrixUnit):
        _require_own_formats(unit, inputs, out)
        return unit
    if not isinstance(unit, str):
        raise TypeError(f"unit is {unit!r}; a MatrixUnit or the name of a device is needed")
    native = _key(unit) == "native"
    pair = _pair(inputs if inputs is not None else "fp32" if native else "fp16")
    result = "fp32" if out is None else get_format(out).name
    if native:
        return _native(pair, result)
    return _find(unit, pair, result, instruction)


@functools.cache
def _native(pair: tuple[str, str], result: str) -> MatrixUnit:
    return dataclasses.replace(NATIVE, a=pair[0], b=pair[1], out=result, accumulators=(result,))


@functools.cache
def _find(unit: str, pair: tuple[str, str], result: str, instruction: str | None) -> MatrixUnit:
    """Return the first row that fits, or say what there is."""
    rows = [row for row in UNITS if _key(unit) in map(_key, (row.architecture, *row.devices))]
    if not rows:
        near = difflib.get_close_matches(_key(unit), map(_key, devices()), n=4, cutoff=0.4)
        listed = [known for known in devices() if _key(known) in near] or devices()
        raise ValueError(f"unknown unit {unit!r}; nearest: {', '.join(listed)}")
    wanted = [row for row in rows if (row.a, row.b) == pair and row.out == result]
    if not wanted:
        offers = _joined(f"{_shown((row.a, row.b))} -> {row.out}" for row in rows)
        raise ValueError(f"{unit} has no instruction for inputs {_shown(pair)} and out {result}; it has {offers}")
    for row in wanted:
        if instruction is None or row.instruction == instruction.strip().lower():
            return row
    raise ValueError(
        f"{unit} has no instruction {instruction!r} for {_shown(pair)} -> {result}; "
        f"it has {_joined(row.instruction for row in wanted)}"
    )


def _key(name: str) -> str:
    """Return a name without what people write in different ways."""
    return name.strip().lower().replace(" ", "-").replace("_", "-")


def _joined(names: Iterable[str]) -> str:
    """Return the different names, in order, as a list to read."""
    return ", ".join(dict.fromkeys(names))


def _pair(inputs: InputsLike) -> tuple[str, str]:
    a, b = inputs if isinstance(inputs, tuple) else (inputs, inputs)
    return get_format(a).name, get_format(b).name


def _shown(pair: tuple[str, str]) -> str:
    return pair[0] if pair[0] == pair[1] else f"{pair[0]} x {pair[1]}"


def _require_own_formats(unit: MatrixUnit, inputs: InputsLike | None, out: FormatLike | None) -> None:
    if inputs is not None and _pair(inputs) != (unit.a, unit.b):
        raise ValueError(f"inputs is {_shown(_pair(inputs))}, but {unit} takes {_shown((unit.a, unit.b))}")
    if out is not None and get_format(out).name != unit.out:
        raise ValueError(f"out is {get_format(out)}, but {unit} gives {unit.out}")
