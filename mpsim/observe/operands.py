"""Which numbers one element of a result was made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.encoding import encode
from mpsim.formats import FloatFormat
from mpsim.ops import arithmetic, elementwise
from mpsim.settings import Origin

__all__ = ["SHOWN", "Operand", "operands_of"]

Array: TypeAlias = "NDArray[Any]"
Index: TypeAlias = "tuple[int, ...]"
Parts: TypeAlias = "dict[str, Array]"

SHOWN = 8
"""Numbers of an operand that are kept, those that matter most first."""

_ELEMENTWISE = {operation.name for operation in (*arithmetic.OPERATIONS, *elementwise.OPERATIONS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """The numbers of one operand that entered one element of a result."""

    name: str
    format: FloatFormat
    count: int
    """How many numbers entered."""
    places: tuple[int, ...]
    """Positions among those of the numbers that are kept: of a product the largest terms, else the largest numbers."""
    codes: tuple[int, ...]
    values: tuple[float, ...]
    """Exact: every format up to 64 bits fits a Python float."""

    @property
    def fractions(self) -> tuple[Fraction | float, ...]:
        """The values as fractions; infinities and NaNs as they are."""
        return tuple(Fraction(v) if np.isfinite(v) else v for v in self.values)


def operands_of(origin: Origin, index: Index, shape: tuple[int, ...], fmt: FloatFormat) -> tuple[Operand, ...]:
    """Return what entered the element at ``index`` of a result of a shape.

    For products those are a row and a column, for element-wise operations one number of each operand; of other
    operations the whole operands.
    """
    named = list(known(origin, fmt))
    parts = _product(origin, index)
    if parts is None and (origin.operation is None or origin.operation.name.partition(" ")[0] in _ELEMENTWISE):
        parts = _elements(named, index, shape)
    if parts is None:
        parts = {name: array.reshape(-1) for name, array, _ in named}
    most = max((part.size for part in parts.values()), default=0)
    terms = [part for part in parts.values() if part.size == most]
    with np.errstate(all="ignore"):
        weight = np.abs(np.prod(np.array(terms, np.float64), axis=0))
    return tuple(_operand(name, form, parts[name], weight) for name, _, form in named if name in parts)


def known(origin: Origin, fmt: FloatFormat) -> Iterator[tuple[str, Array, FloatFormat]]:
    """Yield name, values and format of each operand that the computation of a result in ``fmt`` reads."""
    operation = origin.operation
    if operation is None:
        names = ("sum so far", "next share")
        yield from ((n, a, fmt) for n, a in zip(names, origin.inputs, strict=True) if a is not None)
        return
    if origin.grad is not None:
        yield "gradient", origin.grad, origin.grad_format or fmt
    for i, array in enumerate(origin.inputs):
        # Arrays that the backward pass does not read are not kept; a stand-in has their place.
        if array is not None and (origin.grad is None or operation.is_read(i)):
            yield operation.argument(i), array, origin.format


def _operand(name: str, fmt: FloatFormat, numbers: Array, weight: Array) -> Operand:
    size = weight if weight.size == numbers.size else np.abs(numbers)
    places = np.argsort(-size, kind="stable")[:SHOWN]  # NaNs come last
    kept = numbers[places]
    return Operand(
        name=name,
        format=fmt,
        count=numbers.size,
        places=tuple(places.tolist()),
        codes=tuple(encode(kept, fmt).tolist()),
        values=tuple(kept.tolist()),
    )


def _elements(named: list[tuple[str, Array, FloatFormat]], index: Index, shape: tuple[int, ...]) -> Parts | None:
    """Return the element of each operand at an index of the result, or None where shapes do not allow it."""
    try:
        return {name: np.broadcast_to(array, shape)[index].reshape(1) for name, array, _ in named}
    except ValueError:
        return None


def _product(origin: Origin, index: Index) -> Parts | None:
    """Return the rows and columns that meet in one element of a product; None for what is no product of matrices."""
    match origin.operation.name if origin.operation is not None else "":
        case "linear":
            return _linear(origin, index)
        case "matmul":
            return _matmul(origin, index)
    return None


def _matmul(origin: Origin, index: Index) -> Parts | None:
    (a, b), g, lead = origin.inputs, origin.grad, index[:-2]
    assert a is not None
    assert b is not None
    if g is None:
        return {"input": _at(a, lead)[index[-2]], "other": _at(b, lead)[:, index[-1]]}
    if g.shape[:-2] != (a, b)[origin.position].shape[:-2]:
        return None  # summed over leading axes
    if origin.position == 0:
        return {"gradient": _at(g, lead)[index[-2]], "other": _at(b, lead)[index[-1]]}
    return {"gradient": _at(g, lead)[:, index[-1]], "input": _at(a, lead)[:, index[-2]]}


def _linear(origin: Origin, index: Index) -> Parts:
    inputs, g = origin.inputs, origin.grad
    x, weight = inputs[0], inputs[1]
    assert x is not None
    assert weight is not None
    if g is None:
        bias = {"bias": inputs[2][index[-1:]].reshape(1)} if len(inputs) > 2 and inputs[2] is not None else {}
        return {"input": x[index[:-1]], "weight": weight[index[-1]], **bias}
    if origin.position == 0:
        return {"gradient": g[index[:-1]], "weight": weight[:, index[-1]]}
    rows = g.reshape(-1, g.shape[-1])[:, index[0]]
    return (
        {"gradient": rows, "input": x.reshape(-1, x.shape[-1])[:, index[1]]}
        if origin.position == 1
        else {"gradient": rows}
    )


def _at(array: Array, lead: Index) -> Array:
    """Return the matrix of a stack at an index of its broadcast leading axes."""
    own = array.shape[:-2]
    return np.asarray(array[tuple(0 if n == 1 else i for n, i in zip(own, lead[len(lead) - len(own) :], strict=True))])
