"""Reverse-mode differentiation: recorded operations, and the walk over them.

The walk knows no operation: each node brings its rule from the table.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim._heap import keep_freed_memory
from mpsim.counters import Counters
from mpsim.formats import FP32, FP64, FloatFormat
from mpsim.ops import Call, Operation, Part
from mpsim.rounding import round_to
from mpsim.settings import Origin, settings

__all__ = ["Hook", "Leaf", "Node", "RemovableHandle", "backward", "held", "rounded", "stand_in"]

Array: TypeAlias = "NDArray[Any]"
Hook: TypeAlias = "Callable[[Array], Array]"


class Leaf(Protocol):
    """A tensor that no recorded operation made."""

    format: FloatFormat

    def receive(self, grad: Array) -> None:
        """Take the gradient of one backward pass."""


class RemovableHandle:
    """What `Tensor.register_hook` returns."""

    def __init__(self, hooks: dict[int, Hook], key: int) -> None:
        self._hooks, self._key = hooks, key

    def remove(self) -> None:
        """Take the hook away; a second time does nothing."""
        self._hooks.pop(self._key, None)


_numbers = itertools.count()


@dataclass(slots=True, eq=False, weakref_slot=True)
class Node:
    """One recorded operation."""

    operation: Operation
    call: Call
    inputs: tuple[Node | Leaf | None, ...]
    """Where each gradient goes; None where it is not wanted."""
    arrays: tuple[Array | None, ...]
    """Values of the inputs in the forward pass, as far as the rule reads them."""
    options: dict[str, Any]
    output: Array
    format: FloatFormat
    """Format of the output, and so of its gradient."""
    holds_weight: bool
    """Whether the output is a weight in another format, rather than an activation."""
    layer: str = ""
    """Path of the module that ran the operation, where an observer asked for it."""
    hooks: dict[int, Hook] = field(default_factory=dict)
    """Called with the gradient of the output, in order; each returns what takes its place."""
    retain: Callable[[Array], None] | None = None
    """Takes the gradient of the output for `Tensor.retain_grad`."""
    number: int = field(default_factory=lambda: next(_numbers))
    """Grows from one operation to the next, so that a node has a larger number than its inputs."""

    def free(self) -> None:
        """Let go of all that a second backward pass would need."""
        self.inputs, self.arrays, self.output = (), (), stand_in(self.output)
        self.call.free()


_NANS = {4: np.float32(np.nan).tobytes(), 8: np.float64(np.nan).tobytes()}


def stand_in(array: Array) -> Array:
    """Return an array of the same shape and dtype that takes no memory; its elements are NaN."""
    return np.ndarray(array.shape, array.dtype, _NANS[array.itemsize], strides=(0,) * array.ndim)


def backward(root: Node, seed: Array, retain_graph: bool) -> None:
    """Carry a gradient from the output of ``root`` to the leaves it depends on, youngest operations first."""
    keep_freed_memory()
    observer = settings().observer
    tracer = observer if observer is not None and observer.traces else None
    nodes, uses = _reachable(root)
    pending = _Pending(root, seed)
    for node in nodes:
        grad = pending.pop(node)
        for hook in tuple(node.hooks.values()):
            grad = hook(grad)
        if node.retain is not None:
            node.retain(grad)
        if tracer is not None:
            tracer.walked(node, grad)
        for i, (target, raw) in enumerate(zip(node.inputs, _gradients(node, grad), strict=True)):
            if target is None or raw is None:
                continue
            origin = None if observer is None else _origin(node, grad, i, raw)
            pending.add(target, raw, node.operation.exact_vjp, origin)
            uses[target] -= 1
            if not uses[target] and not isinstance(target, Node):
                total = pending.pop(target)
                if tracer is not None:
                    tracer.arrived(target, total)
                target.receive(total)
        if not retain_graph:
            node.free()


class _Pending:
    """Gradients that have not all their parts yet."""

    def __init__(self, root: Node, seed: Array) -> None:
        self._sums: dict[Node | Leaf, Array] = {root: seed}
        self._own: set[Node | Leaf] = set()
        """Whose sums nothing else refers to, so that parts can be added in place."""

    def pop(self, target: Node | Leaf) -> Array:
        """Return the gradient of a node or leaf, and forget it."""
        self._own.discard(target)
        return self._sums.pop(target)

    def add(self, target: Node | Leaf, raw: Array | Part, exact: bool, origin: Origin | None) -> None:
        """Round a share of a gradient and add it to the others, each sum rounded too."""
        fmt, total = target.format, self._sums.get(target)
        kind = "weight gradient" if is_weight(target) else "activation gradient"
        producer = target.operation.name if isinstance(target, Node) else "leaf"
        values = np.asarray(raw.values if isinstance(raw, Part) else raw)  # NumPy makes no array of a single number
        share = rounded(values, fmt, exact, kind, producer, origin)

        def added(earlier: Array) -> Array:
            summed = None if origin is None else _sum_of(origin, fmt, earlier, share)
            return rounded(np.asarray(earlier + share), fmt, False, kind, "accumulate", summed)

        if isinstance(raw, Part):
            if target not in self._own:
                self._sums[target] = np.zeros(raw.shape, share.dtype) if total is None else total.copy()
            own = self._sums[target]
            own[raw.index] = share if total is None else added(np.asarray(own[raw.index]))
            self._own.add(target)
        elif total is None:
            self._sums[target] = share
        else:
            self._sums[target] = added(total)
            self._own.add(target)


def _origin(node: Node, grad: Array, position: int, raw: Array | Part) -> Origin:
    """Return how the gradient of an input of a node, or a slice of it, is computed."""
    arrays, target = node.arrays, node.inputs[position]
    part = raw if isinstance(raw, Part) else None
    return Origin(node.operation, node.layer, node.call.fmt, arrays, grad, node.format, position, target, part)


def _sum_of(origin: Origin, fmt: FloatFormat, earlier: Array, share: Array) -> Origin:
    """Return how shares of a gradient are added, one of them computed as ``origin`` says."""
    return Origin(None, origin.layer, fmt, (earlier, share), target=origin.target, part=origin.part)


def _gradients(node: Node, grad: Array) -> tuple[Array | Part | None, ...]:
    """Return the gradient of each input by the rule of the operation."""
    operation = node.operation
    wanted = [i for i, target in enumerate(node.inputs) if target is not None]
    if operation.vjp is None:
        gradients: tuple[Array | Part | None, ...] = (None,) * len(node.inputs)
    else:
        gradients = operation.differentiate(node.call, grad, node.output, node.arrays, node.options)
    for i in wanted:
        if gradients[i] is None:
            raise NotImplementedError(
                f"backward: {operation.name} has no rule for the gradient of {operation.argument(i)!r}; "
                "detach() it, or give the operation a rule"
            )
    return gradients


def _reachable(root: Node) -> tuple[list[Node], Counter[Node | Leaf]]:
    """Return the nodes that ``root`` depends on, youngest first, and how often each of their inputs is used."""
    uses: Counter[Node | Leaf] = Counter()
    seen = {root}
    stack = [root]
    while stack:
        node = stack.pop()
        if not node.inputs:
            raise RuntimeError(
                f"backward: the graph was freed at operation {node.operation.name!r}; "
                "call the first backward with retain_graph=True"
            )
        for target in node.inputs:
            if target is None:
                continue
            uses[target] += 1
            if isinstance(target, Node) and target not in seen:
                seen.add(target)
                stack.append(target)
    return sorted(seen, key=lambda node: node.number, reverse=True), uses


def is_weight(target: Node | Leaf) -> bool:
    """Return whether a gradient belongs to a weight, be it in another format, rather than to an activation."""
    return target.holds_weight if isinstance(target, Node) else True


def rounded(raw: Array, fmt: FloatFormat, exact: bool, kind: str, producer: str, origin: Origin | None = None) -> Array:
    """Return a result in its format, and show it to the observer and the meter."""
    now = settings()
    if now.observer is None or kind not in now.observer.kinds:
        result = raw if exact else held(raw, fmt)
    else:
        counters = None if exact or _holds(raw, fmt) else Counters()
        result = raw if counters is None else held(raw, fmt, counters)
        now.observer.rounded(kind, producer, fmt, raw, result, counters, origin)
    if now.meter is not None:
        now.meter.hold(kind, result, fmt.bits)
    return result


def _holds(raw: Array, fmt: FloatFormat) -> bool:
    """Return whether any array of such a type holds values of the format."""
    return (fmt is FP32 or fmt is FP64) and raw.dtype == fmt.value_dtype


def held(raw: Array, fmt: FloatFormat, counters: Counters | None = None) -> Array:
    """Return values rounded to a format in the dtype that tensors keep it in."""
    if counters is None and _holds(raw, fmt):
        return raw
    values = round_to(raw, fmt, counters=counters)
    return values.astype(fmt.value_dtype, copy=False)
