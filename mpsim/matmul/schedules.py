"""How a library walks along K: which part of a product each accumulator sums, and how accumulators are joined.

M, N and the shape of tiles do not change the bits of an element; only this does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpsim.formats import FloatFormat
from mpsim.matmul._operands import Operands, Values, values
from mpsim.modes import Choice
from mpsim.units import MatrixUnit
from mpsim_kernels.epilogues import multiply_add, rounded_sum

__all__ = ["SCHEDULES", "Reduction", "Schedule", "ScheduleLike", "Split", "Sums", "follow", "walk"]

T = TypeVar("T")


class Split(Choice):
    """Which tiles of K a split owns."""

    CONTIGUOUS = "contiguous"
    """Neighbours: ``ceil(T / S)`` of the T tiles each."""
    INTERLEAVED = "interleaved"
    """Every S-th tile."""


class Reduction(Choice):
    """How the partial results of splits are joined."""

    SERIAL = "serial"
    """Added in fp32, in order: ``((p0 + p1) + p2) + ...``"""
    PAIRWISE = "pairwise"
    """With ``h = ceil(S / 2)``: ``slot_i = p_i + p_(i+h)`` where ``i + h < S - 1``, else ``p_i``; then
    ``((p_(S-1) + slot_0) + slot_1) + ...``, in fp32 (cuBLASLt on Ada)."""
    IN_PLACE = "in-place"
    """``out = round(out + p_s)`` in order, rounded to the result's format after every split (cuBLAS, 16-bit)."""
    WORKSPACE = "workspace"
    """Every partial result is rounded to the result's format; their sum in fp32, in order from 0, is rounded again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How K is cut; the default is one chain through the unit's accumulator.

    Sources: the studies of cuBLAS and cuBLASLt of arXiv 2606.00279 (16-bit) and of mmaemu 0.1.0 (FP8).
    """

    split_k: int = 1
    """Splits of K, each with accumulators of its own from +0."""
    split: Split | str = Split.CONTIGUOUS
    tile: int = 64
    """Elements of K in a tile, the unit in which K is dealt out."""
    stripes: int = 1
    """Accumulators that take stripes of each tile in turn, added in fp32 at the end of a split ("sliced-K")."""
    promotion: int = 0
    """Products after which a chain restarts from +0, its result added to an fp32 accumulator; 0: never."""
    reduction: Reduction | str = Reduction.SERIAL

    def __post_init__(self) -> None:
        object.__setattr__(self, "split", Split.of(self.split, "split"))
        object.__setattr__(self, "reduction", Reduction.of(self.reduction, "reduction"))
        for name, least in (("split_k", 1), ("tile", 1), ("stripes", 1), ("promotion", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.tile % self.stripes:
            raise ValueError(f"tile is {self.tile} and stripes {self.stripes}; stripes must divide the tile")

    @property
    def is_one_chain(self) -> bool:
        """Whether K is not cut at all."""
        return self.split_k == self.stripes == 1 and not self.promotion


ScheduleLike: TypeAlias = "Schedule | str"

SCHEDULES: dict[str, Schedule] = {
    "one-chain": Schedule(),
    "fp8-fast": Schedule(),
    "fp8-slow": Schedule(promotion=128),
    "deepgemm": Schedule(promotion=128),
    "cublaslt-ada": Schedule(split=Split.INTERLEAVED, tile=64),
    "cublaslt-ada-slow": Schedule(split=Split.INTERLEAVED, tile=64, promotion=128),
    "cublaslt-hopper": Schedule(split=Split.CONTIGUOUS, tile=128),
    "cublaslt-hopper-slow": Schedule(split=Split.CONTIGUOUS, tile=128, promotion=128),
    "cublas-serial": Schedule(reduction=Reduction.IN_PLACE),
    "cublas-sliced": Schedule(stripes=2, reduction=Reduction.IN_PLACE),
    "cublas-workspace": Schedule(reduction=Reduction.WORKSPACE),
}
"""Presets; where a library splits K, ``split_k`` says how often."""


def walk(
    operands: Operands,
    row: MatrixUnit,
    chain: Callable[[Operands, MatrixUnit], Values],
    schedule: Schedule,
    result: FloatFormat,
    block_scales: Callable[[int], Values] | None = None,
) -> Values:
    """Return the fp32 accumulator of ``a @ b + c`` after all splits.

    Parameters
    ----------
    operands : Operands
        Matrices.
    row : MatrixUnit
    chain : callable
        Multiplies matrices by one chain of the unit's instructions.
    schedule : Schedule
    result : FloatFormat
        What the reductions that round between splits round to.
    block_scales : callable, optional
        From a k, the product of the scales [M, N] of its block, which multiplies a promoted result as it is added.

    Raises
    ------
    ValueError
        A block-scaled unit, and a schedule that cuts its blocks.
    """
    if schedule.is_one_chain and block_scales is None:
        return chain(operands, row)
    _require_whole_blocks(schedule, row)
    m, n = operands.a.shape[0], operands.b.shape[1]

    def promoted(total: Values, part: Values, first: int) -> Values:
        if block_scales is None:
            return rounded_sum(total, part)
        return multiply_add(part, block_scales(first), total)

    sums = Sums(
        chain=lambda own, start: chain(_at(operands, own, start, row.scale_block), row),
        promoted=promoted,
        add=rounded_sum,
        store=lambda total: values(total, result),
        zero=lambda: np.zeros((m, n), np.float32),
    )
    return follow(schedule, operands.a.shape[1], operands.c, sums)


@dataclass(frozen=True, slots=True)
class Sums(Generic[T]):
    """The steps that schedules are made of, on matrices or on whatever stands for them."""

    chain: Callable[[NDArray[np.intp], T | None], T]
    """Sums the products at some k from a start, +0 where it is None."""
    promoted: Callable[[T, T, int], T]
    """Adds a chain's result to a total; the number is the first k of the chain."""
    add: Callable[[T, T], T]
    store: Callable[[T], T]
    """Rounds to the result's format."""
    zero: Callable[[], T]


def follow(schedule: Schedule, k: int, start: T | None, sums: Sums[T]) -> T:
    """Return what a schedule makes of K products and an accumulator, which the first chain or total starts from."""
    parts = []
    for s, tiles in enumerate(_dealt(k, schedule)):
        totals = []
        for stripe, own in enumerate(_striped(tiles, schedule)):
            first = start if s == stripe == 0 else None
            if not schedule.promotion:
                totals.append(sums.chain(own, first))
                continue
            total = sums.zero() if first is None else first
            for i in range(0, own.size, schedule.promotion):
                part = sums.chain(own[i : i + schedule.promotion], None)
                total = sums.promoted(total, part, int(own[i]))
            totals.append(total)
        parts.append(functools.reduce(sums.add, totals))
    return _joined(parts, Reduction(schedule.reduction), sums)


def _dealt(k: int, schedule: Schedule) -> list[NDArray[np.intp]]:
    """Return for each split the k that it owns."""
    every = np.arange(k)
    tile = every // schedule.tile
    if schedule.split == Split.INTERLEAVED:
        owner = tile % schedule.split_k
    else:
        tiles = math.ceil(k / schedule.tile)
        owner = tile // max(math.ceil(tiles / schedule.split_k), 1)
    return [every[owner == s] for s in range(schedule.split_k)]


def _striped(own: NDArray[np.intp], schedule: Schedule) -> list[NDArray[np.intp]]:
    stripe = own % schedule.tile // (schedule.tile // schedule.stripes)
    return [own[stripe == i] for i in range(schedule.stripes)]


def _require_whole_blocks(schedule: Schedule, row: MatrixUnit) -> None:
    """Refuse to cut K inside a block of elements that share a scale."""
    if not row.scale:
        return
    cut = schedule.split_k > 1 or schedule.stripes > 1  # else a tile cuts nothing
    lengths = {"tile / stripes": schedule.tile // schedule.stripes if cut else 0, "promotion": schedule.promotion}
    for name, length in lengths.items():
        if length % row.scale_block:
            raise ValueError(
                f"matmul: {name} is {length}; {row} takes whole blocks of {row.scale_block} elements that share a scale"
            )


def _at(operands: Operands, own: NDArray[np.intp], start: Values | None, scale_block: int) -> Operands:
    """Return the part of matrices at some k, which are whole blocks where blocks have scales."""
    ks = slice(int(own[0]), int(own[-1]) + 1) if own.size and own[-1] - own[0] + 1 == own.size else own
    part = Operands(operands.a[:, ks], operands.b[ks], start)
    if operands.scale_a is None or operands.scale_b is None:
        return part
    blocks = own[::scale_block] // scale_block
    return part._replace(scale_a=operands.scale_a[:, blocks], scale_b=operands.scale_b[blocks])


def _joined(parts: list[T], reduction: Reduction, sums: Sums[T]) -> T:
    """Return the sum of partial results."""
    add, store = sums.add, sums.store
    if reduction is Reduction.IN_PLACE:
        return functools.reduce(lambda total, part: store(add(total, part)), parts[1:], store(parts[0]))
    if reduction is Reduction.WORKSPACE:
        return functools.reduce(add, map(store, parts), sums.zero())
    if reduction is Reduction.PAIRWISE:
        s, h = len(parts), -(-len(parts) // 2)
        slots = [add(parts[i], parts[i + h]) if i + h < s - 1 else parts[i] for i in range(min(h, s - 1))]
        return functools.reduce(add, slots, parts[-1])
    return functools.reduce(add, parts)
