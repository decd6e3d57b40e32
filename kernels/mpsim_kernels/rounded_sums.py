"""Matrix products with every partial sum rounded to a format: idealised accumulators.

Products of float32 numbers are exact in float64. The sum of a product and a partial sum is rounded to odd first (Boldo
and Melquiond 2008), from TwoSum's error, and then to the accumulator's precision, which is so much lower that the
two roundings are as one.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.floating_point import default_environment

__all__ = ["AWAY", "DOWN", "EVEN", "ODD", "UP", "ZERO", "Accumulator", "rounded_gemm"]

EVEN, AWAY, ZERO, UP, DOWN, ODD = range(6)
"""Directions of rounding: nearest even, nearest away, toward zero, up, down, to odd."""

_PANEL = 512  # columns whose partial sums stay in the first-level cache
_WORK = 1 << 18  # products worth a thread
_NAN = np.uint32(0x7FC00000)


class Accumulator(NamedTuple):
    """A format within float32 that partial sums are rounded to."""

    p: int
    """Significand bits, 24 or fewer."""
    emin: int
    max_finite: float


@inner_kernel
def _two_sum_to_odd(x: Any, y: Any) -> Any:
    """Return ``x + y`` of float64 numbers, rounded to odd."""
    s = x + y
    back = s - x
    error = (x - (s - back)) + (y - back)
    word = np.float64(s).view(np.int64)
    inexact = (error > 0) | (error < 0)
    step = np.int64(1) if (error > 0) == (s > 0) else np.int64(-1)
    return np.int64(word + (step if inexact and (word & 1) == 0 else np.int64(0))).view(np.float64)


@inner_kernel
def _nearest(s: Any, p: Any, emin: Any) -> tuple[Any, Any]:
    """Return a float64 number rounded to nearest even, to ``p`` bits or fewer below ``emin``, and the quantum."""
    e = ((np.float64(s).view(np.int64) >> 52) & 2047) - 1023
    q = max(e, emin) - (p - 1)
    quantum = np.int64((q + 1023) << 52).view(np.float64)
    # Adding 1.5 * 2**52 quanta leaves no bit below the quantum; taking them away again is exact.
    magic = np.int64(((q + 1075) << 52) | (np.int64(1) << 51)).view(np.float64)
    return (s + magic) - magic, quantum


@inner_kernel
def _closed(r: Any, s: Any, bound: Any, largest: Any) -> Any:
    """Return what ``s``, rounded to ``r``, becomes: of its sign, and ``bound`` beyond the largest number."""
    r = np.copysign(r, s)
    r = np.copysign(bound, s) if abs(r) > largest else r
    return r if abs(s) < np.inf else s


@inner_kernel
def _add(total: Any, x: Any, y: Any, direction: Any, p: Any, emin: Any, largest: Any) -> None:
    """Add ``x * y`` to ``total``, float64 [W], and round each sum to the accumulator's format."""
    if direction == EVEN:  # a loop of its own, which takes half the time
        for j in range(total.size):
            s = _two_sum_to_odd(total[j], x * np.float64(y[j]))
            r, _ = _nearest(s, p, emin)
            total[j] = _closed(r, s, np.inf, largest)
        return
    for j in range(total.size):
        before, term = total[j], x * np.float64(y[j])
        s = _two_sum_to_odd(before, term)
        r, quantum = _nearest(s, p, emin)
        bound = np.inf  # what an overflow becomes
        if direction == AWAY:
            r += np.copysign(quantum, s) if abs(s) - abs(r) == quantum * 0.5 else 0.0
        elif direction == ZERO:
            r -= np.copysign(quantum, s) if abs(r) > abs(s) else 0.0
            bound = largest
        elif direction == UP:
            r += quantum if r < s else 0.0
            bound = np.inf if s > 0 else largest
        elif direction == DOWN:
            r -= quantum if r > s else 0.0
            bound = largest if s > 0 else np.inf
        else:
            r -= quantum if r > s else 0.0
            half = r / (2.0 * quantum)
            r += quantum if r != s and np.floor(half) == half else 0.0
            bound = largest
        r = _closed(r, s, bound, largest)
        if direction == DOWN and s == 0 and np.copysign(1.0, before) != np.copysign(1.0, term):
            r = -0.0  # an exact sum of zero from terms of both signs (IEEE 754-2019, 6.3)
        total[j] = r


