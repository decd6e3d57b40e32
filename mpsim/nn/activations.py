"""Layers without state: activations and pooling."""

from __future__ import annotations

from numpy.typing import ArrayLike

from mpsim.nn import functional
from mpsim.nn.functional.products import Size
from mpsim.nn.module import Module
from mpsim.tensor import Tensor, as_tensor

__all__ = [
    "GELU",
    "AvgPool1d",
    "AvgPool2d",
    "Flatten",
    "LogSoftmax",
    "MaxPool1d",
    "MaxPool2d",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
]


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Apply the function to each element."""
        return functional.relu(input)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Apply the function to each element."""
        return functional.tanh(input)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Apply the function to each element."""
        return functional.sigmoid(input)


class GELU(Module):
    """x times the normal distribution's cumulative probability at x; ``approximate`` may be ``"tanh"``."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Apply the function to each element."""
        return functional.gelu(input, self.approximate)


class SiLU(Module):
    """x / (1 + exp(-x))."""

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Apply the function to each element."""
        return functional.silu(input)


class Softplus(Module):
    """log(1 + exp(beta x)) / beta."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Apply the function to each element."""
        return functional.softplus(input, self.beta, self.threshold)


class Softmax(Module):
    """exp(x) over its sum along ``dim``."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Apply the function along the dimension."""
        return functional.softmax(input, self.dim)


class LogSoftmax(Module):
    """Logarithm of the softmax along ``dim``."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Apply the function along the dimension."""
        return functional.log_softmax(input, self.dim)


class Flatten(Module):
    """A range of dimensions made one; all but the first unless given."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Return the same elements with fewer dimensions."""
        return as_tensor(input).flatten(self.start_dim, self.end_dim)


class MaxPool2d(Module):
    """The largest element of each window; see `functional.max_pool2d`."""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1) -> None:
        self.kernel_size, self.stride, self.padding, self.dilation = kernel_size, stride, padding, dilation

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Map ``input`` [..., rows, columns] to one element for each window."""
        return functional.max_pool2d(input, self.kernel_size, self.stride, self.padding, self.dilation)


class MaxPool1d(MaxPool2d):
    """The largest element of each window; see `functional.max_pool1d`."""

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Map ``input`` [..., length] to one element for each window."""
        return functional.max_pool1d(input, self.kernel_size, self.stride, self.padding, self.dilation)


class AvgPool2d(Module):
    """The mean of each window; see `functional.avg_pool2d`."""

    def __init__(
        self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, count_include_pad: bool = True
    ) -> None:
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Map ``input`` [..., rows, columns] to one element for each window."""
        return functional.avg_pool2d(input, self.kernel_size, self.stride, self.padding, self.count_include_pad)


class AvgPool1d(AvgPool2d):
    """The mean of each window; see `functional.avg_pool1d`."""

    def forward(self, input: Tensor | ArrayLike) -> Tensor:
        """Map ``input`` [..., length] to one element for each window."""
        return functional.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.count_include_pad)
