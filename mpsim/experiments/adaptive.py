"""Adaptive precision on the digits: what each controller decides, and what that costs against FP32.

The network is 64-64-64-10. The loss is multiplied by 2**-20 for the controllers of scales, whose gradients would
otherwise not underflow, and the learning rate divided by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mpsim import nn, optim
from mpsim.amp.adaptive import AdaptiveTraining, Controller
from mpsim.amp.controllers import DiversitySwitch, DynamicLossScale, LayerScales, NoiseBudget, Phases
from mpsim.experiments.checks import at_least
from mpsim.experiments.registry import Table
from mpsim.experiments.training import standardised
from mpsim.formats import get_format
from mpsim.modes import unknown

__all__ = ["ARMS", "Arm", "Config", "Measured", "Result", "run"]

_SMALL = 2.0**-20
_LADDER = ("e5m2", "fp16", "fp32")


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train."""

    controller: Callable[[], Controller]
    loss_factor: float = 1.0


ARMS: dict[str, Arm] = {
    "fp32": Arm(lambda: Phases([(0, "fp32")])),
    "fp16, small gradients": Arm(lambda: Phases([(0, "fp16")]), _SMALL),
    "dynamic loss scale": Arm(DynamicLossScale, _SMALL),
    "layer scales": Arm(lambda: LayerScales(loss_scale=64.0), _SMALL),
    "e5m2": Arm(lambda: Phases([(0, "e5m2")], loss_scale=256.0)),
    "phases": Arm(lambda: Phases([(0, "e5m2"), (60, "fp16")], loss_scale=256.0)),
    "diversity": Arm(lambda: DiversitySwitch(_LADDER, beta=0.1, loss_scale=256.0)),
    "noise budget": Arm(lambda: NoiseBudget(_LADDER, budget=3e-3, loss_scale=256.0)),
}
"""The controllers, beside training without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of the study.

    Raises
    ------
    ValueError
        A number is out of range, or there is no such arm.
    """

    arms: tuple[str, ...] = tuple(ARMS)
    seed: int = 0
    epochs: int = 3
    batch_size: int = 32
    hidden: int = 64
    lr: float = 0.05

    def __post_init__(self) -> None:
        at_least(self, seed=0, epochs=1, batch_size=1, hidden=1, lr=0)
        for name in self.arms:
            if name not in ARMS:
                raise unknown("one of arms", name, ARMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one arm did."""

    arm: str
    accuracy: float
    """Share of the test images that are classified right, in FP32."""
    loss: float
    """Mean training loss of the last epoch, without the factor."""
    skipped: int
    formats: tuple[tuple[int, str], ...]
    """From which step on the layers ran in which formats."""
    narrow: float
    """Share of all layers and steps in a format of at most 8 bits."""


@dataclass(frozen=True)
class Result:
    """What the study measured."""

    config: Config
    measured: tuple[Measured, ...]

    @property
    def table(self) -> Table:
        """Everything, for people."""
        rows = tuple(
            (m.arm, f"{m.accuracy:.1%}", f"{m.loss:.3f}", str(m.skipped), f"{m.narrow:.0%}", _switches(m.formats))
            for m in self.measured
        )
        columns = ("controller", "test accuracy", "training loss", "skipped", "8-bit share", "formats from step")
        return Table(title="Adaptive precision on the digits", columns=columns, rows=rows)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dictionaries, lists, strings and numbers."""
        return asdict(self)


def run(config: Config) -> Result:
    """Run the arms of a configuration.

    Examples
    --------
    >>> result = run(Config(arms=("phases",), epochs=2))
    >>> result.measured[0].formats
    ((0, 'e5m2'), (60, 'fp16'))
    """
    return Result(config, tuple(_measure(name, config) for name in config.arms))


def _measure(name: str, config: Config) -> Measured:
    images, tests = standardised(None)
    rng, order = np.random.default_rng([config.seed, 0]), np.random.default_rng([config.seed, 1])
    wide = config.hidden
    model = nn.Sequential(
        nn.Linear(images.x.shape[1], wide, rng=rng),
        nn.ReLU(),
        nn.Linear(wide, wide, rng=rng),
        nn.ReLU(),
        nn.Linear(wide, 10, rng=rng),
    )
    arm = ARMS[name]
    optimizer = optim.SGD(model.parameters(), lr=config.lr / arm.loss_factor)
    training = AdaptiveTraining(model, optimizer, arm.controller())
    for _ in range(config.epochs):
        losses = []
        shuffled = order.permutation(len(images))
        for start in range(0, len(images), config.batch_size):
            rows = shuffled[start : start + config.batch_size]

            def loss(rows: Any = rows) -> Any:
                return nn.functional.cross_entropy(model(images.x[rows]), images.y[rows]) * arm.loss_factor

            losses.append(training.step(loss).loss / arm.loss_factor)
    used = [
        [decision.layers.get(layer, decision.format) for layer in statistics.weights]
        for decision, statistics in training.history
    ]
    return Measured(
        arm=name,
        accuracy=float(np.mean(model(tests.x).data.argmax(axis=1) == tests.y)),
        loss=float(np.mean(losses)),
        skipped=training.skipped,
        formats=_changes([" ".join(sorted(set(formats))) for formats in used]),
        narrow=float(np.mean([[get_format(fmt).bits <= 8 for fmt in formats] for formats in used])),
    )


def _changes(formats: list[str]) -> tuple[tuple[int, str], ...]:
    """Return the steps at which something changed, and what it became."""
    return tuple((i, fmt) for i, fmt in enumerate(formats) if i == 0 or fmt != formats[i - 1])


def _switches(formats: tuple[tuple[int, str], ...]) -> str:
    shown = [f"{step} {fmt.replace(' ', '+')}" for step, fmt in formats[:4]]
    return ", ".join(shown) + (f", {len(formats) - 4} more" if len(formats) > 4 else "")
