"""Controllers of adaptive training: of the loss scale, of scales by layer, and of formats over time and by layer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist, fmean

from mpsim.amp.adaptive import Decision
from mpsim.amp.scale_rules import RULES, ScaleRule
from mpsim.amp.statistics import StepStatistics, expected_noise
from mpsim.formats import get_format
from mpsim.ops import UnitsLike

__all__ = ["DiversitySwitch", "DynamicLossScale", "LayerScales", "NoiseBudget", "Phases"]


class DynamicLossScale:
    """One format, and the loss scale of a rule.

    Parameters
    ----------
    rule : ScaleRule or name
    format : str
    unit : MatrixUnit, name or Units, optional
    """

    def __init__(self, rule: ScaleRule | str = "torch", format: str = "fp16", unit: UnitsLike | None = None) -> None:
        self.rule = RULES[rule] if isinstance(rule, str) else rule
        self.state = self.rule.init()
        self._start = Decision(format=get_format(format).name, unit=unit, loss_scale=self.state.scale)

    def first(self) -> Decision:
        """Return the start of the rule."""
        return self._start

    def next(self, now: Decision, statistics: StepStatistics) -> Decision:
        """Adjust the scale."""
        self.state = self.rule.adjust(self.state, statistics.finite)
        return replace(now, loss_scale=self.state.scale)


class LayerScales:
    """A scale for each layer, from the spread of its weights and of the gradient of its output.

    Parameters
    ----------
    format : str
    underflow : float
        Share of the products of a weight and a gradient that may become zero.
    interval : int
        Steps between two choices.
    loss_scale : float
        A constant, for the gradient that the last layer is given.
    unit : MatrixUnit, name or Units, optional

    Notes
    -----
    After the idea of Zhao et al. 2019, "Adaptive Loss Scaling for Mixed Precision Training" (arXiv 1910.12385); the
    bounds are those given here. With products taken as normal of mean 0 and the deviation rms(w) * rms(g), a share of
    at most ``underflow`` lies below half the smallest number of the format if the factor is large enough; the smallest
    such power of two is taken, but at least 1; less where sums over all outputs of the layer could overflow. A step
    that is not finite halves the limit of all layers.
    """

    def __init__(
        self,
        format: str = "fp16",
        underflow: float = 1e-3,
        interval: int = 10,
        loss_scale: float = 1.0,
        unit: UnitsLike | None = None,
    ) -> None:
        if not 0 < underflow < 1:
            raise ValueError(f"underflow is {underflow}; it must lie between 0 and 1")
        if interval < 1:
            raise ValueError(f"interval is {interval}; it must be at least 1")
        self.format = get_format(format)
        self.underflow, self.interval = underflow, interval
        self._start = Decision(format=self.format.name, unit=unit, loss_scale=loss_scale)
        self._headroom = 0

    def first(self) -> Decision:
        """Return scales of 1."""
        return self._start

    def next(self, now: Decision, statistics: StepStatistics) -> Decision:
        """Choose the scales again after a step that is not finite, and every few steps."""
        if not statistics.finite:
            self._headroom += 1
            return replace(now, layer_scales={name: a / 2 for name, a in now.layer_scales.items()})
        return replace(now, layer_scales=self._scales(statistics)) if statistics.step % self.interval == 0 else now

    def _scales(self, statistics: StepStatistics) -> dict[str, float]:
        """Return the factors, from the last layer to the first, as the backward pass meets them."""
        total, scales = self._start.loss_scale, dict[str, float]()
        smallest = math.ldexp(1.0, self.format.emin - self.format.p)  # half of the smallest number
        needed = smallest / NormalDist().inv_cdf((1 + self.underflow) / 2)
        limit = math.ldexp(1.0, self.format.emax - self._headroom)
        for name in reversed(tuple(statistics.weights)):
            w, g = statistics.weights[name], statistics.activation_gradients.get(name)
            if g is None or not w.rms * g.rms * g.largest:
                continue
            want = max(_power_of_two(needed / (total * w.rms * g.rms), up=True), 1.0)
            most = _power_of_two(limit / (total * max(w.largest * w.shape[0], 1.0) * g.largest), up=False)
            scales[name] = min(want, most)
            total *= scales[name]
        return scales


def _power_of_two(x: float, up: bool) -> float:
    exponent = math.log2(x)
    return math.ldexp(1.0, math.ceil(exponent) if up else math.floor(exponent))


class Phases:
    """Formats by a schedule, such as low precision early and higher late.

    Parameters
    ----------
    phases : sequence of (step, format) or (step, format, unit)
        From which step on a format holds; the first is from step 0, and steps rise.
    loss_scale : float
    """

    def __init__(self, phases: Sequence[tuple[int, str] | tuple[int, str, UnitsLike]], loss_scale: float = 1.0) -> None:
        starts = [phase[0] for phase in phases]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"phases start at {starts}; the first must be 0, and they must rise")
        self.phases = {
            start: Decision(format=get_format(fmt).name, unit=unit[0] if unit else None, loss_scale=loss_scale)
            for start, fmt, *unit in phases
        }

    def first(self) -> Decision:
        """Return the first phase."""
        return self.phases[0]

    def next(self, now: Decision, statistics: StepStatistics) -> Decision:
        """Return the phase of the next step."""
        return self.phases.get(statistics.step + 1, now)


class DiversitySwitch:
    """The next wider format whenever gradient diversity has sunk too often, as in MuPPET.

    Parameters
    ----------
    ladder : sequence of str
        Formats from narrow to wide.
    alpha, beta, decay : float
        The threshold in the j-th window since the last switch is ``alpha + beta * exp(-decay * j)``.
    patience : int
        Windows above the threshold that make a switch.
    loss_scale : float
    unit : MatrixUnit, name or Units, optional

    Notes
    -----
    After Rajagopal et al. 2020, "Multi-Precision Policy Enforced Training" (arXiv 2006.09049), with floating-point
    formats in place of their fixed point, and windows of steps in place of epochs. What is compared with the threshold
    is the largest diversity since the last switch over the present one, each a mean over layers. Layers whose
    gradients add up to zero have none, and a window without any does not count.
    """

    def __init__(
        self,
        ladder: Sequence[str],
        alpha: float = 1.0,
        beta: float = 0.5,
        decay: float = 0.1,
        patience: int = 2,
        loss_scale: float = 1.0,
        unit: UnitsLike | None = None,
    ) -> None:
        if not ladder:
            raise ValueError("ladder is empty; at least one format is needed")
        self.ladder = [get_format(name).name for name in ladder]
        self.alpha, self.beta, self.decay, self.patience = alpha, beta, decay, patience
        self._start = Decision(format=self.ladder[0], unit=unit, loss_scale=loss_scale)
        self._rung = self._violations = 0
        self._seen: list[float] = []
        self._last: object = None

    def first(self) -> Decision:
        """Return the narrowest format."""
        return self._start

    def next(self, now: Decision, statistics: StepStatistics) -> Decision:
        """Look at a new window, and perhaps switch."""
        diversity = statistics.diversity
        if not diversity or diversity == self._last or self._rung == len(self.ladder) - 1:
            return now
        self._last = diversity
        finite = [d for d in diversity.values() if math.isfinite(d)]
        if not finite:
            return now
        self._seen.append(fmean(finite))
        threshold = self.alpha + self.beta * math.exp(-self.decay * len(self._seen))
        self._violations += max(self._seen) / self._seen[-1] > threshold
        if self._violations < self.patience:
            return now
        self._rung, self._violations, self._seen = self._rung + 1, 0, []
        return replace(now, format=self.ladder[self._rung])


class NoiseBudget:
    """For each layer the narrowest format whose rounding noise is small beside the noise of the gradient itself.

    Parameters
    ----------
    ladder : sequence of str
        Formats from narrow to wide.
    budget : float
        Rounding noise that is allowed, as a share of the sampling noise of the gradient.
    patience : int
        Steps in a row that must ask for another format.
    loss_scale : float
    unit : MatrixUnit, name or Units, optional

    Notes
    -----
    A gradient of a mini-batch is a mean plus sampling noise. From gradient diversity D over a window of r steps the
    share of noise in its squares is 1 - (1/D - 1)/(r - 1), between 0 and 1: where all gradients agree rounding must be
    fine, where they are all noise anything will do. Rounding noise is foreseen for every format of the ladder from the
    log2 histograms of the gradients of the layer's weight and of its input, whichever is worse.
    """

    def __init__(
        self,
        ladder: Sequence[str] = ("e5m2", "fp16", "fp32"),
        budget: float = 0.01,
        patience: int = 3,
        loss_scale: float = 1.0,
        unit: UnitsLike | None = None,
    ) -> None:
        if not ladder:
            raise ValueError("ladder is empty; at least one format is needed")
        if not budget > 0:
            raise ValueError(f"budget is {budget}; it must be positive")
        self.ladder = [get_format(name).name for name in ladder]
        self.budget, self.patience = budget, patience
        self._start = Decision(format=self.ladder[-1], unit=unit, loss_scale=loss_scale)
        self._asked: Counter[tuple[str, str]] = Counter()

    def first(self) -> Decision:
        """Return the widest format, for there are no statistics yet."""
        return self._start

    def next(self, now: Decision, statistics: StepStatistics) -> Decision:
        """Change the format of layers that have asked for another long enough."""
        layers = dict(now.layers)
        for name, diversity in statistics.diversity.items():
            wish = self._wish(name, statistics, sampling_share(diversity, statistics.window))
            if wish == layers.get(name, now.format):
                wish = ""
            self._asked = Counter({key: n for key, n in self._asked.items() if key[0] != name or key[1] == wish})
            self._asked[name, wish] += 1
            if wish and self._asked[name, wish] >= self.patience:
                layers[name] = wish
        return replace(now, layers=layers)

    def _wish(self, name: str, statistics: StepStatistics, noise: float) -> str:
        gradients = [statistics.weight_gradients.get(name), statistics.input_gradients.get(name)]
        for fmt in self.ladder:
            if max(expected_noise(g, fmt) for g in gradients if g is not None) <= self.budget * noise:
                return fmt
        return self.ladder[-1]


def sampling_share(diversity: float, window: int) -> float:
    """Return the share of sampling noise in the squares of a gradient, from its diversity over a window.

    Examples
    --------
    >>> sampling_share(0.25, 4), sampling_share(1.0, 4)
    (0.0, 1.0)
    """
    if window < 2:
        raise ValueError(f"window is {window}; a diversity needs at least 2 steps")
    agreeing = (1 / diversity - 1) / (window - 1) if diversity else 1.0
    return min(max(1 - agreeing, 0.0), 1.0)
