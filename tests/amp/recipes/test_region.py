"""`fp8_autocast`: what it touches, what it remembers, and what it refuses."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import amp, checkpoint, nn, no_grad, optim, units
from mpsim.amp.recipes import (
    RECIPES,
    CurrentScaling,
    DelayedScaling,
    MXFP8Scaling,
    NVFP4Scaling,
    RecipeSite,
    get_recipe,
)
from mpsim.amp.recipes.site import _STATES
from mpsim.blocks import round_to
from mpsim.formats import BF16, FP16, FP32, FP64
from mpsim.ops import Product, Roles
from mpsim.tensor import Tensor, settings
from reference import recipes as twin

Array = np.ndarray[Any, Any]
machine_code = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="several steps take minutes as plain Python")
SHORT = DelayedScaling(amax_history_len=4)


@pytest.fixture
def layer() -> nn.Linear:
    return nn.Linear(4, 3, rng=0)


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def step(model: Any, x: Array, recipe: Any, **options: Any) -> Tensor:
    with amp.fp8_autocast(recipe, **options):
        y = model(x)
    y.backward(np.ones(y.shape, np.float32))
    return y


# What it touches.


def test_results_are_in_the_format_of_the_region_and_gradients_of_leaves_in_fp32(layer: nn.Linear):
    for recipe, options, fmt in (
        ("te-current", {}, BF16),
        ("ms-amp", {}, FP16),
        ("te-current", {"format": "fp32"}, FP32),
    ):
        assert step(layer, drawn(2, 4), recipe, **options).format is fmt
    assert layer.weight.grad.format is FP32
    assert layer(drawn(2, 4)).format is FP32


def test_weights_are_cast_from_fp32_not_from_the_regions_format(layer: nn.Linear):
    # Between 1 and 1.125 in E4M3: just above the middle in FP32, on it in BF16, whence ties to even go down.
    layer.weight.data = np.float32([[448.0, 1.0625 + 2.0**-12, 0.0, 0.0]] * 3)
    layer.bias.data[:] = 0
    with amp.fp8_autocast("te-current"):
        assert layer(np.float32([[0.0, 1.0, 0.0, 0.0]])).data[0, 0] == 1.125


def test_the_bias_is_added_in_fp32_before_the_rounding(layer: nn.Linear):
    layer.weight.data = np.ones((3, 4), np.float32)
    layer.bias.data = np.float32([2.0**-9, 0.0, 0.0])
    with amp.fp8_autocast("te-current"):
        y = layer(np.float32([[2.0, 2.0**-9, 0.0, 0.0]]))
    # 2 + 2**-9 + 2**-9 lies halfway between 2 and its successor in BF16; either share alone is lost.
    assert y.data[0].tolist() == [2.0, 2.0, 2.0]
    layer.bias.data[0] += 2.0**-12
    with amp.fp8_autocast("te-current"):
        assert layer(np.float32([[2.0, 2.0**-7, 0.0, 0.0]])).data[0, 0] == 2.015625


def test_products_of_other_operations_are_those_of_autocast():
    a, b = Tensor(drawn(4, 4)), Tensor(drawn(4, 4, seed=1))
    with amp.fp8_autocast("te-current", unit="h100"):
        got = a @ b
    with amp.autocast("bf16", unit="h100"):
        assert_same_bits((a @ b).data, got.data)


def test_a_unit_that_was_never_built_goes_with_a_recipe_of_one_pair_of_formats(layer: nn.Linear):
    hopper = units.get("h100", inputs="e4m3")
    coarse = dataclasses.replace(hopper, fraction_bits=3)
    results = []
    for unit in (hopper, coarse, "h100"):
        with amp.fp8_autocast("deepseek-v3", unit=unit, format="fp32"):
            results.append(layer(drawn(2, 4)).data)
    assert_same_bits(results[0], results[2])
    assert (results[0] != results[1]).any()
    with pytest.raises(ValueError, match="e5m2"):
        amp.fp8_autocast("te-current", unit=coarse, format="fp32")


def test_native_products_are_those_of_the_values(layer: nn.Linear):
    x = drawn(2, 4)
    for unit in ("native", "Native", units.NATIVE):
        with amp.fp8_autocast("te-mxfp8", unit=unit, format="fp32"):
            got = layer(x)
        want = round_to(x, "mxfp8_e4m3", -1, "rceil") @ round_to(layer.weight.data, "mxfp8_e4m3", -1, "rceil").T
        assert_same_bits(got.data, want + layer.bias.data)


def test_a_part_without_the_recipe_runs_in_the_format_of_the_region(layer: nn.Linear):
    x = drawn(2, 4)
    with amp.autocast("bf16", unit="h100"):
        want = layer(x)
    with amp.fp8_autocast("te-current", unit="h100"):
        inside = layer(x)
        with amp.fp8_autocast(enabled=False):
            part = layer(x)
            assert settings().quantization is None
        assert_same_bits(layer(x).data, inside.data)
    assert_same_bits(part.data, want.data)
    assert (inside.data != want.data).any()


def test_fp64_is_left_alone(layer: nn.Linear):
    layer.to("fp64")
    with amp.fp8_autocast("te-current"):
        assert layer(np.zeros((1, 4))).format is FP64


def test_inputs_of_any_number_of_axes_are_rows_of_one_matrix(layer: nn.Linear):
    x = drawn(2, 3, 4)
    for recipe in ("te-current", "te-block", "torchao-rowwise", "te-mxfp8", "te-nvfp4"):
        with amp.fp8_autocast(recipe):
            many, flat, one, none = layer(x), layer(x.reshape(6, 4)), layer(x[0, 0]), layer(x[:0])
        assert_same_bits(many.data.reshape(6, 3), flat.data)
        assert one.shape == (3,)
        assert none.shape == (0, 3, 3)


@machine_code
def test_two_runs_give_the_same_bits_and_another_seed_other_ones():
    def run(recipe: str, seed: int) -> Array:
        model = nn.Sequential(nn.Linear(16, 8, rng=0), nn.ReLU(), nn.Linear(8, 4, rng=1))
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for i in range(3):
            optimizer.zero_grad()
            step(model, drawn(16, 16, seed=i), recipe, seed=seed)
            optimizer.step()
        return np.array(model[0].weight.data)

    for recipe in RECIPES:
        assert_same_bits(run(recipe, 0), run(recipe, 0))
    assert (run("te-nvfp4", 0) != run("te-nvfp4", 1)).any()


def test_stochastic_gradients_differ_from_step_to_step_and_from_layer_to_layer():
    layers = [nn.Linear(16, 16, bias=False, rng=0) for _ in range(2)]
    seen = []
    for _ in range(2):
        x = Tensor(drawn(16, 16), requires_grad=True)
        with amp.fp8_autocast("te-nvfp4", format="fp32"):
            y = layers[0](x)
            z = layers[1](x)
        for result in (y, z):
            x.grad = None
            result.backward(drawn(16, 16, seed=1))
            seen.append(x.grad.data)
    assert all((a != b).any() for i, a in enumerate(seen) for b in seen[:i])


# Attention.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched(CurrentScaling):
    """Current scaling that keeps what it multiplies."""

    seen: list[Any] = dataclasses.field(default_factory=list, compare=False)

    def multiply(self, a: Array, b: Array, product: Product, roles: Roles, site: RecipeSite) -> Array:
        y = super().multiply(a, b, product, roles, site)
        self.seen.append((product, roles, a, b, y.copy()))  # attention goes on in the same memory
        return y


def test_attention_multiplies_operands_under_the_recipe():
    recipe = Watched(attention=True)
    q, k, v = (Tensor(drawn(1, 2, 5, 4, seed=i), requires_grad=True) for i in range(3))
    with amp.fp8_autocast(recipe, unit="h100"):
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    y.backward(drawn(*y.shape, seed=3))
    assert [(p, r) for p, r, *_ in recipe.seen] == [
        ("forward", ("query", "key")),
        ("forward", ("weights", "value")),
        ("forward", ("query", "key")),
        ("input_gradient", ("probabilities", "gradient")),
        ("input_gradient", ("gradient", "value")),
        ("input_gradient", ("score_gradient", "key")),
        ("input_gradient", ("score_gradient", "query")),
    ]
    rule = twin.scales(twin.te_scale)
    for product, roles, a, b, got in recipe.seen:
        # One scale for all heads.
        tall, wide = a.reshape(-1, a.shape[-1]), b.swapaxes(-1, -2).reshape(-1, b.shape[-2])
        left, right = (
            twin.cast_tiles(x.tolist(), twin.HYBRID[role.endswith("gradient")], rule, 0, 0)
            for x, role in zip((tall, wide), roles, strict=True)
        )
        unit = twin.unit_of("h100", left.fmt, right.fmt)
        head, i, j = 1, a.shape[-2] - 1, 0
        element = twin.tensor_product(
            unit, left, right, head * a.shape[-2] + i, head * b.shape[-1] + j, product != "forward"
        )
        assert_same_bits(got[0, head, i, j], np.float32(element))


def test_attention_is_left_alone_unless_the_recipe_takes_it():
    block, x = nn.TransformerBlock(8, 2, 16, 0.0, rng=0), drawn(3, 2, 8)
    for recipe in (CurrentScaling(), CurrentScaling(attention=True), MXFP8Scaling(attention=True), SHORT):
        for p in block.parameters():
            p.grad = None
        step(block, x, recipe)
        assert all(np.isfinite(p.grad.data).all() for p in block.parameters())
    recipe = Watched()
    with amp.fp8_autocast(recipe):
        block(x)
    assert {roles for _, roles, *_ in recipe.seen} == {("input", "weight")}
    for name in ("torchao-rowwise", "te-block", "te-nvfp4"):
        with pytest.raises(ValueError, match="attention is True"):
            amp.fp8_autocast(dataclasses.replace(get_recipe(name), attention=True))


def test_histories_of_attention_stay_with_the_layer_before():
    recipe = dataclasses.replace(SHORT, attention=True)
    attention, x = nn.MultiheadAttention(8, 2, rng=0), drawn(3, 2, 8)

    def run(query: Tensor) -> Tensor:
        result: Tensor = attention(query, query, query, need_weights=False)[0]
        return result

    for _ in range(2):
        step(run, Tensor(x), recipe)
    roles = {key.split("/")[2] for key in amp.scaling_state(attention) if key.startswith("in_proj_weight/attention-1/")}
    assert roles == {"steps", "query", "key", "value", "weights", "probabilities", "gradient", "score_gradient"}
    q = Tensor(drawn(1, 3, 4))
    with amp.fp8_autocast(recipe), pytest.raises(ValueError, match="attention comes before every linear layer"):
        nn.functional.scaled_dot_product_attention(q, q, q)


# What it remembers.


def test_scales_of_inputs_change_at_the_end_of_the_region_and_those_of_gradients_when_the_layer_runs_again(
    layer: nn.Linear,
):
    x = np.full((1, 4), 3.5, np.float32)
    region = amp.fp8_autocast(SHORT)

    def state(role: str) -> tuple[list[float], float]:
        arrays = amp.scaling_state(layer)
        return arrays[f"weight/linear/{role}/amax"].tolist(), float(arrays[f"weight/linear/{role}/scale"])

    with region:
        y = layer(x)
        assert state("input") == ([3.5, 0, 0, 0], 1.0)
        with region:
            layer(2 * x)
        assert state("input") == ([7.0, 0, 0, 0], 1.0)
    assert state("input") == ([0, 0, 0, 7.0], 64.0)
    y.backward(np.full((1, 3), 0.5, np.float32))
    assert state("gradient") == ([0.5, 0, 0, 0], 1.0)
    assert state("input") == ([0, 0, 0, 7.0], 64.0)
    with region:
        layer(x)
    assert state("gradient") == ([0, 0, 0, 0.5], 57344 * 2.0)
    assert state("input") == ([0, 0, 7.0, 3.5], 64.0)


@pytest.mark.parametrize("between", [amp.fp8_autocast(enabled=False), amp.fp8_autocast("te-current")])
def test_a_region_in_itself_is_one_step_whatever_lies_between(layer: nn.Linear, between: amp.fp8_autocast):
    other, x = nn.Linear(4, 3, rng=1), np.full((1, 4), 3.5, np.float32)
    region = amp.fp8_autocast(SHORT)

    def amax(of: nn.Linear) -> list[float]:
        found: list[float] = amp.scaling_state(of)["weight/linear/input/amax"].tolist()
        return found

    with region:
        layer(x)
        with between, region:
            other(x)
        assert amax(layer) == amax(other) == [3.5, 0, 0, 0]
        layer(2 * x)
    assert (amax(layer), amax(other)) == ([0, 0, 0, 7.0], [0, 0, 0, 3.5])


def test_the_backward_pass_casts_as_the_forward_pass_did(layer: nn.Linear):
    x = Tensor(np.full((1, 4), 1.0625, np.float32), requires_grad=True)
    with amp.fp8_autocast(SHORT, format="fp32"):
        y = layer(x)
    # The scale is not 1 any more, under which 1.0625 was rounded to 1.
    assert amp.scaling_state(layer)["weight/linear/input/scale"] != 1
    y.backward(np.ones((1, 3), np.float32))
    assert (layer.weight.grad.data == 1).all()


def test_what_runs_without_gradients_changes_nothing(layer: nn.Linear):
    step(layer, drawn(2, 4), SHORT)
    before = {name: a.copy() for name, a in amp.scaling_state(layer).items()}
    with no_grad(), amp.fp8_autocast(SHORT):
        layer(drawn(2, 4) * 100)
    after = amp.scaling_state(layer)
    # The gradient of the step before is still to be taken in by the next one that is recorded.
    for name in before:
        assert_same_bits(after[name], before[name])


def test_ms_amp_keeps_the_scale_of_the_step_before_where_amax_says_nothing(layer: nn.Linear):
    def scale(size: float) -> float:
        step(layer, np.full((1, 4), size, np.float32), "ms-amp")
        return float(amp.scaling_state(layer)["weight/linear/input/scale"])

    # 448 / 3 lies between 2**7 and 2**8.
    assert [scale(x) for x in (0.0, 3.0, 0.0, np.inf, np.nan, 448.0, 449.0)] == [1, 128, 128, 128, 128, 1, 0.5]


def test_gradients_may_be_in_another_format_than_the_rest():
    x = drawn(32, 32)
    for recipe in (MXFP8Scaling(backward="e5m2"), dataclasses.replace(get_recipe("te-block"), backward="e5m2")):
        layer = nn.Linear(32, 32, rng=0)
        step(layer, x, recipe, unit="b200")
        assert np.isfinite(layer.weight.grad.data).all()
        assert {str(fmt) for pair in recipe.pairs for fmt in pair} == {"e4m3", "e5m2"}


def test_histories_belong_to_weights_and_go_with_them():
    layer, other = nn.Linear(4, 3, rng=0), nn.Linear(4, 3, rng=0)
    step(layer, drawn(2, 4), SHORT)
    assert amp.scaling_state(other) == {}
    gc.collect()
    known = len(_STATES)
    del layer
    gc.collect()
    assert len(_STATES) == known - 1


def test_another_length_keeps_the_newest_entries(layer: nn.Linear):
    for size in (1.0, 2.0, 4.0):
        step(layer, np.full((1, 4), size, np.float32), SHORT)
    step(layer, np.full((1, 4), 1.0, np.float32), dataclasses.replace(SHORT, amax_history_len=3))
    assert amp.scaling_state(layer)["weight/linear/input/amax"].tolist() == [0, 4.0, 1.0]


@machine_code
@pytest.mark.parametrize("recipe", ["te-delayed", "te-nvfp4", "ms-amp", "keras-float8"])
def test_a_resumed_run_is_that_without_a_break_bit_for_bit(tmp_path: Path, recipe: str):
    def fresh(seed: int) -> tuple[nn.Sequential, optim.AdamW]:
        model = nn.Sequential(nn.Linear(16, 8, rng=seed), nn.ReLU(), nn.Linear(8, 4, rng=seed + 1))
        return model, optim.AdamW(model.parameters(), **amp.optimizer_state("ms-amp-o2"))

    def train(model: nn.Sequential, optimizer: optim.AdamW, steps: range) -> None:
        for i in steps:
            optimizer.zero_grad()
            step(model, drawn(16, 16, seed=i), recipe)
            optimizer.step()

    model, optimizer = fresh(0)
    train(model, optimizer, range(2))
    checkpoint.save(tmp_path / "run.npz", model=model, optimizer=optimizer)
    train(model, optimizer, range(2, 4))
    again, resumed = fresh(7)
    checkpoint.load(tmp_path / "run.npz", model=again, optimizer=resumed)
    train(again, resumed, range(2, 4))
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert_same_bits(p.data, q.data)
    want, got = amp.scaling_state(model), amp.scaling_state(again)
    assert want.keys() == got.keys()
    for name in want:
        assert_same_bits(got[name], want[name])


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(layer: nn.Linear):
    step(layer, drawn(2, 4), SHORT)
    state = amp.scaling_state(layer)
    for wrong in ("other/linear/input/amax", "weight/linear", "weight/linear/input/size"):
        with pytest.raises(ValueError, match=f"{wrong!r} fits no layer"):
            amp.load_scaling_state(layer, {**state, wrong: np.zeros(4)})
    with pytest.raises(ValueError, match="is there without its amax"):
        amp.load_scaling_state(layer, {"weight/linear/input/scale": np.ones(())})
    assert amp.scaling_state(layer).keys() == state.keys()


# What it refuses.


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("te-delaid", {}, "recipe is 'te-delaid': did you mean 'te-delayed'"),
        ("te-current", {"unit": "v100"}, "v100 has no instruction for inputs e4m3"),
        ("te-mxfp8", {"unit": "h100"}, "h100 has no instruction"),
        ("te-nvfp4", {"unit": "mi300x"}, "mi300x has no instruction"),
        ("te-current", {"unit": "mi300x"}, "e4m3fnuz"),
        ("te-current", {"format": "fp61"}, "unknown format"),
    ],
)
def test_a_mistake_is_an_error_at_once(recipe: str, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        amp.fp8_autocast(recipe, **options)


def test_a_recipe_that_cannot_work_is_an_error():
    for make, message in (
        (lambda: DelayedScaling(amax_history_len=0), "amax_history_len is 0"),
        (lambda: DelayedScaling(amax_compute_algo="mean"), "amax_compute_algo is 'mean'"),
        (lambda: CurrentScaling(rule="torch"), "rule is 'torch': did you mean 'torchao'"),
        (lambda: CurrentScaling(split=("backward",)), "split has 'backward'"),
        (lambda: CurrentScaling(forward="e4m4x"), "unknown format"),
        (lambda: MXFP8Scaling(forward="fp16"), "MXFP8 has no elements in 'fp16'"),
        (lambda: MXFP8Scaling(scale_rule="up"), "scale_rule"),
        (lambda: MXFP8Scaling(split=("forward",)), "every product is one chain"),
        (lambda: dataclasses.replace(get_recipe("te-nvfp4"), backward="e4m3"), "NVFP4 has e2m1 for both"),
        (lambda: dataclasses.replace(get_recipe("te-nvfp4"), signs=(1, -1)), "16 numbers 1 or -1"),
        (lambda: NVFP4Scaling(four_over_six=("bias",)), "four_over_six has 'bias'"),
        (lambda: NVFP4Scaling(four_over_six=("gradient",)), "but stochastic is True"),
        (lambda: dataclasses.replace(get_recipe("te-block"), split=()), "all products are split"),
        (lambda: dataclasses.replace(get_recipe("te-block"), rule="deepgemm"), "power_of_two=False goes with it"),
        (lambda: dataclasses.replace(get_recipe("te-block"), rule="cublas"), "rule is 'cublas'"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(TypeError, match="recipe is 3"):
        get_recipe(3)  # type: ignore[arg-type]


def test_names_may_be_written_as_elsewhere(layer: nn.Linear):
    x, nvfp4 = drawn(2, 4), get_recipe("te-nvfp4")
    for named, want in (
        (CurrentScaling(rule="Torchao"), CurrentScaling(rule="torchao")),
        (MXFP8Scaling(forward="float8_e4m3fn", backward="float8_e5m2"), MXFP8Scaling(backward="e5m2")),
        (dataclasses.replace(nvfp4, forward="float4_e2m1fn"), nvfp4),
    ):
        results = []
        for recipe in (named, want):
            with amp.fp8_autocast(recipe):
                results.append(layer(x).data)
        assert_same_bits(*results)


def test_delayed_scaling_of_a_weight_that_an_operation_made_is_refused():
    w = Tensor(drawn(3, 4), requires_grad=True)
    with amp.fp8_autocast("te-current"):
        nn.functional.linear(drawn(2, 4), w * 2.0)
    with amp.fp8_autocast("te-nvfp4"), pytest.raises(ValueError, match="remembers stays with a parameter"):
        nn.functional.linear(drawn(2, 4), w * 2.0)
    with amp.fp8_autocast(SHORT), pytest.raises(ValueError, match="remembers stays with a parameter"):
        nn.functional.linear(drawn(2, 4), w * 2.0)


def test_a_recipe_prints_as_what_makes_it():
    assert str(get_recipe("te-delayed")) == "DelayedScaling()"
    assert str(get_recipe("torchao-mxfp8-floor")) == "MXFP8Scaling(scale_rule='floor')"


def test_weights_are_let_go_after_the_backward_pass(layer: nn.Linear):
    x = Tensor(drawn(2, 4))
    with amp.fp8_autocast("te-current", format="fp32"):
        y = layer(x)
    old = weakref.ref(layer.weight.data)
    layer.weight.data = layer.weight.data.copy()
    assert old() is not None
    y.backward(np.ones((2, 3), np.float32))
    assert old() is None
    with pytest.raises(RuntimeError, match="the graph was freed"):
        y.backward(np.ones((2, 3), np.float32))
