"""Why numbers are zero: rounded away here or before, cast away, swamped in a sum, masked, not moved, or truly zero."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.counters import Counters
from mpsim.formats import FP64
from mpsim.ops import FP32_INSIDE, Part, Product
from mpsim.settings import Origin

if TYPE_CHECKING:
    from mpsim.observe.record import Entry, Record

__all__ = ["ZeroCauses", "ZeroTrace", "why_zero"]

Array: TypeAlias = "NDArray[Any]"

_MASKS = frozenset({"relu", "dropout", "masked_fill", "where", "clamp", "max_pool2d", "amax", "amin"})
_MASKS |= {"maximum", "minimum"}
"""Operations that let some gradients through and set others to zero."""

_PRODUCTS: tuple[Product, ...] = ("input_gradient", "weight_gradient")
"""Of a linear layer, those whose results are the gradients of its first two inputs."""


@dataclass(slots=True, kw_only=True)
class ZeroCauses:
    """How many elements are zero, by cause."""

    elements: int = 0
    zeros: int = 0
    underflow: int = 0
    """Not zero before this tensor was rounded."""
    upstream: int = 0
    """Zero because of numbers that were lost earlier in the backward pass."""
    cast: int = 0
    """Zero in a linear layer's product under a recipe, because of its casts: every term has an operand that was cast to
    zero, or the product itself was. How many numbers a cast lost is the underflow of the kinds of operand."""
    swamping: int = 0
    """The exact result of the operands is not zero, that of the operation is: lost in alignment or in a partial sum.
    What cancels only because a recipe rounded the operands counts here too, and what its casts lose in attention."""
    mask: int = 0
    """Set to zero by an operation that selects, such as relu or dropout."""
    stagnation: int = 0
    """An update that was not zero and left the weight as it was."""
    true_zero: int = 0
    """Zero in exact arithmetic too."""

    def shares(self) -> dict[str, float]:
        """Return each cause as a share of the zeros; empty when there are none."""
        if not self.zeros:
            return {}
        names = ("underflow", "upstream", "cast", "swamping", "mask", "stagnation", "true_zero")
        return {name: getattr(self, name) / self.zeros for name in names}

    def __iadd__(self, other: ZeroCauses) -> ZeroCauses:
        for item in dataclasses.fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))
        return self

    def __str__(self) -> str:
        parts = [f"{name.replace('_', ' ')} {share:.1%}" for name, share in self.shares().items() if share]
        total = f"{self.zeros} of {self.elements} are zero"
        return f"{total}: {', '.join(parts)}" if parts else total


class ZeroTrace:
    """Follows gradients in FP64 beside a backward pass that rounds.

    Notes
    -----
    The rule of every operation is linear in the gradient of its output. With the values of the forward pass held fixed,
    the same rules in FP64 give the gradient that nothing rounded, element by element; applied to the rounded gradient
    they tell what one operation lost from what came to it.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[int, str, str, str], ZeroCauses] = {}
        """By step, kind, layer and tensor."""
        self._exact: dict[Any, Array] = {}
        """The gradient without any rounding so far."""
        self._local: dict[Any, Array] = {}
        """The gradient as the last operations would make it of rounded operands, without rounding themselves."""
        self._raw: dict[Any, NDArray[np.bool_]] = {}
        """Where the arithmetic of those operations gave no zero, before the result was rounded."""
        self._cast: dict[Any, NDArray[np.bool_]] = {}
        """Where a recipe's casts left nothing of any share."""
        self._node: Any = None
        """The node whose rule is being applied."""
        self._masked: dict[Any, NDArray[np.bool_]] = {}
        self._entries: dict[Any, Entry] = {}

    def forget(self) -> None:
        """Let go of a backward pass that did not end."""
        for kept in (self._exact, self._local, self._raw, self._cast, self._masked, self._entries):
            kept.clear()
        self._node = None

    def rounded(self, entry: Entry, before: Array, after: Array, counters: Counters, origin: Origin) -> None:
        """Take note of one array: count a forward one at once, keep what a gradient's count will need."""
        target = origin.target
        if origin.grad is None and origin.operation is not None:
            zeros = after == 0
            causes = ZeroCauses(elements=after.size, zeros=int(np.count_nonzero(zeros)), underflow=counters.underflows)
            source = origin.inputs[0]
            if origin.operation.name in _MASKS and source is not None and source.shape == after.shape:
                causes.mask = int(np.count_nonzero(zeros & (source != 0)))
            causes.true_zero = causes.zeros - causes.underflow - causes.mask
            self._add(entry, causes)
        elif target is not None:
            self._entries[target] = entry
            if before.shape == target_shape(target):
                self._raw[target] = (before != 0) | self._raw.get(target, np.False_)
            if origin.operation is not None:
                self._cast[target] = self._lost_in_casts(origin, before.shape) & self._cast.get(target, np.True_)

    def _lost_in_casts(self, origin: Origin, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Return where a share of a gradient is zero for what a recipe's casts made of its operands."""
        site = None if self._node is None else self._node.call.site
        linear = origin.operation is not None and origin.operation.name == "linear"
        lost = None
        if site is not None and linear and origin.position < len(_PRODUCTS) and origin.part is None:
            lost = site.lost_in_casts(_PRODUCTS[origin.position])
        return np.asarray(np.False_) if lost is None else lost.reshape(shape)

    def walked(self, node: Any, grad: Array) -> None:
        """Count the zeros of a node's gradient, and apply the rule of its operation in FP64."""
        exact, self._node = self._exact.get(node), node
        self.complete(node, grad)
        rule = node.operation.vjp
        if rule is None:
            return
        call = dataclasses.replace(node.call, fmt=FP64, unit="native", inner=FP32_INSIDE, site=None)
        wide = grad.astype(np.float64)
        exact = wide if exact is None else exact
        of_exact, of_rounded = (rule(call, g, node.output, *node.arrays, **node.options) for g in (exact, wide))
        for target, full, local in zip(node.inputs, of_exact, of_rounded, strict=False):
            if target is None or full is None or local is None:
                continue
            for sums, share in ((self._exact, full), (self._local, local)):
                sums[target] = _sum(sums.get(target), share)
            if node.operation.name in _MASKS and not isinstance(full, Part) and full.shape == exact.shape:
                self._masked[target] = (full == 0) & (exact != 0)

    def complete(self, target: Any, grad: Array) -> None:
        """Count the zeros of the complete gradient of a node's output, or of a leaf."""
        exact, local = self._exact.pop(target, None), self._local.pop(target, None)
        raw, masked = self._raw.pop(target, None), self._masked.pop(target, None)
        cast = self._cast.pop(target, np.asarray(np.False_))
        entry = self._entries.pop(target, None)
        if exact is None or local is None or entry is None:
            return
        zeros = grad == 0
        lost = zeros & (exact != 0)
        here = lost & (local != 0)
        underflow = here if raw is None else here & raw
        causes = ZeroCauses(elements=grad.size, zeros=int(np.count_nonzero(zeros)))
        causes.underflow = int(np.count_nonzero(underflow))
        causes.upstream = int(np.count_nonzero(lost & (local == 0)))
        causes.cast = int(np.count_nonzero(here & ~underflow & cast))
        causes.swamping = int(np.count_nonzero(here)) - causes.underflow - causes.cast
        if masked is not None:
            causes.mask = int(np.count_nonzero(zeros & ~lost & masked))
        explained = causes.underflow + causes.upstream + causes.cast + causes.swamping + causes.mask
        causes.true_zero = causes.zeros - explained
        self._add(entry, causes)

    def _add(self, entry: Entry, causes: ZeroCauses) -> None:
        key = (entry.step, entry.kind, entry.layer, entry.tensor)
        self.found.setdefault(key, ZeroCauses()).__iadd__(causes)


def target_shape(target: Any) -> tuple[int, ...]:
    """Return the shape of a tensor, or of the output of a node."""
    return tuple(target.output.shape if hasattr(target, "output") else target.shape)


def _sum(total: Array | None, share: Array | Part) -> Array:
    """Return the sum of gradients so far and the next share, which may cover a part alone."""
    if not isinstance(share, Part):
        return share if total is None else np.asarray(total + share)
    total = np.zeros(share.shape) if total is None else total.copy()
    total[share.index] += share.values
    return total


def why_zero(record: Record, trace: ZeroTrace | None, tensor: str, kind: str) -> ZeroCauses:
    """Return the sum over all steps of what is known of a tensor; see `Record.why_zero`."""
    total, seen = ZeroCauses(), False
    if kind == "update":
        for entry in record.entries(kind, layer=tensor):
            counters, seen = entry.counters, True
            zeros = counters.zeros + counters.underflows
            total += ZeroCauses(
                elements=counters.elements, zeros=zeros, stagnation=counters.underflows, true_zero=counters.zeros
            )
    elif trace is None:
        raise ValueError(f"why_zero: kind is {kind!r}, which this record did not follow; observe(causes=True) does")
    else:
        for (_, its_kind, layer, name), causes in trace.found.items():
            if its_kind == kind and tensor in (layer, name):
                total += causes
                seen = True
    if not seen:
        names = dict.fromkeys(name for e in record.entries(kind) for name in (e.layer, e.tensor) if name)
        raise ValueError(f"why_zero: there is no {kind} of {tensor!r}; there is {', '.join(names) or 'none'}")
    return total
