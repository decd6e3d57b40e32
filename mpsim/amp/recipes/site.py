"""Where recipes are at work: one linear map or attention of one step, and what its layer remembers between steps."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim.amp.recipes.sight import Sight
from mpsim.formats import FP32, FloatFormat
from mpsim.nn import Module
from mpsim.ops import Call, Product, Roles
from mpsim.stochastic import Draws
from mpsim.tensor import Tensor
from mpsim.units import UnitLike

if TYPE_CHECKING:
    from mpsim.amp.recipes.base import Recipe

__all__ = ["AmaxHistory", "LayerState", "RecipeSite", "layer_state", "load_scaling_state", "scaling_state"]

Array: TypeAlias = "NDArray[Any]"


@dataclass(slots=True)
class AmaxHistory:
    """The amax of a tensor in the last steps, and the scale that its next cast uses."""

    amax: Array
    """float32 [length]: entry 0 collects the step under way, the newest finished step is the last entry."""
    scale: np.float32 = field(default_factory=lambda: np.float32(1))

    def collect(self, amax: Array) -> None:
        """Take note of the amax of a tensor; several in a step count as one."""
        self.amax[0] = np.maximum(self.amax[0], amax)

    def resized(self, length: int) -> AmaxHistory:
        """Return a history of another length, which keeps entry 0 and the newest others."""
        if length == self.amax.size:
            return self
        amax = np.zeros(length, np.float32)
        kept = min(length, self.amax.size) - 1
        amax[0], amax[length - kept :] = self.amax[0], self.amax[self.amax.size - kept :]
        return AmaxHistory(amax, self.scale)


@dataclass(slots=True)
class LayerState:
    """What a layer remembers between steps."""

    histories: dict[str, AmaxHistory] = field(default_factory=dict)
    """By role."""
    steps: int = 0
    """How often the layer ran with gradients, which numbers its random streams."""
    origins: dict[str, AmaxHistory] = field(default_factory=dict)
    """By role, what a history was made from where it replaced another."""

    def history(self, role: str, length: int) -> AmaxHistory:
        """Return the history of a role, a new one where there is none yet."""
        known = self.histories.get(role) or AmaxHistory(np.zeros(length, np.float32))
        self.histories[role] = known.resized(length)
        return self.histories[role]


@dataclass(slots=True, eq=False)
class RecipeSite:
    """One linear map or attention of one step, under a recipe."""

    recipe: Recipe | None
    unit: UnitLike
    state: LayerState
    weight: Array | None = None
    """The weight of a linear layer as it is stored, which casts start from: not its copy in the region's format."""
    recording: bool = True
    """Whether amax goes into histories."""
    draws: Draws = field(default_factory=Draws)
    """Random numbers of the first product that needs some; the next stream is that of the second."""
    scales: dict[str, np.float32] = field(default_factory=dict)
    """Scales of roles that were cast already, which the backward pass uses again."""
    sight: Sight = field(default_factory=Sight)
    """Casts operands, and shows that to an observer."""
    format: FloatFormat = FP32
    """Format of the inputs, once there are some."""
    found: dict[str, AmaxHistory] = field(default_factory=dict)
    """Histories of roles as the forward pass found them."""
    made: dict[str, AmaxHistory | None] = field(default_factory=dict)
    """Histories of roles that are to replace them; None once they have."""
    lost: dict[Product, NDArray[np.bool_]] = field(default_factory=dict)
    """Where the products of a traced backward pass are zero for what casts made of their operands."""

    @classmethod
    def alone(cls, unit: UnitLike = "native") -> RecipeSite:
        """Return a site that belongs to no layer, to quantise single arrays."""
        return cls(None, unit, LayerState())

    def free(self) -> None:
        """Let go of the weight."""
        self.weight = self.sight.parameter = None
        self.lost.clear()

    def lost_in_casts(self, product: Product) -> NDArray[np.bool_] | None:
        """Return which elements of the last product of a backward pass are zero for what casts made of its operands."""
        return self.lost.get(product)

    def matmul(self, call: Call, a: Array, b: Array, product: Product, roles: Roles) -> Array:
        """Return ``a @ b`` in FP32."""
        assert self.recipe is not None
        self.format = call.fmt
        if product in self.recipe.unquantized:
            return call.unscaled(a, b, product)
        if roles[1] == "weight" and self.weight is not None:
            b = self.weight.T if product == "forward" else self.weight
        self.sight.begin(product, roles)
        if b.ndim > 2 or a.ndim == 2:
            y = self.recipe.multiply(a, b, product, roles, self)
        else:
            rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
            y = self.recipe.multiply(rows, b, product, roles, self).reshape(*a.shape[:-1], b.shape[-1])
        if (lost := self.sight.lost()) is not None:
            self.lost[product] = lost
        return y


_STATES: weakref.WeakKeyDictionary[Tensor, dict[str, LayerState]] = weakref.WeakKeyDictionary()
"""By the weight of a layer, as long as that lives."""


def layer_state(weight: Tensor, layer: str) -> LayerState:
    """Return what a layer with this weight remembers; the layer is ``"linear"``, or an attention behind it."""
    return _STATES.setdefault(weight, {}).setdefault(layer, LayerState())


def scaling_state(model: Module) -> dict[str, Array]:
    """Return amax histories, scales and step counts of all layers of a model, as copies.

    Returns
    -------
    dict
        Arrays by ``<parameter>/<layer>/steps``, ``<parameter>/<layer>/<role>/amax`` and ``.../scale``; empty before
        the first step under a recipe. `checkpoint.save` keeps them with the model; a copy of the model starts anew.
    """
    arrays: dict[str, Array] = {}
    for name, parameter in model.named_parameters():
        for layer, state in _STATES.get(parameter, {}).items():
            arrays[f"{name}/{layer}/steps"] = np.array(state.steps)
            for role, history in state.histories.items():
                arrays[f"{name}/{layer}/{role}/amax"] = history.amax.copy()
                arrays[f"{name}/{layer}/{role}/scale"] = np.array(history.scale)
    return arrays


def load_scaling_state(model: Module, state: Mapping[str, ArrayLike]) -> None:
    """Give the layers of a model what `scaling_state` returned; nothing changes if a name does not fit.

    Raises
    ------
    ValueError
        A name that is no parameter of the model, or not one of `scaling_state`.
    """
    parameters = dict(model.named_parameters())
    loaded: dict[str, dict[str, LayerState]] = {name: {} for name in parameters}
    for key in sorted(state):
        name, *rest = key.split("/")
        if name not in parameters or not (rest[1:] == ["steps"] or (len(rest) == 3 and rest[2] in ("amax", "scale"))):
            raise ValueError(f"load_scaling_state: {key!r} fits no layer; names are those of scaling_state(model)")
        layer = loaded[name].setdefault(rest[0], LayerState())
        if rest[1:] == ["steps"]:
            layer.steps = int(np.asarray(state[key]))
        elif rest[2] == "amax":  # sorts before its scale
            layer.histories[rest[1]] = AmaxHistory(np.array(state[key], np.float32))
        elif rest[1] not in layer.histories:
            raise ValueError(f"load_scaling_state: {key!r} is there without its amax")
        else:
            layer.histories[rest[1]].scale = np.float32(np.asarray(state[key]))
    for name, parameter in parameters.items():
        _STATES[parameter] = loaded[name]
