import math

import numpy as np
import pytest

from mpsim import amp, nn
from mpsim.amp.statistics import Collector, Diversity, expected_noise, tensor_statistics
from mpsim.counters import Counters
from mpsim.formats import FP16, FP32, get_format
from mpsim.rounding import round_to
from mpsim.tensor import Tensor


def statistics(values, fmt: str, scale: float = 1.0):
    counters = Counters()
    before = np.asarray(values, np.float32)
    return tensor_statistics(before, round_to(before, fmt, counters=counters), get_format(fmt), counters, scale)


def test_the_numbers_of_a_tensor():
    found = statistics([3.0, 4.0, 2.0**-26, 1e6], "fp16", scale=2.0)
    assert (found.shape, found.underflows, found.saturations, found.largest) == ((4,), 0.25, 0.25, 5e5)
    assert found.sqnr == -math.inf
    assert (found.exponents[0], found.exponents[-1], found.counts.sum()) == (-26, 19, 4)
    exact = statistics([3.0, 4.0], "fp16", scale=2.0)
    assert (exact.norm, exact.rms, exact.sqnr) == (2.5, 2.5 / math.sqrt(2), math.inf)
    # 1 + 2**-11 loses 2**-11: a share of 2**-22 / (1 + 2**-11)**2 of its square.
    assert statistics([1 + 2.0**-11], "fp16").sqnr == 10 * math.log10((1 + 2.0**-11) ** 2 / 2.0**-22)


def test_a_histogram_has_the_exponents_that_occur():
    found = statistics([0.0, 3.0, -2.0, 2.0**-149, np.inf, np.nan], "fp32")
    assert (found.exponents.tolist(), found.counts.tolist()) == ([-149, 1], [1, 2])
    assert found.exponents.dtype == found.counts.dtype == np.int64


def test_noise_without_a_signal_is_the_worst():
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    assert tensor_statistics(zero, one, FP16, Counters(), 1.0).sqnr == -math.inf
    assert tensor_statistics(zero, zero, FP16, Counters(), 1.0).sqnr == math.inf


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e5m2", "e4m3"])
@pytest.mark.parametrize("scale", [1.0, 2.0**-12, 2.0**-20])
def test_the_noise_foreseen_from_a_histogram_is_that_of_rounding(fmt: str, scale: float):
    x = (np.random.default_rng(1).normal(size=20000) * scale).astype(np.float32)
    rounded = round_to(x, fmt)
    want = float(np.sum((rounded - x.astype(np.float64)) ** 2) / np.sum(x.astype(np.float64) ** 2))
    # The density falls within a binade, which an even spread does not know: within a factor of 1.5.
    assert want / 1.5 < expected_noise(statistics(x, "fp32"), fmt) < want * 1.5


def test_an_element_that_overflows_is_a_loss_of_everything():
    found = statistics([1.0, 2.0**16], "fp32")
    assert expected_noise(found, "fp16") == 1
    assert expected_noise(statistics([0.5, 2.0**15], "fp32"), "fp16") < 2.0**-20


@pytest.mark.parametrize("fmt", ["fp16", "e5m2", "e4m3"])
def test_the_noise_of_each_binade_about_the_smallest_numbers_is_that_of_rounding(fmt: str):
    emin, p = get_format(fmt).emin, get_format(fmt).p
    for e in range(emin - p - 3, emin + 2):
        # Even in [2**e, 2**(e+1)), and never on a midpoint.
        x = np.float32(2.0**e) * (1 + (np.arange(2**16, dtype=np.float32) + np.float32(0.5)) * np.float32(2.0**-16))
        exact = x.astype(np.float64)
        want = float(np.sum((round_to(x, fmt) - exact) ** 2) / np.sum(exact**2))
        # 64 elements or more to each spacing: the mean square is too small by 2**-12 at most.
        assert expected_noise(statistics(x, "fp32"), fmt) == pytest.approx(want, rel=2.0**-11)
        assert (want == 1) == (e < emin - p)


def test_diversity_is_the_share_of_squares_that_the_sum_keeps():
    diversity = Diversity(3)
    for step in range(3):
        assert diversity.last == {}
        diversity.add({"same": np.ones(4), "orthogonal": np.eye(3)[step], "none": np.zeros(2)})
    assert diversity.last == {"same": 1 / 3, "orthogonal": 1.0, "none": math.inf}
    with pytest.raises(ValueError, match="window is 1"):
        Diversity(1)


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3, rng=0), nn.ReLU(), nn.Linear(3, 2, rng=1))


def collect(model: nn.Sequential, factor: float, layer_scales: dict[str, float], low: bool = True) -> Collector:
    collector = Collector(model, layer_scales, factor)
    model.zero_grad()
    with collector.forward(), amp.autocast("fp16", enabled=low):
        y = model(np.array([[1.0, 2.0], [0.3, 0.1]], np.float32))
        loss = (y * y * y).sum()
    with collector.backward():
        (loss * Tensor(factor)).backward()
    return collector


def test_a_collector_finds_each_layers_gradients_before_they_were_rounded(model: nn.Sequential):
    found = collect(model, 2.0**-12, {})
    assert list(found.weight_gradients) == ["2", "0"]
    for name, layer in (("0", model[0]), ("2", model[2])):
        its = found.weight_gradients[name]
        assert (its.shape, its.format) == (layer.weight.shape, FP16)
        assert 20 < its.sqnr < 120  # rounded, not the FP32 copy of what was rounded
        assert its.counts.sum() > 0
    assert found.activation_gradients["2"].format is FP16
    assert all("forward" not in vars(layer) for layer in model)


def test_statistics_divide_the_scales_out(model: nn.Sequential):
    plain = collect(model, 1.0, {}, low=False)
    scaled = collect(model, 8.0, {"2": 4.0, "0": 2.0}, low=False)
    assert plain.weight_gradients["0"].format is FP32
    for of in (lambda c: c.weight_gradients, lambda c: c.activation_gradients):
        for name in ("0", "2"):
            assert of(plain)[name].norm == of(scaled)[name].norm  # powers of two
    assert scaled.weight_scales == {"2": 32.0, "0": 64.0}
    assert scaled.activation_gradients["0"].scale == 32.0


def test_a_layer_scale_needs_a_layer(model: nn.Sequential):
    with pytest.raises(ValueError, match="has '1'; the layers are 0, 2"):
        Collector(model, {"1": 2.0}, 1.0)
