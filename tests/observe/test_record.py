import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bits import assert_same_bits
from mpsim import amp, nn, optim
from mpsim.counters import Counters
from mpsim.formats import FP16
from mpsim.observe import KINDS, Histogram, Record, observe
from mpsim.settings import using
from mpsim.tensor import Tensor, settings
from reference import rounding as twin


def leaf(data: Any, fmt: str = "fp32") -> Tensor:
    return Tensor(data, requires_grad=True, format=fmt)


def as_dict(counters: Counters) -> dict[str, int]:
    return dataclasses.asdict(counters)


# Four numbers that FP16 rounds to zero, to a subnormal, to a normal number and to infinity, and a zero.
VALUES = [2.0**-26, 3e-6, 0.1, 1e5, 0.0]


def test_an_activation_is_counted_as_recomputed_by_hand():
    x = leaf(VALUES)
    with observe() as record:
        x.to("fp16")
    assert as_dict(record.counters()) == twin.count(FP16, x.data.tolist())
    assert as_dict(record.counters("weight")) == twin.count(FP16, x.data.tolist())
    y = x * 1.0
    with observe() as record:
        y.to("fp16")
    assert as_dict(record.counters("activation", producers={"cast"}, fmt="fp16")) == twin.count(FP16, VALUES_32)
    assert record.counters("weight") == Counters()


VALUES_32 = [float(np.float32(v)) for v in VALUES]


def test_gradients_are_counted_under_the_tensor_that_they_belong_to():
    x = leaf([1.0, 2.0, 4.0])
    h = x.to("fp16")
    y = h * Tensor([2.0**-13, 0.5, 1.0], format="fp16")
    with observe() as record:
        y.backward([2.0**-13, 2.0**-23, 1.0])
    # The gradient of h, the result of a cast: 2**-26 is lost, 2**-24 is subnormal. h is a weight in another format.
    products = [2.0**-26, 2.0**-24, 1.0]
    assert as_dict(record.counters("weight gradient", producers={"cast"})) == twin.count(FP16, products)
    assert record.counters("weight gradient", producers={"leaf"}).elements == 3
    assert record.counters("weight gradient", producers={"leaf"}).zeros == 1
    assert record.counters("activation gradient") == Counters()


def test_a_step_is_counted_kind_by_kind():
    layer = nn.Linear(3, 2, rng=0)
    x = Tensor(np.ones((4, 3), np.float32))
    with observe() as record:
        with amp.autocast("fp16"):
            loss = layer(x).relu().sum()
        loss.backward()
    elements = {
        (kind, maker, fmt): record.counters(kind, maker, fmt).elements
        for kind in KINDS
        for maker in ("cast", "linear", "relu", "sum", "leaf")
        for fmt in ("fp16", "fp32")
    }
    assert {key: n for key, n in elements.items() if n} == {
        ("activation", "cast", "fp16"): 12,  # x
        ("weight", "cast", "fp16"): 6 + 2,
        ("activation", "linear", "fp16"): 8,
        ("activation", "relu", "fp16"): 8,
        ("activation", "cast", "fp32"): 8,  # for the sum
        ("activation", "sum", "fp32"): 1,
        ("activation gradient", "cast", "fp32"): 8,
        ("activation gradient", "relu", "fp16"): 8,
        ("activation gradient", "linear", "fp16"): 8,
        ("weight gradient", "cast", "fp16"): 6 + 2,
        ("weight gradient", "leaf", "fp32"): 6 + 2,
    }
    assert record.counters().elements == sum(elements.values())


def test_zeros_that_were_zero_are_told_from_those_that_rounding_made():
    x = leaf([-1.0, 1.0, 1.0], "fp16")
    with observe({"activation gradient"}) as record:
        (x * 1.0).relu().backward([1.0, 0.0, 2.0**-24])
    counts = record.counters("activation gradient", producers={"mul"})
    assert (counts.elements, counts.zeros, counts.underflows, counts.subnormals) == (3, 2, 0, 1)


def test_nothing_is_collected_outside_the_block():
    x = Tensor([1.0], format="fp16")
    x * 2.0
    with observe() as record:
        x * 2.0
    x * 2.0
    assert record.counters().elements == 1
    assert settings().observer is None


def test_the_block_is_left_after_an_exception():
    with pytest.raises(KeyError), observe():
        raise KeyError
    assert settings().observer is None


def test_only_the_kinds_asked_for_are_collected():
    x = leaf([1.0])
    with observe({"activation gradient"}) as record:
        ((x * 2.0) * 2.0).backward()
    assert record.counters("activation gradient").elements == record.counters().elements == 1


@pytest.mark.parametrize("kinds", [KINDS, {"activation"}, {"weight gradient", "activation gradient"}])
def test_observing_changes_no_bits(kinds: Any):
    def run() -> list[np.ndarray]:
        model = nn.Sequential(nn.Linear(4, 5, rng=0), nn.Tanh(), nn.ReLU(), nn.Linear(5, 3, rng=1))
        optimizer, scaler = optim.SGD(model.parameters(), lr=0.5, momentum=0.9), amp.GradScaler(init_scale=2.0**20)
        x = np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32)
        results = []
        for _ in range(3):
            optimizer.zero_grad()
            with amp.autocast("fp16", unit="v100"):
                loss = nn.functional.cross_entropy(model(x), [0, 1, 2, 0, 1, 2])
            scaler.scale(loss).backward()
            results += [p.grad.data.copy() for p in model.parameters() if p.grad is not None]
            scaler.step(optimizer)
            scaler.update()
        return [*results, loss.data, *(p.data for p in model.parameters())]

    plain = run()
    with observe(kinds) as record:
        observed = run()
    assert record.counters().elements > 0
    for a, b in zip(plain, observed, strict=True):
        assert_same_bits(b, a)


