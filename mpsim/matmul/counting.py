"""What a matrix product loses: products cut away in alignment, flushed inputs, overflows, and the error in ulps."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mpsim.encoding import decode
from mpsim.exact import floor_log2, power_of_two
from mpsim.formats import FloatFormat, get_format
from mpsim.matmul._families import fused_numbers, unit_product
from mpsim.matmul._operands import Operands, Values
from mpsim.units import Family, MatrixUnit
from mpsim_kernels.alignment_counts import count_cuts

__all__ = ["MatmulCounters", "counted_chain"]

_ALIGNING = (Family.FUSED, Family.SCALED)
_FLUSHING = (Family.FLUSHED_PAIRS, Family.VDPBF16PS, Family.BFDOT, Family.AMX)


@dataclass(slots=True)
class MatmulCounters:
    """What happened in matrix products; accumulates over calls.

    Pass one as ``counters=`` to `matmul`. Cuts are counted for units that align products to a largest exponent
    (families ``"fused"`` and ``"scaled"``), by a slower second walk through the product.

    Examples
    --------
    >>> from mpsim.matmul import matmul
    >>> seen = MatmulCounters(errors=True)
    >>> a, b = [[-(2.0**13), -0.5, -0.25, -0.125]], [[2.0**10], [1.0], [1.0], [1.0]]
    >>> _ = matmul(a, b, c=2.0**23, unit="a100", counters=seen)
    >>> seen.products, seen.cut_to_zero, seen.cut_in_part, seen.max_error_ulps
    (4, 2, 0, 6291456.0)
    """

    errors: bool = False
    """Whether to measure errors against the exact dot products, which takes far longer than the product."""
    results: int = 0
    """Elements of results."""
    products: int = 0
    """Finite products that are not zero, of units that align them."""
    cut_to_zero: int = 0
    """Of these, how many lay wholly below the bits that are kept."""
    cut_in_part: int = 0
    """How many lost some bits."""
    flushed_inputs: int = 0
    """Subnormal elements of a, b and c that the unit takes for zero."""
    overflows: int = 0
    """Infinite results of finite operands."""
    max_error_ulps: float = 0.0
    """Largest error of a finite result, in units in the last place of the exact dot product."""
    sum_error_ulps: float = 0.0
    """Sum of the magnitudes of these errors."""
    measured: int = 0
    """Results whose error was measured."""

    @property
    def mean_error_ulps(self) -> float:
        """Mean magnitude of the errors; NaN where none was measured."""
        return self.sum_error_ulps / self.measured if self.measured else float("nan")

    def record(self, operands: Operands, row: MatrixUnit, d: Values) -> None:
        """Count what one product of matrices came to, alignment aside."""
        self.results += d.size
        if row.family in _FLUSHING and not (row.family is Family.AMX and row.subnormal_inputs):
            formats = (*row.inputs, get_format(row.out))
            self.flushed_inputs += sum(_subnormals(x, fmt) for x, fmt in zip(operands[:3], formats, strict=True))
        finite: Any = np.logical_and.outer(np.isfinite(operands.a).all(axis=1), np.isfinite(operands.b).all(axis=0))
        if operands.c is not None:
            finite &= np.isfinite(operands.c)
        self.overflows += int(np.count_nonzero(np.isinf(d) & finite))
        if self.errors:
            self._measure(operands, row, d, finite & np.isfinite(d))

    def _measure(self, operands: Operands, row: MatrixUnit, d: Values, where: Values) -> None:
        out = get_format(row.out)
        left, right = _scaled(operands, row)
        for i, j in np.argwhere(where):
            pairs = zip(left[i].tolist(), right[:, j].tolist(), strict=True)
            start = Fraction(0) if operands.c is None else Fraction(float(operands.c[i, j]))
            exact = sum((Fraction(x) * Fraction(y) for x, y in pairs), start)
            e = out.emin if exact == 0 else max(floor_log2(abs(exact)), out.emin)
            error = float(abs(Fraction(float(d[i, j])) - exact) / power_of_two(e - out.p + 1))
            self.max_error_ulps = max(self.max_error_ulps, error)
            self.sum_error_ulps += error
            self.measured += 1


def _scaled(operands: Operands, row: MatrixUnit) -> tuple[Values, Values]:
    """Return a and b with the scales of their blocks in them, which is exact in float64."""
    a, b = operands.a.astype(np.float64), operands.b.astype(np.float64)
    if operands.scale_a is None or operands.scale_b is None:
        return a, b
    block = np.arange(a.shape[1]) // row.scale_block
    scales = [decode(x, row.scale).astype(np.float64) for x in (operands.scale_a, operands.scale_b)]
    return a * scales[0][:, block], b * scales[1][block]


def _subnormals(x: Values | None, fmt: FloatFormat) -> int:
    return 0 if x is None else int(np.count_nonzero((x != 0) & (np.abs(x) < float(fmt.min_normal))))


def counted_chain(operands: Operands, row: MatrixUnit, counters: MatmulCounters) -> Values:
    """Return what `unit_product` does, block by block, counting what each block cuts."""
    if row.family not in _ALIGNING:
        return unit_product(operands, row)
    unit, formats = fused_numbers(row)
    m, k = operands.a.shape
    c = np.zeros((m, operands.b.shape[1]), np.float32) if operands.c is None else operands.c
    for start in range(0, max(k, 1), row.block_length):
        block = slice(start, start + row.block_length)
        part = Operands(operands.a[:, block], operands.b[block], c)
        shifts = None
        if operands.scale_a is not None and operands.scale_b is not None:
            scale = slice(start // row.scale_block, start // row.scale_block + 1)
            left, right = operands.scale_a[:, scale], operands.scale_b[scale]
            part = part._replace(scale_a=left, scale_b=right)
            shifts = left.astype(np.int64) + right.astype(np.int64) - 2 * get_format(row.scale).bias
        a, b, acc = (np.ascontiguousarray(x, np.float32).view(np.int32) for x in (part.a, part.b, c))
        products, to_zero, in_part = count_cuts(a, b, acc, unit, formats, shifts).tolist()
        counters.products += products
        counters.cut_to_zero += to_zero
        counters.cut_in_part += in_part
        c = unit_product(part, row)
    return c
