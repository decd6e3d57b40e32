import dataclasses
from typing import Any

import numpy as np
import pytest

from mpsim import units
from mpsim.encoding import encode
from mpsim.hardware import Outcome, RecordedSet, Recording, replay
from mpsim.hardware.replaying import by_row
from mpsim.matmul import matmul, matmul_codes

Array = np.ndarray[Any, Any]


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(-64, 64, shape) / 16


def tiles(flip: int = 0, **facts: Any) -> Recording:
    a, b = encode(numbers(1, 2, 3, 8), "fp16"), encode(numbers(2, 2, 8, 5), "fp16")
    d = matmul_codes(a, b, unit="v100")
    d[1, 2, 3] ^= flip
    told = {"unit": "v100", "inputs": "fp16", "out": "fp32", **facts}
    part = RecordedSet(name="tiles", kind="instruction", arrays={"a": a, "b": b, "d": d}, facts=told)
    return Recording(device="d", sets=(part,))


def gemm(flip: int = 0) -> Recording:
    a, b = numbers(3, 3, 256), numbers(4, 256, 2)
    d = encode(matmul(a, b, unit="h100", inputs="e4m3", promotion=128, scale_a=2.0, scale_b=0.5, result="bf16"), "bf16")
    d[0, 1] ^= flip
    parts = {"a": encode(a, "e4m3"), "b": encode(b, "e4m3"), "d": d}
    parts |= {"scale_a": np.array(2.0, np.float32), "scale_b": np.array(0.5, np.float32)}
    facts = {"unit": "h100", "inputs": "e4m3", "out": "fp32", "result": "bf16", "options": {"schedule": "fp8-slow"}}
    return Recording(device="d", sets=(RecordedSet(name="gemm", kind="gemm", arrays=parts, facts=facts),))


def conversion(z: int, flags: int, **facts: Any) -> Recording:
    parts = {
        "x": np.array([0x387FF002], np.uint32),
        "z": np.array([z], np.uint16),
        "flags": np.array([flags], np.uint8),
    }
    told = {"source": "fp32", "target": "fp16", **facts}
    return Recording(device="d", sets=(RecordedSet(name="cvt", kind="conversion", arrays=parts, facts=told),))


def test_equal_bits_are_equal() -> None:
    for recording, results in ((tiles(), 30), (gemm(), 6), (conversion(0x0400, 1), 1)):
        (outcome,) = replay(recording)
        assert (outcome.results, outcome.different, outcome.first, outcome.skipped) == (results, 0, "", "")


def test_one_flipped_bit_of_an_instruction_is_found_and_explained() -> None:
    (outcome,) = replay(tiles(flip=1))
    assert (outcome.results, outcome.different) == (30, 1)
    assert outcome.first.startswith("tiles, element [1, 2, 3], K = 8\nrecorded  0x")
    assert "block of 4 products, k = 4 to 7" in outcome.first


def test_one_flipped_bit_of_a_product_is_found() -> None:
    (outcome,) = replay(gemm(flip=0x8000))
    assert (outcome.results, outcome.different) == (6, 1)
    assert "gemm, element [0, 1], K = 256" in outcome.first
    assert "fp8-slow" in outcome.row


@pytest.mark.parametrize(
    ("factor", "result", "told"),
    [(2.0, "fp32", "times scale_a 2.0"), (1.0, "bf16", "rounded from fp32 to bf16"), (1.0, "fp32", "block of")],
)
def test_steps_are_shown_where_they_lead_to_the_result(factor: float, result: str, told: str) -> None:
    """A factor of 1 changes nothing."""
    a, b = numbers(3, 2, 8), numbers(4, 8, 2)
    d = encode(matmul(a, b, unit="h100", inputs="e4m3", scale_a=factor, result=result), result)
    d[0, 0] ^= 1
    parts = {"a": encode(a, "e4m3"), "b": encode(b, "e4m3"), "d": d, "scale_a": np.array(factor, np.float32)}
    facts = {"unit": "h100", "inputs": "e4m3", "out": "fp32", "result": result}
    part = RecordedSet(name="gemm", kind="gemm", arrays=parts, facts=facts)
    (outcome,) = replay(Recording(device="d", sets=(part,)))
    assert outcome.different == 1
    assert told in outcome.first
    assert ("block of" in outcome.first) == (told == "block of")


@pytest.mark.parametrize(("zero", "exact"), [(True, "exact     1"), (False, "exact     1.0000000000000000000…")])
def test_operands_that_are_read_as_zero_are_explained_as_zero(zero: bool, exact: str) -> None:
    parts = {name: np.array([code], np.uint32) for name, code in (("a", 0x3F800000), ("b", 1), ("z", 0))}
    facts = {"operation": "add", "format": "fp32", "options": {"subnormal_inputs_as_zero": zero}}
    part = RecordedSet(name="add", kind="arithmetic", arrays=parts, facts=facts)
    assert exact in replay(Recording(device="d", sets=(part,)))[0].first.splitlines()


