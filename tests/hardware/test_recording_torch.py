import dataclasses
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import units
from mpsim.cli import main
from mpsim.encoding import decode
from mpsim.formats import get_format
from mpsim.hardware import read, record_torch, replay
from mpsim.hardware.fixed_designs import LENGTH, fixed_designs
from mpsim.hardware.recording_mma import INSTRUCTIONS, Mma, packed, ptx, unpacked
from mpsim.hardware.recordings import unit_of
from mpsim.matmul import matmul_codes

Array = np.ndarray[Any, Any]

compiled = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="plain Python takes minutes")


def dots(unit: Any, a: Array, b: Array) -> Array:
    return matmul_codes(a[:, None, :], b[:, :, None], unit=unit)[:, 0, 0]


# Inputs that separate parameters.


@compiled
@pytest.mark.parametrize("inputs", ["fp16", "bf16"])
def test_designs_tell_the_generations_apart(inputs: str) -> None:
    fmt = get_format(inputs)
    a, b = fixed_designs(fmt, fmt)
    names = ["v100"] * (inputs == "fp16") + ["a100", "h100", "mi100", "mi250x", "mi300x"]
    results = {name: dots(units.get(name, inputs, "fp32"), a, b) for name in names}
    for i, one in enumerate(names):
        for other in names[:i]:
            assert (results[one] != results[other]).sum() > 3, (one, other)


@compiled
@pytest.mark.parametrize(
    "change",
    [
        {"fraction_bits": 23},
        {"fraction_bits": 25},
        {"block_length": 4},
        {"block_length": 16},
        {"rounding": "nearest-even"},
        {"result_precision": 22},
    ],
    ids=str,
)
def test_designs_see_every_parameter(change: dict[str, Any]) -> None:
    unit = units.get("a100", "bf16")
    fmt = get_format("bf16")
    a, b = fixed_designs(fmt, fmt)
    assert (dots(unit, a, b) != dots(dataclasses.replace(unit, **change), a, b)).any()


@compiled
def test_designs_see_the_alignment_floor_of_bf16() -> None:
    unit, fmt = units.get("a100", "bf16"), get_format("bf16")
    a, b = fixed_designs(fmt, fmt)
    for floor in (-131, -133):
        assert (dots(unit, a, b) != dots(dataclasses.replace(unit, alignment_floor=floor), a, b)).any()


@pytest.mark.parametrize("inputs", ["fp16", "bf16", "tf32", "fp32", "e4m3", "e5m2", "e4m3fnuz"])
def test_every_format_has_designs(inputs: str) -> None:
    fmt = get_format(inputs)
    a, b = fixed_designs(fmt, fmt)
    assert a.shape == b.shape
    assert a.shape[1] == LENGTH
    assert len(np.unique(np.concatenate([a, b], axis=1), axis=0)) > 150
    values = decode(a, fmt)
    assert (np.isnan(values).any(), np.isinf(values).any()) == (True, fmt.inf_code is not None)


# Single instructions: what can be checked without a card.


@pytest.mark.parametrize("mma", INSTRUCTIONS, ids=lambda x: f"{x.name}-{x.inputs}")
def test_registers_hold_every_element_once(mma: Mma) -> None:
    width = 32 // mma.elements
    a = np.arange(16 * mma.k).reshape(1, 16, mma.k) % (1 << min(width, 31))
    b = np.arange(mma.k * 8).reshape(1, mma.k, 8) % (1 << min(width, 31))
    c = np.arange(128, dtype=np.uint32).reshape(1, 16, 8)
    in_a, in_b, in_c = packed(mma, a, b, c)
    assert (in_a.shape, in_b.shape, in_c.shape) == ((1, 32, 4), (1, 32, 2), (1, 32, 4))
    for registers, matrix in ((in_a, a), (in_b, b)):
        parts = registers.reshape(-1, 1) >> (np.arange(mma.elements, dtype=np.uint32) * np.uint32(width))
        parts &= np.uint32((1 << width) - 1) if width < 32 else np.uint32(0xFFFFFFFF)
        assert sorted(parts.ravel().tolist()) == sorted(matrix.ravel().tolist())
    assert_same_bits(unpacked(mma, in_c), c)


