"""Run each operation in the format that mixed precision gives it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpsim import units
from mpsim.amp.notices import Kind, Notices
from mpsim.amp.op_lists import FormatsUsed, OpListsLike, get_op_lists
from mpsim.formats import FP32, FP64, FloatFormat, FormatLike, get_format
from mpsim.ops import TABLE, Units, UnitsLike
from mpsim.tensor import Tensor, is_grad_enabled, promote, settings, using

__all__ = ["autocast"]


@dataclass(slots=True)
class _Cast:
    """A weight in the low format."""

    weight: Tensor
    """Kept beside its cast: an id is only unique while its object lives."""
    data: NDArray[np.floating]
    """The array of the weight when it was cast."""
    cast: Tensor


_Casts = dict[int, _Cast]


class autocast(contextlib.ContextDecorator):  # noqa: N801 - torch's name
    """Context in which matrix products run in a low format and sensitive operations in FP32.

    Parameters
    ----------
    format : FloatFormat or name
        The low format.
    unit : MatrixUnit, name or Units, optional
        Matrix unit of the products, forward and backward, or one for each; "native" is NumPy's FP32 product. Without
        one the unit in force stays: that of an outer region or of `matrix_unit`, else "native".
    enabled : bool
        False runs a part of an autocast region in the formats of its inputs.
    cache : bool
        Cast each FP32 leaf that requires grad only once, until the outermost region ends.
    ops : {"cuda", "cpu", "apex-o1"}, OpLists or mapping
        Which operations run in the low format and which in FP32: the lists of a system, or a table of your own from
        names of operations to treatments (see `op_lists.Treatment`).

    Attributes
    ----------
    used : FormatsUsed
        The formats of all operations that ran in this region, nested regions left out; prints as a table.
    notices : Notices
        Weights that changed while their cached cast stayed in use. As in torch, the cast of the old values goes on.

    Notes
    -----
    Operations on no list run in the formats of their inputs, promoted. FP64 inputs are left alone, and refused where
    they meet the low format. Casts are differentiable: the gradient of a
    leaf is in FP32, those of activations are in the low format. Call ``backward`` outside the region; it runs in the
    formats of the forward pass.

    Examples
    --------
    >>> from mpsim import nn
    >>> layer = nn.Linear(4, 2, rng=0)
    >>> with autocast("fp16"):
    ...     y = layer(Tensor([[1.0, 2.0, 3.0, 4.0]]))
    >>> y.format.name, layer.weight.format.name
    ('fp16', 'fp32')
    """

    def __init__(
        self,
        format: FormatLike = "fp16",
        unit: UnitsLike | None = None,
        enabled: bool = True,
        cache: bool = True,
        ops: OpListsLike = "cuda",
    ) -> None:
        self.format = get_format(format)
        if unit is not None and enabled:
            for each in unit.each if isinstance(unit, Units) else (unit,):
                units.get(each, inputs=self.format)  # an unknown unit, or one without such inputs, is an error here
        self.unit = unit
        self.enabled = enabled
        self.cache = cache
        self.ops = get_op_lists(ops)
        self.used = FormatsUsed()
        self.notices = Notices()
        self._times = -1
        self._casts: _Casts = {}
        self._entered: list[tuple[contextlib.AbstractContextManager[object], _Casts]] = []

    def __enter__(self) -> autocast:
        outer = settings().policy
        unit = settings().unit if self.unit is None or not self.enabled else self.unit
        region = using(policy=self if self.enabled else None, unit=unit)
        region.__enter__()
        self._times += not self._entered
        self._entered.append((region, self._casts))
        # A nested region shares the casts of the one around it; they are forgotten when the outermost ends.
        if isinstance(outer, autocast) and self.cache and outer.cache and outer.format == self.format:
            self._casts = outer._casts
        else:
            self._casts = {}
        return self

    def __exit__(self, *error: object) -> None:
        region, self._casts = self._entered.pop()
        region.__exit__(*error)  # type: ignore[arg-type]

    def cast_inputs(self, operation: str, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the inputs in the format that the operation is to run in; called by the engine."""
        cast = self._treated(operation, inputs)
        run = cast[0].format if TABLE[operation].formats == "first" else promote(cast)
        self.used.add(operation, tuple(t.format for t in inputs), run)
        return cast

    def _treated(self, operation: str, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        treatment = self.ops.of(operation)
        if treatment is None:
            return inputs
        if treatment == "low":
            return tuple(self._cast(t) for t in inputs)
        if treatment == "refused":
            raise RuntimeError(f"{operation} is unsafe to autocast: its FP16 inputs could overflow; disable the region")
        if treatment == "fp32" or (treatment == "fp32 result" and inputs[0].format != FP64):
            return _in_format(inputs, FP32)
        if treatment == "fp32 result":
            return inputs
        if any(t.format == FP32 for t in inputs):
            return _in_format(inputs, FP32)
        if treatment == "widest":
            return inputs
        other = [t.format.name for t in inputs if t.format not in (FP64, self.format)]
        if other:
            raise RuntimeError(f"{operation}: an input is in {other[0]}; this region promotes fp32 and {self.format}")
        return inputs

    def _cast(self, tensor: Tensor) -> Tensor:
        if tensor.format in (FP64, self.format):
            return tensor
        is_weight = tensor.requires_grad and tensor.is_leaf and tensor.format == FP32
        if not (self.cache and is_weight and is_grad_enabled()):
            return tensor.to(self.format)
        kept = self._casts.get(id(tensor))
        if kept is None:
            kept = self._casts[id(tensor)] = _Cast(tensor, tensor.data, tensor.to(self.format))
        elif kept.data is not tensor.data:
            message = f"a weight of shape {tensor.shape} was changed in the region; its old cast is used"
            self.notices.add(Kind.STALE_CAST, self._times, message)
        return kept.cast


def _in_format(inputs: tuple[Tensor, ...], fmt: FloatFormat) -> tuple[Tensor, ...]:
    return tuple(t if t.format == FP64 else t.to(fmt) for t in inputs)
