"""The copy task: an LSTM reads a few symbols, and after a signal has to repeat them, in FP32, FP16 and BF16.

The task is that of Hochreiter and Schmidhuber 1997 ("Long short-term memory", Neural Computation 9) as it is posed
today: what was read has to be kept in the cells until it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpsim import nn, optim
from mpsim.experiments.checks import at_least
from mpsim.experiments.examples import Arithmetic, Example, Goal, Run, Trainer
from mpsim.optim.lr_scheduler import CosineAnnealingLR
from mpsim.tensor import Tensor, no_grad

__all__ = ["EXAMPLE", "Config", "Copier", "run", "sequences", "train"]

TASK = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of the study.

    Raises
    ------
    ValueError
        A number is out of range.
    """

    seed: int = 0
    """Of the initial weights and the sequences."""
    steps: int = 800
    batch_size: int = 64
    symbols: int = 4
    """Different symbols, besides the signal."""
    length: int = 5
    """Symbols to repeat."""
    hidden: int = 64
    lr: float = 8e-3
    """Adam's learning rate at first; it falls to zero along a cosine."""

    def __post_init__(self) -> None:
        at_least(self, seed=0, steps=1, batch_size=1, symbols=2, length=1, hidden=1, lr=0)

    @classmethod
    def short(cls) -> Config:
        """Return settings that take a few seconds, and get nine symbols of ten right."""
        return cls(steps=120, batch_size=32, symbols=2, length=2, hidden=24, lr=2e-2)


class Copier(nn.Module):
    """An LSTM between one-hot symbols and logits."""

    def __init__(self, config: Config, rng: np.random.Generator) -> None:
        self.lstm = nn.LSTM(config.symbols + 1, config.hidden, rng=rng)
        self.head = nn.Linear(config.hidden, config.symbols, rng=rng)
        self.symbols, self.length = config.symbols, config.length

    def forward(self, sequence: NDArray[np.intp]) -> Tensor:
        """Map symbols [length, batch] to logits [length, batch, symbols], given while only the signal is read."""
        signal = np.full_like(sequence, self.symbols)
        read = np.eye(self.symbols + 1, dtype=np.float32)[np.concatenate((sequence, signal))]
        outputs, _ = self.lstm(read)
        logits: Tensor = self.head(outputs[self.length :])
        return logits


def sequences(config: Config, rng: np.random.Generator, count: int) -> NDArray[np.intp]:
    """Return random symbols [length, count]."""
    return rng.integers(config.symbols, size=(config.length, count))


def train(task: str, arithmetic: Arithmetic, config: Config) -> Run:
    """Train on new sequences in each step; the score is the share of symbols of other sequences that are right."""
    model = Copier(config, np.random.default_rng([config.seed, 0]))
    optimizer = optim.Adam(model.parameters(), lr=config.lr)
    schedule = CosineAnnealingLR(optimizer, config.steps)
    trainer = Trainer(arithmetic, optimizer)
    rng = np.random.default_rng([config.seed, 1])

    def loss_of(sequence: NDArray[np.intp]) -> Tensor:
        logits = model(sequence)
        return nn.functional.cross_entropy(logits.reshape(-1, config.symbols), sequence.reshape(-1))

    for _ in range(config.steps):
        batch = sequences(config, rng, config.batch_size)
        trainer.step(lambda batch=batch: loss_of(batch))  # type: ignore[misc]
        schedule.step()
    tests = sequences(config, np.random.default_rng([config.seed, 2]), 512)
    with no_grad(), arithmetic.region():
        said = model(tests).data.argmax(axis=-1)
    return Run(
        task=task,
        arithmetic=arithmetic,
        score=float(np.mean(said == tests)),
        curve=tuple(trainer.losses),
        skipped=trainer.scaler.skipped,
    )


EXAMPLE = Example(
    name="copying",
    tasks=(TASK,),
    goal=Goal(
        what="symbols right",
        limit=0.99,
        above=True,
        shown=".1%",
        curve="loss",
        each="step",
        statement="an LSTM keeps symbols over many steps, in every arithmetic.",
        source="Hochreiter and Schmidhuber 1997; Micikevicius et al. 2018, 4",
    ),
    config=Config,
    train=train,
)

run = EXAMPLE.run
