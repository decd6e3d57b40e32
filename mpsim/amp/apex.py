"""The optimisation levels of apex.amp, O0 to O3: gone from apex, but still how people name what they do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mpsim.amp.autocast import autocast
from mpsim.amp.layers import Forward, select, wrapped
from mpsim.amp.loss_scaling import LossScaler
from mpsim.amp.policies import get_policy
from mpsim.amp.scaler import loss_scaler
from mpsim.formats import FP16, FP32, FloatFormat
from mpsim.modes import unknown
from mpsim.nn import Module
from mpsim.ops import UnitsLike
from mpsim.tensor import Tensor, settings, using

__all__ = ["APEX_LEVELS", "ApexLevel", "apex_level"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApexLevel:
    """What one level does.

    Examples
    --------
    >>> from mpsim import nn, optim
    >>> level, model = apex_level("O2"), nn.Linear(2, 1, rng=0)
    >>> optimizer = optim.SGD(level.convert(model).parameters(), lr=0.1, update=level.update)
    >>> scaler = level.scaler()
    >>> with level.region(model, unit="v100"):
    ...     loss = model([[1.0, 2.0]]).sum()
    >>> model.weight.format.name, loss.format.name, scaler.get_scale()
    ('fp16', 'fp32', 65536.0)
    """

    name: str
    weights: FloatFormat
    patched: bool
    """Whether operations are cast by apex's lists."""
    keeps_batch_norm: bool
    """Whether batch normalisation keeps its parameters in FP32 when the model is converted."""
    update: Literal["nearest", "master"]
    """What the optimizer is to be told: whether it keeps FP32 master weights."""
    dynamic: bool
    """Whether the loss scale is dynamic; 1 otherwise."""

    def convert(self, model: Module) -> Module:
        """Bring a model's parameters and buffers to the formats of the level, in place; returns the model."""
        kept: set[int] = set()
        for layer in select(model, "batch norm").values() if self.keeps_batch_norm else ():
            kept.update(map(id, (*layer.parameters(), *layer.buffers())))
        for tensor in (*model.parameters(), *model.buffers()):
            if isinstance(tensor, Tensor) and id(tensor) not in kept:
                rounded = Tensor(tensor, format=self.weights)
                tensor.data, tensor.format, tensor.grad = rounded.data, rounded.format, None
        return model

    def scaler(self) -> LossScaler:
        """Return a new loss scaler: apex's, dynamic or static at 1."""
        return loss_scaler("apex" if self.dynamic else "apex-static")

    @contextlib.contextmanager
    def region(self, model: Module, unit: UnitsLike | None = None) -> Iterator[None]:
        """Run a block as the level does: operations cast by lists, or the model's inputs to FP16 and outputs to FP32.

        Parameters
        ----------
        model : Module
            The model whose inputs and outputs are cast. Inputs that are not floating-point, such as indices, stay.
        unit : MatrixUnit, name or Units, optional
            Matrix unit of the products; that in force unless given.
        """
        with contextlib.ExitStack() as stack:
            if self.patched:
                stack.enter_context(autocast(FP16, unit=unit, ops="apex-o1"))
            else:
                stack.enter_context(using(unit=settings().unit if unit is None else unit))
            if self.weights == FP16:
                stack.enter_context(wrapped({"": model}, _between_fp32))
            yield


def _between_fp32(name: str, model: Module, forward: Forward) -> Forward:
    def cast(*inputs: Any, **options: Any) -> Any:
        outputs = forward(*map(_to_fp16, inputs), **{key: _to_fp16(x) for key, x in options.items()})
        if isinstance(outputs, tuple):
            return tuple(y.to(FP32) if isinstance(y, Tensor) else y for y in outputs)
        return outputs.to(FP32) if isinstance(outputs, Tensor) else outputs

    return cast


def _to_fp16(x: Any) -> Any:
    """Return a floating-point tensor, array or list of numbers in FP16, and tensors in containers; else the same."""
    if isinstance(x, np.ndarray) or (isinstance(x, list) and not any(isinstance(part, Tensor) for part in x)):
        return Tensor(x).to(FP16) if np.asarray(x).dtype.kind in "fV" else x  # V: the narrow formats of ml_dtypes
    return get_policy(FP16).cast_to_compute(x)


APEX_LEVELS: dict[str, ApexLevel] = {
    level.name: level
    for level in (
        ApexLevel(name="O0", weights=FP32, patched=False, keeps_batch_norm=False, update="nearest", dynamic=False),
        ApexLevel(name="O1", weights=FP32, patched=True, keeps_batch_norm=False, update="nearest", dynamic=True),
        ApexLevel(name="O2", weights=FP16, patched=False, keeps_batch_norm=True, update="master", dynamic=True),
        ApexLevel(name="O3", weights=FP16, patched=False, keeps_batch_norm=False, update="nearest", dynamic=False),
    )
}
"""The levels by name."""


def apex_level(name: str) -> ApexLevel:
    """Return a level, O0 to O3, in letters of either case.

    Raises
    ------
    ValueError
        There is no such level.
    """
    if name.upper() not in APEX_LEVELS:
        raise unknown("name", name, APEX_LEVELS)
    return APEX_LEVELS[name.upper()]
