"""What happened to the tensors of a run, step by step: counts of every rounding, magnitudes, and the first failures."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim._counting import counts_of_values
from mpsim.counters import Counters
from mpsim.formats import FloatFormat, FormatLike, get_format
from mpsim.modes import unknown
from mpsim.observe.findings import CAUSES, Finding, find
from mpsim.observe.histograms import Histogram
from mpsim.observe.zeros import ZeroCauses, ZeroTrace
from mpsim.settings import Origin, using

if TYPE_CHECKING:
    from mpsim.observe.what_if import WhatIf

__all__ = ["KINDS", "Entry", "Record", "Scaler", "observe"]

Array: TypeAlias = "NDArray[Any]"

KINDS = ("activation", "activation gradient", "weight", "weight gradient", "update", "operand", "gradient operand")
"""Kinds of array that the engine, the optimizers and the recipes show. Operands are what a recipe casts for a product,
of the forward and of the backward pass, with its scales on: numbers as they are rounded."""


_KEPT = 4096
"""Arrays whose histograms are at hand for others with the same numbers."""


class Scaler(Protocol):
    """A loss scaler, as far as a record asks it."""

    def get_scale(self) -> float:
        """Return the scale in force."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """One tensor, or several of one name, in one step."""

    step: int
    kind: str
    layer: str
    """Path of the module that made the tensor; of a parameter, its owner."""
    producer: str
    """Operation that made the tensor; a gradient goes by the tensor that it belongs to. ``"leaf"`` for parameters; for
    operands the operation that they enter and their role, such as ``"linear input"``."""
    name: str
    """Dotted name of a parameter; empty for other tensors."""
    operation: str
    """What computed the array, such as ``"linear"``, ``"relu backward"``, ``"accumulate"``, ``"step"``; of operands
    ``"cast"``, ``"cast for the input gradient"``, ``"cast for the weight gradient"``."""
    format: FloatFormat
    counters: Counters = field(default_factory=Counters)
    histogram: Histogram = field(default_factory=Histogram)
    """Magnitudes before rounding."""

    @property
    def tensor(self) -> str:
        """Name of the parameter, or layer and operation that made the tensor."""
        return self.name or (f"{self.layer} {self.producer}" if self.layer else self.producer)


class Record:
    """What `observe` collected.

    Parameters
    ----------
    kinds : collection of str
        Kinds of array to look at, of `KINDS`. Operands, which only recipes cast, are apart from activations, weights
        and gradients: their magnitudes have the recipe's scales on.
    histograms : bool
        Collect the magnitudes before rounding too.
    scaler : loss scaler, optional
        Its scale is noted in each step.
    flushed : float
        `first_bad` finds a tensor of which a larger share of the nonzero numbers is rounded to zero.
    clipped : float
        `first_bad` finds an operand in blocks of which a larger share of the nonzero numbers is held at the largest
        one.
    causes : bool
        Follow every gradient beside its backward pass in FP64, so that `why_zero` can say why a zero is one. Every
        rule of the backward pass then runs three times, two of them in FP64.

    Attributes
    ----------
    step : int
        Number of the step that is going on, from 0. One ends when gradients are cleared, or with `next_step`.
    scales : dict of int to float
        Loss scale by step, where there is a scaler and something was differentiated.
    findings : dict of str to Finding
        What `first_bad` chooses from, by cause.
    """

    def __init__(
        self,
        kinds: Collection[str] = KINDS,
        histograms: bool = True,
        *,
        scaler: Scaler | None = None,
        flushed: float = 0.5,
        clipped: float = 0.5,
        causes: bool = False,
    ) -> None:
        for kind in kinds:
            if kind not in KINDS:
                raise unknown("one of kinds", kind, KINDS)
        for name, share in (("flushed", flushed), ("clipped", clipped)):
            if not 0 <= share <= 1:
                raise ValueError(f"{name} is {share}; a share from 0 to 1 is needed")
        self.kinds = frozenset(kinds)
        self.histograms = histograms
        self.flushed, self.clipped = flushed, clipped
        self.step = 0
        self.scales: dict[int, float] = {}
        self.findings: dict[str, Finding] = {}
        self._scaler = scaler
        self._seen = 0
        self._entries: list[Entry] = []
        self._current: dict[tuple[str, str, str, str, str, str], Entry] = {}
        self._spreads: dict[int, tuple[weakref.ref[Array], Histogram]] = {}
        self._names: dict[int, str] = {}
        self._roots: list[Any] = []  # an id is only unique while its object lives
        self._zeros = ZeroTrace() if causes else None
        self.traces = causes

    # What the engine calls.

    def layer(self, module: Any) -> str:
        """Return the path of a module below the first that was called; of that itself, and of others, the class."""
        if id(module) not in self._names:
            self._roots.append(module)
            own = type(module).__name__
            prefix = "" if len(self._roots) == 1 else f"{own}."
            for path, part in module.named_modules():
                self._names.setdefault(id(part), prefix + path if path else own)
            for path, parameter in module.named_parameters():
                self._names.setdefault(id(parameter), prefix + path)
        return self._names[id(module)]

    def cleared(self) -> None:
        """End a step, unless nothing has happened in it."""
        if self._current:
            self.next_step()

    def next_step(self) -> None:
        """Begin a new training step; done by ``zero_grad`` too."""
        self.step += 1
        self._current = {}
        self._spreads = {}
        if self._zeros is not None:
            self._zeros.forget()

    def rounded(
        self,
        kind: str,
        producer: str,
        fmt: FloatFormat,
        before: Array,
        after: Array,
        counters: Counters | None,
        origin: Origin | None = None,
    ) -> None:
        """Take note of one array; called by the engine."""
        if self._scaler is not None and kind.endswith("gradient") and self.step not in self.scales:
            self.scales[self.step] = float(self._scaler.get_scale())
        layer, name, operation = self.place(producer, origin)
        histogram = self._histogram(before, counters is None, origin) if self.histograms else Histogram()
        if counters is None:
            known = self.histograms and not histogram.not_finite  # where infinities and NaNs are one
            counters = histogram.counters(before.size, fmt) if known else counts_of_values(before, fmt)
        entry = self._note(kind, layer, producer, name, operation, fmt, counters, histogram)
        if origin is not None:
            self._look(entry, before, after, counters, origin)
            if self._zeros is not None:
                self._zeros.rounded(entry, before, after, counters, origin)

    def updated(self, parameter: Any, before: Array, after: Array, meant: int, lost: int) -> None:
        """Take note of one update of a parameter; called by optimizers."""
        name = self._names.get(id(parameter), "")
        place = (name.rpartition(".")[0], "leaf", name, "step", parameter.format)
        if "update" in self.kinds:
            with np.errstate(all="ignore"):
                moved = Histogram.of(after - before) if self.histograms else Histogram()
            self._note("update", *place, Counters(after.size, after.size - meant, lost), moved)
        if "weight" in self.kinds:
            spread = Histogram.of(after) if self.histograms else Histogram()
            self._note("weight", *place, Counters(after.size, spread.zeros), spread)

    def walked(self, node: Any, grad: Array) -> None:
        """Follow one step of a backward pass; called by the engine."""
        if self._zeros is not None:
            self._zeros.walked(node, grad)

    def arrived(self, leaf: Any, grad: Array) -> None:
        """Take note of the complete gradient of a leaf; called by the engine."""
        if self._zeros is not None:
            self._zeros.complete(leaf, grad)

    def place(self, producer: str, origin: Origin | None) -> tuple[str, str, str]:
        """Return layer and name of the tensor that an array belongs to, and what computed it."""
        if origin is None:
            return "", "", producer
        target, layer = origin.target, origin.layer
        name = self._names.get(id(target), "") if target is not None else ""
        if name:
            layer = name.rpartition(".")[0]
        elif target is not None:
            layer = getattr(target, "layer", layer)
        if origin.operation is None:
            return layer, name, "accumulate"
        return layer, name, origin.operation.name + (" backward" if origin.grad is not None else "")

    def _histogram(self, before: Array, is_rounded: bool, origin: Origin | None) -> Histogram:
        """Return the histogram of an array, that of an earlier one where it has the same numbers."""
        source = None
        if origin is not None and origin.operation is not None:
            source = origin.inputs[0] if origin.grad is None else origin.grad
            if before is not source and not origin.operation.rearranges:
                source = None
        seen, known = self._spreads.get(id(source), (None, None))
        histogram = known if known is not None and seen is not None and seen() is source else Histogram.of(before)
        if is_rounded:
            if len(self._spreads) == _KEPT:  # in a run that never ends a step
                self._spreads.clear()
            self._spreads[id(before)] = weakref.ref(before), histogram
        return dataclasses.replace(histogram)  # which entries add to

    def _note(
        self,
        kind: str,
        layer: str,
        producer: str,
        name: str,
        operation: str,
        fmt: FloatFormat,
        counters: Counters,
        histogram: Histogram,
    ) -> Entry:
        key = (kind, layer, producer, name, operation, fmt.name)
        entry = self._current.get(key)
        if entry is not None:
            entry.counters += counters
            entry.histogram.merge(histogram)
            return entry
        entry = Entry(
            step=self.step,
            kind=kind,
            layer=layer,
            producer=producer,
            name=name,
            operation=operation,
            format=fmt,
            counters=counters,
            histogram=histogram,
        )
        self._current[key] = entry
        self._entries.append(entry)
        return entry

    def _look(self, entry: Entry, before: Array, after: Array, counters: Counters, origin: Origin) -> None:
        """Keep the first array of each kind of failure."""
        self._seen += 1
        # An infinity or NaN before rounding is one after it, too.
        spoilt = counters.infinities + counters.nans
        if not (spoilt or counters.overflows or counters.underflows):
            return
        scale = self.scales.get(self.step)
        for cause in CAUSES:
            if cause not in self.findings:
                allowed = self.clipped if cause == "clipped" else self.flushed
                found = find(cause, entry, self._seen, before, after, counters, spoilt, origin, allowed, scale)
                if found is not None:
                    self.findings[cause] = found

    # What reading a file calls.

    def append(self, entry: Entry) -> None:
        """Add an entry at the end."""
        self._entries.append(entry)

    def restore(self, trace: ZeroTrace) -> None:
        """Take over the causes of zeros."""
        self._zeros = trace

    # Questions.

    @property
    def zero_causes(self) -> dict[tuple[int, str, str, str], ZeroCauses] | None:
        """Causes of zeros by step, kind, layer and tensor; None where the record does not follow them."""
        return None if self._zeros is None else self._zeros.found

    def entries(
        self,
        kind: str | None = None,
        producers: Collection[str] | None = None,
        fmt: FormatLike | None = None,
        *,
        layer: str | None = None,
        step: int | None = None,
    ) -> Iterator[Entry]:
        """Yield what was noted, in order, chosen as for `counters`."""
        if kind is not None and kind not in self.kinds:
            raise ValueError(
                f"kind is {kind!r}; this record looked at {', '.join(k for k in KINDS if k in self.kinds)}"
            )
        makers = {producers} if isinstance(producers, str) else producers
        wanted = None if fmt is None else get_format(fmt)
        for entry in self._entries:
            if (
                (kind is None or kind == entry.kind)
                and (makers is None or entry.producer in makers)
                and (wanted is None or wanted == entry.format)
                and layer in (None, entry.layer, entry.name or None)
                and (step is None or step == entry.step)
            ):
                yield entry

    def counters(
        self,
        kind: str | None = None,
        producers: Collection[str] | None = None,
        fmt: FormatLike | None = None,
        *,
        layer: str | None = None,
        step: int | None = None,
    ) -> Counters:
        """Return the counts of all roundings of a kind, of tensors that given operations made, to a format.

        Parameters
        ----------
        kind : str, optional
        producers : str or collection of str, optional
            Names of operations; a gradient goes by the operation that made its tensor.
        fmt : FloatFormat or name, optional
        layer : str, optional
            Path of a module, or name of a parameter; ``""`` for what no module ran.
        step : int, optional

        Raises
        ------
        ValueError
            ``kind`` is not one that was looked at, or there is no such format.
        """
        total = Counters()
        for entry in self.entries(kind, producers, fmt, layer=layer, step=step):
            total += entry.counters
        return total

    def histogram(
        self,
        kind: str | None = None,
        producers: Collection[str] | None = None,
        fmt: FormatLike | None = None,
        *,
        layer: str | None = None,
        step: int | None = None,
    ) -> Histogram:
        """Return the magnitudes before rounding, chosen as for `counters`."""
        total = Histogram()
        for entry in self.entries(kind, producers, fmt, layer=layer, step=step):
            total.merge(entry.histogram)
        return total

    @property
    def steps(self) -> int:
        """Number of steps in which something was seen."""
        return len({entry.step for entry in self._entries})

    def layers(self, kind: str | None = None) -> list[str]:
        """Return the layers of the tensors of a kind, in the order in which they first appear."""
        return list(dict.fromkeys(entry.layer for entry in self.entries(kind)))

    def first_bad(self, cause: str | None = None) -> Finding | None:
        """Return the first operation that made numbers unusable out of usable ones.

        Parameters
        ----------
        cause : {"overflow", "nan", "flushed", "clipped"}, optional
            Look for one cause alone: finite numbers that became infinite, or too large for a format without infinity;
            a NaN of operands without one; more than the share ``flushed`` of the nonzero numbers rounded to zero; or
            more than the share ``clipped`` held at the largest number in blocks whose scale followed from themselves.
            Some rules, such as ``"floor"``, clip the largest elements of blocks in any run: that is no overflow.

        Returns
        -------
        Finding or None
        """
        if cause is not None and cause not in CAUSES:
            raise unknown("cause", cause, CAUSES)
        found = [f for name, f in self.findings.items() if cause in (None, name)]
        return min(found, key=lambda finding: finding.number, default=None)

    def why_zero(self, tensor: str, kind: str = "weight gradient") -> ZeroCauses:
        """Return why elements of a tensor are zero.

        Parameters
        ----------
        tensor : str
            Name of a parameter, or path of a layer.
        kind : str

        Returns
        -------
        ZeroCauses

        Raises
        ------
        ValueError
            Nothing of that name and kind was seen, or ``kind`` is a gradient and the record did not follow causes.
        """
        from mpsim.observe.zeros import why_zero

        return why_zero(self, self._zeros, tensor, kind)

    def what_if(
        self,
        formats: FormatLike | Collection[FormatLike],
        scales: Collection[float] = (1.0,),
        kind: str | None = "activation gradient",
        **choice: Any,
    ) -> WhatIf:
        """Return what rounding the numbers of this record to other formats would lose, at other scales.

        Parameters
        ----------
        formats : FloatFormat, name, or collection of those
        scales : collection of powers of two
            Factors on the recorded numbers.
        kind, **choice
            As for `counters`.
        """
        from mpsim.observe.what_if import what_if

        return what_if(self.histogram(kind, **choice), formats, scales)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record to a ``.npz`` file, which appears under its name when it is complete; see `load`."""
        from mpsim.observe.files import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Record:
        """Return a record that `save` wrote.

        Raises
        ------
        ValueError
            The file is damaged, or is no record.
        OSError
            There is no such file, or it cannot be read.
        """
        from mpsim.observe.files import load

        return load(path)


@contextlib.contextmanager
def observe(
    kinds: Collection[str] = KINDS,
    histograms: bool = True,
    *,
    scaler: Scaler | None = None,
    flushed: float = 0.5,
    clipped: float = 0.5,
    causes: bool = False,
) -> Iterator[Record]:
    """Collect what happens to tensors inside a ``with`` block.

    Parameters
    ----------
    kinds, histograms, scaler, flushed, clipped, causes
        As for `Record`. Fewer kinds cost less.

    Examples
    --------
    >>> from mpsim.tensor import Tensor
    >>> with observe() as record:
    ...     x = Tensor([1e-4, 1.0], requires_grad=True)
    ...     y = (x.to("fp16") * 1e-4).sum()
    >>> record.counters("activation", producers={"mul"}).underflows
    1
    """
    record = Record(kinds, histograms, scaler=scaler, flushed=flushed, clipped=clipped, causes=causes)
    with using(observer=record):
        yield record
