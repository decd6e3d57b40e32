import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import amp, nn, optim
from mpsim.amp.adaptive import AdaptiveTraining, Controller, Decision
from mpsim.amp.controllers import DiversitySwitch, DynamicLossScale, LayerScales, NoiseBudget, Phases, sampling_share
from mpsim.amp.statistics import StepStatistics, TensorStatistics, tensor_statistics
from mpsim.counters import Counters
from mpsim.formats import FP32

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
LABELS = np.arange(8) % 3
BLANK = StepStatistics(0, 1.0, True, {}, {}, {}, {}, 0.0, {}, 2)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6, rng=0), nn.ReLU(), nn.Linear(6, 3, rng=1))


def train(
    controller: Controller, steps: int, factor: float = 1.0, model: nn.Module | None = None, lr: float = 0.1
) -> AdaptiveTraining:
    model = model or network()
    training = AdaptiveTraining(model, optim.SGD(model.parameters(), lr=lr / factor), controller, window=2)
    for _ in range(steps):
        training.step(lambda: nn.functional.cross_entropy(model(X), LABELS) * factor)
    return training


def test_a_dynamic_loss_scale_gives_the_bits_of_a_loop_with_a_scaler():
    rule = dataclasses.replace(amp.RULES["torch"], start=2.0**20, interval=3)
    training = train(DynamicLossScale(rule, unit="v100"), 12)
    model, scaler = network(), amp.LossScaler(rule)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scales = []
    for _ in range(12):
        scales.append(scaler.get_scale())
        optimizer.zero_grad()
        with amp.autocast("fp16", unit="v100"):
            loss = nn.functional.cross_entropy(model(X), LABELS)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert [decision.loss_scale for decision, _ in training.history] == scales
    assert training.skipped == scaler.skipped > 0
    for got, want in zip(training.model.parameters(), model.parameters(), strict=True):
        assert_same_bits(got.data, want.data)


def small_weights() -> nn.Sequential:
    """Return a network whose last layer shrinks gradients by about 2**-11."""
    model = network()
    model[2].weight.data = model[2].weight.data * np.float32(2.0**-10)
    return model


def test_layer_scales_save_gradients_that_underflow_without_them():
    factor = 2.0**-12
    plain = train(Phases([(0, "fp16")]), 2, factor, small_weights(), lr=0.0)
    scaled = train(LayerScales("fp16"), 2, factor, small_weights(), lr=0.0)
    lost = [t.history[1][1].input_gradients["2"].underflows for t in (plain, scaled)]
    assert lost[0] > 0.3
    assert lost[1] < 0.01
    assert scaled.decision.layer_scales["2"] > 1
    assert all(math.log2(a).is_integer() for a in scaled.decision.layer_scales.values())


