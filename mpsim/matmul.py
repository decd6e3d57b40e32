"""Matrix products as matrix units compute them: on values, and on codes."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim import units
from mpsim.encoding import decode, encode
from mpsim.formats import FP32, TF32, FloatFormat, FormatLike, get_format
from mpsim.rounding import Rounding, round_to
from mpsim.units import Family, InputsLike, MatrixUnit, UnitLike
from mpsim_kernels.fused_dot import FusedDot, Operand
from mpsim_kernels.gemm import fused_gemm

__all__ = ["matmul", "matmul_codes"]

Values = NDArray[np.float32]
Codes = NDArray[Any]

_TF32_MASK = np.uint32(0xFFFFE000)


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    unit: UnitLike = "a100",
    inputs: InputsLike | None = None,
    out: FormatLike | None = None,
    instruction: str | None = None,
    rounded: bool = False,
) -> Values:
    """Return ``a @ b + c`` as a matrix unit computes it, bit for bit.

    Parameters
    ----------
    a, b : array_like of real numbers
        Shapes as for `numpy.matmul`: the last two axes are matrices, the others broadcast, and a vector is a row
        on the left and a column on the right. Rounded to ``inputs`` first, to nearest even; to tf32 toward zero,
        because the unit ignores the low 13 bits of a float32 word.
    c : array_like, optional
        Accumulator, broadcast to the result's shape; rounded to ``out``. Zero unless given.
    unit : MatrixUnit or str
        A device such as ``"v100"``, or a row of `mpsim.units`; ``"native"`` is NumPy's float32 matmul.
    inputs : format or pair of formats
        fp16 unless given; fp32 for ``"native"``. A MatrixUnit has its own.
    out : format
        fp32 unless given.
    instruction : str, optional
        Which instruction, where the unit has several.
    rounded : bool
        The caller promises that ``a`` and ``b`` are values of ``inputs`` already, and saves the time to
        round them again. A broken promise gives results that no unit gives.

    Returns
    -------
    d : float32 array
        Values of ``out``; each NaN is the word 0x7FFFFFFF.

    Raises
    ------
    ValueError
        Shapes that do not go together; unknown units or formats, and formats that the unit does not take.

    Notes
    -----
    Products are summed in blocks of ``unit.block_length`` in increasing k; each block's result is rounded to ``out``
    and is the next block's accumulator. Libraries may split K between several accumulators; this is the plain walk.
    K = 0 counts as one block without products, which returns ``c`` with a zero made positive.

    Examples
    --------
    On a V100 2**23 leaves no room for fractions, on an A100 for one bit:

    >>> a, b = [[-(2.0**13), -0.5, -0.25, -0.125]], [[2.0**10], [1.0], [1.0], [1.0]]
    >>> [float(matmul(a, b, c=2.0**23, unit=unit).item()) for unit in ("v100", "a100", "h100")]
    [0.0, -0.5, -0.75]
    """
    row = units.get(unit, inputs, out, instruction)
    formats = row.inputs
    left = _values(a, formats[0], rounded)
    right = _values(b, formats[1], rounded)
    start = None if c is None else _values(c, get_format(row.out), False)
    return _product(left, right, start, row)


def matmul_codes(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    unit: UnitLike = "a100",
    inputs: InputsLike | None = None,
    out: FormatLike | None = None,
    instruction: str | None = None,
) -> Codes:
    """Return the bit patterns of ``a @ b + c`` from bit patterns: one instruction, or a chain of them along K.

    Parameters
    ----------
    a : array_like of unsigned integers [..., M, K]
        Codes of the left format. tf32 codes are words of 32 bits whose low 13 bits are ignored.
    b : array_like of unsigned integers [..., K, N]
        Codes of the right format.
    c : array_like of unsigned integers [..., M, N], optional
        Codes of ``out``. uint16 codes are fp16 where ``out`` is fp32 and the unit takes fp16 accumulators.
        Zero unless given.
    unit, inputs, out, instruction
        As for `matmul`.

    Returns
    -------
    d : array of unsigned integers [..., M, N]
        Codes of ``out``; a NaN is the code of all ones but the sign.

    Examples
    --------
    >>> hex(matmul_codes([[0x3C00, 0x4000]], [[0x3C00], [0x4200]], unit="v100").item())
    '0x40e00000'
    """
    row = units.get(unit, inputs, out, instruction)
    formats, result = row.inputs, get_format(row.out)
    start = None if c is None else _decoded(c, _accumulator_format(c, row, result))
    d = _product(_decoded(a, formats[0]), _decoded(b, formats[1]), start, row)
    if result == FP32:
        return d.view(np.uint32)
    codes = encode(d, result)
    if row.family is Family.FUSED:
        codes[np.isnan(d)] = result.last_code
    return codes


def _product(a: Values, b: Values, c: Values | None, row: MatrixUnit) -> Values:
    """Return the product of values of the unit's formats, by the shape rules of `numpy.matmul`."""
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError(f"matmul: a is {a.shape}, b is {b.shape}; both need at least one axis")
    vector_a, vector_b = a.ndim == 1, b.ndim == 1
    left = a[None, :] if vector_a else a
    right = b[:, None] if vector_b else b
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"matmul: a is {a.shape}, b is {b.shape}; a.shape[-1] must equal b.shape[{-1 if vector_b else -2}]"
        )
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise ValueError(f"matmul: a is {a.shape}, b is {b.shape}; the leading axes do not broadcast") from None
    (m, k), n = left.shape[-2:], right.shape[-1]
    shape = (*batch, m, n)
    visible = (*batch, *(() if vector_a else (m,)), *(() if vector_b else (n,)))
    start = None if c is None else _broadcast_start(c, visible, shape)
    if right.ndim == 2:
        # Every matrix of a meets the same b: their rows are the rows of one matrix.
        rows = math.prod((*batch, m))
        flat = None if start is None else start.reshape(rows, n)
        return _matrix_product(left.reshape(rows, k), right, flat, row).reshape(visible)
    left = np.broadcast_to(left, (*batch, m, k))
    right = np.broadcast_to(right, (*batch, k, n))
    d = np.empty(shape, np.float32)
    for index in np.ndindex(batch):
        d[index] = _matrix_product(left[index], right[index], None if start is None else start[index], row)
    return d.reshape(visible)


