import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim.amp import RULES, ScaleRule, loss_scaler
from mpsim.formats import BF16, FP32
from mpsim.tensor import Tensor
from reference.loss_scalers import SCALERS

NAMES = tuple(SCALERS)


def exponents(rule: ScaleRule, pattern: str) -> list[int]:
    """Return log2 of the scale after each step of a pattern: ``.`` clean, ``i`` overflow."""
    state, found = rule.init(), []
    for c in pattern:
        state = rule.adjust(state, finite=c == ".")
        found.append(int(math.log2(state.scale)))
    return found


def with_window(name: str, **changes: Any) -> ScaleRule:
    return dataclasses.replace(RULES[name], start=2.0**16, interval=4, **changes)


# The same script for all: start 2**16, window 4.

PATTERN = "....i.i....ii.....i...i...."
COMMON = [16, 16, 16, 17, 16, 16, 15, 15, 15, 15, 16, 15, 14, 14, 14, 14, 15, 15, 14, 14, 14, 14, 13, 13, 13, 13, 14]
MEGATRON = [16, 16, 16, 17, 17, 17, 16, 16, 16, 16, 17, 17, 16, 16, 16, 16, 17, 17, 17, 17, 17, 17, 16, 16, 16, 16, 17]
DEEPSPEED = [16] * 6 + [15] * 5 + [14, 13, 13, 13, 13, 13, 14, 14, 14, 14, 14, 13, 13, 13, 13, 13]


@pytest.mark.parametrize("name", NAMES)
def test_one_script_moves_each_scale_as_in_its_system(name: str):
    want = {"megatron": MEGATRON, "deepspeed": DEEPSPEED}.get(name, COMMON)
    assert exponents(with_window(name), PATTERN) == want


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("overflows", [0.02, 0.2, 0.5, 0.9])
def test_a_long_random_run_equals_the_twin_in_every_step(name: str, overflows: float):
    rng = np.random.default_rng(5)
    for window in (1, 2, 5):
        rule = dataclasses.replace(RULES[name], start=2.0**16, interval=window)
        twin, state = SCALERS[name](2.0**16, window), rule.init()
        for overflow in rng.random(300) < overflows:
            if not 2.0**-100 < twin.scale < 2.0**100:
                break
            try:
                twin.update(bool(overflow))
            except FloatingPointError:
                with pytest.raises(FloatingPointError):
                    rule.adjust(state, finite=False)
                break
            state = rule.adjust(state, finite=not overflow)
            assert state.scale == twin.scale


@pytest.mark.parametrize("tolerance", [0.1, 0.3, 0.6])
def test_fairseqs_tolerance_is_a_share_of_the_steps_since_the_last_change(tolerance: float):
    rule = with_window("fairseq", overflow_share=tolerance)
    twin, state = SCALERS["fairseq"](2.0**16, 4, tolerance), rule.init()
    for overflow in np.random.default_rng(6).random(200) < 0.25:
        twin.update(bool(overflow))
        state = rule.adjust(state, finite=not overflow)
        assert state.scale == twin.scale


@pytest.mark.parametrize("hysteresis", [1, 2, 4])
@pytest.mark.parametrize("consecutive", [False, True])
def test_deepspeeds_hysteresis_may_be_refilled_by_any_clean_step(hysteresis: int, consecutive: bool):
    rule = with_window("deepspeed", hysteresis=hysteresis, refill="clean step" if consecutive else "growth")
    twin, state = SCALERS["deepspeed"](2.0**16, 4, hysteresis, consecutive), rule.init()
    for overflow in np.random.default_rng(7).random(120) < 0.15:
        twin.update(bool(overflow))
        state = rule.adjust(state, finite=not overflow)
        assert state.scale == twin.scale


# Edges.


def test_the_presets_start_where_their_systems_start():
    starts = {name: math.log2(rule.init().scale) for name, rule in RULES.items()}
    assert starts == {
        "torch": 16,
        "micikevicius": 3,
        "apex": 16,
        "apex-static": 0,
        "apex-fp16-utils": 32,
        "keras": 15,
        "jmp": 15,
        "megatron": 32,
        "deepspeed": 16,
        "fairseq": 15,
    }


@pytest.mark.parametrize(
    ("name", "want"),
    [("torch", 2.0**127), ("jmp", 2.0**127), ("keras", math.inf), ("megatron", math.inf), ("apex", 2.0**24)],
)
def test_growth_at_the_limit(name: str, want: float):
    rule = dataclasses.replace(RULES[name], start=2.0**127, interval=1)
    assert rule.adjust(rule.init(), finite=True).scale == want


@pytest.mark.parametrize(
    ("name", "want"),
    [("torch", 0.5), ("apex", 0.5), ("keras", 0.5), ("jmp", 1.0), ("apex-fp16-utils", 1.0), ("megatron", 1.0)],
)
def test_an_overflow_at_a_scale_of_1(name: str, want: float):
    rule = dataclasses.replace(RULES[name], start=1.0, hysteresis=1)
    assert rule.adjust(rule.init(), finite=False).scale == want


