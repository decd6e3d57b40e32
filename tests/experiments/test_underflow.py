import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import config as numba_config

from mpsim import experiments
from mpsim.datasets import Dataset
from mpsim.experiments import training
from mpsim.experiments.training import Measured
from mpsim.experiments.underflow import LOSS_SCALING, MASTER_WEIGHTS, Config, Result, arms, run

JIT = not numba_config.DISABLE_JIT
# Emulated products take minutes as plain Python; the numbers of such a short run support no claim anyway.
SMALL = Config(unit="v100" if JIT else "native", epochs=1, batch_size=256, hidden=4, scales=(1.0, 1024.0))


def quick(config: Config) -> Result:
    """Run in this process; as plain Python, on a tenth of the images."""
    digits = training.digits
    with pytest.MonkeyPatch.context() as patch:
        if not JIT:
            patch.setattr(training, "digits", lambda split: every_tenth(digits(split)))
        return run(config)


def every_tenth(data: Dataset) -> Dataset:
    return dataclasses.replace(data, x=data.x[::10], y=data.y[::10])


@pytest.fixture(scope="module")
def small() -> Result:
    return quick(SMALL)


def numbers(result: Result) -> dict[str, Any]:
    """Return a result with NaN as None, so that equal results compare equal."""
    return result.to_dict()


def reject(constant: str) -> None:
    pytest.fail(f"{constant} is not JSON")


# A run.


def test_a_run_finishes_every_arm_in_order(small: Result):
    assert small.complete
    assert [m.arm for m in small.measured] == list(arms(SMALL))
    assert len(small.claims) == 9
    assert len(small.part(LOSS_SCALING)) + len(small.part(MASTER_WEIGHTS)) == len(small.measured)


def test_the_number_of_workers_changes_no_number():
    config = dataclasses.replace(SMALL, epochs=int(JIT))
    assert numbers(run(config, workers=2)) == numbers(run(config))


def test_a_result_is_strict_json(small: Result):
    text = json.dumps(small.to_dict(), allow_nan=False)
    data = json.loads(text, parse_constant=reject)
    assert (data["experiment"], data["complete"]) == ("underflow", True)
    assert data["config"]["scales"] == [1.0, 1024.0]
    assert [a["arm"]["name"] for a in data["arms"]] == [m.arm.name for m in small.measured]
    assert [a["accuracy"] for a in data["arms"]] == [m.accuracy for m in small.measured]
    assert [c["holds"] for c in data["claims"]] == [c.holds for c in small.claims]


def test_only_a_dynamic_scale_is_called_dynamic(small: Result):
    data = small.to_dict()
    for plain, measured in zip(data["arms"], small.measured, strict=True):
        assert (plain["arm"]["loss_scale"] == "dynamic") == (measured.arm.loss_scale == math.inf)
    diverged = dataclasses.replace(small.measured[0], losses=(1.0, math.inf, math.nan, -math.inf))
    data = Result(SMALL, (diverged, *small.measured[1:])).to_dict()
    json.dumps(data, allow_nan=False)
    assert data["arms"][0]["losses"] == [1.0, None, None, None]


def test_tables_show_every_arm(small: Result):
    rows = [row[0] for table in small.tables for row in table.rows]
    assert sorted(rows) == sorted(m.arm.name for m in small.measured)
    for table in small.tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_progress_goes_from_0_to_1_and_every_part_is_handed_over():
    seen: list[tuple[float, str]] = []
    parts: list[Result] = []
    config = dataclasses.replace(SMALL, epochs=0)
    result = run(config, progress=lambda share, name: seen.append((share, name)), on_part=parts.append)
    shares = [share for share, _ in seen]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert {name for _, name in seen} == {arm.name for arm in arms(config)}
    assert [len(part.measured) for part in parts] == list(range(1, len(arms(config)) + 1))
    assert [part.complete for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].measured is result.measured


def test_without_a_pass_nothing_is_claimed():
    result = experiments.run("underflow", {"epochs": 0, "unit": SMALL.unit, "hidden": 2})
    assert result.complete
    assert result.claims == ()
    json.dumps(result.to_dict(), allow_nan=False)
    assert result.tables


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_run_keeps_the_finished_arms(workers: int):
    parts: list[Result] = []

    def stop_after_two(part: Result) -> None:
        parts.append(part)
        if len(parts) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(dataclasses.replace(SMALL, epochs=0), workers=workers, on_part=stop_after_two)
    last = parts[-1]
    assert len(last.measured) == 2
    assert not last.complete
    assert last.claims == ()
    assert json.loads(json.dumps(last.to_dict(), allow_nan=False))["complete"] is False
    assert last.tables


