"""Groups of parameters, and states that are saved."""

import copy
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import optim
from mpsim.tensor import Tensor

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("Adam", {"lr": 0.01, "amsgrad": True}),
    ("AdamW", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True, "eps": 10.0}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1}),
]

ARITHMETIC: list[dict[str, Any]] = [
    {},
    {"update": "stochastic", "rng": 3},
    {"update": "kahan"},
    {"update": "master"},
    {"state_format": "fp16", "state_rounding": "stochastic", "rng": 3},
]


def parameter(values: Any = (1.0, -2.0), fmt: str = "bf16") -> Tensor:
    return Tensor(values, requires_grad=True, format=fmt)


def train(optimizer: optim.Optimizer, steps: range) -> None:
    for step in steps:
        rng = np.random.default_rng(step)
        for p in optimizer.params:
            p.grad = Tensor(rng.normal(size=p.shape), format=p.format)
        optimizer.step()


# Saving.


@pytest.mark.parametrize("arithmetic", ARITHMETIC, ids=str)
@pytest.mark.parametrize(("kind", "options"), KINDS, ids=[k for k, _ in KINDS])
def test_a_resumed_run_is_that_without_a_break_bit_for_bit(
    kind: str, options: dict[str, Any], arithmetic: dict[str, Any]
):
    start = np.random.default_rng(9).normal(size=(2, 50))
    params = [parameter(a) for a in start]
    optimizer = getattr(optim, kind)(params, **options, **arithmetic)
    train(optimizer, range(3))
    weights, saved = [p.data.copy() for p in params], copy.deepcopy(optimizer.state_dict())
    train(optimizer, range(3, 6))

    others = [parameter(a) for a in weights]
    # Another seed and rate: both come from the state.
    resumed = getattr(optim, kind)(
        others, **{**options, "lr": 9.0}, **{**arithmetic, **{k: 8 for k in arithmetic if k == "rng"}}
    )
    resumed.load_state_dict(saved)
    train(resumed, range(3, 6))
    for p, q in zip(params, others, strict=True):
        assert_same_bits(p.data, q.data)
    assert resumed.counts == optimizer.counts
    assert resumed.parameter_counts == optimizer.parameter_counts
    a, b = optimizer.state_dict(), resumed.state_dict()
    assert (a["param_groups"], a["rules"], a["counts"]) == (b["param_groups"], b["rules"], b["counts"])
    for i, entry in a["state"].items():
        assert entry.keys() == b["state"][i].keys()
        assert all(np.array_equal(entry[name], b["state"][i][name]) for name in entry)


def test_a_state_is_a_copy_on_the_way_out_and_in():
    optimizer = optim.SGD([parameter()], lr=1.0, momentum=0.5)
    train(optimizer, range(1))
    state = optimizer.state_dict()
    state["state"][0]["momentum_buffer"][:] = 7
    state["param_groups"][0]["lr"] = 7
    assert not (optimizer.state_dict()["state"][0]["momentum_buffer"] == 7).any()
    assert optimizer.lr == 1.0
    optimizer.load_state_dict(state)
    state["state"][0]["momentum_buffer"][:] = 8
    state["param_groups"][0]["lr"] = 8
    assert (optimizer.state_dict()["state"][0]["momentum_buffer"] == 7).all()
    assert optimizer.lr == 7


