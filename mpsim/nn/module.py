"""Modules: trees of layers with parameters and buffers, as in torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim.formats import FormatLike
from mpsim.tensor import Tensor, settings, using

__all__ = ["Buffer", "Module", "Parameter"]

Buffer: TypeAlias = "Tensor | NDArray[np.integer[Any]]"
"""State that is not learned: numbers in a format, or counts."""


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
    _buffers: dict[str, bool]
    """Names of the attributes that are buffers, and whether each belongs to the state."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Compute the output; a subclass defines it."""
        raise TypeError(f"{type(self).__name__} must define forward(self, ...)")

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Compute the output."""
        observer = settings().observer
        if observer is None:
            return self.forward(*inputs, **options)
        with using(layer=observer.layer(self)):
            return self.forward(*inputs, **options)

    # What is below.

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

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield this module and all below once, with their dotted names."""
        seen: set[int] = set()
        for name, module in self._all_modules(prefix):
            if id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def _all_modules(self, prefix: str) -> Iterator[tuple[str, Module]]:
        yield prefix, self
        for name, child in self.named_children():
            yield from child._all_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """Yield this module and all below once."""
        for _, module in self.named_modules():
            yield module

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Yield every parameter once, with its dotted name; ``prefix`` is put before as it is."""
        for name, value, _ in self._tensors():
            if isinstance(value, Parameter):
                yield prefix + name, value

    def parameters(self) -> Iterator[Parameter]:
        """Yield every parameter once."""
        for _, parameter in self.named_parameters():
            yield parameter

    def register_buffer(self, name: str, value: Buffer | None, persistent: bool = True) -> None:
        """Set an attribute that is state but not learned.

        Parameters
        ----------
        name : str
        value : Tensor, array of integers, or None
        persistent : bool
            Whether it belongs to `state_dict`.
        """
        if value is not None and not isinstance(value, Tensor) and np.asarray(value).dtype.kind not in "iu":
            raise TypeError(f"register_buffer: {name} is {type(value).__name__}; a Tensor or integers are needed")
        vars(self).setdefault("_buffers", {})[name] = persistent
        setattr(self, name, value)

    def named_buffers(self) -> Iterator[tuple[str, Buffer]]:
        """Yield every buffer once, with its dotted name."""
        for name, value, _ in self._tensors():
            if not isinstance(value, Parameter):
                yield name, value

    def buffers(self) -> Iterator[Buffer]:
        """Yield every buffer once."""
        for _, buffer in self.named_buffers():
            yield buffer

    def _tensors(self) -> Iterator[tuple[str, Buffer, bool]]:
        """Yield parameters and buffers once, module by module, and whether they belong to the state."""
        seen: set[int] = set()
        for path, module in self._all_modules(""):
            held = vars(module)
            own = [(name, value, True) for name, value in held.items() if isinstance(value, Parameter)]
            own += [(name, held[name], persistent) for name, persistent in held.get("_buffers", {}).items()]
            for name, value, persistent in own:
                if value is not None and id(value) not in seen:
                    seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value, persistent

    # What is done to all of it.

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters():
            parameter.grad = None
        observer = settings().observer
        if observer is not None:
            observer.cleared()

    def to(self, format: FormatLike) -> Self:
        """Round every parameter and buffer to ``format``, in place; returns the module."""
        for tensor in (*self.parameters(), *self.buffers()):
            if isinstance(tensor, Tensor):
                rounded = Tensor(tensor, format=format)
                tensor.data, tensor.format, tensor.grad = rounded.data, rounded.format, None
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Let operations on all parameters be recorded, or not; returns the module."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
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

    # State.

    def state_tensors(self) -> dict[str, Buffer]:
        """Return all parameters and persistent buffers by dotted name: the tensors themselves."""
        return {name: value for name, value, persistent in self._tensors() if persistent}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of all parameters and buffers by dotted name."""
        return {name: np.array(t.data if isinstance(t, Tensor) else t) for name, t in self.state_tensors().items()}

    def load_state_dict(self, state: Mapping[str, ArrayLike], strict: bool = True) -> None:
        """Set all parameters and buffers from arrays by dotted name; nothing changes if a name or a shape is wrong.

        Parameters
        ----------
        state : mapping of str to array_like
            Rounded to the formats of the module.
        strict : bool
            False leaves alone what is missing, and names that the module does not have.
        """
        own = self.state_tensors()
        missing, unexpected = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        if strict and (missing or unexpected):
            raise ValueError(f"load_state_dict: missing {missing or 'none'}, unexpected {unexpected or 'none'}")
        new = {name: _like(held, state[name]) for name, held in own.items() if name in state}
        for name, array in new.items():
            if array.shape != own[name].shape:
                raise ValueError(f"load_state_dict: {name} has shape {array.shape}; {own[name].shape} is needed")
        for name, array in new.items():
            held = own[name]
            if isinstance(held, Tensor):
                held.data = array
            else:
                held[...] = array


def _like(held: Buffer, array: ArrayLike) -> NDArray[Any]:
    """Return an array as its place holds it."""
    if isinstance(held, Tensor):
        return Tensor(array, format=held.format).data
    return np.asarray(array).astype(held.dtype)
