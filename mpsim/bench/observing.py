"""What observing adds to the time of a training step."""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mpsim.bench._timing import seconds
from mpsim.bench.train import ARITHMETICS, MODELS, Model, check_models, own_step
from mpsim.observe import Record
from mpsim.settings import using
from mpsim_kernels.gemm import thread_count

__all__ = ["OBSERVING", "ObserveTiming", "bench_observe"]

OBSERVING = ("nothing", "counts", "histograms")
"""What is collected: no observer; counts of every rounding; magnitudes before rounding too."""

Context: TypeAlias = "Callable[[], contextlib.AbstractContextManager[Any]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveTiming:
    """Median time of an observed step, and how many times that of the same step unobserved."""

    model: Model
    arithmetic: str
    unit: str
    observing: str
    """One of `OBSERVING`."""
    threads: int
    steps: int
    seconds: float
    fastest: float
    slowest: float
    ratio: float
    """Median over the steps of its time divided by that of the unobserved step next to it."""
    ratio_low: float
    """A quarter of the steps have a smaller ratio."""
    ratio_high: float
    """A quarter of the steps have a larger one."""
    loss: float
    """Of the last step."""


def bench_observe(
    models: Sequence[Model] = MODELS, steps: int = 20, warmup: int = 5, seed: int = 0
) -> list[ObserveTiming]:
    """Time steps of training without an observer, with counts, and with counts and histograms.

    Parameters
    ----------
    models : sequence of {"mlp", "transformer"}
    steps, warmup : int
        So many steps of each kind are timed, after so many that are not.
    seed : int

    Returns
    -------
    timings : list of ObserveTiming, `OBSERVING` within arithmetics within models

    Notes
    -----
    Each kind trains a model of its own from the same numbers. Observing changes no bits, so their steps of one number
    do the same work; they run one after another, each kind first in turn, and are compared with one another. A record
    is kept over all steps, as in a training loop inside one ``with observe()``.
    """
    check_models(models)
    return [row for model in models for fmt in ARITHMETICS for row in _timings(model, fmt, steps, warmup, seed)]


def _contexts() -> dict[str, Context]:
    """Return what surrounds a step, by what is collected."""
    counts, histograms = Record(histograms=False), Record()
    return {
        "nothing": contextlib.nullcontext,
        "counts": lambda: using(observer=counts),
        "histograms": lambda: using(observer=histograms),
    }


def _timings(model: Model, arithmetic: str, steps: int, warmup: int, seed: int) -> list[ObserveTiming]:
    calls = {name: own_step(model, arithmetic, seed, around)[0] for name, around in _contexts().items()}
    losses: dict[str, float] = {}
    times: dict[str, list[float]] = {name: [] for name in calls}

    def run(name: str) -> None:
        losses[name] = calls[name]()

    for i in range(warmup + steps):
        first = i % len(calls)
        for name in itertools.islice(itertools.cycle(calls), first, first + len(calls)):
            took = seconds(lambda name=name: run(name))  # type: ignore[misc]
            if i >= warmup:
                times[name].append(took)
    return [_timing(model, arithmetic, name, times[name], times["nothing"], losses[name]) for name in calls]


def _timing(
    model: Model, arithmetic: str, observing: str, times: list[float], unobserved: list[float], loss: float
) -> ObserveTiming:
    ratios = np.array(times) / np.array(unobserved)
    low, middle, high = (float(q) for q in np.quantile(ratios, (0.25, 0.5, 0.75)))
    return ObserveTiming(
        model=model,
        arithmetic=arithmetic,
        unit=ARITHMETICS[arithmetic],
        observing=observing,
        threads=thread_count(),
        steps=len(times),
        seconds=statistics.median(times),
        fastest=min(times),
        slowest=max(times),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
        loss=loss,
    )
