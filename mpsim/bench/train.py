"""How fast training steps are, beside torch's on this processor in the same run."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from mpsim import amp, nn, optim
from mpsim.bench import _torch_models as torch_models
from mpsim.bench._memory import added_bytes
from mpsim.bench._timing import module, seconds
from mpsim.memory import track
from mpsim.modes import unknown
from mpsim.observe import observe
from mpsim.tensor import Tensor
from mpsim_kernels.gemm import thread_count

__all__ = ["ARITHMETICS", "MODELS", "Model", "TrainTiming", "bench_train", "check_models", "own_step"]

Model: TypeAlias = Literal["mlp", "transformer"]
MODELS: tuple[Model, ...] = ("mlp", "transformer")
"""The MLP 784-512-512-10, batch 128, SGD with momentum; and a causal transformer of width 128, 4 layers, 4 heads,
sequence 64, batch 16, vocabulary 96, Adam."""

Step: TypeAlias = "Callable[[], float]"
"""One step of training; returns the loss."""

ARITHMETICS = {"fp32": "native", "fp16": "a100", "bf16": "h100"}
"""Formats to train in, and the units of the products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTiming:
    """Median time of a step, and of torch's in the same run."""

    model: Model
    library: str
    """``"mpsim"``; ``"torch"``, or ``"torch, fused"`` with scaled_dot_product_attention."""
    arithmetic: str
    """``"fp32"``, or the format of autocast: ``"fp16"`` with loss scaling, ``"bf16"``. Master weights are FP32."""
    unit: str
    """Matrix unit, of mpsim."""
    parameters: int
    threads: int
    steps: int
    seconds: float
    fastest: float
    slowest: float
    loss: float
    """Of a step after those that were timed."""
    simulated_bytes: int | None = None
    """Peak of all tensors of a step, each counted in its format; of mpsim."""
    process_bytes: int | None = None
    """How much the process grew by at its peak; None where it was not measured."""
    peers: dict[str, float] = field(default_factory=dict)
    """Median seconds of torch's steps by library and arithmetic, such as ``"torch fp32"``, where it is installed."""

    def of_peer(self, name: str) -> float:
        """Return how many times a peer's time a step takes."""
        return self.seconds / self.peers[name]


def bench_train(
    models: Sequence[Model] = MODELS,
    steps: int = 20,
    warmup: int = 5,
    memory: bool = True,
    seed: int = 0,
) -> list[TrainTiming]:
    """Time steps of training: gradients forgotten, forward, loss, backward, update of the weights.

    Parameters
    ----------
    models : sequence of {"mlp", "transformer"}
    steps, warmup : int
        The median of so many steps is taken, after so many that are not counted.
    memory : bool
        Measure memory too: a few steps more, each in a process of its own.
    seed : int

    Returns
    -------
    timings : list of TrainTiming
        Of each model in FP32; in FP16 on an A100 with loss scaling, in BF16 on an H100, both with FP32 master weights
        and every rounding counted; and torch's in FP32 and under CPU autocast, where torch is installed.

    Notes
    -----
    Torch gets as many threads as mpsim. Its own transformer computes attention step by step; that with one fused
    operation has rows of its own. Keep the computer otherwise idle.
    """
    check_models(models)
    timings = []
    for model in models:
        rows = [_timing(model, library, fmt, steps, warmup, memory, seed) for library, fmt in _cases(model)]
        peers = {f"{row.library} {row.arithmetic}": row.seconds for row in rows if row.library != "mpsim"}
        timings += [replace(row, peers=peers) if row.library == "mpsim" else row for row in rows]
    return timings


def check_models(models: Sequence[str]) -> None:
    """Raise a ValueError that names a model that there is not."""
    for model in models:
        if model not in MODELS:
            raise unknown("model", model, MODELS)


def _cases(model: Model) -> list[tuple[str, str]]:
    """Return libraries and arithmetics."""
    libraries = ["mpsim"]
    if module("torch") is not None:
        libraries += ["torch", *(["torch, fused"] if model == "transformer" else [])]
    return [(library, fmt) for library in libraries for fmt in ARITHMETICS]


