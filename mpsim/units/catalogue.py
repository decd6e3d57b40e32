"""Every matrix unit, found by device name."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, NamedTuple

from mpsim.blocks import BLOCK_CATALOGUE, BlockFormat, get_block_format
from mpsim.formats import FloatFormat, FormatLike, get_format
from mpsim.modes import nearest
from mpsim.units.amd import AMD
from mpsim.units.cpu import CPU
from mpsim.units.ideal import IDEAL
from mpsim.units.model import Family, InputsLike, MatrixUnit, UnitLike
from mpsim.units.nvidia import NVIDIA

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["NATIVE", "UNITS", "devices", "get", "is_block_format"]

UNITS: tuple[MatrixUnit, ...] = (*NVIDIA, *AMD, *CPU, *IDEAL)
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
    inputs: InputsLike | BlockFormat | None = None,
    out: FormatLike | None = None,
    instruction: str | None = None,
    scale: FormatLike | None = None,
    scale_block: int | None = None,
) -> MatrixUnit:
    """Return the row of a device's instruction.

    Parameters
    ----------
    unit : MatrixUnit or str
        A device, generation or compiler target in any case: ``"v100"``, ``"Volta"``, ``"sm_70"``; ``"native"`` is
        NumPy's float32 matmul. A MatrixUnit is returned as it is.
    inputs : format, block format, or a pair of formats
        Formats of the operands; unless given fp16, or the first that the device has. A block format such as
        ``"mxfp8_e4m3"`` or ``"nvfp4"`` means its elements with its scales.
    out : format
        Format of the result; unless given fp32, or the first that the device has for these inputs.
    instruction : str, optional
        Which instruction, where the device has several for these formats; by default the first of `UNITS`.
    scale : format, optional
        Format of the scales of a block-scaled instruction, ``"e8m0"`` or ``"ue4m3"``.
    scale_block : int, optional
        Elements along K that share a scale.

    Raises
    ------
    ValueError
        No such device, or the device has no such instruction; the message lists what there is. Also where a
        MatrixUnit comes with formats that are not its own.

    Examples
    --------
    >>> get("V100").block_length, get("sm_80", inputs="bf16").fraction_bits
    (4, 24)
    >>> str(get("b200", inputs="nvfp4"))
    'blackwell tcgen05.mma.block_scale.k64 (e2m1 x e2m1 with ue4m3/16 -> fp32)'
    """
    wanted = _wanted(inputs, scale, scale_block)
    result = None if out is None else get_format(out).name
    if isinstance(unit, MatrixUnit):
        _require_own_formats(unit, wanted, result)
        return unit
    if not isinstance(unit, str):
        raise TypeError(f"unit is {unit!r}; a MatrixUnit or the name of a device is needed")
    if _key(unit) == "native":
        return _native(wanted.pair or ("fp32", "fp32"), result or "fp32")
    return _find(unit, wanted, result, instruction)


_SEPARATORS = str.maketrans("", "", " -_")


class _Wanted(NamedTuple):
    """What a caller says about the operands."""

    pair: tuple[str, str] | None
    scale: str = ""
    block: int | None = None

    def fits(self, row: MatrixUnit) -> bool:
        """Return whether a row takes such operands."""
        own = self.pair in (None, (row.a, row.b)) and self.scale == row.scale
        return own and self.block in (None, row.scale_block)

    def __str__(self) -> str:
        pair = "any" if self.pair is None else self.pair[0] if len({*self.pair}) == 1 else " x ".join(self.pair)
        block = "" if self.block is None else f"/{self.block}"
        return f"{pair} with {self.scale}{block}" if self.scale else pair


def _wanted(inputs: InputsLike | BlockFormat | None, scale: FormatLike | None, scale_block: int | None) -> _Wanted:
    """Return what is said about the operands, with the names of formats as the rows have them."""
    scale_name = "" if scale is None else get_format(scale).name
    if scale_block is not None and not scale_name and not is_block_format(inputs):
        raise ValueError(f"scale_block is {scale_block} without scale; name the format of the scales, such as 'e8m0'")
    if inputs is None:
        return _Wanted(None, scale_name, scale_block)
    if isinstance(inputs, BlockFormat) or (isinstance(inputs, str) and is_block_format(inputs)):
        block = get_block_format(inputs)
        if not isinstance(block.element, FloatFormat):
            raise ValueError(f"inputs is {block}, whose elements are integers; no matrix unit takes them")
        name = block.element.name
        return _Wanted((name, name), scale_name or block.scale.name, scale_block or block.length)
    a, b = inputs if isinstance(inputs, tuple) else (inputs, inputs)
    return _Wanted((get_format(a).name, get_format(b).name), scale_name, scale_block)


def is_block_format(inputs: object) -> bool:
    """Return whether ``inputs`` is a block format, or the name of one."""
    if isinstance(inputs, BlockFormat):
        return True
    names = {name for fmt in BLOCK_CATALOGUE for name in (fmt.name, *fmt.aliases)}
    return isinstance(inputs, str) and inputs.strip().lower().replace("-", "_") in names


@functools.cache
def _native(pair: tuple[str, str], result: str) -> MatrixUnit:
    return dataclasses.replace(NATIVE, a=pair[0], b=pair[1], out=result, accumulators=(result,))


@functools.cache
def _find(unit: str, wanted: _Wanted, result: str | None, instruction: str | None) -> MatrixUnit:
    """Return the first row that fits, or say what there is."""
    rows = [row for row in UNITS if _key(unit) in map(_key, (row.architecture, *row.devices))]
    if not rows:
        near = nearest(_key(unit), map(_key, devices()))
        listed = [known for known in devices() if _key(known) in near] or devices()
        raise ValueError(f"unknown unit {unit!r}; nearest: {', '.join(listed)}")
    fitting = [row for row in rows if wanted.fits(row)]
    if wanted.pair is None:
        fitting = [row for row in fitting if (row.a, row.b) == ("fp16", "fp16")] or fitting
    if result is None:
        fitting = [row for row in fitting if row.out == "fp32"] or fitting
    else:
        fitting = [row for row in fitting if row.out == result]
    if not fitting:
        said = f"inputs {wanted} and out {result or 'fp32'}"
        offers = _joined(f"{row.shown_inputs} -> {row.out}" for row in rows if row.a == row.b)
        mixed = ", and mixed inputs" if any(row.a != row.b for row in rows) else ""
        raise ValueError(f"{unit} has no instruction for {said}; it has {offers}{mixed}")
    for row in fitting:
        if instruction is None or row.instruction == instruction.strip().lower():
            return row
    raise ValueError(
        f"{unit} has no instruction {instruction!r} for {fitting[0].shown_inputs} -> {fitting[0].out}; "
        f"it has {_joined(row.instruction for row in fitting)}"
    )


def _key(name: str) -> str:
    """Return a name without what people write in different ways."""
    return name.lower().translate(_SEPARATORS)


def _joined(names: Iterable[str]) -> str:
    """Return the different names, in order, as a list to read."""
    return ", ".join(dict.fromkeys(names))


def _require_own_formats(unit: MatrixUnit, wanted: _Wanted, result: str | None) -> None:
    if wanted.pair is not None and not wanted._replace(scale=wanted.scale or unit.scale).fits(unit):
        raise ValueError(f"inputs is {wanted}, but {unit} takes {unit.shown_inputs}")
    if result is not None and result != unit.out:
        raise ValueError(f"out is {result}, but {unit} gives {unit.out}")
