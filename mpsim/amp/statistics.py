"""What one training step did to the tensors of each layer: the numbers that a controller decides on."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim._counting import counts_of_values
from mpsim._noise import sqnr
from mpsim.amp.layers import Forward, weight_of, wrapped
from mpsim.counters import Counters
from mpsim.formats import FloatFormat, FormatLike, get_format
from mpsim.nn import Module, Parameter
from mpsim.observe.histograms import Histogram
from mpsim.settings import Origin
from mpsim.tensor import Tensor, using

__all__ = ["Collector", "Diversity", "StepStatistics", "TensorStatistics", "expected_noise"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """One tensor in one step."""

    shape: tuple[int, ...]
    format: FloatFormat
    """The format that it was rounded to."""
    norm: float
    """Euclidean norm, all scales divided out."""
    largest: float
    """Largest magnitude, all scales divided out."""
    scale: float
    """Product of the scales that were on the tensor when it was rounded."""
    underflows: float
    """Share of elements that rounding made zero."""
    saturations: float
    """Share of elements that overflowed, to infinity or to the largest finite number."""
    sqnr: float
    """Signal to quantisation noise in dB: squares of the tensor over those of what rounding changed."""
    exponents: NDArray[np.int64]
    """Exponents floor(log2 |x|) that occur before rounding, with the scales on, rising."""
    counts: NDArray[np.int64]
    """How many elements have each of them."""

    @property
    def rms(self) -> float:
        """Root of the mean square."""
        return self.norm / math.sqrt(max(math.prod(self.shape), 1))


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """One step. Tensors go by the dotted name of their layer, in the order of the model."""

    step: int
    loss: float
    finite: bool
    """Whether all gradients were finite; the step was skipped otherwise."""
    weights: Mapping[str, TensorStatistics]
    weight_gradients: Mapping[str, TensorStatistics]
    activation_gradients: Mapping[str, TensorStatistics]
    """Gradients of the layers' outputs."""
    input_gradients: Mapping[str, TensorStatistics]
    """Gradients of the layers' inputs, as the backward products of the layers made them; none for a first layer."""
    lost_updates: float
    """Share of this step's weight updates that left the weight unchanged; NaN for a skipped step."""
    diversity: Mapping[str, float]
    """Gradient diversity of each layer over the last full window (see `Diversity`); empty before."""
    window: int
    """Steps of that window."""


def tensor_statistics(
    before: Array, after: Array, fmt: FloatFormat, counters: Counters, scale: float
) -> TensorStatistics:
    """Return the statistics of a tensor from its values before and after rounding."""
    exact = before.astype(np.float64)
    with np.errstate(all="ignore"):
        signal = float(np.sum(exact * exact))
        norm = math.sqrt(signal) / scale if math.isfinite(signal) else math.inf
        largest = float(np.max(np.abs(exact), initial=0.0)) / scale
    exponents, counts = Histogram.of(before).occupied()
    seen = counts > 0
    noise, lost, over = sqnr(exact, after), counters.share("underflows"), counters.share("overflows")
    return TensorStatistics(before.shape, fmt, norm, largest, scale, lost, over, noise, exponents[seen], counts[seen])


def expected_noise(statistics: TensorStatistics, fmt: FormatLike) -> float:
    """Return the share of a tensor's squares that rounding to a format is expected to take, from the histogram.

    Parameters
    ----------
    statistics : TensorStatistics
    fmt : FloatFormat or name

    Notes
    -----
    Elements of one exponent are taken to lie evenly within it: below half the smallest number all is lost, above it
    rounding errors lie evenly within half an ulp, with a mean square of ulp**2 / 12. An element that overflows counts
    as a loss of everything.
    """
    fmt, exponents = get_format(fmt), statistics.exponents
    if np.any(exponents > fmt.emax):
        return 1.0
    square = 7 / 3 * np.exp2(2.0 * exponents)  # mean of x**2 for x even in [2**e, 2**(e+1))
    ulp = np.exp2(np.maximum(exponents, fmt.emin) - fmt.p + 1.0)
    noise = np.where(exponents < fmt.emin - fmt.p, square, ulp**2 / 12)
    total = float(np.sum(statistics.counts * square))
    return float(np.sum(statistics.counts * noise)) / total if total else 0.0


class Diversity:
    """Gradient diversity of tensors over windows of steps, one after the other.

    Parameters
    ----------
    window : int
        Steps, at least 2.

    Notes
    -----
    The sum of the squared norms over the squared norm of the sum (Yin et al. 2018, arXiv 1706.05699): 1/window where
    all gradients agree, 1 where they are orthogonal, more where they cancel; infinite where their sum is zero.

    Examples
    --------
    >>> diversity = Diversity(2)
    >>> diversity.add({"a": np.array([1.0, 0.0])})
    >>> diversity.add({"a": np.array([0.0, 1.0])})
    >>> diversity.last
    {'a': 1.0}
    """

    def __init__(self, window: int) -> None:
        if window < 2:
            raise ValueError(f"window is {window}; it must be at least 2")
        self.window = window
        self.last: dict[str, float] = {}
        self._sums: dict[str, Array] = {}
        self._squares: dict[str, float] = {}
        self._steps = 0

    def add(self, gradients: Mapping[str, Array]) -> None:
        """Take in the gradients of one step."""
        for name, gradient in gradients.items():
            exact = gradient.astype(np.float64)
            self._sums[name] = self._sums.get(name, 0.0) + exact
            self._squares[name] = self._squares.get(name, 0.0) + float(np.sum(exact * exact))
        self._steps += 1
        if self._steps == self.window:
            self.last = {name: self._ratio(name) for name in self._sums}
            self._sums, self._squares, self._steps = {}, {}, 0

    def _ratio(self, name: str) -> float:
        whole = float(np.sum(self._sums[name] ** 2))
        return self._squares[name] / whole if whole else math.inf


