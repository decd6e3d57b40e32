"""From a unit's row to the kernel of its family.

Kernels are imported when their family is first asked for: a first call waits for those that it needs, not for all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mpsim.formats import get_format
from mpsim.matmul._operands import Codes, Operands, Values, values
from mpsim.units import Family, MatrixUnit, Order, ZeroTerms
from mpsim_kernels.fused_dot import FusedDot, Operand

if TYPE_CHECKING:
    from mpsim_kernels.floored import Floored

__all__ = ["MMA_SIM_ZERO", "ONE_NAN", "fused_numbers", "unit_product", "unit_stack"]

ONE_NAN = (Family.FUSED, Family.SCALED, Family.GROUPED, Family.INTERLEAVED)
"""Families whose every NaN is the code of all ones but the sign."""


MMA_SIM_ZERO = -126
"""Exponent of zeros by `ZeroTerms.MMA_SIM`."""
_NO_FLOOR = -1000  # below the exponent of any product


def unit_product(operands: Operands, row: MatrixUnit) -> Values:
    """Return ``a @ b + c`` of matrices of values, one chain along K for each element."""
    return _FAMILIES[row.family](operands, row)


def unit_stack(operands: Operands, row: MatrixUnit) -> Values | None:
    """Return ``a @ b`` for stacks of matrices; None where they must go one by one."""
    from mpsim_kernels.gemm import fused_stack

    return fused_stack(operands.a, operands.b, *fused_numbers(row)) if row.family is Family.FUSED else None


@functools.cache
def fused_numbers(row: MatrixUnit) -> tuple[FusedDot, tuple[Operand, Operand]]:
    """Return a row of the fused families as the kernels want it."""
    result = get_format(row.out)
    a, b = row.inputs
    unit = FusedDot(
        block_length=row.block_length,
        fraction_bits=row.fraction_bits,
        floor=row.floor,
        p=row.result_precision,
        emin=result.emin,
        emax=result.emax,
        nearest=row.rounding == "nearest-even",
    )
    if row.zero_terms is ZeroTerms.MMA_SIM:
        unit = unit._replace(floor=_NO_FLOOR, zero_exponent=MMA_SIM_ZERO)
    return unit, (Operand(a.p, a.emin), Operand(b.p, b.emin))


def _interleaved(x: Operands, row: MatrixUnit) -> Values:
    from mpsim_kernels.interleaved import interleaved_gemm

    return interleaved_gemm(x.a, x.b, x.c, *fused_numbers(row))


def _fma_chain(x: Operands, _: MatrixUnit) -> Values:
    from mpsim_kernels.fma_chain import fma_gemm

    return fma_gemm(x.a, x.b, x.c)


def _vdpbf16ps(x: Operands, _: MatrixUnit) -> Values:
    from mpsim_kernels.x86_dots import vdpbf16ps_gemm

    return vdpbf16ps_gemm(x.a, x.b, x.c)


def _amx(x: Operands, row: MatrixUnit) -> Values:
    from mpsim_kernels.x86_dots import amx_gemm

    return amx_gemm(x.a, x.b, x.c, not row.subnormal_inputs, row.k, row.order == "intrinsics-guide")


def _bfdot(x: Operands, row: MatrixUnit) -> Values:
    from mpsim_kernels.arm_dots import bfdot_gemm

    return bfdot_gemm(x.a, x.b, x.c, row.family is Family.BFDOT_EXTENDED)


def _exact_blocks(x: Operands, row: MatrixUnit) -> Values:
    from mpsim_kernels.exact_blocks import exact_block_gemm

    return exact_block_gemm(x.a, x.b, x.c, row.block_length)


def _exact(x: Operands, _: MatrixUnit) -> Values:
    from mpsim_kernels.exact_blocks import exact_gemm

    return exact_gemm(x.a, x.b, x.c)


def _fused(x: Operands, row: MatrixUnit) -> Values:
    from mpsim_kernels.gemm import fused_gemm

    return fused_gemm(x.a, x.b, x.c, *fused_numbers(row))


def _scales(x: Operands) -> tuple[Codes, Codes]:
    assert x.scale_a is not None and x.scale_b is not None  # noqa: PT018
    return x.scale_a, x.scale_b


def _scaled(x: Operands, row: MatrixUnit) -> Values:
    from mpsim_kernels.scaled_gemm import scaled_gemm

    return scaled_gemm(x.a, x.b, x.c, *_scales(x), *fused_numbers(row), row.scale_block)


def _grouped(x: Operands, row: MatrixUnit) -> Values:
    from mpsim_kernels.grouped_gemm import GroupedDot, grouped_gemm

    out, scale = get_format(row.out), get_format(row.scale)
    unit = GroupedDot(
        group_length=row.group_length,
        groups=row.block_length // row.group_length,
        fraction_bits=row.fraction_bits,
        floor=row.floor,
        p=row.result_precision,
        emin=out.emin,
        emax=out.emax,
        nearest=row.rounding == "nearest-even",
        scale_bits=scale.bits,
        scale_p=scale.p,
        scale_emin=scale.emin,
    )
    return grouped_gemm(x.a, x.b, x.c, *_scales(x), unit, row.scale_block)


def _floored_numbers(row: MatrixUnit) -> tuple[Floored, tuple[Operand, Operand]]:
    from mpsim_kernels.floored import Floored

    a, b = row.inputs
    unit = Floored(
        block_length=row.block_length,
        product_bits=row.fraction_bits,
        sum_bits=row.sum_bits,
        accumulator_bits=row.accumulator_bits,
        accumulator_reach=row.accumulator_reach,
        drop_zeros=row.zero_terms is ZeroTerms.DROP,
    )
    return unit, (Operand(a.p, a.emin), Operand(b.p, b.emin))


def _floored(x: Operands, row: MatrixUnit) -> Values:
    from mpsim_kernels.floored import floored_gemm

    return floored_gemm(x.a, x.b, x.c, *_floored_numbers(row))


def _floored_halves(x: Operands, row: MatrixUnit) -> Values:
    from mpsim_kernels.floored import floored_pair_gemm

    return floored_pair_gemm(x.a, x.b, x.c, *_floored_numbers(row))


def _flushed_pairs(x: Operands, row: MatrixUnit) -> Values:
    from mpsim_kernels.flushed_pairs import flushed_pair_gemm

    a, b = row.inputs
    return flushed_pair_gemm(x.a, x.b, x.c, row.block_length, (a.emin, b.emin))


def _rounded(x: Operands, row: MatrixUnit) -> Values:
    from mpsim_kernels.rounded_sums import AWAY, DOWN, EVEN, ODD, UP, ZERO, Accumulator, rounded_gemm

    directions = {
        "nearest-even": EVEN,
        "nearest-away": AWAY,
        "toward-zero": ZERO,
        "up": UP,
        "down": DOWN,
        "to-odd": ODD,
    }
    out = get_format(row.out)
    accumulator = Accumulator(out.p, out.emin, float(out.max_finite))
    direction, pairwise = directions[row.rounding], row.order == Order.PAIRWISE
    return rounded_gemm(x.a, x.b, x.c, accumulator, direction, row.block_length, pairwise)


def _native(x: Operands, row: MatrixUnit) -> Values:
    with np.errstate(all="ignore"):
        d = np.matmul(x.a, x.b) if x.c is None else np.matmul(x.a, x.b) + x.c
    return values(d, get_format(row.out))


_FAMILIES: dict[Family, Callable[[Operands, MatrixUnit], Values]] = {
    Family.FUSED: _fused,
    Family.SCALED: _scaled,
    Family.GROUPED: _grouped,
    Family.INTERLEAVED: _interleaved,
    Family.FMA_CHAIN: _fma_chain,
    Family.EXACT_BLOCKS: _exact_blocks,
    Family.FLUSHED_PAIRS: _flushed_pairs,
    Family.FLOORED: _floored,
    Family.FLOORED_HALVES: _floored_halves,
    Family.VDPBF16PS: _vdpbf16ps,
    Family.AMX: _amx,
    Family.BFDOT: _bfdot,
    Family.BFDOT_EXTENDED: _bfdot,
    Family.ROUNDED: _rounded,
    Family.EXACT: _exact,
    Family.NATIVE: _native,
}
