"""Tensors that carry a format, and the operations that a user calls on them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim._arrays import as_source
from mpsim._methods import Methods
from mpsim.autograd import Hook, Node, RemovableHandle, backward, held, rounded, stand_in
from mpsim.formats import FloatFormat, FormatLike, get_format
from mpsim.ops import TABLE, Call, Operation, Site
from mpsim.promotion import meet, natural_format
from mpsim.rounding import round_to
from mpsim.settings import (
    Observer,
    Origin,
    Policy,
    Settings,
    is_grad_enabled,
    matrix_unit,
    no_grad,
    settings,
    using,
)

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


class Tensor(Methods):
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

    __slots__ = ("__weakref__", "_hooks", "_node", "_requires_grad", "data", "format", "grad")
    format: FloatFormat
    __array_ufunc__ = None  # array @ tensor calls Tensor.__rmatmul__

    def __init__(self, data: ArrayLike | Tensor, requires_grad: bool = False, format: FormatLike | None = None) -> None:
        if isinstance(data, Tensor):
            format = data.format if format is None else format
            data = data.data
        fmt = natural_format(data) if format is None else get_format(format)
        if fmt.p > 51 and np.asarray(data).dtype.kind in "iu":
            data = round_to(data, fmt)  # 64-bit integers have more bits than float64
        self.data: Array = held(np.array(as_source(data)), fmt)
        self.format = fmt
        self.grad: Tensor | None = None
        self._requires_grad = bool(requires_grad)
        self._node: Node | None = None
        self._hooks: dict[int, Hook] = {}

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

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded; may be changed for a leaf."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if self._node is not None and not value:
            raise RuntimeError(
                "requires_grad can only be changed for leaf tensors: detach() gives one without the history"
            )
        self._requires_grad = bool(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set ``requires_grad``; returns the tensor."""
        self.requires_grad = requires_grad
        return self

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

    def to(self, format: FormatLike) -> Tensor:
        """Return the tensor rounded to another format; itself if it has that format already."""
        fmt = get_format(format)
        return self if fmt == self.format else _record(TABLE["cast"], (self,), fmt, {})

    # Operations; `Methods` has those that need no more than their name.

    def __radd__(self, other: ArrayLike) -> Tensor:
        return self._operand(other) + self

    def __rsub__(self, other: ArrayLike) -> Tensor:
        return self._operand(other) - self

    def __rmul__(self, other: ArrayLike) -> Tensor:
        return self._operand(other) * self

    def __rtruediv__(self, other: ArrayLike) -> Tensor:
        return self._operand(other) / self

    def __rpow__(self, other: ArrayLike) -> Tensor:
        return self._operand(other) ** self

    def __matmul__(self, other: ArrayLike | Tensor) -> Tensor:
        return matmul(self, as_tensor(other))

    def __rmatmul__(self, other: ArrayLike) -> Tensor:
        return matmul(as_tensor(other), self)

    def matmul(self, other: ArrayLike | Tensor) -> Tensor:
        """Return the matrix product, with the shape rules of `numpy.matmul`."""
        return self @ other

    mm = bmm = matmul

    def _apply(self, name: str, *others: Tensor, **options: Any) -> Tensor:
        return apply(name, self, *others, **options)

    def _operand(self, other: ArrayLike | Tensor) -> Tensor:
        """Return the other operand.

        A Python number does not change the format of the result, and is itself not rounded to it: like torch's kernels
        we compute with it in the inner arithmetic.
        """
        if isinstance(other, int | float):
            return wrap(np.asarray(other, self.data.dtype), self.format)
        return as_tensor(other)

    # Differentiation.

    def detach(self) -> Tensor:
        """Return a tensor that shares the array but not the history."""
        return wrap(self.data, self.format)

    def retain_grad(self) -> None:
        """Keep the gradient of a tensor that is not a leaf."""
        if not self.requires_grad:
            raise RuntimeError("retain_grad: the tensor does not require grad")
        if self._node is not None:
            self._node.retain = functools.partial(_keep, weakref.ref(self))

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
        """Call ``hook`` with the gradient of this tensor whenever one is computed.

        Parameters
        ----------
        hook : callable
            Takes the gradient, all of one backward pass, and returns one to use in its place, or None.

        Returns
        -------
        handle
            ``handle.remove()`` takes the hook away.
        """
        if not self.requires_grad:
            raise RuntimeError("register_hook: the tensor does not require grad")
        hooks = self._hooks if self._node is None else self._node.hooks
        key = max(hooks, default=-1) + 1
        hooks[key] = functools.partial(_hooked, hook, self.format)
        return RemovableHandle(hooks, key)

    def receive(self, grad: Array) -> None:
        """Take the gradient of one backward pass; called by the engine."""
        for hook in tuple(self._hooks.values()):
            grad = hook(grad)
        self._accumulate(grad)

    def _accumulate(self, grad: Array) -> None:
        if self.grad is None:
            total = np.array(grad)
            meter = settings().meter
            if meter is not None:
                meter.hold("weight gradient", total, self.format.bits)
        else:
            total = rounded(np.asarray(self.grad.data + grad), self.format, False, "weight gradient", "accumulate")
        self.grad = wrap(total, self.format)

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
        NotImplementedError
            An operation has no rule for the gradient of an input that requires one.
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
            if self._node is None:
                self.receive(seed)
            else:
                backward(self._node, seed, retain_graph)


