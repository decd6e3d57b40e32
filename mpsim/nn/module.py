"""Modules: trees of layers with parameters, as in torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim.formats import FormatLike
from mpsim.tensor import Tensor

__all__ = ["Module", "Parameter"]


class Parameter(Tensor):
    """A tensor that a module learns; requires grad."""

    __slots__ = ()

    def __init__(self, data: ArrayLike | Tensor, format: FormatLike | None = None) -> None:
        super().__init__(data, requires_grad=True, format=format)


class Module:
    """Base of layers: attributes that are parameters or modules are found by name.

    A subclass defines ``forward``; calling the module calls it.
    """

    training: bool = True

    def forward(self, *inputs: Any) -> Any:
        """Compute the output; a subclass defines it."""
        raise TypeError(f"{type(self).__name__} must define forward(self, ...)")

    def __call__(self, *inputs: Any) -> Any:
        """Compute the output."""
        return self.forward(*inputs)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the modules directly below, also those in a list or tuple, with their names."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, list | tuple):
                yield from ((f"{name}.{i}", m) for i, m in enumerate(value) if isinstance(m, Module))

    def children(self) -> Iterator[Module]:
        """Yield the modules directly below."""
        for _, child in self.named_children():
            yield child

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Yield every parameter once, with its dotted name."""
        seen: set[int] = set()
        for name, parameter in self._all_parameters(prefix):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def _all_parameters(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        for name, value in vars(self).items():
            if isinstance(value, Parameter):
                yield prefix + name, value
        for name, child in self.named_children():
            yield from child._all_parameters(f"{prefix}{name}.")

    def parameters(self) -> Iterator[Parameter]:
        """Yield every parameter once."""
        for _, parameter in self.named_parameters():
            yield parameter

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def to(self, format: FormatLike) -> Self:
        """Round every parameter to ``format``, in place; returns the module."""
        for parameter in self.parameters():
            rounded = Tensor(parameter, format=format)
            parameter.data, parameter.format, parameter.grad = rounded.data, rounded.format, None
        return self

    def train(self, mode: bool = True) -> Self:
        """Switch this module and all below to training behaviour, or to evaluation's."""
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self) -> Self:
        """Switch to evaluation behaviour."""
        return self.train(False)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of all parameters by dotted name."""
        return {name: parameter.data.copy() for name, parameter in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Set all parameters from arrays by dotted name; nothing changes if a name or a shape is wrong."""
        own = dict(self.named_parameters())
        missing, unexpected = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        if missing or unexpected:
            raise ValueError(f"load_state_dict: missing {missing or 'none'}, unexpected {unexpected or 'none'}")
        new = {name: Tensor(state[name], format=parameter.format).data for name, parameter in own.items()}
        for name, parameter in own.items():
            if np.shape(new[name]) != parameter.shape:
                raise ValueError(f"load_state_dict: {name} has shape {new[name].shape}; {parameter.shape} is needed")
        for name, parameter in own.items():
            parameter.data = new[name]