def test_special_values_are_counted():
    x = leaf([60000.0, np.inf, np.nan], "fp16")
    with observe() as record:
        y = x * 2.0
        y - y
    doubled, difference = (record.counters("activation", producers={name}) for name in ("mul", "sub"))
    assert (doubled.overflows, doubled.nans, doubled.nans_made) == (1, 1, 0)
    assert difference.nans == 3  # inf - inf is NaN before it is rounded


# Histograms.


@given(st.lists(st.floats() | st.floats(width=16), max_size=30))
def test_a_histogram_counts_by_the_exponent_of_each_number(values: list[float]):
    histogram = Histogram()
    histogram.add(np.array(values))
    finite = [v for v in values if np.isfinite(v)]
    want = Counter(twin.number(v).magnitude.bit_length() - 1 - twin.SCALE for v in finite if v)
    exponents, counts = histogram.occupied()
    assert {e: n for e, n in zip(exponents.tolist(), counts.tolist(), strict=True) if n} == dict(want)
    assert histogram.zeros == finite.count(0.0)
    assert histogram.not_finite == len(values) - len(finite)
    if want:
        assert exponents.tolist() == list(range(min(want), max(want) + 1))


def test_histograms_hold_the_numbers_before_rounding():
    with observe() as record:
        Tensor([2.0**-13, 1.0], format="fp16") * Tensor([2.0**-13, 1.0], format="fp16")
    exponents, counts = record.histogram("activation", producers={"mul"}).occupied()
    assert dict(zip(exponents.tolist(), counts.tolist(), strict=True))[-26] == 1
    assert counts.sum() == 2


class Scanning(Record):
    """Looks at every array anew."""

    def _histogram(self, before: Any, is_rounded: bool, origin: Any) -> Histogram:
        return Histogram.of(before)


@pytest.mark.parametrize("fmt", ["fp32", "fp16"])
def test_numbers_in_another_order_have_the_histogram_that_they_had(fmt: str):
    rng = np.random.default_rng(0)

    def run(record: Record) -> None:
        x = leaf(rng.standard_normal((4, 6)).astype(np.float32))
        with using(observer=record):
            for _ in range(2):
                h = (x * 3.0).to(fmt)
                y = h.reshape(3, 8).permute(1, 0)
                z = y.reshape(24) + h.reshape(24)  # the gradient of the sum goes both ways, and adds up at h
                (z.relu() * z).sum().backward()
                x.grad = None
                record.next_step()

    records = Record(), Scanning()
    for record in records:
        rng = np.random.default_rng(0)
        run(record)
    entries = [list(record.entries()) for record in records]
    assert [e.operation for e in entries[0]].count("permute") == 2
    for ours, scanned in zip(*entries, strict=True):
        np.testing.assert_array_equal(ours.histogram.counts, scanned.histogram.counts, err_msg=ours.operation)
        assert ours.counters == scanned.counters
        assert (ours.histogram.smallest, ours.histogram.largest) == (
            scanned.histogram.smallest,
            scanned.histogram.largest,
        )


def test_numbers_in_another_order_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch):
    x, looked = leaf(np.ones((4, 6), np.float32)), []
    of = Histogram.of
    monkeypatch.setattr(Histogram, "of", lambda array: looked.append(array.shape) or of(array))
    with observe() as record:
        y = (x * 2.0).reshape(8, 3).permute(1, 0)
    assert (y.shape, looked) == ((3, 8), [(4, 6)])
    assert record.histogram("activation").counts.sum() == 72


def test_without_histograms_there_are_counts_alone():
    with observe(histograms=False) as record:
        Tensor([1.0], format="fp16") * 2.0
    assert record.counters().elements == 1
    assert record.histogram().counts.sum() == 0


def test_every_histogram_that_matches_is_added():
    with observe() as record:
        x = Tensor([1.0, 0.0, np.inf], format="fp16")
        x * 2.0
        x + x
    both = record.histogram("activation", producers={"mul", "add"})
    assert (both.counts[1 - Histogram.LOWEST], both.zeros, both.not_finite) == (2, 2, 2)


# Questions.


def test_formats_and_producers_may_be_named_in_several_ways():
    with observe() as record:
        Tensor([1.0], format="fp16") * 2.0
    for fmt in ("fp16", "float16", FP16, np.float16):
        assert record.counters(fmt=fmt).elements == 1
    assert record.counters(producers="mul").elements == 1
    assert record.counters(producers="multiply").elements == 0


def test_a_kind_that_was_not_looked_at_cannot_be_asked_for():
    record = Record({"activation"})
    for question in (record.counters, record.histogram):
        with pytest.raises(ValueError, match="kind is 'weight'; this record looked at activation"):
            question("weight")
        with pytest.raises(ValueError, match="kind is 'activations'"):
            question("activations")


@pytest.mark.parametrize("kinds", [["activations"], "activation", ["activation", "gradient"]])
def test_unknown_kinds_are_an_error_that_lists_them(kinds: Any):
    with pytest.raises(ValueError, match="it must be one of activation, activation gradient, weight, weight gradient"):
        Record(kinds)
