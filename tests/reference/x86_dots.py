"""Exact twins of the dot products of x86 processors: VDPBF16PS, and the tiles of AMX.

Operands are codes of fp32, which for bf16 and fp16 inputs are the same numbers. Results are codes of fp32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference import fma_chain as ieee

if TYPE_CHECKING:
    from collections.abc import Sequence

QUIET, INDEFINITE = 0x00400000, 0xFFC00000
"""The quiet bit of a NaN, and the NaN that x86 makes of an invalid operation."""


def fma(x: int, y: int, z: int) -> int:
    """Return ``x * y + z`` without subnormal numbers. NaN: the first of x, y and z that is one, else the new one."""
    for code in (x, y, z):
        if ieee.is_nan(code):
            return code | QUIET
    result = ieee.fma(x, y, z, flush=True)
    return INDEFINITE if ieee.is_nan(result) else result


def add(x: int, y: int) -> int:
    """Return ``x + y`` without subnormal numbers."""
    result = ieee.add(x, y, flush=True)
    return INDEFINITE if ieee.is_nan(result) else result


def vdpbf16ps(c: int, a: Sequence[int], b: Sequence[int]) -> int:
    """Return one lane of VDPBF16PS: the pair's odd element first, then the even one."""
    for code in (a[0], b[0], a[1], b[1], c):
        if ieee.is_nan(code):
            return code | QUIET
    return fma(a[0], b[0], fma(a[1], b[1], c))


def pairs(codes: Sequence[int]) -> list[Sequence[int]]:
    """Return the codes two by two; an odd number of them is filled with a zero."""
    codes = [*codes, 0] if len(codes) % 2 else codes
    return [codes[k : k + 2] for k in range(0, len(codes), 2)]


def vdpbf16ps_chain(a: Sequence[int], b: Sequence[int], c: int) -> int:
    """Return the code of ``c`` after the VDPBF16PS of each pair of k."""
    for x, y in zip(pairs(a), pairs(b), strict=True):
        c = vdpbf16ps(c, x, y)
    return c


def tile_product(a: Sequence[int], b: Sequence[int], c: int, keep: bool) -> int:
    """Return one output of one TDPBF16PS or TDPFP16PS, by the pseudo code of Intel's manual.

    ``keep`` says that subnormal operands count. Every NaN is the indefinite one.
    """
    even = odd = 0
    for x, y in zip(pairs(a), pairs(b), strict=True):
        even, odd = (_accumulate(x[i], y[i], z, keep) for i, z in enumerate((even, odd)))
    return add(c, add(even, odd))


def older_tile_product(a: Sequence[int], b: Sequence[int], c: int, keep: bool) -> int:
    """Return the same by the formula of the Intrinsics Guide: every product joins ``c``, in increasing k."""
    for x, y in zip(pairs(a), pairs(b), strict=True):
        c = _accumulate(x[1], y[1], _accumulate(x[0], y[0], c, keep), keep)
    return c


def _accumulate(x: int, y: int, z: int, keep: bool) -> int:
    if not keep:
        x, y = ieee.flushed(x), ieee.flushed(y)
    # The accumulator has no subnormal number but where it comes in as one.
    z = ieee.flushed(z)
    if any(ieee.is_nan(code) for code in (x, y, z)):
        return INDEFINITE
    if ieee.is_inf(x) or ieee.is_inf(y) or ieee.is_inf(z):
        result = ieee.fma(x, y, z)
        return INDEFINITE if ieee.is_nan(result) else result
    exact = ieee.value(x) * ieee.value(y) + ieee.value(z)
    return ieee.rounded(exact, flush=True) if exact else ieee.fma(x, y, z)


def tiles(a: Sequence[int], b: Sequence[int], c: int, keep: bool, tile_k: int, older: bool = False) -> int:
    """Return the code of ``c`` after the instructions of consecutive ``tile_k`` products; the last may have fewer."""
    step = older_tile_product if older else tile_product
    for k in range(0, len(a), tile_k):
        c = step(a[k : k + tile_k], b[k : k + tile_k], c, keep)
    return c