class Collector:
    """Collects the gradients of each layer that has parameters, as they were rounded.

    It is the observer of the engine for the length of a step. What the engine shows it bears no layer's name; a
    gradient is found again by being the very array that a hook of its tensor gets.

    Parameters
    ----------
    model : Module
        A chain: layers whose outputs feed no more than one other layer, as far as ``layer_scales`` are used.
    layer_scales : mapping of str to float
        Factor on the gradient of the output of a layer, and so on everything before it.
    loss_scale : float
    """

    kinds = ("activation gradient", "weight gradient")
    traces = False

    def __init__(self, model: Module, layer_scales: Mapping[str, float], loss_scale: float) -> None:
        self.layers = {
            name: module
            for name, module in model.named_modules()
            if any(isinstance(value, Parameter) for value in vars(module).values())
        }
        unknown = sorted(layer_scales.keys() - self.layers.keys())
        if unknown:
            raise ValueError(f"layer_scales has {unknown[0]!r}; the layers are {', '.join(self.layers)}")
        self.layer_scales = layer_scales
        self.scale = loss_scale
        """Of what the backward pass is at; after it, that of the earliest layer."""
        self.weight_gradients: dict[str, TensorStatistics] = {}
        self.activation_gradients: dict[str, TensorStatistics] = {}
        self.input_gradients: dict[str, TensorStatistics] = {}
        self.weight_scales: dict[str, float] = {}
        self._seen: dict[int, tuple[Array, Array, FloatFormat, Counters]] = {}

    def rounded(
        self,
        kind: str,
        producer: str,
        fmt: FloatFormat,
        before: Array,
        after: Array,
        counters: Counters | None,
        origin: Origin | None,
    ) -> None:
        """Keep one array until its tensor's hook asks; called by the engine."""
        if counters is None:
            counters = counts_of_values(before, fmt)
        earlier = self._seen.get(id(before))
        if earlier is not None and earlier[1] is before and not counters.inexact:
            before, _, fmt, counters = earlier  # a cast back to FP32 changed nothing more
        self._seen[id(after)] = before, after, fmt, counters

    def layer(self, module: Any) -> str:
        """Return no path: layers are told apart by hooks."""
        return ""

    def cleared(self) -> None:
        """Nothing: the collector lives for one step."""

    def updated(self, parameter: Any, before: Array, after: Array, meant: int, lost: int) -> None:
        """Nothing: lost updates come from the optimizer."""

    def walked(self, node: Any, grad: Array) -> None:
        """Nothing."""

    def arrived(self, leaf: Any, grad: Array) -> None:
        """Nothing."""

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Attach to the layers for a forward pass."""
        with wrapped(self.layers, self._hooked):
            yield

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """Look on during a backward pass."""
        weights = {name: weight_of(layer) for name, layer in self.layers.items()}
        handles = [
            weight.register_hook(lambda grad, name=name: self._take_weight(name, grad))  # type: ignore[misc]
            for name, weight in weights.items()
            if weight is not None
        ]
        try:
            with using(observer=self):
                yield
        finally:
            for handle in handles:
                handle.remove()
            self._seen.clear()

    def _hooked(self, name: str, layer: Module, forward: Forward) -> Forward:
        def run(*inputs: Any, **options: Any) -> Any:
            first = inputs[0] if inputs else None
            if isinstance(first, Tensor) and first.requires_grad and not first.is_leaf:
                first.register_hook(lambda grad: self._take_input(name, grad))
            output = forward(*inputs, **options)
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(lambda grad: self._take_activation(name, grad))
            return output

        return run

    def _take_activation(self, name: str, grad: Tensor) -> Tensor | None:
        self.activation_gradients[name] = self._statistics(grad)
        factor = self.layer_scales.get(name, 1.0)
        self.scale *= factor
        self.weight_scales[name] = self.scale
        with np.errstate(over="ignore"):
            return None if factor == 1 else Tensor(grad.data * np.float32(factor), format=grad.format)

    def _take_input(self, name: str, grad: Tensor) -> None:
        self.input_gradients[name] = self._statistics(grad)

    def _take_weight(self, name: str, grad: Tensor) -> None:
        self.weight_gradients[name] = self._statistics(grad, self.weight_scales.get(name, self.scale))

    def _statistics(self, grad: Tensor, scale: float | None = None) -> TensorStatistics:
        seen = self._seen.get(id(grad.data))
        if seen is None or seen[1] is not grad.data:  # nothing rounded it, as the gradient that backward starts with
            seen = grad.data, grad.data, grad.format, Counters(elements=grad.size)
        return tensor_statistics(*seen, self.scale if scale is None else scale)
