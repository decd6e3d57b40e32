"""The exact twin of the FP8 and FP4 recipes: scales, casts, histories and products, in ``int`` and ``Fraction``.

Numbers are Python floats that hold float32 values. Every operation is done exactly and rounded once to binary32, as
the source of each system says. Matrices are nested lists; products are those of ``reference.fused_dot`` and
``reference.scaled_dot``, one output element at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from mpsim import units
from mpsim.blocks import MXFP8_E4M3, NVFP4, RECIPES, ScaleRecipe
from mpsim.formats import BF16, E2M1, E4M3, E5M2, FP32, FP64, FloatFormat
from reference import blocks, fused_dot, scaled_dot, stochastic
from reference import rounding as twin
from reference.training import Matrix, add, fma, mul, rounded, transposed

FLT_MAX = float.fromhex("0x1.fffffep127")
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e4m3fnuz": 240.0, "e5m2fnuz": 57344.0, "fp16": 65504.0}


def amax_of(numbers: Sequence[float]) -> float:
    if any(math.isnan(v) for v in numbers):
        return math.nan
    return max((abs(v) for v in numbers), default=0.0)


def is_usable(amax: float) -> bool:
    return 0 < amax < math.inf


def divide(a: float, b: float, fmt: FloatFormat = FP32) -> float:
    """Return the quotient of two nonnegative numbers, rounded once."""
    if math.isnan(a) or math.isnan(b):
        return math.nan
    if b == 0 or math.isinf(a):
        return math.inf
    return 0.0 if math.isinf(b) else rounded(Fraction(a) / Fraction(b), fmt)


def without_significand(scale: float) -> float:
    if scale == 0 or not math.isfinite(scale):
        return scale
    k = 200
    while Fraction(2) ** k > Fraction(scale):
        k -= 1
    return float(Fraction(2) ** k)


# Scales, each as its system computes them.


def te_scale(amax: float, largest: float) -> float:
    return min(divide(largest, amax), FLT_MAX) if is_usable(amax) else 1.0


def torchao_scale(amax: float, largest: float) -> float:
    quotient = divide(largest, math.nan if math.isnan(amax) else max(amax, 1e-12), FP64)
    return quotient if math.isnan(quotient) else rounded(Fraction(quotient), FP32)


def deepgemm_scales(amax: float, largest: float) -> tuple[float, float]:
    amax = max(amax, float.fromhex("0x1.a36e2ep-14"))  # 1e-4 in binary32
    return divide(largest, amax), divide(amax, largest)


@dataclass
class History:
    """A tensor under delayed scaling, by the steps that Transformer Engine documents."""

    largest: float
    length: int
    algorithm: str = "max"
    margin: int = 0
    amax: list[float] = field(default_factory=list)
    scale: float = 1.0

    def __post_init__(self) -> None:
        self.amax = [0.0] * self.length

    def see(self, amax: float) -> float:
        """Take note of a tensor; return the scale it is cast with."""
        self.amax[0] = math.nan if math.isnan(amax) else max(self.amax[0], amax)
        return self.scale

    def end_of_step(self) -> None:
        newest = self.amax[0]
        if newest == 0:
            return
        known = [v for v in self.amax if not math.isnan(v)]
        chosen = newest if self.algorithm == "most_recent" else max(known, default=math.nan)
        if self.length > 1:
            self.amax = [0.0, *self.amax[2:], newest]
        else:
            self.amax = [0.0]
        if is_usable(chosen):
            self.scale = min(divide(self.largest / 2**self.margin, chosen), FLT_MAX)


@dataclass(frozen=True)
class KerasState:
    """A tensor under Keras's float8: its newest amaxes, and the scale that its next cast divides by."""

    fmt: FloatFormat
    amax: tuple[float, ...]
    scale: float = 1.0

    def after(self, amax: float) -> KerasState:
        """Return what a step that sees ``amax`` leaves: its scale is made before ``amax`` is there."""
        known = amax_of(self.amax)
        factor = divide(LARGEST[self.fmt.name], known) if is_usable(known) else divide(1.0, self.scale)
        rest = (*self.amax[2:], self.amax[0]) if len(self.amax) > 1 else ()
        return KerasState(self.fmt, (amax, *rest), divide(1.0, factor))

    def plus(self, other: KerasState) -> KerasState:
        """Return what a layer has that ran twice in a step: gradients are added up, and so are these."""
        amax = tuple(add(a, b) for a, b in zip(self.amax, other.amax, strict=True))
        return KerasState(self.fmt, amax, add(self.scale, other.scale))

    def larger(self, other: KerasState) -> KerasState:
        """Return what gradient accumulation makes of two passes."""
        amax = tuple(max(a, b) for a, b in zip(self.amax, other.amax, strict=True))
        return KerasState(self.fmt, amax, max(self.scale, other.scale))

    def there_and_back(self, x: Matrix, compute: FloatFormat) -> Matrix:
        """Return a matrix of numbers of a format, quantised and turned back in that format."""
        scale = rounded(Fraction(self.scale), compute)
        return [[self._one(v, scale, compute) for v in row] for row in x]

    def _one(self, x: float, scale: float, compute: FloatFormat) -> float:
        if math.isnan(x) or (x == 0 and scale == 0):
            return math.nan
        largest = LARGEST[self.fmt.name]
        quotient = math.copysign(largest, x)
        if scale and not math.isinf(x):
            quotient = max(-largest, min(rounded(Fraction(x) / Fraction(scale), compute, zero=x), largest))
        value = value_of(twin.encode(self.fmt, twin.number(quotient)), self.fmt)
        return rounded(Fraction(value) * Fraction(scale), compute, zero=value)


