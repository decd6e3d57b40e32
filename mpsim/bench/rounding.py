"""How fast rounding is, beside a copy, NumPy's or ml_dtypes' casts and torch's in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from mpsim.bench._timing import best, module
from mpsim.counters import Counters
from mpsim.encoding import decode, encode
from mpsim.formats import get_format
from mpsim.rounding import round_to
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.gemm import thread_count

__all__ = ["RoundingTiming", "bench_rounding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingTiming:
    """Best time of one kind of rounding, and of its peers in the same run."""

    what: str
    fmt: str
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


def bench_rounding(
    elements: int = 1 << 24,
    formats: Sequence[str] = ("fp16", "bf16", "e4m3", "e5m2"),
    repeats: int = 7,
    seed: int = 0,
) -> list[RoundingTiming]:
    """Time rounding of normally distributed float32 numbers into warm arrays.

    Parameters
    ----------
    elements : int
    formats : sequence of str
    repeats : int
        The best of so many is taken, after one call that compiles. A copy and the peers are timed in turn with it.
    seed : int

    Returns
    -------
    timings : list of RoundingTiming, operations within formats
    """
    x = np.random.default_rng(seed).standard_normal(elements, dtype=np.float32)
    wide = x.astype(np.float64)
    values, wide_values = np.empty_like(x), np.empty_like(wide)
    timings = []
    for name in formats:
        codes = np.empty(elements, get_format(name).code_dtype)
        seen = Counters()
        rounded = partial(round_to, x, name, out=values)
        tasks: dict[str, Callable[[], object]] = {
            "encode": partial(encode, x, name, out=codes),
            "encode, counted": partial(encode, x, name, out=codes, counters=seen),
            "decode": partial(decode, codes, name, out=values),
            "round": rounded,
            "round, counted": partial(rounded, counters=seen),
        }
        for mode in ("nearest-away", "toward-zero", "up", "down", "to-odd"):
            tasks[f"round, {mode}"] = partial(rounded, rounding=mode)
        tasks["round, stochastic"] = partial(rounded, rounding="stochastic", rng=0)
        tasks["round float64"] = partial(round_to, wide, name, out=wide_values)
        for what, task in tasks.items():
            source, target = (wide, wide_values) if "float64" in what else (x, values)
            peers = _cast_peers(name, x) if what == "encode" else {}
            calls: dict[str, Callable[[], object]] = {"": task, "copy": partial(_copy, source, target), **peers}
            times = best(calls, repeats)
            timings.append(
                RoundingTiming(
                    what=what,
                    fmt=name,
                    elements=elements,
                    threads=thread_count(),
                    seconds=times.pop(""),
                    copy_seconds=times.pop("copy"),
                    peers=times,
                )
            )
    return timings


def _copy(source: Any, target: Any) -> None:
    in_ranges(lambda start, stop: np.copyto(target[start:stop], source[start:stop]), source.size, 1 << 16)


def _cast_peers(name: str, x: Any) -> dict[str, Callable[[], object]]:
    """Return other libraries' casts of an array into a warm one, of those that are installed."""
    peers: dict[str, Callable[[], object]] = {}
    types = {"fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
    if name not in types:
        return peers
    if name == "fp16":
        half = np.empty(x.shape, np.float16)
        peers["NumPy"] = lambda: np.copyto(half, x, casting="same_kind")
    elif (ml_dtypes := module("ml_dtypes")) is not None:
        target = np.empty(x.shape, getattr(ml_dtypes, types[name]))
        peers["ml_dtypes"] = lambda: np.copyto(target, x, casting="unsafe")
    if (torch := module("torch")) is not None:
        torch.set_num_threads(thread_count())
        source = torch.from_numpy(x)
        cast = torch.empty(x.shape, dtype=getattr(torch, types[name]))
        peers["torch"] = lambda: cast.copy_(source)
    return peers
