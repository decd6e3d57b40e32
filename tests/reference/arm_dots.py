"""Exact twins of Arm's dot products of bf16: BFDOT and BFMMLA, with FPCR.EBF 0 and 1.

Operands are codes of fp32, which for bf16 inputs are the same numbers. Results are codes of fp32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference import fma_chain as ieee

if TYPE_CHECKING:
    from collections.abc import Sequence


def step_to_odd(a: Sequence[int], b: Sequence[int], c: int) -> int:
    """Return one step with EBF = 0: every operation is rounded to odd and knows no subnormal number."""
    p0, p1 = (ieee.multiply(x, y, odd=True, flush=True) for x, y in zip(a, b, strict=True))
    return ieee.add(c, ieee.add(p0, p1, odd=True, flush=True), odd=True, flush=True)


def fused_pair(a: Sequence[int], b: Sequence[int]) -> int:
    """Return ``a[0]*b[0] + a[1]*b[1]``, rounded once to nearest even, subnormals kept."""
    signs = [(x ^ y) & 1 << 31 for x, y in zip(a, b, strict=True)]
    codes = (*a, *b)
    if any(ieee.is_nan(code) for code in codes):
        return ieee.default_nan()
    if any(ieee.is_inf(code) for code in codes):
        # A finite product is nothing beside an infinity, so its rounding does not matter; its overflow would.
        return ieee.add(*(ieee.multiply(x, y) if ieee.is_inf(x) or ieee.is_inf(y) else 0
                          for x, y in zip(a, b, strict=True)))  # fmt: skip
    products = [ieee.value(x) * ieee.value(y) for x, y in zip(a, b, strict=True)]
    exact = sum(products)
    if exact == 0:
        return signs[0] if products[0] == 0 and signs[0] == signs[1] else 0
    return ieee.rounded(exact)


def step_fused(a: Sequence[int], b: Sequence[int], c: int) -> int:
    """Return one step with EBF = 1."""
    return ieee.add(c, fused_pair(a, b))


def chain(a: Sequence[int], b: Sequence[int], c: int, extended: bool) -> int:
    """Return the code of ``c`` after the steps of consecutive pairs of k; an odd K is filled with a zero."""
    if len(a) % 2:
        a, b = [*a, 0], [*b, 0]
    step = step_fused if extended else step_to_odd
    for k in range(0, len(a), 2):
        c = step(a[k : k + 2], b[k : k + 2], c)
    return c
