"""FP8 instructions that run as two FP16 instructions and an addition, as in the warp-level unit of Hopper.

The products of one instruction are summed from zero in two chained blocks, first those with k mod 4 in {0, 1}, then
those with k mod 4 in {2, 3}; the accumulator is added to that sum by one ordinary addition of IEEE 754.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.floating_point import default_environment
from mpsim_kernels.fused_dot import NAN_WORD, FusedDot, Operand
from mpsim_kernels.gemm import fused_gemm
from mpsim_kernels.lanes import INF, MAGNITUDE, SIGN
from mpsim_kernels.packing import survey
from mpsim_kernels.panels import OVERFLOWN
from mpsim_kernels.products import WORK, Window, find_window, narrow, padded
from mpsim_kernels.words import Words, words

__all__ = ["interleaved_gemm"]

_ADDITIONS = 1 << 18  # worth a thread
_TILE = 1 << 16  # accumulators that stay in the second-level cache from one instruction to the next

_LOST = 13  # low bits of a float32 that an fp16 does not have
_BELOW_HALF, _KEPT = np.int32((1 << (_LOST - 1)) - 1), np.int32(-1 << _LOST)
_HALF_NORMAL = np.int32((127 - 14) << 23)
_HALF_INF = np.int32((127 + 16) << 23)


def interleaved_gemm(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32] | None,
    unit: FusedDot,
    operands: tuple[Operand, Operand],
) -> NDArray[np.float32]:
    """Return ``a @ b + c`` in instructions of ``2 * unit.block_length`` products, in increasing k.

    Parameters
    ----------
    a : float32 [M, K]
    b : float32 [K, N]
        Values of the formats that ``operands`` describes, in any layout.
    c : float32 [M, N] or None
        Values of the result's format, fp32 or fp16; None is zero.
    unit : FusedDot
        The FP16 unit of both blocks. Its result has the format of the whole, to which the addition rounds too.
    operands : pair of Operand

    Returns
    -------
    d : float32 [M, N], contiguous
        Every NaN is the word 0x7FFFFFFF. K = 0 counts as one instruction.

    Notes
    -----
    Of mma.sync m16n8k32 with FP8 operands the order of the halves, the start from zero, the rounding between them and
    the rounded addition follow from results recorded on H100, H200 and B200.
    """
    depth = 2 * unit.block_length
    words_a, words_b = _interleaved(words(a).T, depth).T, _interleaved(words(b), depth)
    words_a = np.ascontiguousarray(words_a)
    d = np.zeros((words_a.shape[0], words_b.shape[1]), np.float32)
    if c is not None:
        d[:] = c
    seen_a, seen_b = survey(words_a.reshape(-1)), survey(words_b.reshape(-1))
    window = find_window(seen_a[:2], seen_b[:2], unit, operands)
    if window is not None and seen_a[2] and seen_b[2]:
        _add_in_tiles(words_a, words_b, d, unit, operands, window)
        return d
    for start in range(0, words_a.shape[1], depth):
        ks = slice(start, start + depth)
        t = fused_gemm(words_a[:, ks].view(np.float32), words_b[ks].view(np.float32), None, unit, operands)
        _add_all(t, d, unit)
    return d


def _interleaved(rows: Words, depth: int) -> Words:
    """Return the rows of whole instructions, those of the first block before those of the second; missing ones are 0.

    ``rows`` is [K, ...].
    """
    k = rows.shape[0]
    instructions = max(-(-k // depth), 1)
    filled = np.zeros((instructions * depth, rows.shape[1]), np.int32)
    filled[:k] = rows
    quads = filled.reshape(instructions, depth // 4, 2, 2, -1)
    return np.ascontiguousarray(quads.swapaxes(1, 2)).reshape(filled.shape)


def _add_in_tiles(
    words_a: Words,
    words_b: Words,
    d: NDArray[np.float32],
    unit: FusedDot,
    operands: tuple[Operand, Operand],
    window: Window,
) -> None:
    """Add the instructions of finite operands to ``d``, some rows after others."""
    product = narrow(words_a, words_b, unit, operands, window)
    depth, k, columns = 2 * unit.block_length, words_a.shape[1], padded(d.shape[1])
    height = max(_TILE // columns, 1)
    add = _add_fp16 if _is_fp16(unit) else _add_fp32

    def task(start: int, stop: int) -> None:
        t = np.zeros((height, columns), np.float32)
        with default_environment(), np.errstate(all="ignore"):
            for first in range(start, stop, height):
                rows = slice(first, min(first + height, stop))
                part = t[: rows.stop - rows.start]
                for at in range(0, k, depth):
                    product.run(rows, at, at + depth, part)
                    add(part, d[rows])

    in_ranges(task, d.shape[0], max(WORK // (k * columns), 1))


def _add_all(t: NDArray[np.float32], d: NDArray[np.float32], unit: FusedDot) -> None:
    """Add the results of one instruction to ``d``."""
    add = _add_fp16 if _is_fp16(unit) else _add_fp32

    def task(start: int, stop: int) -> None:
        with default_environment(), np.errstate(all="ignore"):
            add(t[start:stop], d[start:stop])

    in_ranges(task, d.shape[0], max(_ADDITIONS // max(d.shape[1], 1), 1))


def _is_fp16(unit: FusedDot) -> bool:
    return unit.emax == 15


@inner_kernel
def _sum(x: Any, y: Any) -> Any:
    """Return the word of the float32 ``x + y``; every NaN is NVIDIA's."""
    word = np.float32(x + y).view(np.int32)
    return np.int32(NAN_WORD) if np.int32(word & MAGNITUDE) > INF else word


@kernel
def _add_fp32(t: Any, d: Any) -> None:
    """Add ``t`` float32 [M, N'] to ``d`` [M, N], N <= N', and set it to zero."""
    for i in range(d.shape[0]):
        for j in range(d.shape[1]):
            d[i, j] = np.int32(_sum(t[i, j], d[i, j])).view(np.float32)
            t[i, j] = np.float32(0.0)


@kernel
def _add_fp16(t: Any, d: Any) -> None:
    """As `_add_fp32`, for values of fp16, to which the sum is rounded; `OVERFLOWN` in ``t`` is an infinity."""
    for i in range(d.shape[0]):
        for j in range(d.shape[1]):
            x = np.float32(t[i, j])
            full = np.int32(x.view(np.int32) & SIGN) | INF
            word = _sum(np.int32(full).view(np.float32) if abs(x) >= OVERFLOWN else x, d[i, j])
            # To round an fp16 sum to float32 first does no harm: 24 bits are twice 11 and 2 more. Sums below the
            # normal numbers of fp16 are multiples of its smallest, so they need no rounding.
            size = np.int32(word & MAGNITUDE)
            odd = np.int32(np.int32(size >> _LOST) & np.int32(1))
            up = np.int32(size + np.int32(_BELOW_HALF + odd))
            rounded = np.int32(up & _KEPT)
            finite = rounded if size >= _HALF_NORMAL else size
            result = size if size > INF else (INF if finite >= _HALF_INF else finite)
            d[i, j] = np.int32(result | np.int32(word & SIGN)).view(np.float32)
            t[i, j] = np.float32(0.0)
