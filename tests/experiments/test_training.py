import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from mpsim import datasets
from mpsim.experiments import training
from mpsim.experiments.training import Arm, Measured, Schedule, accuracy, train
from mpsim.observe import Histogram
from mpsim.tensor import Tensor

IMAGES = 1438
SCHEDULE = Schedule(seed=0, epochs=1, batch_size=128, hidden=6, momentum=0.0, growth_interval=3)
PLAIN = Arm(name="plain", part="", compute="fp32", weights="fp32", unit="native", loss_scale=None, lr=0.1)


def run(schedule: dict[str, Any] | None = None, **arm: Any) -> Measured:
    return train(dataclasses.replace(PLAIN, **arm), dataclasses.replace(SCHEDULE, **(schedule or {})))


@pytest.fixture(scope="module")
def plain() -> Measured:
    return run()


@pytest.fixture(scope="module")
def low() -> Measured:
    return run(compute="fp16", loss_factor=2.0**-20, lr=0.1 * 2**20, histogram=True)


def test_a_short_training_learns(plain: Measured):
    longer = run({"epochs": 6, "batch_size": 16})
    assert len(longer.losses) == 6
    assert list(longer.losses) == sorted(longer.losses, reverse=True)
    assert plain.losses[0] < math.log(10) * 1.05  # chance, at first
    assert longer.accuracy > 0.7  # chance is 0.1


def test_the_same_seed_gives_the_same_numbers(plain: Measured):
    assert run() == plain


def test_another_seed_gives_other_initial_weights(plain: Measured):
    still = [run({"seed": seed}, lr=0.0).losses[0] for seed in (0, 1)]
    assert abs(still[0] - still[1]) > 1e-4  # the order of the images moves the mean by rounding alone
    assert run({"seed": 1}).losses != plain.losses


def test_another_seed_gives_another_order_of_the_images(plain: Measured, monkeypatch: pytest.MonkeyPatch):
    network = training._network
    monkeypatch.setattr(
        training, "_network", lambda schedule, *sizes: network(dataclasses.replace(schedule, seed=0), *sizes)
    )
    assert run() == plain
    assert run({"seed": 1}).losses != plain.losses


def test_steps_cover_every_image_once_in_a_pass(plain: Measured):
    assert plain.steps == math.ceil(IMAGES / 128)
    assert run({"epochs": 2, "batch_size": 2000}).steps == 2


def test_without_a_pass_there_is_an_untrained_network():
    untrained = run({"epochs": 0})
    assert (untrained.steps, untrained.losses) == (0, ())
    assert math.isnan(untrained.updates_lost)
    assert math.isnan(untrained.underflow)
    assert 0.0 <= untrained.accuracy <= 0.5


def test_the_mean_loss_of_a_pass_with_no_learning_is_that_of_the_data():
    still = run({"epochs": 2}, lr=0.0)
    # The same sum in another order: 1438 terms of order 1, means of batches rounded to 24 bits.
    assert still.losses[0] == pytest.approx(still.losses[1], rel=1e-6)
    assert math.isnan(still.updates_lost)


def test_a_power_of_two_as_loss_factor_or_loss_scale_changes_no_bit_in_fp32(plain: Measured):
    """FP32 has the range: dividing by the power again is exact."""
    for changes in ({"loss_factor": 2.0**-20, "lr": 0.1 * 2**20}, {"loss_scale": 1024.0}):
        other = run(**changes)
        assert (other.losses, other.accuracy) == (plain.losses, plain.accuracy)


def test_small_gradients_underflow_in_fp16_and_not_in_fp32_and_less_with_a_loss_scale(low: Measured):
    wide = run(loss_factor=2.0**-20, lr=0.1 * 2**20)
    scaled = run(compute="fp16", loss_factor=2.0**-20, lr=0.1 * 2**20, loss_scale=2.0**15)
    assert wide.underflow == 0
    assert 0 < scaled.underflow < low.underflow < low.zero <= 1
    assert wide.subnormal == 0 < low.subnormal


def test_shares_are_of_the_gradients_of_linear_and_relu_outputs(low: Measured):
    # A step of b images has gradients of three linear layers (6, 6 and 10) and two ReLUs (6 and 6): 34 b.
    elements = IMAGES * (6 + 6 + 10 + 6 + 6)
    for share in (low.zero, low.underflow, low.subnormal):
        assert share * elements == pytest.approx(round(share * elements), abs=1e-6)  # a count over all elements
    # Every nonzero gradient before rounding is in the histogram; zeros before are zero after.
    zeros_before = round((low.zero - low.underflow) * elements)
    assert sum(low.counts) == elements - zeros_before


def test_the_histogram_agrees_with_the_share_that_underflows(low: Measured):
    elements = IMAGES * 34
    by_exponent = dict(zip(low.exponents, low.counts, strict=True))
    below = sum(n for e, n in by_exponent.items() if e < -25)
    tie_binade = by_exponent.get(-25, 0)  # of these only 2**-25 itself is lost
    assert below <= round(low.underflow * elements) <= below + tie_binade
    assert min(low.exponents) >= Histogram.LOWEST


def test_without_a_histogram_none_is_kept(plain: Measured):
    assert (plain.exponents, plain.counts) == ((), ())


def test_a_dynamic_scale_grows_and_backs_off_and_its_skips_are_noted():
    measured = run({"epochs": 2}, compute="fp16", loss_scale=math.inf, loss_factor=64.0, lr=0.1 / 64)
    assert len(measured.scales) == measured.steps
    assert measured.scales[0] == 65536.0
    assert measured.skipped
    scale, clean = 65536.0, 0
    for step, seen in enumerate(measured.scales):
        assert seen == scale
        if step in measured.skipped:
            scale, clean = scale / 2, 0
        elif (clean := clean + 1) == SCHEDULE.growth_interval:
            scale, clean = scale * 2, 0


def test_constant_and_no_scale_have_no_curve_of_scales(plain: Measured):
    assert plain.scales == ()
    assert run(loss_scale=8.0).scales == ()


def test_narrow_weights_lose_updates_that_fp32_weights_keep(plain: Measured):
    narrow = run(compute="bf16", weights="bf16", lr=0.002)
    kept = run(compute="bf16", lr=0.002)
    assert kept.updates_lost < 0.05 < 0.5 < narrow.updates_lost <= 1


def test_the_library_leaves_global_random_state_alone():
    np.random.seed(0)  # noqa: NPY002 - the state that must not change
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    run({"batch_size": 2000})
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_accuracy_is_the_share_of_largest_logits_that_are_right():
    class Fixed:
        def __call__(self, x: np.ndarray) -> Tensor:
            return Tensor(np.tile([0.0, 2.0, 1.0], (len(x), 1)))

    data = datasets.Dataset(
        x=np.zeros((5, 1), np.float32), y=np.array([1, 1, 0, 2, 1]), name="", split="test", licence="", source=""
    )
    assert accuracy(Fixed(), data, PLAIN) == 0.6  # type: ignore[arg-type]
