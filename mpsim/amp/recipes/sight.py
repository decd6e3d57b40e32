"""What an observer is shown of a recipe: every cast of an operand, as any other rounding."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.blocks import BlockArray, BlockCounters, element_scales, quotients
from mpsim.blocks.rules import RuleLike
from mpsim.counters import Counters
from mpsim.encoding import decode, encode
from mpsim.formats import FP32, FloatFormat
from mpsim.ops import Call, Operation, Product, Roles
from mpsim.rounding import round_to
from mpsim.scales import cast, times
from mpsim.settings import Observer, Origin, settings
from mpsim.tensor import Tensor

__all__ = ["Sight"]

Array: TypeAlias = "NDArray[Any]"

_TRANSPOSED: dict[Roles, str] = {
    ("input", "weight"): "weight",
    ("gradient", "input"): "gradient",
    ("query", "key"): "key",
    ("probabilities", "gradient"): "probabilities",
    ("gradient", "value"): "value",
    ("score_gradient", "query"): "score_gradient",
}
"""By the roles of a product, the operand that comes as the transpose of the layer's tensor."""


def _scaled(_: Call, input: Array, scale: Array) -> Array:
    return times(input, scale)


def _divided(_: Call, input: Array, scale: Array, tensor_scale: Array | None = None) -> Array:
    return input / scale if tensor_scale is None else input / (scale * tensor_scale)


_ENDS: dict[Product, str] = {
    "forward": "",
    "input_gradient": " for the input gradient",
    "weight_gradient": " for the weight gradient",
}
_CASTS = {product: Operation(f"cast{end}", _scaled) for product, end in _ENDS.items()}
_BLOCK_CASTS = {product: Operation(f"cast{end}", _divided) for product, end in _ENDS.items()}
"""What an observer is told of, by product; never run."""


