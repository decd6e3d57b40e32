"""Adaptive precision on the digits: what each controller decides, and what that costs against FP32.

The network is 64-64-64-10. The loss is multiplied by 2**-20 for the controllers of scales, whose gradients would
otherwise not underflow, and the learning rate divided by it. Controllers of formats have a constant loss scale of 256.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from mpsim import nn, optim
from mpsim._version import __version__
from mpsim.amp.adaptive import AdaptiveTraining, Controller
from mpsim.amp.controllers import DiversitySwitch, DynamicLossScale, LayerScales, NoiseBudget, Phases
from mpsim.amp.scale_rules import RULES
from mpsim.experiments.checks import at_least, two_standard_errors
from mpsim.experiments.registry import Claim, Progress, Table
from mpsim.experiments.training import standardised
from mpsim.experiments.workers import finished_parts
from mpsim.formats import get_format
from mpsim.modes import unknown

__all__ = ["ARMS", "Arm", "Config", "Measured", "Result", "run"]

ItemT = TypeVar("ItemT")

_SMALL = 2.0**-20
_LADDER = ("e5m2", "fp16", "fp32")
_IMPATIENT = replace(RULES["torch"], name="impatient", start=2.0**32, interval=10)
"""Torch's rule from Megatron's start; torch's interval of 2000 steps is longer than the whole run."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train."""

    controller: Callable[[], Controller]
    loss_factor: float = 1.0


