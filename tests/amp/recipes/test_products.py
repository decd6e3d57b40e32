"""Every recipe's codes, scales and products against its exact twin, through the engine and by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import amp, nn
from mpsim.amp.recipes import (
    RECIPES,
    CurrentScaling,
    NVFP4Scaling,
    Recipe,
    RecipeSite,
    get_recipe,
    hadamard,
    hadamard_transform,
)
from mpsim.blocks import RECIPES as SCALE_RECIPES
from mpsim.blocks import ScaleRecipe
from mpsim.formats import FP32, get_format
from mpsim.tensor import Tensor
from reference import recipes as twin

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="products of this size take minutes as plain Python")

PRODUCTS = ("forward", "input_gradient", "weight_gradient")
# Tokens, inputs and outputs. A split shows where K is more than 128: in the gradient of the weight, and forward.
TALL, WIDE, SMALL = (132, 20, 5), (5, 130, 6), (20, 36, 18)
Element = Callable[[int, int], float]


def numbers(sizes: tuple[int, int, int] = TALL, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return an input, a weight and a gradient, with outliers and many small numbers."""
    rng = np.random.default_rng(seed)
    tokens, inputs, outputs = sizes
    shapes = ((tokens, inputs), (outputs, inputs), (tokens, outputs))
    return tuple((rng.normal(size=s) * 2.0 ** rng.integers(-9, 4, s)).astype(np.float32) for s in shapes)  # type: ignore[return-value]


def engine(recipe: str | Recipe, unit: str, arrays: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    """Return the three products of a linear layer in FP32."""
    x, w, g = arrays
    layer = nn.Linear(*reversed(w.shape), bias=False)
    layer.weight.data = w
    inputs = Tensor(x, requires_grad=True)
    with amp.fp8_autocast(recipe, unit=unit, format="fp32", seed=5):
        y = layer(inputs)
    y.backward(g)
    return {"forward": y.data, "input_gradient": inputs.grad.data, "weight_gradient": layer.weight.grad.data}


def places(shape: tuple[int, ...], seed: int = 1) -> Iterator[tuple[int, int]]:
    """Yield some elements of a product, its corners among them."""
    rng = np.random.default_rng(seed)
    yield from ((0, 0), (shape[0] - 1, shape[1] - 1))
    for _ in range(22):
        yield tuple(int(rng.integers(n)) for n in shape)  # type: ignore[misc]


def assert_elements(got: np.ndarray, element: Element) -> None:
    at = list(places(got.shape))
    assert_same_bits(np.array([got[p] for p in at]), np.array([element(*p) for p in at], np.float32))


def lists(arrays: tuple[np.ndarray, ...]) -> list[Any]:
    return [a.tolist() for a in arrays]


# Scales outside the instruction: the rule, tiles of an operand by role, fast products, and how scales are undone.

CURRENT, POWER = twin.scales(twin.te_scale), twin.scales(twin.te_scale, power=True)
AO, AO_POWER = twin.scales(twin.torchao_scale), twin.scales(twin.torchao_scale, power=True)
WHOLE, ROWS, LONG, SQUARE = (0, 0), (1, 0), (1, 128), (128, 128)

SCALED: list[tuple[str, str, Any, tuple[Any, Any], dict[str, tuple[int, int]], tuple[str, ...], Any]] = [
    ("te-current", "h100", CURRENT, twin.HYBRID, {}, ("forward",), twin.tensor_product),
    ("te-current", "l40s", CURRENT, twin.HYBRID, {}, ("forward",), twin.tensor_product),
    ("torchao-tensorwise", "h100", AO, twin.HYBRID, {}, ("forward",), twin.tensor_product),
    ("torchao-rowwise", "h100", AO_POWER, twin.E4M3_ALL, dict.fromkeys(("input", "weight", "gradient"), ROWS), PRODUCTS,
     twin.row_product),
    ("te-block", "h100", POWER, twin.E4M3_ALL, {"input": LONG, "weight": SQUARE, "gradient": LONG}, (),
     twin.block_product),
    ("deepseek-v3", "h100", twin.deepgemm_scales, twin.E4M3_ALL,
     {"input": LONG, "weight": SQUARE, "gradient": LONG}, (), twin.block_product),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "unit", "rule", "formats", "tiles", "fast", "element"), SCALED, ids=[f"{s[0]}-{s[1]}" for s in SCALED]
)
def test_products_under_float32_scales_are_the_twins_bit_for_bit(
    name: str,
    unit: str,
    rule: twin.Scales,
    formats: tuple[Any, Any],
    tiles: dict[str, tuple[int, int]],
    fast: tuple[str, ...],
    element: Any,
):
    arrays = numbers(TALL if element is not twin.block_product else WIDE)
    got = engine(name, unit, arrays)
    for product in PRODUCTS:
        pair = twin.operands(product, *lists(arrays))
        a, b = (
            twin.cast_tiles(x, formats[role == "gradient"], rule, *tiles.get(role, WHOLE))
            for x, role in zip((pair.a, pair.b), pair.roles, strict=True)
        )
        unit_twin = twin.unit_of(unit, a.fmt, b.fmt)
        split = product not in fast
        assert_elements(got[product], lambda i, j: element(unit_twin, a, b, i, j, split))  # noqa: B023