@kernel
def _sequential(a: Any, b: Any, d: Any, chunk: Any, direction: Any, p: Any, emin: Any, largest: Any) -> None:
    part = np.empty(d.shape[1], np.float64)
    for i in range(a.shape[0]):
        if chunk == 0:
            for g in range(a.shape[1]):
                _add(d[i], np.float64(a[i, g]), b[g], direction, p, emin, largest)
        else:
            for start in range(0, a.shape[1], chunk):
                part[:] = 0.0
                for g in range(start, min(start + chunk, a.shape[1])):
                    _add(part, np.float64(a[i, g]), b[g], direction, p, emin, largest)
                _add(d[i], 1.0, part, direction, p, emin, largest)


@kernel
def _pairwise(a: Any, b: Any, d: Any, direction: Any, p: Any, emin: Any, largest: Any) -> None:
    levels = np.empty((64, d.shape[1]), np.float64)
    carried, older = np.empty(d.shape[1], np.float64), np.empty(d.shape[1], np.float64)
    for i in range(a.shape[0]):
        # A binary counter: bit L of the number of terms says whether level L holds the sum of 2**L of them.
        for g in range(a.shape[1]):
            carried[:] = 0.0
            _add(carried, np.float64(a[i, g]), b[g], direction, p, emin, largest)
            level = 0
            while (g >> level) & 1:
                older[:] = levels[level]
                _add(older, 1.0, carried, direction, p, emin, largest)
                carried[:] = older
                level += 1
            levels[level] = carried
        # What is left over goes up as it is until it meets a sum.
        first = True
        for level in range(64):
            if (a.shape[1] >> level) & 1:
                if first:
                    carried[:] = levels[level]
                    first = False
                else:
                    older[:] = levels[level]
                    _add(older, 1.0, carried, direction, p, emin, largest)
                    carried[:] = older
        if not first:
            _add(d[i], 1.0, carried, direction, p, emin, largest)


@kernel
def _widen(c: Any, d: Any) -> None:
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            d[i, j] = np.float64(c[i, j])


@kernel
def _narrow(d: Any, words: Any) -> None:
    """Write the words of float32 of numbers that are exact in float32; one word for NaN."""
    for i in range(d.shape[0]):
        for j in range(d.shape[1]):
            word = np.float32(d[i, j]).view(np.uint32)
            words[i, j] = _NAN if d[i, j] != d[i, j] else word


def rounded_gemm(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32] | None,
    accumulator: Accumulator,
    direction: int,
    chunk: int,
    pairwise: bool,
) -> NDArray[np.float32]:
    """Return ``a @ b + c`` with every partial sum rounded to the accumulator's format.

    Parameters
    ----------
    a, b, c : float32 [M, K], [K, N] and [M, N] or None
        Any values, ``c`` of the accumulator's format; None is zero.
    accumulator : Accumulator
    direction : int
        `EVEN`, `AWAY`, `ZERO`, `UP`, `DOWN` or `ODD`.
    chunk : int
        Products are added in increasing k, in chunks of so many from zero; 0 is one chain from ``c``.
    pairwise : bool
        Neighbours are added, then neighbouring sums, an odd last one going up as it is; ``c`` is added last.

    Returns
    -------
    d : float32 [M, N], contiguous
        Every NaN is the word 0x7FC00000.

    Notes
    -----
    Overflow is IEEE 754's: an infinity, or the largest number where the direction leads toward zero.
    """
    (m, _), n = a.shape, b.shape[1]
    left = np.ascontiguousarray(a)
    words = np.empty((m, n), np.uint32)
    numbers = direction, accumulator.p, accumulator.emin, accumulator.max_finite
    for start in range(0, n, _PANEL):
        columns = slice(start, start + _PANEL)
        right = np.ascontiguousarray(b[:, columns])

        def task(first: int, last: int, right: Any = right, columns: slice = columns) -> None:
            sums = np.zeros((last - first, right.shape[1]))
            with default_environment(), np.errstate(all="ignore"):
                if c is not None:
                    _widen(c[first:last, columns], sums)
                if pairwise:
                    _pairwise(left[first:last], right, sums, *numbers)
                else:
                    _sequential(left[first:last], right, sums, chunk, *numbers)
                _narrow(sums, words[first:last, columns])

        in_ranges(task, m, max(_WORK // max(right.size, 1), 1))
    return words.view(np.float32)
