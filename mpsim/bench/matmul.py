"""How fast the emulated matrix product is, beside NumPy's float32 one in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from mpsim import units
from mpsim.bench._timing import best, module
from mpsim.blocks import BlockArray, BlockFormat, quantize
from mpsim.encoding import decode
from mpsim.formats import FP64, FloatFormat, get_format
from mpsim.matmul import matmul
from mpsim.modes import unknown
from mpsim.rounding import round_to
from mpsim.units import InputsLike, MatrixUnit, UnitLike
from mpsim_kernels.gemm import thread_count

__all__ = ["DATA", "EVERY_KIND", "MatmulTiming", "bench_matmul", "data_kind"]

Data = Literal["normal", "subnormal", "special", "spread"]
DATA: tuple[Data, ...] = ("normal", "subnormal", "special", "spread")
"""Kinds of operands: N(0, 1); half of them subnormal; one in a hundred Inf or NaN; bits at random but for these."""

Row: TypeAlias = "tuple[str, InputsLike | BlockFormat | None, str | None]"
"""Unit, inputs and result."""

EVERY_KIND: tuple[Row, ...] = (
    ("v100", "fp16", "fp32"),
    ("v100", "fp16", "fp16"),
    ("a100", "fp16", "fp32"),
    ("a100", "fp16", "fp16"),
    ("a100", "bf16", "fp32"),
    ("a100", "tf32", "fp32"),
    ("h100", "fp16", "fp32"),
    ("h100", "fp16", "fp16"),
    ("h100", "bf16", "fp32"),
    ("h100", "tf32", "fp32"),
    ("l40s", "e4m3", "fp32"),
    ("l40s", "e4m3", "fp16"),
    ("h100", "e4m3", "fp32"),
    ("h100", "e5m2", "fp32"),
    ("b200", "e4m3", "fp32"),
    ("b200", "mxfp8_e4m3", "fp32"),
    ("b200", "mxfp4", "fp32"),
    ("b200", "nvfp4", "fp32"),
    ("mi100", "fp16", "fp32"),
    ("mi100", "bf16", "fp32"),
    ("mi250x", "fp16", "fp32"),
    ("mi250x", "bf16", "fp32"),
    ("mi300x", "fp16", "fp32"),
    ("mi300x", "bf16", "fp32"),
    ("mi300x", "tf32", "fp32"),
    ("mi300x", "e4m3fnuz", "fp32"),
    ("mi300x", "fp32", "fp32"),
    ("avx512-bf16", "bf16", "fp32"),
    ("amx", "bf16", "fp32"),
    ("arm-bf16", "bf16", "fp32"),
    ("arm-ebf16", "bf16", "fp32"),
    ("a100", "fp64", "fp64"),
    ("ideal", "fp16", "fp16"),
)
"""One row of each kind of arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulTiming:
    """Best time of one product of matrices, and of its peers in the same run."""

    unit: str
    instruction: str
    inputs: str
    out: str
    data: str
    """Kind of operands, one of `DATA`."""
    m: int
    k: int
    n: int
    threads: int
    """Threads that large emulated products are cut into; NumPy's BLAS chooses its own number."""
    seconds: float
    numpy_seconds: float
    """NumPy's float32 ``a @ b`` of normally distributed matrices."""
    peers: dict[str, float] = field(default_factory=dict)
    """Seconds of other exact models of the same product, where installed: mmaemu, of Ada and Hopper FP8."""

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


def data_kind(data: str) -> Data:
    """Return the kind of operands that has a name; a ValueError lists them."""
    for kind in DATA:
        if kind == data:
            return kind
    raise unknown("data", data, DATA)