# Casts.


def times(x: float, scale: float) -> float:
    if not math.isfinite(x) or not math.isfinite(scale):
        return x * scale
    return mul(x, scale)


def cast(x: float, scale: float, fmt: FloatFormat) -> int:
    """Return the code of ``x * scale``, rounded to binary32 first, saturated."""
    return twin.encode(fmt, twin.number(times(x, scale)), overflow="saturate")


def value_of(code: int, fmt: FloatFormat) -> float:
    return twin.to_float(twin.decode(fmt, code))


Scales = Callable[[float, float], tuple[float, float]]
"""From amax and the largest number to a scale and the factor that undoes it."""


def scales(rule: Callable[[float, float], float], power: bool = False) -> Scales:
    def pair(amax: float, largest: float) -> tuple[float, float]:
        scale = rule(amax, largest)
        scale = without_significand(scale) if power else scale
        return scale, divide(1.0, scale)

    return pair


@dataclass
class Cast:
    """Codes [M, K] of a matrix, and for each element the factor that undoes its scale."""

    fmt: FloatFormat
    codes: list[list[int]]
    inverse: Matrix


def cast_tiles(x: Matrix, fmt: FloatFormat, rule: Scales, rows: int, columns: int) -> Cast:
    """Cast a matrix in tiles that share a scale; 0 stands for all rows, or all columns."""
    m, k = len(x), len(x[0])
    high, wide = rows or m, columns or k
    codes, inverse = [[0] * k for _ in x], [[0.0] * k for _ in x]
    for top in range(0, m, high):
        for left in range(0, k, wide):
            places = [(i, j) for i in range(top, min(top + high, m)) for j in range(left, min(left + wide, k))]
            scale, back = rule(amax_of([x[i][j] for i, j in places]), LARGEST[fmt.name])
            for i, j in places:
                codes[i][j], inverse[i][j] = cast(x[i][j], scale, fmt), back
    return Cast(fmt, codes, inverse)


# Products. Operands are given by the rows of a and the rows of b transposed, both along K.


def unit_of(name: str, a: FloatFormat, b: FloatFormat) -> fused_dot.Unit:
    row = units.get(name, inputs=(a, b), out=FP32)
    nearest = row.rounding == "nearest-even"
    return fused_dot.Unit(row.block_length, row.fraction_bits, row.floor, row.result_precision, nearest, a, b, FP32)


