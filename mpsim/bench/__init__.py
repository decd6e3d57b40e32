"""How fast the emulation is, beside peers timed in the same run: NumPy's matmul, a copy, other casts."""

from mpsim.bench.matmul import DATA, EVERY_KIND, MatmulTiming, bench_matmul
from mpsim.bench.rounding import RoundingTiming, bench_rounding

__all__ = ["DATA", "EVERY_KIND", "MatmulTiming", "RoundingTiming", "bench_matmul", "bench_rounding"]
