"""Train one small network on the digits in one arithmetic, and measure what rounding does to it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from mpsim import amp, nn, optim
from mpsim.datasets import Dataset, digits, load_npz
from mpsim.observe import Record
from mpsim.tensor import Tensor, no_grad, using

__all__ = ["Arm", "Measured", "Schedule", "standardised", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What all arms of a study have in common."""

    seed: int
    epochs: int
    batch_size: int
    hidden: int
    momentum: float
    growth_interval: int
    """Clean steps after which a dynamic loss scale doubles."""
    data: str | None = None
    """A file as for `load_npz`, in place of the digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to train."""

    name: str
    part: str
    compute: str
    """Format of activations and their gradients."""
    weights: str
    """Format in which the optimizer keeps the weights."""
    unit: str
    """Matrix unit of the products."""
    loss_scale: float | None
    """A constant, infinity for dynamic scaling, or None for no scaler."""
    lr: float
    loss_factor: float = 1.0
    """The loss is multiplied by this, to make its gradients small."""
    histogram: bool = False
    """Collect the magnitudes of the activation gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one arm did."""

    arm: Arm
    accuracy: float
    """Share of the test images that are classified right."""
    tested: int
    """How many test images there are."""
    losses: tuple[float, ...]
    """Mean training loss of each pass, without loss factor and loss scale."""
    steps: int
    skipped: tuple[int, ...]
    """Steps that were skipped because a gradient was infinite or NaN."""
    zero: float
    """Of the activation gradients, the share that is zero."""
    underflow: float
    """The share that rounding turned from nonzero to zero."""
    subnormal: float
    """The share that is subnormal."""
    updates_lost: float
    """Of the weight updates that were not zero, the share that left the weight unchanged."""
    scales: tuple[float, ...]
    """Loss scale in each step; empty without dynamic scaling."""
    exponents: tuple[int, ...] = ()
    """Exponents floor(log2 |activation gradient|) before rounding, and how many there were of each."""
    counts: tuple[int, ...] = ()


def train(arm: Arm, schedule: Schedule) -> Measured:
    """Train a network features-hidden-hidden-classes and measure; for the digits 64-hidden-hidden-10.

    Initial weights and the order of the images depend on ``schedule.seed`` alone, so all arms see the same.
    """
    images, tests = standardised(schedule.data)
    model = _network(schedule, images.x.shape[1], 1 + int(max(images.y.max(), tests.y.max()))).to(arm.weights)
    optimizer = optim.SGD(model.parameters(), lr=arm.lr, momentum=schedule.momentum)
    scaler = _scaler(arm, schedule)
    record = Record({"activation gradient"}, histograms=arm.histogram)
    order = np.random.default_rng([schedule.seed, 1])
    losses: list[float] = []
    scales: list[float] = []
    skipped: list[int] = []
    step = 0
    for _ in range(schedule.epochs):
        total = 0.0
        shuffled = order.permutation(len(images))
        for start in range(0, len(images), schedule.batch_size):
            rows = shuffled[start : start + schedule.batch_size]
            optimizer.zero_grad()
            with _arithmetic(arm):
                loss = nn.functional.cross_entropy(model(images.x[rows]), images.y[rows])
            with using(observer=record):
                scaler.scale(loss * arm.loss_factor).backward()
            scales.append(scaler.get_scale())
            before = scaler.skipped
            scaler.step(optimizer)
            scaler.update()
            if scaler.skipped > before:
                skipped.append(step)
            total += loss.item() * len(rows)
            step += 1
        losses.append(total / len(images))
    gradients = record.counters(producers={"linear", "relu"})
    exponents, counts = record.histogram(producers={"linear", "relu"}).occupied()
    return Measured(
        arm=arm,
        accuracy=accuracy(model, tests, arm),
        tested=len(tests),
        losses=tuple(losses),
        steps=step,
        skipped=tuple(skipped),
        zero=gradients.share("zeros") + gradients.share("underflows"),
        underflow=gradients.share("underflows"),
        subnormal=gradients.share("subnormals"),
        updates_lost=optimizer.counts.share_lost,
        scales=tuple(scales) if arm.loss_scale == math.inf else (),
        exponents=tuple(exponents.tolist()),
        counts=tuple(counts.tolist()),
    )


def accuracy(model: nn.Module, data: Dataset, arm: Arm) -> float:
    """Return the share of images whose largest logit is that of their class, in the arithmetic of the arm."""
    with no_grad(), _arithmetic(arm):
        logits: Tensor = model(data.x)
    return float(np.mean(logits.data.argmax(axis=1) == data.y))


def standardised(path: str | None) -> tuple[Dataset, Dataset]:
    """Return training and test images less the mean of all training pixels, over their standard deviation."""
    train, test = (digits(split) if path is None else load_npz(path, split) for split in ("train", "test"))
    mean, deviation = train.x.mean(), train.x.std() or np.float32(1)
    return (
        dataclasses.replace(train, x=(train.x - mean) / deviation),
        dataclasses.replace(test, x=(test.x - mean) / deviation),
    )


def _network(schedule: Schedule, features: int, classes: int) -> nn.Sequential:
    rng = np.random.default_rng([schedule.seed, 0])
    wide = schedule.hidden
    return nn.Sequential(
        nn.Linear(features, wide, rng=rng),
        nn.ReLU(),
        nn.Linear(wide, wide, rng=rng),
        nn.ReLU(),
        nn.Linear(wide, classes, rng=rng),
    )


def _arithmetic(arm: Arm) -> amp.autocast:
    return amp.autocast(arm.compute, unit=arm.unit, enabled=arm.compute != "fp32")


def _scaler(arm: Arm, schedule: Schedule) -> amp.GradScaler:
    if arm.loss_scale is None:
        return amp.GradScaler(enabled=False)
    if arm.loss_scale == math.inf:
        return amp.GradScaler(growth_interval=schedule.growth_interval)
    return amp.ConstantScaler(arm.loss_scale)