def chain(unit: fused_dot.Unit, a: Sequence[int], b: Sequence[int]) -> float:
    return value_of(fused_dot.dot(unit, a, b), FP32)


def accumulated(unit: fused_dot.Unit, a: Sequence[int], b: Sequence[int], split: bool) -> float:
    """Return the sum of a row times a column, in one chain or from new chains every 128 products."""
    if not split:
        return chain(unit, a, b)
    total = 0.0
    for k in range(0, len(a), 128):
        total = add(total, chain(unit, a[k : k + 128], b[k : k + 128]))
    return total


def tensor_product(unit: fused_dot.Unit, a: Cast, b: Cast, i: int, j: int, split: bool) -> float:
    alpha = mul(a.inverse[i][0], b.inverse[j][0])
    return fma(accumulated(unit, a.codes[i], b.codes[j], split), alpha, 0.0)


def plain_product(unit: fused_dot.Unit, a: Matrix, b: Matrix, i: int, j: int) -> float:
    """Return an element of the product of matrices of the unit's formats, rounded to that of ``a``."""
    left, right = ([twin.encode(fmt, twin.number(v)) for v in row] for fmt, row in ((unit.a, a[i]), (unit.b, b[j])))
    sum_ = chain(unit, left, right)
    return rounded(Fraction(sum_), unit.a, zero=sum_) if math.isfinite(sum_) else sum_


def row_product(unit: fused_dot.Unit, a: Cast, b: Cast, i: int, j: int, split: bool) -> float:
    sum_ = accumulated(unit, a.codes[i], b.codes[j], split)
    return add(mul(mul(sum_, b.inverse[j][0]), a.inverse[i][0]), 0.0)


def block_product(unit: fused_dot.Unit, a: Cast, b: Cast, i: int, j: int, _split: bool) -> float:
    total = 0.0
    for k in range(0, len(a.codes[i]), 128):
        part = chain(unit, a.codes[i][k : k + 128], b.codes[j][k : k + 128])
        total = fma(part, mul(a.inverse[i][k], b.inverse[j][k]), total)
    return add(total, 0.0)


# Scales in the instruction.


@dataclass
class Blocks:
    """Codes [M, K] of elements, codes [M, K / block] of scales, and the scale of the tensor."""

    codes: list[list[int]]
    scales: list[list[int]]
    tensor: float = 1.0


def mxfp8(x: Matrix, rule: str) -> Blocks:
    quantized = [
        [blocks.quantize_block(MXFP8_E4M3, row[k : k + 32], rule, overflow="saturate") for k in range(0, len(row), 32)]
        for row in x
    ]
    return Blocks(
        [[c for b in row for c in b.codes] for row in quantized], [[b.scale for b in row] for row in quantized]
    )


