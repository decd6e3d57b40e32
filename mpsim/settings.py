"""What the engine looks up at each operation, and the contexts that change it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from mpsim.counters import Counters
from mpsim.formats import FloatFormat, FormatLike
from mpsim.ops import FP32_INSIDE, Inner, Operation, Part, Site, UnitsLike

__all__ = [
    "Meter",
    "Observer",
    "Origin",
    "Policy",
    "Quantization",
    "Settings",
    "inner_arithmetic",
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


class Quantization(Protocol):
    """Decides which operations multiply scaled operands in a narrower format; `amp.fp8_autocast` is one."""

    def site(self, operation: str, inputs: tuple[Any, ...]) -> Site | None:
        """Return what multiplies the operands of an operation on these tensors; None where its unit does."""


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
    part: Part | None = None
    """Where the array is a slice of the target's gradient: which one."""
    clips: bool = False
    """Whether the scale followed from the numbers themselves by a rule that may hold the largest of them at the
    largest number of the format, as scales of blocks do."""


class Observer(Protocol):
    """Is shown what the engine rounds; `observe.Record` is one."""

    kinds: Collection[str]
    """Which kinds of array to show: ``"activation"``, ``"activation gradient"``, ``"weight"`` (a weight cast to
    another format, or after an update), ``"weight gradient"``, ``"update"``; ``"operand"`` and ``"gradient operand"``
    (what a recipe casts for a product)."""
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
        counters: Counters | None,
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
            What that rounding did; None where there was nothing to round, ``before`` having values of ``fmt``.
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
    quantization: Quantization | None = None
    observer: Observer | None = None
    layer: str = ""
    """Path of the module that is running; kept only for an observer."""
    grad_enabled: bool = True
    meter: Meter | None = None
    inner: Inner = FP32_INSIDE


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


def inner_arithmetic(
    intermediate: str = "fp32",
    accumulator: FormatLike | None = None,
    order: str = "sequential",
    chunk: int | None = None,
) -> contextlib.AbstractContextManager[Settings]:
    """Return a context that changes how operations compute before their result is rounded, forward and backward.

    Parameters
    ----------
    intermediate : {"fp32", "rounded"}
        ``"fp32"``: inputs are widened, every step of an operation is in FP32 and the result is rounded once, as kernels
        of a GPU do. ``"rounded"``: every step is rounded to the format of the inputs, as on a machine that has nothing
        else; so are constants. Functions of single elements, such as exp or gelu, are one step. A product goes through
        the unit's instruction that accumulates in this format, where it has one; "native" ones are FP32, rounded.
    accumulator : FloatFormat or name, optional
        Format of all partial sums of reductions: of sum, mean, var, the sums of softmax, norms and losses, bias
        gradients. Terms are rounded to it first. By default FP32 in NumPy's order, with ``"rounded"`` the format of the
        inputs.
    order : {"sequential", "pairwise", "chunked", "kahan", "exact"}
    chunk : int, optional
        In which order terms are added; see `arithmetic.sum`. Several dimensions are summed as one, the last of them
        running fastest.

    Raises
    ------
    ValueError
        An unknown name, an accumulator of more than 32 bits, an order without the chunk that it needs.

    Notes
    -----
    Backward goes by the arithmetic of the forward pass. What `observe` counts are results, not steps. Tensors in fp64
    compute in fp64 as ever.

    Examples
    --------
    >>> from mpsim.tensor import Tensor
    >>> ones = Tensor([1.0] * 4096, format="fp16")
    >>> for accumulator in (None, "fp16"):
    ...     with inner_arithmetic(accumulator=accumulator):
    ...         print(ones.sum().item(), ones.mean().item())
    4096.0 1.0
    2048.0 0.5
    >>> x = Tensor([6e4, 6e4], format="fp16")
    >>> x.mean().item()
    60000.0
    >>> with inner_arithmetic("rounded"):  # the sum overflows
    ...     x.mean().item()
    inf
    """
    return using(inner=Inner.of(intermediate, accumulator, order, chunk))
