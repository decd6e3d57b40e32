"""Training whose formats, units and scales are decided step by step from what rounding did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mpsim.amp.autocast import autocast
from mpsim.amp.layers import override_formats, weight_of, weighted
from mpsim.amp.scale_rules import RULES, ScaleState
from mpsim.amp.statistics import Collector, Diversity, StepStatistics, TensorStatistics, tensor_statistics
from mpsim.counters import Counters
from mpsim.formats import FP32, get_format
from mpsim.nn import Module, Parameter
from mpsim.ops import UnitsLike
from mpsim.optim import Optimizer
from mpsim.rounding import round_to
from mpsim.tensor import Tensor, matrix_unit, settings

__all__ = ["AdaptiveTraining", "Controller", "Decision"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How the next step is to be computed."""

    format: str = "fp32"
    """Format of the autocast region."""
    layers: Mapping[str, str] = field(default_factory=dict)
    """Formats of single layers by dotted name, as for `override_formats`."""
    unit: UnitsLike | None = None
    """Matrix unit of the products; that in force unless given."""
    loss_scale: float = 1.0
    layer_scales: Mapping[str, float] = field(default_factory=dict)
    """Factors on the gradients of layers' outputs. They multiply down the chain; weight gradients are divided by the
    product of all factors at and after their layer."""


class Controller(Protocol):
    """Decides after each step on the next; those of `controllers` are examples."""

    def first(self) -> Decision:
        """Return how the first step is computed."""

    def next(self, now: Decision, statistics: StepStatistics) -> Decision:
        """Return how the next step is computed, given the last one and what it did."""


class AdaptiveTraining:
    """Trains a model under a controller.

    Parameters
    ----------
    model : Module
    optimizer : Optimizer
        Of all parameters, in FP32.
    controller : Controller
    window : int
        Steps over which gradient diversity is taken.

    Attributes
    ----------
    decision : Decision
        For the next step.
    history : list of (Decision, StepStatistics)
        Of all steps so far.
    skipped : int
        Steps skipped because a gradient was infinite or NaN.

    Examples
    --------
    >>> from mpsim import nn, optim
    >>> from mpsim.amp.controllers import Phases
    >>> model = nn.Linear(2, 1, rng=0)
    >>> training = AdaptiveTraining(model, optim.SGD(model.parameters(), lr=0.1), Phases([(0, "bf16"), (1, "fp32")]))
    >>> for _ in range(2):
    ...     _ = training.step(lambda: model([[1.0, 2.0]]).sum())
    >>> [decision.format for decision, _ in training.history]
    ['bf16', 'fp32']
    """

    def __init__(self, model: Module, optimizer: Optimizer, controller: Controller, window: int = 8) -> None:
        self.model, self.optimizer, self.controller = model, optimizer, controller
        self.decision = controller.first()
        self.history: list[tuple[Decision, StepStatistics]] = []
        self.skipped = 0
        self._diversity = Diversity(window)

    def step(self, loss: Callable[[], Tensor]) -> StepStatistics:
        """Do one step on what ``loss`` returns, and let the controller decide on the next.

        Parameters
        ----------
        loss : callable
            Runs the model and returns the loss, a single element.
        """
        now = self.decision
        self.optimizer.zero_grad()
        collector = Collector(self.model, now.layer_scales, now.loss_scale)
        low = get_format(now.format) != FP32
        unit = matrix_unit(settings().unit if now.unit is None else now.unit)
        overrides = override_formats(self.model, now.layers)
        with unit, collector.forward(), autocast(now.format, enabled=low), overrides:
            value = loss()
        with collector.backward():
            (value * Tensor(np.float32(now.loss_scale))).backward()
        finite = self._unscale(collector)
        lost = self._update(finite)
        statistics = StepStatistics(
            step=len(self.history),
            loss=value.item(),
            finite=finite,
            weights=self._weight_statistics(now),
            weight_gradients=collector.weight_gradients,
            activation_gradients=collector.activation_gradients,
            input_gradients=collector.input_gradients,
            lost_updates=lost,
            diversity=dict(self._diversity.last),
            window=self._diversity.window,
        )
        self.history.append((now, statistics))
        self.decision = self.controller.next(now, statistics)
        return statistics

    def _unscale(self, collector: Collector) -> bool:
        """Divide the gradients by their scales; return whether all were finite before."""
        finite = True
        for name, parameter in self.model.named_parameters():
            if parameter.grad is None:
                continue
            scale = collector.weight_scales.get(name.rpartition(".")[0], collector.scale)
            (parameter.grad,), passed = RULES["torch"].unscale(ScaleState(scale), [parameter.grad])
            finite = finite and passed
        return finite

    def _update(self, finite: bool) -> float:
        """Let the optimizer step, unless a gradient was not finite; return the share of updates lost."""
        if not finite:
            self.skipped += 1
            return float("nan")
        weights = self._weights()
        self._diversity.add({name: w.grad.data for name, w in weights.items() if w.grad is not None})
        counts = self.optimizer.counts
        updates, lost = counts.updates, counts.lost
        self.optimizer.step()
        updates, lost = counts.updates - updates, counts.lost - lost
        return lost / updates if updates else 0.0

    def _weights(self) -> dict[str, Parameter]:
        found = {name: weight_of(layer) for name, layer in weighted(self.model).items()}
        return {name: weight for name, weight in found.items() if weight is not None}

    def _weight_statistics(self, now: Decision) -> dict[str, TensorStatistics]:
        """Return the statistics of the weights after the step, as the formats of the step would round them."""
        found = {}
        for name, weight in self._weights().items():
            counters, fmt = Counters(), now.layers.get(name, now.format)
            after = round_to(weight.data, fmt, counters=counters)
            found[name] = tensor_statistics(weight.data, after, get_format(fmt), counters, 1.0)
        return found