def spoilt(state: dict[str, Any], what: str) -> dict[str, Any]:
    """Return a state with something wrong in it."""
    state = copy.deepcopy(state)
    group, entry = state["param_groups"][0], state["state"][0]
    match what:
        case "group":
            state["param_groups"].append(group)
        case "size":
            group["params"] = [0]
        case "option":
            del group["dampening"]
        case "extra option":
            group["colour"] = 1
        case "bad option":
            group["lr"] = -1.0
        case "shape":
            entry["momentum_buffer"] = np.zeros(5, np.float32)
        case "dtype":
            entry["momentum_buffer"] = np.zeros(2)
        case "name":
            entry["exp_avg"] = entry.pop("momentum_buffer")
        case "step":
            del entry["step"]
        case "number":
            state["state"][7] = entry
        case "update":
            state["rules"]["update"] = "kahan"
        case "rng":
            state["rules"]["rng"] = {"seed": 1}
        case "counts":
            state["counts"].pop()
        case _:
            del state[what]
    return state


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("state", "'state' is missing"),
        ("param_groups", "'param_groups' is missing"),
        ("rules", "'rules' is missing"),
        ("group", r"groups of \[2, 2\] parameters; the optimizer has groups of \[2\]"),
        ("size", r"groups of \[1\] parameters"),
        ("option", "option 'dampening' of group 0 is missing"),
        ("extra option", "option 'colour' of group 0 is unknown"),
        ("bad option", "lr is -1.0"),
        ("shape", r"'momentum_buffer' of parameter 0 has shape \(5,\); \(2,\) is needed"),
        ("dtype", "'momentum_buffer' of parameter 0 has dtype float64"),
        ("name", "'exp_avg' of parameter 0 is not kept here"),
        ("step", "'step' of parameter 0 is missing"),
        ("number", "state of parameter 7; the optimizer has 2"),
        ("update", "update is 'kahan'; the optimizer has 'nearest'"),
        ("rng", "rng"),
        ("counts", "counts has 2 rows; 3 are needed"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(what: str, message: str):
    optimizer = optim.SGD([parameter(), parameter()], lr=1.0, momentum=0.5)
    train(optimizer, range(2))
    bad = spoilt(optimizer.state_dict(), what)
    train(optimizer, range(2))
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(bad)
    after = optimizer.state_dict()
    np.testing.assert_equal(after, before)


# Groups.


def test_groups_have_options_of_their_own():
    a, b, c = parameter(), parameter(), parameter()
    optimizer = optim.SGD([{"params": [a], "lr": 1.0}, {"params": b}], lr=0.5)
    optimizer.add_param_group({"params": [c], "lr": 0.25, "maximize": True})
    for p in (a, b, c):
        p.grad = Tensor([1.0, 1.0], format="bf16")
    optimizer.step()
    assert [p.data.tolist() for p in (a, b, c)] == [[0.0, -3.0], [0.5, -2.5], [1.25, -1.75]]
    assert optimizer.params == [a, b, c]
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 0.5, 0.25]
    assert optimizer.lr == 1.0
    optimizer.lr = 2.0
    assert [group["lr"] for group in optimizer.param_groups] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("group", "error", "message"),
    [
        ({"lr": 1.0}, TypeError, "without 'params'"),
        ({"params": [1.0]}, TypeError, "params has a float"),
        ({"params": {Tensor([1.0])}}, TypeError, "params is a set"),
        ({"params": [Tensor([1.0])], "lr": -1.0}, ValueError, "lr is -1.0"),
        ({"params": [Tensor([1.0])], "beta": 1.0}, ValueError, "option is 'beta': .*it must be one of lr, momentum"),
        ({"params": [Tensor([1.0], requires_grad=True) * 2.0]}, ValueError, "only leaves"),
    ],
)
def test_a_group_that_cannot_work_is_refused_and_not_added(group: dict[str, Any], error: Any, message: str):
    optimizer = optim.SGD([parameter()], lr=1.0)
    with pytest.raises(error, match=message):
        optimizer.add_param_group(group)
    with pytest.raises(ValueError, match="more than once"):
        optimizer.add_param_group({"params": optimizer.params})
    assert len(optimizer.param_groups) == len(optimizer.params) == 1


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("SGD", {"dampening": float("inf")}, "dampening is inf"),
        ("SGD", {"weight_decay": -1.0}, "weight_decay is -1.0"),
        ("SGD", {"nesterov": True}, "nesterov is True"),
        ("SGD", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "nesterov is True"),
        ("Adam", {"lr": -1.0}, "lr is -1.0"),
        ("Adam", {"eps": float("nan")}, "eps is nan"),
        ("Adam", {"betas": (0.9,)}, "betas is"),
        ("Adam", {"betas": (1.0, 0.9)}, r"betas\[0\] is 1.0"),
        ("AdamW", {"betas": (0.9, -0.1)}, r"betas\[1\] is -0.1"),
        ("RMSprop", {"alpha": 1.0}, "alpha is 1.0"),
        ("RMSprop", {"momentum": -1.0}, "momentum is -1.0"),
        ("Adagrad", {"lr_decay": -1.0}, "lr_decay is -1.0"),
        ("Adagrad", {"initial_accumulator_value": -1.0}, "initial_accumulator_value is -1.0"),
    ],
)
def test_options_that_cannot_work_are_named(kind: str, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        getattr(optim, kind)([parameter()], **options)


def test_a_gradient_that_does_not_fit_is_refused_before_anything_changes():
    a, b = parameter(), parameter()
    optimizer = optim.SGD([a, b], lr=1.0)
    a.grad, b.grad = Tensor([1.0, 1.0]), Tensor([1.0])
    with pytest.raises(ValueError, match=r"grad of parameter 1 has shape \(1,\); \(2,\) is needed"):
        optimizer.step()
    b.grad = Tensor([1.0, 1.0], format="fp64")
    with pytest.raises(TypeError, match="grad of parameter 1 is in fp64; the parameter is in bf16"):
        optimizer.step()
    assert a.data.tolist() == [1.0, -2.0]


def test_zero_grad_can_keep_the_arrays():
    a, b = parameter(), parameter()
    optimizer = optim.SGD([a, b], lr=1.0)
    a.grad = Tensor([1.0, 1.0])
    optimizer.zero_grad(set_to_none=False)
    assert a.grad is not None
    assert (a.grad.data.tolist(), b.grad) == ([0.0, 0.0], None)
    optimizer.zero_grad()
    assert a.grad is None
