from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba import config

from bits import assert_same_bits
from mpsim import nn, optim
from mpsim.formats import BF16, E4M3, FP16, FP32, FloatFormat
from mpsim.rounding import round_to
from mpsim.tensor import Tensor
from reference import training as twin

JIT = not config.DISABLE_JIT

float32s = st.floats(width=32, allow_nan=False, allow_infinity=False)


def parameter(data: Any, grad: Any, fmt: str | FloatFormat = "fp32") -> Tensor:
    p = Tensor(data, requires_grad=True, format=fmt)
    p.grad = Tensor(grad, format=fmt)
    return p


def stepped(w: float, lr: float, g: float, fmt: str | FloatFormat = "fp32") -> np.float32:
    """Return one weight after one plain step."""
    p = parameter([w], [g], fmt)
    optim.SGD([p], lr=lr).step()
    return p.data[0]


# The update is one fused multiply-add.


@given(float32s, st.floats(0, width=32, allow_infinity=False), float32s)
@example(1 + 2.0**-23, 2.0**-12 * (1 + 2.0**-23), -(2.0**-12) * (1 - 2.0**-22))
@example(1.0, 2.0**-24, -1.0)  # a tie, to even
@example(1 + 2.0**-23, 2.0**-24, -1.0)  # a tie, to even upward
@example(1.0, 2.0**-149, 2.0**-149)  # a product far below binary32
@example(2.0**-149, 0.5, 2.0**-149)
@example(2.0**-126, 2.0**-25, 2.0**-125)  # the result is subnormal
@example(0.0, 0.0, -1.0)
@example(-0.0, 0.0, 1.0)
@example(3.4028234663852886e38, 2.0, -3.4028234663852886e38)
def test_a_step_in_fp32_is_one_fused_multiply_add(w: float, lr: float, g: float):
    assert_same_bits(stepped(w, lr, g), np.float32(twin.fma(-lr, g, w)))


def test_the_step_is_right_where_rounding_by_way_of_binary64_is_not():
    # lr * |g| = 2**-24 * (1 - 2**-40): with a weight of order 1 the sum lies 2**-64 below the tie between two
    # binary32 numbers, and binary64 rounds it to the tie itself.
    lr, g = 2.0**-24 * (1 + 2.0**-20), -(1 - 2.0**-20)
    for w, by_way_of_binary64 in ((1.0, 1.0), (1 + 2.0**-23, 1 + 2.0**-22)):
        tie = Fraction(w) + Fraction(1, 2**24)
        assert tie - (Fraction(w) - Fraction(lr) * Fraction(g)) == Fraction(1, 2**64)
        assert Fraction(-lr * g + w) == tie
        assert np.float32(-lr * g + w) == by_way_of_binary64
        assert_same_bits(stepped(w, lr, g), np.float32(w))
        assert_same_bits(stepped(-w, lr, -g), np.float32(-w))
    # And 2**-47 above the tie between 1 and its upper neighbour, beyond the bits of a product rounded to binary32.
    lr, g = 2.0**-24, -(1 + 2.0**-23)
    assert_same_bits(stepped(1.0, lr, g), np.float32(1 + 2.0**-23))
    assert np.float32(1.0) - np.float32(lr) * np.float32(g) == np.float32(1 + 2.0**-23)


@given(st.integers(-(2**11), 2**11), st.floats(2.0**-14, 1, width=32), float32s.filter(lambda x: abs(x) < 1e4))
def test_a_step_of_fp16_weights_is_computed_exactly_and_rounded_once(w: int, lr: float, g: float):
    weight, grad = float(w), float(round_to(np.float32(g), FP16))
    want = twin.rounded(Fraction(weight) - Fraction(lr) * Fraction(grad), FP16, zero=weight - lr * grad)
    assert_same_bits(stepped(weight, lr, grad, FP16), np.float32(want))


