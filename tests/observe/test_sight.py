"""First failures, causes of zeros, what-if, pairs and files, each on cases that can be worked out by hand."""

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mpsim import amp, nn, optim
from mpsim.counters import Counters
from mpsim.formats import FP16, get_format
from mpsim.observe import Histogram, Record, compare, observe, scale_windows, what_if
from mpsim.observe.pairs import _errors
from mpsim.rounding import round_to
from mpsim.settings import using
from mpsim.tensor import Tensor, matrix_unit


def leaf(data: Any, fmt: str = "fp32") -> Tensor:
    return Tensor(data, requires_grad=True, format=fmt)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8, rng=0), nn.ReLU(), nn.Linear(8, 3, rng=1))


def train(scale: float, steps: int = 3, factor: float = 1.0, **options: Any) -> Record:
    model, scaler = network(), amp.ConstantScaler(scale)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    with observe(scaler=scaler, **options) as record:
        for _ in range(steps):
            optimizer.zero_grad()
            with amp.autocast("fp16"):
                loss = nn.functional.cross_entropy(model(x), [0, 1, 2, 0, 1, 2])
            scaler.scale(loss * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    return record


# Where an array belongs.


def test_tensors_are_known_by_layer_step_and_operation():
    record = train(1024.0)
    assert record.layers("update") == ["0", "2"]
    assert {e.name for e in record.entries("update")} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert record.scales == {0: 1024.0, 1: 1024.0, 2: 1024.0}
    gradients = {(e.layer, e.operation) for e in record.entries("activation gradient", fmt="fp16")}
    assert {("0", "relu backward"), ("1", "linear backward"), ("2", "cast backward")} <= gradients
    for step in range(3):
        assert record.counters("update", layer="0.weight", step=step).elements == 32


def test_no_layer_is_what_no_module_ran():
    model = network()
    with observe() as record:
        model(np.ones((1, 4), np.float32)) * 2.0
    assert record.counters("activation").elements == 8 + 8 + 3 + 3
    assert {entry.producer for entry in record.entries("activation", layer="")} == {"mul"}


def test_steps_are_those_in_which_something_was_seen():
    record, x = Record(), leaf([1.0])
    assert record.steps == 0
    with using(observer=record):
        for _ in range(3):
            (x * 2.0).backward()
            record.next_step()
    assert (record.step, record.steps) == (3, 3)


def test_a_second_model_does_not_take_the_names_of_the_first():
    with observe() as record:
        for model in (network(), network()):
            model(np.ones((1, 4), np.float32))
    assert {"0", "1", "2", "Sequential.0"} <= set(record.layers("activation"))


def test_clearing_gradients_of_model_and_optimizer_ends_one_step():
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with observe() as record:
        for _ in range(2):
            model(np.ones((1, 4), np.float32))
            model.zero_grad()
            optimizer.zero_grad()
    assert record.step == 2
    with observe() as record:
        model(np.ones((1, 4), np.float32))
        model.zero_grad()
    assert record.step == 1


def test_updates_that_leave_the_weight_are_stagnation():
    w = leaf([1.0, 1.0], "fp16")
    optimizer = optim.SGD([w], lr=1.0)
    with observe() as record:
        w.grad = Tensor([2.0**-13, 0.0], format="fp16")
        optimizer.step()
        assert record.counters("update").underflows == 1
    moved = list(record.entries("update"))
    assert (moved[0].counters.elements, moved[0].counters.zeros) == (2, 1)


# The first failure.


def test_the_first_product_that_overflows_is_found_with_its_operands():
    a, b = Tensor([[256.0, 1.0]], format="fp16"), Tensor([[256.0], [2.0]], format="fp16")
    with observe() as record:
        c = a @ b
        c * 2.0  # infinite already
    found = record.first_bad()
    assert found is not None
    assert (found.cause, found.operation, found.index, found.exact) == ("overflow", "matmul", (0, 0), Fraction(65538))
    assert found.code == 0x7C00
    assert [o.name for o in found.operands] == ["input", "other"]
    assert found.operands[0].codes == (0x5C00, 0x3C00)
    assert found.operands[1].fractions == (Fraction(256), Fraction(2))
    assert found.factor is None  # a forward pass
    assert "overflowed in fp16" in str(found)


@pytest.mark.parametrize("numbers", [[0.3, 0.3, 1000.0], [7.6, np.inf, -1000.0], [7.5, 7.7, 7.76]])
def test_what_is_held_at_the_largest_number_is_told_from_what_rounds_down(numbers: list[float]):
    with observe() as record:
        Tensor(numbers).to("e2m3")
    found = record.first_bad("overflow")
    assert found is not None
    assert (found.index, found.share) == ((2,), 1 / 3)


def test_the_operation_that_makes_a_nan_is_found_not_those_after_it():
    x = Tensor([np.inf, 1.0], format="fp16")
    with observe() as record:
        y = x - x
        y + 1.0
    found = record.first_bad("nan")
    assert found is not None
    assert (found.operation, found.index) == ("sub", (0,))
    assert record.first_bad("overflow") is None  # the infinity was there before


@pytest.mark.parametrize(("exponent", "factor"), [(-30, 64.0), (-26, 4.0), (-25, 2.0)])
def test_the_factor_is_the_smallest_that_keeps_the_numbers(exponent: int, factor: float):
    x = leaf([1.0, 1.0], "fp32")
    with observe() as record:
        x.to("fp16").to("fp32").backward([2.0**exponent] * 2)
    found = record.first_bad("flushed")
    assert found is not None
    assert (found.factor, found.share, found.tensor) == (factor, 1.0, "cast")
    assert round_to(2.0**exponent * factor, "fp16") != 0
    assert round_to(2.0**exponent * factor / 2, "fp16") == 0


def test_a_gradient_that_overflows_names_the_largest_scale_that_does_not():
    x = leaf([1.0])
    with observe(scaler=amp.ConstantScaler(2.0**20)) as record:
        x.to("fp16").to("fp32").backward([2.0**20])
    found = record.first_bad()
    assert found is not None
    assert (found.cause, found.loss_scale, found.saving_scale) == ("overflow", 2.0**20, 2.0**15)


@pytest.mark.parametrize("tail_first", [False, True])
def test_shares_of_slices_that_overflow_together_are_told_by_their_place_in_the_tensor(tail_first: bool):
    x = leaf([0.0, 0.0, 0.0], "fp16")
    weighted = [(slice(0, 2), [20000.0, 30000.0]), (slice(1, 3), [40000.0, 10000.0])]
    with observe() as record:
        first, second = ((x[at] * Tensor(w, format="fp16")).sum() for at, w in weighted[:: -1 if tail_first else 1])
        (first + second).backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [20000.0, np.inf, 10000.0]
    found = record.first_bad()
    assert found is not None
    assert (found.cause, found.operation, found.kind) == ("overflow", "accumulate", "weight gradient")
    assert (found.index, found.exact, found.share) == ((1,), Fraction(70000), 1 / 3)
    sums, share = found.operands  # backward passes take the youngest operation first
    assert (sums.name, share.name) == ("sum so far", "next share")
    assert (*sums.values, *share.values) == ((30000.0, 40000.0) if tail_first else (40000.0, 30000.0))
    assert found.factor == 0.5
    assert found.remedy == "a loss scale 1/2 of that in force would have saved it"


def test_the_place_in_a_tensor_is_found_through_any_slice():
    x = leaf(np.zeros((3, 4)), "fp16")
    with observe() as record:
        row = x[2, None, ::-1] * Tensor([0.0, 0.0, 30000.0, 0.0], format="fp16")
        ((x[:, 1::2] * 40000.0).sum() + row.sum()).backward()
    found = record.first_bad()
    assert found is not None
    assert (found.index, found.share) == ((2, 1), 1 / 12)
    assert x.grad is not None
    assert np.argwhere(np.isinf(x.grad.data)).tolist() == [[2, 1]]


def test_a_known_loss_scale_is_told_with_the_one_that_saves():
    x = leaf([1.0])
    with observe(scaler=amp.ConstantScaler(2.0**20)) as record:
        x.to("fp16").to("fp32").backward([2.0**20])
    found = record.first_bad()
    assert found is not None
    assert found.remedy == "a loss scale of 32768, 1/32 of the 1.04858e+06 in force, would have saved it"


def test_a_row_of_a_backward_product_is_told_with_its_codes():
    layer = nn.Linear(2, 2, bias=False, rng=0).to("fp16")
    layer.weight.data[:] = [[1.0, 2.0], [3.0, 4.0]]
    x = leaf([[1.0, 1.0]], "fp16")
    with observe(flushed=0.0) as record:
        layer(x * 1.0).backward([[0.0, 2.0**15]])
    found = record.first_bad("overflow")
    assert found is not None
    assert (found.operation, found.layer, found.index) == ("linear backward", "Linear", (0, 0))
    gradient, weight = found.operands
    assert (gradient.values[0], weight.values[0]) == (2.0**15, 3.0)


def test_questions_that_make_no_sense_are_errors():
    with pytest.raises(ValueError, match="cause is 'inf': it must be one of overflow, nan, flushed, clipped"):
        Record().first_bad("inf")
    with pytest.raises(ValueError, match="flushed is 2; a share"):
        Record(flushed=2)
    with pytest.raises(ValueError, match="clipped is -1; a share"):
        Record(clipped=-1)
    with pytest.raises(ValueError, match=r"observe\(causes=True\) does"):
        Record().why_zero("0.weight")
    with pytest.raises(ValueError, match=r"no weight gradient of '7.weight'; there is .*, 0\.weight"):
        train(1.0, 1, causes=True).why_zero("7.weight")


# Why zero.


def test_zeros_are_told_apart_by_cause():
    x = leaf([1.0, 1.0, -1.0, 1.0])
    with observe(causes=True) as record:
        h = (x * 1.0).to("fp16").relu()
        (h * Tensor([1.0, 2.0**-20, 1.0, 0.0], format="fp16")).backward([1.0, 2.0**-8, 1.0, 1.0])
    relu = record.why_zero("relu", "activation gradient")
    assert (relu.zeros, relu.underflow, relu.true_zero) == (2, 1, 1)
    cast = record.why_zero("cast", "activation gradient")
    assert (cast.zeros, cast.upstream, cast.mask, cast.true_zero) == (3, 1, 1, 1)


def test_what_a_matrix_unit_cuts_off_is_swamping():
    a, b = leaf([[1.0]], "fp16"), Tensor([[2.0**10, -(2.0**10), 1.0]], format="fp16")
    with observe(causes=True) as record:
        with matrix_unit("v100"):
            y = (a * 1.0) @ b
        y.backward([[2.0**10, 2.0**10, 2.0**-10]])  # 2**20 - 2**20 + 2**-10, aligned to 2**20 less 23 bits
    found = record.why_zero("mul", "activation gradient")
    assert (found.elements, found.zeros, found.swamping) == (1, 1, 1)


def test_observing_causes_changes_no_gradient():
    def gradients(causes: bool) -> list[np.ndarray]:
        model = network()
        x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
        with observe(causes=causes), amp.autocast("fp16", unit="v100"):
            loss = nn.functional.cross_entropy(model(x), [0, 1, 2, 0, 1, 2])
        with observe(causes=causes):
            loss.backward()
        return [p.grad.data for p in model.parameters() if p.grad is not None]

    for plain, followed in zip(gradients(False), gradients(True), strict=True):
        assert plain.tobytes() == followed.tobytes()


def test_the_causes_of_a_tensor_add_up_to_its_zeros():
    record = train(1.0, factor=2.0**-20, causes=True)
    assert record.zero_causes
    for (_, kind, _, _), found in record.zero_causes.items():
        parts = dataclasses.asdict(found)
        assert min(parts.values()) >= 0
        assert sum(n for name, n in parts.items() if name not in ("elements", "zeros")) == found.zeros
        if kind == "weight gradient":
            assert found.upstream > 0
            assert "upstream" in str(found)


# What if.


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e4m3", "e5m2", "dlfloat16", "e3m2"])
@pytest.mark.parametrize("power", [-20, -3, 0, 5, 17])
def test_losses_are_those_of_rounding_the_numbers_themselves(fmt: str, power: int):
    rng = np.random.default_rng(1)
    x = np.ldexp(rng.uniform(1, 2, 4000), rng.integers(-160, 130, 4000))
    counters = Counters()
    round_to(x * 2.0**power, fmt, counters=counters)
    loss = what_if(Histogram.of(x), fmt, [2.0**power]).losses[0]
    assert (loss.numbers, loss.lost) == (4000, counters.underflows)
    partial = np.count_nonzero(np.frexp(x)[1] - 1 + power == loss.format.emax)  # counted as overflows together
    assert counters.overflows <= loss.overflow <= counters.overflows + partial


def test_the_window_is_as_wide_as_it_can_be():
    rng = np.random.default_rng(2)
    x = np.exp2(rng.uniform(-40, -10, 3000))
    told = what_if(Histogram.of(x), "fp16")
    window = told.window("fp16", 0.01)
    assert told.loss("fp16", window.smallest).lost_share <= 0.01 < told.loss("fp16", window.smallest / 2).lost_share
    assert np.isfinite(round_to(x * window.largest, "fp16")).all()
    assert not np.isfinite(round_to(x * window.largest * 2, "fp16")).all()
    assert told.smallest_scale("fp16", 0.01) == window.smallest
    assert window.is_open


def test_scales_must_be_powers_of_two():
    with pytest.raises(ValueError, match=r"scale is 3.0; a power of two"):
        what_if(Histogram.of(np.ones(1)), "fp16", [3.0])
    with pytest.raises(ValueError, match="no numbers but zero"):
        what_if(Histogram(), "fp16").window("fp16")


def test_windows_are_in_terms_of_the_loss_scale():
    low, high = dict(scale_windows(train(256.0), "fp16")), dict(scale_windows(train(4096.0), "fp16"))
    assert low.keys() == high.keys() == {0, 1, 2}
    assert low[0] == high[0]  # the numbers are 16 times larger, and so is the scale


@pytest.mark.parametrize("fmt", ["fp16", "fp32", "fp64", "e4m3", "e2m1"])
@pytest.mark.parametrize("x", [1.0, 2.0**1000, 2.0**-1000, 2.0**-1074, 1.75 * 2.0**1023])
def test_scales_that_fp64_has_no_power_for_end_a_window(fmt: str, x: float):
    told = what_if(Histogram.of(np.array([x])), fmt)
    window = told.window(fmt)
    assert told.loss(fmt, window.largest).overflow == 0
    assert window.largest == 2.0**1023 or told.loss(fmt, window.largest * 2).overflow == 1
    if np.isfinite(window.smallest):
        assert told.loss(fmt, window.smallest).lost == 0
        assert window.smallest == 2.0**-1074 or told.loss(fmt, window.smallest / 2).lost == 1
    else:
        assert told.loss(fmt, 2.0**1023).lost == 1
        assert not window.is_open


def test_where_everything_may_be_lost_the_window_keeps_the_largest():
    told = what_if(Histogram.of(np.array([2.0**-40, 1.0])), "fp16")
    assert told.window("fp16", 1.0) == told.window("fp16", 0.5)


@pytest.mark.parametrize("fmt", ["fp16", "e4m3", "e2m1", "fp64", "e8m0"])
def test_a_number_beyond_the_largest_power_overflows(fmt: str):
    f = get_format(fmt)
    for x in (f.max_finite, 2.0**f.emax, np.nextafter(2.0**f.emax, 0.0)):
        told = what_if(Histogram.of(np.array([x])), f)
        assert told.loss(f).overflow == 0
        if f.emax < 1023:
            scale = told.window(f).largest
            assert [told.loss(f, scale * k).overflow for k in (1, 2)] == [0, 1]


# Pairs.


def test_the_ulp_at_zero_is_that_of_the_smallest_numbers():
    assert _errors(np.array([2.0**-14]), np.zeros(1), FP16)[0] == 1024
    assert _errors(np.array([2.0**-24, 0.0]), np.array([-0.0, 0.0]), FP16) == (1.0, 0.5)


def test_a_run_does_not_differ_from_itself_and_does_from_fp32():
    model = network()
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)

    def run(low: bool) -> None:
        model.zero_grad()
        with amp.autocast("fp16", enabled=low):
            loss = nn.functional.cross_entropy(model(x), [0, 1, 2, 0, 1, 2])
        loss.backward()

    same = compare(lambda: run(True), lambda: run(True))
    assert same.first_divergence(0.0) is None
    assert all(row.sqnr == np.inf for row in same.rows)
    pair = compare(lambda: run(True), lambda: run(False))
    first = pair.first_divergence(0.0)
    assert first is not None
    assert (first.tensor, first.kind) == ("0 linear", "activation")
    assert {row.tensor for row in pair.of("weight gradient")} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert all(40 < row.sqnr < 100 for row in pair.of("activation") if row.format.name == "fp16")
    assert "SQNR" in str(pair)