def _broadcast_start(c: Values, visible: tuple[int, ...], shape: tuple[int, ...]) -> Values:
    try:
        return np.broadcast_to(c, visible).reshape(shape)
    except ValueError:
        raise ValueError(f"matmul: c is {c.shape}; it must broadcast to the result's shape {visible}") from None


def _matrix_product(a: Values, b: Values, c: Values | None, row: MatrixUnit) -> Values:
    """Return the product of two matrices of values."""
    match row.family:
        case Family.FUSED:
            return fused_gemm(a, b, c, *_numbers(row))
        case Family.NATIVE:
            with np.errstate(all="ignore"):
                d = np.matmul(a, b) if c is None else np.matmul(a, b) + c
            return _values(d, get_format(row.out), False)


@functools.cache
def _numbers(row: MatrixUnit) -> tuple[FusedDot, tuple[Operand, Operand]]:
    """Return a row as the kernels want it."""
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
    return unit, (Operand(a.p, a.emin), Operand(b.p, b.emin))


def _values(x: ArrayLike, fmt: FloatFormat, rounded: bool) -> Values:
    """Return ``x`` as float32 values of ``fmt``, rounded once from the source."""
    array = np.asarray(x)
    if array.dtype == np.float32 and (rounded or fmt == FP32):
        return array
    if rounded and array.dtype != np.float64:
        return array.astype(np.float32)
    rounding = Rounding.TOWARD_ZERO if fmt == TF32 else Rounding.NEAREST_EVEN
    if array.dtype == np.float32:
        return round_to(array, fmt, rounding)
    # Through codes, so that no float64 is converted by the processor, whose flush bits reach subnormals.
    return decode(encode(array, fmt, rounding), fmt)


def _decoded(codes: ArrayLike, fmt: FloatFormat) -> Values:
    """Return the values of codes in the layout that matrix instructions use."""
    if fmt == FP32:
        return _words(codes, fmt).view(np.float32)  # no decoding, which would be free to quieten NaNs
    if fmt == TF32:
        return (_words(codes, fmt) & _TF32_MASK).view(np.float32)
    return decode(codes, fmt)


def _words(codes: ArrayLike, fmt: FloatFormat) -> NDArray[np.uint32]:
    array = np.asarray(codes)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{fmt} codes have dtype {array.dtype}; unsigned integers are needed")
    return np.ascontiguousarray(array, dtype=np.uint32).reshape(array.shape)


def _accumulator_format(c: ArrayLike, row: MatrixUnit, result: FloatFormat) -> FloatFormat:
    """Return the format of accumulator codes, which their width tells."""
    dtype = np.asarray(c).dtype
    for name in row.accumulators:
        if dtype == get_format(name).code_dtype:
            return get_format(name)
    return result
