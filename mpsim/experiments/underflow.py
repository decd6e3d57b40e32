"""Why mixed-precision training needs loss scaling and FP32 master weights.

The experiment of Micikevicius et al. 2018, "Mixed Precision Training" (arXiv 1710.03740), sections 3.1 and 3.2, on a
network small enough for a laptop: 64-64-64-10 on handwritten digits. Its gradients are far too large to underflow, so
the first part multiplies the loss by 2**-20, which makes them as small as those deep inside a deep network, and the
learning rate by 2**20, which leaves the training in exact arithmetic as it was.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from mpsim import units
from mpsim._version import __version__
from mpsim.experiments.checks import at_least, two_standard_errors
from mpsim.experiments.registry import Claim, Progress, Table
from mpsim.experiments.training import Arm, Measured, Schedule, standardised, train
from mpsim.experiments.workers import finished_parts
from mpsim.formats import FP32, get_format

__all__ = ["LOSS_SCALING", "MASTER_WEIGHTS", "Config", "Result", "arms", "run"]

LOSS_SCALING = "loss scaling"
MASTER_WEIGHTS = "master weights"

_PAPER = "Micikevicius et al. 2018"
_DYNAMIC = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of the study.

    Raises
    ------
    ValueError
        A number is out of range, or there is no such unit or format.
    """

    unit: str = "v100"
    """Matrix unit of the products in ``format``."""
    format: str = "fp16"
    """The low-precision format under study."""
    seed: int = 0
    epochs: int = 30
    batch_size: int = 32
    hidden: int = 64
    loss_factor: float = 2.0**-20
    scales: tuple[float, ...] = (1.0, 8.0, 128.0, 1024.0, 32768.0)
    """Constant loss scales; the range that the paper reports, and 1."""
    scaling_lr: float = 0.05
    """Learning rate of the first part, before it is divided by ``loss_factor``."""
    master_lr: float = 0.002
    """Learning rate of the second part."""
    momentum: float = 0.0
    growth_interval: int = 25
    """Clean steps before a dynamic scale doubles; torch's 2000 is longer than the whole run."""
    data: str | None = None
    """A file as for `datasets.load_npz`, in place of the digits."""

    def __post_init__(self) -> None:
        at_least(self, seed=0, epochs=0, batch_size=1, hidden=1, growth_interval=1)
        at_least(self, scaling_lr=0, master_lr=0, momentum=0)
        if not (0 < self.loss_factor < math.inf):
            raise ValueError(f"loss_factor is {self.loss_factor}; it must be positive and finite")
        rising = all(a < b < math.inf for a, b in itertools.pairwise(self.scales))
        if len(self.scales) < 2 or self.scales[0] != 1 or not rising:
            raise ValueError(f"scales is {self.scales}; it must start with 1, rise, and have a scale above 1")
        if get_format(self.format).p >= FP32.p:
            raise ValueError(f"format is {self.format}; the study needs one narrower than fp32, such as fp16")
        units.get(self.unit, inputs=self.format)
        if self.data is not None:
            standardised(self.data)

    @property
    def low(self) -> str:
        """Catalogue name of the low-precision format."""
        return get_format(self.format).name

    @property
    def schedule(self) -> Schedule:
        """What all arms have in common."""
        return Schedule(
            seed=self.seed,
            epochs=self.epochs,
            batch_size=self.batch_size,
            hidden=self.hidden,
            momentum=self.momentum,
            growth_interval=self.growth_interval,
            data=self.data,
        )


