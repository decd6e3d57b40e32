"""Layers and losses under torch's names."""

from mpsim.nn import functional
from mpsim.nn.activations import (
    GELU,
    AvgPool1d,
    AvgPool2d,
    Flatten,
    LogSoftmax,
    MaxPool1d,
    MaxPool2d,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from mpsim.nn.affine import Conv1d, Conv2d, Embedding, Linear
from mpsim.nn.containers import ModuleList, Sequential
from mpsim.nn.losses import BCEWithLogitsLoss, CrossEntropyLoss, HuberLoss, MSELoss, NLLLoss
from mpsim.nn.module import Module, Parameter
from mpsim.nn.normalisation import BatchNorm1d, BatchNorm2d, Dropout, LayerNorm, RMSNorm
from mpsim.nn.recurrent import GRU, LSTM, RNN
from mpsim.nn.serialisation import load, save
from mpsim.nn.transformer import MultiheadAttention, TransformerBlock

__all__ = [
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "AvgPool1d",
    "AvgPool2d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv1d",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "HuberLoss",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "Module",
    "ModuleList",
    "MultiheadAttention",
    "NLLLoss",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "TransformerBlock",
    "functional",
    "load",
    "save",
]
