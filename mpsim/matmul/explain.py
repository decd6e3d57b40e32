"""One output of a matrix product, step by step: what was aligned, what was cut off, what was rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mpsim import units
from mpsim.blocks import BlockFormat, quantize
from mpsim.encoding import encode
from mpsim.exact import decimal_text, floor_log2, power_of_two
from mpsim.formats import FormatLike, get_format
from mpsim.matmul._operands import accumulator_format, decoded, values
from mpsim.matmul._steps import Dot, Step, steps_of
from mpsim.matmul.products import matmul_codes
from mpsim.units import Family, InputsLike, MatrixUnit, UnitLike

__all__ = ["Explanation", "Step", "explain_dot"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a unit computes one dot product."""

    unit: MatrixUnit
    a: tuple[float, ...]
    """Operands as the unit reads them."""
    b: tuple[float, ...]
    c: float
    scales: tuple[float, ...]
    """For each k the product of its blocks' scales, of block-scaled units."""
    steps: tuple[Step, ...]
    value: float
    """The result."""
    code: int
    """Its bit pattern."""
    exact: Fraction | float
    """The exact dot product of the operands, accumulator included."""

    @property
    def error_ulps(self) -> float | None:
        """Error of the result in units in the last place of the exact dot product; None where either is not finite."""
        if not isinstance(self.exact, Fraction) or not np.isfinite(self.value):
            return None
        fmt = get_format(self.unit.out)
        e = fmt.emin if self.exact == 0 else max(floor_log2(abs(self.exact)), fmt.emin)
        return float((Fraction(self.value) - self.exact) / power_of_two(e - fmt.p + 1))

    def __str__(self) -> str:
        unit = self.unit
        scaled = f" with {unit.scale} scales" if unit.scale else ""
        lines = [f"{unit.architecture} {unit.instruction}: {unit.a} x {unit.b}{scaled}, {unit.out} result"]
        for step in self.steps:
            lines += ["", step.title, *_columns([step.columns, *map(_cells, step.rows)], ruled=True)]
            lines += ["", *_columns([_cells(fact) for fact in step.facts])] if step.facts else []
        digits = (get_format(unit.out).bits + 3) // 4
        facts = [
            ("result", f"{_cell(self.value)}   0x{self.code:0{digits}x}"),
            ("exact", _cell(self.exact)),
        ]
        if (error := self.error_ulps) is not None:
            facts.append(("error", f"{error:+.4g} ulp of the exact value"))
        return "\n".join([*lines, "", *_columns(facts)])


def explain_dot(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike = 0,
    unit: UnitLike = "a100",
    inputs: InputsLike | BlockFormat | None = None,
    out: FormatLike | None = None,
    instruction: str | None = None,
    *,
    codes: bool = False,
    scale_a: ArrayLike | None = None,
    scale_b: ArrayLike | None = None,
    scale_format: FormatLike | None = None,
) -> Explanation:
    """Return how a unit computes one dot product, step by step in exact numbers.

    Parameters
    ----------
    a, b : array_like [K]
        Values, rounded to ``inputs`` as by `matmul`; or codes.
    c : number
        Accumulator: a value, or a code.
    unit, inputs, out, instruction
        As for `matmul`.
    codes : bool
        Whether ``a``, ``b`` and ``c`` are codes rather than values.
    scale_a, scale_b, scale_format
        As for `matmul_codes`, [ceil(K / block)]. Values without them are quantised to the unit's block format.

    Returns
    -------
    Explanation

    Raises
    ------
    ValueError
        ``a`` and ``b`` are not two vectors of one length; and as for `matmul`.

    Examples
    --------
    On an A100 the alignment to 2**23 leaves one fraction bit, and -0.25 and -0.125 are cut off:

    >>> told = explain_dot([-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1, 1, 1], 2.0**23, unit="a100")
    >>> [(row[0], float(row[3]), float(row[4])) for row in told.steps[0].rows][1:4]
    [('a[1]*b[1]', -0.5, 0.0), ('a[2]*b[2]', 0.0, -0.25), ('a[3]*b[3]', 0.0, -0.125)]
    >>> told.value, float(told.exact)
    (-0.5, -0.875)
    """
    left, right = np.asarray(a), np.asarray(b)
    if left.ndim != 1 or left.shape != right.shape or np.ndim(c):
        raise ValueError(
            f"explain_dot: a is {left.shape}, b is {right.shape}, c is {np.shape(c)}; two vectors of one length are "
            "needed, and a number"
        )
    k = left.size
    wanted = scale_format if scale_format is not None else ("e8m0" if scale_a is not None else None)
    row = units.get(unit, inputs, out, instruction, None if units.is_block_format(inputs) else wanted)
    if row.family is Family.NATIVE:
        raise ValueError("explain_dot: unit is 'native', whose order of summation belongs to NumPy's BLAS")
    scale_codes: tuple[Any, Any] = (scale_a, scale_b)
    if codes:
        words = left, right, np.asarray(c)
    else:
        words, scale_codes = _codes(left, right, c, row, scale_codes)
    x, y = (decoded(w, fmt, name) for w, fmt, name in zip(words, row.inputs, "ab", strict=False))
    start = decoded(words[2][None], accumulator_format(words[2], row), "c")
    scales, factors = _scales(scale_codes, row, k)
    dot = Dot(x.tolist(), y.tolist(), float(start[0]), scales)
    steps = steps_of(dot, row)
    code = matmul_codes(words[0], words[1], words[2], row, scale_a=scale_codes[0], scale_b=scale_codes[1])
    value = decoded(np.asarray(code)[None], get_format(row.out), "d")[0]
    return Explanation(
        unit=row,
        a=tuple(dot.a),
        b=tuple(dot.b),
        c=dot.c,
        scales=factors,
        steps=tuple(steps),
        value=float(value),
        code=int(code),
        exact=_exact(dot, factors),
    )