@dataclass(frozen=True)
class Result:
    """What the study measured."""

    config: Config
    measured: tuple[Measured, ...]
    """Finished arms, in the order of `arms`."""

    experiment = "underflow"

    @property
    def complete(self) -> bool:
        """Whether every arm was run."""
        return len(self.measured) == len(arms(self.config))

    def part(self, part: str) -> tuple[Measured, ...]:
        """Return the finished arms of one part."""
        return tuple(m for m in self.measured if m.arm.part == part)

    def find(self, name: str) -> Measured | None:
        """Return a finished arm by name, or None."""
        return next((m for m in self.measured if m.arm.name == name), None)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """What the paper says, beside what was measured; empty until every arm is finished."""
        return tuple(_claims(self)) if self.complete and self.config.epochs else ()

    @property
    def tables(self) -> tuple[Table, ...]:
        """The two parts, one row for each finished arm."""
        config = self.config
        scaling = Table(
            title=f"Loss scaling: the loss is multiplied by 2^{math.log2(config.loss_factor):g}; "
            "shares are of the activation gradients",
            columns=("arithmetic", "unit", "accuracy", "zero", "made zero", "subnormal", "skipped steps"),
            rows=tuple(
                (
                    m.arm.name,
                    m.arm.unit,
                    f"{m.accuracy:.1%}",
                    f"{m.zero:.1%}",
                    f"{m.underflow:.1%}",
                    f"{m.subnormal:.1%}",
                    f"{len(m.skipped)} of {m.steps}",
                )
                for m in self.part(LOSS_SCALING)
            ),
        )
        master = Table(
            title=f"Master weights: learning rate {config.master_lr:g}, the loss as it is",
            columns=("arithmetic", "unit", "accuracy", "updates lost", "last loss"),
            rows=tuple(
                (m.arm.name, m.arm.unit, f"{m.accuracy:.1%}", f"{m.updates_lost:.1%}", f"{m.losses[-1]:.3f}")
                for m in self.part(MASTER_WEIGHTS)
                if m.losses
            ),
        )
        return scaling, master

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dictionaries, lists, strings and numbers; NaN and infinity as None and "dynamic"."""
        return {
            "experiment": self.experiment,
            "mpsim": __version__,
            "complete": self.complete,
            "config": dataclasses.asdict(self.config),
            "arms": [_plain(dataclasses.asdict(m)) for m in self.measured],
            "claims": [dataclasses.asdict(claim) for claim in self.claims],
        }


def arms(config: Config) -> tuple[Arm, ...]:
    """Return every way of training that the study compares."""
    low, lr = config.low, config.scaling_lr / config.loss_factor
    scaling = partial(Arm, part=LOSS_SCALING, weights="fp32", lr=lr, loss_factor=config.loss_factor)
    master = partial(Arm, part=MASTER_WEIGHTS, loss_scale=None, lr=config.master_lr)
    unit, wide_unit = config.unit, _unit_with("bf16", config.unit)
    return (
        scaling(name="FP32", compute="fp32", unit="native", loss_scale=None, histogram=True),
        *(scaling(name=_scale_name(low, scale), compute=low, unit=unit, loss_scale=scale) for scale in config.scales),
        scaling(name=f"{low.upper()}, dynamic", compute=low, unit=unit, loss_scale=_DYNAMIC),
        scaling(name="BF16", compute="bf16", unit=wide_unit, loss_scale=None),
        master(name="FP32 throughout", compute="fp32", weights="fp32", unit="native"),
        master(name=f"{low.upper()}, FP32 weights", compute=low, weights="fp32", unit=unit),
        master(name=f"{low.upper()} weights", compute=low, weights=low, unit=unit),
        *([] if low == "bf16" else [master(name="BF16 weights", compute="bf16", weights="bf16", unit=wide_unit)]),
    )


def _scale_name(low: str, scale: float) -> str:
    return f"{low.upper()}, scale {str(scale).removesuffix('.0')}"


def run(
    config: Config | None = None,
    *,
    workers: int = 1,
    progress: Progress | None = None,
    on_part: Callable[[Result], None] | None = None,
) -> Result:
    """Run the study.

    Parameters
    ----------
    config : Config, optional
    workers : int
        Processes to use; the result does not depend on it.
    progress : callable, optional
        Called with the share of the work done and the name of the arm just finished.
    on_part : callable, optional
        Called with the incomplete result after each arm.
    """
    config = config or Config()
    planned = arms(config)
    finished: dict[Arm, Measured] = {}
    result = Result(config, ())
    if progress:
        progress(0.0, planned[0].name)
    for measured in finished_parts(partial(train, schedule=config.schedule), planned, workers):
        finished[measured.arm] = measured
        result = Result(config, tuple(finished[arm] for arm in planned if arm in finished))
        if on_part:
            on_part(result)
        if progress:
            progress(len(finished) / len(planned), measured.arm.name)
    return result


def _unit_with(inputs: str, preferred: str) -> str:
    """Return the preferred unit if it takes the format, else the first device that does."""
    for unit in (preferred, "a100", *units.devices()):
        try:
            units.get(unit, inputs=inputs)
        except ValueError:
            continue
        return unit
    raise ValueError(f"no matrix unit takes {inputs}")


def _claims(result: Result) -> Iterator[Claim]:
    config = result.config
    low = config.low.upper()
    by_name = {m.arm.name: m for m in result.measured}
    fp32, dynamic, bf16 = by_name["FP32"], by_name[f"{low}, dynamic"], by_name["BF16"]
    constant = [by_name[_scale_name(low, scale)] for scale in config.scales]
    unscaled, best = constant[0], max(constant[1:], key=lambda m: m.accuracy)
    margin = _margin(fp32)

    yield Claim(
        source=f"{_PAPER}, 3.2",
        statement=f"Without loss scaling, gradients below {low}'s range become zeros.",
        criterion=f"{low} at scale 1 rounds more than 1 % of the activation gradients to zero, FP32 none",
        measured=f"{unscaled.underflow:.1%} made zero, {unscaled.zero:.1%} zero in all (FP32 {fp32.zero:.1%})",
        holds=unscaled.underflow > 0.01 and fp32.underflow == 0,
    )
    yield Claim(
        source=f"{_PAPER}, 3.2",
        statement="Scaling the loss shifts gradients into the representable range and saves those otherwise lost.",
        criterion="the share of zeros falls with every larger scale",
        measured=", ".join(f"{m.zero:.1%}" for m in constant) + f" (FP32 {fp32.zero:.1%})",
        holds=all(a.zero > b.zero for a, b in itertools.pairwise(constant)),
    )
    yield Claim(
        source=f"{_PAPER}, 3.2",
        statement="Training that loses its gradients falls behind FP32.",
        criterion=f"accuracy at scale 1 is more than {margin:.1%} (two standard errors) below FP32's",
        measured=f"{unscaled.accuracy:.1%} against {fp32.accuracy:.1%}",
        holds=unscaled.accuracy < fp32.accuracy - margin,
    )
    yield Claim(
        source=f"{_PAPER}, 3.2 and 4",
        statement="With a constant scale from the range 8 to 32K, accuracy matches FP32.",
        criterion=f"the best constant scale is within {margin:.1%} of FP32",
        measured=f"{best.accuracy:.1%} ({best.arm.name}) against {fp32.accuracy:.1%}",
        holds=best.accuracy >= fp32.accuracy - margin,
    )
    yield Claim(
        source=f"{_PAPER}, 3.2; torch.amp",
        statement="Dynamic scaling finds the scale by itself; skipping the steps that overflow does no harm.",
        criterion=f"within {margin:.1%} of FP32, and fewer than 5 % of the steps skipped",
        measured=f"{dynamic.accuracy:.1%}, {len(dynamic.skipped)} of {dynamic.steps} steps skipped",
        holds=dynamic.accuracy >= fp32.accuracy - margin and len(dynamic.skipped) < 0.05 * dynamic.steps,
    )
    yield Claim(
        source="Kalamkar et al. 2019, arXiv 1905.12322",
        statement="BF16 has FP32's range and needs no loss scaling.",
        criterion=f"within {margin:.1%} of FP32, and no activation gradient rounded to zero",
        measured=f"{bf16.accuracy:.1%}, {bf16.underflow:.1%} rounded to zero",
        holds=bf16.accuracy >= fp32.accuracy - margin and bf16.underflow == 0,
    )
    plain, kept, narrow = (
        by_name["FP32 throughout"],
        by_name[f"{low}, FP32 weights"],
        by_name[f"{low} weights"],
    )
    narrow_bf16 = by_name["BF16 weights"]
    margin = _margin(plain)
    yield Claim(
        source=f"{_PAPER}, 3.1",
        statement="With an FP32 master copy of the weights, accuracy matches FP32.",
        criterion=f"within {margin:.1%} of FP32",
        measured=f"{kept.accuracy:.1%} against {plain.accuracy:.1%}",
        holds=kept.accuracy >= plain.accuracy - margin,
    )
    yield Claim(
        source=f"{_PAPER}, 3.1",
        statement=f"Updates much smaller than the weight are lost when the weight is kept in {low}.",
        criterion=f"{low} weights lose more than half of the nonzero updates, FP32 weights under a hundredth of that",
        measured=f"{narrow.updates_lost:.1%} against {kept.updates_lost:.2%} (BF16 {narrow_bf16.updates_lost:.1%})",
        holds=narrow.updates_lost > 0.5 and kept.updates_lost < 0.01 * narrow.updates_lost,
    )
    yield Claim(
        source=f"{_PAPER}, 3.1",
        statement=f"Updating {low} weights without a master copy loses accuracy.",
        criterion=f"more than {margin:.1%} below FP32",
        measured=f"{narrow.accuracy:.1%} against {plain.accuracy:.1%}",
        holds=narrow.accuracy < plain.accuracy - margin,
    )


def _margin(measured: Measured) -> float:
    """Return two standard errors of an accuracy; accuracies closer than that are not told apart."""
    return two_standard_errors(measured.accuracy, measured.tested)


def _plain(x: Any) -> Any:
    """Return a copy with NaN and infinity as None; an infinite loss scale is dynamic and says so."""
    if isinstance(x, dict):
        return {
            key: "dynamic" if key == "loss_scale" and value == _DYNAMIC else _plain(value) for key, value in x.items()
        }
    if isinstance(x, list | tuple):
        return [_plain(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
