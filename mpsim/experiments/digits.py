"""Handwritten digits: a multilayer perceptron and a convolutional network, in FP32, FP16 and BF16.

That FP16 with loss scaling and BF16 reach FP32's accuracy is what Micikevicius et al. 2018 (arXiv 1710.03740) and
Kalamkar et al. 2019 (arXiv 1905.12322) report of networks for images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpsim import nn, optim
from mpsim.datasets import Dataset
from mpsim.experiments.checks import at_least
from mpsim.experiments.examples import Arithmetic, Example, Goal, Run, Trainer
from mpsim.experiments.training import standardised
from mpsim.optim.lr_scheduler import CosineAnnealingLR
from mpsim.tensor import no_grad

__all__ = ["CNN", "EXAMPLE", "MLP", "Config", "cnn", "mlp", "run", "train"]

MLP, CNN = "MLP", "CNN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of the study.

    Raises
    ------
    ValueError
        A number is out of range.
    """

    seed: int = 0
    """Of the initial weights and the order of the images."""
    epochs: int = 20
    batch_size: int = 32
    lr: float = 5e-3
    """Adam's learning rate at first; it falls to zero along a cosine."""

    def __post_init__(self) -> None:
        at_least(self, seed=0, epochs=1, batch_size=1, lr=0)

    @classmethod
    def short(cls) -> Config:
        """Return settings that take a few seconds, and reach 90 %."""
        return cls(epochs=3)


def mlp(rng: np.random.Generator) -> nn.Sequential:
    """Return a perceptron 64-128-128-10 for images [batch, 64]."""
    return nn.Sequential(
        nn.Linear(64, 128, rng=rng),
        nn.ReLU(),
        nn.Linear(128, 128, rng=rng),
        nn.ReLU(),
        nn.Linear(128, 10, rng=rng),
    )


def cnn(rng: np.random.Generator) -> nn.Sequential:
    """Return a network of two convolutions for images [batch, 1, 8, 8] and 10 classes."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, rng=rng),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, rng=rng),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10, rng=rng),
    )


def train(task: str, arithmetic: Arithmetic, config: Config) -> Run:
    """Train one of the networks; the curve has the mean loss of each pass over the images."""
    images, tests = standardised(None)
    shape = (-1, 1, 8, 8) if task == CNN else (-1, 64)
    x = images.x.reshape(shape)
    model = (cnn if task == CNN else mlp)(np.random.default_rng([config.seed, 0]))
    optimizer = optim.Adam(model.parameters(), lr=config.lr)
    steps = -(-len(images) // config.batch_size)
    schedule = CosineAnnealingLR(optimizer, config.epochs * steps)
    trainer = Trainer(arithmetic, optimizer)
    order = np.random.default_rng([config.seed, 1])
    for _ in range(config.epochs):
        shuffled = order.permutation(len(images))
        for rows in np.array_split(shuffled, steps):
            trainer.step(lambda rows=rows: nn.functional.cross_entropy(model(x[rows]), images.y[rows]))  # type: ignore[misc]
            schedule.step()
    passes = np.reshape(trainer.losses, (config.epochs, steps)).mean(axis=1)
    return Run(
        task=task,
        arithmetic=arithmetic,
        score=accuracy(model, tests, shape, arithmetic),
        curve=tuple(passes.tolist()),
        skipped=trainer.scaler.skipped,
    )


def accuracy(model: nn.Module, tests: Dataset, shape: tuple[int, ...], arithmetic: Arithmetic) -> float:
    """Return the share of images whose largest logit is that of their class."""
    with no_grad(), arithmetic.region():
        logits = model(tests.x.reshape(shape))
    return float(np.mean(logits.data.argmax(axis=1) == tests.y))


EXAMPLE = Example(
    name="digits",
    tasks=(MLP, CNN),
    goal=Goal(
        what="test accuracy",
        limit=0.97,
        above=True,
        shown=".1%",
        curve="loss",
        each="pass over the images",
        statement="FP16 with loss scaling and BF16 train as FP32 does.",
        source="Micikevicius et al. 2018, 4; Kalamkar et al. 2019",
    ),
    config=Config,
    train=train,
)

run = EXAMPLE.run
