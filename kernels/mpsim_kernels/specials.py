"""Which outputs of a product of matrices an infinity or a NaN decides, on the words of float32.

Only few properties of an operand matter: whether it is infinite, zero, negative, or a NaN. They are kept as sets of k,
64 to a word, so that one word of a row and one of a column tell about 64 products.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.fused_dot import NAN_WORD
from mpsim_kernels.lanes import INF, MAGNITUDE, SIGN
from mpsim_kernels.words import Words

__all__ = ["settle_specials"]

_WORK = 1 << 21  # products worth a thread


def settle_specials(d: Words, words_a: Words, words_b: Words, words_c: Words | None) -> NDArray[np.int8] | None:
    """Set the outputs that special operands decide: to the NaN, or to an infinity where no other sign is added.

    Parameters
    ----------
    d : int32 [M, N], contiguous
        Words of float32: the results without the special operands; changed in place.
    words_a, words_b, words_c : int32 [M, K], [K, N] and [M, N], contiguous
        Words of float32; without ``words_c`` accumulators are finite.

    Returns
    -------
    late : int8 [M, N] or None
        Where a sum that has overflowed meets infinite products of the other sign, so that it matters which came
        first: 2 or -2, after the sign of the products. Such outputs are left alone. None: there are none.
    """
    sets_a, nans_a = _sets(np.ascontiguousarray(words_a.T))
    sets_b, nans_b = _sets(words_b)
    infinite_b = sets_b[0].any(axis=1)
    c = np.empty((0, d.shape[1]), np.int32) if words_c is None else words_c
    late = np.zeros(d.shape, np.int8)

    def task(start: int, stop: int) -> None:
        rows = slice(start, stop)
        a = sets_a[:, :, rows], nans_a[rows]
        _settle(*a, sets_b, nans_b, infinite_b, c[rows], d[rows], late[rows])

    in_ranges(task, d.shape[0], max(_WORK // max(words_b.size, 1), 1))
    return late if late.any() else None


def _sets(words: Words) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return the sets of k of each column, uint64 [3, W, N], and which columns have a NaN; ``words`` is [K, N]."""
    k, n = words.shape
    sets, nans = np.zeros((3, -(-k // 64), n), np.uint64), np.zeros(n, np.bool_)
    _collect(words, sets, nans)
    return sets, nans


@kernel
def _collect(words: Any, sets: Any, nans: Any) -> None:
    """Put every k of ``words`` int32 [K, N] into the sets of its column: infinite, zero, negative numbers."""
    for k in range(words.shape[0]):
        word, row = k // 64, words[k]
        bit = np.uint64(1) << np.uint64(k % 64)
        for j in range(row.size):
            size = np.int32(row[j] & MAGNITUDE)
            sets[0, word, j] |= bit if size == INF else np.uint64(0)
            sets[1, word, j] |= bit if size == 0 else np.uint64(0)
            sets[2, word, j] |= bit if row[j] < 0 else np.uint64(0)
            nans[j] |= size > INF


@kernel
def _settle(a: Any, nans_a: Any, b: Any, nans_b: Any, infinite_b: Any, c: Any, d: Any, late: Any) -> None:
    """Set ``d`` and ``late`` as `settle_specials` returns them.

    ``a`` uint64 [3, W, M] and ``b`` uint64 [3, W, N] are the sets of the rows and columns, ``nans_a`` and ``nans_b``
    their NaNs; ``infinite_b`` bool [W] says which words of ``b`` have infinities. ``c`` may have no rows.
    """
    count, n = b.shape[1:]
    invalid, plus, minus = np.empty(n, np.uint64), np.empty(n, np.uint64), np.empty(n, np.uint64)
    for i in range(d.shape[0]):
        invalid[:], plus[:], minus[:] = 0, 0, 0
        for w in range(count):
            infinite, zero, negative = a[0, w, i], a[1, w, i], a[2, w, i]
            if infinite != 0 or infinite_b[w]:
                _add_products(infinite, zero, negative, b[0, w], b[1, w], b[2, w], invalid, plus, minus)
        for j in range(n):
            start = np.int32(c[i, j]) if c.shape[0] else np.int32(0)
            size, before = np.int32(start & MAGNITUDE), np.int32(d[i, j])
            up, down = plus[j] != 0, minus[j] != 0
            nan = nans_a[i] or nans_b[j] or size > INF or invalid[j] != 0
            nan = nan or ((up or start == INF) and (down or start == (SIGN | INF)))
            word = np.int32(NAN_WORD) if nan else np.int32(INF if up or start == INF else SIGN | INF)
            decided = nan or up or down or size == INF
            meets = decided and not nan and size < INF and np.int32(before ^ word) == SIGN
            late[i, j] = np.int8(np.int8(2) if up else np.int8(-2)) if meets else np.int8(0)
            d[i, j] = word if decided and not meets else before


@inner_kernel
def _add_products(
    infinite: Any,
    zero: Any,
    negative: Any,
    infinite_b: Any,
    zero_b: Any,
    negative_b: Any,
    invalid: Any,
    plus: Any,
    minus: Any,
) -> None:
    """Add 64 products of each column to what it has: products of infinity and zero, and infinities of either sign."""
    for j in range(invalid.size):
        either = infinite | infinite_b[j]
        sign = negative ^ negative_b[j]
        invalid[j] |= (infinite & zero_b[j]) | (zero & infinite_b[j])
        minus[j] |= either & sign
        plus[j] |= either & ~sign