def test_registers_are_as_the_isa_lays_them_out() -> None:
    """PTX ISA 8.4, 9.7.13.4.8: lane 5 (group 1, member 1) of m16n8k16 holds A[1, 2..3] in its first register."""
    a, b = np.zeros((1, 16, 16), np.uint16), np.zeros((1, 16, 8), np.uint16)
    a[0, 1, 2:4], a[0, 9, 2:4], a[0, 1, 10:12], a[0, 9, 10:12] = (1, 2), (3, 4), (5, 6), (7, 8)
    b[0, 2:4, 1], b[0, 10:12, 1] = (1, 2), (3, 4)
    c = np.arange(128, dtype=np.uint32).reshape(1, 16, 8)
    in_a, in_b, in_c = packed(INSTRUCTIONS[0], a, b, c)
    assert in_a[0, 5].tolist() == [0x20001, 0x40003, 0x60005, 0x80007]
    assert in_b[0, 5].tolist() == [0x20001, 0x40003]
    assert in_c[0, 5].tolist() == [8 + 2, 8 + 3, 72 + 2, 72 + 3]


@pytest.mark.parametrize("mma", INSTRUCTIONS, ids=lambda x: f"{x.name}-{x.inputs}")
def test_the_kernel_has_one_instruction_and_a_row_of_the_catalogue(mma: Mma) -> None:
    text = ptx(mma)
    assert text.count("mma.sync.aligned") == 1
    assert f"m16n8k{mma.k}.row.col.f32.{mma.ptx_name}.{mma.ptx_name}.f32" in text
    assert units.get("l40s", mma.inputs, "fp32", mma.name).k == mma.k


@pytest.mark.parametrize(
    ("card", "unit"),
    [
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA H200", "h200"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A2", "a2"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA L40S", "l40s"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA A2000", None),
        ("NVIDIA A10", None),
        ("NVIDIA GeForce GTX 1080", None),
        ("AMD EPYC", None),
    ],
)
def test_cards_are_known_by_name(card: str, unit: str | None) -> None:
    assert unit_of(card) == unit


# With torch.


def test_without_torch_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["record", "--device", "cpu", "-o", str(tmp_path / "r.npz")]) == 2
    assert "torch is not installed" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_mistakes_of_record_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "there.npz"
    there.write_text("")
    for arguments in (
        ["-o", str(there)],
        ["-o", str(tmp_path / "no" / "r.npz")],
        ["-o", str(tmp_path / "r.npz"), "--inputs", "fp16"],
        ["-o", str(tmp_path / "r.npz"), "--device", "cpu", "--inputs", "fp17"],
    ):
        assert main(["record", *arguments]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there.npz"]


def test_torch_on_this_processor_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "cpu.npz"
    assert main(["record", "--device", "cpu", "--inputs", "fp16,tf32,e4m3", "-o", str(path)]) == 0
    assert "not recorded: mm tf32 fp32: torch has no TF32 on CPUs" in capsys.readouterr().out
    recording = read(path)
    assert recording.software["torch"] == torch.__version__
    assert {part.facts["function"].split()[0] for part in recording.sets} >= {"mm"}
    assert all(o.skipped for o in replay(recording))
    part = next(part for part in recording.sets if part.name == "mm fp16 fp16/normal")
    a, b = (decode(part.arrays[name], "fp16")[0] for name in "ab")
    exact = a.astype(np.float64) @ b.astype(np.float64)
    # 512 products of normal numbers: fp32 sums err by less than 512 * 2^-24 of the sum of magnitudes, fp16 by 2^-11.
    bound = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64) * 2.0**-15 + np.abs(exact) * 2.0**-11
    assert (np.abs(decode(part.results, "fp16")[0] - exact) <= bound).all()
    again, _ = record_torch("cpu", ["fp16"])
    assert_same_bits(again.sets[0].results, recording.sets[0].results)
