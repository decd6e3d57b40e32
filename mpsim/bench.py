"""How fast the emulation is, beside peers timed in the same run: NumPy's matmul, a copy, other casts."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from mpsim import units
from mpsim.counters import Counters
from mpsim.encoding import decode, encode
from mpsim.formats import get_format
from mpsim.matmul import matmul
from mpsim.rounding import round_to
from mpsim.units import MatrixUnit, UnitLike
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.gemm import thread_count

__all__ = ["MatmulTiming", "RoundingTiming", "bench_matmul", "bench_rounding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulTiming:
    """Best time of one product of matrices, and of NumPy's in the same run."""

    unit: str
    instruction: str
    inputs: str
    out: str
    m: int
    k: int
    n: int
    threads: int
    """Threads that large emulated products are cut into; NumPy's BLAS chooses its own number."""
    seconds: float
    numpy_seconds: float

    @property
    def gmacs(self) -> float:
        """Billions of emulated multiply-adds a second."""
        return self.m * self.k * self.n / self.seconds / 1e9

    @property
    def numpy_gmacs(self) -> float:
        """Billions of multiply-adds a second of NumPy's float32 ``a @ b``."""
        return self.m * self.k * self.n / self.numpy_seconds / 1e9

    @property
    def ratio(self) -> float:
        """How many times slower than NumPy."""
        return self.seconds / self.numpy_seconds


def bench_matmul(
    sizes: Sequence[int | tuple[int, int, int]] = (256, 512, 1024),
    rows: Sequence[UnitLike] = ("v100", "a100"),
    outs: Sequence[str] = ("fp32", "fp16"),
    repeats: int = 5,
    seed: int = 0,
) -> list[MatmulTiming]:
    """Time emulated products of normally distributed matrices that are values of the input format.

    Parameters
    ----------
    sizes : sequence of int or (m, k, n)
    rows : sequence of MatrixUnit or str
        Units; a MatrixUnit has its own formats.
    outs : sequence of str
        Result formats of the units that are given by name, where the device has them.
    repeats : int
        The best of so many is taken, after one call that compiles. Both products are timed in turn, so that
        whatever else the computer does meets both.
    seed : int

    Returns
    -------
    timings : list of MatmulTiming, sizes within units

    Notes
    -----
    A ratio is only honest with NumPy at its best. ``OPENBLAS_CORETYPE`` and ``OPENBLAS_L2_SIZE`` can make its BLAS
    several times slower: unset both, as in ``env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE mpsim bench matmul``. Keep
    the computer otherwise idle, and NumPy on as many threads (``OPENBLAS_NUM_THREADS``) as Numba
    (``NUMBA_NUM_THREADS``).
    """
    chosen: list[tuple[UnitLike, MatrixUnit]] = []
    for row in rows:
        if isinstance(row, MatrixUnit):
            chosen.append((row, row))
        else:
            chosen.extend((row, units.get(row, out=out)) for out in outs)
    shapes = [(size, size, size) if isinstance(size, int) else size for size in sizes]
    return [_timing(str(name), unit, shape, repeats, seed) for name, unit in chosen for shape in shapes]


def _timing(name: str, unit: MatrixUnit, shape: tuple[int, int, int], repeats: int, seed: int) -> MatmulTiming:
    m, k, n = shape
    rng = np.random.default_rng(seed)
    left, right = unit.inputs
    a = round_to(rng.standard_normal((m, k), dtype=np.float32), left)
    b = round_to(rng.standard_normal((k, n), dtype=np.float32), right)
    matmul(a, b, unit=unit, rounded=True)
    pairs = [(_seconds(lambda: matmul(a, b, unit=unit, rounded=True)), _seconds(lambda: a @ b)) for _ in range(repeats)]
    return MatmulTiming(
        unit=name,
        instruction=unit.instruction,
        inputs=unit.a if unit.a == unit.b else f"{unit.a} x {unit.b}",
        out=unit.out,
        m=m,
        k=k,
        n=n,
        threads=thread_count(),
        seconds=min(emulated for emulated, _ in pairs),
        numpy_seconds=min(native for _, native in pairs),
    )


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


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
            best = _best(calls, repeats)
            timings.append(
                RoundingTiming(
                    what=what,
                    fmt=name,
                    elements=elements,
                    threads=thread_count(),
                    seconds=best.pop(""),
                    copy_seconds=best.pop("copy"),
                    peers=best,
                )
            )
    return timings


def _copy(source: Any, target: Any) -> None:
    in_ranges(lambda start, stop: np.copyto(target[start:stop], source[start:stop]), source.size, 1 << 16)


def _best(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the least time of each call, taken in turn after one that is not counted."""
    for call in calls.values():
        call()
    rounds = [{name: _seconds(call) for name, call in calls.items()} for _ in range(repeats)]
    return {name: min(times[name] for times in rounds) for name in calls}


def _cast_peers(name: str, x: Any) -> dict[str, Callable[[], object]]:
    """Return other libraries' casts of an array into a warm one, of those that are installed."""
    peers: dict[str, Callable[[], object]] = {}
    types = {"fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
    if name not in types:
        return peers
    if name == "fp16":
        half = np.empty(x.shape, np.float16)
        peers["NumPy"] = lambda: np.copyto(half, x, casting="same_kind")
    elif (ml_dtypes := _module("ml_dtypes")) is not None:
        target = np.empty(x.shape, getattr(ml_dtypes, types[name]))
        peers["ml_dtypes"] = lambda: np.copyto(target, x, casting="unsafe")
    if (torch := _module("torch")) is not None:
        torch.set_num_threads(thread_count())
        source = torch.from_numpy(x)
        cast = torch.empty(x.shape, dtype=getattr(torch, types[name]))
        peers["torch"] = lambda: cast.copy_(source)
    return peers


def _module(name: str) -> Any:
    """Return an optional module, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
