"""Modules that hold others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, overload

from mpsim.nn.module import Module

__all__ = ["ModuleList", "Sequential"]


class _Ordered(Module):
    """Modules known by their positions."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self._modules = list(modules)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the modules under their positions."""
        return ((str(i), module) for i, module in enumerate(self._modules))

    def _part(self, modules: list[Module]) -> Any:
        return type(self)(modules)

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> Any: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._part(self._modules[index]) if isinstance(index, slice) else self._modules[index]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules)


class Sequential(_Ordered):
    """Modules applied one after another."""

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def _part(self, modules: list[Module]) -> Sequential:
        return Sequential(*modules)

    def forward(self, input: Any) -> Any:
        """Pass ``input`` through all modules."""
        for module in self._modules:
            input = module(input)
        return input


class ModuleList(_Ordered):
    """A list of modules; it has no ``forward`` of its own."""

    def append(self, module: Module) -> ModuleList:
        """Add a module; returns the list."""
        self._modules.append(module)
        return self

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Add modules; returns the list."""
        self._modules.extend(modules)
        return self