ARMS: dict[str, Arm] = {
    "fp32": Arm(lambda: Phases([(0, "fp32")])),
    "fp16, small gradients": Arm(lambda: Phases([(0, "fp16")]), _SMALL),
    "dynamic loss scale": Arm(lambda: DynamicLossScale(_IMPATIENT), _SMALL),
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
        if not self.arms:
            raise ValueError(f"arms is empty; choose from {', '.join(ARMS)}")
        for name in self.arms:
            if name not in ARMS:
                raise unknown("one of arms", name, ARMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one arm did."""

    arm: str
    accuracy: float
    """Share of the test images that are classified right, in FP32."""
    tested: int
    """Number of test images."""
    losses: tuple[float, ...]
    """Training loss by step, without the factor."""
    loss: float
    """Mean training loss of the last epoch, without the factor."""
    skipped: int
    formats: tuple[tuple[int, str], ...]
    """From which step on the layers ran in which formats."""
    narrow: float
    """Share of all layers and steps in a format of at most 8 bits."""
    scales: tuple[tuple[int, float], ...]
    """From which step on the gradients of the first layer had which scale, that of the loss times those of layers."""


@dataclass(frozen=True)
class Result:
    """What the study measured."""

    config: Config
    measured: tuple[Measured, ...]
    """Finished arms, in the order of the configuration."""

    experiment = "adaptive"

    @property
    def complete(self) -> bool:
        """Whether every arm was run."""
        return len(self.measured) == len(self.config.arms)

    def find(self, name: str) -> Measured | None:
        """Return a finished arm by name, or None."""
        return next((m for m in self.measured if m.arm == name), None)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """What each controller should do, beside what it did; those whose arms were run, once all are finished."""
        return tuple(_claims({m.arm: m for m in self.measured})) if self.complete else ()

    @property
    def tables(self) -> tuple[Table, ...]:
        """One row for each finished arm."""
        rows = tuple(
            (
                m.arm,
                f"{m.accuracy:.1%}",
                f"{m.loss:.3f}",
                str(m.skipped),
                f"{m.narrow:.0%}",
                _switches(m.formats),
                f"2^{math.log2(m.scales[-1][1]):g}",
            )
            for m in self.measured
        )
        columns = ("controller", "accuracy", "loss", "skipped", "8-bit share", "formats from step", "last scale")
        return (Table(title="Adaptive precision on the digits", columns=columns, rows=rows),)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dictionaries, lists, strings and numbers; NaN and infinity as None."""
        return {
            "experiment": self.experiment,
            "mpsim": __version__,
            "complete": self.complete,
            "config": asdict(self.config),
            "measured": [_plain(asdict(m)) for m in self.measured],
            "claims": [asdict(claim) for claim in self.claims],
        }


def run(
    config: Config | None = None,
    *,
    workers: int = 1,
    progress: Progress | None = None,
    on_part: Callable[[Result], None] | None = None,
) -> Result:
    """Run the arms of a configuration; arguments as for `experiments.run`.

    Examples
    --------
    >>> result = run(Config(arms=("phases",), epochs=2))
    >>> result.measured[0].formats
    ((0, 'e5m2'), (60, 'fp16'))
    """
    config = config or Config()
    done: dict[str, Measured] = {}
    result = Result(config, ())
    if progress:
        progress(0.0, config.arms[0])
    for measured in finished_parts(partial(_measure, config=config), config.arms, workers):
        done[measured.arm] = measured
        result = Result(config, tuple(done[name] for name in config.arms if name in done))
        if on_part:
            on_part(result)
        if progress:
            progress(len(done) / len(config.arms), measured.arm)
    return result


def _claims(by_name: dict[str, Measured]) -> Iterator[Claim]:
    fp32, lost, narrow = (by_name.get(name) for name in ("fp32", "fp16, small gradients", "e5m2"))
    for name, source, statement in (
        ("dynamic loss scale", "Micikevicius et al. 2018, 3.2", "A dynamic loss scale finds the scale by itself."),
        ("layer scales", "Zhao et al. 2019, arXiv 1910.12385", "Scales by layer need no search for that of the loss."),
    ):
        m = by_name.get(name)
        if m and fp32 and lost:
            margin = two_standard_errors(fp32.accuracy, fp32.tested)
            yield Claim(
                source=source,
                statement=statement,
                criterion=f"within {margin:.1%} (two standard errors) of FP32; FP16 without a scale is not",
                measured=f"{m.accuracy:.1%} against {fp32.accuracy:.1%}, without {lost.accuracy:.1%}",
                holds=m.accuracy >= fp32.accuracy - margin > lost.accuracy,
            )
    for name, source, statement in (
        ("phases", "amp.controllers.Phases", "Low precision early and higher late costs no accuracy."),
        (
            "diversity",
            "Rajagopal et al. 2020, arXiv 2006.09049",
            "Gradient diversity tells when to widen the format.",
        ),
        (
            "noise budget",
            "amp.controllers.NoiseBudget",
            "Statistics tell which layers bear a narrow format.",
        ),
    ):
        m = by_name.get(name)
        if m and fp32 and narrow:
            margin = two_standard_errors(fp32.accuracy, fp32.tested)
            yield Claim(
                source=source,
                statement=statement,
                criterion=f"within {margin:.1%} of FP32, loss below E5M2's, at least 20 % in 8 bits",
                measured=f"{m.accuracy:.1%} against {fp32.accuracy:.1%}, loss {m.loss:.3f} against {narrow.loss:.3f}, "
                f"{m.narrow:.0%} in 8 bits",
                holds=m.accuracy >= fp32.accuracy - margin and m.loss < narrow.loss and m.narrow >= 0.2,
            )


def _plain(x: Any) -> Any:
    """Return a copy with NaN and infinity as None."""
    if isinstance(x, dict):
        return {key: _plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


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
        shuffled = order.permutation(len(images))
        for start in range(0, len(images), config.batch_size):
            rows = shuffled[start : start + config.batch_size]

            def loss(rows: Any = rows) -> Any:
                return nn.functional.cross_entropy(model(images.x[rows]), images.y[rows]) * arm.loss_factor

            training.step(loss)
    used = [
        [decision.layers.get(layer, decision.format) for layer in statistics.weights]
        for decision, statistics in training.history
    ]
    losses = tuple(statistics.loss / arm.loss_factor for _, statistics in training.history)
    scales = [d.loss_scale * math.prod(d.layer_scales.values()) for d, _ in training.history]
    return Measured(
        arm=name,
        accuracy=float(np.mean(model(tests.x).data.argmax(axis=1) == tests.y)),
        tested=len(tests),
        losses=losses,
        loss=float(np.mean(losses[-(len(losses) // config.epochs) :])),
        skipped=training.skipped,
        formats=_changes([" ".join(sorted(set(formats))) for formats in used]),
        narrow=float(np.mean([[get_format(fmt).bits <= 8 for fmt in formats] for formats in used])),
        scales=_changes(scales),
    )


def _changes(items: list[ItemT]) -> tuple[tuple[int, ItemT], ...]:
    """Return the steps at which something changed, and what it became."""
    return tuple((i, item) for i, item in enumerate(items) if i == 0 or item != items[i - 1])


def _switches(formats: tuple[tuple[int, str], ...]) -> str:
    shown = [f"{step} {fmt.replace(' ', '+')}" for step, fmt in formats[:4]]
    return ", ".join(shown) + (f", {len(formats) - 4} more" if len(formats) > 4 else "")
