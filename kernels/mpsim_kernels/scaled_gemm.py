"""Matrix products of block-scaled operands through fused dot products: MXFP8, MXFP6 and MXFP4.

A scale is a power of two, so it moves the exponents of its block's products and rounds nothing.
`mpsim_kernels.scaled_panels` takes elements whose exponents lie close together, as those of 8 bits and less do;
for others the exponents of the scales are added to those of the elements, and `mpsim_kernels.fused_dot` does the rest.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._threads import in_ranges
from mpsim_kernels.fused_dot import (
    DROPPED,
    INF_EXPONENT,
    NAN_EXPONENT,
    NAN_WORD,
    FusedDot,
    Operand,
    fused_rows,
    split_matrix,
)
from mpsim_kernels.lanes import INF, MAGNITUDE
from mpsim_kernels.packing import ZERO_EXPONENT, pack, survey
from mpsim_kernels.scaled_panels import FIRST_SPECIAL, NAN_SCALE, ScaledPanelNumbers, classify, make_scaled_panel_rows
from mpsim_kernels.words import Words, words

__all__ = ["general_scaled_gemm", "scaled_gemm"]

_PANEL = 512  # columns; 16 rows of B and a row of accumulators fit the first-level cache
_WORK = 1 << 21  # multiplications worth a thread
_GENERAL_WORK = 1 << 16  # the same on the general path
_BIAS, _NAN_CODE = 127, 255

_EXPONENTS = np.arange(256, dtype=np.int32) - _BIAS
_EXPONENTS[_NAN_CODE] = NAN_SCALE

Scales: TypeAlias = NDArray[np.uint8]
_Side: TypeAlias = tuple[NDArray[Any], ...]


class _Layout(NamedTuple):
    """How K is cut into blocks, and the columns into panels."""

    length: int
    blocks: int
    scaled: int
    """Elements that share a scale."""
    panels: int
    width: int

    def scales(self, k: int) -> NDArray[np.intp]:
        """Return which scale each block has that is not padding alone."""
        return np.arange(0, k, self.length) // self.scaled

    def cut(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return a matrix [R, P * W] as panels [P, R, W]."""
        return np.ascontiguousarray(x.reshape(x.shape[0], self.panels, self.width).swapaxes(0, 1))


