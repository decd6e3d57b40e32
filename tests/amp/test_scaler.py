import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import amp, optim
from mpsim.formats import BF16, FP16, FP32
from mpsim.observe import observe
from mpsim.rounding import round_to
from mpsim.tensor import Tensor
from vectors import vectors


def number(x: Any) -> float:
    return float(x)  # also "inf", "-inf" and "nan"


def float32s(values: list[Any]) -> np.ndarray:
    return np.array([number(v) for v in values], np.float32)


def parameter(data: Any, grad: Any = None, fmt: str = "fp32") -> Tensor:
    p = Tensor(data, requires_grad=True, format=fmt)
    p.grad = None if grad is None else Tensor(grad, format=fmt)
    return p


# Traces of torch.amp.GradScaler.


class Replay:
    """Carries out the script of one trace."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.scaler = amp.GradScaler(**case["params"])
        self.params = [parameter(o["param"]) for o in case["optimizers"]]
        self.optimizers = [optim.SGD([p], lr=o["lr"]) for p, o in zip(self.params, case["optimizers"], strict=True)]
        self.saved: dict[str, Any] = {}
        self.skipped: list[bool | None] = []

    def run(self, actions: list[dict[str, Any]]) -> None:
        self.skipped = [None] * len(self.params)
        self.scaler.scale(Tensor(1.0))
        for action in actions:
            arguments = {key: value for key, value in action.items() if key != "op"}
            getattr(self, action["op"])(**arguments)

    def set_grad(self, opt: int, grad: list[Any]) -> None:
        self.params[opt].grad = Tensor(float32s(grad))

    def true_grad(self, opt: int, true: list[float], round: str) -> None:
        with np.errstate(over="ignore"):
            scaled = float32s(true) * np.float32(self.scaler.get_scale())
        self.params[opt].grad = Tensor(round_to(scaled, round))

    def no_grad(self, opt: int) -> None:
        self.params[opt].grad = None

    def unscale(self, opt: int) -> None:
        self.scaler.unscale_(self.optimizers[opt])

    def clip(self, opt: int, max_norm: float) -> None:
        """Do as torch.nn.utils.clip_grad_norm_ does, for one parameter."""
        grad = self.params[opt].grad
        assert grad is not None
        norm = np.sqrt(np.sum(grad.data * grad.data))
        coefficient = np.minimum(np.float32(max_norm) / (norm + np.float32(1e-6)), np.float32(1))
        with np.errstate(invalid="ignore"):
            grad.data = grad.data * coefficient

    def step(self, opt: int) -> None:
        before = self.scaler.skipped
        self.scaler.step(self.optimizers[opt])
        self.skipped[opt] = self.scaler.skipped > before

    def update(self, new_scale: float | None = None) -> None:
        self.scaler.update(new_scale)

    def save(self) -> None:
        self.saved = self.scaler.state_dict()

    def load(self) -> None:
        self.scaler.load_state_dict(self.saved)

    def set(self, field: str, value: float) -> None:
        setattr(self.scaler, field, value)

    def compare(self, want: dict[str, Any]) -> None:
        assert_same_bits(np.float32(self.scaler.get_scale()), np.float32(number(want["scale"])))
        assert self.scaler.state_dict()["_growth_tracker"] == want["growth_tracker"]
        assert self.skipped == want["skipped"]
        for p, grad, param in zip(self.params, want["grad"], want["param"], strict=True):
            if grad is None:
                assert p.grad is None
            else:
                assert p.grad is not None
                np.testing.assert_array_equal(p.grad.data, float32s(grad), strict=True)  # NaNs of any bits
            np.testing.assert_array_equal(p.data, float32s(param), strict=True)


def traces() -> dict[str, dict[str, Any]]:
    return {case["id"]: case for case in json.loads(vectors("gradscaler", "traces.json").read_text())["cases"]}


CASES = (
    "defaults-short",
    "defaults-2005",
    "interval-3",
    "interval-1",
    "non-pow2",
    "grow-to-limit",
    "below-one",
    "to-zero",
    "inf-after-unscale",
    "two-optimizers",
    "unscale-clip",
    "state-and-new-scale",
    "fp16-ride-the-edge",
    "fp16-underflow",
    "bf16-never-overflows",
)


def test_every_trace_is_replayed():
    assert set(CASES) == set(traces())


@pytest.mark.parametrize("name", CASES)
def test_a_trace_of_torch_is_replayed_exactly(name: str):
    case = traces()[name]
    replay, steps, expect = Replay(case), case["steps"], case["expect"]
    if isinstance(steps, dict):
        bad = ["inf", *steps["finite_grad"][1:]]
        steps = [
            [
                {"op": "set_grad", "opt": 0, "grad": bad if c == "i" else steps["finite_grad"]},
                {"op": "step", "opt": 0},
                {"op": "update"},
            ]
            for c in steps["pattern"]
        ]
        expect = [expect.get(str(i)) for i in range(len(steps))]
    for actions, want in zip(steps, expect, strict=True):
        replay.run(actions)
        if want is not None:
            replay.compare(want)
    final = replay.scaler.state_dict()
    assert final.keys() == case["final_state_dict"].keys()
    for key, want in case["final_state_dict"].items():
        assert final[key] == number(want), key


# Misuse.


def used(scaler: amp.GradScaler, fmt: str = "fp32", grad: Any = (1.0,)) -> optim.SGD:
    """Return an optimizer with a gradient, as after ``scale`` and ``backward``."""
    scaler.scale(Tensor(1.0))
    return optim.SGD([parameter([0.0], grad, fmt)], lr=1.0)


def step_twice() -> None:
    scaler = amp.GradScaler()
    optimizer = used(scaler)
    scaler.step(optimizer)
    scaler.step(optimizer)


def unscale_twice() -> None:
    scaler = amp.GradScaler()
    optimizer = used(scaler)
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def unscale_after_step() -> None:
    scaler = amp.GradScaler()
    optimizer = used(scaler)
    scaler.step(optimizer)
    scaler.unscale_(optimizer)


def scale_then_update() -> None:
    scaler = amp.GradScaler()
    scaler.scale(Tensor(1.0))
    scaler.update()


def step_without_gradients() -> None:
    scaler = amp.GradScaler()
    scaler.step(used(scaler, grad=None))


def step_with(fmt: str) -> None:
    scaler = amp.GradScaler()
    scaler.step(used(scaler, fmt))


def step_with_closure() -> None:
    scaler = amp.GradScaler()
    scaler.step(used(scaler), closure=lambda: 0.0)


def update_with(new_scale: Any) -> None:
    scaler = amp.GradScaler()
    used(scaler)
    scaler.update(new_scale)


MISUSE: dict[str, Callable[[], Any]] = {
    "update() before any scale() call": lambda: amp.GradScaler().update(),
    "step(opt) before any scale() call": lambda: amp.GradScaler().step(optim.SGD([parameter([0.0], [1.0])], lr=1.0)),
    "scale() then update() with no unscale_/step since the last update": scale_then_update,
    "step(opt) when every parameter's grad is None": step_without_gradients,
    "step(opt) twice without update": step_twice,
    "unscale_(opt) twice without update": unscale_twice,
    "unscale_(opt) after step(opt)": unscale_after_step,
    "constructor growth_factor = 1.0": lambda: amp.GradScaler(growth_factor=1.0),
    "constructor backoff_factor = 1.0": lambda: amp.GradScaler(backoff_factor=1.0),
    "constructor backoff_factor = -1.0": lambda: amp.GradScaler(backoff_factor=-1.0),
    "constructor init_scale = 0.0": lambda: amp.GradScaler(init_scale=0.0),
    "unscale/step when a gradient is float16": lambda: step_with("fp16"),
    "unscale/step when a gradient is bfloat16": lambda: step_with("bf16"),
    "load_state_dict({})": lambda: amp.GradScaler().load_state_dict({}),
    "step(opt, closure=f)": step_with_closure,
    "update(new_scale) with a tensor of 2 elements": lambda: update_with(Tensor([1.0, 2.0])),
    "update(5), a Python int": lambda: update_with(5),
    "disabled scaler: state_dict()": lambda: amp.GradScaler(enabled=False).state_dict(),
    "disabled scaler: get_scale()": lambda: amp.GradScaler(enabled=False).get_scale(),
}

OURS: dict[str, type[Exception] | None] = {
    # A wrong value of an argument is a ValueError everywhere in mpsim.
    "constructor growth_factor = 1.0": ValueError,
    "constructor backoff_factor = 1.0": ValueError,
    "update(new_scale) with a tensor of 2 elements": ValueError,
    # An integer is a number: torch fails here by accident.
    "update(5), a Python int": None,
}
"""Where mpsim raises something else than torch."""

RAISES = {"AssertionError": AssertionError, "RuntimeError": RuntimeError, "ValueError": ValueError, None: None}


def errors() -> list[dict[str, Any]]:
    return json.loads(vectors("gradscaler", "errors.json").read_text())["cases"]


def test_every_misuse_is_tried():
    assert MISUSE.keys() == {case["do"] for case in errors()}
    assert OURS.keys() <= MISUSE.keys()


@pytest.mark.parametrize("what", MISUSE)
def test_misuse_raises_what_torch_raises(what: str):
    (case,) = (case for case in errors() if case["do"] == what)
    error = OURS[what] if what in OURS else RAISES[case.get("raises")]
    if error is None:
        result = MISUSE[what]()
        assert "returns" not in case or result == case["returns"]
    else:
        with pytest.raises(error):
            MISUSE[what]()


def test_an_error_in_unscaling_leaves_gradients_and_stage_as_they_were():
    scaler = amp.GradScaler(init_scale=2.0)
    scaler.scale(Tensor(1.0))
    wide, low = parameter([0.0], [4.0]), parameter([0.0], [4.0], "fp16")
    optimizer = optim.SGD([wide, low], lr=1.0)
    with pytest.raises(ValueError, match="FP16"):
        scaler.unscale_(optimizer)
    assert wide.grad is not None
    assert wide.grad.data.tolist() == [4.0]
    low.grad = None
    scaler.unscale_(optimizer)
    assert wide.grad.data.tolist() == [2.0]


# scale().


def test_scaling_promotes_a_loss_without_dimensions_to_fp32():
    loss = Tensor(0.5, format="fp16")
    scaled = amp.GradScaler().scale(loss)
    assert (scaled.format, scaled.item()) == (FP32, 32768.0)


def test_scaling_a_vector_in_fp16_overflows_as_in_torch():
    # The scale takes the format of the vector, and 65536 is beyond FP16.
    scaled = amp.GradScaler().scale(Tensor([0.5], format="fp16"))
    assert (scaled.format, scaled.data.tolist()) == (FP16, [np.inf])


def test_scaling_is_differentiable():
    x = parameter([3.0])
    amp.GradScaler(init_scale=8.0).scale((x * x).sum()).backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [48.0]


def test_iterables_of_losses_are_scaled_one_by_one():
    scaler, a, b = amp.GradScaler(init_scale=2.0), Tensor(1.0), Tensor(3.0)
    assert [type(scaler.scale(x)) for x in ([a], (a,))] == [list, tuple]
    nested = scaler.scale([a, (b, a)])
    assert (nested[0].item(), nested[1][0].item(), nested[1][1].item()) == (2.0, 6.0, 2.0)
    assert [x.item() for x in scaler.scale(x for x in (a, b))] == [2.0, 6.0]


@pytest.mark.parametrize("outputs", [1.0, "loss", {"loss": Tensor(1.0)}, None, [1.0]], ids=repr)
def test_what_is_no_tensor_cannot_be_scaled(outputs: Any):
    with pytest.raises(TypeError, match="Tensor"):
        amp.GradScaler().scale(outputs)


# Unscaling.


def test_unscaling_multiplies_by_the_rounded_inverse_in_fp32():
    scale, grad = np.float32(1000.1), np.array([0.1, 3.0, 1e-40], np.float32)
    scaler = amp.GradScaler(init_scale=float(scale))
    p = parameter(np.zeros(3), grad)
    scaler.scale(Tensor(1.0))
    scaler.unscale_(optim.SGD([p], lr=1.0))
    assert p.grad is not None
    assert_same_bits(p.grad.data, grad * np.float32(1 / np.float64(scale)))


@pytest.mark.parametrize("shape", [(), (3,)])
def test_bf16_gradients_are_multiplied_in_fp32_and_rounded_once(shape: tuple[int, ...]):
    # The inverse of 1000 in BF16 would be another number.
    grad = round_to(np.full(shape, 3.0, np.float32), "bf16")
    p = parameter(np.zeros(shape), grad, "bf16")
    scaler = amp.GradScaler(init_scale=1000.0)
    scaler.scale(Tensor(1.0))
    scaler.unscale_(optim.SGD([p], lr=1.0))
    assert p.grad is not None
    assert p.grad.format is BF16
    assert_same_bits(p.grad.data, round_to(grad * np.float32(1 / 1000), "bf16"))


def test_unscaling_is_not_seen_by_an_observer_nor_by_autocast():
    scaler = amp.GradScaler()
    optimizer = used(scaler)
    with observe() as record, amp.autocast("fp16"):
        scaler.unscale_(optimizer)
    assert record.counters().elements == 0


# Steps.


def test_gradients_are_unscaled_also_when_the_step_is_skipped():
    scaler = amp.GradScaler(init_scale=2.0)
    p = parameter([1.0, 1.0], [np.inf, 8.0])
    scaler.scale(Tensor(1.0))
    scaler.step(optim.SGD([p], lr=1.0))
    assert p.grad is not None
    assert (p.data.tolist(), p.grad.data.tolist(), scaler.skipped) == ([1.0, 1.0], [np.inf, 4.0], 1)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_any_infinity_or_nan_skips_the_step(bad: float):
    scaler = amp.GradScaler(init_scale=2.0)
    good, other = parameter([1.0], [8.0]), parameter([1.0, 1.0], [1.0, bad])
    scaler.scale(Tensor(1.0))
    scaler.step(optim.SGD([good, other], lr=1.0))
    scaler.update()
    assert (good.data.tolist(), scaler.get_scale(), scaler.skipped) == ([1.0], 1.0, 1)


def test_a_disabled_scaler_does_nothing_but_step():
    scaler = amp.GradScaler(enabled=False, growth_factor=0.5, backoff_factor=2.0)
    p, loss = parameter([1.0], [np.inf]), Tensor(2.0)
    optimizer = optim.SGD([p], lr=1.0)
    assert scaler.scale(loss) is loss
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.step(optimizer)
    scaler.update()
    scaler.load_state_dict({})
    assert (p.data.tolist(), scaler.get_scale(), scaler.state_dict(), scaler.skipped) == ([-np.inf], 1.0, {}, 0)


def test_an_interval_lowered_below_the_tracker_is_jumped_over():
    """As in torch, where growth then stops until the next overflow."""
    scaler = amp.GradScaler(init_scale=1.0, growth_interval=4)
    for _ in range(3):
        scaler.step(used(scaler))
        scaler.update()
    scaler.growth_interval = 2
    for _ in range(5):
        scaler.step(used(scaler))
        scaler.update()
    assert scaler.get_scale() == 1.0
    scaler.step(used(scaler, grad=[np.inf]))
    scaler.update()
    for _ in range(2):
        scaler.step(used(scaler))
        scaler.update()
    assert scaler.get_scale() == 1.0  # halved, and doubled after two


# State.


def test_a_state_goes_through_json_and_torchs_names():
    scaler = amp.GradScaler(init_scale=1000.1, growth_factor=1.7, backoff_factor=0.3, growth_interval=2)
    scaler.step(used(scaler))
    scaler.update()
    state = json.loads(json.dumps(scaler.state_dict()))
    assert list(state) == ["scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"]
    other = amp.GradScaler()
    other.load_state_dict(state)
    assert other.state_dict() == scaler.state_dict()
    other.step(used(other))
    other.update()  # the second clean step of two
    assert other.get_scale() == float(np.float32(np.float64(np.float32(1000.1)) * 1.7))


def test_a_scaler_can_be_pickled_between_iterations():
    scaler = amp.GradScaler(init_scale=8.0)
    scaler.step(used(scaler))
    scaler.update()
    assert pickle.loads(pickle.dumps(scaler)).state_dict() == scaler.state_dict()


# ConstantScaler.


def test_a_constant_scale_skips_overflows_and_stays():
    scaler = amp.ConstantScaler(1024.0)
    for grad, skipped in ((2048.0, 0), (np.inf, 1), (np.nan, 2), (2048.0, 2)):
        p = parameter([1.0], [grad])
        scaler.scale(Tensor(1.0))
        scaler.step(optim.SGD([p], lr=0.25))
        scaler.update()
        assert p.data.tolist() == [0.5 if np.isfinite(grad) else 1.0]
        assert (scaler.get_scale(), scaler.skipped) == (1024.0, skipped)


def test_a_constant_scale_does_not_grow_after_any_number_of_steps():
    scaler = amp.ConstantScaler(2.0)
    optimizer = used(scaler)
    for _ in range(2001):
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan, 1e-60, 1e60])
def test_a_constant_scale_must_be_a_positive_number_of_fp32(scale: float):
    with pytest.raises(ValueError, match="scale is"):
        amp.ConstantScaler(scale)


# Interchange with torch.


def test_a_state_dict_goes_to_torch_and_back():
    torch = pytest.importorskip("torch")
    ours = amp.GradScaler(init_scale=1000.1, growth_factor=1.5, backoff_factor=0.25, growth_interval=3)
    theirs = torch.amp.GradScaler("cpu")
    for grads in ([1.0, 1.0], [1.0, np.inf, 1.0, 1.0, 1.0], [np.inf]):
        theirs.load_state_dict(ours.state_dict())
        for grad in grads:  # both go on from one state, and end in one
            p = torch.nn.Parameter(torch.zeros(1))
            p.grad = torch.tensor([grad])
            theirs.scale(torch.ones(1))
            theirs.step(torch.optim.SGD([p], lr=1.0))
            theirs.update()
            ours.step(used(ours, grad=[grad]))
            ours.update()
        assert theirs.state_dict() == ours.state_dict()
        ours = amp.GradScaler()
        ours.load_state_dict(theirs.state_dict())


def test_a_constant_scaler_stays_constant_with_any_state():
    scaler = amp.ConstantScaler(8.0)
    scaler.load_state_dict(amp.GradScaler(init_scale=4.0, growth_interval=1).state_dict())
    scaler.step(used(scaler))
    scaler.update()
    assert scaler.get_scale() == 4.0


def test_any_scalers_state_is_taken_over_by_one_of_the_same_rule():
    old, new = (amp.loss_scaler("megatron", interval=3) for _ in range(2))
    for grad in ([np.inf], [1.0], [1.0]):
        old.step(used(old, grad=grad))
        old.update()
    new.load_state_dict(json.loads(json.dumps(old.state_dict())))
    assert new.state == old.state
    with pytest.raises(ValueError, match="'megatron'; this scaler follows 'keras'"):
        amp.loss_scaler("keras").load_state_dict(old.state_dict())
    with pytest.raises(RuntimeError, match="empty"):
        new.load_state_dict({})


def test_fp16_gradients_of_master_weights_are_unscaled_into_fp32():
    p = parameter([0.125], [3 * 2.0**-24], "fp16")
    scaler = amp.loss_scaler("apex", start=4.0)
    scaler.scale(Tensor(1.0))
    optimizer = optim.SGD([p], lr=1.0, update="master")
    scaler.step(optimizer)
    assert p.grad is not None
    assert (p.grad.format, p.grad.item()) == (FP32, 3 * 2.0**-26)
    assert optimizer.state_dict()["state"][0]["master"].tolist() == [0.125 - 3 * 2.0**-26]
