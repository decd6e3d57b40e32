"""Keras's float8 against its exact twin: products, scales and histories, over several steps."""

from __future__ import annotations

import dataclasses
from typing import Any

import numba
import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import amp, nn, no_grad
from mpsim.amp.recipes import AmaxHistory, KerasScaling, RecipeSite
from mpsim.amp.recipes.keras import stepped
from mpsim.formats import BF16, E4M3, E5M2, FP16, FP32, FloatFormat
from mpsim.tensor import Tensor
from reference import recipes as twin
from reference.rounding import decode_array, encode_array

Array = np.ndarray[Any, Any]
machine_code = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="several steps take minutes as plain Python")

FORMATS = {"inputs": E4M3, "kernel": E4M3, "outputs_grad": E5M2}
SHORT = KerasScaling(amax_history_len=4)
TOKENS, INPUTS, OUTPUTS = 5, 20, 3

# Sizes of the input, the weight and the gradient in the steps of a run.
RUNS: dict[str, list[tuple[float, float, float]]] = {
    "ordinary": [(1, 1, 1), (3, 1, 2**-9), (0.5, 0.7, 1), (2, 2, 3), (1, 1, 1), (1, 1, 1), (2**-12, 1, 2**10)],
    "zeros": [(0, 1, 0), (0, 1, 1), (3, 0, 0), (1, 1, 1), (1, 1, 0), (0, 0, 0), (7, 3, 0.1)],
    "tiny": [(1, 1, 2**-20), (2**-119, 1, 2**-20), (1, 1, 1), (2**-60, 1, 1), (1, 1, 1)],
    "scale zero": [(2.0**-123, 1, 1), (2.0**-123, 1, 1), (1, 1, 1), (1, 1, 1)],
    "infinite": [(1, 1, 1), (np.inf, 1, 1), (1, 1, np.inf), (2, 1, 1), (1, 3, 1), (1, 1, 1), (1, 1, 1)],
    "nan": [(1, 1, 1), (np.nan, 1, 1), (2, 1, np.nan), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)],
}


def numbers(step: int, sizes: tuple[float, float, float], fmt: FloatFormat) -> tuple[Array, Array, Array]:
    """Return an input, a weight in FP32 and a gradient in the format of a region; infinite and NaN in one place."""
    rng = np.random.default_rng(step)
    arrays = []
    for shape, size in zip(((TOKENS, INPUTS), (OUTPUTS, INPUTS), (TOKENS, OUTPUTS)), sizes, strict=True):
        x = (rng.normal(size=shape) * 2.0 ** rng.integers(-9, 3, shape)).astype(np.float32)
        x[0, 1] = 0
        if np.isfinite(size):
            x = x * np.float32(size)
        else:
            x[1, 1] = size
        arrays.append(x)
    x, w, g = arrays
    return held(x, fmt), w, held(g, fmt)


def held(x: Array, fmt: FloatFormat) -> Array:
    """Return numbers rounded to a format, by the twin."""
    codes = encode_array(fmt, x.reshape(-1).tolist())
    return decode_array(fmt, codes, x.dtype).reshape(x.shape)


def step(layer: nn.Linear, x: Array, g: Array, recipe: KerasScaling, fmt: FloatFormat, unit: str) -> list[Array]:
    """Return the output, and the gradients of the input and the weight."""
    inputs = Tensor(x, requires_grad=True).to(fmt)
    inputs = Tensor(inputs.data, requires_grad=True, format=fmt)
    layer.weight.grad = None
    with amp.fp8_autocast(recipe, unit=unit, format=fmt):
        y = layer(inputs)
    y.backward(g)
    assert inputs.grad is not None
    return [y.data, inputs.grad.data, layer.weight.grad.data]


def assert_state(layer: nn.Linear, states: dict[str, twin.KerasState]) -> None:
    got = amp.scaling_state(layer)
    for name, state in states.items():
        assert_same_bits(got[f"weight/linear/{name}/amax"], np.float32(state.amax))
        assert_same_bits(got[f"weight/linear/{name}/scale"], np.array(state.scale, np.float32))


def seen(states: dict[str, twin.KerasState], arrays: tuple[Array, ...]) -> dict[str, twin.KerasState]:
    """Return the states after a step with an input, a weight and a gradient in the region's format."""
    return {
        name: state.after(twin.amax_of(x.reshape(-1).tolist()))
        for (name, state), x in zip(states.items(), arrays, strict=True)
    }


