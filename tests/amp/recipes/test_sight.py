"""What an observer sees of recipes: every cast of an operand, counted, placed and named like any other rounding."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import amp, nn, report
from mpsim.amp.recipes import RECIPES, CurrentScaling, DelayedScaling, MXFP8Scaling, NVFP4Scaling, get_recipe
from mpsim.amp.recipes.sight import Sight
from mpsim.blocks import RECIPES as SCALE_RECIPES
from mpsim.blocks import BlockCounters, element_scales, quantize, quotients
from mpsim.counters import Counters
from mpsim.formats import E2M1, E4M3, E5M2, FP32, FloatFormat
from mpsim.observe import Record, observe
from mpsim.rounding import round_to
from mpsim.scales import amax_of, current_scale
from mpsim.settings import Origin
from mpsim.tensor import Tensor, using
from reference import rounding as twin

Array = np.ndarray[Any, Any]
machine_code = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="several steps take minutes as plain Python")

INPUT, WEIGHT, GRADIENT = "linear input", "linear weight", "linear gradient"
FORWARD, TO_INPUT, TO_WEIGHT = "cast", "cast for the input gradient", "cast for the weight gradient"


@dataclasses.dataclass
class Shown:
    """One array that a recipe showed."""

    kind: str
    producer: str
    fmt: FloatFormat
    before: Array
    after: Array
    counters: Counters
    origin: Origin

    @property
    def place(self) -> tuple[str, str]:
        assert self.origin.operation is not None
        return self.producer, self.origin.operation.name


class Keeper(Record):
    """Keeps what recipes show."""

    def __init__(self) -> None:
        super().__init__(("operand", "gradient operand"))
        self.shown: list[Shown] = []

    def rounded(self, kind: Any, producer: Any, fmt: Any, before: Any, after: Any, counters: Any, origin: Any = None):
        self.shown.append(
            Shown(kind, producer, fmt, before.copy(), after.copy(), dataclasses.replace(counters), origin)
        )
        super().rounded(kind, producer, fmt, before, after, counters, origin)


def numbers(*shape: int, seed: int = 0) -> Array:
    """Return numbers over 18 binades, some of them zero."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * 2.0 ** rng.integers(-14, 4, shape)
    return np.where(rng.random(shape) < 0.1, 0, x).astype(np.float32)


def layer(outputs: int = 6, inputs: int = 40) -> nn.Linear:
    made = nn.Linear(inputs, outputs, bias=False, rng=0)
    made.weight.data = numbers(outputs, inputs, seed=1)
    return made


def step(model: nn.Module, recipe: Any, x: Array, record: Record | None, **options: Any) -> list[Array]:
    """Return output and gradients of one step in FP32 but for the recipe, observed by a record or by nobody."""
    inputs = Tensor(x, requires_grad=True)
    with using(observer=record):
        with amp.fp8_autocast(recipe, format="fp32", **options):
            y = model(inputs)
        y.backward(numbers(*y.shape, seed=2))
    gradients = [p.grad.data for p in (inputs, *model.parameters()) if p.grad is not None]
    return [y.data, *gradients]


@pytest.mark.parametrize("name", RECIPES)
def test_casts_are_counted_as_the_twin_counts_them(name: str):
    keeper = Keeper()
    step(layer(), name, numbers(5, 40), keeper)
    assert keeper.shown
    for each in keeper.shown:
        stochastic = name == "te-nvfp4" and each.kind == "gradient operand"
        if stochastic:
            below, above = (round_to(each.before, E2M1, mode, "saturate") for mode in ("toward-zero", "to-odd"))
            assert np.all((abs(below) <= abs(each.after)) & (abs(each.after) <= np.maximum(abs(above), 6)))
            zeros = int(np.count_nonzero(each.before == 0))
            assert (each.counters.elements, each.counters.zeros) == (each.before.size, zeros)
            assert each.counters.underflows == int(np.count_nonzero(each.after == 0)) - zeros
            continue
        before = each.before.reshape(-1).tolist()
        codes = twin.encode_array(each.fmt, before, overflow="saturate")
        assert_same_bits(each.after.reshape(-1), twin.decode_array(each.fmt, codes, each.after.dtype))
        assert dataclasses.asdict(each.counters) == twin.count(each.fmt, before, overflow="saturate")


