"""Dot products as questions, and who answers them: a black box, or an emulated unit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim.encoding import encode
from mpsim.formats import FP64, FloatFormat, get_format
from mpsim.matmul._families import fused_numbers, unit_product
from mpsim.matmul._operands import Operands, Values, values
from mpsim.matmul._steps import Dot, steps_of
from mpsim.matmul.schedules import Schedule, walk
from mpsim.units import Family, MatrixUnit
from mpsim_kernels.fused_dot import general_gemm

__all__ = [
    "Answers",
    "Arrays",
    "Box",
    "Design",
    "Setting",
    "by_hand",
    "emulated",
    "emulated_matrices",
    "plain",
    "same_answers",
]

Answers = NDArray[Any]
"""Results as float32, or float64 where the result is fp64."""
MatmulFunction = Callable[..., Any]


class Setting(NamedTuple):
    """What comes in and goes out of a box, and the shape of the products that it is asked for."""

    a: FloatFormat
    b: FloatFormat
    out: FloatFormat
    shape: tuple[int, int, int] = (64, 64, 64)
    scale: FloatFormat | None = None
    scale_block: int = 0
    schedule: Schedule = Schedule()
    """How K is cut, as far as it is known."""

    @property
    def k(self) -> int:
        """Products of each dot product."""
        return self.shape[2]

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """Type of the arrays that hold values."""
        return np.float64 if FP64 in (self.a, self.b, self.out) else np.float32


class Design(NamedTuple):
    """One dot product that is made to show something: the nonzero products, and the accumulator."""

    products: tuple[tuple[int, float, float], ...]
    """(k, a[k], b[k]); all others are 0 * 0."""
    c: float = 0.0
    scales: tuple[tuple[int, float], ...] = ()
    """(block, scale of a) where it is not 1, of block-scaled units."""

    def __str__(self) -> str:
        terms = [f"a[{k}] = {_short(x)}, b[{k}] = {_short(y)}" for k, x, y in self.products[:4]]
        if len(self.products) > 4:
            terms.append(f"{len(self.products) - 4} more products")
        terms += [f"scale_a[{block}] = {_short(x)}" for block, x in self.scales]
        return "; ".join([*terms, *([f"c = {_short(self.c)}"] if self.c or np.signbit(self.c) or not terms else [])])


def _short(x: float) -> str:
    """Return a number as a power of two with a factor where it is no short decimal."""
    if x == 0 or not np.isfinite(x) or len(f"{abs(x):.8g}") <= 6:
        return f"{x:.8g}"
    fraction, e = np.frexp(x)
    factor = float(2 * fraction)
    return f"{'-' if x < 0 else ''}2^{e - 1}" if abs(factor) == 1 else f"{factor:.10g} * 2^{e - 1}"


class Arrays(NamedTuple):
    """Operands of a product of matrices."""

    a: NDArray[Any]
    b: NDArray[Any]
    c: NDArray[Any]
    scale_a: NDArray[Any] | None
    scale_b: NDArray[Any] | None


def _written(designs: Sequence[Design], places: Sequence[int], setting: Setting) -> Arrays:
    """Return designs as the rows of ``a``, the columns of ``b`` and the diagonal of ``c``."""
    m, n, k = setting.shape
    a, b = np.zeros((m, k), setting.dtype), np.zeros((k, n), setting.dtype)
    c = np.zeros((m, n), setting.dtype)
    scale_a = scale_b = None
    if setting.scale is not None:
        blocks = -(-k // setting.scale_block)
        scale_a, scale_b = np.ones((m, blocks), np.float32), np.ones((blocks, n), np.float32)
    for i, design in zip(places, designs, strict=False):
        for at, x, y in design.products:
            a[i, at], b[at, i] = x, y
        c[i, i] = design.c
        for block, scale in design.scales:
            assert scale_a is not None
            scale_a[i, block] = scale
    return Arrays(a, b, c, scale_a, scale_b)


def plain(a: NDArray[Any], b: NDArray[Any], setting: Setting) -> Arrays:
    """Return matrices with zero accumulators, and scales of one."""
    empty = _written((), (), setting)
    return empty._replace(a=a, b=b)


def _spread(x: Arrays, ks: Sequence[int], k: int) -> Arrays:
    """Return operands whose columns, and rows, stand at some k, with zeros elsewhere."""
    a, b = np.zeros((x.a.shape[0], k), x.a.dtype), np.zeros((k, x.b.shape[1]), x.b.dtype)
    a[:, ks], b[list(ks)] = x.a, x.b
    return x._replace(a=a, b=b)


def _on_diagonals(
    designs: Sequence[Design],
    setting: Setting,
    product: Callable[[Arrays], NDArray[Any]],
    places: Sequence[int] | None = None,
) -> NDArray[Any]:
    """Return the answers of a product of matrices to designs, each at a place of its diagonal, many at once."""
    places = range(min(setting.shape[:2])) if places is None else places
    chunks = (designs[start : start + len(places)] for start in range(0, len(designs), len(places)))
    parts = [product(_written(chunk, places, setting)).diagonal()[list(places[: len(chunk)])] for chunk in chunks]
    return np.concatenate([np.empty(0, setting.dtype), *parts]).astype(setting.dtype, copy=False)


@dataclass(frozen=True)
class Box:
    """A function that multiplies matrices in a way to be found out."""

    function: MatmulFunction
    setting: Setting
    places: tuple[int, ...] | None = None
    """Places of the diagonal to ask at; all unless given."""
    within: tuple[int, ...] | None = None
    """The only k that are asked about, as if there were no others; all unless given."""
    whole_k: int = 0
    """K of the function's products, where only some k are asked about."""
    without_c: bool = False
    """Whether accumulators are zero even where the function takes them."""

    @property
    def takes_c(self) -> bool:
        """Whether there are accumulators to ask about: the function has an argument named ``c``."""
        return not self.without_c and self._has_c

    @property
    def _has_c(self) -> bool:
        try:
            return "c" in inspect.signature(self.function).parameters
        except (TypeError, ValueError):  # no signature to be had
            return False

    def ask(self, designs: Sequence[Design]) -> Answers:
        """Return the results of dot products.

        Raises
        ------
        ValueError
            The function returned another shape.
        """
        return _on_diagonals(designs, self.setting, self._product, self.places)

    def ask_rows(self, count: int, rows: Callable[[slice], tuple[NDArray[Any], NDArray[Any]]]) -> Answers:
        """Return the results of dot products without accumulator, given as rows [n, K] for any slice of them."""
        (m, n, k), dtype = self.setting.shape, self.setting.dtype
        places = np.arange(min(m, n)) if self.places is None else np.asarray(self.places)
        parts = [np.empty(0, dtype)]
        for start in range(0, count, len(places)):
            a, b = np.zeros((m, k), dtype), np.zeros((k, n), dtype)
            left, right = rows(slice(start, min(start + len(places), count)))
            chosen = places[: len(left)]
            a[chosen], b[:, chosen] = left, right.T
            parts.append(self._product(plain(a, b, self.setting)).diagonal()[chosen])
        return np.concatenate(parts)

    def ask_matrices(self, x: Arrays) -> NDArray[Any]:
        """Return the product of whole matrices."""
        return self._product(x)

    def inside(self, ks: Sequence[int], schedule: Schedule, without_c: bool = False) -> Box:
        """Return the box of some k alone, whose sum a schedule joins with others that are zero."""
        m, n, _ = self.setting.shape
        setting = self.setting._replace(shape=(m, n, len(ks)), schedule=schedule)
        own = tuple(int(k) for k in ks)
        return replace(self, setting=setting, within=own, whole_k=self.setting.k, without_c=without_c)

    def placed(self, design: Design) -> Design:
        """Return a design as the function sees it."""
        if self.within is None:
            return design
        within = self.within
        return design._replace(products=tuple((within[k], x, y) for k, x, y in design.products))

    def alike(self, designs: Sequence[Design]) -> Box:
        """Return the box for the most places of the diagonal that give the same answers to each of some designs.

        Libraries treat the edges of a matrix by other code, which may sum in another order.
        """
        places = range(min(self.setting.shape[:2]))
        answers = np.stack([self.ask([design] * len(places)) for design in designs], axis=1)
        bits = answers.view(np.uint64 if answers.dtype == np.float64 else np.uint32)
        _, kind, count = np.unique(bits, axis=0, return_inverse=True, return_counts=True)
        chosen = np.flatnonzero(kind.reshape(-1) == np.argmax(count))
        return replace(self, places=tuple(chosen.tolist()))

    def _product(self, x: Arrays) -> NDArray[Any]:
        scales = {} if x.scale_a is None else {"scale_a": x.scale_a, "scale_b": x.scale_b}
        if self.within is not None:
            x = _spread(x, self.within, self.whole_k)
        start = {"c": x.c} if self._has_c else {}
        with np.errstate(all="ignore"):
            d = np.asarray(self.function(x.a, x.b, **start, **scales))
            if d.shape != self.setting.shape[:2]:
                raise ValueError(
                    f"probe: the function returned shape {d.shape} for {x.a.shape} times {x.b.shape}; "
                    f"{self.setting.shape[:2]} is needed"
                )
            return d.astype(self.setting.dtype)


