"""The exact twin of one training step: a small ReLU network in mixed precision, written out by hand.

Numbers are Python floats that hold float32 values. Every operation is done in ``Fraction`` and rounded once to
binary32, or once more to the low format where a kernel would store it; matrix products are those of
``reference.fused_dot``. There is no graph: the gradients are written down. Sums of more than two terms go from left to
right, as NumPy adds fewer than eight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Context, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

from mpsim import units
from mpsim.formats import FP32
from reference import fused_dot
from reference import rounding as twin

if TYPE_CHECKING:
    from mpsim.formats import FloatFormat

Matrix = list[list[float]]

_CONTEXT = Context(prec=60)


def rounded(exact: Fraction, fmt: FloatFormat, zero: float = 0.0) -> float:
    """Return a number rounded once, ties to even; ``zero`` has the sign of the result where it is exactly zero."""
    if exact == 0:
        return math.copysign(0.0, zero)
    scaled = abs(exact) * (1 << twin.SCALE)
    # Cut far below the last bit of any format; a set last bit stands for everything that was cut.
    magnitude = scaled.numerator // scaled.denominator | (scaled.denominator != 1)
    number = twin.Number(exact < 0, "finite", magnitude)
    return twin.to_float(twin.decode(fmt, twin.encode(fmt, number)))


def add(a: float, b: float) -> float:
    return rounded(Fraction(a) + Fraction(b), FP32, zero=a + b)


def mul(a: float, b: float) -> float:
    return rounded(Fraction(a) * Fraction(b), FP32, zero=math.copysign(1, a) * math.copysign(1, b))


def div(a: float, b: float) -> float:
    return rounded(Fraction(a) / Fraction(b), FP32, zero=math.copysign(1, a) * math.copysign(1, b))


def fma(a: float, b: float, c: float) -> float:
    return rounded(Fraction(a) * Fraction(b) + Fraction(c), FP32, zero=a * b + c)


def exp(x: float) -> float:
    return rounded(Fraction(_CONTEXT.exp(Decimal(x))), FP32)


def log(x: float) -> float:
    return rounded(Fraction(_CONTEXT.ln(Decimal(x))), FP32)


def total(terms: list[float]) -> float:
    result = terms[0]
    for term in terms[1:]:
        result = add(result, term)
    return result


def cast(x: Matrix, fmt: FloatFormat) -> Matrix:
    return [[rounded(Fraction(v), fmt, zero=v) for v in row] for row in x]


def transposed(x: Matrix) -> Matrix:
    return [list(column) for column in zip(*x, strict=True)]


def unit_twin(name: str, fmt: FloatFormat) -> fused_dot.Unit:
    """Return the twin of a device's instruction for ``fmt`` into binary32."""
    row = units.get(name, inputs=fmt)
    nearest = row.rounding == "nearest-even"
    return fused_dot.Unit(row.block_length, row.fraction_bits, row.floor, row.result_precision, nearest, fmt, fmt, FP32)


def product(unit: fused_dot.Unit, a: Matrix, b: Matrix) -> Matrix:
    """Return ``a @ b`` in binary32 as the unit leaves it."""
    codes_a = [[twin.encode(unit.a, twin.number(v)) for v in row] for row in a]
    codes_b = [[twin.encode(unit.b, twin.number(v)) for v in row] for row in b]
    start = [[0] * len(b[0]) for _ in a]
    codes = fused_dot.matmul(unit, codes_a, codes_b, start)
    return [[twin.to_float(twin.decode(unit.out, code)) for code in row] for row in codes]


@dataclass
class Layer:
    """A linear layer's master weights ``weight`` [out, in] and ``bias`` [out] in binary32."""

    weight: Matrix
    bias: list[float]


@dataclass
class Step:
    """Everything that one step computes, in the order in which it is computed."""

    activations: list[Matrix] = field(default_factory=list)
    """Output of each linear layer in the low format, before ReLU."""
    loss: float = 0.0
    activation_gradients: list[Matrix] = field(default_factory=list)
    """Gradient of each of ``activations``, scaled, in the low format; last layer first."""
    gradients: list[Layer] = field(default_factory=list)
    """Scaled gradients of the weights, in binary32; last layer first."""
    updated: list[Layer] = field(default_factory=list)
    """Weights after the step, first layer first."""


def step(
    layers: list[Layer],
    x: Matrix,
    labels: list[int],
    scale: float,
    lr: float,
    unit: fused_dot.Unit,
) -> Step:
    """Train one step of linear, ReLU, ..., linear, softmax cross-entropy with loss scale and SGD.

    ``scale`` and ``lr`` are binary32 numbers; the low format is the unit's.
    """
    low, done = unit.a, Step()
    inputs: list[Matrix] = []
    weights = [cast(layer.weight, low) for layer in layers]
    h = cast(x, low)
    for i, layer in enumerate(layers):
        inputs.append(h)
        (bias,) = cast([layer.bias], low)
        sums = product(unit, h, transposed(weights[i]))
        y = cast([[add(v, b) for v, b in zip(row, bias, strict=True)] for row in sums], low)
        done.activations.append(y)
        h = [[v if v > 0 else 0.0 for v in row] for row in y]

    log_p: Matrix = []
    for row in done.activations[-1]:
        shifted = [add(v, -max(row)) for v in row]
        log_total = log(total([exp(v) for v in shifted]))
        log_p.append([add(v, -log_total) for v in shifted])
    n = len(labels)
    done.loss = -div(total([row[label] for row, label in zip(log_p, labels, strict=True)]), float(n))

    # d(scaled loss)/d(log p) is -scale/n at the label; softmax takes exp(log p) times its sum off every logit.
    g: Matrix = []
    for row, label in zip(log_p, labels, strict=True):
        seed = -div(scale, float(n))
        g.append([add(seed if j == label else 0.0, -mul(exp(v), seed)) for j, v in enumerate(row)])
    g = cast(g, low)
    for i in reversed(range(len(layers))):
        if i < len(layers) - 1:  # back through ReLU
            y = done.activations[i]
            g = [[a if b > 0 else 0.0 for a, b in zip(*rows, strict=True)] for rows in zip(g, y, strict=True)]
        done.activation_gradients.append(g)
        columns = transposed(g)
        (bias_gradient,) = cast([[total(column) for column in columns]], low)
        done.gradients.append(Layer(cast(product(unit, columns, inputs[i]), low), bias_gradient))
        g = cast(product(unit, g, weights[i]), low)

    inverse = div(1.0, scale)
    for layer, grad in zip(layers, reversed(done.gradients), strict=True):
        done.updated.append(
            Layer(
                [
                    [fma(-lr, mul(g, inverse), w) for w, g in zip(*rows, strict=True)]
                    for rows in zip(layer.weight, grad.weight, strict=True)
                ],
                [fma(-lr, mul(g, inverse), w) for w, g in zip(layer.bias, grad.bias, strict=True)],
            )
        )
    return done
