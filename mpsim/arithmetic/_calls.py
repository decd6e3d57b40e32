"""What every function of the package does around its loop: options, operands, broadcasting, flags, results."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim._arrays import output_array
from mpsim.arithmetic.environment import Environment, NanRule, Settings, Tininess, current
from mpsim.arithmetic.flags import EXCEPTIONS
from mpsim.encoding import decode, encode
from mpsim.formats import FloatFormat, FormatLike, get_format
from mpsim.modes import Overflow, Rounding
from mpsim_kernels._threads import in_ranges

__all__ = ["Call", "Options", "arithmetic_format", "as_words", "begin", "named"]

_RANGE = 1 << 13  # elements worth a thread
_NOBODY_COUNTS = np.empty(0, np.int64)
_NOBODY_ASKS = np.empty(0, np.uint8)


class Options(TypedDict, total=False):
    """Keywords that every function takes; what is left out comes from `env`, else is as said here."""

    rounding: Rounding | str | None
    """``"nearest-even"``, or any other deterministic mode."""
    overflow: Overflow | str | None
    """``"ieee"``, or ``"saturate"``."""
    tininess: Tininess | str | None
    """``"after"`` rounding, or ``"before"``."""
    flush_subnormals: bool | None
    """False; True turns results that are tiny (by ``tininess``) into zero and raises underflow and inexact."""
    subnormal_inputs_as_zero: bool | None
    """False; True reads subnormal operands as zero, without raising anything."""
    nan: NanRule | str | None
    """``"default"``, ``"x86"`` or ``"softfloat"``."""
    codes: bool
    """False: values in and out. True: codes in and out."""
    return_flags: bool
    """False; True returns a pair: results, and a uint8 mask of `Flags` for each."""
    out: NDArray[Any] | None
    """Array of the result's shape and dtype, C-contiguous, that is written and returned."""


_SETTINGS = tuple(Settings.__dataclass_fields__)
_OPTIONS = (*_SETTINGS, "codes", "return_flags", "out")


