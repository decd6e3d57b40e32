"""Every optimizer against its exact twin, in every arithmetic of the update."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numba import config

from bits import assert_same_bits
from mpsim import Draws, optim
from mpsim.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, FloatFormat
from mpsim.rounding import round_to
from mpsim.tensor import Tensor
from reference.optimizers import Twin, kahan, to_odd
from reference.training import rounded
from vectors import vectors

COUNT, STEPS = (20 if not config.DISABLE_JIT else 5), 4

CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1, "maximize": True}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    ("Adam", {"lr": 0.01, "betas": (0.4, 0.9), "eps": 0.1, "maximize": True}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.3}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    ("RMSprop", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01, "centered": True, "alpha": 0.9, "weight_decay": 0.1}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True, "alpha": 0.4}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.3}),
]

IDS = [f"{kind}-{'-'.join(options)}" for kind, options in CASES]

NOT_CENTRED = [case for case in CASES if "centered" not in case[1]]
"""Without the estimates of a variance, which come out negative where moments are rounded to a few bits."""

ROLES = {
    "SGD": ("v",),
    "Adam": ("m", "v", "largest"),
    "AdamW": ("m", "v", "largest"),
    "RMSprop": ("square", "mean", "v"),
    "Adagrad": ("total",),
}
"""State arrays in the order of their random streams; the weight has stream 0."""


def drawn(fmt: FloatFormat, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return weights and gradients of mixed magnitude, in a format."""
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=COUNT) * 2.0 ** rng.integers(-6, 3, COUNT) for _ in range(1 + STEPS)]
    rounded_arrays = [round_to(a, fmt).astype(fmt.value_dtype) for a in arrays]
    return rounded_arrays[0], rounded_arrays[1:]


def run(
    kind: str,
    options: dict[str, Any],
    fmt: FloatFormat,
    twins: list[Twin],
    finish: Callable[[int, Twin, float, float], float],
    **arithmetic: Any,
) -> None:
    """Step an optimizer and twins of it, and compare all weights after each step."""
    w, grads = drawn(fmt, 5)
    p = Tensor(w, requires_grad=True, format=fmt)
    optimizer = getattr(optim, kind)([p], **options, **arithmetic)
    want = w.tolist()
    updates = lost = 0
    for grad in grads:
        p.grad = Tensor(grad, format=fmt)
        optimizer.step()
        new = [finish(i, twins[i], want[i], float(grad[i])) for i in range(COUNT)]
        updates += sum(twin.meant for twin in twins)
        lost += sum(twin.meant and a == b for twin, a, b in zip(twins, new, want, strict=True))
        want = new
        assert_same_bits(p.data, np.array(want, p.data.dtype))
    assert p.format is fmt
    if arithmetic.get("update") not in ("master", "kahan"):
        assert (optimizer.counts.updates, optimizer.counts.lost) == (updates, lost)
        assert optimizer.parameter_counts == [optimizer.counts]


def in_format(fmt: FloatFormat) -> Callable[[float], float]:
    return lambda x: rounded(Fraction(x), fmt, zero=x)


@pytest.mark.parametrize("fmt", [FP32, FP64], ids=str)
@pytest.mark.parametrize(("kind", "options"), CASES, ids=IDS)
def test_plain_weights_follow_the_twin_bit_for_bit(kind: str, options: dict[str, Any], fmt: FloatFormat):
    run(
        kind,
        options,
        fmt,
        [Twin(kind, options, fmt) for _ in range(COUNT)],
        lambda i, twin, w, g: rounded(twin.exact_sum(w, g), fmt),
    )


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=str)
@pytest.mark.parametrize(("kind", "options"), CASES, ids=IDS)
def test_nearest_rounds_the_weight_once_and_state_after_each_operation(
    kind: str, options: dict[str, Any], fmt: FloatFormat
):
    hold = in_format(fmt)
    run(
        kind,
        options,
        fmt,
        [Twin(kind, options, FP32, lambda name, x: hold(x), hold) for _ in range(COUNT)],
        lambda i, twin, w, g: rounded(twin.exact_sum(w, g), fmt),
    )