@machine_code
@pytest.mark.parametrize("name", RECIPES)
def test_who_looks_on_changes_no_bits(name: str):
    x = numbers(20, 40)
    for recipe in (name, name):
        alone, observed = (step(layer(), recipe, x, record, unit="native", seed=3) for record in (None, Record()))
        for got, want in zip(observed, alone, strict=True):
            assert_same_bits(got, want)


def test_numbers_are_shown_as_they_are_rounded_with_their_scale_on():
    made, x = layer(2, 3), np.float32([[3.0, -0.1, 0.001]])
    keeper = Keeper()
    step(made, "te-current", x, keeper)
    shown = {each.place: each for each in keeper.shown}
    scale = current_scale(amax_of(x), 448.0)
    assert_same_bits(shown[INPUT, FORWARD].before, x * scale)
    assert shown[INPUT, FORWARD].after.tolist() == [[448.0, -15.0, 0.15625]]
    source, factor = shown[INPUT, FORWARD].origin.inputs
    assert_same_bits(source, x)
    assert_same_bits(factor, np.broadcast_to(scale, x.shape))
    # As the layer has it, although the product takes its transpose.
    weight = made.weight.data
    assert_same_bits(shown[WEIGHT, FORWARD].before, weight * current_scale(amax_of(weight), 448.0))
    g = numbers(1, 2, seed=2)
    assert_same_bits(shown[GRADIENT, TO_INPUT].before, g * current_scale(amax_of(g), 57344.0))
    assert {(each.kind, each.fmt) for each in keeper.shown} == {("operand", E4M3), ("gradient operand", E5M2)}


def test_what_is_divided_by_its_scale_is_shown_so():
    made, x = layer(2, 3), np.float32([[3.0, -0.1, 0.001]])
    keeper = Keeper()
    for _ in range(3):
        keeper.shown.clear()
        step(made, "keras-float8", x, keeper)
    shown = next(each for each in keeper.shown if each.place == (INPUT, FORWARD))
    scale = np.float32(1) / (np.float32(448) / np.float32(3))
    assert_same_bits(shown.before, x / scale)
    assert shown.after.tolist() == [[448.0, -15.0, 0.15625]]
    source, factor = shown.origin.inputs
    assert_same_bits(source, x)
    assert_same_bits(factor, np.broadcast_to(np.float32(1) / scale, x.shape))


def test_blocks_show_quotients_and_scales():
    x = numbers(3, 64)
    for recipe, fmt, rule in (("te-mxfp8", "mxfp8_e4m3", "rceil-fp32"), ("te-nvfp4", "nvfp4", "transformer-engine")):
        keeper, counters = Keeper(), BlockCounters()
        step(layer(6, 64), recipe, x, keeper)
        shown = next(each for each in keeper.shown if each.place == (INPUT, FORWARD))
        q = quantize(x, fmt, -1, rule, counters=counters)
        assert shown.counters == counters.elements
        source, scales, tensor = shown.origin.inputs
        assert_same_bits(source, x)
        whole = scales if tensor is None else scales * tensor.astype(np.float64)
        assert_same_bits((shown.after * whole).astype(np.float32), q.dequantize())
        # Transformer Engine divides by the rounded scale in float32 three times.
        bound = 0 if tensor is None else 3 * 2.0**-24
        assert np.all(abs(shown.before * whole - x) <= bound * abs(x))


BOTH = [(INPUT, FORWARD), (WEIGHT, FORWARD), (GRADIENT, TO_INPUT)]
EACH = [*BOTH, (WEIGHT, TO_INPUT), (GRADIENT, TO_WEIGHT), (INPUT, TO_WEIGHT)]


@pytest.mark.parametrize(
    ("recipe", "places"),
    [
        ("te-delayed", BOTH),  # a tensor and its transpose have the same codes
        ("te-current", BOTH),
        ("keras-float8", BOTH),
        ("ms-amp", [*BOTH, ("linear weight gradient", TO_WEIGHT)]),
        ("torchao-rowwise", EACH),
        ("torchao-rowwise-gw-hp", EACH[:4]),
        ("te-mxfp8", EACH),
        (MXFP8Scaling(square=("weight",)), [*EACH[:3], *EACH[4:]]),
        ("te-block", [*EACH[:3], *EACH[4:]]),
        ("te-nvfp4", [*EACH[:3], *EACH[4:]]),
    ],
    ids=str,
)
def test_a_cast_is_shown_once(recipe: Any, places: list[tuple[str, str]]):
    keeper = Keeper()
    step(layer(), recipe, numbers(5, 40), keeper)
    assert [each.place for each in keeper.shown] == places


