"""Which outputs of a product of matrices an infinity or a NaN decides, on the words of float32."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import kernel
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.fused_dot import NAN_WORD, Words
from mpsim_kernels.lanes import INF, MAGNITUDE, SIGN

__all__ = ["mark_specials"]

_PLUS, _MINUS, _NAN = np.uint8(1), np.uint8(2), np.uint8(4)
_WORK = 1 << 21  # products worth a thread


def mark_specials(words_a: Words, words_b: Words, words_c: Words | None) -> tuple[Words, NDArray[np.bool_]]:
    """Return the words of the outputs that special operands decide.

    Parameters
    ----------
    words_a, words_b, words_c : int32 [M, K], [K, N] and [M, N], contiguous
        Words of float32; without ``words_c`` accumulators are finite.

    Returns
    -------
    decided : int32 [M, N]
        The NaN, or an infinity where all infinite terms have its sign; 0 where every term is finite.
    first : bool [M, N]
        Where the accumulator is special, so that no sum comes before it.
    """
    marks = np.zeros((words_a.shape[0], words_b.shape[1]), np.uint8)
    if words_c is not None:
        marks[words_c == INF] = _PLUS
        marks[words_c == (INF | SIGN)] = _MINUS
        marks[(words_c & MAGNITUDE) > INF] = _NAN
    first = marks != 0
    special_rows = ((words_b & MAGNITUDE) >= INF).any(axis=1)

    def task(start: int, stop: int) -> None:
        _mark_products(words_a[start:stop], words_b, special_rows, marks[start:stop])

    in_ranges(task, marks.shape[0], max(_WORK // max(words_b.size, 1), 1))
    # Index: which of _PLUS, _MINUS and _NAN were seen.
    words = np.array([0, INF, INF | SIGN, *[NAN_WORD] * 5], np.int32)
    return words[marks], first


@kernel
def _mark_products(a: Any, b: Any, special_rows: Any, marks: Any) -> None:
    """Add the marks of the products to ``marks`` uint8 [M, N].

    ``a`` int32 [M, K] and ``b`` int32 [K, N] are words of float32; ``special_rows`` bool [K] says which rows of ``b``
    have infinities or NaNs.
    """
    for i in range(a.shape[0]):
        mark = marks[i]
        for k in range(a.shape[1]):
            x = np.int32(a[i, k])
            size_x = np.int32(x & MAGNITUDE)
            if size_x < INF and not special_rows[k]:
                continue
            row = b[k]
            for j in range(mark.size):
                y = np.int32(row[j])
                size_y = np.int32(y & MAGNITUDE)
                infinite = size_x == INF or size_y == INF
                nan = size_x > INF or size_y > INF or (infinite and (size_x == 0 or size_y == 0))
                sign = _MINUS if np.int32(x ^ y) < 0 else _PLUS
                mark[j] |= _NAN if nan else (sign if infinite else np.uint8(0))
