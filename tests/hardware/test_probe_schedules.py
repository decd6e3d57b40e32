"""Schedules of black boxes that a probe sees only through their results."""

import dataclasses
import functools
import json
from typing import Any

import numba
import numpy as np
import pytest

import mpsim
from bits import assert_same_bits
from mpsim import hardware, units
from mpsim.formats import get_format
from mpsim.hardware.boxes import Box, Setting
from mpsim.hardware.findings import Finding
from mpsim.hardware.layouts import first_chain, meetings, proposals, signature
from mpsim.hardware.structure import hidden_summands
from mpsim.matmul import SCHEDULES, Reduction, Schedule
from mpsim.rounding import round_to
from mpsim.units import Family, MatrixUnit

pytestmark = pytest.mark.skipif(
    bool(numba.config.DISABLE_JIT), reason="a thousand dot products take minutes without machine code"
)


def row(name: str, inputs: str) -> MatrixUnit:
    """Return a row of the catalogue: of a device, or the first of a family."""
    if name in ("vdpbf16ps", "fma-chain", "amx"):
        return next(unit for unit in units.UNITS if unit.family == name and unit.a == inputs)
    return units.get(name, inputs)


def box_of(unit: MatrixUnit, schedule: Schedule, out: str, with_c: bool) -> Any:
    if with_c:
        return functools.partial(mpsim.matmul, unit=unit, schedule=schedule, result=out)
    return lambda a, b: mpsim.matmul(a, b, unit=unit, schedule=schedule, result=out)


def operands(unit: MatrixUnit, k: int, spread: int = 3) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(99)
    a, b = (
        rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread + 1, shape) for shape in ((24, k), (k, 24))
    )
    return round_to(a.astype(np.float32), unit.a), round_to(b.astype(np.float32), unit.b)


def assert_recovered(name: str, inputs: str, out: str, k: int, with_c: bool, schedule: Schedule) -> Finding:
    """Fail unless unit and schedule are found, and give the bits of other operands than those that were asked about."""
    unit = row(name, inputs)
    found = hardware.probe(box_of(unit, schedule, out, with_c), inputs, out, shape=(16, 16, k))
    assert found.unit is not None
    assert found.schedule is not None
    assert found.agreement[0] == found.agreement[1] > 1000
    if schedule.promotion == 0 or schedule.promotion >= unit.block_length:  # else nothing shows how long blocks are
        assert unit in found.rows
    a, b = operands(unit, k)
    assert_same_bits(
        mpsim.matmul(a, b, unit=found.unit, schedule=found.schedule, result=out),
        mpsim.matmul(a, b, unit=unit, schedule=schedule, result=out),
    )
    if with_c:
        c = round_to(np.linspace(-9, 9, 24 * 24, dtype=np.float32).reshape(24, 24), out)
        assert_same_bits(
            mpsim.matmul(a, b, c, unit=found.unit, schedule=found.schedule, result=out),
            mpsim.matmul(a, b, c, unit=unit, schedule=schedule, result=out),
        )
    return found


# Each way to cut K that there is.
WAYS = [
    ("a100", "fp16", "fp32", 256, True, Schedule(split_k=4)),
    ("a100", "bf16", "bf16", 512, False, Schedule(split_k=3, tile=64, reduction="in-place")),
    ("a100", "bf16", "bf16", 512, False, Schedule(split_k=3, tile=64, reduction="workspace")),
    ("h100", "fp16", "fp16", 256, True, Schedule(split_k=2, stripes=2, reduction="in-place")),
    ("a100", "tf32", "fp32", 300, True, Schedule(split_k=4, tile=64, reduction="pairwise")),
    ("rtx-4090", "e4m3", "fp32", 600, False, Schedule(split_k=3, split="interleaved", tile=64, promotion=128)),
    ("h100", "e4m3", "fp32", 512, True, Schedule(promotion=128)),
    ("h100", "fp16", "fp32", 100, True, Schedule(promotion=48)),
    ("mi300x", "bf16", "fp32", 256, True, Schedule(split_k=2, promotion=32)),
    ("vdpbf16ps", "bf16", "bf16", 320, False, Schedule(promotion=128)),
    ("fma-chain", "fp32", "fp32", 200, True, Schedule(tile=64, stripes=4)),
]


@pytest.mark.parametrize(("name", "inputs", "out", "k", "with_c", "schedule"), WAYS)
def test_a_schedule_is_found_without_looking(
    name: str, inputs: str, out: str, k: int, with_c: bool, schedule: Schedule
) -> None:
    found = assert_recovered(name, inputs, out, k, with_c, schedule).schedule
    assert found is not None
    additions = functools.partial(signature, k=k, takes_c=with_c, narrow=out != "fp32")
    assert additions(found) == additions(schedule)