def test_padding_is_not_counted():
    made = layer(5, 20)
    made.weight.data[4, 17] = np.nan  # in the last tile, which is filled up
    sizes = {INPUT: 60, WEIGHT: 100, GRADIENT: 15}
    for recipe in ("te-block", MXFP8Scaling(square=("weight",)), NVFP4Scaling(transform=False)):
        keeper = Keeper()
        step(made, recipe, numbers(3, 20), keeper)
        for each in keeper.shown:
            assert each.counters.elements == each.before.size == sizes[each.producer]
            assert each.counters.zeros == np.count_nonzero(each.before == 0)
            assert each.counters.nans == np.count_nonzero(np.isnan(each.before))
    # NaN for a tile of 16 x 16, of which 5 x 4 are the weight's.
    assert next(each for each in keeper.shown if each.producer == WEIGHT).counters.nans == 20


def test_what_has_the_scale_zero_is_lost():
    x = numbers(1, 32)
    x[0, 16:] = np.float32(2.0**-20)
    x[0, 0], x[0, 20] = 1.0, 0.0
    keeper = Keeper()
    step(layer(2, 32), "te-nvfp4", x, keeper)
    shown = next(each for each in keeper.shown if each.place == (INPUT, FORWARD))
    assert np.all(shown.origin.inputs[1][0, 16:] == 0)
    assert np.all(shown.after[0, 16:] == 0)
    first = twin.count(E2M1, shown.before[0, :16].tolist(), overflow="saturate")
    assert shown.counters.underflows == first["underflows"] + 15
    assert shown.counters.zeros == first["zeros"] + 1
    assert (shown.counters.elements, shown.counters.overflows) == (32, first["overflows"])
    assert shown.counters.inexact == first["inexact"] + 15


def test_blocks_that_choose_show_the_quotients_that_were_kept():
    x, counters = numbers(3, 64), BlockCounters()
    keeper, rule = Keeper(), dataclasses.replace(SCALE_RECIPES["four-over-six"], quotients="exact")
    step(layer(6, 64), NVFP4Scaling(four_over_six=("input",), four_over_six_rule=rule), x, keeper)
    shown = next(each for each in keeper.shown if each.place == (INPUT, FORWARD))
    q = quantize(x, "nvfp4", -1, rule, counters=counters)
    assert shown.counters == counters.elements
    assert_same_bits(shown.origin.inputs[1], element_scales(q))
    assert_same_bits(shown.before, quotients(x, q, rule))


def test_a_second_backward_pass_is_seen_too():
    made, x = layer(), Tensor(numbers(5, 40), requires_grad=True)
    keeper = Keeper()
    with using(observer=keeper):
        with amp.fp8_autocast("te-current"):
            y = made(x)
        for _ in range(2):
            y.backward(numbers(*y.shape, seed=2), retain_graph=True)
    assert [each.place for each in keeper.shown] == [*BOTH, (GRADIENT, TO_INPUT)]


@machine_code
@pytest.mark.parametrize("recipe", [CurrentScaling(attention=True), MXFP8Scaling(attention=True)], ids=["one", "mx"])
def test_operands_of_attention_have_their_roles(recipe: Any):
    q, k, v = (Tensor(numbers(1, 2, 5, 32, seed=i), requires_grad=True) for i in range(3))
    keeper = Keeper()
    with using(observer=keeper):
        with amp.fp8_autocast(recipe):
            y = nn.functional.scaled_dot_product_attention(q, k, v)
        y.backward(numbers(*y.shape, seed=3))
    shown = [(each.producer.removeprefix("scaled_dot_product_attention "), each.kind) for each in keeper.shown]
    # Scores are computed again in the backward pass, which is no new cast.
    first = [(role, "operand") for role in ("query", "key", "weights", "value", "probabilities")]
    assert shown[:6] == [*first, ("gradient", "gradient operand")]
    later = [role for role, _ in shown[6:]]
    assert later == (
        ["score_gradient"]
        if isinstance(recipe, CurrentScaling)
        else ["gradient", "value", "score_gradient", "key", "score_gradient", "query"]
    )
    for each in keeper.shown:
        if each.producer.endswith(("query", "key", "value")):
            assert each.before.shape == (1, 2, 5, 32)


