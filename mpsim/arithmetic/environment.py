"""The floating-point environment: how results are rounded by default, and which exceptions were raised."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from mpsim.arithmetic.flags import EXCEPTIONS, ExceptionCounts
from mpsim.modes import Choice, Overflow, Rounding

__all__ = ["NanRule", "Settings", "Tininess", "current", "env"]


class Tininess(Choice):
    """When a result counts as tiny (IEEE 754-2019, 7.5): its value never depends on it, only the underflow flag."""

    AFTER = "after"
    """Rounded to precision p with unbounded exponent, it is below the smallest normal number (x86, RISC-V)."""
    BEFORE = "before"
    """The exact result is (Arm)."""


class NanRule(Choice):
    """Which NaN comes out of an operation."""

    DEFAULT = "default"
    """The format's quiet NaN without sign, whatever came in (RISC-V; Arm's default-NaN mode)."""
    X86 = "x86"
    """The first NaN operand, made quiet; an invalid operation makes the negative one. ``fma(inf, 0, NaN)`` is not
    invalid."""
    SOFTFLOAT = "softfloat"
    """As ``"x86"``, but ``fma(inf, 0, NaN)`` is invalid and makes a new NaN (Berkeley SoftFloat, 8086-SSE)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How results are rounded and written."""

    rounding: Rounding = Rounding.NEAREST_EVEN
    overflow: Overflow = Overflow.IEEE
    tininess: Tininess = Tininess.AFTER
    flush_subnormals: bool = False
    subnormal_inputs_as_zero: bool = False
    nan: NanRule = NanRule.DEFAULT

    def updated(
        self,
        rounding: Rounding | str | None = None,
        overflow: Overflow | str | None = None,
        tininess: Tininess | str | None = None,
        flush_subnormals: bool | None = None,
        subnormal_inputs_as_zero: bool | None = None,
        nan: NanRule | str | None = None,
    ) -> Settings:
        """Return these settings with what is not None put in its place."""
        return _updated(self, rounding, overflow, tininess, flush_subnormals, subnormal_inputs_as_zero, nan)


@functools.lru_cache(maxsize=1024)
def _updated(
    settings: Settings,
    rounding: Rounding | str | None,
    overflow: Overflow | str | None,
    tininess: Tininess | str | None,
    flush_subnormals: bool | None,
    subnormal_inputs_as_zero: bool | None,
    nan: NanRule | str | None,
) -> Settings:
    new: dict[str, Any] = {
        "rounding": None if rounding is None else Rounding.of(rounding, "rounding"),
        "overflow": None if overflow is None else Overflow.of(overflow, "overflow"),
        "tininess": None if tininess is None else Tininess.of(tininess, "tininess"),
        "flush_subnormals": flush_subnormals,
        "subnormal_inputs_as_zero": subnormal_inputs_as_zero,
        "nan": None if nan is None else NanRule.of(nan, "nan"),
    }
    if new["rounding"] is Rounding.STOCHASTIC:
        raise ValueError("rounding is 'stochastic'; arithmetic needs a direction that is the same each time")
    return dataclasses.replace(settings, **{name: value for name, value in new.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Environment:
    """What holds inside a ``with env(...)`` block."""

    settings: Settings = Settings()
    counters: tuple[ExceptionCounts, ...] = ()
    """The counts of this block and of those around it."""
    raising: frozenset[str] = frozenset()


_OUTSIDE = Environment()
_current: contextvars.ContextVar[Environment] = contextvars.ContextVar("environment", default=_OUTSIDE)


def current() -> Environment:
    """Return the environment of the calling thread or task."""
    return _current.get()


@contextlib.contextmanager
def env(
    *,
    rounding: Rounding | str | None = None,
    overflow: Overflow | str | None = None,
    tininess: Tininess | str | None = None,
    flush: bool | str | None = None,
    nan: NanRule | str | None = None,
    raising: Collection[str] | str | None = None,
) -> Iterator[ExceptionCounts]:
    """Set defaults for arithmetic inside a ``with`` block, and count the exceptions that it raises.

    What is not given stays as it is outside. Blocks nest: an exception counts in every block around it. Each thread and
    each asynchronous task has its own environment; a new thread begins without one.

    Parameters
    ----------
    rounding : Rounding or name, optional
    overflow : {"ieee", "saturate"}, optional
    tininess : {"after", "before"}, optional
    flush : bool or {"ftz", "daz"}, optional
        True flushes tiny results to zero and reads subnormal inputs as zero; ``"ftz"`` does the first alone,
        ``"daz"`` the second.
    nan : {"default", "x86", "softfloat"}, optional
    raising : names of exceptions, or "all", optional
        Operations that raise one of them end in a FloatingPointError; ``()`` turns that off again. Results
        and counts are complete by then.

    Yields
    ------
    ExceptionCounts
        Its attributes ``inexact``, ``underflow``, ``overflow``, ``divide_by_zero`` and ``invalid`` grow.

    Notes
    -----
    Attributes and status flags of IEEE 754-2019, clauses 4 and 7.1.

    Examples
    --------
    >>> from mpsim.arithmetic import add, div
    >>> with env(rounding="up") as flags:
    ...     print(add(1.0, 2**-20, "fp16"), div(1.0, [0.0, 0.0], "fp16"))
    1.0009766 [inf inf]
    >>> flags.inexact, flags.divide_by_zero
    (1, 2)
    """
    outside = _current.get()
    if flush not in (None, True, False, "ftz", "daz"):
        raise ValueError(f"flush is {flush!r}; it must be True, False, 'ftz' or 'daz'")
    results = None if flush is None else flush in (True, "ftz")
    inputs = None if flush is None else flush in (True, "daz")
    settings = outside.settings.updated(rounding, overflow, tininess, results, inputs, nan)
    counts = ExceptionCounts()
    wanted = outside.raising if raising is None else _exceptions(raising)
    token = _current.set(Environment(settings, (*outside.counters, counts), wanted))
    try:
        yield counts
    finally:
        _current.reset(token)


def _exceptions(names: Collection[str] | str) -> frozenset[str]:
    """Return the names of exceptions after checking them."""
    wanted = frozenset(EXCEPTIONS if names == "all" else [names] if isinstance(names, str) else names)
    if unknown := wanted - set(EXCEPTIONS):
        raise ValueError(f"raising has {sorted(unknown)[0]!r}; the exceptions are {', '.join(EXCEPTIONS)}, or 'all'")
    return wanted
