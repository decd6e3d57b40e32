"""Ways of updating, whole arrays: pieces, threads, the processor's environment, what is lost, NaNs."""

from fractions import Fraction
from typing import Any

import numba
import numpy as np
import pytest
from numba import config

import mxcsr
from bits import assert_same_bits
from mpsim import Draws, amp, optim
from mpsim.formats import FP32, FP64, FloatFormat, get_format
from mpsim.rounding import round_to
from mpsim.tensor import Tensor

KINDS = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.01, "amsgrad": True}),
    ("AdamW", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9}),
    ("Adagrad", {"lr": 0.1}),
]

ARITHMETIC: list[dict[str, Any]] = [
    {},
    {"update": "stochastic", "rng": 3},
    {"update": "kahan"},
    {"update": "master"},
    {"state_format": "bf16", "state_rounding": "stochastic", "rng": 3},
    {"update": "master", "state_format": "fp16"},
]

SIZE = 300_000 if not config.DISABLE_JIT else 300

every_kind = pytest.mark.parametrize(("kind", "options"), KINDS, ids=[k for k, _ in KINDS])
every_arithmetic = pytest.mark.parametrize("arithmetic", ARITHMETIC, ids=str)


def drawn(size: int, fmt: str, seed: int = 0) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    dtype = get_format(fmt).value_dtype
    arrays = [round_to(rng.normal(size=size) * 2.0 ** rng.integers(-140, 3, size), fmt) for _ in range(3)]
    arrays = [a.astype(dtype) for a in arrays]
    return arrays[0], arrays[1:]


def trained(
    kind: str,
    options: dict[str, Any],
    arithmetic: dict[str, Any],
    fmt: str,
    arrays: tuple[np.ndarray, list[np.ndarray]],
) -> list[np.ndarray]:
    """Return the weights and the state after two steps."""
    w, grads = arrays
    p = Tensor(w, requires_grad=True, format=fmt)
    optimizer = getattr(optim, kind)([p], **options, **arithmetic)
    for grad in grads:
        p.grad = Tensor(grad, format=fmt)
        optimizer.step()
    state = optimizer.state_dict()["state"][0]
    return [p.data, *(value for name, value in state.items() if name != "step")]


@every_arithmetic
@every_kind
def test_the_number_of_threads_changes_nothing(kind: str, options: dict[str, Any], arithmetic: dict[str, Any]):
    before, arrays = numba.get_num_threads(), drawn(SIZE, "bf16")
    if config.NUMBA_NUM_THREADS < 2:
        pytest.skip("there is one thread")
    try:
        numba.set_num_threads(1)
        one = trained(kind, options, arithmetic, "bf16", arrays)
        numba.set_num_threads(2)
        two = trained(kind, options, arithmetic, "bf16", arrays)
    finally:
        numba.set_num_threads(before)
    for a, b in zip(one, two, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("word", [mxcsr.FTZ | mxcsr.DAZ, mxcsr.ROUND_DOWN, mxcsr.ROUND_UP, mxcsr.ROUND_TO_ZERO])
@pytest.mark.parametrize("fmt", ["fp32", "bf16", "fp64"])
@every_kind
def test_the_processors_rounding_mode_and_flush_bits_change_nothing(
    kind: str, options: dict[str, Any], fmt: str, word: int
):
    arrays = drawn(2000, fmt)
    want = trained(kind, options, {}, fmt, arrays)
    with mxcsr.mxcsr(mxcsr.DEFAULT | word):
        got = trained(kind, options, {}, fmt, arrays)
    for a, b in zip(got, want, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("fmt", [FP32, FP64], ids=str)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *KINDS[:3],
        ("SGD", {"lr": 0.1, "maximize": True}),
        ("SGD", {"lr": 0.1, "momentum": 0.5, "nesterov": True}),
        ("SGD", {"lr": 0.0}),
        ("Adam", {"betas": (0.3, 0.9), "maximize": True}),
        ("Adam", {"lr": 0.0}),
        ("AdamW", {"lr": 0.1, "amsgrad": True}),
    ],
    ids=str,
)
def test_one_pass_over_the_weights_gives_what_single_operations_give(
    kind: str, options: dict[str, Any], fmt: FloatFormat, monkeypatch: pytest.MonkeyPatch
):
    cls = getattr(optim, kind)
    w, grads = drawn(SIZE, fmt.name)
    for grad in grads:
        grad[:5] = 0.0, -0.0, np.inf, -np.inf, np.nan
    found = []
    for in_one_pass in (True, False):
        if not in_one_pass:
            monkeypatch.setattr(cls, "_whole_step", optim.Optimizer._whole_step)
        p = Tensor(w, requires_grad=True, format=fmt)
        optimizer = cls([p], **options)
        for grad in grads:
            p.grad = Tensor(grad, format=fmt)
            optimizer.step()
        found.append((p.data, optimizer.state_dict()["state"][0], optimizer.counts))
    (a, state, counts), (b, other, other_counts) = found
    assert_same_bits(a, b)
    assert counts == other_counts
    assert state.keys() == other.keys()
    for name in state.keys() - {"step"}:
        assert_same_bits(state[name], other[name])


