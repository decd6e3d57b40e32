"""The exact twin of FP8 instructions that run as two FP16 instructions and an addition, in ``int`` and ``Fraction``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference import fused_dot as twin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsim.formats import FloatFormat


def add(x: int, y: int, fmt: FloatFormat) -> int:
    """Return the code of ``x + y`` of two codes, rounded to nearest even as IEEE 754 says."""
    terms = twin.operand(x, fmt), twin.operand(y, fmt)
    match twin.special(terms):
        case "nan":
            return (1 << (fmt.bits - 1)) - 1
        case "+inf":
            return fmt.inf_code or 0
        case "-inf":
            return fmt.sign_code | (fmt.inf_code or 0)
    total = terms[0].value + terms[1].value
    if total == 0:
        return x & y & fmt.sign_code  # only two negative zeros make one
    return twin.convert(total, fmt.p, True, fmt)


def instruction(unit: twin.Unit, a: Sequence[int], b: Sequence[int], c: int) -> int:
    """Return the code of one instruction's ``c + sum(a*b)``, of up to ``2 * unit.block_length`` products."""
    t = 0
    for places in ((0, 1), (2, 3)):
        ks = [k for k in range(len(a)) if k % 4 in places]
        t = twin.dot_block(unit, [a[k] for k in ks], [b[k] for k in ks], t)
    return add(t, c, unit.out)


def dot(unit: twin.Unit, a: Sequence[int], b: Sequence[int], c: int = 0) -> int:
    """Return the code of ``c + sum(a*b)``: instructions in increasing k, each result the next one's accumulator."""
    depth = 2 * unit.block_length
    for k in range(0, max(len(a), 1), depth):
        c = instruction(unit, a[k : k + depth], b[k : k + depth], c)
    return c


def matmul(
    unit: twin.Unit, a: Sequence[Sequence[int]], b: Sequence[Sequence[int]], c: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return the codes of ``a @ b + c``; ``a`` [M, K], ``b`` [K, N] and ``c`` [M, N] are nested lists of codes."""
    columns = [list(column) for column in zip(*b, strict=True)]
    return [
        [dot(unit, row, column, start) for column, start in zip(columns, starts, strict=True)]
        for row, starts in zip(a, c, strict=True)
    ]
