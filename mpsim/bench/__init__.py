"""How fast the emulation is, beside peers timed in the same run: NumPy's matmul, a copy, other casts, torch."""

from mpsim.bench.matmul import DATA, EVERY_KIND, MatmulTiming, bench_matmul, data_kind
from mpsim.bench.observing import OBSERVING, ObserveTiming, bench_observe
from mpsim.bench.rounding import ROUNDING_FORMATS, RoundingTiming, bench_rounding, rounding_format
from mpsim.bench.train import MODELS, TrainTiming, bench_train, check_models

__all__ = [
    "DATA",
    "EVERY_KIND",
    "MODELS",
    "OBSERVING",
    "ROUNDING_FORMATS",
    "MatmulTiming",
    "ObserveTiming",
    "RoundingTiming",
    "TrainTiming",
    "bench_matmul",
    "bench_observe",
    "bench_rounding",
    "bench_train",
    "check_models",
    "data_kind",
    "rounding_format",
]