def emulated(unit: MatrixUnit, designs: Sequence[Design], setting: Setting) -> Answers:
    """Return what a unit answers; a result of another format than ``setting.out`` is rounded to it once, at the end."""

    def product(x: Arrays) -> NDArray[Any]:
        return _followed(x, unit, setting, _fused_diagonal)

    return _on_diagonals(designs, setting, product)


def emulated_matrices(unit: MatrixUnit, x: Arrays, setting: Setting) -> NDArray[Any]:
    """Return what a unit makes of whole matrices, without a kernel of its own where its family has a general one."""
    return _followed(x, unit, setting, _fused_anywhere)


def _followed(
    x: Arrays, unit: MatrixUnit, setting: Setting, fused: Callable[[Operands, MatrixUnit], Values]
) -> NDArray[Any]:
    """Return the product of matrices by a setting's schedule, in the format of its results."""
    out = get_format(unit.out)
    scales = [None if s is None else encode(s, unit.scale) for s in (x.scale_a, x.scale_b)]
    operands = Operands(values(x.a, unit.inputs[0]), values(x.b, unit.inputs[1]), values(x.c, out), *scales)
    chain = fused if unit.family is Family.FUSED else unit_product
    d = walk(operands, unit, chain, setting.schedule, setting.out)
    return d if out == setting.out and setting.schedule.is_one_chain else values(d, setting.out)