def test_a_fast_product_differs_from_a_split_one():
    arrays = numbers()
    fast = CurrentScaling(split=())
    both = [engine(recipe, "h100", arrays)["weight_gradient"] for recipe in (fast, "te-current")]
    assert (both[0] != both[1]).any()
    # A unit that keeps all bits of FP32 has no use for the restart.
    both = [engine(recipe, "b200", arrays)["weight_gradient"] for recipe in (fast, "te-current")]
    assert_same_bits(both[0], both[1])


def test_the_weight_gradient_in_high_precision_is_that_of_the_region():
    arrays = x, _, g = numbers()
    got = engine("torchao-rowwise-gw-hp", "h100", arrays)
    assert_same_bits(got["weight_gradient"], g.T @ x)
    pair = twin.operands("input_gradient", *lists(arrays))
    a = twin.cast_tiles(pair.a, twin.E4M3_ALL[0], AO_POWER, *ROWS)
    b = twin.cast_tiles(pair.b, twin.E4M3_ALL[0], AO_POWER, *WHOLE)
    unit = twin.unit_of("h100", a.fmt, b.fmt)
    assert_elements(got["input_gradient"], lambda i, j: twin.row_product(unit, a, b, i, j, False))


# Delayed scaling.


@pytest.mark.parametrize(("algorithm", "margin"), [("max", 0), ("most_recent", 1)])
def test_delayed_scaling_is_the_twins_over_several_steps(algorithm: str, margin: int):
    recipe = amp.recipes.DelayedScaling(amax_history_len=3, amax_compute_algo=algorithm, margin=margin)
    formats = {"input": twin.HYBRID[0], "weight": twin.HYBRID[0], "gradient": twin.HYBRID[1]}
    histories = {r: twin.History(twin.LARGEST[f.name], 3, algorithm, margin) for r, f in formats.items()}
    layer = nn.Linear(TALL[1], TALL[2], bias=False)
    for step, size in enumerate((1.0, 0.0, 64.0, 2.0**-20, 3.0, 1.0, 1.0)):
        x, w, g = (a * np.float32(size) for a in numbers(seed=step))
        layer.weight.data = w
        layer.weight.grad = None
        inputs = Tensor(x, requires_grad=True)
        with amp.fp8_autocast(recipe, unit="h100", format="fp32"):
            y = layer(inputs)
        y.backward(g)
        scales = {
            role: histories[role].see(twin.amax_of(array.reshape(-1).tolist()))
            for role, array in (("input", x), ("weight", w), ("gradient", g))
        }
        got = {"forward": y.data, "input_gradient": inputs.grad.data, "weight_gradient": layer.weight.grad.data}
        for product in PRODUCTS if step in (3, 6) else ():
            pair = twin.operands(product, *lists((x, w, g)))
            a, b = (
                twin.cast_tiles(m, formats[r], lambda *_, s=scales[r]: (s, twin.divide(1.0, s)), 0, 0)
                for m, r in zip((pair.a, pair.b), pair.roles, strict=True)
            )
            unit = twin.unit_of("h100", a.fmt, b.fmt)
            split = product != "forward"
            assert_elements(got[product], lambda i, j: twin.tensor_product(unit, a, b, i, j, split))  # noqa: B023
        for history in histories.values():
            history.end_of_step()
    layer(inputs)  # outside a region, nothing changes
    with amp.fp8_autocast(recipe, unit="h100", format="fp32"):
        layer(np.zeros((1, TALL[1]), np.float32))  # makes the scale of gradients; zeros move no history of inputs
    histories["weight"].see(twin.amax_of(w.reshape(-1).tolist()))
    histories["weight"].end_of_step()
    state = amp.scaling_state(layer)
    for role, history in histories.items():
        assert_same_bits(state[f"weight/linear/{role}/amax"], np.array(history.amax, np.float32))
        assert_same_bits(state[f"weight/linear/{role}/scale"], np.array(history.scale, np.float32))


# Scales inside the instruction.


