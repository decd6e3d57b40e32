"""Matrix products as matrix units compute them: on values, and on codes."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from mpsim import units
from mpsim._decoding import decode_words
from mpsim.blocks import BlockArray, BlockFormat, quantize
from mpsim.encoding import decode, encode
from mpsim.formats import FP32, FP64, FloatFormat, FormatLike, get_format
from mpsim.matmul._families import ONE_NAN, unit_product, unit_stack
from mpsim.matmul._operands import Codes, Operands, Values, accumulator_format, decoded, scale_codes, values
from mpsim.matmul._shapes import Product, multiply
from mpsim.matmul.counting import MatmulCounters, counted_chain
from mpsim.matmul.epilogues import Epilogue, EpilogueChoices, epilogue
from mpsim.matmul.schedules import SCHEDULES, Reduction, Schedule, ScheduleLike, Split, walk
from mpsim.units import InputsLike, MatrixUnit, UnitLike
from mpsim_kernels.floating_point import default_environment

__all__ = ["matmul", "matmul_codes"]

_ONE_NAN = np.uint32(0x7FFFFFFF).view(np.float32)


class Choices(EpilogueChoices, total=False):
    """Keywords of `matmul` beside the unit's: fields of `Schedule`, and the epilogue's."""

    split_k: int
    split: Split | str
    tile: int
    stripes: int
    promotion: int
    reduction: Reduction | str


def matmul(
    a: ArrayLike | BlockArray,
    b: ArrayLike | BlockArray,
    c: ArrayLike | None = None,
    unit: UnitLike = "a100",
    inputs: InputsLike | BlockFormat | None = None,
    out: FormatLike | None = None,
    instruction: str | None = None,
    rounded: bool = False,
    schedule: ScheduleLike = "one-chain",
    counters: MatmulCounters | None = None,
    **choices: Unpack[Choices],
) -> Values:
    """Return ``a @ b + c`` as a matrix unit computes it, bit for bit.

    Parameters
    ----------
    a, b : array_like of real numbers
        Shapes as for `numpy.matmul`: the last two axes are matrices, the others broadcast, and a vector is a row
        on the left and a column on the right. Rounded to ``inputs`` first, to nearest even; to tf32 toward zero,
        because the unit ignores the low 13 bits of a float32 word. For a block-scaled unit they are quantised along
        K, unless they are a `blocks.BlockArray` already.
    c : array_like, optional
        Accumulator, broadcast to the result's shape; rounded to ``out``. Zero unless given.
    unit : MatrixUnit or str
        A device such as ``"v100"``, or a row of `mpsim.units`; ``"native"`` is NumPy's float32 matmul.
    inputs : format, block format or pair of formats
        Unless given fp16, or the first that the device has. A block format such as ``"mxfp8_e4m3"`` or ``"nvfp4"``
        asks for a block-scaled instruction. A MatrixUnit has its own.
    out : format
        What the instruction gives: fp32 unless given.
    instruction : str, optional
        Which instruction, where the unit has several.
    rounded : bool
        The caller promises that ``a`` and ``b`` are values of ``inputs`` already, and saves the time to
        round them again. A broken promise gives results that no unit gives.
    schedule : Schedule or str
        How a library cuts K: a name of `mpsim.matmul.SCHEDULES`, by default one chain.
    counters : MatmulCounters, optional
        Counts what is lost; accumulates. Products come block by block then, far slower.
    split_k, split, tile, stripes, promotion, reduction
        Each overrides a field of ``schedule``.
    alpha, beta : float, optional
        With either, ``fma(alpha, accumulator, beta * c)`` in fp32, as in BLAS; 1 unless given. Without, ``c`` is where
        the unit's accumulator starts.
    scale_a, scale_b : float or arrays, optional
        fp32 factors of the operands that are applied afterwards. Two numbers: their product is rounded, and
        multiplies ``alpha``. (M, 1) and (1, N): the accumulator is multiplied by the column's, then by the row's.
        (M, K/128) and (K/128, N), or one scale for 128 rows or columns too: the result of every promoted chain is
        multiplied by the rounded product of its scales as it is added; ``promotion`` is then 128 unless given.
    scale_result : float, optional
        fp32 factor of an FP8 result.
    result : format, optional
        What is stored, by default ``out``: the fp32 result rounded once more, to nearest even. FP8 saturates,
        infinities too.

    Returns
    -------
    d : array
        Values of ``result`` in float32; float64 for fp64. Each NaN of an NVIDIA unit is the word 0x7FFFFFFF.

    Raises
    ------
    TypeError
        Unknown keywords.
    ValueError
        Shapes that do not go together; unknown units or formats, and formats that the unit does not take.

    Notes
    -----
    Products are summed in blocks of ``unit.block_length`` in increasing k; each block's result is rounded to ``out``
    and is the next block's accumulator. K = 0 counts as one block without products, which returns ``c``, of NVIDIA's
    units with a zero made positive.

    Examples
    --------
    On a V100 2**23 leaves no room for fractions, on an A100 for one bit:

    >>> a, b = [[-(2.0**13), -0.5, -0.25, -0.125]], [[2.0**10], [1.0], [1.0], [1.0]]
    >>> [float(matmul(a, b, c=2.0**23, unit=unit).item()) for unit in ("v100", "a100", "h100")]
    [0.0, -0.5, -0.75]

    Hopper's FP8 adder keeps 13 fraction bits, which promotion every 128 products makes up for:

    >>> x = np.full((1, 4096), 1.125)
    >>> [float(matmul(x, x.T, unit="h100", inputs="e4m3", promotion=n).item()) for n in (0, 128)]
    [4923.5, 5184.0]
    """
    row = units.get(unit, inputs, out, instruction)
    plan, finish = _planned(schedule, choices)
    if row.scale:
        operands, tensor_scale = _block_operands(a, b, row)
        if tensor_scale is not None:
            finish = {**finish, "alpha": float(np.float32(finish.get("alpha", 1.0)) * tensor_scale)}
    else:
        for name, x in (("a", a), ("b", b)):
            if isinstance(x, BlockArray):
                raise ValueError(f"matmul: {name} is in {x.format}, but {row} has no scales for blocks")
        left, right = (values(x, fmt, rounded) for x, fmt in zip((a, b), row.inputs, strict=True))
        operands = Operands(left, right)
    chain = unit_product if counters is None else functools.partial(counted_chain, counters=counters)
    if not finish and plan.is_one_chain and counters is None:
        start = None if c is None else values(c, get_format(row.out))
        return multiply(operands._replace(c=start), row, chain, unit_stack)
    if row.out == "fp64" and (finish or not plan.is_one_chain):
        raise ValueError(f"matmul: {row} is one chain; schedules and epilogues go with results of fp32 or less")
    with default_environment():  # factors become float32 here
        end = epilogue(finish, (operands.a.shape, operands.b.shape), plan.promotion, get_format(row.out))
    start = None if c is None else values(c, FP32 if end.joins_c else get_format(row.out))
    product = functools.partial(_planned_product, chain=chain, plan=plan, end=end, counters=counters)
    return multiply(operands._replace(c=start), row, product)


_SCHEDULE_FIELDS = frozenset(field.name for field in dataclasses.fields(Schedule))


def _planned(schedule: ScheduleLike, choices: Choices) -> tuple[Schedule, EpilogueChoices]:
    """Return the schedule and what is left for the epilogue."""
    if isinstance(schedule, str):
        if schedule not in SCHEDULES:
            raise ValueError(
                f"matmul: schedule is {schedule!r}; it must be a Schedule or one of {', '.join(SCHEDULES)}"
            )
        schedule = SCHEDULES[schedule]
    if not choices:
        return schedule, {}
    unknown = choices.keys() - _SCHEDULE_FIELDS - EpilogueChoices.__annotations__.keys()
    if unknown:
        known = sorted(_SCHEDULE_FIELDS | EpilogueChoices.__annotations__.keys())
        raise TypeError(
            f"matmul: unknown keyword {', '.join(sorted(unknown))}; beside the unit's there are {', '.join(known)}"
        )
    fields: dict[str, Any] = {name: value for name, value in choices.items() if name in _SCHEDULE_FIELDS}
    finish: Any = {name: value for name, value in choices.items() if name not in _SCHEDULE_FIELDS and value is not None}
    many = max(np.size(finish.get(name, 1.0)) for name in ("scale_a", "scale_b")) > 1
    by_rows = np.shape(finish.get("scale_a", 1.0))[-1:] == (1,) and np.shape(finish.get("scale_b", 1.0))[:1] == (1,)
    if many and not by_rows and not schedule.promotion:
        fields.setdefault("promotion", 128)
    return dataclasses.replace(schedule, **fields), finish


def _planned_product(
    operands: Operands, row: MatrixUnit, chain: Product, plan: Schedule, end: Epilogue, counters: MatmulCounters | None
) -> Values:
    """Return the product of two matrices by a library's schedule and epilogue."""
    inside = operands._replace(c=None) if end.joins_c else operands
    scales = None if end.blocks is None else functools.partial(end.block_scales, block=plan.promotion)
    d = walk(inside, row, chain, plan, end.result, scales)
    if counters is not None:
        counters.record(inside, row, d)
    d = end.apply(d, operands.c)
    if row.family in ONE_NAN:
        d[np.isnan(d)] = _ONE_NAN
    return d


