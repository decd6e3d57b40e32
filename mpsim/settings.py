"""What the engine looks up at each operation, and the contexts that change it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from mpsim.counters import Counters
from mpsim.formats import FloatFormat
from mpsim.ops import Operation, UnitsLike

__all__ = [
    "Meter",
    "Observer",
    "Origin",
    "Policy",
    "Settings",
    "is_grad_enabled",
    "matrix_unit",
    "no_grad",
    "settings",
    "using",
]

Array: TypeAlias = "NDArray[Any]"


class Policy(Protocol):
    """Decides in which format an operation runs; `amp.autocast` is one."""

    def cast_inputs(self, operation: str, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs, tensors, in the format that the operation is to run in."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Which computation made an array, and from what."""

    operation: Operation | None
    """None for the sum of several gradients of one tensor."""
    layer: str
    """Path of the module that ran the operation."""
    format: FloatFormat
    """Format of the inputs."""
    inputs: tuple[Array | None, ...]
    """Their values, as far as the computation reads them."""
    grad: Array | None = None
    """In a backward pass, the gradient of the operation's output."""
    grad_format: FloatFormat | None = None
    position: int = 0
    """In a backward pass, the input whose gradient was computed."""
    target: Any = None
    """Tensor or node to which the array belongs: that of the gradient, or the tensor that was cast."""


class Observer(Protocol):
    """Is shown what the engine rounds; `observe.Record` is one."""

    kinds: Collection[str]
    """Which kinds of array to show: ``"activation"``, ``"activation gradient"``, ``"weight"`` (a weight cast to
    another format, or after an update), ``"weight gradient"``, ``"update"``."""
    traces: bool
    """Whether to show whole backward passes, node by node."""

    def layer(self, module: Any) -> str:
        """Return the path of a module that is about to run."""

    def cleared(self) -> None:
        """Take note that gradients were forgotten, which ends a training step."""

    def updated(self, parameter: Any, before: Array, after: Array, meant: int, lost: int) -> None:
        """Take note of one update of a parameter, or of its master weights.

        ``meant`` counts the elements whose update was not zero; ``lost``, those among them that stayed as they were.
        """

    def walked(self, node: Any, grad: Array) -> None:
        """Take note of the complete gradient of a node's output, before the operation's rule is applied."""

    def arrived(self, leaf: Any, grad: Array) -> None:
        """Take note of the complete gradient of a leaf."""

    def rounded(
        self,
        kind: str,
        producer: str,
        fmt: FloatFormat,
        before: Array,
        after: Array,
        counters: Counters,
        origin: Origin | None,
    ) -> None:
        """Take note of one array.

        Parameters
        ----------
        kind
            One of ``kinds``.
        producer
            Name of the operation that made the tensor; a gradient goes by the tensor that it belongs to.
        fmt
            Format of the tensor.
        before, after
            The array before and after rounding to ``fmt``.
        counters
            What that rounding did.
        origin
            Which computation made the array.
        """


class Meter(Protocol):
    """Is told of every array that the engine holds; `memory.Memory` is one."""

    def hold(self, kind: str, array: Array, bits: int) -> None:
        """Count an array, of elements of so many bits, from now until nothing refers to it any more."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the engine looks up at each operation; changed with `using` for the length of a block."""

    unit: UnitsLike = "native"
    policy: Policy | None = None
    observer: Observer | None = None
    layer: str = ""
    """Path of the module that is running; kept only for an observer."""
    grad_enabled: bool = True
    meter: Meter | None = None


_settings: contextvars.ContextVar[Settings] = contextvars.ContextVar("mpsim settings", default=Settings())  # noqa: B039


def settings() -> Settings:
    """Return the settings in force in this thread."""
    return _settings.get()


@contextlib.contextmanager
def using(**changes: Any) -> Iterator[Settings]:
    """Change fields of `Settings` for the length of a block."""
    token = _settings.set(replace(_settings.get(), **changes))
    try:
        yield _settings.get()
    finally:
        _settings.reset(token)


def no_grad() -> contextlib.AbstractContextManager[Settings]:
    """Return a context in which operations are not recorded for `Tensor.backward`."""
    return using(grad_enabled=False)


def is_grad_enabled() -> bool:
    """Return whether operations are being recorded."""
    return settings().grad_enabled


def matrix_unit(unit: UnitsLike) -> contextlib.AbstractContextManager[Settings]:
    """Return a context in which products of low-precision tensors go through ``unit``, forward and backward.

    Parameters
    ----------
    unit : MatrixUnit, name, or `Units` with one for each of the three products of a layer
    """
    return using(unit=unit)
