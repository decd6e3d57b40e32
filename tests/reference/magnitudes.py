"""Histograms of magnitudes in plain Python."""

import math
from collections import Counter
from collections.abc import Iterable


def exponents(values: Iterable[float]) -> dict[int, int]:
    """Return how many numbers have each exponent floor(log2 |x|)."""
    return dict(Counter(math.frexp(v)[1] - 1 for v in values if math.isfinite(v) and v))