def _block_operands(
    a: ArrayLike | BlockArray, b: ArrayLike | BlockArray, row: MatrixUnit
) -> tuple[Operands, np.float32 | None]:
    """Return operands with their blocks' scales, and the product of the scales of tensors where there are any."""
    parts = []
    for name, x, element, axis in (("a", a, row.inputs[0], -1), ("b", b, row.inputs[1], -2)):
        fmt = _operand_format(element, row.scale, row.scale_block)
        given = isinstance(x, BlockArray)
        q = x if isinstance(x, BlockArray) else quantize(x, fmt, axis if np.ndim(x) > 1 else -1)
        own = q.format
        if given and (own.element, own.scale, own.length) != (element, fmt.scale, row.scale_block):
            raise ValueError(
                f"matmul: {name} is in {own}; {row} takes {element} with one {fmt.scale} scale for {row.scale_block}"
            )
        if q.axis != (len(q.shape) + axis if len(q.shape) > 1 else 0):
            raise ValueError(
                f"matmul: the blocks of {name} lie along axis {q.axis}; they must lie along K, axis {axis}"
            )
        elements = decode(q.codes, element) if given else decode_words(q.codes, element, np.empty(q.shape, np.float32))
        parts.append((elements, q.scales, np.float32(q.tensor_scale), fmt.tensor_scale))
    (left, scale_a, tensor_a, two_level), (right, scale_b, tensor_b, _) = parts
    return Operands(left, right, None, scale_a, scale_b), tensor_a * tensor_b if two_level else None


