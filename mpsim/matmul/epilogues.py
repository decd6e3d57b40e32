"""From a product's fp32 accumulator to the matrix that a library stores: scales, alpha and beta, one more rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike

from mpsim.encoding import decode, encode
from mpsim.formats import FP32, FloatFormat, FormatLike, get_format
from mpsim.matmul._operands import Values, values
from mpsim.modes import Overflow
from mpsim_kernels.epilogues import multiply_add, rounded_product

__all__ = ["Epilogue", "EpilogueChoices", "epilogue"]


class EpilogueChoices(TypedDict, total=False):
    """What may be asked of an epilogue; see `matmul`."""

    alpha: float
    beta: float
    scale_a: ArrayLike
    scale_b: ArrayLike
    scale_result: float
    result: FormatLike


@dataclass(frozen=True, slots=True, eq=False)
class Epilogue:
    """What happens to an accumulator, each operation in fp32 and rounded once."""

    alpha: Values | None
    """Factor of the accumulator, one number; None: none, and ``c`` is where the chain starts."""
    beta: np.float32
    columns: Values | None
    """[1, N]: scales that multiply the accumulator first."""
    rows: Values | None
    """[M, 1]: scales that multiply it then."""
    blocks: tuple[Values, Values] | None
    """Scales [M, blocks of K] and [blocks of K, N] that multiply promoted results."""
    scale_result: np.float32 | None
    result: FloatFormat

    @property
    def joins_c(self) -> bool:
        """Whether ``c`` is added here rather than in the unit."""
        return self.alpha is not None or self.rows is not None or self.blocks is not None

    def block_scales(self, k: int, block: int) -> Values:
        """Return the product of the scales [M, N] of the block that ``k`` lies in."""
        assert self.blocks is not None
        rows, columns = self.blocks
        return rounded_product(rows[:, k // block, None], columns[None, k // block, :])

    def apply(self, accumulator: Values, c: Values | None) -> Values:
        """Return the values that are stored."""
        y = accumulator
        if self.rows is not None:
            y = rounded_product(rounded_product(y, self.columns), self.rows)
        if self.joins_c:
            addend = np.float32(0) if c is None else rounded_product(c, self.beta)
            y = multiply_add(y, np.float32(1) if self.alpha is None else self.alpha, addend)
        if self.result == FP32 or y.dtype == np.float64:
            return y
        if self.scale_result is not None:
            y = rounded_product(y, self.scale_result)
        if self.result.bits > 8:
            return values(y, self.result)
        return decode(encode(y, self.result, overflow=Overflow.SATURATE), self.result)


def epilogue(
    choices: EpilogueChoices, shape: tuple[tuple[int, ...], tuple[int, ...]], promotion: int, out: FloatFormat
) -> Epilogue:
    """Return the epilogue that choices mean.

    Parameters
    ----------
    choices : EpilogueChoices
    shape : pair of tuples
        Shapes of a and b.
    promotion : int
        Products between promotions, which blocks of scales go with.
    out : FloatFormat
        Format of the unit's results, and of the product's unless ``result`` says otherwise.

    Raises
    ------
    ValueError
        Scales whose shapes fit neither a tensor, rows and columns, nor blocks; ``scale_result`` without FP8 result.
    """
    result = get_format(choices.get("result", out))
    scale_result = choices.get("scale_result")
    if scale_result is not None and result.bits > 8:
        raise ValueError(
            f"matmul: scale_result was given, but result is {result}; it goes with formats of 8 bits or fewer"
        )
    alpha = np.full((1, 1), choices.get("alpha", 1.0), np.float32) if choices.keys() & {"alpha", "beta"} else None
    rows = columns = blocks = None
    if "scale_a" in choices or "scale_b" in choices:
        a, b = (np.asarray(choices.get(name, 1.0), np.float32) for name in ("scale_a", "scale_b"))
        match _kind(a, b, shape, promotion):
            case "tensor":
                both = rounded_product(a.reshape(1, 1), b.reshape(1, 1))
                alpha = both if alpha is None else rounded_product(both, alpha)
            case "rows":
                rows, columns = a, b
            case _:
                blocks = _stretched(a, shape[0][0], 0), _stretched(b, shape[1][1], 1)
    return Epilogue(
        alpha=alpha,
        beta=np.float32(choices.get("beta", 1.0)),
        columns=columns,
        rows=rows,
        blocks=blocks,
        scale_result=None if scale_result is None else np.float32(scale_result),
        result=result,
    )


_BLOCK = 128
"""Rows of a, or columns of b, that share a scale where not each has its own."""


def _kind(a: Values, b: Values, shape: tuple[tuple[int, ...], tuple[int, ...]], promotion: int) -> str:
    """Return what scales belong to, which their shapes tell."""
    if a.size == b.size == 1:
        return "tensor"
    if len(shape[0]) == len(shape[1]) == 2:
        (m, k), (_, n) = shape
        if a.shape == (m, 1) and b.shape == (1, n):
            return "rows"
        count = -(-k // promotion) if promotion else 0
        fits_a = a.shape in ((m, count), (-(-m // _BLOCK), count))
        if fits_a and b.shape in ((count, n), (count, -(-n // _BLOCK))):
            return "blocks"
    raise ValueError(
        f"matmul: scale_a is {a.shape} and scale_b {b.shape}; two numbers are needed, or (M, 1) and (1, N), or with "
        "promotion=128 one scale for 128 elements along K: (M, K/128) and (K/128, N) or (K/128, N/128); "
        f"a is {shape[0]}, b is {shape[1]}"
    )


def _stretched(scales: Values, size: int, axis: int) -> Values:
    """Return one scale for each row or column."""
    if scales.shape[axis] == size:
        return scales
    return np.repeat(scales, _BLOCK, axis=axis).take(np.arange(size), axis=axis)
