"""Recordings in the layouts of others.

- The text files of the repository MATLAB-tensor-core (Khattak and Mikaitis): folders ``<GPU>/<format>/`` with ``a_*``
  and ``b_*`` (a dot product a line, float32 words in hexadecimal), ``c_*`` and ``d_*`` (float32 words in binary). The
  folder ``model_validation``, the whole clone or one GPU's folder can be given.
- The same numbers in one ``.npz``: arrays ``inputs/<name>/a`` and ``<GPU>/<format>/d_fp32``, and a list ``meta``.
- Tiles as MMA-Sim gives them (arXiv 2511.10909): ``a``, ``b``, ``c``, ``d``, perhaps ``scale_a`` and ``scale_b``, and
  ``meta`` with arch, family, instruction and formats. Where ``disputed`` marks a result, recordings decide for
  ``disputed_alt``.
- Instructions and GEMMs of mmaemu (0.1.0): groups ``<name>/a`` that ``meta`` lists, or pools with a list ``cases``.
- Plain files of x86 instructions, known by their names: see `mpsim.hardware.importing_x86`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim.encoding import encode
from mpsim.formats import get_format
from mpsim.hardware import importing_x86
from mpsim.hardware.recordings import RecordedSet, Recording, unit_of

__all__ = ["from_arrays", "from_folder"]

_Arrays = Mapping[str, NDArray[Any]]

_ARCHITECTURES = {"adalovelace": "ada", "rtxblackwell": "rtx-blackwell"}


def _format(name: str) -> str:
    """Return the name that a format has here; AMD's "xf32" is tf32."""
    return "tf32" if name.lower() == "xf32" else get_format(name).name


def from_folder(path: Path) -> Recording:
    """Return what the text files of MATLAB-tensor-core below a folder hold."""
    sets = list(_texts(path))
    if not sets:
        raise ValueError(
            f"{path}: no files a_<GPU>_<format>.txt, b_... and d_... below it; see mpsim.hardware.importing"
        )
    return Recording(device="text files", sets=tuple(sets), note=str(path))


def from_arrays(path: Path, meta: Mapping[str, Any], arrays: _Arrays) -> Recording:
    """Return what a foreign ``.npz`` holds."""
    if "list" in meta and all("input_format" in row for row in meta["list"]):
        sets = [_toolbox(row, arrays) for row in meta["list"]]
    elif "family" in meta and "arch" in meta:
        sets = [_tiles(path.stem, meta, arrays)]
    elif "groups" in meta:
        sets = [_group(group, str(meta["gpu"]), arrays) for group in meta["groups"]]
    elif "cases" in arrays:
        sets = list(_cases(path.stem, arrays))
    else:
        sets = importing_x86.sets(path.stem, arrays)
    if not sets:
        found = ", ".join(list(arrays)[:6]) or "nothing"
        raise ValueError(f"it holds {found}; no recording in a layout that is known (see mpsim.hardware.importing)")
    return Recording(device=str(meta.get("gpu", meta.get("arch", path.stem))), sets=tuple(sets), note=str(path))


def _dots(name: str, gpu: str, inputs: str, out: str, words: Mapping[str, NDArray[Any]]) -> RecordedSet:
    """Return independent dot products of MATLAB-tensor-core, each a product of a row and a column.

    Hopper's FP8 with fp32 results was recorded with wgmma from zero, its fp16 results and all of B200's with mma.sync;
    accumulators of fp16 results were rounded to fp16 first (README of the repository, CUDA sources).
    """
    fp8, hopper = inputs in ("e4m3", "e5m2"), gpu in ("H100", "H200")
    instruction = "mma.m16n8k4" if inputs == "tf32" else None
    if fp8 and (gpu == "B200" or (hopper and out == "fp16")):
        instruction = "mma.m16n8k32"
    arrays = {"a": words["a"][:, None, :], "b": words["b"][:, :, None], "d": words["d"][:, None, None]}
    if "c" in words and not (fp8 and hopper and out == "fp32"):
        c = words["c"]
        arrays["c"] = (encode(c.view(np.float32), "fp16") if out == "fp16" else c)[:, None, None]
    facts = {"unit": gpu.lower(), "inputs": inputs, "out": out, "instruction": instruction}
    return RecordedSet(name=name, kind="instruction", arrays=arrays, facts=facts)


def _toolbox(row: Mapping[str, Any], arrays: _Arrays) -> RecordedSet:
    gpu, inputs, out = row["gpu"], row["input_format"], row["output"]
    words = {side: arrays[f"inputs/{row['inputs']}/{side}"] for side in "ab"}
    words |= {"c": arrays[f"{gpu}/{inputs}/c_fp32"], "d": arrays[f"{gpu}/{inputs}/d_{out}"]}
    return _dots(f"{gpu} {inputs} {out}", gpu, _format(inputs), out, words)


def _texts(path: Path) -> Iterator[RecordedSet]:
    for file in sorted(path.rglob("d_*_fp*.txt")):
        named = re.fullmatch(r"d_([^_]+)_(fp16|fp32)", file.stem)
        if named is None:
            continue
        (gpu, out), inputs = named.groups(), file.parent.name
        sides = {side: file.parent / f"{side}_{gpu}_{inputs}.txt" for side in "ab"}
        if not all(side.exists() for side in sides.values()):
            continue
        try:
            fmt = _format(inputs)
        except ValueError:  # a folder of something else
            continue
        d, a, b = _words(file, 2), *(_words(side, 16) for side in sides.values())
        words = {"d": d[:, 0] if out == "fp32" else _narrow(d[:, 0], out, file)}
        words |= {"a": _narrow(a, fmt, sides["a"]), "b": _narrow(b, fmt, sides["b"])}
        if (accumulators := file.parent / f"c_{gpu}_fp32.txt").exists():
            words["c"] = _words(accumulators, 2)[:, 0]
        rows = min(map(len, words.values()))
        yield _dots(
            f"{gpu} {inputs} {out}", gpu, fmt, out, {name: np.ascontiguousarray(x[:rows]) for name, x in words.items()}
        )


