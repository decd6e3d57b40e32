"""The benchmark returns what it measured."""

import dataclasses
from typing import Any

import pytest

from mpsim import units
from mpsim.bench import DATA, EVERY_KIND, bench_matmul


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
    with pytest.raises(ValueError, match="data is 'zeros'; it must be one of normal, subnormal, special, spread"):
        bench_matmul(data="zeros")  # type: ignore[arg-type]
