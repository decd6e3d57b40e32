"""Matrix products of FP4 operands through dot products of groups: MXFP4 and NVFP4 at full speed.

The products of a group are added exactly; the sum, times its two scales, is one term of a fixed-point sum.
`mpsim_kernels.grouped_panels` computes whole rows in float64 lanes. For units that those do not hold the sums are made
one by one, and are what `mpsim_kernels.fused_dot` takes for products.
"""

import functools
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import kernel
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.floating_point import default_environment
from mpsim_kernels.fused_dot import NAN_EXPONENT, NAN_WORD, FusedDot, fused_rows
from mpsim_kernels.grouped_panels import NO_TERM, GroupedPanelNumbers, make_grouped_panel_rows

__all__ = ["GroupedDot", "general_grouped_gemm", "grouped_gemm"]

_PANEL = 1024  # columns
_WORK = 1 << 21  # multiplications worth a thread
_GENERAL_WORK = 1 << 16  # the same on the general path

Bytes: TypeAlias = NDArray[np.uint8]
_Side: TypeAlias = tuple[NDArray[Any], ...]


class GroupedDot(NamedTuple):
    """The numbers of a dot product of groups: one block is ``c`` and ``groups`` sums of ``group_length`` products.

    The products of a group are added exactly. Each sum is multiplied by the significands of its two scales, and
    cut, toward zero, to a multiple of ``2**(emax - fraction_bits)``. There ``emax`` is the largest of the exponents of
    the scales of nonzero sums and of a nonzero ``c``, at least ``floor``.
    """

    group_length: int
    groups: int
    fraction_bits: int
    floor: int
    p: int
    """Significand bits of the result."""
    emin: int
    """Smallest normal exponent of the result, and of the accumulator."""
    emax: int
    """Exponent from which on a result is infinite, less one."""
    nearest: bool
    """Whether the result is rounded to nearest even; if not, toward zero."""
    scale_bits: int
    """Width of a scale: the other bits of its byte are ignored, and a scale of all ones is NaN."""
    scale_p: int
    """Significand bits of a scale, at most 4; with 1 it is a power of two, neither zero nor subnormal."""
    scale_emin: int
    """Exponent of the smallest normal scale, and of subnormal ones, which stay unnormalised."""