class Call(NamedTuple):
    """One call of a function of the package."""

    name: str
    environment: Environment
    settings: Settings
    codes: bool
    return_flags: bool
    out: NDArray[Any] | None

    def run(
        self,
        loop: Callable[..., None],
        operands: Sequence[NDArray[Any]],
        result: FloatFormat | np.dtype[Any],
        widen: bool = True,
    ) -> Any:
        """Return what ``loop(*operands, out, mask, counts)`` writes, element by element.

        Parameters
        ----------
        loop
            Works on ranges of flat arrays.
        operands
            Codes or integers; broadcast against one another.
        result
            The format of the results; or a dtype, where they are not numbers of a format.
        widen
            Hand codes of 8 bits to the loop as 16 bits, which saves compiling it once more.
        """
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        size = math.prod(shape)
        flat = [_flat(x, shape, widen) for x in operands]
        dtype = result.code_dtype if isinstance(result, FloatFormat) else result
        words = self._buffer(shape, _loop_dtype(dtype, widen), dtype, result, operands)
        mask, counts = self.wanted(size)
        tallies: list[NDArray[np.int64]] = []

        def task(start: int, stop: int) -> None:
            tally = np.zeros(counts.size, np.int64)
            tallies.append(tally)
            parts = [x if x.size == 1 else x[start:stop] for x in flat]
            loop(*parts, words[start:stop], mask[start:stop], tally)

        in_ranges(task, size, _RANGE)
        for tally in tallies:
            counts += tally
        same_width = words.itemsize == dtype.itemsize
        words = words.view(dtype) if same_width else words.astype(dtype)
        return self.finish(words.reshape(shape), mask, counts, result)

    def _buffer(
        self,
        shape: tuple[int, ...],
        loop_dtype: np.dtype[Any],
        dtype: np.dtype[Any],
        result: FloatFormat | np.dtype[Any],
        operands: Sequence[NDArray[Any]],
    ) -> NDArray[Any]:
        """Return the flat array that a loop writes: ``out`` itself where that is possible."""
        as_it_is = self.codes or not isinstance(result, FloatFormat)
        if self.out is not None and as_it_is and loop_dtype.itemsize == dtype.itemsize:
            out = output_array(self.out, shape, dtype)
            if not any(np.may_share_memory(out, x) for x in operands):
                return out.reshape(-1).view(loop_dtype)
        return np.empty(math.prod(shape), loop_dtype)

    def wanted(self, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return arrays for flags and their counts: empty ones where nobody asks."""
        asked = self.return_flags or self.environment.raising
        mask = np.empty(size, np.uint8) if asked else _NOBODY_ASKS
        counts = np.zeros(5, np.int64) if self.environment.counters else _NOBODY_COUNTS
        return mask, counts

    def finish(
        self,
        words: NDArray[Any],
        mask: NDArray[np.uint8],
        counts: NDArray[np.int64],
        result: FloatFormat | np.dtype[Any],
    ) -> Any:
        """Return results in the form that the caller wants, after counting and raising exceptions."""
        if counts.size:
            for counter in self.environment.counters:
                counter.add(counts.tolist())
        answer = words
        if isinstance(result, FloatFormat) and not self.codes:
            answer = decode(words, result, out=self.out)
        elif self.out is not None:
            answer = output_array(self.out, words.shape, words.dtype)
            if not np.may_share_memory(answer, words):
                answer[...] = words
        if self.environment.raising and mask.any():
            self._raise(mask, words.shape)
        return (answer, mask.reshape(words.shape)) if self.return_flags else answer

    def _raise(self, mask: NDArray[np.uint8], shape: tuple[int, ...]) -> None:
        """Raise a FloatingPointError for the gravest exception that `env` asks for, if it is in the mask."""
        for bit, name in reversed(list(enumerate(EXCEPTIONS))):
            if name not in self.environment.raising:
                continue
            hit = np.flatnonzero(mask & np.uint8(1 << bit))
            if hit.size:
                place = tuple(int(i) for i in np.unravel_index(hit[0], shape))
                where = f", first at index {place[0] if len(place) == 1 else place}" if place else ""
                raise FloatingPointError(f"{self.name}: {name} in {hit.size} of {mask.size} results{where}")


def begin(name: str, options: Options) -> Call:
    """Return the call of the function ``name`` with these options."""
    environment = current()
    if not options:
        return Call(name, environment, environment.settings, False, False, None)
    if unknown := [option for option in options if option not in _OPTIONS]:
        raise TypeError(f"{name} has no option {unknown[0]!r}; there are {', '.join(_OPTIONS)}")
    settings = environment.settings.updated(**{key: options[key] for key in _SETTINGS if key in options})  # type: ignore[literal-required]
    codes, flags = bool(options.get("codes", False)), bool(options.get("return_flags", False))
    return Call(name, environment, settings, codes, flags, options.get("out"))


@functools.lru_cache(maxsize=256)
def _checked(fmt: FloatFormat | str) -> FloatFormat:
    f = get_format(fmt)
    if f.bits > 32 or f.p > 30:
        raise ValueError(
            f"{f} has {f.bits} bits, p = {f.p}; arithmetic is for formats of at most 32 bits with p at most 30"
        )
    return f


def arithmetic_format(fmt: FormatLike) -> FloatFormat:
    """Return the format that ``fmt`` means, if the kernels can calculate in it."""
    return _checked(fmt if isinstance(fmt, FloatFormat | str) else get_format(fmt))


def as_words(x: ArrayLike, fmt: FloatFormat, codes: bool, argument: str) -> NDArray[Any]:
    """Return an operand as codes, in their smallest dtype; values are rounded to nearest, ties to even."""
    if not codes:
        return encode(x, fmt)
    array = np.asarray(x)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{argument} has dtype {array.dtype}; codes are unsigned integers (codes=False takes values of {fmt})"
        )
    if array.dtype == fmt.code_dtype and fmt.bits == 8 * fmt.code_dtype.itemsize:
        return array
    if array.size and (int(array.min()) < 0 or int(array.max()) >> fmt.bits):
        raise ValueError(
            f"{argument} has codes from {array.min()} to {array.max()}; "
            f"those of {fmt} are 0 to {(1 << fmt.bits) - 1:#x}"
        )
    return array.astype(fmt.code_dtype)


def _loop_dtype(dtype: np.dtype[Any], widen: bool) -> np.dtype[Any]:
    """Return the dtype in which the loops take words of ``dtype``: 64 bits as int64, and 8 bits as 16."""
    if dtype.itemsize == 8:
        return np.dtype(np.int64)
    return np.dtype(np.uint16) if widen and dtype == np.uint8 else dtype


def _flat(x: NDArray[Any], shape: tuple[int, ...], widen: bool) -> NDArray[Any]:
    """Return one element, or as many as ``shape`` has, contiguous, in the dtype that the loops take."""
    if x.size != 1 and x.shape != shape:
        x = np.broadcast_to(x, shape)
    dtype = _loop_dtype(x.dtype, widen)
    flat: NDArray[Any] = np.ascontiguousarray(x).reshape(-1)
    return flat.view(dtype) if flat.itemsize == dtype.itemsize else flat.astype(dtype)


def named(loop: Callable[..., None], *numbers: Any) -> Callable[..., None]:
    """Return a loop with the arguments after ``counts`` filled in."""
    return lambda *arrays: loop(*arrays, *numbers)
