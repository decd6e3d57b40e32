"""What an operation of the table is, and how it is told to compute."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim import units
from mpsim.formats import FP32, FP64, FloatFormat
from mpsim.matmul import matmul as unit_matmul
from mpsim.ops.inner import FP32_INSIDE, Inner, plain
from mpsim.rounding import round_to
from mpsim.units import MatrixUnit

__all__ = ["Array", "Call", "Gradients", "Operation", "Part", "Product", "Roles", "Site", "Units", "UnitsLike"]

Array: TypeAlias = "NDArray[Any]"
Product: TypeAlias = Literal["forward", "input_gradient", "weight_gradient"]
Roles: TypeAlias = "tuple[str, str]"
"""What the left and the right operand of a product are to their layer."""

_ROLES: dict[Product, Roles] = {
    "forward": ("input", "weight"),
    "input_gradient": ("gradient", "weight"),
    "weight_gradient": ("gradient", "input"),
}
"""Those of a linear layer."""


@dataclass(frozen=True, slots=True)
class Part:
    """A gradient that is zero but at an index, for which slices do: the engine adds it there, in place."""

    shape: tuple[int, ...]
    index: tuple[Any, ...]
    values: Array


Gradients: TypeAlias = "tuple[Array | Part | None, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """A matrix unit for each of the three products of a layer."""

    forward: MatrixUnit | str = "native"
    input_gradient: MatrixUnit | str = "native"
    """Of the gradient of what is not a weight: of ``a`` in ``a @ b``, and of all inputs of attention."""
    weight_gradient: MatrixUnit | str = "native"
    """Of the gradient of a weight: of ``b`` in ``a @ b``."""

    @property
    def each(self) -> tuple[MatrixUnit | str, ...]:
        """The three units."""
        return self.forward, self.input_gradient, self.weight_gradient


UnitsLike: TypeAlias = "Units | MatrixUnit | str"


class Site(Protocol):
    """One operation whose operands a recipe scales and quantises; the FP8 recipes of `amp.recipes` bring it."""

    def matmul(self, call: Call, a: Array, b: Array, product: Product, roles: Roles) -> Array:
        """Return ``a @ b`` in FP32, an array that the caller may overwrite."""

    def lost_in_casts(self, product: Product) -> NDArray[np.bool_] | None:
        """Return which elements of the last product of a backward pass are zero for what casts made of its operands.

        None where nobody traces.
        """

    def free(self) -> None:
        """Let go of arrays that a second backward pass would need."""


@dataclass(frozen=True, slots=True)
class Call:
    """How one operation is to compute, and what its forward pass leaves for its backward pass."""

    fmt: FloatFormat
    """Format of the inputs."""
    unit: UnitsLike = "native"
    """Matrix unit of the products, forward and backward."""
    wanted: tuple[bool, ...] = ()
    """For each input, whether its gradient is wanted."""
    inner: Inner = FP32_INSIDE
    """Arithmetic of the steps, forward and backward."""
    saved: dict[str, Array] = field(default_factory=dict)
    """Intermediate results, in the inner arithmetic, that the forward pass keeps for the backward pass."""
    site: Site | None = None
    """Computes the products where a recipe is in force."""

    def matmul(self, a: Array, b: Array, product: Product = "forward", roles: Roles | None = None) -> Array:
        """Return ``a @ b`` as the unit leaves it in FP32, before the rounding to the result's format.

        ``roles`` say what ``a`` and ``b`` are to a recipe; unless given, what they are in a linear layer.
        """
        if self.site is None:
            return self.unscaled(a, b, product)
        return self.stepwise(self.site.matmul(self, plain(a), plain(b), product, roles or _ROLES[product]))

    def unscaled(self, a: Array, b: Array, product: Product) -> Array:
        """Return ``a @ b`` of values of ``fmt``, whatever recipe is in force.

        Where every step is rounded, the result is; and it is that of the unit's instruction which accumulates in the
        inputs' format, if there is one.
        """
        unit = getattr(self.unit, product) if isinstance(self.unit, Units) else self.unit
        if self.inner is not FP32_INSIDE:
            return self.stepwise(self._product(plain(a), plain(b), unit, narrow=self.inner.rounded))
        return self._product(a, b, unit)

    def _product(self, a: Array, b: Array, unit: MatrixUnit | str, narrow: bool = False) -> Array:
        if unit in ("native", units.NATIVE) or self.fmt is FP32 or self.fmt is FP64:
            return np.asarray(a @ b)
        return unit_matmul(a, b, unit=_instruction(unit, self.fmt, narrow), rounded=True)

    def stepwise(self, x: Array) -> Array:
        """Return an array that computes in the inner arithmetic."""
        return x if self.inner is FP32_INSIDE else self.inner.wrapped(x, self.fmt)

    def free(self) -> None:
        """Let go of all that a second backward pass would need."""
        self.saved.clear()
        if self.site is not None:
            self.site.free()

    def operand(self, x: Array) -> Array:
        """Return an intermediate result rounded to the inputs' format, as a product needs it.

        A recipe quantises it without that step between.
        """
        return x if self.site is not None or self.fmt is FP32 or self.fmt is FP64 else round_to(x, self.fmt)


@functools.lru_cache(maxsize=256)
def _instruction(unit: MatrixUnit | str, fmt: FloatFormat, narrow: bool = False) -> MatrixUnit:
    """Return the instruction of a unit that multiplies ``fmt`` into FP32, or into ``fmt`` where that is asked for."""
    if narrow:
        with contextlib.suppress(ValueError):
            return units.get(unit, inputs=fmt, out=fmt)
    return units.get(unit, inputs=fmt, out=FP32)


@functools.cache
def _names(forward: Callable[..., Array]) -> tuple[str, ...]:
    """Return the names of a rule's inputs and options."""
    return tuple(inspect.signature(forward).parameters)[1:]


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table."""

    name: str
    forward: Callable[..., Array]
    """``forward(call, *inputs, **options)`` returns the unrounded result; an input with a default may be None."""
    vjp: Callable[..., Gradients] | None = None
    """``vjp(call, grad, output, *inputs, **options)`` returns one unrounded gradient for each input; None for those
    that are not wanted. Without it, or where a wanted one is None, backward is an error."""
    reads: tuple[str, ...] | None = None
    """Names of the inputs whose values ``vjp`` reads, ``"output"`` among them; of the others it sees shape and dtype
    alone. All, unless given."""
    exact: bool = False
    """Whether results are values of the inputs' format already, so that nothing is left to round."""
    exact_vjp: bool = False
    """Whether gradients are values of the format of ``grad`` already."""
    rearranges: bool = False
    """Whether result and gradient are the numbers of the input and of ``grad``, each once."""
    formats: Literal["promoted", "equal", "first"] = "promoted"
    """What becomes of inputs of different formats: they are promoted; refused; or left as they are, with a result in
    the format of the first."""

    def run(self, call: Call, inputs: tuple[Array | None, ...], options: dict[str, Any]) -> Array:
        """Return what ``forward`` gives in the inner arithmetic of the call."""
        if not self.exact and call.inner is not FP32_INSIDE:
            inputs = tuple(None if x is None else call.stepwise(x) for x in inputs)
        return np.asarray(self.forward(call, *inputs, **options))

    def differentiate(
        self, call: Call, grad: Array, output: Array, inputs: tuple[Array | None, ...], options: dict[str, Any]
    ) -> Gradients:
        """Return what ``vjp`` gives in the inner arithmetic of the call."""
        assert self.vjp is not None
        if self.exact_vjp or call.inner is FP32_INSIDE:
            return self.vjp(call, grad, output, *inputs, **options)
        stepwise = tuple(None if x is None else call.stepwise(x) for x in inputs)
        gradients = self.vjp(call, call.stepwise(grad), call.stepwise(output), *stepwise, **options)
        return tuple(replace(g, values=plain(g.values)) if isinstance(g, Part) else plain(g) for g in gradients)

    def argument(self, position: int) -> str:
        """Return the name of an input."""
        names = _names(self.forward)
        # The last name of a signature like (call, *tensors) stands for all that follow.
        return names[min(position, len(names) - 1)]

    def is_read(self, position: int) -> bool:
        """Return whether the backward pass reads the values of an input."""
        return self.reads is None or self.argument(position) in self.reads