def test_nobody_is_shown_what_nobody_asks_for(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    monkeypatch.setattr(Sight, "_show", lambda *_: pytest.fail("shown"))
    monkeypatch.setattr("mpsim.amp.recipes.sight.cast", lambda *given: asked.append(given[3:]) or round_to(*given[::2]))
    with observe(("activation", "weight gradient")):
        step(layer(), "te-current", numbers(5, 40), None)
    step(layer(), "te-current", numbers(5, 40), Record(("activation",)))
    assert set(asked) == {(None,)}  # no counters
    assert Sight().counters("input") is None


# Questions to a record.


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16, rng=0), nn.ReLU(), nn.Linear(16, 3, rng=1))


def test_the_first_bad_cast_is_named_with_its_layer_operands_and_remedy():
    """The scale of delayed scaling starts at 1: a weight of small numbers becomes zero in E4M3, above 2**-10."""
    model = network()
    model[2].weight.data *= np.float32(2.0**-9) / abs(model[2].weight.data).max()
    small = float(np.sort(abs(model[2].weight.data).reshape(-1))[int(0.5 * 48)])
    with observe() as record, amp.fp8_autocast(DelayedScaling(amax_history_len=4)):
        model(np.ones((1, 8), np.float32))
    found = record.first_bad("flushed")
    assert found is not None
    assert (found.layer, found.tensor, found.kind) == ("2", "2.weight", "operand")
    assert (found.operation, found.format, found.code & 0x7F) == (FORWARD, E4M3, 0)
    weight = model[2].weight.data[found.index]
    assert [(o.name, o.values, o.format) for o in found.operands] == [
        ("input", (float(weight),), FP32),
        ("scale", (1.0,), FP32),
    ]
    assert found.value == weight
    assert found.factor is not None
    assert small * found.factor / 2 <= 2.0**-10 < small * found.factor
    assert found.saving_scale is None
    text = str(found)
    assert f"step 0, cast in layer 2: {found.share:.3g} of the operand 2.weight became zero in e4m3" in text
    assert text.endswith(f"a scale {found.factor:g} times that of the recipe would have saved it")


def test_what_saturates_under_an_old_scale_is_an_overflow():
    model, recipe = network(), DelayedScaling(amax_history_len=4, amax_compute_algo="most_recent")
    for size in (1.0, 100.0):
        with observe() as record, amp.fp8_autocast(recipe):
            model(np.full((1, 8), size, np.float32))
    found = record.first_bad("overflow")
    assert found is not None
    assert (found.tensor, found.value, found.factor) == ("0 linear input", 44800.0, 2.0**-7)
    assert (found.operands[0].values, found.operands[1].values) == ((100.0,), (448.0,))


def test_a_span_wider_than_the_format_is_beyond_any_scale():
    x = np.full((1, 8), 2.0**-30, np.float32)
    x[0, 0] = 1.0
    with observe() as record, amp.fp8_autocast("te-current", format="fp32"):
        network()(x)
    found = record.first_bad()
    assert found is not None
    assert (found.tensor, found.share, found.factor) == ("0 linear input", 7 / 8, None)
    assert str(found).endswith("no scale of the recipe helps")


def test_records_tell_what_other_formats_and_scales_would_lose(tmp_path: Path):
    x = np.float32([[1.0, 2.0**-14, 2.0**-20, 0.0]])
    with observe(causes=True) as record, amp.fp8_autocast("te-current", format="fp32"):
        nn.Linear(4, 2, rng=0)(x)
    record.save(tmp_path / "run.npz")
    for read in (record, Record.load(tmp_path / "run.npz")):
        chosen = {"kind": "operand", "producers": INPUT}
        assert read.counters("operand", INPUT, "e4m3").underflows == 1
        # With the scale of 448 the numbers are 448, 1.75 * 2**-6 and 1.75 * 2**-12.
        assert read.histogram("operand", INPUT).occupied()[0].tolist() == list(range(-12, 9))
        told = read.what_if(["e4m3", "e5m2"], [1.0, 4.0], **chosen)
        assert [loss.lost for loss in told.losses] == [1, 0, 0, 0]
        assert [loss.overflow for loss in told.losses] == [0, 1, 0, 0]
        zeros = read.why_zero("Linear", "operand")
        assert (zeros.underflow, zeros.true_zero) == (1, 1)
        assert [entry.tensor for entry in read.entries("operand")] == ["Linear linear input", "weight"]


