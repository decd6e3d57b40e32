"""Formats and numbers that the tests of encoding and rounding share."""

import itertools

import ml_dtypes
import numba
import numpy as np

from mpsim.formats import CATALOGUE, FloatFormat, Specials, get_format
from reference import rounding as twin

__all__ = [
    "FORMATS",
    "JIT",
    "ML_DTYPES",
    "NARROW",
    "POLICIES",
    "SOURCES",
    "WIDE",
    "all_codes",
    "floats_about",
    "layouts",
    "random_floats",
    "sample_codes",
]

JIT = not numba.config.DISABLE_JIT

FORMATS = [
    *CATALOGUE,
    *map(get_format, ("e2m2", "e6m5", "binary4p2sf", "binary6p3ue", "binary8p1uf", "binary8p3se", "binary8p4uf")),
    *map(get_format, ("binary8p1se", "binary16p11se", "binary16p6se")),
    FloatFormat(name="no-subnormals", p=4, w=4, bias=7, has_subnormals=False),
    FloatFormat(name="beyond-float32", p=6, w=10, bias=40, specials=Specials.FN),
]
"""The catalogue, and formats that it does not hold."""
NARROW = [fmt for fmt in FORMATS if fmt.bits <= 16]
WIDE = [fmt for fmt in FORMATS if fmt.bits > 16]
POLICIES = ("ieee", "saturate")
SOURCES = (np.float32, np.float64)

ML_DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e4m3ieee": ml_dtypes.float8_e4m3,
    "e3m4": ml_dtypes.float8_e3m4,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


def all_codes(fmt: FloatFormat) -> np.ndarray:
    """Return every code; without the compiler every 37th of the 16-bit formats and those around the powers of two."""
    codes = np.arange(1 << fmt.bits, dtype=twin.code_dtype(fmt))
    if JIT or fmt.bits <= 10:
        return codes
    return codes[(codes % 37 == 0) | ((codes + 8) % (1 << (fmt.bits - 2)) < 16)]


def sample_codes(fmt: FloatFormat, count: int) -> np.ndarray:
    """Return codes of a wide format: all around each change of its fields, and some at random."""
    rng = np.random.default_rng(2026)
    last = (1 << fmt.bits) - 1
    edges = {0, last, twin.sign_bit(fmt), twin.largest(fmt), 1 << (fmt.p - 1), 2 << (fmt.p - 1), twin.nan(fmt, False)}
    near = {(edge + step) & last for edge, step in itertools.product(edges, range(-3, 4))}
    near |= {code ^ twin.sign_bit(fmt) for code in near}
    at_random = {int(code) & last for code in rng.integers(0, 1 << 64, count, dtype=np.uint64)}
    return np.array(sorted(near | at_random), dtype=twin.code_dtype(fmt))


def random_floats(dtype: type[np.floating], count: int, seed: int = 1) -> np.ndarray:
    """Return floats with random bit patterns, every exponent alike, after both zeros, infinities and NaNs."""
    width = 8 * np.dtype(dtype).itemsize
    words = np.random.default_rng(seed).integers(0, 1 << width, count, dtype=f"u{width // 8}")
    x = words.view(dtype)
    x[:6] = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan]
    return x


def floats_about(fmt: FloatFormat, dtype: type[np.floating], count: int, seed: int = 2) -> np.ndarray:
    """Return floats from below the smallest to above the largest number of a format.

    Half of them are numbers and midpoints of the format, or next to one.
    """
    rng = np.random.default_rng(seed)
    limits = np.finfo(dtype)
    low, high = max(fmt.quantum_exponent - 3, int(limits.minexp) - int(limits.nmant)), min(fmt.emax + 3, limits.maxexp)
    long = rng.integers(1 << 30, 1 << 31, count).astype(np.float64)
    short = rng.integers(1, 1 << min(fmt.p + 1, 24), count).astype(np.float64)
    sig, _ = np.frexp(np.where(rng.random(count) < 0.5, long, short))
    x = np.ldexp(2 * sig, rng.integers(low, high, count))
    x = (x * rng.choice([-1.0, 1.0], count)).astype(dtype)
    step = rng.integers(-1, 2, count)
    return np.where(step < 0, np.nextafter(x, dtype(-1)), np.where(step > 0, np.nextafter(x, dtype(1)), x)).astype(
        dtype
    )


def layouts(x: np.ndarray) -> dict[str, np.ndarray]:
    """Return arrays that equal ``x`` [n, m] but lie otherwise in memory; the broadcast one repeats the first row."""
    wide = np.empty((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
    wide[::2, ::3] = x
    read_only = x.copy()
    read_only.flags.writeable = False
    return {
        "strided": wide[::2, ::3],
        "reversed": x[::-1, ::-1].copy()[::-1, ::-1],
        "fortran": np.asfortranarray(x),
        "transposed": x.T.copy().T,
        "broadcast": np.broadcast_to(x[0], x.shape),
        "read-only": read_only,
        "other byte order": x.astype(x.dtype.newbyteorder()),
        "unaligned": np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    }