@pytest.mark.parametrize("fmt", [FP32, FP16, BF16, E4M3], ids=str)
def test_steps_of_many_random_weights_are_exact(fmt: FloatFormat):
    rng = np.random.default_rng(0)
    count = 2000 if JIT else 200
    w, g = (
        round_to((rng.normal(size=count) * 2.0 ** rng.integers(-8, 3, count)).astype(np.float32), fmt) for _ in "wg"
    )
    lr = np.float32(0.1)
    p = parameter(w, g, fmt)
    optim.SGD([p], lr=0.1).step()
    exact = [Fraction(float(a)) - Fraction(float(lr)) * Fraction(float(b)) for a, b in zip(w, g, strict=True)]
    want = np.array([twin.rounded(x, fmt) for x in exact], np.float32)
    assert_same_bits(p.data, want)
    assert p.format is fmt


def test_a_weight_that_leaves_the_range_becomes_infinite():
    assert stepped(65504.0, 1.0, -(16 - 2.0**-7), "fp16") == 65504.0
    assert stepped(65504.0, 1.0, -16.0, "fp16") == np.inf  # the tie between 65504 and 65536
    assert stepped(3e38, 1.0, -3e38) == np.inf
    assert np.isnan(stepped(1.0, 1.0, np.nan))
    assert stepped(1.0, 1.0, np.inf) == -np.inf


def test_fp64_weights_are_updated_in_fp64():
    p = parameter(np.array([1.0]), np.array([2.0**-40]), "fp64")
    optim.SGD([p], lr=1.0).step()
    assert p.data.tolist() == [1 - 2.0**-40]


# Momentum.


@pytest.mark.parametrize("fmt", [FP32, FP16, BF16], ids=str)
def test_momentum_is_kept_in_the_format_of_the_weight(fmt: FloatFormat):
    rng = np.random.default_rng(1)
    w = round_to(rng.normal(size=20).astype(np.float32), fmt)
    p = Tensor(w, requires_grad=True, format=fmt)
    optimizer = optim.SGD([p], lr=0.25, momentum=0.9)
    lr, momentum = Fraction(1, 4), Fraction(float(np.float32(0.9)))
    weights, velocity = [float(x) for x in w], [0.0] * 20
    for step in range(4):
        grad = round_to(rng.normal(size=20).astype(np.float32), fmt)
        p.grad = Tensor(grad, format=fmt)
        optimizer.step()
        for i, g in enumerate(map(float, grad)):
            if step == 0:
                velocity[i] = g
            else:
                # In FP32, then in the format: twice, as buf.mul_(momentum).add_(grad) does.
                decayed = twin.rounded(Fraction(twin.mul(float(momentum), velocity[i])), fmt)
                velocity[i] = twin.rounded(Fraction(twin.add(decayed, g)), fmt)
            weights[i] = twin.rounded(Fraction(weights[i]) - lr * Fraction(velocity[i]), fmt)
        assert_same_bits(p.data, np.array(weights, np.float32))


def test_the_momentum_is_not_the_gradient_itself():
    p = parameter([0.0], [1.0])
    optimizer = optim.SGD([p], lr=1.0, momentum=0.5)
    optimizer.step()
    assert p.grad is not None
    p.grad.data[0] = 100.0  # clipping in place, say
    p.grad = Tensor([0.0])
    optimizer.step()
    assert p.data.tolist() == [-1.5]


def test_every_parameter_has_its_own_momentum_and_may_miss_steps():
    a, b = parameter([0.0], [1.0]), parameter([0.0], [10.0])
    optimizer = optim.SGD([a, b], lr=1.0, momentum=0.5)
    optimizer.step()
    b.grad = None
    optimizer.step()
    assert (a.data.tolist(), b.data.tolist()) == ([-2.5], [-10.0])
    a.grad, b.grad = None, Tensor([10.0])
    optimizer.step()
    assert (a.data.tolist(), b.data.tolist()) == ([-2.5], [-25.0])


# What is lost.


