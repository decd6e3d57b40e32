"""How many products a fused dot product cuts as it aligns them: to nothing, or in part."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import kernel
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.fused_dot import INF_EXPONENT, FusedDot, Operand, Words, split_matrix, split_word

__all__ = ["count_cuts"]

_WORK = 1 << 16  # products worth a thread


@kernel
def _count_rows(
    a: Any, ea: Any, b: Any, eb: Any, c: Any, shifts: Any, bits: Any, floor: Any, emin: Any, counts: Any
) -> None:
    """Add the nonzero finite products of one block to ``counts``: how many, cut to nothing, cut in part."""
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            sig, largest = split_word(np.int64(c[i, j]), np.int64(emin))
            if largest >= INF_EXPONENT:
                continue  # nothing is aligned to an infinity or a NaN
            largest = max(largest, np.int64(floor)) if sig != 0 else np.int64(floor)
            infinite = np.int64(0)
            for k in range(a.shape[1]):
                e = np.int64(ea[i, k]) + np.int64(eb[j, k])
                infinite += np.int64(e >= INF_EXPONENT // 2)
                if a[i, k] != 0 and b[j, k] != 0:
                    largest = max(largest, e + shifts[i, j])
            if infinite:
                continue
            for k in range(a.shape[1]):
                sig = abs(np.int64(a[i, k]) * np.int64(b[j, k]))
                if sig != 0:
                    place = np.int64(ea[i, k]) + np.int64(eb[j, k]) + shifts[i, j] - largest + bits - 46
                    right = min(max(-place, np.int64(0)), np.int64(63))
                    kept = sig >> right
                    counts[0] += 1
                    counts[1] += kept == 0
                    counts[2] += kept != 0 and kept << right != sig


def count_cuts(
    words_a: Words,
    words_b: Words,
    words_c: Words,
    unit: FusedDot,
    operands: tuple[Operand, Operand],
    shifts: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Return how many products of one block are not zero, are cut to nothing, and are cut in part.

    Parameters
    ----------
    words_a, words_b, words_c : int32 [M, L], [L, N] and [M, N], contiguous
        Words of float32, as for `mpsim_kernels.fused_dot.general_gemm`; L is at most the block length.
    unit : FusedDot
    operands : pair of Operand
    shifts : int64 [M, N], optional
        What scales add to the exponents of products.

    Returns
    -------
    counts : int64 [3]
        Products beside an infinity or a NaN are not counted.
    """
    sides: list[NDArray[Any]] = []
    for words, operand in ((words_a, operands[0]), (np.ascontiguousarray(words_b.T), operands[1])):
        sides += split_matrix(words, operand)
    moved = np.zeros(words_c.shape, np.int64) if shifts is None else np.ascontiguousarray(shifts, np.int64)
    parts: list[NDArray[np.int64]] = []

    def task(start: int, stop: int) -> None:
        rows = slice(start, stop)
        counts = np.zeros(3, np.int64)
        parts.append(counts)
        c = words_c[rows].view(np.uint32)
        numbers = unit.fraction_bits, unit.floor, unit.emin
        _count_rows(sides[0][rows], sides[1][rows], sides[2], sides[3], c, moved[rows], *numbers, counts)

    in_ranges(task, words_c.shape[0], max(_WORK // max(words_b.size, 1), 1))
    return np.sum(parts, axis=0) if parts else np.zeros(3, np.int64)
