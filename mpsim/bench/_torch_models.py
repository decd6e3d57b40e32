"""The models of `mpsim.bench.train` in torch; imported without torch, which only `step` needs."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

__all__ = ["step"]


def step(
    model: str, arithmetic: str, fused: bool, data: tuple[Any, Any], threads: int
) -> tuple[Callable[[], float], int]:
    """Return a step of training on so many threads, and the number of parameters.

    Parameters
    ----------
    model : {"mlp", "transformer"}
    arithmetic : {"fp32", "fp16", "bf16"}
        The last two by CPU autocast, fp16 with loss scaling.
    fused : bool
        Compute attention by scaled_dot_product_attention.
    data : pair of arrays, inputs and labels
    threads : int
    """
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network, forward = _mlp(torch) if model == "mlp" else _transformer(torch, fused)
    parameters = list(network.parameters())
    make = torch.optim.SGD if model == "mlp" else torch.optim.Adam
    optimizer = make(parameters, lr=0.01, momentum=0.9) if model == "mlp" else make(parameters, lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=arithmetic == "fp16")
    dtype = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}[arithmetic]
    x, y = (torch.from_numpy(a) for a in data)

    def run() -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            logits = forward(x)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return float(loss.detach())

    return run, sum(p.numel() for p in parameters)


def _mlp(torch: Any) -> tuple[Any, Callable[[Any], Any]]:
    nn = torch.nn
    sizes = (784, 512, 512, 10)
    layers = [part for i, o in itertools.pairwise(sizes) for part in (nn.Linear(i, o), nn.ReLU())]
    network = nn.Sequential(*layers[:-1])
    return network, network


def _transformer(torch: Any, fused: bool) -> tuple[Any, Callable[[Any], Any]]:
    """Return the layers of the transformer, and the function that they make."""
    nn = torch.nn
    width, heads, length = 128, 4, 64
    blocks = [
        {
            "norm1": nn.LayerNorm(width),
            "norm2": nn.LayerNorm(width),
            "qkv": nn.Linear(width, 3 * width),
            "out": nn.Linear(width, width),
            "up": nn.Linear(width, 4 * width),
            "down": nn.Linear(4 * width, width),
        }
        for _ in range(4)
    ]
    layers = nn.ModuleDict(
        {
            "symbols": nn.Embedding(96, width),
            "norm": nn.LayerNorm(width),
            "head": nn.Linear(width, 96, bias=False),
            "blocks": nn.ModuleList(nn.ModuleDict(block) for block in blocks),
        }
    )
    places = nn.Parameter(torch.zeros(length, width))
    layers.register_parameter("places", places)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)

    def attention(x: Any, block: Any) -> Any:
        batch = x.shape[0]
        split = block["qkv"](x).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        if fused:
            y = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = (query @ key.transpose(-1, -2)) * (width // heads) ** -0.5
            weights = scores.masked_fill(future, float("-inf")).softmax(-1)
            y = weights.to(value.dtype) @ value
        return block["out"](y.transpose(1, 2).reshape(batch, length, width))

    def forward(symbols: Any) -> Any:
        x = layers["symbols"](symbols) + places
        for block in layers["blocks"]:
            x = x + attention(block["norm1"](x), block)
            x = x + block["down"](nn.functional.gelu(block["up"](block["norm2"](x))))
        return layers["head"](layers["norm"](x))

    return layers, forward