@pytest.mark.parametrize(
    ("fmt", "w", "lr", "g", "updates", "lost"),
    [
        ("fp16", [1.0], 1.0, [2.0**-12], 1, 1),  # below 1 the spacing is 2**-11: a tie, to even
        ("fp16", [1.0], 1.0, [-(2.0**-11)], 1, 1),  # above 1 it is 2**-10: a tie, to even
        ("fp16", [1.0], 1.0, [-(2.0**-11) * (1 + 2.0**-10)], 1, 0),
        ("fp16", [1.0], 1.0, [-(2.0**-10)], 1, 0),
        ("bf16", [1.0], 1.0, [-(2.0**-8)], 1, 1),
        ("bf16", [1.0], 1.0, [2.0**-8], 1, 0),
        ("fp32", [1.0], 1.0, [-(2.0**-24)], 1, 1),
        ("fp16", [1.0, 1.0, 1.0], 1.0, [0.0, -0.0, 0.5], 1, 0),  # nothing to lose
        ("fp16", [1.0, 2.0], 0.0, [1.0, 1.0], 0, 0),
        ("fp16", [np.inf], 1.0, [1.0], 1, 1),
        ("fp16", [1.0], 1.0, [np.nan], 1, 0),
        ("fp32", [1.0], 2.0**-100, [2.0**-100], 1, 1),  # the product is below float32, but not zero
        ("fp32", [0.0], 2.0**-100, [2.0**-100], 1, 1),
        ("fp64", [1.0], 1.0, [2.0**-54], 1, 1),
    ],
)
def test_lost_updates_are_counted(fmt: str, w: list[float], lr: float, g: list[float], updates: int, lost: int):
    optimizer = optim.SGD([parameter(w, g, fmt)], lr=lr)
    optimizer.step()
    assert (optimizer.counts.updates, optimizer.counts.lost) == (updates, lost)


def test_counts_add_up_over_steps_and_parameters():
    a, b = parameter([1.0, 1.0], [2.0**-12, 0.0], "fp16"), parameter([1.0], [0.5], "fp16")
    optimizer = optim.SGD([a, b], lr=1.0)
    optimizer.step()
    optimizer.step()
    assert (optimizer.counts.updates, optimizer.counts.lost) == (4, 2)
    assert optimizer.counts.share_lost == 0.5
    optimizer.counts = optim.UpdateCounts()
    assert np.isnan(optimizer.counts.share_lost)


# The interface.


def test_parameters_without_a_gradient_are_left_alone():
    p = Tensor([1.0], requires_grad=True)
    optimizer = optim.SGD([p], lr=1.0)
    optimizer.step()
    assert p.data.tolist() == [1.0]
    assert optimizer.counts == optim.UpdateCounts()


def test_zero_grad_forgets_the_gradients():
    p = parameter([1.0], [1.0])
    optim.SGD([p], lr=1.0).zero_grad()
    assert p.grad is None


def test_the_learning_rate_may_be_changed_between_steps():
    p = parameter([0.0], [1.0])
    optimizer = optim.SGD([p], lr=1.0)
    optimizer.step()
    optimizer.lr = 0.5
    optimizer.step()
    assert p.data.tolist() == [-1.5]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"params": [], "lr": 1.0}, ValueError, "params is empty"),
        ({"lr": -1.0}, ValueError, "lr is -1.0"),
        ({"lr": float("nan")}, ValueError, "lr is nan"),
        ({"lr": 1.0, "momentum": -0.5}, ValueError, "momentum is -0.5"),
        ({"lr": 1.0, "momentum": float("nan")}, ValueError, "momentum is nan"),
        ({"params": [np.ones(1)], "lr": 1.0}, TypeError, "params.*ndarray"),
        ({"params": nn.Linear(1, 1, rng=0).named_parameters(), "lr": 1.0}, TypeError, "params.*tuple"),
        ({"params": Tensor([1.0]), "lr": 1.0}, TypeError, "params"),
        ({"params": [Tensor([1.0], requires_grad=True)] * 2, "lr": 1.0}, ValueError, "params.*more than once"),
    ],
)
def test_arguments_that_cannot_work_are_refused_with_their_name(
    arguments: dict[str, Any], error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        optim.SGD(**{"params": [Tensor([1.0], requires_grad=True)], **arguments})
