"""Tensors that carry a format, and reverse-mode differentiation over the table of operations."""

from __future__ import annotations

import contextlib
import contextvars
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim._arrays import as_source
from mpsim.counters import Counters
from mpsim.formats import FP32, FP64, FloatFormat, FormatLike, get_format
from mpsim.ops import TABLE, Call, Operation
from mpsim.rounding import round_to
from mpsim.units import MatrixUnit

__all__ = [
    "Observer",
    "Policy",
    "Settings",
    "Tensor",
    "apply",
    "as_tensor",
    "is_grad_enabled",
    "matrix_unit",
    "no_grad",
    "promote",
    "settings",
    "using",
]

Array: TypeAlias = "NDArray[Any]"
Dims: TypeAlias = "int | tuple[int, ...] | None"


class Policy(Protocol):
    """Decides in which format an operation runs; `amp.autocast` is one."""

    def cast_inputs(self, operation: str, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the inputs in the format that the operation is to run in."""


class Observer(Protocol):
    """Is shown what the engine rounds; `observe.Record` is one."""

    kinds: Collection[str]
    """Which kinds of array to show: ``"activation"``, ``"activation gradient"``, ``"weight"`` (a weight cast to
    another format), ``"weight gradient"``."""

    def rounded(
        self, kind: str, producer: str, fmt: FloatFormat, before: Array, after: Array, counters: Counters
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
        """


@dataclass(frozen=True, slots=True)
class Settings:
    """What the engine looks up at each operation; changed with `using` for the length of a block."""

    unit: MatrixUnit | str = "native"
    policy: Policy | None = None
    observer: Observer | None = None
    grad_enabled: bool = True


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


def matrix_unit(unit: MatrixUnit | str) -> contextlib.AbstractContextManager[Settings]:
    """Return a context in which products of low-precision tensors go through ``unit``, forward and backward."""
    return using(unit=unit)


@dataclass(slots=True, eq=False)
class _Node:
    """One recorded operation."""

    operation: Operation
    call: Call
    inputs: tuple[Tensor, ...]
    arrays: tuple[Array, ...]
    """Values of the inputs in the forward pass; an optimizer may have replaced the tensors' own since."""
    options: dict[str, Any]
    output: Array | None
    fmt: FloatFormat
    holds_weight: bool
    """Whether the output is a weight in another format, rather than an activation."""
    tensor: weakref.ref[Tensor]


class Tensor:
    """An array of values of one format, differentiable.

    Parameters
    ----------
    data : array_like or Tensor
        Rounded to ``format``. Without a format: fp64 for float64 arrays, fp32 for Python numbers, integers and
        float32, and the format of a narrower dtype (float16, ml_dtypes).
    requires_grad : bool
    format : FloatFormat or name, optional

    Attributes
    ----------
    data : float32 or float64 array
        The values; each is a value of ``format``.
    format : FloatFormat
    grad : Tensor or None
        What `backward` accumulated, in the format of the tensor.

    Examples
    --------
    >>> x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    Tensor([2., 4., 6.], format=fp32)
    """

    __slots__ = ("__weakref__", "_node", "_retains_grad", "data", "format", "grad", "requires_grad")
    format: FloatFormat
    __array_ufunc__ = None  # array @ tensor calls Tensor.__rmatmul__

    def __init__(self, data: ArrayLike | Tensor, requires_grad: bool = False, format: FormatLike | None = None) -> None:
        if isinstance(data, Tensor):
            format = data.format if format is None else format
            data = data.data
        fmt = _natural_format(data) if format is None else get_format(format)
        self.data: Array = _held(np.array(as_source(data)), fmt)
        self.format = fmt
        self.requires_grad = requires_grad
        self.grad: Tensor | None = None
        self._node: _Node | None = None
        self._retains_grad = False

    # What it is.

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.data.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.data.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.data.size

    @property
    def nbytes(self) -> int:
        """Bytes that the elements take in their format, packed."""
        return -(-self.data.size * self.format.bits // 8)

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made this tensor."""
        return self._node is None

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        body = np.array2string(self.data, separator=", ", prefix="Tensor(")
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"Tensor({body}, format={self.format}{grad})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self.requires_grad:
            raise RuntimeError("the tensor requires grad, and an array has no history; call detach() first")
        return np.array(self.data, dtype=dtype, copy=copy)

    def __bool__(self) -> bool:
        return bool(self.data)

    def __float__(self) -> float:
        return self.item()

    def numpy(self) -> Array:
        """Return the values as an array, shared with the tensor."""
        if self.requires_grad:
            raise RuntimeError("numpy: the tensor requires grad; call detach().numpy()")
        return self.data

    def item(self) -> float:
        """Return the only element as a Python float."""
        return float(self.data.item())

    # Arithmetic.

    def __add__(self, other: ArrayLike | Tensor) -> Tensor:
        return apply("add", self, self._operand(other))

    def __radd__(self, other: ArrayLike) -> Tensor:
        return apply("add", self._operand(other), self)

    def __sub__(self, other: ArrayLike | Tensor) -> Tensor:
        return apply("sub", self, self._operand(other))

    def __rsub__(self, other: ArrayLike) -> Tensor:
        return apply("sub", self._operand(other), self)

    def __mul__(self, other: ArrayLike | Tensor) -> Tensor:
        return apply("mul", self, self._operand(other))

    def __rmul__(self, other: ArrayLike) -> Tensor:
        return apply("mul", self._operand(other), self)

    def __truediv__(self, other: ArrayLike | Tensor) -> Tensor:
        return apply("div", self, self._operand(other))

    def __rtruediv__(self, other: ArrayLike) -> Tensor:
        return apply("div", self._operand(other), self)

    def __neg__(self) -> Tensor:
        return apply("neg", self)

    def __matmul__(self, other: Tensor) -> Tensor:
        a, b = self, as_tensor(other)
        if a.ndim == 0 or b.ndim == 0:
            raise ValueError(f"matmul: shapes {a.shape} and {b.shape}; both operands need at least 1 dimension")
        if a.shape[-1] != b.shape[max(b.ndim - 2, 0)]:
            raise ValueError(
                f"matmul: a is {a.shape}, b is {b.shape}; a.shape[-1] must equal b.shape[{max(b.ndim - 2, 0) - b.ndim}]"
            )
        try:
            np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            raise ValueError(f"matmul: a is {a.shape}, b is {b.shape}; the leading axes do not broadcast") from None
        # A vector is a matrix of one row or column, as in numpy.matmul.
        row, column = a.ndim == 1, b.ndim == 1
        product = apply("matmul", a.reshape(1, -1) if row else a, b.reshape(-1, 1) if column else b)
        if row or column:
            shape = list(product.shape)
            if column:
                shape.pop()
            if row:
                shape.pop(-1 if column else -2)
            product = product.reshape(shape)
        return product

    def __rmatmul__(self, other: ArrayLike) -> Tensor:
        return as_tensor(other) @ self

    def _operand(self, other: ArrayLike | Tensor) -> Tensor:
        """Return the other operand.

        A Python number does not change the format of the result, and is itself not rounded to it: like torch's kernels
        we compute with it in the inner arithmetic.
        """
        if isinstance(other, int | float):
            return _wrap(self.data.dtype.type(other), self.format)
        return as_tensor(other)

    # Functions.

    def exp(self) -> Tensor:
        """Return e**x."""
        return apply("exp", self)

    def log(self) -> Tensor:
        """Return the natural logarithm."""
        return apply("log", self)

    def tanh(self) -> Tensor:
        """Return the hyperbolic tangent."""
        return apply("tanh", self)

    def relu(self) -> Tensor:
        """Return max(x, 0)."""
        return apply("relu", self)

    def sum(self, dim: Dims = None, keepdim: bool = False) -> Tensor:
        """Return the sum over ``dim``, or over all dimensions."""
        return apply("sum", self, dim=dim, keepdim=keepdim)

    def mean(self, dim: Dims = None, keepdim: bool = False) -> Tensor:
        """Return the mean over ``dim``, or over all dimensions."""
        return apply("mean", self, dim=dim, keepdim=keepdim)

    def log_softmax(self, dim: int = -1) -> Tensor:
        """Return the logarithm of the softmax along ``dim``."""
        return apply("log_softmax", self, dim=dim)

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """Return the same elements in another shape."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        return apply("reshape", self, shape=tuple(sizes))

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Return the tensor with two dimensions exchanged."""
        dims = list(range(self.ndim))
        dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
        return self.permute(*dims)

    def permute(self, *dims: int) -> Tensor:
        """Return the tensor with its dimensions in another order."""
        return apply("permute", self, dims=dims)

    @property
    def T(self) -> Tensor:
        """The tensor with its dimensions reversed."""
        return self.permute(*reversed(range(self.ndim)))

    def to(self, format: FormatLike) -> Tensor:
        """Return the tensor rounded to another format; itself if it has that format already."""
        fmt = get_format(format)
        return self if fmt == self.format else _record(TABLE["cast"], (self,), fmt, {})

    # Differentiation.

    def detach(self) -> Tensor:
        """Return a tensor that shares the array but not the history."""
        return _wrap(self.data, self.format)

    def retain_grad(self) -> None:
        """Keep the gradient of a tensor that is not a leaf."""
        if not self.requires_grad:
            raise RuntimeError("retain_grad: the tensor does not require grad")
        self._retains_grad = True

    def backward(self, gradient: ArrayLike | Tensor | None = None, retain_graph: bool = False) -> None:
        """Add the gradients of this tensor to the ``grad`` of the leaves that it depends on.

        Parameters
        ----------
        gradient : array_like, shape of the tensor
            Gradient of the final result with respect to this tensor; may be left out for a single element.
        retain_graph : bool
            Keep what a second call would need.

        Raises
        ------
        RuntimeError
            The tensor does not require grad, ``gradient`` is missing, or the graph was freed by an earlier call.
        ValueError
            ``gradient`` has another shape.
        """
        if not self.requires_grad:
            raise RuntimeError("backward: the tensor does not require grad and no operation made it from one that does")
        if gradient is None:
            if self.size != 1:
                raise RuntimeError(f"backward: the tensor has shape {self.shape}; only one element needs no gradient=")
            seed = np.ones_like(self.data)
        else:
            seed = Tensor(gradient, format=self.format).data
            if seed.shape != self.shape:
                raise ValueError(f"backward: gradient has shape {seed.shape}; {self.shape} is needed")
        with np.errstate(all="ignore"):
            _backward(self, seed, retain_graph)


def as_tensor(x: ArrayLike | Tensor) -> Tensor:
    """Return a tensor as it is, anything else as a new one."""
    return x if isinstance(x, Tensor) else Tensor(x)


def promote(inputs: Sequence[Tensor]) -> FloatFormat:
    """Return the format in which tensors of several formats meet, by torch's rules.

    The wider format wins where it holds every value of the other; two that do not hold each other (fp16, bf16) meet
    in fp32. Tensors of no dimension count only among themselves.
    """
    first = inputs[0].format
    if all(t.format is first for t in inputs):
        return first
    formats = [t.format for t in inputs if t.ndim] or [t.format for t in inputs]
    result = formats[0]
    for fmt in formats[1:]:
        if _holds(fmt, result):
            result = fmt
        elif not _holds(result, fmt):
            result = FP32 if _holds(FP32, fmt) and _holds(FP32, result) else FP64
    return result


def apply(name: str, *inputs: Tensor, **options: Any) -> Tensor:
    """Run an operation of the table, in the format that the policy in force or promotion says."""
    operation = TABLE[name]
    policy = settings().policy
    if policy is not None:
        inputs = policy.cast_inputs(name, inputs)
    fmt = promote(inputs)
    if operation.same_format and any(t.format != fmt for t in inputs):
        formats = ", ".join(t.format.name for t in inputs)
        raise ValueError(f"{name}: the inputs are in {formats}; a product needs one format: convert with .to(...)")
    return _record(operation, tuple(t.to(fmt) for t in inputs), fmt, options)


def _record(operation: Operation, inputs: tuple[Tensor, ...], fmt: FloatFormat, options: dict[str, Any]) -> Tensor:
    """Run an operation on inputs of one format; round its result to ``fmt`` and note what backward needs."""
    now = settings()
    arrays, wanted = tuple(t.data for t in inputs), tuple(t.requires_grad for t in inputs)
    call = Call(inputs[0].format, now.unit, wanted)
    with np.errstate(all="ignore"):
        raw = operation.forward(call, *arrays, **options)
    is_cast = operation.name == "cast"
    holds_weight = is_cast and _is_weight(inputs[0])
    kind = "weight" if holds_weight else "activation"
    data = _rounded(raw, fmt, operation.exact, kind, operation.name)
    result = _wrap(data, fmt)
    if now.grad_enabled and any(wanted):
        result.requires_grad = True
        result._node = _Node(operation, call, inputs, arrays, options, data, fmt, holds_weight, weakref.ref(result))
    return result


def _backward(root: Tensor, seed: Array, retain_graph: bool) -> None:
    if root._node is None:
        _accumulate(root, seed)
        return
    pending: dict[_Node, Array] = {root._node: seed}
    for node in _walk_order(root._node):
        grad = pending.pop(node)
        tensor = node.tensor()
        if tensor is not None and tensor._retains_grad:
            _accumulate(tensor, grad)
        gradients = node.operation.vjp(node.call, grad, node.output, *node.arrays, **node.options)
        for parent, wanted, raw in zip(node.inputs, node.call.wanted, gradients, strict=True):
            if not wanted or raw is None:
                continue
            producer = parent._node.operation.name if parent._node else "leaf"
            kind = "weight gradient" if _is_weight(parent) else "activation gradient"
            share = _rounded(raw, parent.format, node.operation.exact, kind, producer)
            if parent._node is None:
                _accumulate(parent, share)
            elif parent._node in pending:
                total = pending[parent._node] + share
                pending[parent._node] = _rounded(total, parent.format, False, kind, "accumulate")
            else:
                pending[parent._node] = share
        if not retain_graph:
            node.inputs, node.arrays, node.output = (), (), None


def _walk_order(root: _Node) -> list[_Node]:
    """Return the nodes that ``root`` depends on, each before the nodes of its inputs; without recursion."""
    order: list[_Node] = []
    seen: set[_Node] = {root}
    stack: list[tuple[_Node, Iterator[Tensor]]] = [(root, iter(root.inputs))]
    while stack:
        node, inputs = stack[-1]
        if not node.inputs:
            raise RuntimeError(
                f"backward: the graph was freed at operation {node.operation.name!r}; "
                "call the first backward with retain_graph=True"
            )
        for tensor in inputs:
            below = tensor._node
            if below is not None and below not in seen:
                seen.add(below)
                stack.append((below, iter(below.inputs)))
                break
        else:
            order.append(node)
            stack.pop()
    order.reverse()
    return order


def _accumulate(tensor: Tensor, grad: Array) -> None:
    if tensor.grad is None:
        tensor.grad = _wrap(np.array(grad), tensor.format)
    else:
        total = tensor.grad.data + grad
        tensor.grad = _wrap(_rounded(total, tensor.format, False, "weight gradient", "accumulate"), tensor.format)


def _is_weight(tensor: Tensor) -> bool:
    node = tensor._node
    return tensor.requires_grad if node is None else node.holds_weight


def _rounded(raw: Array, fmt: FloatFormat, exact: bool, kind: str, producer: str) -> Array:
    """Return a result in its format, and show it to the observer."""
    observer = settings().observer
    if observer is None or kind not in observer.kinds:
        return raw if exact else _held(raw, fmt)
    counters = Counters()
    after = _held(raw, fmt, counters)
    observer.rounded(kind, producer, fmt, raw, after, counters)
    return after


def _held(raw: Array, fmt: FloatFormat, counters: Counters | None = None) -> Array:
    """Return values rounded to a format in the dtype that tensors keep it in."""
    if counters is None and raw.dtype == fmt.value_dtype and (fmt is FP32 or fmt is FP64):
        return raw
    values = round_to(raw, fmt, counters=counters)
    return values.astype(fmt.value_dtype, copy=False)


def _wrap(data: Array, fmt: FloatFormat) -> Tensor:
    """Return a tensor around values that are in the format already."""
    tensor = Tensor.__new__(Tensor)
    tensor.data, tensor.format = data, fmt
    tensor.requires_grad, tensor.grad, tensor._node, tensor._retains_grad = False, None, None, False
    return tensor


def _natural_format(data: ArrayLike) -> FloatFormat:
    array = np.asarray(data)
    if array.dtype.kind in "cOSU":
        raise TypeError(f"data has dtype {array.dtype}; real numbers are needed")
    if array.dtype.kind in "biu" or (array.dtype == np.float64 and not hasattr(data, "dtype")):
        return FP32
    return get_format(array.dtype)


def _holds(wide: FloatFormat, narrow: FloatFormat) -> bool:
    """Return whether every finite value of ``narrow`` is one of ``wide``."""
    return (
        wide.p >= narrow.p
        and wide.max_finite >= narrow.max_finite
        and wide.quantum_exponent <= narrow.quantum_exponent
        and (wide.has_subnormals or wide.min_normal <= narrow.min_subnormal)
    )