def fresh(length: int = 4) -> dict[str, twin.KerasState]:
    return {name: twin.KerasState(fmt, (0.0,) * length) for name, fmt in FORMATS.items()}


@machine_code
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("fmt", "unit"), [(BF16, "h100"), (FP16, "v100"), (FP32, "native"), (BF16, "native")],
                         ids=["bf16-h100", "fp16-v100", "fp32", "bf16"])  # fmt: skip
def test_products_scales_and_histories_are_the_twins_over_several_steps(run: str, fmt: FloatFormat, unit: str):
    recipe = dataclasses.replace(SHORT, compute=fmt.name)
    layer, states = nn.Linear(INPUTS, OUTPUTS, bias=False), fresh()
    for i, sizes in enumerate(RUNS[run]):
        x, w, g = numbers(i, sizes, fmt)
        layer.weight.data = w
        got = step(layer, x, g, recipe, fmt, unit)
        low = held(w, fmt)
        a, b, c = (state.there_and_back(m.tolist(), fmt) for state, m in zip(states.values(), (x, low, g), strict=True))
        for result, left, right in (
            (got[0], a, b),
            (got[1], c, twin.transposed(b)),
            (got[2], twin.transposed(c), twin.transposed(a)),
        ):
            if unit == "native":
                with np.errstate(all="ignore"):
                    want = held(np.float32(left) @ np.float32(right).T, fmt)
            else:
                made = twin.unit_of(unit, fmt, fmt)
                want = np.float32(
                    [[twin.plain_product(made, left, right, m, n) for n in range(len(right))] for m in range(len(left))]
                )
            assert_same_bits(result, want)
        states = seen(states, (x, low, g))
        assert_state(layer, states)


@pytest.mark.parametrize("fmt", [E4M3, E5M2], ids=str)
def test_a_step_of_the_state_is_the_twins_for_any_amax(fmt: FloatFormat):
    special = [0.0, np.inf, np.nan, 1e-45, 1e-38, 1.3e-36, 1.4e-36, 3e38, 448.0, 57344.0, 1.0, 3.0]
    drawn = (10.0 ** np.random.default_rng(0).uniform(-38, 38, 200)).astype(np.float32).tolist()
    for length in (1, 2, 5):
        got, want = AmaxHistory(np.zeros(length, np.float32)), twin.KerasState(fmt, (0.0,) * length)
        for amax in np.float32([*special, 0, 0, 0, 0, 0, *drawn, 0, 0, 0, 0, 0, *special]).tolist():
            got, want = stepped(got, amax, fmt.max_finite), want.after(amax)
            assert_same_bits(got.amax, np.float32(want.amax))
            assert_same_bits(got.scale, np.float32(want.scale))


def test_the_amax_of_a_step_reaches_the_cast_after_the_next():
    layer = nn.Linear(4, 3, bias=False, rng=0)
    found = []
    for size in (7.0, 3.5, 1.0):
        step(layer, np.full((1, 4), size, np.float32), np.ones((1, 3), np.float32), SHORT, FP32, "native")
        found.append(amp.scaling_state(layer)["weight/linear/inputs/scale"].item())
    assert found == [1.0, 2.0**-6, 2.0**-6]


def test_a_scale_that_stays_is_rounded_twice_again():
    one = np.float32(1)
    s = next(v for v in np.linspace(1, 1.5, 1 << 10, dtype=np.float32) if one / (one / v) != v)
    got = stepped(AmaxHistory(np.zeros(2, np.float32), s), 1.0, 448.0)
    assert abs(got.scale.view(np.int32) - s.view(np.int32)) == 1
    assert got.scale == twin.KerasState(E4M3, (0.0, 0.0), float(s)).after(1.0).scale


def test_the_bias_is_added_after_the_product_is_rounded():
    layer = nn.Linear(4, 3, rng=0)
    layer.weight.data = np.ones((3, 4), np.float32)
    layer.bias.data = np.float32([2.0**-8 + 2.0**-10, 0.0, 0.0])
    with amp.fp8_autocast(SHORT):
        y = layer(np.float32([[2.0, 2.0**-8, 0.0, 0.0]]))
    # Either share alone lies below half a quantum, 2**-7; both together would make one.
    assert y.data[0].tolist() == [2.0, 2.0, 2.0]


