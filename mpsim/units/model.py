"""What a matrix unit is: a family of arithmetic, and the numbers that tell its members apart."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from mpsim.formats import FloatFormat, FormatLike, get_format
from mpsim.modes import Choice, unknown

__all__ = ["Family", "InputsLike", "MatrixUnit", "Order", "UnitLike", "ZeroTerms"]


class Family(enum.StrEnum):
    """How a unit adds the products."""

    FUSED = "fused"
    """Blocks of products and the accumulator, aligned, truncated and summed exactly (NVIDIA tensor cores)."""
    SCALED = "scaled"
    """As FUSED, with a power of two for each block of either operand (MXFP8, MXFP6, MXFP4)."""
    GROUPED = "grouped"
    """Exact sums of groups of FP4 products, scaled, then aligned and summed as in FUSED (MXFP4, NVFP4)."""
    INTERLEAVED = "interleaved"
    """FP8 through two FP16 instructions from zero, and an IEEE addition of the accumulator (Hopper's mma.sync)."""
    FMA_CHAIN = "fma-chain"
    """One fused multiply-add after another (FP64 and FP32 instructions)."""
    EXACT_BLOCKS = "exact-blocks"
    """Blocks of products and the accumulator summed exactly, and rounded once (AMD CDNA 1)."""
    FLUSHED_PAIRS = "flushed-pairs"
    """Products and their pairwise sums rounded at every step, subnormals flushed (AMD CDNA 2)."""
    FLOORED = "floored"
    """Products truncated and summed, then that sum and the accumulator cut toward minus infinity (AMD CDNA 3)."""
    FLOORED_HALVES = "floored-halves"
    """As FLOORED, with even and odd products aligned apart (AMD CDNA 3, FP8)."""
    VDPBF16PS = "vdpbf16ps"
    """Two fused multiply-adds a pair, the odd element first, without subnormals (x86 AVX512_BF16)."""
    AMX = "amx"
    """Chains of even and of odd products from zero, added to each other and then to the accumulator (Intel AMX)."""
    BFDOT = "bfdot"
    """Pairs of products rounded to odd at every step, without subnormals (Arm)."""
    BFDOT_EXTENDED = "bfdot-extended"
    """Pairs of products with one rounding, added to the accumulator with another (Arm FEAT_EBF16)."""
    ROUNDED = "rounded"
    """Every partial sum rounded to a format, in a chosen order (idealised)."""
    EXACT = "exact"
    """The exact dot product, rounded once (idealised)."""
    NATIVE = "native"
    """NumPy's float32 matmul: not emulated, and not the same bits on every computer."""


class ZeroTerms(enum.StrEnum):
    """What a product or accumulator that is zero does to the alignment of the others."""

    DROP = "drop"
    """Nothing: only nonzero terms are aligned to, and to no less than the alignment floor."""
    MMA_SIM = "mma-sim"
    """A zero operand has the exponent -126 and takes part; there is no floor. MMA-Sim's rule (arXiv 2511.10909)."""


class Order(Choice):
    """In which order an idealised unit adds."""

    SEQUENTIAL = "sequential"
    """In increasing k, from the accumulator; with a block length each block from zero (Wang et al. 2018)."""
    PAIRWISE = "pairwise"
    """Neighbours, then neighbouring sums, level by level; the accumulator last."""


_FUSED = (Family.FUSED, Family.SCALED, Family.GROUPED, Family.INTERLEAVED)
_SCALED = (Family.SCALED, Family.GROUPED)
_LARGEST_CUT = 46
"""Fraction bits of an aligned sum that 64 bits hold with room for carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixUnit:
    """One matrix instruction: what comes in, what comes out, and how its adder cuts and rounds.

    A row is plain data, so ``dataclasses.replace(unit, fraction_bits=20)`` is a unit that might have been. A number
    that the row's family does not use has no effect.
    """

    family: Family
    architecture: str
    """Name of the generation, such as ``"ampere"``."""
    devices: tuple[str, ...] = ()
    """Products, boards and compiler targets that have this instruction."""
    instruction: str
    a: str
    """Format of the left operand."""
    b: str
    """Format of the right operand."""
    out: str
    """Format of the result, and of the accumulator between blocks and instructions."""
    accumulators: tuple[str, ...] = ()
    """Formats in which ``c`` may come; a narrower one than ``out`` is widened first."""
    k: int = 0
    """Products of one instruction."""
    block_length: int = 0
    """Products that are summed at once; an instruction of larger ``k`` chains blocks in increasing k."""
    fraction_bits: int = 0
    """Bits kept below the largest exponent when terms are aligned; what lies lower is cut off."""
    result_precision: int = 24
    """Significand bits, the hidden bit included, that the conversion of a block's sum keeps."""
    rounding: str = "toward-zero"
    """How a block's or a partial sum is converted; overflow of a block is an infinity whatever the direction."""
    integer_bits: int = 0
    """Width of the adder left of the point, which decides the alignment floor."""
    alignment_floor: int | None = None
    """Smallest exponent that terms are aligned to; None: ``emin`` of the result less ``integer_bits``."""
    zero_terms: ZeroTerms = ZeroTerms.DROP
    scale: str = ""
    """Format of the blocks' scales, of units that take them."""
    scale_block: int = 0
    """Elements along K that share a scale."""
    group_length: int = 0
    """Products that are summed exactly, and aligned by their scales alone, before the others."""
    sum_bits: int = 0
    """Bits below the largest exponent to which CDNA 3 cuts the sum of a block's products."""
    accumulator_bits: int = 0
    """Bits below the largest exponent to which CDNA 3 cuts the accumulator."""
    accumulator_reach: int = 1000
    """Bits below the largest exponent within which CDNA 3's accumulator counts at all."""
    subnormal_inputs: bool = True
    """Whether AMX takes subnormal operands as they are, rather than as zeros."""
    order: str = Order.SEQUENTIAL
    """How an idealised unit adds; of AMX ``"sdm"`` or ``"intrinsics-guide"``, after the document that describes it."""
    evidence: str = "E"
    """A: recordings replayed; B: validated on devices by two groups; C: by one; D: vendor document; E: inferred."""
    source: str = ""

    def __post_init__(self) -> None:
        if self.family in _FUSED:
            if self.block_length < 1 or not 1 <= self.fraction_bits <= _LARGEST_CUT:
                raise ValueError(
                    f"{self}: block_length = {self.block_length}, fraction_bits = {self.fraction_bits}; "
                    f"they must be at least 1, and fraction_bits at most {_LARGEST_CUT}"
                )
            if self.rounding not in ("toward-zero", "nearest-even"):
                raise ValueError(f"{self}: rounding is {self.rounding!r}; it must be 'toward-zero' or 'nearest-even'")
            if not 1 <= self.result_precision <= get_format(self.out).p:
                raise ValueError(
                    f"{self}: result_precision = {self.result_precision} is not a precision within {self.out}"
                )
        if self.family in _SCALED and (self.scale_block < 1 or not self.scale):
            raise ValueError(f"{self}: scale is {self.scale!r}, scale_block = {self.scale_block}; it needs both")
        if self.family is Family.ROUNDED and self.order not in tuple(Order):
            raise unknown(f"{self}: order", self.order, Order)

    @property
    def floor(self) -> int:
        """Smallest exponent that terms are aligned to."""
        if self.alignment_floor is not None:
            return self.alignment_floor
        return get_format(self.out).emin - self.integer_bits

    @property
    def inputs(self) -> tuple[FloatFormat, FloatFormat]:
        """Formats of the two operands."""
        return get_format(self.a), get_format(self.b)

    @property
    def shown_inputs(self) -> str:
        """The formats of the operands and of their scales, for people."""
        pair = self.a if self.a == self.b else f"{self.a} x {self.b}"
        return f"{pair} with {self.scale}/{self.scale_block}" if self.scale else pair

    def __str__(self) -> str:
        scale = f" with {self.scale}/{self.scale_block}" if self.scale else ""
        return f"{self.architecture} {self.instruction} ({self.a} x {self.b}{scale} -> {self.out})"


UnitLike: TypeAlias = "MatrixUnit | str"
InputsLike: TypeAlias = "FormatLike | tuple[FormatLike, FormatLike]"