def codes_of(q: Any, transposed: bool) -> tuple[np.ndarray, np.ndarray]:
    return (q.codes.T, q.scales.T) if transposed else (q.codes, q.scales)


def assert_blocks(q: Any, transposed: bool, want: twin.Blocks) -> None:
    codes, scales = codes_of(q, transposed)
    assert_same_bits(codes, np.array(want.codes, np.uint8))
    assert_same_bits(scales, np.array(want.scales, np.uint8))
    assert q.tensor_scale == want.tensor


@pytest.mark.parametrize(
    ("name", "rule"),
    [("te-mxfp8", "rceil-fp32"), ("torchao-mxfp8-floor", "floor"), ("torchao-mxfp8-rceil", "rceil"),
     ("torchao-mxfp8-ceil", "ceil"), ("torchao-mxfp8-even", "even")],
)  # fmt: skip
def test_mxfp8_is_the_twins_bit_for_bit(name: str, rule: str):
    arrays = numbers(SMALL)
    got, unit, recipe = engine(name, "b200", arrays), twin.scaled_unit("b200", fp4=False), get_recipe(name)
    for product in PRODUCTS:
        pair = twin.operands(product, *lists(arrays))
        a, b = (twin.mxfp8(x, rule) for x in (pair.a, pair.b))
        assert_blocks(recipe.quantize(np.float32(pair.a), pair.roles[0], -1), False, a)
        assert_blocks(recipe.quantize(np.float32(pair.b).T, pair.roles[1], -2), True, b)
        assert_elements(got[product], lambda i, j: twin.blocks_product(unit, a, b, i, j))  # noqa: B023


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "plain"])
def test_nvfp4_is_the_twins_bit_for_bit(whole: bool):
    """With stochastic gradients, transform and 16 x 16 weights, and without any of them."""
    arrays, unit = numbers(SMALL), twin.scaled_unit("b200", fp4=True)
    recipe = NVFP4Scaling() if whole else NVFP4Scaling(stochastic=False, transform=False, square=())
    got = engine(recipe, "b200", arrays)
    stream = 1 << 24 | 1 << 1  # first step, first call
    for product in PRODUCTS:
        pair = twin.operands(product, *lists(arrays))
        draw = None
        if whole and product != "forward":
            draw = twin.random_bits(5, stream + (product == "weight_gradient"))
        left, right = pair.a, pair.b
        if whole and product == "weight_gradient":
            left, right = (twin.hadamard_transform(x, "b200") for x in (left, right))
        a = twin.nvfp4(left, square=False, draw=draw)
        b = twin.nvfp4(right, square=whole and pair.roles[1] == "weight")
        assert_blocks(recipe.quantize(np.float32(right).T, pair.roles[1], -2), True, b)
        assert_elements(got[product], lambda i, j: twin.blocks_product(unit, a, b, i, j))  # noqa: B023


CHOICES = [
    "four-over-six",
    dataclasses.replace(SCALE_RECIPES["four-over-six"], four_over_six="mae", largest_scale=None),
]


@pytest.mark.parametrize("rule", CHOICES, ids=["mse", "mae"])
@pytest.mark.parametrize("square", [(), ("weight", "gradient")], ids=["rows", "tiles"])
def test_four_over_six_is_the_twins_bit_for_bit(rule: str | ScaleRecipe, square: tuple[str, ...]):
    roles, arrays, unit = ("weight", "gradient"), numbers(SMALL), twin.scaled_unit("b200", fp4=True)
    recipe = NVFP4Scaling(
        stochastic=False, transform=False, square=square, four_over_six=roles, four_over_six_rule=rule
    )
    got = engine(recipe, "b200", arrays)
    for product in PRODUCTS:
        pair = twin.operands(product, *lists(arrays))
        a, b = (
            twin.nvfp4(x, role in square, rule=rule if role in roles else "transformer-engine")
            for x, role in zip((pair.a, pair.b), pair.roles, strict=True)
        )
        assert_blocks(recipe.quantize(np.float32(pair.a), pair.roles[0], -1), False, a)
        assert_blocks(recipe.quantize(np.float32(pair.b).T, pair.roles[1], -2), True, b)
        assert_elements(got[product], lambda i, j: twin.blocks_product(unit, a, b, i, j))  # noqa: B023


def test_the_hadamard_matrix_is_orthogonal_and_its_entries_are_the_twins():
    h = hadamard()
    assert_same_bits(h, np.array([[twin.hadamard_entry(i, j) for j in range(16)] for i in range(16)], np.float32))
    assert_same_bits(h @ h.T, np.eye(16, dtype=np.float32))
    x = numbers(SMALL)[0][:3]
    want = np.array(twin.hadamard_transform(x.tolist(), "b200"), np.float32)
    assert_same_bits(hadamard_transform(x, "b200"), want)