def by_hand(unit: MatrixUnit, design: Design, setting: Setting) -> Answers:
    """Return what a unit without scales answers to one design, in exact fractions and without a kernel; shape (1,)."""
    a, b = [0.0] * setting.k, [0.0] * setting.k
    for k, x, y in design.products:
        a[k], b[k] = x, y
    result = steps_of(Dot(a, b, design.c), unit)[-1].result
    d = np.array([result], setting.dtype)
    if not setting.schedule.is_one_chain:
        d += 0  # -0 and another zero sum
    return d if unit.out == setting.out.name else values(d, setting.out)


def _fused_anywhere(x: Operands, unit: MatrixUnit) -> Values:
    """Return the product of matrices by the kernel that no unit's numbers compile anew."""
    return _by_general_kernel(x, unit, None)


def _fused_diagonal(x: Operands, unit: MatrixUnit) -> Values:
    """Return the same on the diagonal alone."""
    return _by_general_kernel(x, unit, np.eye(x.a.shape[0], x.b.shape[1], dtype=np.int8))


def _by_general_kernel(x: Operands, unit: MatrixUnit, where: NDArray[np.int8] | None) -> Values:
    a, b = (np.ascontiguousarray(part, np.float32).view(np.int32) for part in (x.a, x.b))
    c = None if x.c is None else np.ascontiguousarray(x.c, np.float32).view(np.int32)
    return general_gemm(a, b, c, *fused_numbers(unit), where).view(np.float32)


def same_answers(x: Answers, y: Answers) -> NDArray[np.bool_]:
    """Return where answers agree bit for bit; every NaN is like any other."""
    words = np.uint64 if x.dtype == np.float64 else np.uint32
    same: NDArray[np.bool_] = (x.view(words) == y.view(words)) | (np.isnan(x) & np.isnan(y))
    return same
