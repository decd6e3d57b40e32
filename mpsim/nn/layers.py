"""Layers: affine maps, activations, and their sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mpsim.formats import FormatLike
from mpsim.nn import functional
from mpsim.nn.module import Module, Parameter
from mpsim.tensor import Tensor

__all__ = ["CrossEntropyLoss", "Linear", "ReLU", "Sequential", "Tanh"]


class Linear(Module):
    """Affine map ``x @ weight.T + bias``.

    Parameters
    ----------
    in_features, out_features : int
    bias : bool
    format : FloatFormat or name
        Format of the parameters.
    rng : numpy.random.Generator or seed
        Source of the initial parameters, uniform in +-1/sqrt(in_features) as in torch. Without one they
        differ from run to run.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        format: FormatLike = "fp32",
        rng: np.random.Generator | int | None = None,
    ) -> None:
        if in_features < 0 or out_features < 0:
            raise ValueError(f"in_features is {in_features}, out_features {out_features}; neither may be negative")
        generator = np.random.default_rng(rng)
        bound = 1.0 / np.sqrt(in_features) if in_features else 0.0
        self.weight = Parameter(generator.uniform(-bound, bound, (out_features, in_features)), format=format)
        self.bias = Parameter(generator.uniform(-bound, bound, out_features), format=format) if bias else None

    def forward(self, x: Tensor | ArrayLike) -> Tensor:
        """Map ``x`` [..., in_features] to [..., out_features]."""
        return functional.linear(x, self.weight, self.bias)

    def __repr__(self) -> str:
        out_features, in_features = self.weight.shape
        return f"Linear({in_features}, {out_features}, bias={self.bias is not None})"


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor | ArrayLike) -> Tensor:
        """Apply the function to each element."""
        return functional.relu(x)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor | ArrayLike) -> Tensor:
        """Apply the function to each element."""
        return functional.tanh(x)


class Sequential(Module):
    """Modules applied one after another."""

    def __init__(self, *modules: Module) -> None:
        self._modules = modules

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the modules under their positions."""
        return ((str(i), module) for i, module in enumerate(self._modules))

    def forward(self, x: Any) -> Any:
        """Pass ``x`` through all modules."""
        for module in self._modules:
            x = module(x)
        return x

    def __getitem__(self, index: int) -> Module:
        return self._modules[index]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules)


class CrossEntropyLoss(Module):
    """Mean cross-entropy of logits and class labels."""

    def forward(self, logits: Tensor, target: ArrayLike) -> Tensor:
        """Return the loss of ``logits`` [n, classes] for labels ``target`` [n]."""
        return functional.cross_entropy(logits, target)
