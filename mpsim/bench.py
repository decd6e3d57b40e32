"""How fast the emulated matrix product is, beside NumPy's float32 one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mpsim import units
from mpsim.matmul import matmul
from mpsim.rounding import round_to
from mpsim.units import MatrixUnit, UnitLike
from mpsim_kernels.gemm import thread_count

__all__ = ["MatmulTiming", "bench_matmul"]


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
