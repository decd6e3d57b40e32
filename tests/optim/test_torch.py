"""Optimizers, schedules and clipping against those of torch, where it is installed."""

from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import optim
from mpsim.tensor import Tensor

torch = pytest.importorskip("torch")

OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    ("Adam", {"lr": 0.01, "betas": (0.4, 0.9), "maximize": True}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.01, "amsgrad": True}),
    ("RMSprop", {}),
    ("RMSprop", {"centered": True, "weight_decay": 0.1}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Adagrad", {}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.3}),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [6, 500])
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=str)
def test_steps_have_the_bits_of_torch_with_a_correctly_rounded_root(
    name: str, options: dict[str, Any], size: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
):
    # The root of torch's vector library is not always correctly rounded; nothing else differs.
    monkeypatch.setattr(torch.Tensor, "sqrt", lambda x: torch.from_numpy(np.sqrt(x.numpy())))
    monkeypatch.setattr(torch.Tensor, "sqrt_", lambda x: x.copy_(torch.from_numpy(np.sqrt(x.numpy()))))
    rng = np.random.default_rng(1)
    w = rng.normal(size=size).astype(dtype)
    ours, theirs = Tensor(w.copy(), requires_grad=True), torch.nn.Parameter(torch.from_numpy(w.copy()))
    mine, other = getattr(optim, name)([ours], **options), getattr(torch.optim, name)([theirs], **options)
    for _ in range(8):
        grad = rng.normal(size=size).astype(dtype)
        ours.grad, theirs.grad = Tensor(grad), torch.from_numpy(grad.copy())
        mine.step()
        other.step()
        assert_same_bits(ours.data, theirs.detach().numpy())


def test_defaults_are_those_of_torch():
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"):
        ours = getattr(optim, name)([Tensor([1.0], requires_grad=True)]).defaults
        theirs = getattr(torch.optim, name)([torch.nn.Parameter(torch.ones(1))]).defaults
        assert ours == {key: theirs[key] for key in ours}, name


SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("StepLR", {"step_size": 3}),
    ("StepLR", {"step_size": 1, "gamma": 0.7}),
    ("MultiStepLR", {"milestones": [2, 5, 5, 9], "gamma": 0.3}),
    ("ExponentialLR", {"gamma": 0.93}),
    ("CosineAnnealingLR", {"T_max": 7, "eta_min": 0.001}),
    ("CosineAnnealingLR", {"T_max": 1}),
    ("LinearLR", {}),
    ("LinearLR", {"start_factor": 0.1, "end_factor": 0.7, "total_iters": 11}),
    ("LambdaLR", {"lr_lambda": lambda epoch: 0.95**epoch}),
    ("OneCycleLR", {"max_lr": 0.1, "total_steps": 40}),
    (
        "OneCycleLR",
        {
            "max_lr": [0.1, 0.3],
            "epochs": 4,
            "steps_per_epoch": 10,
            "anneal_strategy": "linear",
            "three_phase": True,
        },
    ),
    ("OneCycleLR", {"max_lr": 0.1, "total_steps": 40, "pct_start": 0.2, "cycle_momentum": False}),
]


@pytest.mark.filterwarnings("ignore:Detected call")
@pytest.mark.parametrize(("kind", "momentum"), [("SGD", "momentum"), ("Adam", "betas")])
@pytest.mark.parametrize(("name", "options"), SCHEDULES, ids=str)
def test_schedules_give_the_rates_and_momenta_of_torch(name: str, options: dict[str, Any], kind: str, momentum: str):
    values = {"momentum": 0.9} if kind == "SGD" else {}
    a, b = (Tensor([1.0], requires_grad=True) for _ in "ab")
    c, d = (torch.nn.Parameter(torch.ones(1)) for _ in "cd")
    ours = getattr(optim, kind)([{"params": [a], "lr": 0.5}, {"params": [b]}], lr=0.013, **values)
    theirs = getattr(torch.optim, kind)([{"params": [c], "lr": 0.5}, {"params": [d]}], lr=0.013, **values)
    mine = getattr(optim.lr_scheduler, name)(ours, **options)
    other = getattr(torch.optim.lr_scheduler, name)(theirs, **options)
    for _ in range(39):
        for x, y in zip(ours.param_groups, theirs.param_groups, strict=True):
            assert (x["lr"], x[momentum]) == (y["lr"], y[momentum])
        assert mine.get_last_lr() == other.get_last_lr()
        mine.step()
        other.step()


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.5, 1e3])
def test_clipped_gradients_are_those_of_torch(norm_type: float, max_norm: float):
    rng = np.random.default_rng(2)
    grads = [rng.integers(-8, 8, size=n).astype(np.float32) for n in (3, 500)]  # their norms are exact sums
    ours = [Tensor(np.zeros_like(g), requires_grad=True) for g in grads]
    theirs = [torch.nn.Parameter(torch.zeros(g.size)) for g in grads]
    for p, q, g in zip(ours, theirs, grads, strict=True):
        p.grad, q.grad = Tensor(g), torch.from_numpy(g.copy())
    norm = optim.clip_grad_norm_(ours, max_norm, norm_type)
    want = float(torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type))
    # Torch takes roots of each tensor's sum, and squares them again: three roundings more.
    assert abs(norm - want) <= 3 * np.spacing(np.float32(want))
    for p, q in zip(ours, theirs, strict=True):
        assert p.grad is not None
        np.testing.assert_allclose(p.grad.data, q.grad.numpy(), rtol=6 * 2.0**-23)
