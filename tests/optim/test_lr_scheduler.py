import json
import re
from typing import Any

import pytest

from mpsim import optim
from mpsim.optim import lr_scheduler
from mpsim.tensor import Tensor


def optimizer(lr: float = 1.0, **options: Any) -> optim.SGD:
    return optim.SGD([Tensor([1.0], requires_grad=True)], lr=lr, **options)


def label(value: object) -> str:
    """Return the same words in every process: a function's own would tell its address."""
    return re.sub(r"<function <lambda> at \w+>", "lambda", str(value))


@pytest.mark.parametrize(
    ("name", "options", "rates"),
    [
        ("StepLR", {"step_size": 2, "gamma": 0.5}, [1, 1, 0.5, 0.5, 0.25, 0.25]),
        ("MultiStepLR", {"milestones": [3, 1, 3], "gamma": 0.5}, [1, 0.5, 0.5, 0.125, 0.125]),
        ("ExponentialLR", {"gamma": 0.5}, [1, 0.5, 0.25, 0.125]),
        ("LinearLR", {"start_factor": 0.25, "total_iters": 3}, [0.25, 0.5, 0.75, 1, 1]),
        ("LinearLR", {"start_factor": 1, "end_factor": 0, "total_iters": 2}, [1, 0.5, 0, 0]),
        ("LambdaLR", {"lr_lambda": lambda epoch: 1 / (1 + epoch)}, [1, 1 / 2, 1 / 3, 1 / 4]),
        ("LambdaLR", {"lr_lambda": [lambda epoch: epoch]}, [0, 1, 2]),
        ("CosineAnnealingLR", {"T_max": 2}, [1, 0.5, 0, 0.5, 1, 0.5]),
        ("CosineAnnealingLR", {"T_max": 2, "eta_min": 0.5}, [1, 0.75, 0.5, 0.75, 1]),
        # Up for 0.5 * 5 - 1 = 1.5 steps, down for 2.5; 40/25 and a ten-thousandth of it at the ends.
        (
            "OneCycleLR",
            {"max_lr": 40.0, "total_steps": 5, "pct_start": 0.5, "anneal_strategy": "linear"},
            [1.6, 1.6 + 38.4 / 1.5, 32.000032, 16.000096, 0.00016],
        ),
    ],
    ids=label,
)
def test_rates_worked_out_by_hand(name: str, options: dict[str, Any], rates: list[float]):
    sgd = optimizer(momentum=0.9)
    schedule = getattr(lr_scheduler, name)(sgd, **options)
    seen = []
    for _ in rates:
        seen.append(sgd.lr)
        schedule.step()
    # A few roundings in each step, of numbers up to 40.
    assert seen == pytest.approx(rates, rel=1e-14, abs=1e-14)


def test_one_cycle_moves_momentum_the_other_way_and_stops():
    sgd = optimizer(momentum=0.9)
    schedule = lr_scheduler.OneCycleLR(sgd, 1.0, total_steps=4, pct_start=0.5, base_momentum=0.5, max_momentum=1.0)
    momenta = []
    for _ in range(4):
        momenta.append(sgd.param_groups[0]["momentum"])
        schedule.step()
    assert momenta == [1.0, 0.5, 0.75, 1.0]
    with pytest.raises(ValueError, match="total_steps is 4"):
        schedule.step()


def test_groups_keep_their_own_rates():
    a, b = (Tensor([1.0], requires_grad=True) for _ in "ab")
    sgd = optim.SGD([{"params": [a], "lr": 4.0}, {"params": b}], lr=1.0)
    schedule = lr_scheduler.ExponentialLR(sgd, 0.5)
    schedule.step()
    assert schedule.get_last_lr() == [2.0, 0.5]
    assert schedule.base_lrs == [4.0, 1.0]


CASES: list[tuple[str, dict[str, Any]]] = [
    ("StepLR", {"step_size": 3}),
    ("MultiStepLR", {"milestones": [3, 6]}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("LinearLR", {"total_iters": 7}),
    ("LambdaLR", {"lr_lambda": lambda epoch: 0.9**epoch}),
    ("CosineAnnealingLR", {"T_max": 4}),
    ("OneCycleLR", {"max_lr": 3.0, "total_steps": 20}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=label)
def test_a_saved_schedule_goes_on_with_the_same_rates(name: str, options: dict[str, Any]):
    sgd = optimizer(momentum=0.9)
    schedule = getattr(lr_scheduler, name)(sgd, **options)
    for _ in range(5):
        schedule.step()
    saved = json.loads(json.dumps([sgd.param_groups[0]["lr"], schedule.state_dict()]))
    other = optimizer(momentum=0.9)
    resumed = getattr(lr_scheduler, name)(other, **options)
    other.lr = saved[0]
    resumed.load_state_dict(saved[1])
    for _ in range(8):
        schedule.step()
        resumed.step()
        assert other.lr == sgd.lr
    assert resumed.state_dict() == schedule.state_dict()


def test_a_state_of_another_schedule_is_refused_and_changes_nothing():
    schedule = lr_scheduler.ExponentialLR(optimizer(), 0.5)
    before = schedule.state_dict()
    step = lr_scheduler.StepLR(optimizer(), 3).state_dict()
    two = optim.SGD([{"params": Tensor([1.0])}, {"params": Tensor([1.0])}], lr=1.0)
    for state, message in [
        (step, "step_size"),
        ({**before, "schedule": "StepLR"}, "a StepLR; this is a ExponentialLR"),
        (lr_scheduler.ExponentialLR(two, 0.5).state_dict(), "base_lrs has 2 groups"),
    ]:
        with pytest.raises(ValueError, match=message):
            schedule.load_state_dict(state)
    assert schedule.state_dict() == before


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("StepLR", {"step_size": 0}, "step_size is 0"),
        ("LinearLR", {"start_factor": 0.0}, "start_factor is 0.0"),
        ("LinearLR", {"end_factor": 2.0}, "end_factor is 2.0"),
        ("LinearLR", {"total_iters": 0}, "total_iters is 0"),
        ("CosineAnnealingLR", {"T_max": 0.5}, "T_max is 0.5"),
        ("LambdaLR", {"lr_lambda": [abs, abs]}, "lr_lambda has 2 entries"),
        ("OneCycleLR", {"max_lr": 1.0}, "total_steps is missing"),
        ("OneCycleLR", {"max_lr": 1.0, "total_steps": 0}, "total_steps is 0"),
        ("OneCycleLR", {"max_lr": 1.0, "epochs": 1, "steps_per_epoch": -1}, "steps_per_epoch is -1"),
        ("OneCycleLR", {"max_lr": 1.0, "total_steps": 9, "pct_start": 2.0}, "pct_start is 2.0"),
        ("OneCycleLR", {"max_lr": 1.0, "total_steps": 9, "anneal_strategy": "step"}, "anneal_strategy is 'step'"),
        ("OneCycleLR", {"max_lr": [1.0, 2.0], "total_steps": 9}, "max_lr has 2 entries"),
    ],
)
def test_wrong_arguments_are_named(name: str, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        getattr(lr_scheduler, name)(optimizer(), **options)


def test_a_schedule_needs_an_optimizer_and_a_cycle_a_momentum():
    with pytest.raises(TypeError, match="optimizer is a float"):
        lr_scheduler.ExponentialLR(1.0, 0.5)  # type: ignore[arg-type]
    adagrad = optim.Adagrad([Tensor([1.0], requires_grad=True)])
    with pytest.raises(ValueError, match="cycle_momentum is True"):
        lr_scheduler.OneCycleLR(adagrad, 1.0, total_steps=9)
