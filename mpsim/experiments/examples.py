"""What the examples have in common: the arithmetics to train in, one step of training, and a result with its claims."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from mpsim import amp
from mpsim._version import __version__
from mpsim.experiments.registry import Claim, Progress, Table
from mpsim.experiments.workers import finished_parts
from mpsim.optim import Optimizer
from mpsim.tensor import Tensor

__all__ = [
    "ARITHMETICS",
    "BF16",
    "FP16",
    "FP16_UNSCALED",
    "FP32",
    "Arithmetic",
    "Example",
    "Goal",
    "Result",
    "Run",
    "Trainer",
]

ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """An arithmetic to train in; the weights that the optimizer updates are FP32."""

    name: str
    format: str
    """Format of activations and their gradients."""
    unit: str
    """Matrix unit of the products."""
    loss_scaling: bool = False

    def region(self) -> amp.autocast:
        """Return the context to compute in."""
        return amp.autocast(self.format, unit=self.unit, enabled=self.format != "fp32")


FP32 = Arithmetic(name="FP32", format="fp32", unit="native")
FP16 = Arithmetic(name="FP16, loss scaling", format="fp16", unit="a100", loss_scaling=True)
FP16_UNSCALED = Arithmetic(name="FP16, loss as it is", format="fp16", unit="a100")
BF16 = Arithmetic(name="BF16", format="bf16", unit="h100")
ARITHMETICS = (FP32, FP16, BF16)
"""What every example is trained in."""


class Trainer:
    """Steps of an optimizer in an arithmetic.

    Attributes
    ----------
    losses : list of float
        The loss of each step so far.
    """

    def __init__(self, arithmetic: Arithmetic, optimizer: Optimizer) -> None:
        self.arithmetic, self.optimizer = arithmetic, optimizer
        self.scaler = amp.GradScaler(enabled=arithmetic.loss_scaling)
        self.losses: list[float] = []

    def step(self, loss_of: Callable[[], Tensor]) -> None:
        """Compute a loss and its gradients, and take a step."""
        self.optimizer.zero_grad()
        with self.arithmetic.region():
            loss = loss_of()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.losses.append(loss.item())


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was trained, and how it went."""

    task: str
    arithmetic: Arithmetic
    score: float
    """The number that the goal is about."""
    curve: tuple[float, ...]
    """How the training went: losses or returns."""
    skipped: int
    """Steps that were skipped because a gradient was infinite or NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a run is to reach."""

    what: str
    limit: float
    above: bool
    """Whether the score is to be above the limit, or below."""
    shown: str
    """Format specification of a score."""
    curve: str
    """What the curve shows."""
    each: str
    """What one number of the curve belongs to: a step, a pass over the data."""
    statement: str
    source: str

    def reached(self, score: float) -> bool:
        """Return whether a score is good enough; NaN is not."""
        return score > self.limit if self.above else score < self.limit


@dataclass(frozen=True)
class Result(Generic[ConfigT]):
    """What an example measured."""

    example: Example[ConfigT]
    config: ConfigT
    runs: tuple[Run, ...]
    """Finished runs, in the order of `Example.parts`."""

    @property
    def experiment(self) -> str:
        """Name of the study."""
        return self.example.name

    @property
    def complete(self) -> bool:
        """Whether every part was run."""
        return len(self.runs) == len(self.example.parts)

    def find(self, task: str, arithmetic: Arithmetic) -> Run | None:
        """Return a finished run, or None."""
        return next((r for r in self.runs if (r.task, r.arithmetic) == (task, arithmetic)), None)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """For each task whether the goal was reached in every arithmetic; empty until all runs are finished."""
        goal = self.example.goal
        if not self.complete:
            return ()
        claims = []
        for task in self.example.tasks:
            runs = [r for r in self.runs if r.task == task]
            claims.append(
                Claim(
                    source=goal.source,
                    statement=f"{task}: {goal.statement}",
                    criterion=f"{goal.what} {'above' if goal.above else 'below'} {goal.limit:{goal.shown}} in each",
                    measured=", ".join(f"{r.score:{goal.shown}} in {r.arithmetic.name}" for r in runs),
                    holds=all(goal.reached(r.score) for r in runs),
                )
            )
        return tuple(claims)

    @property
    def tables(self) -> tuple[Table, ...]:
        """One row for each finished run."""
        goal = self.example.goal
        limit = f"{'above' if goal.above else 'below'} {goal.limit:{goal.shown}}"
        rows = tuple(
            (
                r.task,
                r.arithmetic.name,
                r.arithmetic.unit,
                f"{r.score:{goal.shown}}",
                f"{r.curve[0]:.3g}",
                f"{r.curve[-1]:.3g}",
                str(r.skipped),
            )
            for r in self.runs
        )
        columns = ("task", "arithmetic", "unit", goal.what, f"first {goal.curve}", "last", "skipped steps")
        return (Table(title=f"{self.experiment}: the goal is {limit}", columns=columns, rows=rows),)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dictionaries, lists, strings and numbers."""
        return {
            "experiment": self.experiment,
            "mpsim": __version__,
            "complete": self.complete,
            "config": dataclasses.asdict(self.config),  # type: ignore[call-overload]
            "runs": [dataclasses.asdict(run) for run in self.runs],
            "claims": [dataclasses.asdict(claim) for claim in self.claims],
        }


@dataclass(frozen=True)
class Example(Generic[ConfigT]):
    """A study that trains each of its tasks in each arithmetic."""

    name: str
    tasks: Sequence[str]
    goal: Goal
    config: type[ConfigT]
    train: Callable[[str, Arithmetic, ConfigT], Run]
    """A function of a module, so that it can be called in another process."""

    @property
    def parts(self) -> tuple[tuple[str, Arithmetic], ...]:
        """Every task in every arithmetic."""
        return tuple((task, arithmetic) for task in self.tasks for arithmetic in ARITHMETICS)

    def run(
        self,
        config: ConfigT | None = None,
        *,
        workers: int = 1,
        progress: Progress | None = None,
        on_part: Callable[[Result[ConfigT]], None] | None = None,
    ) -> Result[ConfigT]:
        """Train everything; arguments as for `experiments.run`, with a configuration that was made already."""
        config = self.config() if config is None else config
        done: dict[tuple[str, Arithmetic], Run] = {}
        result = Result(self, config, ())
        if progress:
            progress(0.0, self.parts[0][0])
        for run in finished_parts(partial(_train, self.train, config), self.parts, workers):
            done[run.task, run.arithmetic] = run
            result = Result(self, config, tuple(done[part] for part in self.parts if part in done))
            if on_part:
                on_part(result)
            if progress:
                progress(len(done) / len(self.parts), f"{run.task}, {run.arithmetic.name}")
        return result


def _train(train: Callable[[str, Arithmetic, ConfigT], Run], config: ConfigT, part: tuple[str, Arithmetic]) -> Run:
    return train(*part, config)
