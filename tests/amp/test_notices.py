from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mpsim import amp, nn, optim
from mpsim.optim import clip_grad_norm_, clip_grad_value_
from mpsim.tensor import Tensor


def run(scaler: amp.LossScaler, grads: Sequence[float], loss: float = 1.0) -> None:
    """Do a step for each gradient."""
    p = nn.Parameter([0.0])
    optimizer = optim.SGD([p], lr=1.0)
    for grad in grads:
        scaler.scale(Tensor(loss))
        p.grad = Tensor([grad])
        scaler.step(optimizer)
        scaler.update()


def kinds(scaler: amp.LossScaler) -> list[str]:
    return [str(notice.kind) for notice in scaler.notices]


def test_a_healthy_run_has_no_notices():
    scaler = amp.GradScaler(growth_interval=10)
    run(scaler, ([1.0] * 10 + [np.inf]) * 20)
    assert kinds(scaler) == []
    assert str(scaler.notices) == ""


def test_a_scale_below_1_is_noticed():
    scaler = amp.GradScaler(init_scale=2.0)
    run(scaler, [np.inf, np.inf, np.inf])
    (notice,) = scaler.notices.of("scale below 1")
    assert (notice.first, notice.last, notice.times) == (1, 2, 2)
    assert "0.5" in notice.message


def test_a_high_skip_rate_is_noticed():
    scaler = amp.GradScaler()
    run(scaler, [1.0] * 17 + [np.inf] * 2)
    assert kinds(scaler) == []
    run(scaler, [np.inf])
    assert str(scaler.notices) == "skip rate (step 19): 15% of the last 20 steps were skipped"


def test_a_loss_that_is_not_finite_is_noticed_but_one_that_overflows_when_scaled_is_not():
    scaler = amp.GradScaler()
    scaler.scale(Tensor([1.0], format="fp16"))
    assert kinds(scaler) == []
    run(scaler, [np.nan], loss=np.nan)
    assert kinds(scaler) == ["forward pass not finite"]


@pytest.mark.parametrize("clip", [clip_grad_norm_, clip_grad_value_])
@pytest.mark.parametrize("first", ["clip", "unscale"])
def test_clipping_before_unscaling_is_noticed_and_after_it_is_not(clip: Any, first: str):
    scaler, p = amp.GradScaler(), nn.Parameter([1.0])
    optimizer = optim.SGD([p], lr=1.0)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale((p * 2.0).sum()).backward()
        if first == "unscale":
            scaler.unscale_(optimizer)
        clip([p], 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert kinds(scaler) == (["clipped before unscaling"] if first == "clip" else [])


def test_buffers_changed_by_a_skipped_step_are_noticed_by_name():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1, rng=0))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scaler = amp.GradScaler()
    scaler.watch(model)
    for factor in (1.0, np.inf):
        optimizer.zero_grad()
        y = model(np.array([[1.0, 2.0], [3.0, 5.0]], np.float32))
        scaler.scale(y.sum()).backward()
        for p in model.parameters():
            assert p.grad is not None
            with np.errstate(invalid="ignore"):
                p.grad.data = p.grad.data * np.float32(factor)
        scaler.step(optimizer)
        scaler.update()
    assert {(n.subject, n.first) for n in scaler.notices} == {("0.running_mean", 1), ("0.running_var", 1)}


def test_a_kind_that_is_none_is_an_error():
    with pytest.raises(ValueError, match="did you mean 'skip rate'"):
        amp.Notices().of("skip rates")
