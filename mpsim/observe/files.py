"""Records in files: one ``.npz`` without pickles; what is no array is JSON inside it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsim._npz import read_arrays, write_arrays
from mpsim.counters import Counters
from mpsim.formats import get_format
from mpsim.observe.findings import Finding
from mpsim.observe.histograms import Histogram
from mpsim.observe.operands import Operand
from mpsim.observe.zeros import ZeroCauses, ZeroTrace

if TYPE_CHECKING:
    from mpsim.observe.record import Record

__all__ = ["load", "save"]

_VERSION = 1
_EVENTS = [field.name for field in dataclasses.fields(Counters)]
_COLUMNS = ("step", "format", "counters", "first", "lengths", "special", "extremes")
_TEXTS = ("kind", "layer", "producer", "name", "operation")


def save(record: Record, path: str | os.PathLike[str]) -> None:
    """Write a record; see `Record.save`."""
    entries = list(record.entries())
    spreads = [entry.histogram for entry in entries]
    zeros = record.zero_causes
    meta = {
        "version": _VERSION,
        "kinds": sorted(record.kinds),
        "histograms": record.histograms,
        "flushed": record.flushed,
        "clipped": record.clipped,
        "step": record.step,
        "scales": list(record.scales.items()),
        "findings": [_packed(finding) for finding in record.findings.values()],
        "zeros": None if zeros is None else [[*key, dataclasses.asdict(value)] for key, value in zeros.items()],
    }
    arrays = {
        "meta": np.array(json.dumps(meta)),
        "step": np.array([entry.step for entry in entries], np.int64),
        "format": np.array([entry.format.name for entry in entries], np.str_),
        "counters": np.array([[getattr(e.counters, name) for name in _EVENTS] for e in entries], np.int64),
        "first": np.array([s.first for s in spreads], np.int64),
        "lengths": np.array([s.occupied_counts.size for s in spreads], np.int64),
        "counts": np.concatenate([np.zeros(0, np.int64), *(s.occupied_counts for s in spreads)]),
        "special": np.array([[s.zeros, s.not_finite] for s in spreads], np.int64),
        "extremes": np.array([[s.smallest, s.largest] for s in spreads], np.float64),
    }
    arrays |= {name: np.array([getattr(entry, name) for entry in entries], np.str_) for name in _TEXTS}
    write_arrays(path, arrays, compressed=True)


def load(path: str | os.PathLike[str]) -> Record:
    """Return the record of a file; see `Record.load`."""
    try:
        return _unpacked(read_arrays(Path(path)))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError) as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"{path} is damaged, or no record of version {_VERSION} ({reason})") from error


def _unpacked(arrays: dict[str, Any]) -> Record:
    from mpsim.observe.record import Entry, Record

    meta = json.loads(str(arrays["meta"]))
    if meta["version"] != _VERSION:
        raise ValueError(f"version {meta['version']}")
    lengths = {len(arrays[name]) for name in (*_COLUMNS, *_TEXTS)}
    if len(lengths) > 1 or arrays["counts"].size != arrays["lengths"].sum():
        raise ValueError("its arrays have different lengths")
    limits = {"flushed": meta["flushed"], "clipped": meta.get("clipped", 0.5)}  # older files have no second one
    record = Record(meta["kinds"], meta["histograms"], **limits)
    record.step = meta["step"]
    record.scales = dict(meta["scales"])
    record.findings = {finding["cause"]: _finding(finding) for finding in meta["findings"]}
    if meta["zeros"] is not None:
        trace = ZeroTrace()
        trace.found = {tuple(key): ZeroCauses(**value) for *key, value in meta["zeros"]}
        record.restore(trace)
    stops = np.cumsum(arrays["lengths"])
    for i, step in enumerate(arrays["step"].tolist()):
        zeros, not_finite = arrays["special"][i].tolist()
        smallest, largest = arrays["extremes"][i].tolist()
        counts = arrays["counts"][stops[i] - arrays["lengths"][i] : stops[i]]
        record.append(
            Entry(
                step=step,
                format=get_format(str(arrays["format"][i])),
                counters=Counters(*arrays["counters"][i].tolist()),
                histogram=Histogram(int(arrays["first"][i]), counts, zeros, not_finite, smallest, largest),
                **{name: str(arrays[name][i]) for name in _TEXTS},
            )
        )
    return record


def _packed(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON has it; infinities and NaNs are written as Python reads them."""
    packed = {field.name: getattr(finding, field.name) for field in dataclasses.fields(finding)}
    operands = [
        {**{f.name: getattr(o, f.name) for f in dataclasses.fields(o)}, "format": o.format.name}
        for o in finding.operands
    ]
    return packed | {"format": finding.format.name, "operands": operands}


def _finding(packed: dict[str, Any]) -> Finding:
    operands = tuple(
        Operand(**{**o, "format": get_format(o["format"]), **{n: tuple(o[n]) for n in ("places", "codes", "values")}})
        for o in packed["operands"]
    )
    fields = {"format": get_format(packed["format"]), "index": tuple(packed["index"]), "operands": operands}
    return Finding(**packed | fields)
