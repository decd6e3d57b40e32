"""Weights and moments in a narrow format under a scale of the whole tensor."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import amp, optim
from mpsim.formats import get_format
from mpsim.rounding import round_to
from mpsim.tensor import Tensor
from reference import recipes as twin

O2 = {"weight": "fp16", "exp_avg": "e4m3", "exp_avg_sq": "fp16"}


def parameter(size: int = 40, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).normal(size=size), requires_grad=True, format="fp32")


def gradients(size: int = 40, steps: int = 4) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [(rng.normal(size=size) * 2.0 ** rng.integers(-12, 3, size)).astype(np.float32) for _ in range(steps)]


def stored(x: np.ndarray, fmt: str) -> np.ndarray:
    """Return what the twin's cast of an array under a power of two leaves."""
    f = get_format(fmt)
    cast = twin.cast_tiles([x.tolist()], f, twin.scales(twin.te_scale, power=True), 0, 0)
    values = [twin.times(twin.value_of(c, f), s) for c, s in zip(cast.codes[0], cast.inverse[0], strict=True)]
    return np.array(values, np.float32)


def test_a_step_computes_in_fp32_from_what_is_stored_and_stores_what_comes_out():
    """Each step is one of an optimizer in FP32, begun from stored arrays; what it leaves is rounded by the twin."""
    p = parameter()
    optimizer = optim.AdamW([p], lr=0.01, scaled=O2)
    weights, moments = stored(parameter().data, "fp16"), {}
    assert_same_bits(p.data, weights)
    for i, grad in enumerate(gradients()):
        q = Tensor(weights, requires_grad=True)
        plain = optim.AdamW([q], lr=0.01)
        if i:
            state = plain.state_dict()
            state["state"] = {0: {"step": i, **moments}}
            plain.load_state_dict(state)
        for each, one in ((plain, q), (optimizer, p)):
            one.grad = Tensor(grad)
            each.step()
        weights = stored(q.data, "fp16")
        moments = {name: stored(plain.state_dict()["state"][0][name], O2[name]) for name in ("exp_avg", "exp_avg_sq")}
        assert_same_bits(p.data, weights)
        for name, array in moments.items():
            assert_same_bits(optimizer.state_dict()["state"][0][name], array)


def test_a_small_moment_is_kept_that_would_be_lost_without_a_scale():
    kept = []
    for options in ({"scaled": {"exp_avg": "e4m3"}}, {"state_format": "e4m3"}):
        p = parameter(1)
        optimizer: Any = optim.AdamW([p], lr=0.1, **options)
        p.grad = Tensor(np.float32([1e-5]))
        optimizer.step()
        kept.append(float(optimizer.state_dict()["state"][0]["exp_avg"][0]))
    assert kept[0] == pytest.approx(1e-6, rel=2**-4)  # half an ulp of E4M3
    assert kept[1] == 0


def test_updates_that_the_stored_weight_swallows_are_counted_as_lost():
    p = Tensor([1.0, 0.5], requires_grad=True)
    optimizer = optim.SGD([p], lr=1.0, scaled={"weight": "fp16"})
    p.grad = Tensor(np.float32([2.0**-13, 2.0**-11]))
    optimizer.step()
    assert p.data.tolist() == [1.0, 0.5 - 2.0**-11]
    assert (optimizer.counts.updates, optimizer.counts.lost) == (2, 1)


def test_a_resumed_run_is_that_without_a_break_bit_for_bit():
    grads = gradients(steps=6)

    def train(p: Tensor, optimizer: optim.Optimizer, these: list[np.ndarray]) -> None:
        for grad in these:
            p.grad = Tensor(grad)
            optimizer.step()

    p = parameter()
    optimizer = optim.AdamW([p], scaled=O2)
    train(p, optimizer, grads[:3])
    q, saved = Tensor(p.data.copy(), requires_grad=True), copy.deepcopy(optimizer.state_dict())
    train(p, optimizer, grads[3:])
    resumed = optim.AdamW([q], scaled=O2)
    resumed.load_state_dict(saved)
    train(q, resumed, grads[3:])
    assert_same_bits(p.data, q.data)
    with pytest.raises(ValueError, match=r"scaled is \{'weight': 'fp16'"):
        optim.AdamW([parameter()]).load_state_dict(saved)


def test_what_cannot_work_is_refused():
    for options, message in (
        ({"scaled": {"momentum": "e4m3"}}, "scaled has 'momentum'; the arrays of AdamW are weight, exp_avg"),
        ({"scaled": O2, "update": "kahan"}, "goes with update='nearest'"),
        ({"scaled": O2, "state_format": "bf16"}, "without state_format"),
        ({"scaled": {"weight": "fp61"}}, "unknown format"),
    ):
        with pytest.raises(ValueError, match=message):
            optim.AdamW([parameter()], **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scaled is for parameters in fp32"):
        optim.AdamW([Tensor([1.0], requires_grad=True, format="bf16")], scaled=O2)


@pytest.mark.parametrize(
    ("name", "weight", "exp_avg", "exp_avg_sq"),
    [
        ("ms-amp-o1", "fp16", None, None),
        ("ms-amp-o2", "fp16", "e4m3", "fp16"),
        ("ms-amp-o3", "fp16", "e4m3", "fp16"),
        ("deepseek-v3", None, "bf16", "bf16"),
    ],
)
def test_systems_by_name(name: str, weight: str | None, exp_avg: str | None, exp_avg_sq: str | None):
    p = parameter()
    optimizer = optim.AdamW([p], **amp.optimizer_state(name))
    p.grad = Tensor(gradients()[0])
    optimizer.step()
    held = {"weight": p.data, **optimizer.state_dict()["state"][0]}
    for name, fmt in (("weight", weight), ("exp_avg", exp_avg), ("exp_avg_sq", exp_avg_sq)):
        array = held[name]
        if fmt in ("fp16", "e4m3"):
            assert_same_bits(array, stored(array, fmt))
        else:
            assert np.array_equal(array, round_to(array, "bf16")) == (fmt == "bf16")


def test_an_unknown_system_is_an_error_that_lists_the_nearest():
    with pytest.raises(ValueError, match=r"name is 'msamp-o2': did you mean 'ms-amp-o2'"):
        amp.optimizer_state("msamp-o2")


def test_options_are_the_callers_own():
    amp.optimizer_state("ms-amp-o2")["scaled"]["weight"] = "bf16"
    assert amp.optimizer_state("ms-amp-o2")["scaled"]["weight"] == "fp16"
