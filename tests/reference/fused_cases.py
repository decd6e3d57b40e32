"""Operands that sit where a fused dot product changes its mind: carries, cancellation, the cut, the floor, specials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mpsim import units
from mpsim.formats import FloatFormat, get_format
from mpsim.units import MatrixUnit
from reference import fused_dot as twin

CORNERS = (
    units.get("v100"),
    units.get("v100", out="fp16"),
    units.get("a100"),
    units.get("a100", out="fp16"),
    units.get("a100", inputs="bf16"),
    units.get("a100", inputs="tf32"),
    units.get("h100"),
    units.get("h100", out="fp16"),
    units.get("h100", inputs="tf32"),
    units.get("rtx-4060", inputs="e4m3"),
    units.get("rtx-4060", inputs=("e5m2", "e4m3"), out="fp16"),
    units.get("h100", inputs="e5m2", instruction="wgmma.m64n8k32"),
    units.get("h100", inputs=("e4m3", "e5m2"), out="fp16", instruction="wgmma.m64n8k32"),
    units.get("b200", inputs="e4m3", instruction="tcgen05.mma.k32"),
    units.get("b200", inputs="e5m2", out="fp16", instruction="tcgen05.mma.k32"),
    units.get("rtx-5090", inputs=("e3m2", "e2m3"), instruction="mma.m16n8k32"),
    units.get("rtx-5090", inputs=("e2m1", "e5m2"), out="fp16", instruction="mma.m16n8k32"),
    units.get("rtx-5090", inputs="e5m2", instruction="mma.m16n8k16"),
)
"""One row for each set of numbers that the real devices have."""


def twin_of(unit: MatrixUnit) -> twin.Unit:
    """Return the row as the twin wants it. tf32 operands are words of fp32 whose low bits are clear."""
    formats = [get_format("fp32") if fmt.name == "tf32" else fmt for fmt in unit.inputs]
    return twin.Unit(
        block_length=unit.block_length,
        fraction_bits=unit.fraction_bits,
        floor=unit.floor,
        p=unit.result_precision,
        nearest=unit.rounding == "nearest-even",
        a=formats[0],
        b=formats[1],
        out=get_format(unit.out),
    )


@dataclass(frozen=True)
class Case:
    """Codes of one product of matrices."""

    a: np.ndarray[Any, Any]
    b: np.ndarray[Any, Any]
    c: np.ndarray[Any, Any]

    def expected(self, unit: MatrixUnit, other: twin.Unit | None = None) -> np.ndarray[Any, Any]:
        """Return the twin's result, with other numbers than the row's where they are given."""
        mask = 0xFFFFE000 if unit.a == "tf32" else -1
        a, b = ([[code & mask for code in row] for row in x.tolist()] for x in (self.a, self.b))
        if self.b.shape[0] == 0:
            a, b = [[0] for _ in a], [[0] * self.b.shape[1]]  # one product of zeros is no product
        return np.array(twin.matmul(other or twin_of(unit), a, b, self.c.tolist()), self.c.dtype).reshape(self.c.shape)


def codes_near(fmt: FloatFormat, low_bits: int, exponent: int, spread: int, specials: bool) -> st.SearchStrategy[int]:
    """Return codes whose exponents lie within ``spread`` of ``exponent``, with telling fractions."""
    fraction_mask = (1 << fmt.m) - 1
    fields = st.integers(exponent - spread, exponent + spread).map(
        lambda e: min(max(e + fmt.bias, 0), fmt.max_code >> fmt.m)
    )
    fractions = st.one_of(
        st.sampled_from([0, fraction_mask, 1 << (fmt.m - 1), 1 << low_bits]), st.integers(0, fraction_mask)
    )
    finite = st.builds(
        lambda s, f, m: s * fmt.sign_code | min(f << fmt.m | m, fmt.max_code), st.integers(0, 1), fields, fractions
    )
    few = [0, fmt.sign_code, fmt.sign_code | 1 << low_bits]
    if specials:
        few += [] if fmt.inf_code is None else [fmt.inf_code, fmt.sign_code | fmt.inf_code]
        few += [] if fmt.nan_code is None else [fmt.nan_code]
    return st.one_of(finite, finite, finite, st.sampled_from(few))


@st.composite
def cases(draw: st.DrawFn, unit: MatrixUnit) -> Case:
    """Draw a small product of matrices; half of them have a second operand that cancels much of the first."""
    fmt, fmt_b = twin_of(unit).a, twin_of(unit).b
    out = get_format(unit.out)
    low_bits = 13 if unit.a == "tf32" else 0
    m, n = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    k = draw(st.sampled_from([0, 1, unit.block_length - 1, unit.block_length, 2 * unit.block_length + 1]))
    specials = draw(st.integers(0, 3)) == 0
    center_a = draw(st.integers(fmt.emin, fmt.emax))
    # The exponents of the products fall anywhere, at the floor, or near the middle.
    target = draw(st.sampled_from([unit.floor, unit.floor + 1, out.emin, 0, out.emax - 2, 2 * center_a]))
    center_b = min(max(target - center_a, fmt_b.emin), fmt_b.emax)
    spread = draw(st.sampled_from([0, 1, 3, unit.fraction_bits, 40]))
    near_a = codes_near(fmt, low_bits, center_a, spread, specials)
    near_b = codes_near(fmt_b, low_bits, center_b, spread, specials)
    a = draw(st.lists(near_a, min_size=m * k, max_size=m * k))
    b = draw(st.lists(near_b, min_size=k * n, max_size=k * n))
    rows = np.array(a, fmt.code_dtype).reshape(m, k)
    columns = np.array(b, fmt_b.code_dtype).reshape(k, n)
    if k > 1 and draw(st.booleans()):
        half = k // 2
        rows[:, half : 2 * half] = rows[:, :half] ^ fmt.code_dtype.type(fmt.sign_code)
        columns[half : 2 * half] = columns[:half]
        columns[half] ^= fmt_b.code_dtype.type(draw(st.sampled_from([0, 1 << low_bits])))
    near = center_a + center_b
    c_exponent = near + draw(st.sampled_from([0, -1, 1, 2, unit.fraction_bits, -unit.fraction_bits, -200, 200]))
    c = draw(st.lists(codes_near(out, 0, c_exponent, 1, specials), min_size=m * n, max_size=m * n))
    return Case(rows, columns, np.array(c, out.code_dtype).reshape(m, n))