def test_the_same_seed_gives_the_same_result_and_another_seed_another(small: Result):
    assert numbers(quick(SMALL)) == numbers(small)
    other = quick(dataclasses.replace(SMALL, seed=1))
    for a, b in zip(small.measured, other.measured, strict=True):
        assert a.losses != b.losses


# What is compared.


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(unit="a100"),
        Config(unit="a100", format="bf16"),
        Config(unit="native", format="bf16"),
        Config(unit="a100", format="tf32"),
        Config(unit="h100", scales=(1.0, 2.0**20, 2.0**20 + 1)),
    ],
    ids=lambda c: f"{c.unit}-{c.format}",
)
def test_every_arm_has_a_name_of_its_own(config: Config):
    names = [arm.name for arm in arms(config)]
    assert len(set(names)) == len(names)
    assert len(set(arms(config))) == len(names)


def test_arms_of_the_first_part_differ_in_arithmetic_and_loss_scale_alone():
    config = Config()
    part = [arm for arm in arms(config) if arm.part == LOSS_SCALING]
    assert {(arm.weights, arm.lr, arm.loss_factor) for arm in part} == {("fp32", 0.05 * 2**20, 2.0**-20)}
    assert [arm.loss_scale for arm in part] == [None, 1.0, 8.0, 128.0, 1024.0, 32768.0, math.inf, None]
    assert [arm.compute for arm in part] == ["fp32", *["fp16"] * 6, "bf16"]


def test_arms_of_the_second_part_differ_in_formats_alone():
    part = [arm for arm in arms(Config()) if arm.part == MASTER_WEIGHTS]
    assert {(arm.lr, arm.loss_factor, arm.loss_scale) for arm in part} == {(0.002, 1.0, None)}
    formats = [(arm.compute, arm.weights) for arm in part]
    assert formats == [("fp32", "fp32"), ("fp16", "fp32"), ("fp16", "fp16"), ("bf16", "bf16")]


def test_bf16_runs_on_the_unit_asked_for_where_that_has_it():
    units = {unit: {arm.unit for arm in arms(Config(unit=unit)) if arm.compute == "bf16"} for unit in ("v100", "h100")}
    assert units["h100"] == {"h100"}
    assert units["v100"].isdisjoint({"v100", "native"})


# The claims are judged from the numbers.

PAPER = Config(scales=(1.0, 8.0, 128.0))
NUMBERS: dict[str, dict[str, Any]] = {
    "FP32": {"accuracy": 0.97, "underflow": 0.0, "zero": 0.5},
    "FP16, scale 1": {"accuracy": 0.5, "underflow": 0.4, "zero": 0.9},
    "FP16, scale 8": {"accuracy": 0.9, "zero": 0.8},
    "FP16, scale 128": {"accuracy": 0.97, "zero": 0.6},
    "FP16, dynamic": {"accuracy": 0.97, "skipped": (3,)},
    "BF16": {"accuracy": 0.97, "underflow": 0.0},
    "FP32 throughout": {"accuracy": 0.95},
    "FP16, FP32 weights": {"accuracy": 0.95, "updates_lost": 0.001},
    "FP16 weights": {"accuracy": 0.7, "updates_lost": 0.8},
    "BF16 weights": {"accuracy": 0.3, "updates_lost": 0.95},
}
"""Made-up numbers with which every claim holds."""

ZEROS, SAVED, BEHIND, CONSTANT, DYNAMIC, RANGE, MASTER, LOST, NARROW = range(9)


def forged(changes: dict[str, dict[str, Any]] | None = None, config: Config = PAPER) -> Result:
    blank: dict[str, Any] = {
        "accuracy": 0.9, "tested": 359, "losses": (1.0,), "steps": 1350, "skipped": (), "zero": 0.5, "underflow": 0.0,
        "subnormal": 0.1, "updates_lost": 0.0, "scales": (),
    }  # fmt: skip
    return Result(
        config,
        tuple(
            Measured(arm=arm, **{**blank, **NUMBERS[arm.name], **(changes or {}).get(arm.name, {})})
            for arm in arms(config)
        ),
    )


