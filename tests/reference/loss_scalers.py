"""Loss scalers as their systems write them: mutable, one class each, with counters of iterations.

Scales are Python floats; the tests use powers of two within FP32, on which FP32 and float64 agree.
"""

import math

__all__ = ["SCALERS"]


class Torch:
    """torch.amp.GradScaler; ``keep`` says what becomes of growth to infinity."""

    divisor, floor, ceiling = 2.0, 0.0, math.inf

    def __init__(self, scale: float, window: int) -> None:
        self.scale, self.window, self.tracker = min(scale, self.ceiling), window, 0

    def update(self, overflow: bool) -> None:
        if overflow:
            self.scale = max(self.scale / self.divisor, self.floor)
            self.tracker = 0
            return
        self.tracker += 1
        if self.tracker == self.window:
            self.scale = min(self.scale * 2, self.ceiling)
            self.tracker = 0


class Apex(Torch):
    ceiling = 2.0**24


class Jmp:
    def __init__(self, scale: float, period: int) -> None:
        self.scale, self.period, self.counter = scale, period, 0

    def update(self, overflow: bool) -> None:
        if overflow:
            self.scale = max(1.0, self.scale / 2)
        elif self.counter == self.period - 1:
            self.scale *= 2
        self.counter = 0 if overflow else (self.counter + 1) % self.period


class ApexFp16Utils:
    def __init__(self, scale: float, window: int) -> None:
        self.scale, self.window, self.iteration, self.last_overflow = scale, window, 0, -1

    def update(self, overflow: bool) -> None:
        if overflow:
            self.scale = max(self.scale / 2, 1.0)
            self.last_overflow = self.iteration
        elif (self.iteration - self.last_overflow) % self.window == 0:
            self.scale *= 2
        self.iteration += 1


class Megatron:
    def __init__(self, scale: float, window: int, hysteresis: int = 2) -> None:
        self.scale, self.window, self.hysteresis = scale, window, hysteresis
        self.tracker, self.tolerance = 0, hysteresis

    def update(self, overflow: bool) -> None:
        if overflow:
            self.tracker = 0
            self.tolerance -= 1
            if self.tolerance <= 0:
                self.scale = max(self.scale / 2, 1.0)
            return
        self.tracker += 1
        if self.tracker == self.window:
            self.tracker = 0
            self.tolerance = self.hysteresis
            self.scale *= 2


class DeepSpeed:
    def __init__(self, scale: float, window: int, hysteresis: int = 2, consecutive: bool = False) -> None:
        self.scale, self.window, self.hysteresis, self.consecutive = scale, window, hysteresis, consecutive
        self.iteration, self.last_overflow, self.tolerance = 0, -1, hysteresis

    def update(self, overflow: bool) -> None:
        if overflow:
            if self.tolerance == 1:
                if self.scale == 1.0:
                    raise FloatingPointError
                self.scale = max(self.scale / 2, 1.0)
            else:
                self.tolerance -= 1
            self.last_overflow = self.iteration
        else:
            if self.consecutive:
                self.tolerance = self.hysteresis
            stable = self.iteration - self.last_overflow - 1
            if stable > 0 and stable % self.window == 0:
                self.scale *= 2
                self.tolerance = self.hysteresis
        self.iteration += 1


class Fairseq:
    def __init__(self, scale: float, window: int, tolerance: float = 0.0) -> None:
        self.scale, self.window, self.tolerance = scale, window, tolerance
        self.iteration, self.last_overflow, self.last_rescale, self.overflows = 0, -1, -1, 0

    def update(self, overflow: bool) -> None:
        if overflow:
            before, since = self.scale, self.iteration - self.last_rescale
            self.last_overflow = self.iteration
            self.overflows += 1
            if self.overflows / since >= self.tolerance:
                self.scale /= 2
                self.last_rescale = self.iteration
                self.overflows = 0
            if self.scale <= 1e-4:
                self.scale = before
                raise FloatingPointError
        elif (self.iteration - self.last_overflow) % self.window == 0:
            self.scale *= 2
            self.last_rescale = self.iteration
        self.iteration += 1


SCALERS = {
    "torch": Torch,
    "keras": Torch,
    "apex": Apex,
    "jmp": Jmp,
    "apex-fp16-utils": ApexFp16Utils,
    "megatron": Megatron,
    "deepspeed": DeepSpeed,
    "fairseq": Fairseq,
}