class Fixed:
    """Decides always the same."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    def first(self) -> Decision:
        return self.decision

    def next(self, now: Decision, statistics: StepStatistics) -> Decision:
        return self.decision


def test_powers_of_two_on_gradients_do_not_change_what_is_within_the_range():
    scaled = train(Fixed(Decision(loss_scale=2.0, layer_scales={"0": 8.0, "2": 0.25})), 3)
    plain = train(Fixed(Decision()), 3)
    for got, want in zip(scaled.model.parameters(), plain.model.parameters(), strict=True):
        assert_same_bits(got.data, want.data)


def test_layer_scales_give_way_after_an_overflow():
    controller = LayerScales("fp16")
    now = Decision(format="fp16", layer_scales={"0": 8.0})
    now = controller.next(now, dataclasses.replace(BLANK, finite=False))
    assert now.layer_scales == {"0": 4.0}


def test_phases_hold_from_their_step_on():
    training = train(Phases([(0, "bf16"), (2, "fp16", "v100"), (3, "fp32")], loss_scale=4.0), 5)
    assert [d.format for d, _ in training.history] == ["bf16", "bf16", "fp16", "fp32", "fp32"]
    assert [d.unit for d, _ in training.history][1:3] == [None, "v100"]
    for wrong in ([], [(1, "fp16")], [(0, "fp16"), (0, "fp32")]):
        with pytest.raises(ValueError, match="phases start at"):
            Phases(wrong)


def statistics_of(x: np.ndarray) -> TensorStatistics:
    return tensor_statistics(x, x, FP32, Counters(), 1.0)


def fed(controller: Controller, diversities: Sequence[float]) -> list[str]:
    now, formats = controller.first(), []
    for step, diversity in enumerate(diversities):
        now = controller.next(now, dataclasses.replace(BLANK, step=step, diversity={"0": diversity, "1": diversity}))
        formats.append(now.format)
    return formats


def test_a_format_is_widened_when_diversity_has_sunk_often_enough():
    controller = DiversitySwitch(["e5m2", "fp16", "fp32"], alpha=1.0, beta=0.0, patience=2)
    # Each change is a window; the largest over the present one is above 1 at 0.8 and 0.7, then at 0.5 and 0.4.
    assert fed(controller, [0.9, 0.8, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]) == ["e5m2"] * 3 + ["fp16"] * 3 + ["fp32"] * 3
    assert fed(DiversitySwitch(["e5m2", "fp16"], beta=0.0), [0.5, 0.6, 0.7, 0.8]) == ["e5m2"] * 4
    with pytest.raises(ValueError, match="ladder is empty"):
        DiversitySwitch([])


def test_a_window_of_zero_gradients_does_not_widen_the_format():
    def switch() -> DiversitySwitch:
        return DiversitySwitch(["e5m2", "fp16"], alpha=1.0, beta=0.0, patience=1)

    assert fed(switch(), [0.5, math.inf, 0.6, 0.7, 0.8]) == ["e5m2"] * 5
    assert fed(switch(), [0.5, math.inf, 0.4]) == ["e5m2", "e5m2", "fp16"]
    controller, formats = switch(), []
    for other in (0.6, 0.7, 0.8, 0.7):  # beside a layer that has no gradient
        statistics = dataclasses.replace(BLANK, diversity={"0": math.inf, "1": other})
        formats.append(controller.next(controller.first(), statistics).format)
    assert formats == ["e5m2", "e5m2", "e5m2", "fp16"]


def test_the_threshold_decays():
    controller = DiversitySwitch(["e5m2", "fp16"], alpha=1.0, beta=1.0, decay=1.0, patience=1)
    # Ratio 1.2 against 1 + exp(-j): above it first in the second window.
    assert fed(controller, [1.2, 1.0]) == ["e5m2", "fp16"]
    slow = DiversitySwitch(["e5m2", "fp16"], alpha=1.0, beta=1.0, decay=0.1, patience=1)
    assert fed(slow, [1.2, 1.0]) == ["e5m2", "e5m2"]


def test_a_share_of_sampling_noise():
    rng, r = np.random.default_rng(2), 8
    gradients = rng.normal(1.0, 2.0, size=(r, 100000))  # mean 1, noise of variance 4: a share of 0.8
    diversity = np.sum(gradients**2) / np.sum(gradients.sum(axis=0) ** 2)
    assert abs(sampling_share(float(diversity), r) - 0.8) < 0.01  # some 30 standard errors of 1e5 elements
    assert (sampling_share(math.inf, 4), sampling_share(5.0, 4)) == (1.0, 1.0)
    with pytest.raises(ValueError, match="window is 1"):
        sampling_share(0.5, 1)


def test_the_share_is_that_of_the_window_over_which_diversity_was_taken():
    # 1 - (1/0.25 - 1)/(r - 1): nothing over 4 steps, 0.8 over 16.
    one = statistics_of(np.float32([1.0, 1.5]))
    for window, want in ((4, "fp32"), (16, "e5m2")):
        controller = NoiseBudget(("e5m2", "fp32"), budget=1.0, patience=1)
        seen = dataclasses.replace(BLANK, diversity={"0": 0.25}, window=window, weight_gradients={"0": one})
        now = controller.next(controller.first(), seen)
        assert now.layers.get("0", now.format) == want
    assert {s.window for _, s in train(Fixed(Decision()), 2).history} == {2}


def test_a_larger_budget_gives_narrower_formats():
    chosen = {}
    for budget in (1e-9, 1e-4, 10.0):
        training = train(NoiseBudget(("e5m2", "fp16", "fp32"), budget, patience=2), 10)
        chosen[budget] = {training.decision.layers.get(name, training.decision.format) for name in ("0", "2")}
    assert chosen == {1e-9: {"fp32"}, 1e-4: chosen[1e-4], 10.0: {"e5m2"}}
    assert "fp16" in chosen[1e-4]


def test_two_runs_give_the_same_bits():
    runs = [train(NoiseBudget(budget=0.1), 8) for _ in range(2)]
    for a, b in zip(*(run.model.parameters() for run in runs), strict=True):
        assert_same_bits(a.data, b.data)
    assert [d for d, _ in runs[0].history] == [d for d, _ in runs[1].history]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LayerScales(underflow=1.0), "underflow is 1"),
        (lambda: LayerScales(interval=0), "interval is 0"),
        (lambda: NoiseBudget(budget=0.0), "budget is 0"),
        (lambda: NoiseBudget(()), "ladder is empty"),
        (lambda: Phases([(0, "fp61")]), "fp61"),
    ],
)
def test_a_wrong_argument_is_named(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()