# Files.


def test_a_record_comes_back_from_its_file(tmp_path):
    record = train(1.0, factor=2.0**-20, causes=True)
    path = tmp_path / "run.npz"
    record.save(path)
    again = Record.load(path)
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]
    assert (again.step, again.scales, again.findings) == (record.step, record.scales, record.findings)
    assert again.zero_causes == record.zero_causes
    for a, b in zip(record.entries(), again.entries(), strict=True):
        assert (a.step, a.kind, a.tensor, a.operation, a.format) == (b.step, b.kind, b.tensor, b.operation, b.format)
        assert a.counters == b.counters
        assert a.histogram.counts.tolist() == b.histogram.counts.tolist()
        assert (a.histogram.zeros, a.histogram.not_finite) == (b.histogram.zeros, b.histogram.not_finite)
        assert (a.histogram.smallest, a.histogram.largest) == (b.histogram.smallest, b.histogram.largest)


def test_a_file_that_is_no_record_is_an_error(tmp_path):
    path = tmp_path / "run.npz"
    for content in (b"", b"PK nothing"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="no record of version 1"):
            Record.load(path)
    np.savez(path, meta=np.array('{"version": 9}'))
    with pytest.raises(ValueError, match="version 9"):
        Record.load(path)
    with pytest.raises(FileNotFoundError):
        Record.load(tmp_path / "none.npz")


@pytest.mark.parametrize("name", ["step", "special", "extremes", "counts", "lengths", "kind", "format", "counters"])
def test_a_file_with_a_short_array_is_an_error(tmp_path, name: str):
    path = tmp_path / "run.npz"
    train(1.0, 1).save(path)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {name: arrays[name][:-1]})
    with pytest.raises(ValueError, match=r"run\.npz is damaged, or no record of version 1 \(its arrays"):
        Record.load(path)