def test_a_wrong_code_or_flag_of_a_conversion_is_found_and_explained() -> None:
    """Tininess is found after rounding: the smallest normal number, inexact, no underflow."""
    for z, flags in ((0x03FF, 1), (0x0400, 3), (0x0400, 33)):
        (outcome,) = replay(conversion(z, flags))
        assert outcome.different == 1
    assert outcome.first.splitlines() == [
        "cvt",
        "a         0x387ff002 = 6.1020262364763767e-05",
        "recorded  0x0400 = 6.103515625e-05  raises inexact, denormal operand",
        "emulated  0x0400 = 6.103515625e-05  raises inexact",
        "exact     0.000061020262364763766527…",
        "nearest   0x0400 = 0.00006103515625",
        "above     0x0401 = 6.109476089477539e-05",
        "below     0x03ff = 6.097555160522461e-05",
    ]


def test_denormal_operands_raise_a_flag_where_the_set_says_so() -> None:
    """x86's flag: a subnormal operand, no NaN beside it, nothing invalid; not under DAZ."""
    one, tiny, nan = 0x3F800000, 0x00000001, 0x7FC00000
    parts = {name: np.array(codes, np.uint32) for name, codes in {
        "a": [tiny, one, tiny], "b": [one, one, nan], "z": [one, 0x40000000, nan]}.items()}  # fmt: skip
    parts["flags"] = np.array([33, 0, 0], np.uint8)
    facts = {"operation": "add", "format": "fp32", "denormal": True, "options": {"nan": "x86"}}
    part = RecordedSet(name="add", kind="arithmetic", arrays=parts, facts=facts)
    assert replay(Recording(device="d", sets=(part,)))[0].different == 0
    daz = {**facts, "options": {"nan": "x86", "subnormal_inputs_as_zero": True}}
    part = RecordedSet(name="add", kind="arithmetic", arrays=parts, facts=daz)
    assert replay(Recording(device="d", sets=(part,)))[0].different == 1


def test_any_nan_stands_for_any_other_where_the_set_says_so() -> None:
    parts = {"x": np.array([0x7FC00000], np.uint32), "z": np.array([0xFE55], np.uint16)}
    for rule, different in (("bits", 1), ("any", 0)):
        facts = {"source": "fp32", "target": "fp16", "nan": rule}
        part = RecordedSet(name="n", kind="conversion", arrays=parts, facts=facts)
        assert replay(Recording(device="d", sets=(part,)))[0].different == different
    part = RecordedSet(name="n", kind="conversion", arrays=parts, facts={**facts, "nan": "some"})
    with pytest.raises(ValueError, match="n: nan is 'some'; it must be 'bits' or 'any'"):
        replay(Recording(device="d", sets=(part,)))


def test_a_product_of_unknown_make_is_skipped_until_a_unit_is_named() -> None:
    recording = tiles(unit=None)
    (outcome,) = replay(recording)
    assert (outcome.results, outcome.skipped) == (0, "its unit is unknown: name one")
    assert replay(recording, "v100")[0].different == 0
    what_if = dataclasses.replace(units.get("v100"), fraction_bits=3)
    assert replay(recording, what_if)[0].different > 0


def test_products_that_a_named_unit_does_not_multiply_are_skipped() -> None:
    recording = tiles(unit=None)
    (outcome,) = replay(recording, "avx512-bf16")
    assert (outcome.row, outcome.results) == ("tiles (fp16)", 0)
    assert "avx512-bf16 has no instruction for inputs fp16 and out fp32; it has bf16 -> fp32" in outcome.skipped
    with pytest.raises(ValueError, match="unknown unit 'v1000'"):
        replay(recording, "v1000")
    with pytest.raises(ValueError, match="avx512-bf16 has no instruction for inputs fp16"):
        replay(tiles(unit="avx512-bf16"))


def test_an_unknown_operation_is_refused() -> None:
    parts = {"a": np.zeros(1, np.uint32), "z": np.zeros(1, np.uint32)}
    part = RecordedSet(name="x", kind="arithmetic", arrays=parts, facts={"operation": "__class__", "format": "fp32"})
    with pytest.raises(ValueError, match="operation is '__class__'; it must be add, sub"):
        replay(Recording(device="d", sets=(part,)))


def test_outcomes_of_one_row_are_added() -> None:
    outcomes = [Outcome(row="r", results=2, different=1, first="f"), Outcome(row="s", skipped="no")]
    outcomes += [Outcome(row="r", results=3, different=1, first="g")]
    assert by_row(outcomes) == [Outcome(row="r", results=5, different=2, first="f"), Outcome(row="s", skipped="no")]