def bench_matmul(
    sizes: Sequence[int | tuple[int, int, int]] = (256, 512, 1024),
    rows: Sequence[UnitLike | Row] = ("v100", "a100"),
    outs: Sequence[str] = ("fp32", "fp16"),
    repeats: int = 5,
    seed: int = 0,
    inputs: InputsLike | BlockFormat | None = None,
    data: Data = "normal",
) -> list[MatmulTiming]:
    """Time emulated products of matrices that are values of the input format.

    Parameters
    ----------
    sizes : sequence of int or (m, k, n)
    rows : sequence of MatrixUnit, str or (unit, inputs, out)
        Units; a MatrixUnit and a triple have their own formats. `EVERY_KIND` is a list of triples.
    outs : sequence of str
        Result formats of the units that are given by name.
    repeats : int
        The best of so many is taken, after one call that compiles. The products are timed in turn, so that
        whatever else the computer does meets all.
    seed : int
    inputs : format, block format or pair of formats
        Inputs of the units that are given by name.
    data : {"normal", "subnormal", "special", "spread"}
        Kind of operands; see `DATA`.

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
    data = data_kind(data)
    chosen: list[tuple[str, MatrixUnit]] = []
    for row in rows:
        if isinstance(row, MatrixUnit):
            chosen.append((str(row), row))
        elif isinstance(row, tuple):
            chosen.append((row[0], units.get(*row)))
        else:
            chosen.extend((row, units.get(row, inputs, out)) for out in outs)
    shapes = [(size, size, size) if isinstance(size, int) else size for size in sizes]
    return [_timing(name, unit, shape, repeats, seed, data) for name, unit in chosen for shape in shapes]


def _timing(
    name: str, unit: MatrixUnit, shape: tuple[int, int, int], repeats: int, seed: int, data: Data
) -> MatmulTiming:
    m, k, n = shape
    rng = np.random.default_rng(seed)
    left, right = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)
    a, b = (_operand(x, unit, axis, data, rng) for x, axis in ((left, 1), (right, 0)))
    calls: dict[str, Callable[[], object]] = {
        "": lambda: matmul(a, b, unit=unit, rounded=True),
        "NumPy": lambda: left @ right,
        **_peers(unit, a, b, data),
    }
    times = best(calls, repeats)
    return MatmulTiming(
        unit=name,
        instruction=unit.instruction,
        inputs=unit.shown_inputs,
        out=unit.out,
        data=data,
        m=m,
        k=k,
        n=n,
        threads=thread_count(),
        seconds=times.pop(""),
        numpy_seconds=times.pop("NumPy"),
        peers=times,
    )


def _operand(x: Any, unit: MatrixUnit, axis: int, data: Data, rng: np.random.Generator) -> Any:
    """Return a matrix of values of the unit's input format, or of its block format."""
    fmt = unit.inputs[1 - axis]
    if unit.scale:
        scale = get_format(unit.scale)
        block = BlockFormat(name="operand", element=fmt, scale=scale, length=unit.scale_block)
        q = quantize(x, block, axis)
        if data == "normal":
            return q
        scales = rng.integers(0, scale.max_code + 1, q.scales.shape).astype(np.uint8)
        if data == "special":
            scales[rng.random(scales.shape) < 0.01] = (1 << scale.bits) - 1  # NaN
        return BlockArray(format=block, codes=q.codes, scales=scales, axis=axis)
    if data == "normal":
        return x.astype(np.float64) if fmt == FP64 else round_to(x, fmt)
    return _extreme(x, fmt, data, rng)


def _extreme(x: Any, fmt: FloatFormat, data: Data, rng: np.random.Generator) -> Any:
    codes = rng.integers(0, 1 << fmt.bits, x.shape, dtype=np.uint64)
    field = np.uint64(((1 << fmt.w) - 1) << fmt.m)
    rest = ~field & np.uint64((1 << fmt.bits) - 1)
    top = (codes & field) == field
    if data == "spread":
        codes[top] &= rest
        return decode(codes.astype(fmt.code_dtype), fmt)
    values = decode(codes.astype(fmt.code_dtype) & fmt.code_dtype.type(rest), fmt)  # subnormals
    if data == "subnormal":
        return np.where(rng.random(x.shape) < 0.5, values, round_to(x, fmt) if fmt != FP64 else x)
    special = np.array([np.inf, -np.inf, np.nan] if fmt.inf_code is not None else [np.nan], x.dtype)
    chosen = rng.choice(special, x.shape)
    return np.where(rng.random(x.shape) < 0.01, chosen, round_to(x, fmt) if fmt != FP64 else x)


def _peers(unit: MatrixUnit, a: Any, b: Any, data: Data) -> dict[str, Callable[[], object]]:
    """Return other models of the same product, of those that are installed."""
    profiles = {"ada": "ada", "hopper": "hopper"}
    torch, mmaemu = module("torch"), module("mmaemu")
    types = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
    wanted = unit.architecture in profiles and {unit.a, unit.b} <= types.keys() and unit.out == "fp32"
    if torch is None or mmaemu is None or not wanted or data != "normal":
        return {}
    torch.set_num_threads(thread_count())
    left = torch.from_numpy(np.ascontiguousarray(a)).to(getattr(torch, types[unit.a]))
    right = torch.from_numpy(np.ascontiguousarray(b.T)).to(getattr(torch, types[unit.b]))
    options = {"use_fast_accum": True, "profile": profiles[unit.architecture], "splitk": 1, "backend": "reference"}
    return {"mmaemu": lambda: mmaemu.accumulate(left, right, **options)}
