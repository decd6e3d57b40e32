"""How fast rounding and quantisation are, beside a copy, NumPy's or ml_dtypes' casts and torch's in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from mpsim import blocks
from mpsim.bench._timing import best, module
from mpsim.blocks import BLOCK_CATALOGUE, BlockCounters, BlockFormat, get_block_format
from mpsim.counters import Counters
from mpsim.encoding import decode, encode
from mpsim.formats import FloatFormat, get_format
from mpsim.rounding import round_to
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.gemm import thread_count

__all__ = ["ROUNDING_FORMATS", "RoundingTiming", "bench_rounding", "rounding_format"]

ROUNDING_FORMATS = ("fp16", "bf16", "e4m3", "e5m2", "mxfp8_e4m3", "nvfp4")
"""Formats that are timed unless others are asked for."""

Tasks: TypeAlias = "dict[str, Callable[[], object]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingTiming:
    """Best time of one kind of rounding or quantisation, and of its peers in the same run."""

    what: str
    fmt: str
    """A format or a block format."""
    elements: int
    threads: int
    seconds: float
    copy_seconds: float
    """A copy of the source into a warm array, by as many threads."""
    peers: dict[str, float] = field(default_factory=dict)
    """Seconds of other libraries' casts of the same array: NumPy or ml_dtypes, and torch, where installed."""

    @property
    def rate(self) -> float:
        """Billions of elements a second."""
        return self.elements / self.seconds / 1e9

    @property
    def of_copy(self) -> float:
        """Speed as a share of the copy's."""
        return self.copy_seconds / self.seconds

    def of_peer(self, name: str) -> float:
        """Return the speed as a multiple of a peer's."""
        return self.peers[name] / self.seconds


def rounding_format(name: str) -> FloatFormat | BlockFormat:
    """Return the format or block format that has a name; a ValueError says which there are."""
    known = {label for fmt in BLOCK_CATALOGUE for label in (fmt.name, *fmt.aliases)}
    if name.strip().lower().replace("-", "_") in known:
        return get_block_format(name)
    try:
        return get_format(name)
    except ValueError as error:
        block_formats = ", ".join(fmt.name for fmt in BLOCK_CATALOGUE)
        raise ValueError(f"{error}; block formats: {block_formats}") from None


def bench_rounding(
    elements: int = 1 << 24,
    formats: Sequence[str] = ROUNDING_FORMATS,
    repeats: int = 7,
    seed: int = 0,
) -> list[RoundingTiming]:
    """Time rounding of normally distributed float32 numbers into warm arrays.

    Parameters
    ----------
    elements : int
    formats : sequence of str
        Names of formats and of block formats. Blocks lie side by side; their scales follow the format's default rule.
    repeats : int
        The best of so many is taken, after one call that compiles. A copy and the peers are timed in turn with it.
    seed : int

    Returns
    -------
    timings : list of RoundingTiming, operations within formats
        Of block formats ``"quantize"`` and ``"dequantize"`` stand for ``"encode"`` and ``"decode"``.
    """
    chosen = [rounding_format(name) for name in formats]
    x = np.random.default_rng(seed).standard_normal(elements, dtype=np.float32)
    wide = x.astype(np.float64)
    values, wide_values = np.empty_like(x), np.empty_like(wide)
    timings = []
    for fmt in chosen:
        arrays = x, wide, values, wide_values
        tasks = _block_tasks(fmt, *arrays) if isinstance(fmt, BlockFormat) else _tasks(fmt, *arrays)
        for what, task in tasks.items():
            source, target = (wide, wide_values) if "float64" in what else (x, values)
            peers = _cast_peers(fmt.name, x) if what == "encode" else {}
            calls: Tasks = {"": task, "copy": partial(_copy, source, target), **peers}
            times = best(calls, repeats)
            timings.append(
                RoundingTiming(
                    what=what,
                    fmt=fmt.name,
                    elements=elements,
                    threads=thread_count(),
                    seconds=times.pop(""),
                    copy_seconds=times.pop("copy"),
                    peers=times,
                )
            )
    return timings


def _tasks(fmt: FloatFormat, x: Any, wide: Any, values: Any, wide_values: Any) -> Tasks:
    """Return what is timed of a format."""
    codes, seen = np.empty(x.shape, fmt.code_dtype), Counters()
    rounded = partial(round_to, x, fmt, out=values)
    tasks: Tasks = {
        "encode": partial(encode, x, fmt, out=codes),
        "encode, counted": partial(encode, x, fmt, out=codes, counters=seen),
        "decode": partial(decode, codes, fmt, out=values),
        "round": rounded,
        "round, counted": partial(rounded, counters=seen),
    }
    for mode in ("nearest-away", "toward-zero", "up", "down", "to-odd"):
        tasks[f"round, {mode}"] = partial(rounded, rounding=mode)
    tasks["round, stochastic"] = partial(rounded, rounding="stochastic", rng=0)
    tasks["round float64"] = partial(round_to, wide, fmt, out=wide_values)
    return tasks


def _block_tasks(fmt: BlockFormat, x: Any, wide: Any, values: Any, wide_values: Any) -> Tasks:
    """Return what is timed of a block format."""
    q, seen = blocks.quantize(x, fmt), BlockCounters()
    quantized, rounded = partial(blocks.quantize, x, fmt, out=q), partial(blocks.round_to, x, fmt, out=values)
    return {
        "quantize": quantized,
        "quantize, counted": partial(quantized, counters=seen),
        "quantize, stochastic": partial(quantized, rounding="stochastic", rng=0),
        "dequantize": partial(blocks.dequantize, q, out=values),
        "round": rounded,
        "round, counted": partial(rounded, counters=seen),
        "round float64": partial(blocks.round_to, wide, fmt, out=wide_values),
    }


def _copy(source: Any, target: Any) -> None:
    in_ranges(lambda start, stop: np.copyto(target[start:stop], source[start:stop]), source.size, 1 << 16)


def _cast_peers(name: str, x: Any) -> Tasks:
    """Return other libraries' casts of an array into a warm one, of those that are installed."""
    peers: Tasks = {}
    types = {"fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
    if name not in types:
        return peers
    # Torch's threads wait busily after a call. A cast by one thread comes next, so that none of them is in our way.
    if (torch := module("torch")) is not None:
        torch.set_num_threads(thread_count())
        source = torch.from_numpy(x)
        cast = torch.empty(x.shape, dtype=getattr(torch, types[name]))
        peers["torch"] = lambda: cast.copy_(source)
    if name == "fp16":
        half = np.empty(x.shape, np.float16)
        peers["NumPy"] = lambda: np.copyto(half, x, casting="same_kind")
    elif (ml_dtypes := module("ml_dtypes")) is not None:
        target = np.empty(x.shape, getattr(ml_dtypes, types[name]))
        peers["ml_dtypes"] = lambda: np.copyto(target, x, casting="unsafe")
    return peers
