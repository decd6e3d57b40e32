"""Operands in a narrow format under float32 scales, and their product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from mpsim import units
from mpsim.encoding import encode
from mpsim.formats import FP32, FloatFormat
from mpsim.matmul import matmul
from mpsim.units import MatrixUnit, UnitLike

__all__ = ["PROMOTION", "Array", "Scaled", "multiply", "row_for"]

Array: TypeAlias = "NDArray[Any]"

PROMOTION = 128
"""Products after which a chain with split accumulation restarts, its sum added in FP32 (cuBLASLt, DeepGEMM)."""


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """A matrix in a narrow format, and the float32 factors that undo its scales."""

    values: Array
    """Values of the format in float32."""
    format: FloatFormat
    inverse: Array
    """One number, or one for each row, column or block, as `mpsim.matmul` takes them."""

    @property
    def codes(self) -> Array:
        """Bit patterns of the values."""
        return encode(self.values, self.format)


def row_for(unit: UnitLike, a: FloatFormat, b: FloatFormat) -> MatrixUnit:
    """Return the instruction of a unit that multiplies these formats into FP32."""
    return units.get(unit, inputs=(a, b), out=FP32)


def multiply(a: Scaled, b: Scaled, unit: UnitLike, split: bool) -> Array:
    """Return the product in FP32.

    Parameters
    ----------
    a, b : Scaled
        One scale each, or one for each row of ``a`` and each column of ``b``.
    unit : MatrixUnit or name
    split : bool
        Restart the chain every 128 products and add up in FP32, where the unit keeps fewer bits than FP32 has;
        otherwise one chain ("fast accumulation").
    """
    row = row_for(unit, a.format, b.format)
    promotion = PROMOTION if split and row.result_precision < FP32.p else 0
    return matmul(a.values, b.values, unit=row, rounded=True, promotion=promotion, scale_a=a.inverse, scale_b=b.inverse)