def nvfp4(
    x: Matrix, square: bool, draw: Callable[[int], int] | None = None, rule: str | ScaleRecipe = "transformer-engine"
) -> Blocks:
    """Quantise rows, in blocks of 16 or in 16 x 16 tiles; ``draw`` gives 16 random bits for the element at a place."""
    recipe, (m, k) = RECIPES[rule] if isinstance(rule, str) else rule, (len(x), len(x[0]))
    whole = max(abs(Fraction(v)) for row in x for v in row)
    tensor, encode = blocks.tensor_scales(NVFP4, recipe, whole)
    high = 16 if square else 1
    codes, scales = [[0] * k for _ in x], [[0] * -(-k // 16) for _ in x]
    for top in range(0, m, high):
        for left in range(0, k, 16):
            places = [(i, j) for i in range(top, top + high) for j in range(left, left + 16)]
            full = [x[i][j] if i < m and j < k else 0.0 for i, j in places]
            block = blocks.quantize_block(
                NVFP4, full, recipe, overflow="saturate", tensor=tensor, encode=encode, whole=whole
            )
            for (i, j), code in zip(places, block.codes, strict=True):
                if i >= m or j >= k:
                    continue
                codes[i][j], scales[i][left // 16] = code, block.scale
                if draw is not None:
                    codes[i][j] = drawn(x[i][j], block.scale, tensor, draw(i * k + j))
    return Blocks(codes, scales, float(tensor))


def drawn(x: float, scale: int, tensor: Fraction, random: int) -> int:
    """Return the E2M1 code of a number under its scales, rounded up where its tail and 16 random bits carry."""
    number, value = twin.number(x), blocks.scale_value(NVFP4, scale)
    assert value is not None
    quotient = blocks.divided(RECIPES["transformer-engine"], abs(number.fraction), value, tensor) if x else Fraction(0)
    magnitudes = [Fraction(twin.magnitude(E2M1, code), 1 << twin.SCALE) for code in range(8)]
    below = max(code for code in range(8) if magnitudes[code] <= quotient)
    if below < 7:
        tail = (quotient - magnitudes[below]) / (magnitudes[below + 1] - magnitudes[below])
        below += stochastic.goes_up(tail, random, 16, "A")
    return below | (8 if number.negative else 0)


def random_bits(seed: int, stream: int) -> Callable[[int], int]:
    """Return the draws of elements: the top 16 bits of a word of 64, which are two of the generator's."""
    return lambda index: stochastic.word(seed, stream, 2 * index + 1) >> 16


def scaled_unit(name: str, fp4: bool) -> scaled_dot.Unit:
    row = units.get(name, inputs="nvfp4" if fp4 else "mxfp8_e4m3")
    element, scale = (E2M1, scaled_dot.UE4M3) if fp4 else (E4M3, scaled_dot.UE8M0)
    return scaled_dot.Unit(
        row.fraction_bits,
        row.floor,
        24,
        False,
        element,
        element,
        FP32,
        scale,
        row.scale_block,
        16 if fp4 else None,
        4 if fp4 else 32,
    )


def blocks_product(unit: scaled_dot.Unit, a: Blocks, b: Blocks, i: int, j: int) -> float:
    sum_ = value_of(scaled_dot.dot(unit, a.codes[i], b.codes[j], a.scales[i], b.scales[j], 0), FP32)
    if unit.group_length is None:
        return sum_
    return fma(sum_, mul(a.tensor, b.tensor), 0.0)


# The Hadamard transform.

SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)


def hadamard_entry(i: int, j: int) -> float:
    """Return an entry of Sylvester's matrix times the sign of its row, over 4: -1 for every common bit of i and j."""
    return SIGNS[i] * (-1) ** (i & j).bit_count() / 4


def hadamard_transform(x: Matrix, name: str) -> Matrix:
    unit = unit_of(name, BF16, BF16)
    columns = [[twin.encode(BF16, twin.number(hadamard_entry(i, j))) for i in range(16)] for j in range(16)]
    result = []
    for row in x:
        full = [twin.encode(BF16, twin.number(v)) for v in [*row, *[0.0] * (-len(row) % 16)]]
        sums = [chain(unit, full[k : k + 16], column) for k in range(0, len(full), 16) for column in columns]
        result.append([rounded(Fraction(v), BF16, zero=v) for v in sums])
    return result


# Recipes of linear layers: y = x @ w.T, dx = g @ w, dw = g.T @ x.


@dataclass(frozen=True)
class Operands:
    """Rows of a, and rows of b transposed, with their formats and whether they are 128 rows high."""

    a: Matrix
    b: Matrix
    roles: tuple[str, str]


def operands(product: str, x: Matrix, w: Matrix, g: Matrix) -> Operands:
    match product:
        case "forward":
            return Operands(x, w, ("input", "weight"))
        case "input_gradient":
            return Operands(g, transposed(w), ("gradient", "weight"))
    return Operands(transposed(g), transposed(x), ("gradient", "input"))


E4M3_ALL = (E4M3, E4M3)
HYBRID = (E4M3, E5M2)
