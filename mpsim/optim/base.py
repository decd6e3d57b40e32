"""What optimizers have in common: groups of parameters, the walk over them, and the state that can be saved."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from mpsim.formats import FP32, FP64, FloatFormat, FormatLike
from mpsim.modes import Rounding, unknown
from mpsim.optim._state import checked_groups, checked_state, packed_rules, rules_of
from mpsim.optim.updates import (
    Array,
    Direction,
    Rounder,
    Rules,
    Update,
    UpdateCounts,
    add_scaled,
    compensated_weights,
    moved_weights,
    positive_nan,
)
from mpsim.rounding import round_to
from mpsim.scales import round_scaled
from mpsim.stochastic import DrawsLike, in_blocks
from mpsim.tensor import Tensor, settings
from mpsim_kernels._threads import AT_LEAST, in_ranges
from mpsim_kernels.floating_point import default_environment

__all__ = ["Optimizer", "Piece", "Slot", "counted", "not_negative", "share"]

_WEIGHT = 0  # the weight's own stream among those of a step; arrays of state follow
_WEIGHT_NAME = "weight"  # their name among scaled arrays


@dataclass(slots=True, eq=False)
class Slot:
    """What an optimizer keeps for one parameter."""

    index: int
    parameter: Tensor
    step: int = 0
    arrays: dict[str, Array] = field(default_factory=dict)
    """State by torch's names, and ``master`` or ``compensation``."""
    written: Array | None = None
    """The parameter's array as the last step left it, for master weights."""

    def weights(self) -> Array:
        """Return the weights that are updated, flat: the master's where there is one."""
        return np.ascontiguousarray(self.arrays.get("master", self.parameter.data)).reshape(-1)

    def stream(self, role: int) -> int:
        """Return the number of a random stream that no other parameter, step or array has."""
        return self.index << 40 | self.step << 4 | role


@dataclass(slots=True)
class Piece:
    """Consecutive elements of one parameter, its gradient and its state, in the working type."""

    w: Array
    grad: Array
    state: dict[str, Array]
    first: int
    slot: Slot
    roles: dict[str, int]
    rounder: Rounder | None
    """Rounds state; None keeps the working type."""
    each: bool
    """Round after each operation on the state, rather than when it is stored."""

    def keep(self, name: str, values: Array) -> Array:
        """Store state, rounded to its format; returns what was stored."""
        if self.rounder is not None:
            exact = positive_nan(values.astype(np.float64))
            values = self.rounder(exact, self.first, self.slot.stream(self.roles[name])).astype(values.dtype)
        kept = self.state[name]
        kept[:] = values
        return positive_nan(kept)

    def descent(self, group: Mapping[str, Any], decay: bool = True) -> Array:
        """Return the gradient to descend along, with the group's share of the weights unless it is not to be added."""
        x = -self.grad if group["maximize"] else self.grad
        if decay and group["weight_decay"]:
            x = add_scaled(self.w.dtype.type(group["weight_decay"]), self.w, x)
        return x

    def between(self, values: Array) -> Array:
        """Return values as a tensor of the state's format holds them between two operations."""
        if self.rounder is None or not self.each:
            return values
        return self.rounder(positive_nan(values.astype(np.float64))).astype(values.dtype)


