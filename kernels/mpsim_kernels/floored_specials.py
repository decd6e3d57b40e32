"""Which blocks of floored dot products an infinity, a NaN or a product from 2**128 on decides, without arithmetic.

Infinite and NaN operands and accumulators act as in IEEE 754. Only where there are none, products of finite operands
from 2**128 on count as infinities, and two of them of both signs make a NaN.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import inner_kernel
from mpsim_kernels.fused_dot import Words
from mpsim_kernels.lanes import INF, MAGNITUDE, SIGN, higher

__all__ = ["LARGE", "Hints", "decide", "find_hints", "no_hints"]

LARGE = 127
"""Exponent of a product from which on it may be 2**128 or more."""


class Hints(NamedTuple):
    """Where blocks need care, for B of P panels of W columns and D rows."""

    a: Any
    b: Any
    """float32 [M, D] and [D, P * W]: the infinities and NaNs of the operands; 1 or -1 for other numbers, or 0."""
    special: Any
    """bool [D, P]: whether a row of a panel of B has infinities or NaNs."""
    high: Any
    """int16 [D, P]: largest packed exponent of a row of a panel."""

    def of_rows(self, rows: slice) -> "Hints":
        """Return the hints for some rows of A."""
        return self._replace(a=self.a[rows])


def find_hints(words_a: Words, words_b: Words, depth: int, eb: NDArray[np.int16]) -> Hints:
    """Return the hints for words of float32 [M, K] and [K, N], filled up to ``depth`` and the packed panels ``eb``."""
    panels, _, width = eb.shape
    a, b = np.zeros((words_a.shape[0], depth), np.int32), np.zeros((depth, panels * width), np.int32)
    for words, factors in ((words_a, a), (words_b, b)):
        magnitude = words & MAGNITUDE
        ones = np.where(magnitude == 0, np.int32(0), words & SIGN | np.float32(1).view(np.int32))
        factors[: words.shape[0], : words.shape[1]] = np.where(magnitude >= INF, words, ones)
    special = ((b & MAGNITUDE) >= INF).reshape(depth, panels, width).any(axis=2)
    return Hints(a.view(np.float32), b.view(np.float32), special, np.ascontiguousarray(eb.max(axis=2).T))


def no_hints() -> Hints:
    """Return hints that are not read."""
    nothing = np.empty((0, 0), np.float32)
    return Hints(nothing, nothing, np.empty((0, 0), np.bool_), np.empty((0, 0), np.int16))


@inner_kernel
def decide(a: Any, ea: Any, b: Any, acc: Any, hints: Hints, row: Any, start: Any, panel: Any, decided: Any) -> Any:
    """Set the results that are decided in a block of a row, or return that there may be none.

    Parameters
    ----------
    a, ea : float32 or float64, and int16 [L]
        Packed row; exponents reach `LARGE` only where they are those of the numbers.
    b : float32 or float64 [L, W]
    acc : float32 [W]
        Accumulators.
    hints : Hints
    row, start, panel : int
        Where the block lies.
    decided : float32 [W]
        Becomes the infinity or NaN where one decides, else 0. It is set only if True is returned.
    """
    found = False
    for k in range(a.size):
        found |= _is_special(hints, row, start + k, panel) or _is_large(ea[k], hints, start + k, panel)
    if not found:
        return False
    width = acc.size
    total = np.zeros(width, np.float32)
    largest, smallest = np.zeros(width, np.float64), np.zeros(width, np.float64)
    for k in range(a.size):
        if _is_special(hints, row, start + k, panel):
            columns = slice(panel * width, (panel + 1) * width)
            _add_specials(hints.a[row, start + k], hints.b[start + k, columns], total)
        if _is_large(ea[k], hints, start + k, panel):
            _note_products(a[k], b[k], largest, smallest)
    _judge(acc, total, largest, smallest, decided)
    return True


@inner_kernel
def _is_special(hints: Hints, row: Any, k: Any, panel: Any) -> Any:
    return hints.special[k, panel] or not abs(hints.a[row, k]) <= np.float32(1)


@inner_kernel
def _is_large(ea: Any, hints: Hints, k: Any, panel: Any) -> Any:
    return np.int32(ea) + np.int32(hints.high[k, panel]) >= LARGE


@inner_kernel
def _add_specials(a: Any, b: Any, total: Any) -> None:
    """Add to ``total`` float32 [W] the infinite and NaN products of ``a`` and ``b`` [W], operands as in `Hints`."""
    for j in range(total.size):
        product = np.float32(a * b[j])
        total[j] += np.float32(0) if abs(product) <= np.float32(1) else product


@inner_kernel
def _note_products(a: Any, b: Any, largest: Any, smallest: Any) -> None:
    """Extend the range of products, float64 [W], to those of ``a`` and ``b`` [W]."""
    for j in range(largest.size):
        product = np.float64(a * b[j])
        largest[j] = higher(largest[j], product)
        smallest[j] = product if product < smallest[j] else smallest[j]


@inner_kernel
def _judge(acc: Any, total: Any, largest: Any, smallest: Any, decided: Any) -> None:
    """Set ``decided`` from accumulators, the sum of special products, and the range of the others."""
    inf, limit = np.float32(np.inf), np.float64(2.0**128)
    for j in range(acc.size):
        special = np.float32((np.float32(0) if abs(acc[j]) < inf else acc[j]) + total[j])
        above = inf if largest[j] >= limit else np.float32(0)
        below = -inf if smallest[j] <= -limit else np.float32(0)
        decided[j] = np.float32(above + below) if special == 0 else special
