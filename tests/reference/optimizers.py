"""The exact twin of an optimizer's step on one weight: torch's operations, each in ``Fraction`` and rounded once.

Numbers are Python floats. ``working`` is the format that the formula is computed in, FP32 or FP64; state goes through a
function when it is stored and through another between two operations on it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from mpsim.formats import FP64, FloatFormat
from reference.training import rounded

__all__ = ["Twin", "kahan", "to_odd"]


@dataclass
class Twin:
    """One weight's worth of an optimizer."""

    kind: str
    options: dict[str, Any]
    working: FloatFormat
    stored: Callable[[str, float], float] = lambda name, x: x
    between: Callable[[float], float] = lambda x: x
    state: dict[str, float] = field(default_factory=dict)
    step: int = 0
    meant: bool = True
    """Whether the last step was to change the weight at all."""

    def num(self, x: float) -> float:
        return rounded(Fraction(x), self.working, zero=x)

    def add(self, a: float, b: float) -> float:
        return rounded(Fraction(a) + Fraction(b), self.working, zero=a + b)

    def mul(self, a: float, b: float) -> float:
        return rounded(Fraction(a) * Fraction(b), self.working, zero=math.copysign(1, a) * math.copysign(1, b))

    def div(self, a: float, b: float) -> float:
        return rounded(Fraction(a) / Fraction(b), self.working, zero=math.copysign(1, a) * math.copysign(1, b))

    def fma(self, a: float, b: float, c: float) -> float:
        return rounded(Fraction(a) * Fraction(b) + Fraction(c), self.working, zero=a * b + c)

    def sqrt(self, a: float) -> float:
        scaled = Fraction(a) * 4**200
        root = math.isqrt(scaled.numerator // scaled.denominator)
        # A last bit far below the result's stands for what was cut.
        return rounded(Fraction(2 * root + (root * root != scaled), 2**201), self.working)

    def lerp(self, a: float, b: float, share: float) -> float:
        distance = self.add(b, -a)
        if share < 0.5:
            return self.fma(share, distance, a)
        return self.fma(self.add(share, -1.0), distance, b)

    def keep(self, name: str, value: float) -> float:
        self.state[name] = self.stored(name, value)
        return self.state[name]

    def direction(self, w: float, g: float) -> tuple[float, float, float | None]:
        """Return ``scale``, ``x`` and the factor on the weight of ``w * factor + scale * x``."""
        self.step += 1
        o, num = self.options, self.num
        g = -g if o.get("maximize") else g
        decay = o.get("weight_decay", 0.0)
        if decay and self.kind != "AdamW":
            g = self.fma(num(decay), w, g)
        scale, x, factor = getattr(self, f"_{self.kind.lower()}")(g)
        source = {"SGD": x, "RMSprop": x if o.get("momentum") else g, "Adagrad": g}.get(self.kind, self.state.get("m"))
        self.meant = source != 0 or (factor is not None and w != 0)
        return scale, x, factor

    def _sgd(self, g: float) -> tuple[float, float, float | None]:
        o, num = self.options, self.num
        momentum = num(o.get("momentum", 0.0))
        if momentum:
            if "v" in self.state:
                decayed = self.between(self.mul(self.state["v"], momentum))
                v = self.keep("v", self.fma(num(1 - o.get("dampening", 0.0)), g, decayed))
            else:
                v = self.keep("v", g)
            g = self.fma(momentum, v, g) if o.get("nesterov") else v
        return num(-o["lr"]), g, None

    def _adam(self, g: float) -> tuple[float, float, float | None]:
        o, num = self.options, self.num
        beta1, beta2 = o.get("betas", (0.9, 0.999))
        m = self.keep("m", self.lerp(self.state.get("m", 0.0), g, num(1 - beta1)))
        decayed = self.between(self.mul(self.state.get("v", 0.0), num(beta2)))
        v = self.keep("v", self.fma(self.mul(num(1 - beta2), g), g, decayed))
        if o.get("amsgrad"):
            v = self.keep("largest", max(self.state.get("largest", 0.0), v))
        correction = num((1 - beta2**self.step) ** 0.5)
        denominator = self.add(self.div(self.sqrt(v), correction), num(o.get("eps", 1e-8)))
        return 1.0, self.div(self.mul(num(-(o["lr"] / (1 - beta1**self.step))), m), denominator), None

    def _adamw(self, g: float) -> tuple[float, float, float | None]:
        scale, x, _ = self._adam(g)
        return scale, x, self.num(1 - self.options["lr"] * self.options["weight_decay"])

    def _rmsprop(self, g: float) -> tuple[float, float, float | None]:
        o, num = self.options, self.num
        alpha, momentum = o.get("alpha", 0.99), o.get("momentum", 0.0)
        decayed = self.between(self.mul(self.state.get("square", 0.0), num(alpha)))
        square = self.keep("square", self.fma(self.mul(num(1 - alpha), g), g, decayed))
        if o.get("centered"):
            mean = self.keep("mean", self.lerp(self.state.get("mean", 0.0), g, num(1 - alpha)))
            square = self.fma(-mean, mean, square)
        root = self.add(self.sqrt(square), num(o.get("eps", 1e-8)))
        if momentum:
            decayed = self.between(self.mul(self.state.get("v", 0.0), num(momentum)))
            return num(-o["lr"]), self.keep("v", self.add(decayed, self.div(g, root))), None
        return 1.0, self.div(self.mul(num(-o["lr"]), g), root), None

    def _adagrad(self, g: float) -> tuple[float, float, float | None]:
        o, num = self.options, self.num
        rate = num(-(o["lr"] / (1 + (self.step - 1) * o.get("lr_decay", 0.0))))
        start = self.stored("total", num(o.get("initial_accumulator_value", 0.0)))
        total = self.keep("total", self.fma(g, g, self.state.get("total", start)))
        return 1.0, self.div(self.mul(rate, g), self.add(self.sqrt(total), num(o.get("eps", 1e-10)))), None

    def exact_sum(self, w: float, g: float) -> Fraction:
        """Return the new weight before its only rounding."""
        scale, x, factor = self.direction(w, g)
        base = w if factor is None else self.mul(w, factor)
        return Fraction(base) + Fraction(scale) * Fraction(x)


def kahan(twin: Twin, w: float, c: float, g: float, fmt: FloatFormat) -> tuple[float, float]:
    """Return the weight and its compensation after a step, both in ``fmt``."""
    scale, x, factor = twin.direction(w, g)
    if factor is not None:
        shrink = twin.num(-twin.options["lr"] * twin.options["weight_decay"])
        scale, x = 1.0, twin.fma(shrink, w, x)

    def add(a: float, b: float) -> float:
        return rounded(Fraction(a) + Fraction(b), fmt, zero=a + b)

    y = add(rounded(Fraction(scale) * Fraction(x), fmt, zero=scale * x), -c)
    new = add(w, y)
    return new, add(add(new, -w), -y)


def to_odd(exact: Fraction) -> float:
    """Return the binary64 number that a number is, or its neighbour with an odd significand."""
    near = float(exact)
    if Fraction(near) == exact:
        return near
    other = math.nextafter(near, math.inf if exact > Fraction(near) else -math.inf)
    return near if int(math.ldexp(math.frexp(near)[0], FP64.p)) & 1 else other