class Optimizer(abc.ABC):
    """Base of the optimizers.

    Parameters
    ----------
    params : iterable of Tensor, or of dict
        Parameters, or groups of them: ``{"params": [...], "lr": 0.1}`` with options of their own.
    defaults : dict
        Options of groups that do not say otherwise.
    update : {"nearest", "stochastic", "kahan", "master"}
        How weights of a low-precision format are updated; see `Update`. The formula itself is computed in FP32, for
        formats that FP32 does not hold in FP64. Weights in FP32 and FP64 are plain, except that FP32 ones can be
        updated stochastically, and both with Kahan's compensation.
    state_format : FloatFormat or name, optional
        Momentum and moments are widened, updated in the working precision and rounded once to this format as they
        are stored; the step uses what is stored. By default they are in the format of the weight (of the master
        weight), and are rounded after each operation of torch's formula, as torch does with tensors of that format.
    state_rounding : {"nearest-even", "stochastic"}
    rng : int or Draws
        Seed of stochastic rounding. Every parameter, step and array has a stream of its own.
    scaled : mapping of str to format, optional
        Arrays that are stored in a narrow format under a power-of-two scale of the whole tensor, as MS-AMP does:
        ``"weight"``, and state by its name, such as ``"exp_avg"``. A step computes in FP32 from what is stored, and
        uses new moments before they are stored; see `scales.round_scaled`. Parameters must be in FP32, which holds
        the stored numbers; they are rounded at once.

    Attributes
    ----------
    param_groups : list of dict
        Options by group; may be changed between steps.
    counts : UpdateCounts
        Updates seen and lost since the start, or since it was replaced. An update is lost when it leaves the weight,
        with its master weight or compensation, as it was.
    parameter_counts : list of UpdateCounts
        The same for each of ``params``, since the start.
    """

    _states: ClassVar[tuple[str, ...]] = ()
    """Names of the state arrays that the optimizer may keep."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        defaults: dict[str, Any],
        *,
        update: Update | str = Update.NEAREST,
        state_format: FormatLike | None = None,
        state_rounding: Rounding | str = Rounding.NEAREST_EVEN,
        rng: DrawsLike = None,
        scaled: Mapping[str, FormatLike] | None = None,
    ) -> None:
        self.defaults = defaults
        self._check_options(defaults)
        self._rules = Rules.of(update, state_format, state_rounding, rng, scaled)
        unknown = self._rules.scaled.keys() - {_WEIGHT_NAME, *self._states}
        if unknown:
            names = ", ".join((_WEIGHT_NAME, *self._states))
            raise ValueError(f"scaled has {unknown.pop()!r}; the arrays of {type(self).__name__} are {names}")
        self.param_groups: list[dict[str, Any]] = []
        self.counts = UpdateCounts()
        self.parameter_counts: list[UpdateCounts] = []
        self._slots: list[Slot] = []
        for group in checked_groups(params):
            self.add_param_group(group)

    @abc.abstractmethod
    def _check_options(self, options: Mapping[str, Any]) -> None:
        """Raise a ValueError that names the option that cannot work."""

    @abc.abstractmethod
    def _direction(self, group: dict[str, Any], fresh: bool, piece: Piece) -> Direction:
        """Update the state of a piece, and return where its weights go; ``fresh`` where the state was made just now."""

    def _whole_step(
        self, group: dict[str, Any], fresh: bool, slot: Slot, grad: Array, out: Array
    ) -> tuple[int, int] | None:
        """Do a step of plain weights and state in one pass, and return the counts; None without such a kernel."""
        return None

    def _initial(self, group: dict[str, Any], name: str) -> float | None:
        """Return what an array of state starts with; None where the options need no such array."""
        return 0.0

    # Groups.

    @property
    def params(self) -> list[Tensor]:
        """All parameters, in the order in which they were given."""
        return [slot.parameter for slot in self._slots]

    @property
    def lr(self) -> float:
        """Learning rate of the first group; setting it sets that of all."""
        return float(self.param_groups[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.param_groups:
            group["lr"] = value

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own.

        Raises
        ------
        TypeError, ValueError
            A parameter is no leaf tensor, is there already, or is in a format that ``update`` does not suit; an option
            is unknown or cannot work.
        """
        (group,) = checked_groups([param_group])
        if strange := sorted(group.keys() - self.defaults.keys() - {"params", "initial_lr"}):
            raise unknown("param_group: option", strange[0], self.defaults)
        group = {**group, **{name: group.get(name, value) for name, value in self.defaults.items()}}
        self._check_options(group)
        known = {id(parameter) for parameter in self.params}
        for parameter in group["params"]:
            if id(parameter) in known:
                raise ValueError("params has a tensor more than once, which would be updated twice")
            if self._rules.update is Update.STOCHASTIC and parameter.format == FP64:
                raise ValueError("params has a tensor in fp64; update='stochastic' is for narrower formats")
            if self._rules.scaled and parameter.format != FP32:
                raise ValueError(f"params has a tensor in {parameter.format}; scaled is for parameters in fp32")
        self.param_groups.append(group)
        for parameter in group["params"]:
            if _WEIGHT_NAME in self._rules.scaled:
                parameter.data = round_scaled(parameter.data, self._rules.scaled[_WEIGHT_NAME])
            self._slots.append(Slot(len(self._slots), parameter))
            self.parameter_counts.append(UpdateCounts())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, or set them to zero."""
        for parameter in self.params:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.data = np.zeros_like(parameter.grad.data)
        observer = settings().observer
        if observer is not None:
            observer.cleared()

    # The step.

    def step(self) -> None:
        """Update every parameter that has a gradient.

        Raises
        ------
        TypeError, ValueError
            A gradient has not the shape of its parameter, or is in a wider type; nothing has changed.
        """
        found = [(group, slot, self._grad(slot)) for group in self.param_groups for slot in self._in_group(group)]
        with default_environment(), np.errstate(all="ignore"):
            for group, slot, grad in found:
                if grad is not None:
                    self._step_one(group, slot, grad)

    def _in_group(self, group: dict[str, Any]) -> list[Slot]:
        start = 0
        for other in self.param_groups:
            if other is group:
                break
            start += len(other["params"])
        return self._slots[start : start + len(group["params"])]

    def _grad(self, slot: Slot) -> Array | None:
        parameter = slot.parameter
        if parameter.grad is None:
            return None
        grad = parameter.grad.data
        if grad.shape != parameter.shape:
            raise ValueError(f"grad of parameter {slot.index} has shape {grad.shape}; {parameter.shape} is needed")
        if grad.dtype.itemsize > parameter.data.dtype.itemsize:
            raise TypeError(
                f"grad of parameter {slot.index} is in {parameter.grad.format}; the parameter is in {parameter.format}"
            )
        return np.ascontiguousarray(grad, parameter.data.dtype).reshape(-1)

    def _step_one(self, group: dict[str, Any], slot: Slot, grad: Array) -> None:
        parameter, rules = slot.parameter, self._rules
        slot.step += 1
        if rules.update is Update.MASTER and parameter.format not in (FP32, FP64):
            self._refresh_master(slot)
        elif rules.update is Update.KAHAN and "compensation" not in slot.arrays:
            slot.arrays["compensation"] = np.zeros_like(parameter.data, order="C")
        fresh = self._make_state(group, slot)
        out = np.empty(grad.shape, grad.dtype)
        counts = None
        if self._rounds_weights(slot) is None and self._state_format(slot) is None:
            counts = self._whole_step(group, fresh, slot, grad, out)
        if counts is None:
            counts = self._in_pieces(group, fresh, slot, grad, out)
        if rules.scaled:
            out, lost = self._stored(slot, out)
            counts = counts[0], counts[1] + lost
        for seen in (self.counts, self.parameter_counts[slot.index]):
            seen.updates += counts[0]
            seen.lost += counts[1]
        observer = settings().observer
        if observer is not None:
            observer.updated(parameter, slot.weights(), out, *counts)
        new = out.reshape(parameter.shape)
        if "master" in slot.arrays:
            slot.arrays["master"] = new
            new = round_to(new, parameter.format).astype(new.dtype, copy=False)
            slot.written = new
        parameter.data = new

    def _stored(self, slot: Slot, out: Array) -> tuple[Array, int]:
        """Round scaled arrays; return the new weights, and how many of them fell back to what they were."""
        lost = 0
        for name, fmt in self._rules.scaled.items():
            if name in slot.arrays:
                slot.arrays[name] = round_scaled(slot.arrays[name], fmt)
            elif name == _WEIGHT_NAME:
                before, moved = slot.weights(), out
                out = round_scaled(moved, fmt)
                lost = int(np.count_nonzero((moved != before) & (out == before)))
        return out, lost

    def _refresh_master(self, slot: Slot) -> None:
        """Make the master weights, and follow a parameter that was given other values since the last step."""
        parameter = slot.parameter
        if "master" not in slot.arrays:
            slot.arrays["master"] = np.array(parameter.data, order="C")
        elif parameter.data is not slot.written:
            master = slot.arrays["master"]
            same = round_to(master, parameter.format) == parameter.data
            slot.arrays["master"] = np.where(same, master, parameter.data)

    def _make_state(self, group: dict[str, Any], slot: Slot) -> bool:
        """Make the arrays of state that are missing; return whether there were any."""
        fresh = False
        for name in self._states:
            start = self._initial(group, name)
            if start is not None and name not in slot.arrays:
                fresh = True
                dtype, fmt = slot.parameter.data.dtype, self._state_format(slot)
                first = dtype.type(start) if fmt is None else round_to(dtype.type(start), fmt).astype(dtype)
                slot.arrays[name] = np.full(slot.parameter.shape, first, dtype)
        return fresh

    def _rounds_weights(self, slot: Slot) -> FloatFormat | None:
        """Return the format that weights are rounded to; None where they are in the working type."""
        fmt, update = slot.parameter.format, self._rules.update
        exact = update is Update.MASTER or (update is Update.NEAREST and fmt in (FP32, FP64))
        return None if exact else fmt

    def _state_format(self, slot: Slot) -> FloatFormat | None:
        """Return the format that state is rounded to; None where the working type is that format."""
        fmt = self._rules.state_format
        working = FP64 if slot.parameter.data.dtype == np.float64 else FP32
        if fmt is None:
            fmt = working if "master" in slot.arrays else slot.parameter.format
        return None if fmt == working or (fmt == FP64 and working == FP32) else fmt

    def _in_pieces(self, group: dict[str, Any], fresh: bool, slot: Slot, grad: Array, out: Array) -> tuple[int, int]:
        """Do a step piece by piece, so that what lies between stays in a cache."""
        rules, fmt = self._rules, self._rounds_weights(slot)
        random = rules.draws if rules.update is Update.STOCHASTIC else None
        rounder = None if fmt is None else Rounder(fmt, random)
        state_format = self._state_format(slot)
        random = rules.draws if rules.state_rounding is Rounding.STOCHASTIC else None
        state_rounder = None if state_format is None else Rounder(state_format, random)
        w = slot.weights()
        states = {name: slot.arrays[name].reshape(-1) for name in self._states if name in slot.arrays}
        roles = {name: role for role, name in enumerate(self._states, _WEIGHT + 1)}
        compensation = slot.arrays["compensation"].reshape(-1) if rules.update is Update.KAHAN else None
        counted: list[tuple[int, int]] = []

        def task(start: int, stop: int) -> None:
            with default_environment(), np.errstate(all="ignore"):
                for first, last in in_blocks(start, stop):
                    part = slice(first, last)
                    piece = Piece(
                        w[part],
                        grad[part],
                        {name: array[part] for name, array in states.items()},
                        first,
                        slot,
                        roles,
                        state_rounder,
                        rules.state_format is None,
                    )
                    direction = self._direction(group, fresh, piece)
                    if compensation is not None and rounder is not None:
                        out[part], error = compensated_weights(direction, piece.w, compensation[part], rounder)
                        same = (out[part] == piece.w) & (error == compensation[part])
                        compensation[part] = error
                    else:
                        stream = slot.stream(_WEIGHT)
                        out[part] = moved_weights(direction, piece.w, rounder, first, stream)
                        same = out[part] == piece.w
                    meant = direction.meant(piece.w)
                    counted.append((int(np.count_nonzero(meant)), int(np.count_nonzero(meant & same))))

        in_ranges(task, w.size, AT_LEAST)
        return sum(n for n, _ in counted), sum(n for _, n in counted)

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything that the next steps depend on, under torch's names.

        Returns
        -------
        dict
            ``state``: step and arrays by number of the parameter; ``param_groups``: options, and the numbers of the
            parameters; ``rules``: the arithmetic; ``counts``. The position in the random streams is the step.
        """
        numbers = iter(range(len(self._slots)))
        groups = [{**group, "params": [next(numbers) for _ in group["params"]]} for group in self.param_groups]
        state = {
            slot.index: {"step": slot.step, **{name: array.copy() for name, array in slot.arrays.items()}}
            for slot in self._slots
            if slot.step
        }
        counts = [[c.updates, c.lost] for c in (self.counts, *self.parameter_counts)]
        return {"state": state, "param_groups": groups, "rules": packed_rules(self._rules), "counts": counts}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state from `state_dict`; nothing changes if a name, a shape or the arithmetic is wrong.

        Raises
        ------
        ValueError
            Which entry does not fit, and what would.
        """
        loaded = checked_state(state_dict, self.param_groups, [slot.parameter for slot in self._slots], self._kept())
        for group in loaded.groups:
            self._check_options(group)
        rules = rules_of(loaded.rules, self._rules)
        self._rules = rules
        for group, new in zip(self.param_groups, loaded.groups, strict=True):
            params = group["params"]
            group.clear()
            group.update({**new, "params": params})
        for slot in self._slots:
            slot.step, slot.arrays = loaded.state.get(slot.index, (0, {}))
            slot.written = None
        total, *each = (UpdateCounts(*pair) for pair in loaded.counts)
        self.counts, self.parameter_counts = total, each

    def _kept(self) -> tuple[str, ...]:
        """Return the names of the arrays that a parameter may have."""
        extra = {Update.MASTER: ("master",), Update.KAHAN: ("compensation",)}.get(self._rules.update, ())
        return (*self._states, *extra)


def counted(run: Callable[[slice, Array], None], size: int) -> tuple[int, int]:
    """Run a kernel of whole steps over the parts of an array; return how many updates there were and were lost.

    ``run(part, counts)`` updates one part, and adds both numbers to ``counts`` int64 [2].
    """
    found: list[Array] = []

    def task(start: int, stop: int) -> None:
        counts = np.zeros(2, np.int64)
        found.append(counts)
        with default_environment(), np.errstate(all="ignore"):
            run(slice(start, stop), counts)

    in_ranges(task, size, AT_LEAST)
    updates, lost = np.sum(found, axis=0).tolist()
    return updates, lost


def not_negative(options: Mapping[str, Any], *names: str) -> None:
    """Raise unless every one of these options is a number that is not negative."""
    for name in names:
        if not options[name] >= 0:
            raise ValueError(f"{name} is {options[name]}; it must not be negative")


def share(value: float, name: str) -> None:
    """Raise unless a number is at least 0 and less than 1."""
    if not (0 <= value < 1) or math.isnan(value):
        raise ValueError(f"{name} is {value}; it must be at least 0 and less than 1")
