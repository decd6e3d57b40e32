"""What the recipes have in common."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from numpy.typing import NDArray

from mpsim.amp.recipes.operands import row_for
from mpsim.formats import FloatFormat, get_format
from mpsim.modes import unknown
from mpsim.ops import Product, Roles
from mpsim.units import UnitLike

if TYPE_CHECKING:
    from mpsim.amp.recipes.site import LayerState, RecipeSite

__all__ = ["BACKWARD", "Array", "Recipe", "named", "refuse_attention"]

Array: TypeAlias = "NDArray[Any]"

BACKWARD: tuple[Product, ...] = ("input_gradient", "weight_gradient")
"""The two products of a backward pass."""


@dataclass(frozen=True, kw_only=True)
class Recipe(abc.ABC):
    """How the products of linear layers are computed in FP8 or FP4: plain data, for `dataclasses.replace`."""

    forward: str = "e4m3"
    """Format of inputs and weights."""
    backward: str = "e5m2"
    """Format of gradients."""
    split: tuple[Product, ...] = BACKWARD
    """Products with split accumulation; the others have fast accumulation."""
    unquantized: tuple[Product, ...] = ()
    """Products that stay in the format of the region."""
    attention: bool = False
    """Whether the products of attention are quantised too."""
    compute: str = "bf16"
    """Format of everything else in a region, unless it says otherwise."""
    source: str = field(default="", compare=False)
    """Whose behaviour this is."""

    def __post_init__(self) -> None:
        for each in (self.forward, self.backward, self.compute):
            get_format(each)
        for name in ("split", "unquantized"):
            wrong = set(getattr(self, name)) - {"forward", *BACKWARD}
            if wrong:
                raise ValueError(f"{name} has {wrong.pop()!r}; there are forward, {', '.join(BACKWARD)}")

    def format_of(self, role: str) -> FloatFormat:
        """Return the format of what has a role: that of gradients, or that of all else."""
        return get_format(self.backward if role.endswith("gradient") else self.forward)

    @property
    def pairs(self) -> tuple[tuple[FloatFormat, FloatFormat], ...]:
        """Formats of left and right operands that products may meet."""
        forward, backward = get_format(self.forward), get_format(self.backward)
        pairs = [(forward, forward), (backward, forward), *([(forward, backward)] if self.attention else ())]
        return tuple(dict.fromkeys(pairs))

    @property
    def remembers(self) -> bool:
        """Whether a step depends on what a layer saw in earlier ones."""
        return False

    def check(self, unit: UnitLike) -> None:
        """Raise a ValueError where a unit lacks an instruction that the products need."""
        for pair in self.pairs:
            row_for(unit, *pair)

    @abc.abstractmethod
    def multiply(self, a: Array, b: Array, product: Product, roles: Roles, site: RecipeSite) -> Array:
        """Return ``a @ b`` in FP32 of operands in high precision.

        Parameters
        ----------
        a : array [..., M, K]
        b : array [..., K, N]
        product : {"forward", "input_gradient", "weight_gradient"}
        roles : pair of str
            What ``a`` and ``b`` are: ``"input"``, ``"weight"`` and ``"gradient"`` of a linear layer.
        site : RecipeSite
            The unit, and what is remembered from earlier steps.
        """

    def roll(self, state: LayerState, backward: bool) -> None:  # noqa: B027 - most recipes have nothing to do
        """Make the scales of the next step, of gradients or of all else."""

    def __str__(self) -> str:
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        given.pop("source", None)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def refuse_attention(recipe: Recipe, what: str, instead: str) -> None:
    """Refuse to quantise the products of attention, which ``what`` cannot."""
    if recipe.attention:
        raise ValueError(f"attention is True; {what} for linear layers: {instead} takes both")


T = TypeVar("T")


def named(catalogue: Mapping[str, T], name: str, argument: str) -> T:
    """Return the entry of a catalogue, whose names may be in letters of either case, and with underscores.

    Raises
    ------
    ValueError
        There is none of that name; the message has the nearest one, and all others.
    """
    key = name.strip().lower().replace("_", "-")
    if key not in catalogue:
        raise unknown(argument, name, catalogue)
    return catalogue[key]
