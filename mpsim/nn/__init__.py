"""Layers and losses under torch's names."""

from mpsim.nn import functional
from mpsim.nn.layers import CrossEntropyLoss, Linear, ReLU, Sequential, Tanh
from mpsim.nn.module import Module, Parameter

__all__ = ["CrossEntropyLoss", "Linear", "Module", "Parameter", "ReLU", "Sequential", "Tanh", "functional"]