@pytest.mark.parametrize("recipe", ["te-current", "te-block", "te-mxfp8", "torchao-rowwise"])
def test_operands_are_shown_as_the_layer_has_them(recipe: str):
    made, keeper = layer(6, 40), Keeper()
    step(made, recipe, numbers(5, 40), keeper)
    shapes = {INPUT: (5, 40), WEIGHT: (6, 40), GRADIENT: (5, 6)}
    for each in keeper.shown:
        assert each.before.shape == each.after.shape == shapes[each.producer]
        source, scale, *_ = each.origin.inputs
        assert source is not None
        assert scale is not None
        assert source.shape == scale.shape == shapes[each.producer]
        if each.producer == WEIGHT:
            assert_same_bits(source, made.weight.data)


def traced(recipe: Any, x: Array, g: Array, weight: Array) -> Record:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, rng=0)
    made.weight.data = weight
    inputs = Tensor(x, requires_grad=True)
    with observe(causes=True) as record:
        with amp.fp8_autocast(recipe, format="fp32"):
            y = made(inputs)
        y.backward(g)
    return record


def test_zeros_of_a_weight_gradient_are_told_from_those_that_a_cast_made():
    """Of the input column 1 is cast to zero, of the gradient column 1; column 2 of the input was zero already."""
    x = np.float32([[1.0, 2.0**-30, 0.0, 2.0**-2], [0.5, 2.0**-30, 0.0, 2.0**-3]])
    g = np.float32([[1.0, 2.0**-40], [1.0, 2.0**-40]])
    for recipe in ("te-current", "ms-amp", "torchao-rowwise"):
        whole = recipe != "torchao-rowwise"  # with a scale for each row of the transposes nothing is cast to zero
        record = traced(recipe, x, g, np.ones((2, 4), np.float32))
        found = record.why_zero("weight")
        assert (found.elements, found.true_zero) == (8, 2)
        assert (found.cast, found.zeros) == ((4, 6) if whole else (0, 2))
        assert found.swamping == found.underflow == found.upstream == 0
        if whole:
            assert "cast 66.7%" in str(found)


def test_what_the_cast_of_the_product_itself_loses_is_the_casts():
    """MS-AMP stores the gradient of the weight in FP8: numbers far below the largest become zero."""
    x = np.float32([[1.0, 2.0**-9]])
    record = traced("ms-amp", x, np.float32([[1.0, 2.0**-9]]), np.ones((2, 2), np.float32))
    found = record.why_zero("weight")
    assert (found.zeros, found.cast, found.swamping) == (1, 1, 0)  # 2**-18, below 2**-9 / 448


def test_what_a_recipes_unit_cuts_off_is_swamping_still():
    x = np.float32([[1.0], [-1.0], [2.0**-6]])
    g = np.float32([[1.0], [1.0], [2.0**-13]])  # 2**-19 beside 1, in 14 bits
    record = traced("te-current", x, g, np.ones((1, 1), np.float32))
    assert record.why_zero("weight").zeros == 0  # in NumPy's FP32
    made, inputs = nn.Linear(1, 1, bias=False, rng=0), Tensor(x, requires_grad=True)
    with observe(causes=True) as record:
        recipe = dataclasses.replace(get_recipe("te-current"), split=())
        with amp.fp8_autocast(recipe, unit="h100", format="fp32"):
            y = made(inputs)
        y.backward(g)
    found = record.why_zero("weight")
    assert (found.zeros, found.cast, found.swamping) == (1, 0, 1)