def grouped_gemm(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32] | None,
    scale_a: Bytes,
    scale_b: Bytes,
    unit: GroupedDot,
    block: int,
) -> NDArray[np.float32]:
    """Return ``a @ b + c`` as a unit of dot products of groups computes it.

    Parameters
    ----------
    a : float32 [M, K]
    b : float32 [K, N]
        E2M1 elements before scaling, in any layout.
    c : float32 [M, N] or None
        Values of the result's format, which are not scaled; None is zero.
    scale_a : uint8 [M, ceil(K / block)]
    scale_b : uint8 [ceil(K / block), N]
        Codes of the unit's scale format.
    unit : GroupedDot
        ``fraction_bits`` of at most 46, and blocks so short that no sum leaves 63 bits.
    block : int
        Elements along K that share a scale, a multiple of ``unit.group_length``.

    Returns
    -------
    d : float32 [M, N], contiguous
        Every NaN is the word 0x7FFFFFFF. K = 0 counts as one block without products.
    """
    if not _panels_hold(unit):
        return general_grouped_gemm(a, b, c, scale_a, scale_b, unit, block)
    (m, k), n = a.shape, b.shape[1]
    length = unit.group_length * unit.groups
    depth = max(-(-k // length), 1) * length
    panels = max(-(-n // _PANEL), 1)
    width = -(-max(n, 1) // (panels * 32)) * 32

    def cut(x: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(x.reshape(x.shape[0], panels, width).swapaxes(0, 1))

    groups = depth // unit.group_length
    exponents_a, scales_a = _scales(scale_a, k, (m, groups), unit, block)
    exponents_b, scales_b = _scales(scale_b.T, k, (panels * width, groups), unit, block)
    rows = _halves(a, (m, depth)), exponents_a, scales_a * 0.25
    columns = cut(_halves(b, (depth, panels * width))), cut(exponents_b.T), cut(scales_b.T)
    acc = np.zeros((m, panels * width), np.float64)
    if c is not None:
        with default_environment(), np.errstate(invalid="ignore"):
            acc[:, :n] = c
    numbers = GroupedPanelNumbers(
        bits=np.int64(unit.fraction_bits),
        floor=np.int64(unit.floor),
        emin=np.int64(unit.emin),
        fraction=np.int64(unit.p - 1),
        infinite=np.float64(2.0 ** (unit.emax + 1)),
    )
    panel_rows = make_grouped_panel_rows(unit.group_length, unit.groups)

    def task(start: int, stop: int) -> None:
        part = slice(start, stop)
        panel_rows(tuple(x[part] for x in rows), columns, acc[part], numbers)

    in_ranges(task, m, max(_WORK // columns[0].size, 1))
    with default_environment(), np.errstate(invalid="ignore"):
        d = acc[:, :n].astype(np.float32)
    words = d.view(np.int32)
    words[acc[:, :n] == 0] = 0
    words[np.isnan(d)] = NAN_WORD
    return d


def _panels_hold(unit: GroupedDot) -> bool:
    """Return whether float64 lanes compute this unit."""
    if unit.group_length % 8 != 0 or unit.nearest:
        return False
    # Products are at most 36, significands of scales below 2, accumulators too: a sum has 53 bits at most.
    sums = (36 * 4 * unit.group_length * unit.groups + 2) << unit.fraction_bits
    # With fewer bits an infinity, of exponent 1024, would be multiplied by a power of two that is no normal number.
    bits = sums < 1 << 53 and unit.fraction_bits >= 2 and 3 <= unit.p <= 24
    exponents = unit.emin >= -126 and unit.emax <= 127 and -127 <= unit.scale_emin <= 0
    return bits and exponents and abs(unit.floor) <= 400


def _halves(x: NDArray[np.float32], shape: tuple[int, int]) -> NDArray[np.int16]:
    """Return elements in units of 1/2, with zeros around."""
    halves = np.zeros(shape, np.int16)
    halves[: x.shape[0], : x.shape[1]] = (x * np.float32(2)).astype(np.int16)
    return halves


class _ScaleTable(NamedTuple):
    """What the 256 bytes of scales mean."""

    sigs: NDArray[np.int32]
    """Significands, in units of 2**(1 - p); of NaN 1."""
    exponents: NDArray[np.int16]
    """Exponents; `NO_TERM` for 0 and `NAN_EXPONENT` for NaN."""
    lane_exponents: NDArray[np.int16]
    """The same, but 0 for NaN."""
    values: NDArray[np.float64]


@functools.cache
def _scale_table(bits: int, p: int, emin: int) -> _ScaleTable:
    codes = np.arange(256, dtype=np.int32) & ((1 << bits) - 1)
    field, fraction = codes >> (p - 1), codes & ((1 << (p - 1)) - 1)
    sigs = np.where((field > 0) | (p == 1), fraction | 1 << (p - 1), fraction)
    exponents = emin + (field if p == 1 else np.maximum(field - 1, 0))
    values = np.ldexp(sigs.astype(np.float64), exponents + 1 - p)
    nan = codes == (1 << bits) - 1
    sigs[nan], exponents[nan], values[nan] = 1, NAN_EXPONENT, np.nan
    exponents[sigs == 0] = NO_TERM
    lanes = np.where(nan, 0, exponents)
    return _ScaleTable(sigs, exponents.astype(np.int16), lanes.astype(np.int16), values)


def _group_codes(codes: Bytes, k: int, unit: GroupedDot, block: int) -> Bytes:
    """Return the scales [R, G] of the groups that are not padding alone, from those [R, S] of the blocks."""
    return codes[:, np.arange(0, k, unit.group_length) // block]


def _scales(
    codes: Bytes, k: int, shape: tuple[int, int], unit: GroupedDot, block: int
) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
    """Return exponents and values of the groups' scales, with zeros around; a NaN has the exponent 0."""
    table = _scale_table(unit.scale_bits, unit.scale_p, unit.scale_emin)
    groups = _group_codes(codes, k, unit, block)
    inside = np.s_[: groups.shape[0], : groups.shape[1]]
    exponents, scales = np.full(shape, np.int16(NO_TERM)), np.zeros(shape, np.float64)
    exponents[inside] = table.lane_exponents[groups]
    scales[inside] = table.values[groups]
    return exponents, scales


def general_grouped_gemm(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32] | None,
    scale_a: Bytes,
    scale_b: Bytes,
    unit: GroupedDot,
    block: int,
) -> NDArray[np.float32]:
    """Return ``a @ b + c`` for any unit; arguments as for `grouped_gemm`."""
    (m, k), n = a.shape, b.shape[1]
    table = _scale_table(unit.scale_bits, unit.scale_p, unit.scale_emin)
    codes_a, codes_b = (_group_codes(codes, k, unit, block) for codes in (scale_a, scale_b.T))
    left = _halves(a, (m, k)), table.sigs[codes_a], table.exponents[codes_a]
    right = _halves(b.T, (n, k)), table.sigs[codes_b], table.exponents[codes_b]
    words = np.zeros((m, n), np.uint32) if c is None else np.array(c, np.float32, order="C").view(np.uint32)
    d = np.empty((m, n), np.uint32)
    dot = FusedDot(unit.groups, unit.fraction_bits, unit.floor, unit.p, unit.emin, unit.emax, unit.nearest)

    def task(start: int, stop: int) -> None:
        part = slice(start, stop)
        _general_rows(
            tuple(x[part] for x in left), right, words[part], d[part], dot, unit.group_length, 16 - 2 * unit.scale_p
        )

    in_ranges(task, m, max(_GENERAL_WORK // max(b.size, 1), 1))
    return d.view(np.float32)


@kernel
def _general_rows(left: Any, right: Any, c: Any, d: Any, unit: FusedDot, length: Any, place: Any) -> None:
    """Write the words of ``a @ b + c`` in ``d`` uint32 [M, N].

    ``left`` and ``right`` are tuples: int16 [M or N, K] elements in halves; int32 and int16 [M or N, G] significands
    and exponents of the scales. A sum of 1 stands for ``2**(-2 - 2 * (scale_p - 1))``: ``2**place``, and ``2**30`` as
    the other factor, make it what `fused_rows` takes for that.
    """
    a, sa, ea = left
    b, sb, eb = right
    groups = sa.shape[1]
    sigs, exponents = np.zeros((1, groups), np.int32), np.zeros((1, groups), np.int16)
    ones, zeros = np.full((1, groups), np.int32(1 << 30)), np.zeros((1, groups), np.int16)
    where = np.ones((1, 1), np.int8)
    for i in range(a.shape[0]):
        for j in range(b.shape[0]):
            for g in range(groups):
                total = np.int64(0)
                for k in range(g * length, min((g + 1) * length, a.shape[1])):
                    total += np.int64(a[i, k]) * np.int64(b[j, k])
                sigs[0, g] = np.int32((total * np.int64(sa[i, g]) * np.int64(sb[j, g])) << place)
                if ea[i, g] == NAN_EXPONENT or eb[j, g] == NAN_EXPONENT:
                    sigs[0, g], exponents[0, g] = np.int32(1), np.int16(NAN_EXPONENT)
                else:
                    exponents[0, g] = np.int16(ea[i, g] + eb[j, g])
            fused_rows(sigs, exponents, ones, zeros, c[i : i + 1, j : j + 1], where, d[i : i + 1, j : j + 1], unit)