def _codes(
    a: Any, b: Any, c: ArrayLike, row: MatrixUnit, scales: tuple[Any, Any]
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any]]:
    """Return codes of values, and of scales where they are made here."""
    out = get_format(row.out)
    start = _encoded(values(c, out), out)
    if not row.scale or scales[0] is not None:
        left, right = (_encoded(values(x, fmt), fmt) for x, fmt in zip((a, b), row.inputs, strict=True))
        return (left, right, start), scales
    scale = get_format(row.scale)
    quantized = [
        quantize(
            x,
            BlockFormat(name=row.shown_inputs, element=fmt, scale=scale, length=row.scale_block),
        )
        for x, fmt in zip((a, b), row.inputs, strict=True)
    ]
    return (quantized[0].codes, quantized[1].codes, start), (quantized[0].scales, quantized[1].scales)


def _encoded(x: Any, fmt: Any) -> Any:
    """Return codes of values; words of float32 and float64 as they are."""
    array = np.asarray(x)
    if fmt.name in ("fp32", "tf32"):
        return array.astype(np.float32, copy=False).view(np.uint32)
    if fmt.name == "fp64":
        return array.view(np.uint64)
    return encode(array, fmt)


def _scales(
    codes: tuple[Any, Any], row: MatrixUnit, k: int
) -> tuple[Sequence[tuple[int, Fraction | None]], tuple[float, ...]]:
    """Return exponent and significand of the product of scales for each k, and that product."""
    if not row.scale:
        return (), ()
    fmt = get_format(row.scale)
    pairs: list[tuple[int, Fraction | None]] = []
    factors: list[float] = []
    for i in range(k):
        exponent, significand = 0, Fraction(1)
        nan = False
        for side in codes:
            code = int(np.asarray(side)[i // row.scale_block]) & ((1 << fmt.bits) - 1)
            nan |= code > fmt.max_code
            field, fraction = code >> fmt.m, code & ((1 << fmt.m) - 1)
            e = (max(field, 1) if fmt.has_subnormals else field) - fmt.bias
            lead = 0 if fmt.has_subnormals and field == 0 else 1
            exponent, significand = exponent + e, significand * (lead + Fraction(fraction, 1 << fmt.m))
        pairs.append((exponent, None if nan else significand))
        factors.append(float("nan") if nan else float(significand * power_of_two(exponent)))
    return pairs, tuple(factors)


def _exact(dot: Dot, factors: tuple[float, ...]) -> Fraction | float:
    """Return the exact dot product, or what infinities and NaNs make of it."""
    every = [*dot.a, *dot.b, dot.c, *factors]
    if not np.isfinite(every).all():
        with np.errstate(all="ignore"):
            return float(np.sum([*(np.multiply(dot.a, dot.b) * (np.array(factors) if factors else 1.0)), dot.c]))
    scales = [power_of_two(e) * (s or 0) for e, s in dot.scales] or [Fraction(1)] * len(dot.a)
    products = (Fraction(x) * Fraction(y) * s for x, y, s in zip(dot.a, dot.b, scales, strict=True))
    return sum(products, Fraction(dot.c))


def _columns(rows: Sequence[Sequence[str]], ruled: bool = False) -> list[str]:
    """Return rows as lines, in columns two blanks apart; with a rule under the first row, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    align = str.rjust if ruled else str.ljust
    lines = ["  ".join([row[0].ljust(widths[0]), *map(align, row[1:], widths[1:])]).rstrip() for row in rows]
    return [lines[0], "-" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]] if ruled else lines


def _cells(row: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(_cell, row))


def _cell(cell: Any) -> str:
    """Return an exact number to read, to twelve digits."""
    if cell is None:
        return ""
    return decimal_text(cell, 12) if isinstance(cell, Fraction) else str(cell)