def test_every_claim_holds_with_numbers_as_in_the_paper():
    claims = forged().claims
    assert [claim.holds for claim in claims] == [True] * 9
    for claim in claims:
        assert all((claim.source, claim.statement, claim.criterion, claim.measured))


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"FP16, scale 1": {"underflow": 0.0}}, {ZEROS}),
        ({"FP16, scale 1": {"underflow": 0.01}}, {ZEROS}),
        ({"FP32": {"underflow": 0.001}}, {ZEROS}),
        ({"FP16, scale 128": {"zero": 0.8}}, {SAVED}),
        ({"FP16, scale 8": {"zero": 0.95}}, {SAVED}),
        ({"FP16, scale 8": {"zero": math.nan}}, {SAVED}),
        ({"FP16, scale 1": {"accuracy": 0.96}}, {BEHIND}),
        ({"FP16, scale 1": {"accuracy": 0.98}}, {BEHIND}),
        ({"FP16, scale 128": {"accuracy": 0.9}}, {CONSTANT}),
        ({"FP16, dynamic": {"accuracy": 0.9}}, {DYNAMIC}),
        ({"FP16, dynamic": {"skipped": tuple(range(68))}}, {DYNAMIC}),
        ({"BF16": {"accuracy": 0.9}}, {RANGE}),
        ({"BF16": {"underflow": 1e-6}}, {RANGE}),
        ({"FP16, FP32 weights": {"accuracy": 0.8}}, {MASTER}),
        ({"FP16, FP32 weights": {"updates_lost": 0.1}}, {LOST}),
        ({"FP16 weights": {"updates_lost": 0.4}}, {LOST}),
        ({"FP16 weights": {"updates_lost": math.nan}}, {LOST}),
        ({"FP16 weights": {"accuracy": 0.95}}, {NARROW}),
        ({"FP16 weights": {"accuracy": 0.94}}, {NARROW}),
        ({"FP32 throughout": {"accuracy": 0.6}}, {NARROW}),
        ({"FP32": {"accuracy": math.nan}}, {BEHIND, CONSTANT, DYNAMIC, RANGE}),
    ],
    ids=str,
)  # fmt: skip
def test_a_claim_fails_when_its_numbers_say_so_and_no_other_does(changes: dict[str, dict[str, Any]], failing: set[int]):
    claims = forged(changes).claims
    assert {i for i, claim in enumerate(claims) if not claim.holds} == failing


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "BF16 weights"])
def test_a_claim_shows_the_numbers_that_it_was_judged_by(name: str):
    strange = {key: 0.12345 for key in NUMBERS[name] if key != "skipped"}
    before, after = forged().claims, forged({name: strange}).claims
    changed = [b.measured for a, b in zip(before, after, strict=True) if a.measured != b.measured]
    assert changed
    assert any("12.3%" in text for text in changed)


def test_the_margin_is_two_standard_errors_of_the_fp32_accuracy():
    margin = 2 * math.sqrt(0.97 * 0.03 / 359)
    for difference, holds in ((0.99 * margin, True), (1.01 * margin, False)):
        claims = forged({"FP16, dynamic": {"accuracy": 0.97 - difference}}).claims
        assert claims[DYNAMIC].holds is holds


def test_the_second_part_is_judged_by_the_accuracy_of_its_own_baseline():
    """Two standard errors of 60 % are 5.2 points, of 97 % only 1.8."""
    claims = forged({
        "FP32 throughout": {"accuracy": 0.6},
        "FP16, FP32 weights": {"accuracy": 0.57},
        "FP16 weights": {"accuracy": 0.3},
    }).claims  # fmt: skip
    assert claims[MASTER].holds
    assert claims[NARROW].holds


def test_nothing_is_claimed_before_every_arm_is_finished():
    whole = forged()
    for count in range(len(whole.measured)):
        assert Result(PAPER, whole.measured[:count]).claims == ()


def test_a_finished_arm_is_found_by_name():
    result = forged()
    found = result.find("BF16")
    assert found is not None
    assert found.arm.name == "BF16"
    assert result.find("FP8") is None


def test_a_file_of_ones_own_is_trained_on_in_place_of_the_digits(tmp_path: Path):
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    path = tmp_path / "own.npz"
    np.savez(path, x=(labels[:, None] + rng.random((60, 5))).astype(np.float32), y=labels)
    result = run(dataclasses.replace(SMALL, batch_size=32, data=str(path)))
    assert {m.tested for m in result.measured} == {12}
    assert {m.steps for m in result.measured} == {2}
    assert result.to_dict()["config"]["data"] == str(path)


def test_a_broken_file_is_an_error_before_anything_is_trained(tmp_path: Path):
    path = tmp_path / "broken.npz"
    path.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ValueError, match=r"broken\.npz.*not an \.npz archive"):
        Config(data=str(path))
    with pytest.raises(FileNotFoundError, match="no such file"):
        Config(data=str(tmp_path / "missing.npz"))
