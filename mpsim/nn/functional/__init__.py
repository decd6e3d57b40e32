"""Functions on tensors, as in torch.nn.functional."""

from mpsim.nn.functional.activations import (
    gelu,
    log_softmax,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
)
from mpsim.nn.functional.attention import scaled_dot_product_attention
from mpsim.nn.functional.losses import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    mse_loss,
    nll_loss,
)
from mpsim.nn.functional.normalisation import batch_norm, dropout, layer_norm, rms_norm
from mpsim.nn.functional.pooling import avg_pool1d, avg_pool2d, max_pool1d, max_pool2d
from mpsim.nn.functional.products import conv1d, conv2d, embedding, linear

__all__ = [
    "avg_pool1d",
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy_with_logits",
    "conv1d",
    "conv2d",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "huber_loss",
    "layer_norm",
    "linear",
    "log_softmax",
    "max_pool1d",
    "max_pool2d",
    "mse_loss",
    "nll_loss",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
]
