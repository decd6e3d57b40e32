"""Matrix units as data."""

import dataclasses
import json
from typing import Any

import pytest

from mpsim import units
from mpsim.formats import FP16, FP32, get_format
from mpsim.units import UNITS, Family, MatrixUnit
from vectors import vectors


@pytest.mark.parametrize(
    ("device", "inputs", "out", "numbers"),
    [
        ("v100", "fp16", "fp32", (4, 4, 23, -131, 24, "toward-zero")),
        ("v100", "fp16", "fp16", (4, 4, 23, -19, 11, "nearest-even")),
        ("t4", "fp16", "fp32", (8, 8, 24, -132, 24, "toward-zero")),
        ("a100", "fp16", "fp32", (16, 8, 24, -132, 24, "toward-zero")),
        ("a100", "fp16", "fp16", (16, 8, 24, -20, 11, "nearest-even")),
        ("a100", "bf16", "fp32", (16, 8, 24, -132, 24, "toward-zero")),
        ("a100", "tf32", "fp32", (8, 4, 24, -132, 24, "toward-zero")),
        ("h100", "fp16", "fp32", (16, 16, 25, -133, 24, "toward-zero")),
        ("h100", "fp16", "fp16", (16, 16, 25, -21, 11, "nearest-even")),
    ],
)
def test_numbers_of_the_default_instructions(
    device: str, inputs: str, out: str, numbers: tuple[int, int, int, int, int, str]
) -> None:
    unit = units.get(device, inputs, out)
    found = unit.k, unit.block_length, unit.fraction_bits, unit.floor, unit.result_precision, unit.rounding
    assert found == numbers


@pytest.mark.parametrize("name", ["v100", "V100", "volta", "Volta", "sm_70", "SM-70", " v100 "])
def test_a_device_has_many_names(name: str) -> None:
    assert units.get(name) is units.get("v100")


@pytest.mark.parametrize("name", units.devices())
def test_every_listed_device_has_a_unit(name: str) -> None:
    assert isinstance(units.get(name), MatrixUnit)


def test_formats_come_as_objects_names_and_pairs() -> None:
    assert units.get("a100", inputs=FP16, out=FP32) is units.get("a100", inputs=("half", "float16"), out="float32")


def test_an_instruction_is_chosen_by_name() -> None:
    assert units.get("h100", instruction="MMA.m16n8k8").block_length == 8
    assert units.get("h100", instruction="wgmma.m64n8k16").evidence == "B"
    with pytest.raises(
        ValueError, match=r"no instruction 'mma\.m8n8k4' for fp16 -> fp32; it has mma\.m16n8k16, mma\.m"
    ):
        units.get("a100", instruction="mma.m8n8k4")


def test_a_row_is_returned_as_it_is() -> None:
    unit = dataclasses.replace(units.get("a100"), fraction_bits=20)
    assert units.get(unit) is unit
    assert units.get(unit, inputs="fp16", out="fp32") is unit
    with pytest.raises(ValueError, match=r"inputs is bf16, but ampere mma\.m16n8k16"):
        units.get(unit, inputs="bf16")
    with pytest.raises(ValueError, match="out is fp16, but ampere"):
        units.get(unit, out="fp16")


def test_unknown_names_list_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown unit 'v10'; nearest: v100"):
        units.get("v10")
    with pytest.raises(ValueError, match=r"unknown unit 'zzz'; nearest: volta, v100"):
        units.get("zzz")
    with pytest.raises(TypeError, match="unit is 7"):
        units.get(7)  # type: ignore[arg-type]


def test_missing_formats_list_what_there_is() -> None:
    with pytest.raises(
        ValueError, match="v100 has no instruction for inputs bf16 and out fp32; it has fp16 -> fp32, fp16"
    ):
        units.get("v100", inputs="bf16")
    with pytest.raises(ValueError, match="for inputs fp16 x bf16 and out fp32"):
        units.get("a100", inputs=("fp16", "bf16"))


@pytest.mark.parametrize(
    "change", [{"block_length": 0}, {"fraction_bits": 47}, {"rounding": "up"}, {"result_precision": 25}]
)
def test_impossible_numbers_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"ampere mma\.m16n8k16"):
        dataclasses.replace(units.get("a100"), **change)  # type: ignore[arg-type]


def test_the_alignment_floor_follows_the_result_unless_given() -> None:
    unit = units.get("a100", out="fp16")
    assert unit.floor == FP16.emin - 6
    assert dataclasses.replace(unit, alignment_floor=-30).floor == -30


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_rows_are_consistent(unit: MatrixUnit) -> None:
    assert unit.out in unit.accumulators
    assert unit.source
    assert unit.evidence in ("E" if unit.architecture in ("ideal", "exact") else "ABCDE")
    assert unit.block_length == 0 or unit.k % unit.block_length == 0
    if unit.family in (Family.FUSED, Family.SCALED, Family.GROUPED):
        full = get_format(unit.out).p
        assert unit.result_precision == (14 if unit.fraction_bits == 13 and unit.out == "fp32" else full)


def test_every_row_is_described_once() -> None:
    assert len({str(unit) for unit in UNITS}) == len(UNITS)


def parameters() -> list[dict[str, Any]]:
    """Return the published table of units, beside the recorded vectors."""
    path = vectors("matrix-units").parents[1] / "specs" / "matrix-units-params.json"
    if not path.exists():
        pytest.skip(f"no table of parameters at {path}")
    return list(json.loads(path.read_text())["rows"])


CONVERSIONS = {"RZ32": (24, "toward-zero"), "RZ13": (14, "toward-zero"), "RNE16": (11, "nearest-even")}


def test_every_row_of_the_published_table_is_here() -> None:
    names = {"f16": "fp16", "f32": "fp32", "f64": "fp64", "xf32": "tf32", "ue8m0": "e8m0"}
    seen = 0
    for row in parameters():
        architecture = {"x86": "avx512-bf16", "Arm": "arm-bf16"}.get(row["gpu"], row["gpu"].lower().replace(" ", "-"))
        if row["family"] == "AMX":
            architecture = "amx"
        if row["family"] == "BFDOT-EBF1":
            architecture = "arm-ebf16"
        out = names.get(row["d"], row["d"])
        scale = names.get(row.get("scale", ""), row.get("scale", ""))
        for inputs in row["ab"]:
            fitting = [
                unit
                for unit in UNITS
                if (unit.architecture, unit.a, unit.out) == (architecture, names.get(inputs, inputs), out)
                and unit.scale == scale
                and unit.scale_block == row.get("block", 0)
                and (row["k"] in (None, unit.k) and row["L"] in (None, unit.block_length))
                and (row["F"] in (None, unit.fraction_bits))
                and (
                    row["conv"] not in CONVERSIONS or (unit.result_precision, unit.rounding) == CONVERSIONS[row["conv"]]
                )
                and (row["e_floor"] in (None, unit.floor))
                and row["grade"] <= unit.evidence
            ]
            assert fitting, row
            seen += 1
    assert seen > 100


def test_native_is_labelled() -> None:
    unit = units.get("native")
    assert (unit.family, unit.a, unit.out) == (Family.NATIVE, "fp32", "fp32")
    assert "BLAS" in unit.source
    assert units.get("Native", inputs="fp16", out="bf16").out == "bf16"
