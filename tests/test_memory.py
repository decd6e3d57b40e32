import numpy as np
import pytest

from mpsim import nn
from mpsim.memory import track
from mpsim.settings import settings
from mpsim.tensor import Tensor, no_grad


def test_every_tensor_counts_in_the_bits_of_its_format():
    x = Tensor(np.ones((4, 6), np.float32))
    with track() as memory:
        for name, nbytes in (("fp16", 48), ("e4m3", 24), ("e2m1", 12), ("fp64", 192)):
            y = x.to(name)
            assert y.nbytes == nbytes
            assert memory.by_kind == {"activation": 96 + nbytes}
            del y
        assert memory.current == 96
    assert memory.peak == 96 + 192


def test_views_count_with_the_array_that_they_look_at():
    x = Tensor(np.ones((4, 6), np.float32))
    with track() as memory:
        y = (x * 2.0).reshape(6, 4).T[1:]
        assert memory.by_kind == {"activation": 2 * 96}
        del x
        assert memory.current == 96
        del y
        assert memory.current == 0


def layers(n: int, size: int, fmt: str) -> nn.Sequential:
    return nn.Sequential(*(layer for i in range(n) for layer in (nn.Linear(size, size, False, fmt, i), nn.Tanh())))


@pytest.mark.parametrize(("fmt", "width"), [("fp32", 4), ("fp16", 2)])
def test_a_step_holds_weights_and_what_the_rules_read(fmt: str, width: int):
    model, x = layers(3, 8, fmt), Tensor(np.ones((5, 8)), format=fmt)
    weight, activation = 64 * width, 40 * width
    with track() as memory:
        y = model(x)
        # The input, and the result of each tanh, which reads it and is what the next product reads.
        assert memory.by_kind == {"weight": 3 * weight, "activation": 4 * activation}
        peak = memory.peak
        assert peak == 3 * weight + 5 * activation  # and the product that the last tanh was computed from
        loss = y.sum()
        del y
        loss.backward()
        assert memory.by_kind == {
            "weight": 3 * weight,
            "weight gradient": 3 * weight,
            "activation": activation + width,  # the input and the loss
        }
        assert memory.peak > peak
        model.zero_grad()
        assert "weight gradient" not in memory.by_kind


def test_without_gradients_activations_go_as_they_come():
    model, x = layers(10, 8, "fp32"), Tensor(np.ones((5, 8), np.float32))
    with track() as memory, no_grad():
        model(x)
    assert memory.peak_by_kind["activation"] == 3 * 160  # the input, and before and after one function


def test_the_peak_of_a_deeper_model_grows_with_its_activations():
    peaks = []
    for n in (4, 8):
        model, x = layers(n, 4, "fp32"), Tensor(np.ones((100, 4), np.float32))
        with track() as memory:
            model(x).sum().backward()
        peaks.append(memory.peak_by_kind["activation"])
    assert peaks[1] - peaks[0] == 4 * 1600


def test_statistics_kept_for_the_backward_pass_count_in_fp32():
    x = Tensor(np.arange(12.0).reshape(3, 4), requires_grad=True, format="fp16")
    with track() as memory:
        y = nn.functional.layer_norm(x, 4)
        assert memory.by_kind == {"weight": 24, "activation": 24 + 2 * 3 * 4}
        del y
        assert memory.current == 24


def test_others_can_count_what_they_hold():
    state = np.ones(10, np.float32)
    with track() as memory:
        meter = settings().meter
        assert meter is memory
        meter.hold("optimizer state", state, 32)
        meter.hold("optimizer state", state[2:], 32)
        assert memory.by_kind == {"optimizer state": 40}
    assert settings().meter is None


def test_a_gradient_without_dimensions_is_held_like_any_other():
    x = Tensor([1.0, 2.0], requires_grad=True)
    with track() as memory:
        loss = x.sum() * 3.0
        (loss * 2.0).backward()
    assert memory.peak_by_kind["activation gradient"] == 4
