"""The arithmetic inside an operation: FP32 until the result is rounded, or every step rounded; and how sums are held.

A rule of the table is written in NumPy. Handed arrays of the class `Stepwise`, the same rule computes in another inner
arithmetic: NumPy passes each of its steps to `Stepwise.__array_ufunc__`, and the one place for all operations is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple
from numpy.typing import NDArray

from mpsim.formats import FP64, FloatFormat, FormatLike, get_format
from mpsim.rounding import round_to

__all__ = ["FP32_INSIDE", "Inner", "Stepwise", "plain"]

Array: TypeAlias = "NDArray[Any]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """The inner arithmetic of operations; see `mpsim.inner_arithmetic`."""

    rounded: bool = False
    """Whether every step is rounded to the format of the operation."""
    accumulator: FloatFormat | None = None
    """Format of the partial sums of reductions. None: that of the steps."""
    order: str = "sequential"
    chunk: int | None = None
    """Order of the terms, as for `arithmetic.sum`."""

    @classmethod
    def of(cls, intermediate: str, accumulator: FormatLike | None, order: str, chunk: int | None) -> Inner:
        """Return what the arguments of `inner_arithmetic` mean."""
        if intermediate not in ("fp32", "rounded"):
            raise ValueError(f'intermediate is {intermediate!r}; it must be "fp32" or "rounded"')
        if intermediate == "fp32" and accumulator is None and (order != "sequential" or chunk is not None):
            raise ValueError(f"order is {order!r}; sums in an order of your own need an accumulator, such as 'fp32'")
        fmt = None if accumulator is None else get_format(accumulator)
        from mpsim import arithmetic  # here, for `import mpsim.tensor` to stay fast

        arithmetic.sum([0.0], fmt or "fp32", order=order, chunk=chunk)  # names what cannot work
        return cls(rounded=intermediate == "rounded", accumulator=fmt, order=order, chunk=chunk)

    def wrapped(self, array: Array, fmt: FloatFormat) -> Array:
        """Return an array that makes the steps of a rule go by this arithmetic, in an operation of format ``fmt``.

        It is rounded where every step is: a Python number among the operands is not a value of the format.
        """
        step = fmt if self.rounded else None
        if fmt is FP64 or (step is None and self.accumulator is None):
            return array
        view = (array if step is None else round_to(array, step)).view(Stepwise)
        view.inner, view.step = self, step
        return view


FP32_INSIDE = Inner()
"""Steps in FP32, in FP64 for fp64; sums in NumPy's order."""


def plain(x: Any) -> Any:
    """Return a stepwise array as an ordinary one, and anything else as it is."""
    return x.view(np.ndarray) if isinstance(x, Stepwise) else x


class Stepwise(np.ndarray[Any, Any]):
    """An array whose every ufunc rounds its result, and whose sums have an accumulator of their own.

    The ufunc is evaluated in float64 and rounded once to ``step``: correctly for + - * / and square roots of formats
    with at most 25 bits (Figueroa 1995), for other functions but in about one case in 2**26. Operands from outside,
    such as constants, are rounded to ``step`` first.
    """

    inner: Inner
    step: FloatFormat | None
    """Format of each step; None leaves the steps in the array's dtype."""

    def __array_finalize__(self, parent: Any) -> None:
        if isinstance(parent, Stepwise):
            self.inner, self.step = parent.inner, parent.step

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self._like(super().__array_function__(func, types, args, kwargs))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        first = next(x for x in (*inputs, *(out or ())) if isinstance(x, Stepwise))
        if method == "at":
            return first._add_at(*inputs) if ufunc is np.add else NotImplemented
        if method == "reduce":
            result = first._reduced(ufunc, plain(inputs[0]), options)
        elif method == "__call__":
            result = first._stepped(ufunc, inputs, options)
        else:
            return NotImplemented
        if out is None:
            return first._like(result)
        np.copyto(plain(out[0]), result)
        return out[0]

    def _like(self, result: Any) -> Any:
        """Return floating-point results as arrays of this arithmetic."""
        if isinstance(result, Stepwise) or not isinstance(result, np.ndarray | np.floating) or result.dtype.kind != "f":
            return result
        view = np.asarray(result).view(Stepwise)
        view.inner, view.step = self.inner, self.step
        return view

    def whole(self, function: Callable[..., Array], *inputs: Array) -> Array:
        """Return a function that is one step, computed in float64."""
        result = np.asarray(function(*(plain(x).astype(np.float64) for x in inputs)))
        return self._like(self._held(result))  # type: ignore[no-any-return]

    def _held(self, result: Any) -> Array:
        """Return the result of a step, computed in float64, as it is held until the next."""
        return np.asarray(result if self.step is None else round_to(result, self.step), self.dtype)

    def _stepped(self, ufunc: np.ufunc, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if self.step is None:
            return ufunc(*map(plain, inputs), **options)
        exact = ufunc(*map(self._operand, inputs), **options)
        return self._held(exact) if exact.dtype.kind == "f" else exact

    def _operand(self, x: Any) -> Any:
        """Return an operand in float64, where it is a number of a format."""
        array = np.asarray(plain(x))
        if array.dtype.kind == "b" or self.step is None:
            return array
        return (array if isinstance(x, Stepwise) else round_to(array, self.step)).astype(np.float64)

    def _reduced(self, ufunc: np.ufunc, x: Array, options: dict[str, Any]) -> Any:
        if ufunc is not np.add:
            return ufunc.reduce(x, **options)
        axis = options.get("axis", 0)
        axes = tuple(range(x.ndim)) if axis is None or not x.ndim else normalize_axis_tuple(axis, x.ndim)
        if not axes:
            return x
        kept = tuple(axis for axis in range(x.ndim) if axis not in axes)
        shape = tuple(x.shape[axis] for axis in kept)
        terms = x.transpose(*kept, *axes).reshape(*shape, int(np.prod([x.shape[axis] for axis in axes])))
        total = np.asarray(self._total(terms))
        return np.expand_dims(total, axes) if options.get("keepdims") else total

    def _total(self, terms: Array) -> Array:
        """Return the sums along the last axis."""
        from mpsim import arithmetic

        inner = self.inner
        accumulator = inner.accumulator or self.step
        assert accumulator is not None
        total = arithmetic.sum(
            terms,
            accumulator,
            order=inner.order,
            chunk=inner.chunk,
            rounding="nearest-even",
            overflow="ieee",
            flush_subnormals=False,
            subnormal_inputs_as_zero=False,
        )
        return self._held(total)

    def _add_at(self, target: Array, index: Any, values: Any) -> None:
        """Add values at positions that may repeat, one after another."""
        if self.step is None:
            np.add.at(plain(target), index, plain(values))
            return
        positions = np.arange(target.size).reshape(target.shape)[index]
        terms = np.broadcast_to(plain(values), positions.shape).reshape(-1)
        flat, total = positions.reshape(-1), plain(target).reshape(-1)
        order = np.argsort(flat, kind="stable")
        starts = np.concatenate(([True], np.diff(flat[order]) > 0))[: order.size]
        # The number of a term among those of its position: all first terms are added, then all second ones.
        turn = np.arange(order.size) - np.maximum.accumulate(np.where(starts, np.arange(order.size), 0))
        for i in range(int(turn.max(initial=-1)) + 1):
            now = order[turn == i]
            total[flat[now]] = self._held(total[flat[now]].astype(np.float64) + terms[now])
        plain(target)[...] = total.reshape(target.shape)