@dataclass(slots=True, eq=False)
class Sight:
    """Casts operands for the products of one linear map or attention, and shows that to the observer in force.

    Notes
    -----
    A cast is shown once for each product, with the numbers as they are rounded, scaled already. One scale for the
    whole tensor gives a tensor and its transpose the same codes: such casts are shown for the first product alone. A
    product of the forward pass that the backward pass computes again is not shown again.
    """

    layer: str = ""
    """Path of the module that runs."""
    operation: str = ""
    parameter: Tensor | None = None
    """The weight, whose name the observer knows."""
    _key: tuple[Product, Roles] = ("forward", ("", ""))
    """The product under way."""
    _again: bool = False
    """Whether it was computed before."""
    _products: set[tuple[Product, Roles]] = field(default_factory=set)
    _first: dict[str, tuple[Product, Roles]] = field(default_factory=dict)
    """By role, the product in which it came first."""
    _left: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    """By role, which numbers are left after the cast for the product under way, if somebody traces."""
    _result: NDArray[np.bool_] | None = None
    """Which elements of the product itself a cast made zero."""

    def begin(self, product: Product, roles: Roles) -> None:
        """Take note which product the next casts are for."""
        self._key = product, roles
        if product != "forward" and self._key in self._products:  # one more backward pass of the same graph
            self._products = {key for key in self._products if key[0] == "forward"}
            self._first = {role: key for role, key in self._first.items() if key[0] == "forward"}
        self._again = self._key in self._products
        self._products.add(self._key)
        self._left, self._result = {}, None

    def lost(self) -> NDArray[np.bool_] | None:
        """Return where the product under way is zero for what was cast to zero; None unless somebody traces.

        There every term has an operand that is zero once cast, or the product itself was cast to zero.
        """
        _, (left, right) = self._key
        if left not in self._left or right not in self._left:
            return None
        # Sums of ones and zeros: exact, and 0 where no term is left.
        gone = np.asarray(self._left[left].astype(np.float32) @ self._left[right].astype(np.float32) == 0)
        self._left = {}
        return gone if self._result is None else np.asarray(gone | self._result)

    def cast(
        self,
        x: Array,
        scale: Array,
        fmt: FloatFormat,
        role: str,
        whole: bool = False,
        turned: bool = False,
        scaled: Array | None = None,
    ) -> Array:
        """Return ``x * scale`` in a format, as `scales.cast`.

        Parameters
        ----------
        x : float32 array
        scale : float32 array that broadcasts to the shape of ``x``
        fmt : FloatFormat
        role : str
        whole : bool
            Whether the tensor has the same codes in every product.
        turned : bool
            Whether ``x`` is the transpose of the operand.
        scaled : array, shape of ``x``, optional
            What is rounded, where that is not ``x * scale`` in float32.
        """
        observer = self._observer(role, whole)
        counters = None if observer is None else Counters()
        if scaled is None:
            after = cast(x, scale, fmt, counters)
        else:
            after = round_to(scaled, fmt, overflow="saturate", counters=counters)
        if self._traced():
            self._trace(role, x != 0, after != 0, turned)
        if observer is not None and counters is not None:
            arrays = times(x, scale) if scaled is None else scaled, after, x, np.broadcast_to(scale, x.shape)
            before, rounded, *inputs = (a.T for a in arrays) if turned else arrays
            self._show(observer, role, fmt, before, rounded, counters, _CASTS, tuple(inputs))
        return after

    def counters(self, role: str, whole: bool = False) -> BlockCounters | None:
        """Return what is to count a quantisation into blocks; None where nobody looks on."""
        return None if self._observer(role, whole) is None else BlockCounters()

    def quantized(
        self,
        x: Array,
        q: BlockArray,
        rule: RuleLike,
        role: str,
        whole: bool = False,
        counters: BlockCounters | None = None,
    ) -> None:
        """Show a quantisation into blocks.

        Parameters
        ----------
        x : float32 array
        q : BlockArray
            What it became.
        rule : ScaleRule, ScaleRecipe or name
            How scales were found, and elements divided by them.
        role : str
        whole : bool
            As for `cast`.
        counters : BlockCounters, optional
            What the quantisation counted; unless given, elements were rounded to nearest, and are counted here.
        """
        observer, element = self._observer(role, whole), q.format.element
        assert isinstance(element, FloatFormat)
        if self._traced():
            self._trace(role, x != 0, (decode(q.codes, element) != 0) & (element_scales(q) != 0), turned=False)
        if observer is None:
            return
        before, scales = quotients(x, q, rule), element_scales(q)
        if counters is None:
            seen = Counters()
            after = round_to(before, element, overflow="saturate", counters=seen)
        else:
            seen, after = counters.elements, decode(q.codes, element)
            if counters.scales_underflowed:
                _lose(scales, x, q, before, after, seen)
        tensor = np.broadcast_to(np.float32(q.tensor_scale), x.shape) if q.format.tensor_scale else None
        self._show(observer, role, element, before, after, seen, _BLOCK_CASTS, (x, scales, tensor))

    def _observer(self, role: str, whole: bool) -> Observer | None:
        """Return who is to be shown a cast; None where nobody is."""
        observer = settings().observer
        first = self._first.setdefault(role, self._key) if whole else self._key
        due = observer is not None and _kind(role) in observer.kinds and not self._again and first == self._key
        return observer if due else None

    def _traced(self) -> bool:
        """Return whether somebody follows the product under way, of a backward pass."""
        observer = settings().observer
        return observer is not None and observer.traces and self._key[0] != "forward"

    def _trace(self, role: str, before: NDArray[np.bool_], left: NDArray[np.bool_], turned: bool) -> None:
        """Take note of what is not zero before and after a cast."""
        if role in self._key[1]:
            self._left[role] = left.T if turned else left
        else:
            self._result = before & ~left

    def _show(
        self,
        observer: Observer,
        role: str,
        fmt: FloatFormat,
        before: Array,
        after: Array,
        counters: Counters,
        casts: dict[Product, Operation],
        inputs: tuple[Array | None, ...],
    ) -> None:
        product, roles = self._key
        if _TRANSPOSED.get(roles) == role:
            before, after = before.swapaxes(-1, -2), after.swapaxes(-1, -2)
            inputs = tuple(None if x is None else x.swapaxes(-1, -2) for x in inputs)
        target = self.parameter if role.startswith("weight") and role != "weights" else None
        producer = f"{self.operation} {role}".strip()
        clips = casts is _BLOCK_CASTS
        origin = Origin(casts[product], self.layer, FP32, inputs, target=target, clips=clips)
        observer.rounded(_kind(role), producer, fmt, before, after, counters, origin)


def _lose(scales: Array, x: Array, q: BlockArray, before: Array, after: Array, counters: Counters) -> None:
    """Count as lost, in place, what has the scale zero, and so is zero whatever its code.

    It was to be rounded from the quotient with the smallest scale.
    """
    gone, element = (scales == 0) & (x != 0), q.format.element
    assert isinstance(element, FloatFormat)
    counted, count = Counters(), int(np.count_nonzero(gone))
    encode(before[gone], element, overflow="saturate", counters=counted)
    for each in fields(Counters):
        setattr(counters, each.name, getattr(counters, each.name) - getattr(counted, each.name))
    counters += Counters(count, underflows=count, inexact=count)
    least = q.format.scale.magnitude(q.format.scale.min_code)
    before[gone], after[gone] = x[gone] / (float(least) * q.tensor_scale), 0


def _kind(role: str) -> str:
    return "gradient operand" if role.endswith("gradient") else "operand"
