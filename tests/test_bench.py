"""The benchmark returns what it measured."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpsim import nn, units
from mpsim.bench import (
    DATA,
    EVERY_KIND,
    OBSERVING,
    ROUNDING_FORMATS,
    TrainTiming,
    bench_matmul,
    bench_observe,
    bench_rounding,
    bench_train,
    observing,
    rounding_format,
    train,
)
from mpsim.bench._memory import added_bytes
from mpsim.observe import Record


def test_rows_name_what_was_measured() -> None:
    timings = bench_matmul(sizes=[4, (2, 8, 3)], rows=["v100"], outs=["fp32", "fp16"], repeats=2)
    assert [(x.out, x.m, x.k, x.n) for x in timings] == [
        ("fp32", 4, 4, 4),
        ("fp32", 2, 8, 3),
        ("fp16", 4, 4, 4),
        ("fp16", 2, 8, 3),
    ]
    for x in timings:
        assert (x.unit, x.inputs, x.instruction) == ("v100", "fp16", "mma.m8n8k4")
        assert x.threads >= 1
        assert x.gmacs == pytest.approx(x.m * x.k * x.n / x.seconds / 1e9)
        assert x.ratio == pytest.approx(x.numpy_gmacs / x.gmacs)


def test_rows_may_be_units() -> None:
    unit = dataclasses.replace(units.get("a100", inputs="bf16"), fraction_bits=20)
    (timing,) = bench_matmul(sizes=[3], rows=[unit], repeats=1)
    assert (timing.inputs, timing.out) == ("bf16", "fp32")
    assert "ampere" in timing.unit


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(("unit", "inputs", "out"), EVERY_KIND)
def test_every_kind_of_arithmetic_and_of_operands_can_be_timed(unit: str, inputs: str, out: str, data: Any) -> None:
    (timing,) = bench_matmul(sizes=[(2, 70, 3)], rows=[(unit, inputs, out)], repeats=1, data=data)
    assert (timing.unit, timing.out, timing.data) == (unit, out, data)
    assert timing.seconds > 0


def test_unknown_kinds_of_operands_are_named() -> None:
    with pytest.raises(ValueError, match="data is 'zeros': it must be one of normal, subnormal, special, spread"):
        bench_matmul(data="zeros")  # type: ignore[arg-type]


# Rounding.


@pytest.mark.parametrize("fmt", ["mxfp8_e4m3", "MXFP4", "mxint8", "nvfp4"])
def test_block_formats_are_quantised_and_counted(fmt: str) -> None:
    timings = bench_rounding(elements=70, formats=[fmt], repeats=1)
    assert {t.fmt for t in timings} == {fmt.lower()}
    assert [t.what for t in timings] == [
        "quantize",
        "quantize, counted",
        "quantize, stochastic",
        "dequantize",
        "round",
        "round, counted",
        "round float64",
    ]
    for t in timings:
        assert t.elements == 70
        assert t.of_copy == t.copy_seconds / t.seconds > 0


def test_formats_and_block_formats_are_timed_together() -> None:
    assert {"mxfp8_e4m3", "nvfp4"} < set(ROUNDING_FORMATS)
    timings = bench_rounding(elements=70, formats=["e4m3", "mxfp8"], repeats=1)
    assert [(t.fmt, t.what) for t in timings if t.what in ("encode", "quantize")] == [
        ("e4m3", "encode"),
        ("mxfp8_e4m3", "quantize"),
    ]


def test_an_unknown_format_of_either_kind_is_named_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"unknown format 'mxfp9'; nearest: .*; block formats: mxfp8_e4m3, .*nvfp4"):
        rounding_format("mxfp9")
    with pytest.raises(ValueError, match=r"unknown format 'fb16'; nearest: .*bf16"):
        bench_rounding(elements=1, formats=["fp16", "fb16"], repeats=1)


# Training.


def test_training_is_timed_in_each_arithmetic() -> None:
    timings = [t for t in bench_train(["transformer"], steps=1, warmup=0, memory=False) if t.library == "mpsim"]
    assert [(t.arithmetic, t.unit) for t in timings] == [("fp32", "native"), ("fp16", "a100"), ("bf16", "h100")]
    blocks = 4 * (2 * 2 * 128 + 4 * 128 * 128 + 4 * 128 + 2 * 512 * 128 + 512 + 128)
    for t in timings:
        assert t.parameters == 96 * 128 + 64 * 128 + blocks + 2 * 128 + 128 * 96 == 826_112
        assert t.fastest == t.seconds == t.slowest > 0
        assert 4.0 < t.loss < 5.5  # log 96 = 4.56, and some noise of the first weights


def test_the_ratio_is_to_the_peers_time() -> None:
    (timing, *_) = bench_train(["mlp"], steps=1, warmup=0, memory=False)
    timing = dataclasses.replace(timing, seconds=3.0, peers={"torch fp32": 2.0})
    assert isinstance(timing, TrainTiming)
    assert timing.of_peer("torch fp32") == 1.5


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(ValueError, match="model is 'cnn': it must be one of mlp, transformer"):
        bench_train(["cnn"])  # type: ignore[list-item]


# What observing costs.


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_mlp", lambda rng: nn.Sequential(nn.Linear(784, 10, rng=rng)))


@pytest.mark.usefixtures("tiny")
def test_steps_are_timed_under_every_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[Record] = []

    class Seen(Record):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            records.append(self)

    monkeypatch.setattr(observing, "Record", Seen)
    timings = bench_observe(["mlp"], steps=4, warmup=1)
    assert [(t.arithmetic, t.unit, t.observing) for t in timings] == [
        (*arithmetic, name)
        for arithmetic in (("fp32", "native"), ("fp16", "a100"), ("bf16", "h100"))
        for name in OBSERVING
    ]
    for t in timings:
        assert t.steps == 4
        assert 0 < t.fastest <= t.seconds <= t.slowest
        assert 0 < t.ratio_low <= t.ratio <= t.ratio_high
        if t.observing == "nothing":
            assert t.ratio_low == t.ratio == t.ratio_high == 1
    assert [record.histograms for record in records] == [False, True] * 3
    for record in records:
        assert record.steps == 5
        assert record.counters("weight gradient").elements > 0
        assert (record.histogram("weight gradient").occupied_counts.size > 0) == record.histograms


@pytest.mark.usefixtures("tiny")
def test_observed_steps_do_the_same_work() -> None:
    losses = {(t.arithmetic, t.observing): t.loss for t in bench_observe(["mlp"], steps=2, warmup=1)}
    for arithmetic in ("fp32", "fp16", "bf16"):
        assert len({losses[arithmetic, name] for name in OBSERVING}) == 1


@pytest.mark.usefixtures("tiny")
def test_kinds_take_turns_and_are_compared_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    took = {"nothing": [1.0, 10.0, 100.0, 2.0], "counts": [3.0, 20.0, 400.0, 5.0], "histograms": [4.0] * 4}
    order: list[str] = []

    def step(model: Any, arithmetic: str, seed: int, around: Any) -> tuple[Callable[[], float], int]:
        name = OBSERVING[len(made) % 3]
        made.append(name)
        return lambda: order.append(name) or 0.0, 0  # type: ignore[func-returns-value]

    def clock(call: Callable[[], object]) -> float:
        call()
        name = order[-1]
        return took[name][(order.count(name) - 1) % 4]

    made: list[str] = []
    monkeypatch.setattr(observing, "own_step", step)
    monkeypatch.setattr(observing, "seconds", clock)
    timings = bench_observe(["mlp"], steps=4, warmup=0)
    assert order[:9] == [*OBSERVING, *OBSERVING[1:], OBSERVING[0], OBSERVING[2], *OBSERVING[:2]]
    counts = timings[1]
    assert (counts.seconds, counts.fastest, counts.slowest) == (12.5, 3.0, 400.0)
    assert (counts.ratio_low, counts.ratio, counts.ratio_high) == (2.375, 2.75, 3.25)  # of 2, 2.5, 3 and 4


def allocate(mebibytes: int) -> Callable[[], object]:
    return lambda: np.ones(mebibytes << 17).sum()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux")
def test_memory_is_what_the_work_adds() -> None:
    added = added_bytes(functools.partial(allocate, 64))
    assert added is not None
    # The system counts pages of each thread in batches, and what numpy.sum needs comes on top.
    assert abs(added - (64 << 20)) < 8 << 20
