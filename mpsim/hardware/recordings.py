"""Recordings: what a machine was given, bit for bit, and what it answered.

A recording is one ``.npz`` file that says itself what is in it. Its array ``meta`` is a string of JSON::

    {"mpsim_recording": 1,
     "device": "NVIDIA H100 PCIe",               what computed
     "software": {"torch": "2.13.0", ...},       drivers and libraries, by name
     "recorded": "2026-12-02",
     "note": "seed 0",
     "sets": [{"name": "fp16/tiles", "kind": "instruction", "unit": "h100", "inputs": "fp16", "out": "fp32",
               "arrays": {"a": "0/fp16/tiles/a", "b": "0/fp16/tiles/b", "d": "0/fp16/tiles/d"}}, ...]}

Each set is of one kind, and ``arrays`` says which array of the file is what; sets may share arrays. Numbers are codes:
bit patterns in unsigned integers of the format's width, tf32 in words of 32 bits.

===========  ============================================================  ==========================================
kind         arrays                                                        facts
===========  ============================================================  ==========================================
instruction  a [..., M, K], b [..., K, N], d [..., M, N], perhaps c,       unit, inputs, out, instruction, scale_format
             scale_a, scale_b (codes, as for `mpsim.matmul_codes`)
gemm         a, b, d, perhaps c; scale_a, scale_b, scale_result: float32   unit, inputs, out (of the unit), result,
                                                                           options (of `mpsim.matmul`)
conversion   x [n], z [n], perhaps flags uint8 [n]                         source, target, options
arithmetic   a [n], perhaps b, c; z [n], perhaps flags uint8 [n]           operation, format, options
===========  ============================================================  ==========================================

``unit`` and ``instruction`` are names of `mpsim.units`, or null where nobody knows them; ``inputs`` is one format or
two. The options of conversions and arithmetic are those of `mpsim.arithmetic`. ``flags`` are bits of `mpsim.Flags`, and
32 for x86's "denormal operand" where the fact ``denormal`` is true; none are expected where ``silent`` is. The fact
``nan`` is ``"bits"``, or ``"any"`` where any NaN may stand for any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpsim import units
from mpsim._npz import read_arrays, write_arrays
from mpsim.formats import get_format
from mpsim.modes import unknown

if TYPE_CHECKING:
    import os

__all__ = ["KINDS", "RecordedSet", "Recording", "read", "unit_of", "write"]

_VERSION = 1
_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class _Kind:
    """What a set of some kind must have."""

    arrays: tuple[str, ...]
    optional: tuple[str, ...]
    facts: tuple[str, ...]


KINDS = {
    "instruction": _Kind(("a", "b", "d"), ("c", "scale_a", "scale_b"), ("unit", "inputs", "out")),
    "gemm": _Kind(("a", "b", "d"), ("c", "scale_a", "scale_b", "scale_result"), ("unit", "inputs", "out", "result")),
    "conversion": _Kind(("x", "z"), ("flags",), ("source", "target")),
    "arithmetic": _Kind(("a", "z"), ("b", "c", "flags"), ("operation", "format")),
}
"""Every kind of set."""

_TOLD = ("name", "kind", "arrays")


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordedSet:
    """Results of one instruction or operation in one setting."""

    name: str
    kind: str
    arrays: Mapping[str, NDArray[Any]]
    """Arrays by role."""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown(f"{self.name}: kind", self.kind, KINDS)
        kind = KINDS[self.kind]
        lacking = [name for name in kind.arrays if name not in self.arrays]
        lacking += [name for name in kind.facts if name not in self.facts]
        if lacking:
            raise ValueError(f"{self.name}: a set of kind {self.kind} without {', '.join(lacking)}")
        if strange := self.arrays.keys() - {*kind.arrays, *kind.optional}:
            raise ValueError(f"{self.name}: {', '.join(sorted(strange))}: a set of kind {self.kind} has no such array")
        if not isinstance(self.facts.get("options", {}), dict):
            raise ValueError(f"{self.name}: options is {self.facts['options']!r}; names with values are needed")
        for name, array in self.arrays.items():
            self._check_dtype(name, array)
        self._check_shapes()

    @property
    def inputs(self) -> tuple[str, str]:
        """Formats of the operands of a product."""
        inputs = self.facts["inputs"]
        return (inputs, inputs) if isinstance(inputs, str) else (inputs[0], inputs[1])

    @property
    def result_format(self) -> str:
        """Format of the results of a product."""
        return str(self.facts["result" if self.kind == "gemm" else "out"])

    @property
    def results(self) -> NDArray[Any]:
        """What the machine answered."""
        return self.arrays["d" if "d" in self.arrays else "z"]

    def _format(self, name: str) -> str | None:
        """Return the format of an array's codes; None for flags and factors."""
        facts = self.facts
        if self.kind == "conversion":
            return {"x": facts["source"], "z": facts["target"]}.get(name)
        if self.kind == "arithmetic":
            return None if name == "flags" else str(facts["format"])
        return {"a": self.inputs[0], "b": self.inputs[1], "d": self.result_format}.get(name)

    def _check_dtype(self, name: str, array: NDArray[Any]) -> None:
        fmt = self._format(name)
        factor = self.kind == "gemm" and name.startswith("scale")
        dtype = np.dtype(np.float32) if factor else np.dtype(np.uint8) if fmt is None else get_format(fmt).code_dtype
        if name == "c" and self.kind in ("instruction", "gemm"):
            if array.dtype.kind != "u":
                raise TypeError(f"{self.name}: c has dtype {array.dtype}; codes in unsigned integers are needed")
        elif array.dtype != dtype:
            raise TypeError(f"{self.name}: {name} has dtype {array.dtype}; {dtype} is needed for {fmt or name}")

    def _check_shapes(self) -> None:
        arrays = self.arrays
        if self.kind in ("conversion", "arithmetic"):
            shapes = {array.shape for array in arrays.values()}
            if len(shapes) > 1 or len(arrays["z"].shape) != 1:
                found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
                raise ValueError(f"{self.name}: {found}; vectors of one length are needed")
            return
        a, b = arrays["a"].shape, arrays["b"].shape
        if len(a) < 2 or len(b) < 2 or a[-1] != b[-2] or arrays["d"].shape != (*a[:-1], b[-1]) or a[:-2] != b[:-2]:
            raise ValueError(
                f"{self.name}: a is {a}, b is {b}, d is {arrays['d'].shape}; "
                "[..., M, K], [..., K, N] and [..., M, N] are needed"
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class Recording:
    """What one machine answered."""

    device: str
    sets: tuple[RecordedSet, ...]
    software: Mapping[str, str] = field(default_factory=dict)
    recorded: str = ""
    """The day, as in 2026-12-02."""
    note: str = ""


def unit_of(text: str) -> str | None:
    """Return the name that `mpsim.units` has for the card that a text names, if it has one.

    Short names and those without a digit must be words. Of others a longer number is no match: an A1000 is no A100.
    """
    found = [name for name in units.devices() if re.search(_pattern(name), text, re.IGNORECASE)]
    return max(found, key=len, default=None)


def _pattern(name: str) -> str:
    spelt = "[-_ ]*".join(map(re.escape, name.split("-")))
    distinct = len(name.replace("-", "")) > 3 and any(char.isdigit() for char in name)
    return rf"(?<!\d){spelt}(?!\d)" if distinct else rf"(?<![^\W_]){spelt}(?![^\W_])"


def write(path: str | os.PathLike[str], recording: Recording) -> None:
    """Write a recording as a compressed ``.npz`` file; it appears under its name when it is complete."""
    members: dict[str, NDArray[Any]] = {}
    names: dict[int, str] = {}
    told = []
    for i, part in enumerate(recording.sets):
        roles = {}
        for role, array in part.arrays.items():
            # The number tells sets of one name apart.
            roles[role] = names.setdefault(id(array), f"{i}/{part.name}/{role}")
            members[roles[role]] = array
        told.append({"name": part.name, "kind": part.kind, "arrays": roles, **part.facts})
    meta = {
        "mpsim_recording": _VERSION,
        "device": recording.device,
        "software": dict(recording.software),
        "recorded": recording.recorded,
        "note": recording.note,
        "sets": told,
    }
    write_arrays(Path(path), {"meta": np.array(json.dumps(meta)), **members}, compressed=True)


def read(path: str | os.PathLike[str]) -> Recording:
    """Read a recording; nothing in the file is executed.

    Parameters
    ----------
    path : path of an ``.npz`` file that `write` wrote
        Or one in a public layout, or a folder of text files: see `mpsim.hardware.importing`.

    Raises
    ------
    OSError
        There is no such file, or it cannot be read.
    ValueError
        It is no recording, or damaged; the message begins with the path and says in one line what is wrong.
    """
    where = Path(path)
    from mpsim.hardware import importing  # it needs what is defined here

    if where.is_dir():
        return importing.from_folder(where)
    arrays = read_arrays(where, _MOST_BYTES)
    try:
        meta = _meta(arrays)
        if "mpsim_recording" in meta:
            return _recording(meta, arrays)
        return importing.from_arrays(where, meta, arrays)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{where}: {reason}") from error


def _meta(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return what a file says about itself; foreign layouts may say nothing, or make a list of it."""
    if "meta" not in arrays:
        return {}
    array = arrays["meta"]
    if array.dtype.kind != "U" or array.ndim:
        raise ValueError(f"meta has dtype {array.dtype} and shape {array.shape}; one string of JSON is needed")
    meta = json.loads(str(array))
    return meta if isinstance(meta, dict) else {"list": meta}


def _recording(meta: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Recording:
    if meta["mpsim_recording"] != _VERSION:
        raise ValueError(f"it is a recording of version {meta['mpsim_recording']}; version {_VERSION} is read")
    return Recording(
        device=str(meta["device"]),
        sets=tuple(_set(told, arrays) for told in meta["sets"]),
        software={str(name): str(version) for name, version in meta["software"].items()},
        recorded=str(meta["recorded"]),
        note=str(meta["note"]),
    )


def _set(told: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> RecordedSet:
    for role, member in told["arrays"].items():
        if member not in arrays:
            raise ValueError(f"{told['name']}: its {role} is {member!r}, and there is no such array")
    return RecordedSet(
        name=str(told["name"]),
        kind=str(told["kind"]),
        arrays={role: arrays[member] for role, member in told["arrays"].items()},
        facts={name: value for name, value in told.items() if name not in _TOLD},
    )