def scaled_gemm(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32] | None,
    scale_a: Scales,
    scale_b: Scales,
    unit: FusedDot,
    operands: tuple[Operand, Operand],
    block: int,
) -> NDArray[np.float32]:
    """Return ``a @ b + c`` as a unit of fused dot products with E8M0 scales computes it.

    Parameters
    ----------
    a : float32 [M, K]
    b : float32 [K, N]
        Elements before scaling, values of the formats that ``operands`` describes, in any layout.
    c : float32 [M, N] or None
        Values of the result's format, which are not scaled; None is zero.
    scale_a : uint8 [M, ceil(K / block)]
    scale_b : uint8 [ceil(K / block), N]
        Codes of powers of two with bias 127; 255 is NaN.
    unit : FusedDot
        ``fraction_bits`` of at most 46. Zeros are dropped, whatever its ``zero_exponent``.
    operands : pair of Operand
    block : int
        Elements along K that share a scale.

    Returns
    -------
    d : float32 [M, N], contiguous
        Every NaN is the word 0x7FFFFFFF. K = 0 counts as one block without products.
    """
    words_a, words_b = words(a), words(b)
    words_c = None if c is None else words(c)
    seen_a, seen_b = survey(words_a.reshape(-1)), survey(words_b.reshape(-1))
    least = _least_exponent(seen_a[:2], seen_b[:2], operands)
    if least is None or not _panels_hold(unit, operands, block):
        return general_scaled_gemm(words_a, words_b, words_c, scale_a, scale_b, unit, operands, block).view(np.float32)
    panels = max(-(-words_b.shape[1] // _PANEL), 1)
    layout = _Layout(
        length=unit.block_length,
        blocks=max(-(-words_a.shape[1] // unit.block_length), 1),
        scaled=block,
        panels=panels,
        width=-(-max(words_b.shape[1], 1) // (panels * 16)) * 16,
    )
    finite = seen_a[2] and seen_b[2]
    rows = _rows(words_a, scale_a, operands[0], layout, finite)
    columns = _columns(words_b, scale_b, operands[1], layout, finite)
    acc = _accumulators(words_c, (words_a.shape[0], words_b.shape[1]), layout)
    numbers = unit.fraction_bits, unit.floor, least, -(1 << max(24 - unit.p, 0))
    packed_numbers = ScaledPanelNumbers(*map(np.int32, numbers))
    panel_rows = make_scaled_panel_rows(unit.block_length)

    def task(start: int, stop: int) -> None:
        part = slice(start, stop)
        panel_rows(tuple(x[part] for x in rows), columns, acc[part], packed_numbers)

    in_ranges(task, acc.shape[0], max(_WORK // columns[0].size, 1))
    return np.ascontiguousarray(acc[:, : words_b.shape[1]])


def _least_exponent(seen_a: tuple[int, int], seen_b: tuple[int, int], operands: tuple[Operand, Operand]) -> int | None:
    """Return the smallest exponent that a nonzero product may have, or None where signed bytes do not hold them all.

    ``seen`` are the smallest and largest biased exponents of the nonzero numbers.
    """
    if min(seen_a[0], seen_b[0]) == 0:
        return None  # float32 subnormals, which the processor may take for zero
    # A matrix of zeros has no exponents: any will do.
    low_a, high_a = (max(x - _BIAS, operands[0].emin) for x in (seen_a if seen_a[1] else (_BIAS, _BIAS)))
    low_b, high_b = (max(x - _BIAS, operands[1].emin) for x in (seen_b if seen_b[1] else (_BIAS, _BIAS)))
    # Exponents fit, those of zeros included, and a zero's sums stay below all others.
    fits = min(low_a, low_b) > ZERO_EXPONENT and max(high_a, high_b) < 64
    fits = fits and ZERO_EXPONENT + max(high_a, high_b) < low_a + low_b
    return low_a + low_b if fits else None


def _panels_hold(unit: FusedDot, operands: tuple[Operand, Operand], block: int) -> bool:
    """Return whether the vectorised path computes this unit."""
    length, bits = unit.block_length, unit.fraction_bits
    if length % 16 != 0 or block % length != 0 or sum(operand.p for operand in operands) > 24:
        return False
    # Products are below 4 and accumulators below 2. A sum fits 32 bits and a sign, and each half of it 31.
    largest = float((2 - 2.0 ** (1 - operands[0].p)) * (2 - 2.0 ** (1 - operands[1].p)))
    half = (largest * (length // 2) + 2) * 2.0**bits
    sums = half < 2.0**31 - 64 and (largest * length + 2) * 2.0**bits < 2.0**32 - 128
    return sums and not unit.nearest and (unit.emin, unit.emax) == (-126, 127) and abs(unit.floor) <= 400


def _rows(words: Words, scales: Scales, operand: Operand, layout: _Layout, finite: bool) -> _Side:
    """Return the left operand as `make_scaled_panel_rows` takes it."""
    m, k = words.shape
    depth = layout.length * layout.blocks
    values, exponents = np.empty((1, m, depth), np.int32), np.empty((1, m, depth), np.int8)
    pack(words, operand.emin, 0, depth, values, exponents)
    scale_exponents = np.zeros((m, layout.blocks), np.int32)
    which = layout.scales(k)
    scale_exponents[:, : which.size] = _EXPONENTS[scales[:, which]]
    special = scale_exponents == NAN_SCALE
    kinds = np.zeros((m, 0 if finite else depth), np.uint8)
    if not finite:
        kinds[:, :k] = _kinds(words)
        special |= (kinds >= FIRST_SPECIAL).reshape(m, layout.blocks, layout.length).any(axis=2)
    return values[0].view(np.float32), exponents[0], scale_exponents, special, kinds


def _columns(words: Words, scales: Scales, operand: Operand, layout: _Layout, finite: bool) -> _Side:
    """Return the right operand as `make_scaled_panel_rows` takes it."""
    k, n = words.shape
    depth, width = layout.length * layout.blocks, layout.panels * layout.width
    shape = layout.panels, depth, layout.width
    values, exponents = np.empty(shape, np.int32), np.empty(shape, np.int8)
    pack(words, operand.emin, 0, width, values, exponents)
    scale_exponents = np.zeros((layout.blocks, width), np.int32)
    which = layout.scales(k)
    scale_exponents[: which.size, :n] = _EXPONENTS[scales[which]]
    scale_exponents = layout.cut(scale_exponents)
    special = (scale_exponents == NAN_SCALE).any(axis=2)
    bits = np.zeros((0 if finite else depth, width), np.uint8)
    if not finite:
        kinds = _kinds(words)
        bits[:k, :n] = np.left_shift(np.uint8(1), kinds)
        in_rows = np.zeros((depth, width), np.bool_)
        in_rows[:k, :n] = kinds >= FIRST_SPECIAL
        special |= layout.cut(in_rows).reshape(layout.panels, layout.blocks, -1).any(axis=2)
    return values.view(np.float32), exponents, scale_exponents, special, layout.cut(bits)


def _kinds(words: Words) -> NDArray[np.uint8]:
    kinds = np.empty(words.shape, np.uint8)
    classify(words.reshape(-1), kinds.reshape(-1))
    return kinds


def _accumulators(words_c: Words | None, shape: tuple[int, int], layout: _Layout) -> NDArray[np.float32]:
    """Return the accumulators [M, P * W] to start from; what lies beyond the last column is NaN, which ends at once."""
    acc = np.full((shape[0], layout.panels * layout.width), np.int32(NAN_WORD))
    acc[:, : shape[1]] = 0 if words_c is None else np.where((words_c & MAGNITUDE) > INF, np.int32(NAN_WORD), words_c)
    return acc.view(np.float32)


def general_scaled_gemm(
    words_a: Words,
    words_b: Words,
    words_c: Words | None,
    scale_a: Scales,
    scale_b: Scales,
    unit: FusedDot,
    operands: tuple[Operand, Operand],
    block: int,
) -> Words:
    """Return ``a @ b + c`` for any unit and any numbers, as words of float32; arguments as for `scaled_gemm`."""
    shape = words_a.shape[0], words_b.shape[1]
    a, ea = _split(words_a, scale_a, operands[0], block)
    b, eb = _split(np.ascontiguousarray(words_b.T), scale_b.T, operands[1], block)
    c = (np.zeros(shape, np.int32) if words_c is None else words_c).view(np.uint32)
    d, wanted = np.empty(shape, np.uint32), np.ones(shape, np.int8)
    dot = unit._replace(zero_exponent=DROPPED)

    def task(start: int, stop: int) -> None:
        rows = slice(start, stop)
        fused_rows(a[rows], ea[rows], b, eb, c[rows], wanted[rows], d[rows], dot)

    in_ranges(task, shape[0], max(_GENERAL_WORK // max(b.size, 1), 1))
    return d.view(np.int32)


def _split(words: Words, scales: Scales, operand: Operand, block: int) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
    """Return significands and exponents [R, K] of scaled numbers; a NaN scale makes them NaN."""
    sigs, exponents = split_matrix(words, operand)
    codes = scales[:, np.arange(words.shape[1]) // block]
    scaled = exponents + _EXPONENTS[codes].astype(np.int16)
    exponents = np.where(exponents >= INF_EXPONENT, exponents, scaled)
    sigs[codes == _NAN_CODE], exponents[codes == _NAN_CODE] = 1, NAN_EXPONENT
    return sigs, exponents