def test_apexs_scale_is_a_double_that_sinks_below_fp32():
    rule = dataclasses.replace(RULES["apex"], start=2.0**-149)
    assert rule.adjust(rule.init(), finite=False).scale == 2.0**-150
    assert dataclasses.replace(RULES["torch"], start=2.0**-150).init().scale == 0


def test_deepspeed_and_fairseq_give_up():
    deep = dataclasses.replace(RULES["deepspeed"], start=1.0, hysteresis=1)
    with pytest.raises(FloatingPointError, match="floor"):
        deep.adjust(deep.init(), finite=False)
    fair = dataclasses.replace(RULES["fairseq"], start=2.0**-13)
    with pytest.raises(FloatingPointError, match="limit"):
        fair.adjust(fair.init(), finite=False)
    soft = dataclasses.replace(fair, floor=2.0**-13)
    assert soft.adjust(soft.init(), finite=False).scale == 2.0**-13


def test_a_constant_scale_stays():
    for name in ("micikevicius", "apex-static"):
        assert exponents(dataclasses.replace(RULES[name], start=128.0), PATTERN) == [7] * len(PATTERN)


# The functional form.


def test_a_state_is_a_value():
    rule = RULES["torch"]
    before = rule.init()
    rule.adjust(before, finite=False)
    assert before == rule.init()
    assert hash(before) == hash(rule.init())
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.scale = 1.0  # type: ignore[misc]


def test_unscaling_leaves_the_gradients_that_came_in():
    rule, grad = RULES["torch"], Tensor([3.0, np.inf])
    (new,), finite = rule.unscale(dataclasses.replace(rule.init(), scale=4.0), [grad])
    assert (new.data.tolist(), grad.data.tolist(), finite) == ([0.75, np.inf], [3.0, np.inf], False)
    assert rule.scale(rule.init(), Tensor(2.0)).item() == 2.0**17


def test_keras_divides_and_the_others_multiply_by_the_inverse():
    grad, scale = np.array([3.0, 5.0, 7.0, 11.0], np.float32), np.float32(1000.1)
    for name in ("keras", "torch"):
        state = dataclasses.replace(RULES[name].init(), scale=float(scale))
        (new,), _ = RULES[name].unscale(state, [Tensor(grad)])
        assert_same_bits(new.data, grad / scale if name == "keras" else grad * np.float32(1 / np.float64(scale)))
    assert (grad / scale != grad * np.float32(1 / np.float64(scale))).any()


@pytest.mark.parametrize(
    ("grad", "elements", "sum_", "norm"),
    [([1.0, 2.0], True, True, True), ([3e38, 3e38], True, False, False), ([1e20, -1e20], True, True, False)],
)
def test_sums_and_norms_overflow_before_elements_do(grad: list[float], elements: bool, sum_: bool, norm: bool):
    found = {}
    for name in ("torch", "deepspeed", "fairseq"):
        _, found[name] = RULES[name].unscale(RULES[name].init(), [Tensor(grad)])
    assert (found["torch"], found["deepspeed"], found["fairseq"]) == (elements, sum_, norm)


@pytest.mark.parametrize("name", RULES)
def test_only_rules_with_master_weights_take_fp16_gradients(name: str):
    # 3 * 2**-24 is subnormal in FP16, and a quarter of it is not a number of FP16.
    rule, grad = RULES[name], Tensor([3 * 2.0**-24], format="fp16")
    state = dataclasses.replace(rule.init(), scale=4.0)
    if not rule.widens:
        with pytest.raises(ValueError, match="FP16"):
            rule.unscale(state, [grad])
        return
    (new,), _ = rule.unscale(state, [grad])
    assert (new.format, new.item()) == (FP32, 3 * 2.0**-26)


def test_bf16_gradients_stay_bf16_without_widening():
    (new,), _ = RULES["torch"].unscale(RULES["torch"].init(), [Tensor([1.0], format="bf16")])
    assert new.format is BF16


# Looking up.


def test_a_wrong_name_is_an_error_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'deepspeed'"):
        loss_scaler("deepsped")
    with pytest.raises(ValueError, match="did you mean 'hysteresis'"):
        loss_scaler("megatron", hysterese=1)
    with pytest.raises(ValueError, match="hysteresis is 0"):
        loss_scaler("megatron", hysteresis=0)
    with pytest.raises(ValueError, match="floor is 4"):
        loss_scaler("megatron", floor=4.0, ceiling=2.0)
    with pytest.raises(ValueError, match="growth is 1"):
        loss_scaler("keras", growth=1.0)
    with pytest.raises(ValueError, match="backoff is 1"):
        loss_scaler("keras", backoff=1.0)