def other_than_found(found: Finding, **change: Any) -> Any:
    """Return the witness against a schedule that differs from the found one in some numbers."""
    assert found.schedule is not None
    wanted = dataclasses.replace(found.schedule, **change)
    return next((other for other in found.other_schedules if other.schedule == wanted), None)


def test_reductions_that_round_are_told_apart_where_the_result_is_narrow() -> None:
    unit, schedule = units.get("a100", "bf16"), Schedule(split_k=4, reduction="in-place")
    box = box_of(unit, schedule, "bf16", with_c=False)
    found = hardware.probe(box, "bf16", "bf16", shape=(16, 16, 256))
    assert found.schedule == schedule
    assert not {s.reduction for s in found.schedules if s.split_k == 4} & {Reduction.SERIAL, Reduction.WORKSPACE}
    other = other_than_found(found, reduction=Reduction.WORKSPACE)
    a, b = np.zeros((1, 256), np.float32), np.zeros((256, 1), np.float32)
    for k, x, y in other.design.products:
        a[0, k], b[k, 0] = x, y
    assert box(a, b).item() == other.got
    assert mpsim.matmul(a, b, unit=unit, schedule=other.schedule, result="bf16").item() == other.expected
    assert other.got != other.expected


def test_reductions_that_round_nothing_are_said_to_be_indistinguishable() -> None:
    found = hardware.probe(box_of(units.get("a100"), Schedule(split_k=4), "fp32", True), shape=(16, 16, 256))
    assert found.schedule == Schedule(split_k=4)
    same = {s.reduction for s in found.schedules if s.split_k == 4}
    assert same >= {Reduction.IN_PLACE, Reduction.WORKSPACE}
    assert Schedule() not in (found.schedule, *found.schedules)
    assert other_than_found(found, reduction=Reduction.PAIRWISE) is not None


def test_whether_an_accumulator_joins_the_first_chain_tells_splits_from_promotion() -> None:
    unit, splits = units.get("a100"), Schedule(split_k=2)
    with_c = hardware.probe(box_of(unit, splits, "fp32", True), shape=(16, 16, 128))
    assert Schedule(promotion=64) in [other.schedule for other in with_c.other_schedules]
    without = hardware.probe(box_of(unit, splits, "fp32", False), shape=(16, 16, 128))
    assert {without.schedule, *without.schedules} >= {splits, Schedule(promotion=64)}


def test_one_chain_is_one_chain() -> None:
    found = hardware.probe(functools.partial(mpsim.matmul, unit="a100"), shape=(16, 16, 160))
    assert (found.schedule, found.schedules) == (Schedule(), ())
    assert Schedule(promotion=128) in [other.schedule for other in found.other_schedules]


def test_slices_that_no_schedule_has_are_not_called_one() -> None:
    def product(a: Any, b: Any) -> Any:
        parts = [mpsim.matmul(a[:, ks], b[ks], unit="a100") for ks in (slice(0, 64), slice(64, 192), slice(192, 256))]
        return parts[0] + parts[1] + parts[2]

    found = hardware.probe(product, shape=(16, 16, 256))
    assert found.schedule is None
    assert found.agreement[0] < found.agreement[1]
    assert units.get("a100") in found.rows
    assert [f"{k} to" in found.fact("order") for k in (0, 64, 192)] == [True] * 3
    assert f"none that mpsim.matmul has; one chain of this unit gives {found.agreement[0]} of" in str(found)
    assert found.to_dict()["schedule"] is None


def test_elements_that_follow_another_order_are_counted() -> None:
    """The diagonal is split, all other elements are one chain."""

    def product(a: Any, b: Any, c: Any) -> Any:
        d = mpsim.matmul(a, b, c, unit="a100")
        np.fill_diagonal(d, mpsim.matmul(a, b, c, unit="a100", split_k=2).diagonal())
        return d

    found = hardware.probe(product, shape=(16, 16, 128))
    assert found.schedule == Schedule(split_k=2)
    assert 512 + 4 * 16 < found.agreement[0] < found.agreement[1] == 512 + 4 * 16 * 16
    assert "the others are summed in another way" in str(found)


