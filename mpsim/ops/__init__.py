"""The table of differentiable operations: forward and vector-Jacobian product on arrays, no graph.

Arrays hold values of a format in float32 (float64 for fp64). An operation computes in that dtype and returns
its result unrounded; whoever calls it rounds once to the format of the result, as a GPU does when a kernel
computes in FP32 and stores FP16. Matrix products go through the unit that the `Call` names.

exp, log, tanh and their like are computed in float64 and rounded to float32, which gives the correctly rounded result
but in about one case in 2**26; see `mpsim.ops.elementwise`.
"""

from __future__ import annotations

from mpsim.ops import (
    arithmetic,
    attention,
    convolution,
    elementwise,
    indexing,
    losses,
    normalisation,
    products,
    reductions,
    shape,
)
from mpsim.ops.inner import FP32_INSIDE, Inner
from mpsim.ops.table import Call, Operation, Part, Product, Roles, Site, Units, UnitsLike

__all__ = [
    "FP32_INSIDE",
    "TABLE",
    "Call",
    "Inner",
    "Operation",
    "Part",
    "Product",
    "Roles",
    "Site",
    "Units",
    "UnitsLike",
]

_MODULES = (
    arithmetic,
    elementwise,
    products,
    convolution,
    attention,
    reductions,
    normalisation,
    losses,
    indexing,
    shape,
)

TABLE: dict[str, Operation] = {op.name: op for module in _MODULES for op in module.OPERATIONS}
"""Every operation by name."""