def _words(file: Path, base: int) -> NDArray[np.uint32]:
    """Return float32 words of a text, a row a line."""
    try:
        rows = [
            [int(word, base) for word in line.split()] for line in file.read_text("ascii").splitlines() if line.strip()
        ]
        return np.array(rows, np.uint32)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{file}: rows of float32 words in base {base} are needed ({error})") from error


def _narrow(words: NDArray[np.uint32], fmt: str, file: Path) -> NDArray[Any]:
    """Return codes of float32 words that are numbers of a format already; tf32 as it is."""
    if fmt == "tf32":
        return words
    with np.errstate(invalid="ignore"):
        return encode(words.view(np.float32), fmt)


def _tiles(name: str, meta: Mapping[str, Any], arrays: _Arrays) -> RecordedSet:
    """Return tiles of MMA-Sim's layout."""
    roles = ("a", "b", "c", "d", "scale_a", "scale_b")
    parts = {role: arrays[role] for role in roles if role in arrays}
    if "disputed" in arrays:
        marked = np.unpackbits(arrays["disputed"], axis=-1, count=parts["d"].shape[-1]).astype(bool)
        parts["d"] = parts["d"].copy()
        parts["d"][marked] = arrays["disputed_alt"]
    architecture = str(meta["arch"]).lower().replace(" ", "")
    facts: dict[str, Any] = {
        "unit": _ARCHITECTURES.get(architecture, architecture),
        "inputs": [_format(meta["a_format"]), _format(meta["b_format"])],
        "out": _format(meta["d_format"]),
        "instruction": _instruction(meta),
        "nan": "bits" if meta.get("nan_bits_exact", True) else "any",
    }
    if meta.get("scale_format"):
        facts["scale_format"] = _format(meta["scale_format"])
        facts["scale_block"] = int(meta["block_size"])
    return RecordedSet(name=name, kind="instruction", arrays=parts, facts=facts)


def _instruction(meta: Mapping[str, Any]) -> str:
    """Return the name that `mpsim.units` gives to an instruction of MMA-Sim."""
    family, instruction, k = meta["family"], str(meta["instruction"]), meta["k"]
    shape = instruction.split(".")[0]
    known = {
        "mfma": f"mfma_{instruction}",
        "tcgen05mma": f"tcgen05.mma.k{k}",
        "tcgen05mma_block_scale": f"tcgen05.mma.block_scale.k{k}",
        "mma_block_scale": f"mma.block_scale.{shape}",
    }
    return known.get(family, f"{family}.{shape}")


def _group(group: Mapping[str, Any], gpu: str, arrays: _Arrays) -> RecordedSet:
    """Return a group of mmaemu's instructions: tiles, or single dot products."""
    a, b, c, d = (arrays[f"{group['name']}/{role}"] for role in "abcd")
    if group["layout"] == "vector":
        a, b, c, d = a[:, None, :], b[:, None, :], c[:, None, None], d[:, None, None]
    facts = {
        "unit": unit_of(gpu),
        "inputs": [_format(group["a_format"]), _format(group["b_format"])],
        "out": "fp32",
        "instruction": "mma.m16n8k16" if group["k"] == 16 else "mma.m16n8k32",
    }
    arrays = {"a": a, "b": np.swapaxes(b, -1, -2), "c": c, "d": d}
    return RecordedSet(name=str(group["name"]), kind="instruction", arrays=arrays, facts=facts)


def _cases(name: str, arrays: _Arrays) -> Iterator[RecordedSet]:
    """Return the whole products of mmaemu: slices of pools."""
    unit = unit_of(name)
    schedule = "cublaslt-ada" if unit in ("rtx-4060", "rtx-4090", "l40s") else "cublaslt-hopper"
    for i, case in enumerate(json.loads(str(arrays["cases"]))):
        m, n, k, result = case["m"], case["n"], case["k"], _format(case["out_dtype"])
        width = {"fp32": 4, "fp16": 2, "bf16": 2}.get(result, 1)
        sides = {side: arrays[side][case[f"{side}_offset"] :][: rows * k] for side, rows in (("a", m), ("b", n))}
        raw = arrays["d"][case["d_offset"] :][: m * n * width]
        parts = {
            "a": sides["a"].reshape(m, k),
            "b": sides["b"].reshape(n, k).T,
            "d": np.frombuffer(raw.tobytes(), f"<u{width}").reshape(m, n),
            "scale_a": _factor(case["scale_a_bits"]),
            "scale_b": _factor(case["scale_b_bits"]),
        }
        if case["scale_result_bits"] is not None:
            parts["scale_result"] = _factor(case["scale_result_bits"])
        options = {
            "schedule": schedule + ("" if case["fast_accum"] else "-slow"),
            "split_k": case["split"],
            "reduction": "pairwise" if case["scheme"] == "pairwise" else "serial",
        }
        facts = {
            "unit": unit,
            "inputs": [case["a_format"], case["b_format"]],
            "out": "fp32",
            "result": result,
            "options": options,
        }
        yield RecordedSet(name=f"case {i}", kind="gemm", arrays=parts, facts=facts)


def _factor(bits: int | None) -> NDArray[np.float32]:
    return np.array(0x3F800000 if bits is None else bits, np.uint32).view(np.float32)
