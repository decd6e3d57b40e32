"""Operations as plain loops over numbers, every step a call of `mpsim.arithmetic`: a machine of one format."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpsim import arithmetic
from mpsim.rounding import round_to

__all__ = ["Machine"]


@dataclass(frozen=True)
class Machine:
    """A machine that holds every number in ``fmt``, with an accumulator for sums."""

    fmt: str
    accumulator: str | None = None
    order: str = "sequential"
    chunk: int | None = None

    def const(self, x: float) -> float:
        return float(round_to(float(x), self.fmt))

    def add(self, a: float, b: float) -> float:
        return float(arithmetic.add(a, b, self.fmt))

    def sub(self, a: float, b: float) -> float:
        return float(arithmetic.sub(a, b, self.fmt))

    def mul(self, a: float, b: float) -> float:
        return float(arithmetic.mul(a, b, self.fmt))

    def div(self, a: float, b: float) -> float:
        return float(arithmetic.div(a, b, self.fmt))

    def of(self, function: Callable[[float], float], x: float) -> float:
        """Return a function that is one step."""
        return self.const(function(x))

    def exp(self, x: float) -> float:
        return self.of(math.exp, x)

    def log(self, x: float) -> float:
        return self.of(math.log, x)

    def total(self, terms: Sequence[float]) -> float:
        fmt = self.accumulator or self.fmt
        if self.order == "sequential":  # the plainest case without `arithmetic.sum`
            result = self.const(0) if not terms else float(round_to(terms[0], fmt))
            for term in terms[1:]:
                result = float(arithmetic.add(result, term, fmt))
        else:
            result = float(arithmetic.sum(list(terms), fmt, order=self.order, chunk=self.chunk))
        return self.const(result)

    def mean(self, terms: Sequence[float]) -> float:
        return self.div(self.total(terms), len(terms))

    def var(self, terms: Sequence[float]) -> float:
        mean = self.mean(terms)
        deviations = [self.sub(x, mean) for x in terms]
        return self.div(self.total([self.mul(d, d) for d in deviations]), len(terms) - 1)

    def exponentials(self, row: Sequence[float]) -> list[float]:
        return [self.exp(self.sub(x, max(row))) for x in row]

    def softmax(self, row: Sequence[float]) -> list[float]:
        e = self.exponentials(row)
        total = self.total(e)
        return [self.div(x, total) for x in e]

    def log_softmax(self, row: Sequence[float]) -> list[float]:
        total = self.log(self.total(self.exponentials(row)))
        return [self.sub(self.sub(x, max(row)), total) for x in row]

    def softmax_vjp(self, g: Sequence[float], y: Sequence[float]) -> list[float]:
        total = self.total([self.mul(a, b) for a, b in zip(g, y, strict=True)])
        return [self.mul(self.sub(a, total), b) for a, b in zip(g, y, strict=True)]

    def normalised(self, row: Sequence[float], eps: float) -> tuple[list[float], float]:
        """Return a row less its mean, over its standard deviation; and one over that."""
        mean = self.mean(row)
        centred = [self.sub(x, mean) for x in row]
        square = self.add(self.mean([self.mul(c, c) for c in centred]), eps)
        rstd = self.of(lambda v: 1 / math.sqrt(v), square)
        return [self.mul(c, rstd) for c in centred], rstd

    def layer_norm(self, row: Sequence[float], weight: Sequence[float], bias: Sequence[float]) -> list[float]:
        normalised, _ = self.normalised(row, 1e-5)
        return [self.add(self.mul(n, w), b) for n, w, b in zip(normalised, weight, bias, strict=True)]

    def layer_norm_vjp(self, g: Sequence[float], row: Sequence[float], weight: Sequence[float]) -> list[float]:
        normalised, rstd = self.normalised(row, 1e-5)
        scaled = [self.mul(a, w) for a, w in zip(g, weight, strict=True)]
        mean = self.mean(scaled)
        product = self.mean([self.mul(s, n) for s, n in zip(scaled, normalised, strict=True)])
        return [
            self.mul(rstd, self.sub(self.sub(s, mean), self.mul(n, product)))
            for s, n in zip(scaled, normalised, strict=True)
        ]

    def mse_loss(self, x: Sequence[float], target: Sequence[float]) -> float:
        differences = [self.sub(a, b) for a, b in zip(x, target, strict=True)]
        return self.div(self.total([self.mul(d, d) for d in differences]), len(x))

    def tanh_vjp(self, g: float, y: float) -> float:
        return self.mul(g, self.sub(1, self.mul(y, y)))