def test_gradients_stay_as_they_were():
    grad = np.array([np.nan, 1.0], np.float32)
    grad.view(np.uint32)[0] = 0xFFC12345  # with a payload
    for kind, options in KINDS:
        for arithmetic in ARITHMETIC:
            p = Tensor([1.0, 1.0], requires_grad=True, format="bf16")
            p.grad = Tensor([0.0, 0.0])
            p.grad.data = grad.copy()
            getattr(optim, kind)([p], **options, **arithmetic).step()
            assert_same_bits(p.grad.data, grad)
            assert np.isnan(p.data[0])


@every_arithmetic
@every_kind
def test_nan_infinite_and_no_gradients_stay_in_their_elements(
    kind: str, options: dict[str, Any], arithmetic: dict[str, Any]
):
    p, empty, idle = (Tensor(data, requires_grad=True, format="bf16") for data in ([1.0, 2.0, 3.0], [], [1.0]))
    optimizer = getattr(optim, kind)([p, empty, idle], **options, **arithmetic)
    for _ in range(2):
        p.grad, empty.grad = Tensor([np.nan, np.inf, 1.0], format="bf16"), Tensor([], format="bf16")
        optimizer.step()
    assert not np.isfinite(p.data[:2]).any()
    assert p.data[:1].view(np.uint32).tolist() == [0x7FC00000]
    assert np.isfinite(p.data[2])
    assert (empty.shape, idle.data.tolist()) == ((0,), [1.0])
    assert list(optimizer.state_dict()["state"]) == [0, 1]


def test_weights_of_any_shape_and_layout_are_updated():
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    for kind, options in KINDS:
        for arithmetic in ARITHMETIC:
            p, q = (Tensor(base.T.copy(), requires_grad=True, format="bf16") for _ in "pq")
            p.data = base.T
            for x in (p, q):
                x.grad = Tensor(np.ones((4, 3)), format="bf16")
                getattr(optim, kind)([x], **options, **arithmetic).step()
            assert_same_bits(p.data, q.data)
            scalar = Tensor(1.0, requires_grad=True, format="bf16")
            scalar.grad = Tensor(1.0, format="bf16")
            getattr(optim, kind)([scalar], **options, **arithmetic).step()
            assert scalar.data.shape == ()


def test_small_updates_are_lost_to_nearest_and_kept_by_the_others():
    """A thousand steps of 2**-10 on a weight of 4 in BF16, whose neighbours are 2**-5 below and above it."""
    final, lost = {}, {}
    for update, rng in (("nearest", None), ("stochastic", 1), ("kahan", None), ("master", None)):
        p = Tensor(np.full(100, 4.0), requires_grad=True, format="bf16")
        optimizer = optim.SGD([p], lr=1.0, update=update, rng=rng)
        for _ in range(1000):
            p.grad = Tensor(np.full(100, 2.0**-10), format="bf16")
            optimizer.step()
        final[update], lost[update] = float(p.data.mean()), optimizer.counts.share_lost
    exact = 4 - 1000 * 2**-10
    assert (final["nearest"], lost["nearest"]) == (4.0, 1.0)
    assert abs(final["master"] - exact) <= 2**-7
    assert abs(final["kahan"] - exact) <= 2**-7
    assert (lost["master"], lost["kahan"]) == (0.0, 0.0)
    # The sum of 1000 draws has a deviation of at most sqrt(1000 * 2**-10 * 2**-6) = 2**-3; a mean of 100 has 2**-6.
    assert abs(final["stochastic"] - exact) < 5 * 2**-6
    assert 0.9 < lost["stochastic"] < 1


def test_each_parameter_has_counts_of_its_own():
    a, b = Tensor([1.0, 1.0], requires_grad=True, format="fp16"), Tensor([1.0], requires_grad=True, format="fp16")
    a.grad, b.grad = Tensor([2.0**-12, 0.0], format="fp16"), Tensor([0.5], format="fp16")
    optimizer = optim.SGD([a, b], lr=1.0)
    optimizer.step()
    assert optimizer.parameter_counts == [optim.UpdateCounts(1, 1), optim.UpdateCounts(1, 0)]
    assert optimizer.counts == optim.UpdateCounts(2, 1)


