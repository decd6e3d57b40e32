import json
from typing import Any

import numba
import numpy as np
import pytest
from numba import config

from bits import assert_same_bits
from mpsim import optim
from mpsim.rounding import round_to
from mpsim.tensor import Tensor


def parameter(grad: Any, fmt: str = "fp32") -> Tensor:
    p = Tensor(np.zeros(np.shape(grad)), requires_grad=True, format=fmt)
    p.grad = None if grad is None else Tensor(grad, format=fmt)
    return p


def grads(params: list[Tensor]) -> list[Any]:
    return [None if p.grad is None else p.grad.data.tolist() for p in params]


@pytest.mark.parametrize(("norm_type", "norm"), [(2, 13.0), (1, 19.0), (np.inf, 12.0)], ids=str)
def test_the_norm_is_that_of_all_gradients_together(norm_type: float, norm: float):
    params = [parameter([3.0, -4.0]), parameter([[12.0]]), parameter(None), parameter([])]
    assert optim.clip_grad_norm_(params, 100.0, norm_type) == norm
    assert grads(params) == [[3.0, -4.0], [[12.0]], None, []]


def test_gradients_are_multiplied_by_a_factor_computed_in_fp32():
    params = [parameter([3.0, -4.0]), parameter([12.0], "bf16")]
    assert optim.clip_grad_norm_(params, 0.7) == 13.0
    one = np.float32(1)
    factor = one / (np.float32(13) + np.float32(1e-6)) * np.float32(0.7)
    assert params[0].grad is not None
    assert params[1].grad is not None
    assert_same_bits(params[0].grad.data, np.array([3, -4], np.float32) * factor)
    assert_same_bits(params[1].grad.data, round_to(np.array([12], np.float32) * factor, "bf16"))


def test_gradients_in_fp64_are_clipped_in_fp64():
    p = parameter(np.array([3.0, 4.0]), "fp64")
    assert optim.clip_grad_norm_(p, 1.0) == 5.0
    assert p.grad is not None
    assert_same_bits(p.grad.data, np.array([3.0, 4.0]) * (1 / (5.0 + 1e-6)))


@pytest.mark.parametrize(("bad", "norm"), [(np.inf, np.inf), (np.nan, np.nan)])
@pytest.mark.parametrize("norm_type", [1, 2, np.inf])
def test_a_norm_that_is_not_finite_can_be_refused(bad: float, norm: float, norm_type: float):
    p = parameter([1.0, bad])
    with pytest.raises(RuntimeError, match="norm of the gradients is"):
        optim.clip_grad_norm_([p], 1.0, norm_type, error_if_nonfinite=True)
    np.testing.assert_array_equal(grads([p]), [[1.0, bad]])
    assert str(optim.clip_grad_norm_([p], 1.0, norm_type)) == str(norm)
    np.testing.assert_array_equal(grads([p]), [[0.0 if np.isinf(bad) else np.nan, np.nan]])


def test_squares_beyond_float32_do_not_overflow():
    p = parameter([3e30, 4e30])
    assert optim.clip_grad_norm_(p, 1.0) == np.float32(5e30)


def test_the_norm_does_not_depend_on_threads():
    size = 300_000 if not config.DISABLE_JIT else 3000
    p = parameter(np.random.default_rng(0).normal(size=size).astype(np.float32))
    before = numba.get_num_threads()
    norms = set()
    try:
        for threads in range(1, config.NUMBA_NUM_THREADS + 1):
            numba.set_num_threads(threads)
            norms.add(optim.clip_grad_norm_(p, 1e9))
    finally:
        numba.set_num_threads(before)
    assert p.grad is not None
    exact = sum(float(x) ** 2 for x in p.grad.data)
    assert norms == {float(np.float32(np.sqrt(exact)))}


def test_values_are_clipped_to_a_range():
    params = [parameter([0.5, -2.0, 3.0, np.inf]), parameter(None), parameter([-9.0], "fp16")]
    optim.clip_grad_value_(params, 1.1)
    limit = float(np.float32(1.1))
    assert grads(params) == [[0.5, -limit, limit, limit], None, [-float(np.float16(1.1))]]
    nan = parameter([np.nan])
    optim.clip_grad_value_(nan, 1.0)
    assert np.isnan(grads([nan])).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: optim.clip_grad_norm_([p], -1.0), "max_norm is -1.0"),
        (lambda p: optim.clip_grad_norm_([p], float("nan")), "max_norm is nan"),
        (lambda p: optim.clip_grad_norm_([p], 1.0, 3), "norm_type is 3"),
        (lambda p: optim.clip_grad_norm_([1.0], 1.0), "parameters has a float"),
        (lambda p: optim.clip_grad_value_([p], -1.0), "clip_value is -1.0"),
    ],
)
def test_wrong_arguments_are_named(call: Any, message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        call(parameter([1.0]))


def test_the_recorded_clipping_of_torch_is_reproduced():
    from mpsim import amp
    from vectors import vectors

    cases = json.loads(vectors("gradscaler", "traces.json").read_text())["cases"]
    (case,) = (c for c in cases if c["id"] == "unscale-clip")
    (settings,) = case["optimizers"]
    scaler = amp.GradScaler(**case["params"])
    p = Tensor(settings["param"], requires_grad=True)
    optimizer = optim.SGD([p], lr=settings["lr"])
    seen = 0
    for actions, want in zip(case["steps"], case["expect"], strict=True):
        scaler.scale(Tensor(1.0))
        for action in actions:
            match action["op"]:
                case "set_grad":
                    p.grad = Tensor(np.array([float(x) for x in action["grad"]], np.float32))
                case "unscale":
                    scaler.unscale_(optimizer)
                case "clip":
                    optim.clip_grad_norm_(optimizer.params, action["max_norm"])
                    seen += 1
                case "step":
                    scaler.step(optimizer)
                case "update":
                    scaler.update()
        assert p.grad is not None
        np.testing.assert_array_equal(p.grad.data, np.array([float(x) for x in want["grad"][0]], np.float32))
        np.testing.assert_array_equal(p.data, np.array([float(x) for x in want["param"][0]], np.float32))
    assert seen > 0
