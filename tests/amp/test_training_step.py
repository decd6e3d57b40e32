"""The engine against a step written out by hand."""

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import amp, nn, optim
from mpsim.formats import BF16, FP16, FP32, FloatFormat
from mpsim.tensor import Tensor
from reference import training as twin

SIZES = (5, 6, 4, 3)
BATCH = 4


def bits32(x: object) -> np.ndarray:
    return np.array(x, np.float32)


@pytest.mark.parametrize(
    ("unit", "fmt", "scale", "magnitude"),
    [
        ("v100", FP16, 1.0, 1.0),
        ("v100", FP16, 1024.0, 1.0),
        ("v100", FP16, 1.0, 2.0**-14),  # most gradients are subnormal in FP16, or lost
        ("v100", FP16, 1000.1, 1.0),  # 1/scale is rounded
        ("a100", FP16, 65536.0, 2.0**-9),
        ("a100", BF16, 1.0, 1.0),
    ],
)
def test_a_step_is_that_of_the_twin_bit_for_bit(unit: str, fmt: FloatFormat, scale: float, magnitude: float):
    rng = np.random.default_rng(7)
    model = nn.Sequential(
        nn.Linear(SIZES[0], SIZES[1], rng=rng),
        nn.ReLU(),
        nn.Linear(SIZES[1], SIZES[2], rng=rng),
        nn.ReLU(),
        nn.Linear(SIZES[2], SIZES[3], rng=rng),
    )
    x = rng.normal(size=(BATCH, SIZES[0])).astype(np.float32)
    labels = np.array([0, 2, 1, 2])
    scale, lr = float(np.float32(scale * magnitude)), float(np.float32(0.1))
    linears = [m for m in model if isinstance(m, nn.Linear)]
    layers = [twin.Layer(m.weight.data.tolist(), m.bias.data.tolist()) for m in linears]
    want = twin.step(layers, x.tolist(), labels.tolist(), scale, lr, twin.unit_twin(unit, fmt))

    activations: list[Tensor] = []
    optimizer = optim.SGD(model.parameters(), lr=lr)
    scaler = amp.ConstantScaler(scale)
    with amp.autocast(fmt, unit=unit):
        h: Tensor = Tensor(x)
        for module in model:
            h = module(h)
            if isinstance(module, nn.Linear):
                h.retain_grad()
                activations.append(h)
        loss = nn.functional.cross_entropy(h, labels)
    scaler.scale(loss).backward()

    for got, expected in zip(activations, want.activations, strict=True):
        assert got.format is fmt
        assert_same_bits(got.data, bits32(expected))
    assert loss.format is FP32
    assert_same_bits(loss.data, bits32(want.loss))
    for tensor, expected in zip(reversed(activations), want.activation_gradients, strict=True):
        assert tensor.grad.format is fmt
        assert_same_bits(tensor.grad.data, bits32(expected))
    for layer, expected in zip(reversed(linears), want.gradients, strict=True):
        assert layer.weight.grad.format is FP32
        assert_same_bits(layer.weight.grad.data, bits32(expected.weight))
        assert_same_bits(layer.bias.grad.data, bits32(expected.bias))

    scaler.step(optimizer)
    scaler.update()
    assert scaler.skipped == 0
    for layer, expected in zip(linears, want.updated, strict=True):
        assert_same_bits(layer.weight.data, bits32(expected.weight))
        assert_same_bits(layer.bias.data, bits32(expected.bias))


def test_the_twin_sees_what_the_format_loses():
    layers = [twin.Layer([[0.5, -0.25], [0.25, 0.5]], [0.0, 0.0])]
    unit = twin.unit_twin("v100", FP16)
    lost = twin.step(layers, [[1.0, 1.0]], [0], 2.0**-26, 0.5, unit)
    kept = twin.step(layers, [[1.0, 1.0]], [0], 1.0, 0.5, unit)
    assert lost.updated[0].weight == layers[0].weight
    assert kept.updated[0].weight != layers[0].weight