def _keep(tensor: weakref.ref[Tensor], grad: Array) -> None:
    """Accumulate the gradient of a tensor that is not a leaf, where it is still there."""
    kept = tensor()
    if kept is not None:
        kept._accumulate(grad)


def _hooked(hook: Callable[[Tensor], Tensor | None], fmt: FloatFormat, grad: Array) -> Array:
    """Return what a user's hook makes of a gradient, in the format of the tensor."""
    replaced = hook(wrap(grad, fmt))
    if replaced is None:
        return grad
    if not isinstance(replaced, Tensor):
        raise TypeError(f"the hook returned {type(replaced).__name__}; a Tensor or None is needed")
    if replaced.shape != grad.shape:
        raise ValueError(f"the hook returned a gradient of shape {replaced.shape}; {grad.shape} is needed")
    return held(replaced.data, fmt)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product, with the shape rules of `numpy.matmul`."""
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


def as_tensor(x: ArrayLike | Tensor) -> Tensor:
    """Return a tensor as it is, anything else as a new one."""
    return x if isinstance(x, Tensor) else Tensor(x)


def promote(inputs: Sequence[Tensor]) -> FloatFormat:
    """Return the format in which tensors of several formats meet, by torch's rules.

    Each two meet as `promotion.meet` says. Tensors of no dimension count only among themselves.
    """
    first = inputs[0].format
    if all(t.format is first for t in inputs):
        return first
    formats = [t.format for t in inputs if t.ndim] or [t.format for t in inputs]
    return functools.reduce(meet, formats)


def apply(name: str, *inputs: Tensor | None, **options: Any) -> Tensor:
    """Run an operation of the table, in the format that the policy in force or promotion says.

    An input that has a default may be None.
    """
    operation = TABLE[name]
    given = tuple(t for t in inputs if t is not None)
    now = settings()
    site = None if now.quantization is None else now.quantization.site(name, given)
    if now.policy is not None:
        given = now.policy.cast_inputs(name, given)
    if operation.formats == "first":
        fmt = given[0].format
    else:
        fmt = promote(given)
        if operation.formats == "equal" and any(t.format != fmt for t in given):
            formats = ", ".join(t.format.name for t in given)
            raise ValueError(f"{name}: the inputs are in {formats}; a product needs one format: convert with .to(...)")
        given = tuple(t.to(fmt) for t in given)
    if len(given) < len(inputs):
        rest = iter(given)
        inputs = tuple(None if t is None else next(rest) for t in inputs)
    else:
        inputs = given
    return _record(operation, inputs, fmt, options, site)


def _record(
    operation: Operation,
    inputs: tuple[Tensor | None, ...],
    fmt: FloatFormat,
    options: dict[str, Any],
    site: Site | None = None,
) -> Tensor:
    """Run an operation; round its result to ``fmt`` and note what backward needs."""
    now = settings()
    arrays = tuple(None if t is None else t.data for t in inputs)
    wanted = tuple(now.grad_enabled and t is not None and t.requires_grad for t in inputs)
    first = inputs[0]
    assert first is not None
    call = Call(first.format, now.unit, wanted, now.inner, site=site)
    with np.errstate(all="ignore"):
        raw = operation.run(call, arrays, options)
    holds_weight = operation.name == "cast" and _is_weight(first)
    kind = "weight" if holds_weight else "activation"
    if now.meter is not None:
        _meter_leaves(inputs)
    origin = None
    if now.observer is not None:
        origin = Origin(operation, now.layer, first.format, arrays, target=first if holds_weight else None)
    data = rounded(raw, fmt, operation.exact, kind, operation.name, origin)
    result = wrap(data, fmt)
    if any(wanted):
        result._requires_grad = True
        result._node = Node(
            operation,
            call,
            tuple(_target(t) if want and t is not None else None for t, want in zip(inputs, wanted, strict=True)),
            tuple(a if a is None or operation.is_read(i) else stand_in(a) for i, a in enumerate(arrays)),
            options,
            data if operation.reads is None or "output" in operation.reads else stand_in(data),
            fmt,
            holds_weight,
            now.layer,
        )
        if now.meter is not None:
            for array in call.saved.values():
                now.meter.hold("activation", array, array.itemsize * 8)
    return result


def _meter_leaves(inputs: tuple[Tensor | None, ...]) -> None:
    """Tell the meter of the leaves among the inputs of an operation."""
    meter = settings().meter
    for t in inputs:
        if meter is not None and t is not None and t._node is None:
            meter.hold("weight" if t.requires_grad else "activation", t.data, t.format.bits)


def _target(tensor: Tensor) -> Node | Tensor:
    """Return where the gradient of a tensor goes."""
    return tensor if tensor._node is None else tensor._node


def _is_weight(tensor: Tensor) -> bool:
    return tensor.requires_grad if tensor._node is None else tensor._node.holds_weight


def wrap(data: Array, fmt: FloatFormat) -> Tensor:
    """Return a tensor around values that are in the format already."""
    tensor = Tensor.__new__(Tensor)
    tensor.data, tensor.format = data, fmt
    tensor._requires_grad, tensor.grad, tensor._node, tensor._hooks = False, None, None, {}
    return tensor