def test_tiles_give_a_weight_and_its_transpose_the_same_codes():
    w = np.random.default_rng(0).normal(size=(50, 70)).astype(np.float32)
    for name, role in (("te-nvfp4", "weight"), ("te-mxfp8", "weight")):
        recipe = get_recipe(name)
        square = amp.recipes.MXFP8Scaling(square=("weight",)) if name == "te-mxfp8" else recipe
        assert_same_bits(square.quantize(w, role, -1).codes, square.quantize(w.T, role, -2).codes.T)
        assert_same_bits(square.quantize(w, role, -1).codes, square.quantize(w, role, -2).codes)
        flat = square.quantize(w, "input", -1), square.quantize(w, "input", -2)
        assert (flat[0].codes != flat[1].codes).any()


# Codes and scales of single tensors, special ones among them.

TENSORS = {
    "ordinary": [3.0, -0.1, 0.001, 1e-7],
    "zeros": [0.0, -0.0],
    "tiny": [1e-40, -3e-41],
    "huge": [3e38, -1.0],
    "infinite": [np.inf, 2.0, -np.inf],
    "nan": [np.nan, 2.0],
    "below 1e-4": [3e-5, 1e-6],
}


@pytest.mark.parametrize("case", TENSORS)
@pytest.mark.parametrize(
    ("name", "rule", "fmt"),
    [("te-current", CURRENT, "e4m3"), ("torchao-tensorwise", AO, "e4m3"), ("torchao-tensorwise-fnuz", AO, "e4m3fnuz"),
     ("ms-amp", POWER, "e4m3")],
)  # fmt: skip
def test_codes_and_scales_of_a_tensor(name: str, rule: twin.Scales, fmt: str, case: str):
    x = np.array(TENSORS[case], np.float32)
    want = twin.cast_tiles([x.tolist()], get_format(fmt), rule, 0, 0)
    got = RECIPES[name].quantize(x, "input", RecipeSite.alone())
    assert_same_bits(got.codes, np.array(want.codes[0], np.uint8))
    assert_same_bits(got.inverse, np.array(want.inverse[0][0], np.float32))


@pytest.mark.parametrize("case", TENSORS)
@pytest.mark.parametrize(("name", "rule"), [("te-block", POWER), ("deepseek-v3", twin.deepgemm_scales)])
def test_codes_and_scales_of_blocks(name: str, rule: twin.Scales, case: str):
    x = np.zeros((3, 140), np.float32)
    x[1, 130 : 130 + len(TENSORS[case])] = TENSORS[case]
    x[2] = np.linspace(-1, 1, 140)
    want = twin.cast_tiles(x.tolist(), FORMAT, rule, 1, 128)
    got = RECIPES[name].quantize(x, "input")
    assert_same_bits(got.codes, np.array(want.codes, np.uint8))
    assert_same_bits(got.inverse, np.array(want.inverse, np.float32)[:, ::128])


@pytest.mark.parametrize(("name", "rule"), [("te-block", POWER), ("deepseek-v3", twin.deepgemm_scales)])
def test_codes_and_scales_of_square_blocks(name: str, rule: twin.Scales):
    w = np.random.default_rng(2).normal(size=(131, 4)).astype(np.float32)
    w[130, 2] = 100.0
    want = twin.cast_tiles(w.tolist(), FORMAT, rule, 128, 128)
    got = RECIPES[name].quantize(w, "weight")
    assert_same_bits(got.codes, np.array(want.codes, np.uint8))
    assert_same_bits(got.inverse, np.array(want.inverse, np.float32)[::128, ::128])


FORMAT = twin.E4M3_ALL[0]


def test_the_gradient_of_a_weight_under_ms_amp_is_stored_in_fp8():
    x, _, g = numbers()
    recipe = get_recipe("ms-amp")
    site = RecipeSite(recipe, "h100", amp.recipes.site.LayerState())
    roles = ("gradient", "input")
    plain = CurrentScaling(power_of_two=True).multiply(g.T, x, "weight_gradient", roles, site)
    got = recipe.multiply(g.T, x, "weight_gradient", roles, site)
    want = twin.cast_tiles(plain.tolist(), FORMAT, POWER, 0, 0)
    values = [[twin.times(twin.value_of(c, FORMAT), s) for c, s in zip(*r, strict=True)]
              for r in zip(want.codes, want.inverse, strict=True)]  # fmt: skip
    assert_same_bits(got, np.array(values, np.float32))
    assert got.dtype == FP32.value_dtype
