"""What a real processor answered, replayed."""

import dataclasses
from pathlib import Path

import numba
import pytest

from mpsim.cli import main
from mpsim.hardware import Recording, read, replay

GOLDEN = Path(__file__).parents[1] / "golden"


def test_a_recorded_zen3_is_replayed_bit_for_bit() -> None:
    recording = read(GOLDEN / "x86_amd_zen3.npz")
    assert recording.device.startswith("AMD EPYC, family model stepping 25 1 1")
    every = 20 if numba.config.DISABLE_JIT else 1
    outcomes = replay(Recording(device=recording.device, sets=recording.sets[::every]))
    assert [o.first for o in outcomes if o.different] == []
    if every == 1:
        assert {o.row: o.results for o in outcomes} == {
            "vcvtps2ph": 7136,
            "vcvtph2ps": 3336,
            **dict.fromkeys(("addss", "subss", "mulss", "divss", "sqrtss", "vfmadd231ss"), 3200),
        }


def test_another_rounding_would_differ() -> None:
    """The recording tells settings apart: rounded down instead of up, every instruction has other results."""
    recording = read(GOLDEN / "x86_amd_zen3.npz")
    for part in recording.sets:
        options = part.facts["options"]
        if options.get("rounding") == "up":
            wrong = {**part.facts, "options": {**options, "rounding": "down"}}
            changed = Recording(device="d", sets=(dataclasses.replace(part, facts=wrong),))
            assert replay(changed)[0].different > 0, part.name


def test_flushing_is_seen_in_every_operation_that_can_flush() -> None:
    recording = read(GOLDEN / "x86_amd_zen3.npz")
    for part in recording.sets[:: 20 if numba.config.DISABLE_JIT else 1]:
        options = part.facts["options"]
        if options.get("flush_subnormals"):
            kept = {**part.facts, "options": {**options, "flush_subnormals": False}}
            (outcome,) = replay(Recording(device="d", sets=(dataclasses.replace(part, facts=kept),)))
            assert (outcome.different > 0) == (outcome.row != "sqrtss"), part.name


def test_tininess_before_rounding_would_differ() -> None:
    """x86 looks for underflow after rounding; a sum, a quotient or a root is never where that makes a difference."""
    recording = read(GOLDEN / "x86_amd_zen3.npz")
    for part in recording.sets[:: 20 if numba.config.DISABLE_JIT else 1]:
        changed = {**part.facts, "options": {**part.facts["options"], "tininess": "before"}}
        (outcome,) = replay(Recording(device="d", sets=(dataclasses.replace(part, facts=changed),)))
        told_apart = outcome.row in ("vcvtps2ph", "mulss", "vfmadd231ss")
        assert outcome.different == 0 or told_apart, part.name
        if told_apart and part.facts["options"]["rounding"] == "nearest-even":
            assert outcome.different > 0, part.name


def test_every_golden_file_says_where_it_comes_from() -> None:
    text = (GOLDEN / "README.md").read_text(encoding="utf-8")
    for path in GOLDEN.iterdir():
        assert path.name == "README.md" or f"## {path.name}" in text


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="plain Python takes minutes")
def test_the_command_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(GOLDEN / "x86_amd_zen3.npz")]) == 0
    assert "29,672 results compared, 0 differ" in capsys.readouterr().out
