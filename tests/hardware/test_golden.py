"""What a real processor answered, replayed."""

import dataclasses
from pathlib import Path

import numba
import numpy as np
import pytest

from mpsim import decode, encode
from mpsim.cli import main
from mpsim.hardware import Recording, read, replay

GOLDEN = Path(__file__).parents[1] / "golden"

F16C_AND_FLOAT32 = {
    "vcvtps2ph": 7136,
    "vcvtph2ps": 3336,
    **dict.fromkeys(("addss", "subss", "mulss", "divss", "sqrtss", "vfmadd231ss"), 3200),
}
AVX512_BF16 = {"vcvtneps2bf16": 1784, "avx512-bf16 vdpbf16ps (bf16 x bf16 -> fp32)": 1024}
PROCESSORS = {
    "x86_amd_zen3.npz": ("25 1 1", F16C_AND_FLOAT32),
    "x86_amd_zen4.npz": ("25 17 1", F16C_AND_FLOAT32 | AVX512_BF16),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_recorded_processor_is_replayed_bit_for_bit(name: str) -> None:
    stepping, results = PROCESSORS[name]
    recording = read(GOLDEN / name)
    assert recording.device.startswith(f"AMD EPYC, family model stepping {stepping}")
    every = 20 if numba.config.DISABLE_JIT else 1
    outcomes = replay(Recording(device=recording.device, sets=recording.sets[::every]))
    assert [o.first for o in outcomes if o.different] == []
    if every == 1:
        assert {o.row: o.results for o in outcomes} == results


def test_two_generations_answer_alike() -> None:
    """What Zen 3 executed, Zen 4 answered with the same results and the same flags."""
    later = {part.name: part for part in read(GOLDEN / "x86_amd_zen4.npz").sets}
    for part in read(GOLDEN / "x86_amd_zen3.npz").sets:
        for key, array in part.arrays.items():
            assert np.array_equal(array, later[part.name].arrays[key]), (part.name, key)


def test_a_bf16_conversion_that_keeps_subnormals_would_differ() -> None:
    """VCVTNEPS2BF16 reads subnormal float32 as zero, whatever MXCSR says: the ordinary conversion is another one."""
    sets = [p for p in read(GOLDEN / "x86_amd_zen4.npz").sets if p.facts["instruction"] == "vcvtneps2bf16"]
    assert len(sets) == 4
    for part in sets:
        x, z = part.arrays["x"], part.arrays["z"]
        differ = (encode(decode(x, "fp32"), "bf16") != z) & (x & 0x7FFFFFFF <= 0x7F800000)
        assert differ.any()
        assert (x[differ] & 0x7F800000 == 0).all()


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="a unit in plain Python takes minutes")
@pytest.mark.parametrize("unit", ["arm-bf16", "arm-ebf16", "amx"])
def test_another_unit_s_dot_products_would_differ(unit: str) -> None:
    """The recorded VDPBF16PS tells its own order and flushing from those of Arm and of AMX."""
    recording = read(GOLDEN / "x86_amd_zen4.npz")
    dots = tuple(part for part in recording.sets if part.name.startswith("vdpbf16ps"))
    outcomes = replay(Recording(device=recording.device, sets=dots), unit=unit)
    assert sum(o.results for o in outcomes) == 1024
    assert sum(o.different for o in outcomes) > 0


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