def _timing(
    model: Model, library: str, arithmetic: str, steps: int, warmup: int, memory: bool, seed: int
) -> TrainTiming:
    step, parameters = _step(model, library, arithmetic, seed)
    for _ in range(warmup):
        step()
    times = [seconds(step) for _ in range(steps)]
    simulated = process = None
    if memory:
        process = added_bytes(partial(_work, model, library, arithmetic, seed))
        if library == "mpsim":
            with track() as meter:
                step()
            simulated = meter.peak
    return TrainTiming(
        model=model,
        library=library,
        arithmetic=arithmetic,
        unit=ARITHMETICS[arithmetic] if library == "mpsim" else "",
        parameters=parameters,
        threads=thread_count(),
        steps=steps,
        seconds=statistics.median(times),
        fastest=min(times),
        slowest=max(times),
        loss=step(),
        simulated_bytes=simulated,
        process_bytes=process,
    )


def _work(model: Model, library: str, arithmetic: str, seed: int) -> Callable[[], object]:
    """Return, with everything imported, a piece of work: a model is made and takes three steps."""
    if library != "mpsim":
        module("torch")

    def work() -> None:
        step, _ = _step(model, library, arithmetic, seed)
        for _ in range(3):
            step()

    return work


def _step(model: Model, library: str, arithmetic: str, seed: int) -> tuple[Step, int]:
    """Return a step of training, and the number of parameters."""
    if library == "mpsim":
        counting = partial(observe, histograms=False) if arithmetic != "fp32" else contextlib.nullcontext
        return own_step(model, arithmetic, seed, counting)
    return torch_models.step(model, arithmetic, library == "torch, fused", _data(model, seed), thread_count())


def _data(model: Model, seed: int) -> tuple[Any, Any]:
    """Return random inputs and labels."""
    rng = np.random.default_rng(seed)
    if model == "mlp":
        return rng.standard_normal((128, 784), dtype=np.float32), rng.integers(10, size=128)
    return rng.integers(96, size=(16, 64)), rng.integers(96, size=(16, 64))


def own_step(
    model: Model, arithmetic: str, seed: int, around: Callable[[], contextlib.AbstractContextManager[Any]]
) -> tuple[Step, int]:
    """Return a step of training with mpsim inside a context, and the number of parameters."""
    rng = np.random.default_rng(seed)
    network = _mlp(rng) if model == "mlp" else _Transformer(rng)
    parameters = list(network.parameters())
    optimizer = optim.SGD(parameters, 0.01, momentum=0.9) if model == "mlp" else optim.Adam(parameters, 1e-3)
    x, y = _data(model, seed)
    low = arithmetic != "fp32"
    scaler = amp.GradScaler(enabled=arithmetic == "fp16")

    def step() -> float:
        with around():
            optimizer.zero_grad()
            with amp.autocast(arithmetic, unit=ARITHMETICS[arithmetic], enabled=low):
                logits = network(x)
                loss = nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return loss.item()

    return step, sum(p.size for p in parameters)


def _mlp(rng: np.random.Generator) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(784, 512, rng=rng),
        nn.ReLU(),
        nn.Linear(512, 512, rng=rng),
        nn.ReLU(),
        nn.Linear(512, 10, rng=rng),
    )


class _Transformer(nn.Module):
    """A causal language model of width 128 with 4 layers of 4 heads, for 64 of 96 symbols."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.symbols = nn.Embedding(96, 128, rng=rng)
        self.places = nn.Parameter(np.zeros((64, 128), np.float32))
        self.blocks = nn.ModuleList(
            nn.TransformerBlock(128, 4, 512, 0.0, "gelu", batch_first=True, rng=rng) for _ in range(4)
        )
        self.norm = nn.LayerNorm(128)
        self.head = nn.Linear(128, 96, bias=False, rng=rng)

    def forward(self, symbols: Any) -> Tensor:
        """Map symbols [batch, 64] to logits [batch, 64, 96]."""
        x = self.symbols(symbols) + self.places
        for block in self.blocks:
            x = block(x, is_causal=True)
        logits: Tensor = self.head(self.norm(x))
        return logits