@pytest.mark.parametrize("state_format", [BF16, FP16, E5M2], ids=str)
@pytest.mark.parametrize("fmt", [FP32, BF16], ids=str)
@pytest.mark.parametrize(("kind", "options"), NOT_CENTRED)
def test_a_state_format_rounds_state_once_when_it_is_stored(
    kind: str, options: dict[str, Any], fmt: FloatFormat, state_format: FloatFormat
):
    hold = in_format(state_format)
    if state_format is E5M2 and kind != "SGD":
        options = {**options, "eps": 0.25}  # second moments vanish in so few bits
    run(
        kind,
        options,
        fmt,
        [Twin(kind, options, FP32, lambda name, x: hold(x)) for _ in range(COUNT)],
        lambda i, twin, w, g: rounded(twin.exact_sum(w, g), fmt),
        state_format=state_format,
    )


def one_draw(x: float, i: int, fmt: FloatFormat, stream: int) -> float:
    """Round element ``i`` of an array stochastically."""
    values = np.zeros(i + 1)
    values[i] = x
    return float(round_to(values, fmt, "stochastic", rng=Draws(seed=7, stream=stream))[i])


@pytest.mark.parametrize("fmt", [FP32, BF16, FP16], ids=str)
@pytest.mark.parametrize(("kind", "options"), CASES, ids=IDS)
def test_stochastic_weights_take_the_draws_of_parameter_step_and_element(
    kind: str, options: dict[str, Any], fmt: FloatFormat
):
    hold = in_format(fmt)
    run(
        kind,
        options,
        fmt,
        [Twin(kind, options, FP32, lambda name, x: hold(x), hold) for _ in range(COUNT)],
        lambda i, twin, w, g: one_draw(to_odd(twin.exact_sum(w, g)), i, fmt, twin.step << 4),
        update="stochastic",
        rng=7,
    )


@pytest.mark.parametrize(("kind", "options"), NOT_CENTRED)
def test_stochastic_state_takes_a_stream_for_each_array(kind: str, options: dict[str, Any]):
    if "initial_accumulator_value" in options:
        options = {**options, "initial_accumulator_value": 0.25}
    twins: list[Twin] = []

    def stored(i: int) -> Callable[[str, float], float]:
        def store(name: str, x: float) -> float:
            twin = twins[i]
            return one_draw(x, i, BF16, twin.step << 4 | 1 + ROLES[kind].index(name))

        return store

    twins += [Twin(kind, options, FP32, stored(i)) for i in range(COUNT)]
    run(
        kind,
        options,
        FP32,
        twins,
        lambda i, twin, w, g: rounded(twin.exact_sum(w, g), FP32),
        state_format=BF16,
        state_rounding="stochastic",
        rng=7,
    )


@pytest.mark.parametrize("fmt", [FP32, FP64, BF16, FP16], ids=str)
@pytest.mark.parametrize(("kind", "options"), CASES, ids=IDS)
def test_kahan_rounds_each_of_its_sums_to_the_format(kind: str, options: dict[str, Any], fmt: FloatFormat):
    hold = in_format(fmt)
    working = FP64 if fmt is FP64 else FP32
    rests = [0.0] * COUNT

    def finish(i: int, twin: Twin, w: float, g: float) -> float:
        new, rests[i] = kahan(twin, w, rests[i], g, fmt)
        return new

    run(
        kind,
        options,
        fmt,
        [Twin(kind, options, working, lambda name, x: hold(x), hold) for _ in range(COUNT)],
        finish,
        update="kahan",
    )


@pytest.mark.parametrize("fmt", [BF16, FP16, E4M3], ids=str)
@pytest.mark.parametrize(("kind", "options"), CASES, ids=IDS)
def test_a_parameter_is_its_master_weight_rounded(kind: str, options: dict[str, Any], fmt: FloatFormat):
    masters: dict[int, float] = {}

    def finish(i: int, twin: Twin, w: float, g: float) -> float:
        masters[i] = rounded(twin.exact_sum(masters.get(i, w), g), FP32)
        return rounded(Fraction(masters[i]), fmt, zero=masters[i])

    twins = [Twin(kind, options, FP32) for _ in range(COUNT)]
    run(kind, options, fmt, twins, finish, update="master")