@pytest.mark.parametrize("family", [Family.FUSED, Family.FMA_CHAIN, Family.EXACT_BLOCKS, Family.AMX, Family.FLOORED])
@pytest.mark.parametrize("k", [96, 200])
def test_chains_meet_as_they_are_said_to(family: Family, k: int) -> None:
    unit = next(row for row in units.UNITS if row.family is family and row.out == "fp32")
    setting = Setting(*unit.inputs, get_format("fp32"), (16, 16, k))
    for schedule in (
        Schedule(split_k=3, split="interleaved", tile=16, promotion=8),
        Schedule(split_k=5, tile=16, stripes=2, reduction="pairwise"),
        Schedule(promotion=40),
    ):
        hidden = np.array(hidden_summands(Box(box_of(unit, schedule, "fp32", False), setting)))
        outside = ~np.isin(np.arange(k), first_chain(schedule, k))
        assert hidden[outside].tolist() == meetings(schedule, k)[outside].tolist()
        additions = [signature(s, k, True, True) for s in proposals(hidden.tolist())]
        assert signature(schedule, k, True, True) in additions


def test_equal_additions_are_equal_signatures() -> None:
    cut = functools.partial(signature, k=128, takes_c=True, narrow=False)
    assert cut(Schedule(split_k=2)) == cut(Schedule(split_k=2, reduction="in-place"))
    assert cut(Schedule(split_k=2)) == cut(Schedule(split_k=2, split="interleaved"))
    assert cut(Schedule(split_k=2)) != cut(Schedule(promotion=64))
    assert cut(Schedule()) != cut(Schedule(promotion=128))
    assert signature(Schedule(split_k=2), 128, False, True) != signature(
        Schedule(split_k=2, reduction="in-place"), 128, False, True
    )


def test_identify_prints_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    from mpsim.cli import main

    assert main(["identify", "--device", "h100", "--inputs", "fp16", "--shape", "16,16,64"]) == 0
    shown = capsys.readouterr().out
    assert "schedule                   one chain\n" in shown
    assert (
        "agreement                  1536 of 1536 elements of random products with K = 64, by unit and schedule" in shown
    )
    assert "schedules that differ, and where" in shown
    assert main(["identify", "--device", "h100", "--inputs", "fp16", "--shape", "16,16,64", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schedule"] == dataclasses.asdict(Schedule())
    assert told["agreement"] == [1536, 1536]


# Everything at once, at random.

_BOXES = (
    ("v100", "fp16", "fp32"), ("v100", "fp16", "fp16"), ("a100", "fp16", "fp16"), ("a100", "bf16", "bf16"),
    ("a100", "tf32", "fp32"), ("h100", "bf16", "fp32"), ("h100", "e4m3", "fp32"),
    ("rtx-4090", "e4m3", "fp32"), ("mi100", "fp16", "fp32"), ("mi210", "bf16", "fp32"), ("mi300x", "fp16", "fp32"),
    ("vdpbf16ps", "bf16", "bf16"), ("amx", "bf16", "fp32"),
    ("fma-chain", "fp32", "fp32"),
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("reduction", list(Reduction))
@pytest.mark.parametrize("split", ["contiguous", "interleaved"])
@pytest.mark.parametrize("box", _BOXES, ids="-".join)
def test_schedules_of_all_kinds_are_recovered(box: tuple[str, str, str], split: str, reduction: Reduction) -> None:
    """Every split has a part of K: what those do that have none shows in the sign of zeros alone."""
    rng = np.random.default_rng(_BOXES.index(box) + 100 * list(Reduction).index(reduction) + 1000 * len(split))
    for _ in range(2):
        k, tile = int(rng.choice([128, 200, 384, 512, 777, 1024])), int(rng.choice([32, 64, 128]))
        tiles = -(-k // tile)
        splits = [n for n in (2, 3, 4, 5, 7, 8) if -(-tiles // n) * (n - 1) < tiles]
        schedule = Schedule(
            split_k=int(rng.choice(splits)) if splits else 1,
            split=split,
            tile=tile,
            stripes=int(rng.choice([1, 1, 2, 4])),
            promotion=int(rng.choice([0, 0, 16, 32, 64, 128, 100])),
            reduction=reduction,
        )
        assert_recovered(*box, k, bool(rng.random() < 0.5), schedule)


@pytest.mark.long
@pytest.mark.parametrize("promotion", [1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 48, 64, 100, 128, 200, 256, 512])
@pytest.mark.parametrize("box", [box for box in _BOXES if box[1] != "e4m3"], ids="-".join)
def test_every_interval_of_promotion_is_recovered(box: tuple[str, str, str], promotion: int) -> None:
    i = _BOXES.index(box) + promotion
    assert_recovered(*box, (64, 300, 1024)[i % 3], i % 2 == 0, Schedule(promotion=promotion))


@pytest.mark.long
@pytest.mark.parametrize("preset", SCHEDULES)
def test_presets_are_recovered(preset: str) -> None:
    for splits in (1, 3):
        schedule = dataclasses.replace(SCHEDULES[preset], split_k=splits)
        assert_recovered("h100", "e4m3", "fp32", 1000, True, schedule)
        assert_recovered("a100", "bf16", "bf16", 1000, False, schedule)