@pytest.mark.parametrize(("kind", "options"), [("AdamW", {"lr": 2.0**-13, "weight_decay": 0.5})])
@pytest.mark.parametrize(("fmt", "lost"), [("bf16", 1), ("fp32", 0)])
def test_a_decay_that_is_lost_is_counted(kind: str, options: dict[str, Any], fmt: str, lost: int):
    p = Tensor([1.0], requires_grad=True, format=fmt)
    p.grad = Tensor([0.0], format=fmt)
    optimizer = getattr(optim, kind)([p], **options)
    optimizer.step()
    assert optimizer.counts == optim.UpdateCounts(1, lost)


def test_a_master_follows_a_parameter_that_was_given_other_values():
    p = Tensor([1.0, 1.0], requires_grad=True, format="bf16")
    optimizer = optim.SGD([p], lr=1.0, update="master")
    for changed in (False, True):
        if changed:
            p.data = np.array([p.data[0], 2.0], np.float32)
        p.grad = Tensor([2.0**-10, 2.0**-10], format="bf16")
        optimizer.step()
    master = optimizer.state_dict()["state"][0]["master"]
    assert master.tolist() == [1 - 2.0**-9, 2 - 2.0**-10]


def test_parameters_draw_different_numbers_and_seeds_differ():
    def run(seed: int) -> list[np.ndarray]:
        params = [Tensor(np.ones(200), requires_grad=True, format="bf16") for _ in "ab"]
        optimizer = optim.SGD(params, lr=2.0**-9, update="stochastic", rng=Draws(seed=seed))
        results = []
        for _ in range(2):
            for p in params:
                p.data = np.ones(200, np.float32)
                p.grad = Tensor(np.ones(200), format="bf16")
            optimizer.step()
            results += [p.data for p in params]
        return results

    first, again, other = run(1), run(1), run(2)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    distinct = [*first, *other]
    for i, a in enumerate(distinct):
        assert 0.3 < (a != 1).mean() < 0.7
        assert all((a != b).any() for b in distinct[i + 1 :])


@every_kind
def test_a_scaler_unscales_steps_and_skips(kind: str, options: dict[str, Any]):
    def step(scale: float, grad: float) -> tuple[float, int]:
        p = Tensor([1.0], requires_grad=True)
        optimizer, scaler = getattr(optim, kind)([p], **options), amp.GradScaler(init_scale=scale)
        scaler.scale(Tensor(1.0))
        p.grad = Tensor([grad])
        scaler.step(optimizer)
        scaler.update()
        return float(p.data[0]), len(optimizer.state_dict()["state"])

    assert step(1.0, 0.5) == step(1024.0, 512.0)
    assert step(1024.0, np.inf) == (1.0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"update": "kahn"}, "update is 'kahn': did you mean 'kahan'"),
        ({"update": "stochastic"}, "rng is None"),
        ({"rng": 1}, "rng is given"),
        ({"update": "stochastic", "rng": Draws(stream=1)}, "rng has stream 1"),
        ({"state_rounding": "up"}, "state_rounding is 'up'"),
        ({"state_rounding": "stochastic", "rng": 1}, "state_rounding.*needs a state_format"),
        ({"state_format": "bf17"}, "bf17"),
    ],
)
def test_arithmetic_that_makes_no_sense_is_refused(arguments: dict[str, Any], message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        optim.SGD([Tensor([1.0], requires_grad=True)], lr=1.0, **arguments)


def test_fp64_weights_cannot_be_updated_stochastically():
    with pytest.raises(ValueError, match="fp64"):
        optim.SGD([Tensor(np.ones(1), requires_grad=True)], update="stochastic", rng=1)


@pytest.mark.parametrize(("fmt", "ulp"), [("bf16", 2.0**-7), ("fp16", 2.0**-10), ("e4m3", 2.0**-3)])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_exact_sum_is_rounded_once_where_binary64_would_round_it_to_a_tie(fmt: str, ulp: float, sign: int):
    # lr * |g| is half a unit in the last place, less or more by 2**-46 of it: below the last bit of binary64.
    for lr, g, w, want in (
        (ulp / 2 * (1 + 2.0**-23), 1 - 2.0**-23, 1 + ulp, 1 + ulp),
        (ulp / 2 * (1 + 2.0**-22), 1 - 2.0**-23 * (2 - 2.0**-21), 1 + ulp, 1 + ulp),
        (ulp / 2 * (1 - 2.0**-24), 1 + 2.0**-23, 1.0, 1 + ulp),
    ):
        p = Tensor([sign * w], requires_grad=True, format=fmt)
        p.grad = Tensor([-sign * g])
        optim.SGD([p], lr=lr).step()
        exact = Fraction(w) + Fraction(float(np.float32(lr))) * Fraction(float(np.float32(g)))
        assert (exact < w + Fraction(ulp) / 2) == (want == w)
        assert p.data.tolist() == [sign * want]