@functools.cache
def _operand_format(element: FloatFormat, scale: str, length: int) -> BlockFormat:
    """Return the block format that a unit takes elements of a format in."""
    fmt = get_format(scale)
    return BlockFormat(
        name=f"{element}-{fmt}-{length}", element=element, scale=fmt, length=length, tensor_scale=fmt.p > 1
    )


def matmul_codes(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    unit: UnitLike = "a100",
    inputs: InputsLike | BlockFormat | None = None,
    out: FormatLike | None = None,
    instruction: str | None = None,
    scale_a: ArrayLike | None = None,
    scale_b: ArrayLike | None = None,
    scale_format: FormatLike | None = None,
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
    scale_a, scale_b : array_like of unsigned integers, optional
        Codes of the scales of a block-scaled instruction: [..., M, ceil(K / block)] and [..., ceil(K / block), N].
    scale_format : format, optional
        Format of the scales, ``"e8m0"`` or ``"ue4m3"``; e8m0 where there are scales and ``inputs`` names no block
        format. How many elements share a scale follows from the shapes.

    Returns
    -------
    d : array of unsigned integers [..., M, N]
        Codes of ``out``. A NaN of an NVIDIA unit is the code of all ones but the sign.

    Examples
    --------
    >>> hex(matmul_codes([[0x3C00, 0x4000]], [[0x3C00], [0x4200]], unit="v100").item())
    '0x40e00000'
    """
    row = units.get(unit, inputs, out, instruction, *_scales_wanted(a, inputs, scale_a, scale_format, unit))
    result = get_format(row.out)
    left, right = (decoded(x, fmt, name) for x, fmt, name in zip((a, b), row.inputs, "ab", strict=True))
    start = None if c is None else decoded(c, accumulator_format(c, row), "c")
    scales = scale_codes(scale_a, row, "scale_a"), scale_codes(scale_b, row, "scale_b")
    d = multiply(Operands(left, right, start, *scales), row, unit_product, unit_stack)
    if result in (FP32, FP64):
        return d.view(result.code_dtype)
    codes = encode(d, result)
    if row.family in ONE_NAN:
        codes[np.isnan(d)] = result.last_code
    return codes


def _scales_wanted(
    a: ArrayLike,
    inputs: InputsLike | BlockFormat | None,
    scale_a: ArrayLike | None,
    scale_format: FormatLike | None,
    unit: UnitLike,
) -> tuple[FormatLike | None, int | None]:
    """Return format and block length of the scales that codes come with, as far as the caller says."""
    if scale_a is None or isinstance(unit, MatrixUnit):
        return scale_format, None
    if units.is_block_format(inputs):
        return scale_format, None
    k, blocks = np.shape(a)[-1:], np.shape(scale_a)[-1:]
    lengths = [length for length in (16, 32) if k and blocks and -(-k[0] // length) == blocks[0]]
    return scale_format if scale_format is not None else "e8m0", lengths[-1] if len(lengths) == 1 else None