def test_clipped_numbers_have_gradients():
    layer = nn.Linear(4, 3, bias=False, rng=0)
    x = Tensor(np.float32([[1000.0, -np.inf, 1.0, 0.0]]), requires_grad=True)
    with amp.fp8_autocast(SHORT, format="fp32"):
        y = layer(x)
    y.backward(np.ones((1, 3), np.float32))
    assert layer.weight.grad.data[0].tolist() == [448.0, -448.0, 1.0, 0.0]
    quantized = SHORT.quantize(layer.weight.data, "weight", RecipeSite.alone())
    assert_same_bits(x.grad.data, np.ones((1, 3), np.float32) @ quantized)


# When the state changes.


def state_of(layer: nn.Linear) -> dict[str, Array]:
    return {name: a.copy() for name, a in amp.scaling_state(layer).items()}


def test_a_state_changes_in_the_backward_pass_alone_and_once():
    layer, x, g = nn.Linear(4, 3, bias=False, rng=0), np.full((1, 4), 7.0, np.float32), np.ones((1, 3), np.float32)
    step(layer, x, g, SHORT, FP32, "native")
    before = state_of(layer)
    with amp.fp8_autocast(SHORT, format="fp32"):
        y = layer(2 * x)
    with no_grad(), amp.fp8_autocast(SHORT, format="fp32"):
        layer(3 * x)
    for name, a in amp.scaling_state(layer).items():
        assert name.endswith("steps") or (a == before[name]).all()
    y.backward(g, retain_graph=True)
    once = state_of(layer)
    assert once["weight/linear/inputs/amax"].tolist() == [14.0, 0, 0, 7.0]
    y.backward(g)
    for name, a in amp.scaling_state(layer).items():
        assert_same_bits(a, once[name])


@pytest.mark.parametrize("needed", ["input", "weight"])
def test_one_product_of_the_backward_pass_is_enough(needed: str):
    layer = nn.Linear(4, 3, bias=False, rng=0)
    layer.weight.requires_grad = needed == "weight"
    x = Tensor(np.full((1, 4), 7.0, np.float32), requires_grad=needed == "input")
    with amp.fp8_autocast(SHORT, format="fp32"):
        y = layer(x)
    y.backward(np.full((1, 3), 0.5, np.float32))
    state = amp.scaling_state(layer)
    assert [state[f"weight/linear/{name}/amax"][0] for name in ("inputs", "outputs_grad")] == [7.0, 0.5]


@pytest.mark.parametrize("passes", ["sum", "max"])
def test_a_layer_that_runs_three_times_unites_three_states(passes: str):
    recipe = dataclasses.replace(SHORT, passes=passes)
    layer, states = nn.Linear(INPUTS, OUTPUTS, bias=False, rng=0), fresh()
    w = layer.weight.data
    for i in range(4):
        arrays = [numbers(3 * i + k, (2.0**k, 1, 0.5), FP32) for k in range(3)]
        with amp.fp8_autocast(recipe, format="fp32"):
            results = [layer(x) for x, _, _ in arrays]
        made = []
        for y, (x, _, g) in zip(results, arrays, strict=True):
            y.backward(g)
            made.append(seen(states, (x, w, g)))
        for name in states:
            first, second, third = (each[name] for each in made)
            unite = twin.KerasState.plus if passes == "sum" else twin.KerasState.larger
            states[name] = unite(unite(first, second), third)
        assert_state(layer, states)


def test_a_skipped_step_is_taken_back_by_its_state():
    layer, x, g = nn.Linear(4, 3, bias=False, rng=0), np.full((1, 4), 7.0, np.float32), np.ones((1, 3), np.float32)
    step(layer, x, g, SHORT, FP32, "native")
    kept = amp.scaling_state(layer)
    want = step(layer, x, g, SHORT, FP32, "native")
    amp.load_scaling_state(layer, kept)
    for got, each in zip(step(layer, x, g, SHORT, FP32, "native"), want, strict=True):
        assert_same_bits(got, each)


# What it refuses.


def test_a_recipe_that_cannot_work_is_an_error():
    for options, message in (
        ({"amax_history_len": 0}, "amax_history_len is 0"),
        ({"passes": "mean"}, "passes is 'mean'"),
        ({"split": ("forward",)}, "in one chain"),
        ({"attention": True}, "attention is True"),
    ):
        with pytest.raises(ValueError, match=message):
            KerasScaling(**options)
    with pytest.raises(ValueError, match="v100 has no instruction for inputs bf16"):
        amp.fp8_autocast("keras-float8", unit="v100")