@pytest.mark.parametrize(
    ("file", "make"),
    [
        ("sgd_momentum.npz", lambda p: optim.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.01)),
        ("adam.npz", lambda p: optim.Adam([p], lr=0.01)),
    ],
)
def test_recorded_steps_of_torch_in_fp64_are_reproduced_bit_for_bit(
    file: str, make: Callable[[Tensor], optim.Optimizer]
):
    with np.load(vectors("autograd", file)) as arrays:
        param0, grads, params = arrays["param0"], arrays["grads"], arrays["params"]
    p = Tensor(param0, requires_grad=True)
    optimizer = make(p)
    for grad, want in zip(grads, params, strict=True):
        p.grad = Tensor(grad)
        optimizer.step()
        assert_same_bits(p.data, want)


@pytest.mark.parametrize(
    ("make", "grads", "weights"),
    [
        # v = 1, 1.5; the step is lr * v.
        (lambda p: optim.SGD([p], lr=0.5, momentum=0.5), [1.0, 1.0], [0.5, -0.25]),
        # v = 1, 0.5 + 0.75; dampening only from the second step.
        (lambda p: optim.SGD([p], lr=1.0, momentum=0.5, dampening=0.25), [1.0, 1.0], [0.0, -1.25]),
        # g + v/2 = 1.5; v = 1.5, g + v/2 = 1.75.
        (lambda p: optim.SGD([p], lr=1.0, momentum=0.5, nesterov=True), [1.0, 1.0], [-0.5, -2.25]),
        # g + w/2 = 1.5, then 1 - 0.25 = 0.75.
        (lambda p: optim.SGD([p], lr=1.0, weight_decay=0.5), [1.0, 1.0], [-0.5, -1.25]),
        (lambda p: optim.SGD([p], lr=1.0, maximize=True), [1.0, 1.0], [2.0, 3.0]),
        # The first step of Adam is lr in the direction of the gradient, whatever its size.
        (lambda p: optim.Adam([p], lr=0.5, betas=(0.5, 0.75), eps=0.0), [4.0], [0.5]),
        (lambda p: optim.AdamW([p], lr=0.5, betas=(0.5, 0.75), eps=0.0, weight_decay=0.5), [4.0], [0.25]),
        # Without means it always is; then the gradient halves, and the largest moment keeps it half.
        (lambda p: optim.Adam([p], lr=0.5, betas=(0.0, 0.0), eps=0.0), [4.0, 2.0], [0.5, 0.0]),
        (lambda p: optim.Adam([p], lr=0.5, betas=(0.0, 0.0), eps=0.0, amsgrad=True), [4.0, 2.0], [0.5, 0.25]),
        # The mean square is 16/4; the root 2.
        (lambda p: optim.RMSprop([p], lr=0.5, alpha=0.75, eps=0.0), [4.0], [0.0]),
        # 16/2 less the square of 4/2 is 4.
        (lambda p: optim.RMSprop([p], lr=0.5, alpha=0.5, eps=0.0, centered=True), [4.0], [0.0]),
        (lambda p: optim.Adagrad([p], lr=0.5, eps=0.0), [3.0, 4.0], [0.5, 0.5 - 0.5 * 4 / 5]),
        (lambda p: optim.Adagrad([p], lr=0.5, eps=0.0, lr_decay=1.0), [3.0, 4.0], [0.5, 0.5 - 0.25 * 4 / 5]),
        (lambda p: optim.Adagrad([p], lr=0.5, eps=0.0, initial_accumulator_value=16.0), [3.0], [1 - 0.5 * 3 / 5]),
    ],
)
def test_steps_worked_out_by_hand(make: Callable[[Tensor], optim.Optimizer], grads: list[float], weights: list[float]):
    p = Tensor(np.array([1.0]), requires_grad=True)
    optimizer = make(p)
    for grad, want in zip(grads, weights, strict=True):
        p.grad = Tensor(np.array([grad]))
        optimizer.step()
        assert p.data.tolist() == [want]


def test_a_variance_lost_in_rounding_is_nan_as_in_torch():
    p = Tensor([1.0], requires_grad=True, format="e5m2")
    optimizer = optim.RMSprop([p], alpha=0.5, centered=True)
    for _ in range(4):  # the mean square comes to 2, the squared mean to 1.5**2
        p.grad = Tensor([1.5], format="e5m2")
        optimizer.step()
    assert np.isnan(p.data).all()
