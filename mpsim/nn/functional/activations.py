"""Activations."""

from __future__ import annotations

from numpy.typing import ArrayLike

from mpsim.tensor import Tensor, apply, as_tensor

__all__ = ["gelu", "log_softmax", "relu", "sigmoid", "silu", "softmax", "softplus", "tanh"]


def relu(input: Tensor | ArrayLike) -> Tensor:
    """Return max(x, 0)."""
    return as_tensor(input).relu()


def tanh(input: Tensor | ArrayLike) -> Tensor:
    """Return the hyperbolic tangent."""
    return as_tensor(input).tanh()


def sigmoid(input: Tensor | ArrayLike) -> Tensor:
    """Return 1 / (1 + exp(-x))."""
    return as_tensor(input).sigmoid()


def gelu(input: Tensor | ArrayLike, approximate: str = "none") -> Tensor:
    """Return x times the normal distribution's cumulative probability at x.

    Parameters
    ----------
    input : Tensor
    approximate : {"none", "tanh"}
        ``"tanh"`` is x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f'gelu: approximate is {approximate!r}; it must be "none" or "tanh"')
    return apply("gelu", as_tensor(input), approximate=approximate)


def silu(input: Tensor | ArrayLike) -> Tensor:
    """Return x / (1 + exp(-x))."""
    return apply("silu", as_tensor(input))


def softplus(input: Tensor | ArrayLike, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return log(1 + exp(beta x)) / beta, or x where ``beta * x`` is above ``threshold``."""
    return apply("softplus", as_tensor(input), beta=beta, threshold=threshold)


def softmax(input: Tensor | ArrayLike, dim: int = -1) -> Tensor:
    """Return exp(x) over its sum along ``dim``."""
    return as_tensor(input).softmax(dim)


def log_softmax(input: Tensor | ArrayLike, dim: int = -1) -> Tensor:
    """Return the logarithm of the softmax along ``dim``."""
    return as_tensor(input).log_softmax(dim)
