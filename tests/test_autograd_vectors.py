"""Results and gradients of torch in binary64, recorded for small shapes."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mpsim import nn
from mpsim.nn import functional as F  # noqa: N812 - as with torch
from mpsim.tensor import Tensor
from vectors import vectors

# The bounds that come with the vectors, 1e-12 and for the LSTM 1e-10; sums of a few terms may cancel to a hundredth.
ATOL = 1e-14

Tensors = dict[str, Tensor]


def linear(x: Tensor, t: Tensors, n: int) -> Tensor:
    return F.linear(x, t[f"w{n}"], t.get(f"b{n}"))


def mlp(t: Tensors, arrays: dict[str, Any]) -> Tensor:
    return F.cross_entropy(linear(linear(t["x"], t, 1).relu(), t, 2), arrays["in.y"])


def mlp_tanh_mse(t: Tensors, arrays: dict[str, Any]) -> Tensor:
    return F.mse_loss(linear(linear(linear(t["x"], t, 1).tanh(), t, 2).tanh(), t, 3), arrays["in.y"])


def attention(t: Tensors, _: dict[str, Any]) -> Tensor:
    batch, length, size = t["x"].shape
    q, k, v = (
        F.linear(t["x"], t[name]).reshape(batch, length, 2, size // 2).transpose(1, 2) for name in ("wq", "wk", "wv")
    )
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(y.transpose(1, 2).reshape(batch, length, size), t["wo"])


def lstm(t: Tensors, arrays: dict[str, Any]) -> Tensor:
    layer = nn.LSTM(3, 4, batch_first=True, format="fp64", rng=0)
    for name, parameter in layer.named_parameters():
        parameter.data = t[name].data
        t[name] = parameter
    output, (h, c) = layer(t["x"], (t["h0"], t["c0"]))
    np.testing.assert_allclose(h.data, arrays["h_n"], 1e-12, ATOL)
    np.testing.assert_allclose(c.data, arrays["c_n"], 1e-12, ATOL)
    return output


GRAPHS: dict[str, Callable[[Tensors, dict[str, Any]], Tensor]] = {
    "mlp.npz": mlp,
    "mlp_tanh_mse.npz": mlp_tanh_mse,
    "layernorm.npz": lambda t, _: F.layer_norm(t["x"], 8, t["w"], t["b"]),
    "softmax.npz": lambda t, _: F.softmax(t["x"], -1),
    "cross_entropy.npz": lambda t, arrays: F.cross_entropy(t["x"], arrays["in.y"]),
    "conv2d.npz": lambda t, _: F.conv2d(t["x"], t["w"], t["b"], padding=1),
    "attention_causal.npz": attention,
    "embedding.npz": lambda t, arrays: F.embedding(arrays["in.idx"], t["table"]),
    "gelu.npz": lambda t, _: F.gelu(t["x"]),
    "lstm.npz": lstm,
}
OPTIMIZERS = {"sgd_momentum.npz", "adam.npz"}


def test_every_recorded_graph_is_tested():
    index = json.loads(vectors("autograd", "index.json").read_text())
    assert {entry["file"] for entry in index["files"]} == GRAPHS.keys() | OPTIMIZERS


@pytest.mark.parametrize("file", GRAPHS)
def test_results_and_gradients_are_torchs(file: str):
    with np.load(vectors("autograd", file)) as stored:
        arrays = dict(stored)
    rtol = 1e-10 if file == "lstm.npz" else 1e-12
    tensors = {
        key.split(".")[1]: Tensor(value, requires_grad=True)
        for key, value in arrays.items()
        if key.startswith(("in.", "param.")) and value.dtype == np.float64
    }
    if "grad.y" not in arrays:
        tensors.pop("y", None)
    out = GRAPHS[file](tensors, arrays)
    np.testing.assert_allclose(out.data, arrays["out"], rtol, ATOL)
    loss = out if "cot" not in arrays else (out * arrays["cot"]).sum()
    np.testing.assert_allclose(loss.item(), arrays["loss"], rtol, ATOL)
    loss.backward()
    assert {key.removeprefix("grad.") for key in arrays if key.startswith("grad.")} == tensors.keys()
    for name, tensor in tensors.items():
        assert tensor.grad is not None
        np.testing.assert_allclose(tensor.grad.data, arrays[f"grad.{name}"], rtol, ATOL, err_msg=name)