def test_blocks_and_the_gradient_of_the_input_are_followed_too():
    rng = np.random.default_rng(0)
    x, g = (rng.choice(np.float32([1.0, -0.5, 0.25]), shape) for shape in ((32, 32), (32, 32)))
    weight = np.ones((32, 32), np.float32)
    # Gradients 2**-30 beside 1 in their block are cast to zero: a row of them leaves nothing of the input's gradient.
    g[:, 1:], x[:, 3] = np.float32(2.0**-30), np.float32(2.0**-40)
    weight[0] = 0
    record = traced("te-mxfp8", x, g, weight)
    found = record.why_zero("Linear", "gradient operand")
    assert found.underflow > 0
    for (_, kind, _, _), causes in record.zero_causes.items():  # type: ignore[union-attr]
        parts = dataclasses.asdict(causes)
        assert min(parts.values()) >= 0
        assert sum(n for name, n in parts.items() if name not in ("elements", "zeros")) == causes.zeros
        if kind == "activation gradient":
            assert causes.swamping == 0
    tensor = Tensor(x, requires_grad=True) * 1.0
    made = nn.Linear(32, 32, bias=False, rng=0)
    made.weight.data = weight
    with observe(causes=True) as record:
        with amp.fp8_autocast("te-mxfp8", format="fp32"):
            y = made(tensor)
        y.backward(g)
    inner = record.why_zero("mul", "activation gradient")
    assert (inner.zeros, inner.cast, inner.swamping) == (1024, 1024, 0)  # 31 terms of 2**-30 each, and 0 times 1


@machine_code
@pytest.mark.parametrize("name", RECIPES)
def test_who_follows_causes_changes_no_bits(name: str):
    x = numbers(20, 40)
    alone, followed = (step(layer(), name, x, record, seed=3) for record in (None, Record(causes=True)))
    for got, want in zip(followed, alone, strict=True):
        assert_same_bits(got, want)


def test_what_a_scale_rule_clips_in_blocks_is_no_overflow():
    x = np.full((1, 64), 1.0, np.float32)
    x[0, 5] = 1.9375  # times 2**8 beyond 448
    rule = MXFP8Scaling(scale_rule="floor")

    def run(**options: Any) -> Record:
        with observe(**options) as record, amp.fp8_autocast(rule, format="fp32"):
            layer(6, 64)(x)
        return record

    record = run()
    assert record.counters("operand", INPUT).overflows == 1
    assert record.first_bad("overflow") is None
    assert record.first_bad("clipped") is None
    found = run(clipped=0.01).first_bad("clipped")
    assert found is not None
    assert (found.tensor, found.index, found.share, found.value) == ("Linear linear input", (0, 5), 1 / 64, 496.0)
    assert found.factor == 2.0
    assert "0.0156 of the operand Linear linear input was clipped in e4m3" in str(found)
    assert str(found).endswith("a scale 2 times that of the recipe would have saved it")
    assert run(clipped=1 / 64).first_bad("clipped") is None


def test_blocks_that_are_clipped_altogether_are_found(tmp_path: Path):
    x = np.full((1, 64), 1.99, np.float32)
    with observe() as record, amp.fp8_autocast(MXFP8Scaling(scale_rule="floor"), format="fp32"):
        layer(6, 64)(x)
    found = record.first_bad()
    assert found is not None
    assert (found.cause, found.share) == ("clipped", 1.0)
    record.save(tmp_path / "run.npz")
    again = Record.load(tmp_path / "run.npz")
    assert (again.clipped, again.findings) == (0.5, record.findings)


def test_block_scales_divide_in_remedies():
    x = np.full((1, 32), 0.75 * 2.0**-10, np.float32)
    x[0, 0] = 225.0  # whose scale is 1; twice it rounds to 448 still
    with observe() as record, amp.fp8_autocast("te-mxfp8", format="fp32"):
        layer(6, 32)(x)
    found = record.first_bad("flushed")
    assert found is not None
    assert (found.tensor, found.factor) == ("Linear linear input", 0.5)
    assert str(found).endswith("a scale 1/2 of that of the recipe would have saved it")


def test_the_report_lists_operands(tmp_path: Path):
    x = np.full((1, 8), 2.0**-30, np.float32)
    x[0, 0] = 1.0
    with observe() as record, amp.fp8_autocast("te-current", format="fp32"):
        network()(x)
    report.write_report(record, tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert "<td>operand</td><td>0 linear input</td><td>e4m3</td><td>8</td>" in page
    assert "0.875 of the operand 0 linear input became zero in e4m3" in page


def test_what_was_noted_before_is_as_without_a_recipes_casts():
    """Kinds of their own: magnitudes of activations and gradients are not mixed with scaled ones."""
    with observe() as record:
        step(layer(), "te-current", numbers(5, 40), record)
    assert record.counters("activation").elements == 5 * 6
    assert record.counters("activation gradient").elements == 0
    assert record.counters("gradient operand").elements == 5 * 6
    assert get_recipe("te-current").format_of("gradient") is E5M2
