"""Arithmetic in any format of 32 bits or less: the exact result rounded once, with the exceptions of IEEE 754.

Every operation works on integers, so neither the rounding direction nor the flush bits of the processor can change a
result. Where a format lacks infinity, NaN, negative numbers, zero or subnormals, an operation gives what
`mpsim.encode` makes of its exact result.

Examples
--------
>>> from mpsim import arithmetic
>>> arithmetic.add(2048.0, 1.0, "fp16", return_flags=True)
(array(2048., dtype=float32), array(1, dtype=uint8))
>>> with arithmetic.env(rounding="up", raising="overflow") as flags:
...     print(arithmetic.add(2048.0, 1.0, "fp16"), flags.inexact)
2050.0 1
"""

from mpsim.arithmetic._calls import Options
from mpsim.arithmetic.comparisons import eq, ge, gt, le, lt, ne, unordered
from mpsim.arithmetic.conversions import convert, from_integer, to_integer
from mpsim.arithmetic.environment import NanRule, Settings, Tininess, current, env
from mpsim.arithmetic.extrema import (
    maximum,
    maximum_magnitude,
    maximum_magnitude_number,
    maximum_number,
    minimum,
    minimum_magnitude,
    minimum_magnitude_number,
    minimum_number,
)
from mpsim.arithmetic.flags import ExceptionCounts, Flags
from mpsim.arithmetic.operations import add, div, fma, mul, rem, round_to_integral, sqrt, sub
from mpsim.arithmetic.sums import dot, sum  # noqa: A004

__all__ = [
    "ExceptionCounts",
    "Flags",
    "NanRule",
    "Options",
    "Settings",
    "Tininess",
    "add",
    "convert",
    "current",
    "div",
    "dot",
    "env",
    "eq",
    "fma",
    "from_integer",
    "ge",
    "gt",
    "le",
    "lt",
    "maximum",
    "maximum_magnitude",
    "maximum_magnitude_number",
    "maximum_number",
    "minimum",
    "minimum_magnitude",
    "minimum_magnitude_number",
    "minimum_number",
    "mul",
    "ne",
    "rem",
    "round_to_integral",
    "sqrt",
    "sub",
    "sum",
    "to_integer",
    "unordered",
]
