"""Arithmetic as Berkeley TestFloat 3e has it, and as an x86 processor did it: results, flags and NaNs."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import arithmetic
from reference.samples import JIT
from vectors import vectors

MODES = ("nearest-even", "toward-zero", "down", "up", "nearest-away", "to-odd")
"""In the order of the vectors."""
TININESS = ("after", "before")
NAMES = {"f16": "fp16", "f32": "fp32", "f64": "fp64", "bf16": "bf16"}
OPERATIONS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "div",
    "sqrt": "sqrt",
    "mulAdd": "fma",
    "rem": "rem",
}
ARITHMETIC = [*(f"f16_{name}" for name in OPERATIONS), *(f"f32_{name}" for name in OPERATIONS if name != "rem")]
CONVERSIONS = ["f32_to_f16", "f64_to_f16", "f64_to_f32", "f32_to_bf16", "f16_to_f32", "f16_to_f64", "bf16_to_f32"]
COMPARISONS = {
    "eq": ("eq", False),
    "eq_signaling": ("eq", True),
    "le": ("le", True),
    "le_quiet": ("le", False),
    "lt": ("lt", True),
    "lt_quiet": ("lt", False),
}


def load(*parts: str) -> dict[str, np.ndarray]:
    """Return recorded arrays, whose last axis is the case; without the compiler every 50th case."""
    data = np.load(vectors(*parts))
    return {name: data[name] if JIT else data[name][..., ::50] for name in data.files}


def recorded(function: str) -> dict[str, np.ndarray]:
    return load("testfloat", f"{function}.npz")


def operands(data: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [data[name] for name in "abc" if name in data]


def chosen(array: np.ndarray, *indices: int) -> np.ndarray:
    """Return the part of a recorded array, whose leading axes are left out where they cannot matter."""
    for index in indices[: array.ndim - 1]:
        array = array[index]
    return array


@pytest.mark.parametrize("mode", range(6), ids=MODES)
@pytest.mark.parametrize("function", ARITHMETIC)
def test_operations_give_testfloats_codes_and_flags(function: str, mode: int):
    data = recorded(function)
    source, name = function.split("_")
    operation: Callable[..., Any] = getattr(arithmetic, OPERATIONS[name])
    shown = np.array([" ".join(map(hex, codes)) for codes in zip(*operands(data), strict=True)])
    assert shown.size > (9000 if JIT else 180)
    for index, tininess in enumerate(TININESS):
        how = {"rounding": MODES[mode], "tininess": tininess, "nan": "softfloat"}
        got, flags = operation(*operands(data), NAMES[source], codes=True, return_flags=True, **how)
        assert_same_bits(got, chosen(data["z"], mode), shown)
        assert_same_bits(flags, chosen(data["flags"], mode, index), shown)


def test_before_and_after_rounding_are_told_apart():
    """The recorded flags differ between the settings, so that a wrong one would be seen."""
    flags = recorded("f16_mul")["flags"]
    assert (flags[:, 0] != flags[:, 1]).sum() > (100 if JIT else 0)


@pytest.mark.parametrize("mode", range(6), ids=MODES)
@pytest.mark.parametrize("function", CONVERSIONS)
def test_conversions_give_testfloats_codes_and_flags(function: str, mode: int):
    data = recorded(function)
    source, target = function.split("_to_")
    want, x = chosen(data["z"], mode), data["a"]
    for index, tininess in enumerate(TININESS):
        how = {"rounding": MODES[mode], "tininess": tininess, "nan": "softfloat"}
        got, flags = arithmetic.convert(x, NAMES[source], NAMES[target], codes=True, return_flags=True, **how)
        assert_same_bits(flags, chosen(data["flags"], mode, index), x)
        if "bf16" in (source, target):
            assert_same_bits(softfloats_payload(got, x, source, target), want, x)
        else:
            assert_same_bits(got, want, x)


def softfloats_payload(got: np.ndarray, x: np.ndarray, source: str, target: str) -> np.ndarray:
    """Return results with NaN payloads as SoftFloat aligns them to and from bfloat16: one bit too far to the right.

    Processors keep the payload's highest bits in their places (``test_bfloat16_keeps_the_payload_as_x86_does``).
    """
    x = x.astype(np.uint32)
    if target == "bf16":
        nan = (x & 0x7FFFFFFF) > 0x7F800000
        theirs = (x >> 16 & 0x8000) | 0x7FC0 | ((x & 0x7FFFFF) >> 15)
    else:
        nan = (x & 0x7FFF) > 0x7F80
        theirs = (x & 0x8000) << 16 | 0x7FC00000 | (x & 0x7F) << 15
    return np.where(nan, theirs.astype(got.dtype), got)


def test_bfloat16_keeps_the_payload_as_x86_does():
    data = load("hardware", "x86", "vcvtneps2bf16.npz")
    x, want = data["x"], data["z"]
    nan = (x & 0x7FFFFFFF) > 0x7F800000
    assert nan.sum() > (50 if JIT else 0)
    got = arithmetic.convert(x, "fp32", "bf16", codes=True, nan="x86", subnormal_inputs_as_zero=True)
    assert_same_bits(got, want, x)


@pytest.mark.parametrize("mode", range(6), ids=MODES)
def test_integers_give_testfloats_codes_and_flags(mode: int):
    data = recorded("i32_to_f16")
    x = data["a"].view(np.int32)
    got, flags = arithmetic.from_integer(x, "fp16", rounding=MODES[mode], codes=True, return_flags=True)
    assert_same_bits(got, data["z"][mode], x)
    assert_same_bits(flags, data["flags"][mode], x)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("mode", range(6), ids=MODES)
def test_rounding_to_integers_gives_testfloats_codes_and_flags(mode: int, exact: bool):
    how = {"rounding": MODES[mode], "exact": exact, "codes": True, "return_flags": True}
    data = recorded("f16_to_i32")
    got, flags = arithmetic.to_integer(data["a"], "fp16", "int32", **how)
    assert_same_bits(got.view(np.uint32), data["z"][mode], data["a"])
    assert_same_bits(flags, data["flags"][mode, int(exact)], data["a"])
    data = recorded("f16_roundToInt")
    got, flags = arithmetic.round_to_integral(data["a"], "fp16", nan="softfloat", **how)
    assert_same_bits(got, data["z"][mode], data["a"])
    assert_same_bits(flags, data["flags"][mode, int(exact)], data["a"])


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_give_testfloats_answers_and_flags(name: str):
    data = recorded(f"f16_{name}")
    compare, signalling = COMPARISONS[name]
    how = {"signalling": signalling, "codes": True, "return_flags": True}
    got, flags = getattr(arithmetic, compare)(data["a"], data["b"], "fp16", **how)
    assert_same_bits(got.astype(np.uint8), data["z"].astype(np.uint8))
    assert_same_bits(flags, data["flags"])


# An x86 processor. Its flag for subnormal operands (DE) has no counterpart in IEEE 754 and is left out.

X86_MODES = ("nearest-even", "down", "up", "toward-zero")
X86_OPERATIONS = {
    "addss": ("add", "ab"),
    "subss": ("sub", "ab"),
    "mulss": ("mul", "ab"),
    "divss": ("div", "ab"),
    "sqrtss": ("sqrt", "a"),
    "fmass": ("fma", "abc"),
}
X86_FLAGS = {1: 16, 4: 8, 8: 4, 16: 2, 32: 1}
"""Bits of MXCSR, and the flags that they are here."""


def flags_of(register: np.ndarray) -> np.ndarray:
    return sum(((register & bit) != 0).astype(np.uint8) * np.uint8(flag) for bit, flag in X86_FLAGS.items())


@pytest.mark.parametrize("mode", range(4), ids=X86_MODES)
@pytest.mark.parametrize("instruction", X86_OPERATIONS)
def test_operations_give_the_processors_codes_and_flags(instruction: str, mode: int):
    data = load("hardware", "x86", "x86_f32.npz")
    name, arguments = X86_OPERATIONS[instruction]
    for daz, ftz in itertools.product((0, 1), repeat=2):
        how = {"subnormal_inputs_as_zero": bool(daz), "flush_subnormals": bool(ftz), "rounding": X86_MODES[mode]}
        inputs = [data[argument] for argument in arguments]
        got, flags = getattr(arithmetic, name)(*inputs, "fp32", nan="x86", codes=True, return_flags=True, **how)
        shown = np.array([" ".join(map(hex, codes)) for codes in zip(*inputs, strict=True)])
        assert_same_bits(got, data[f"{instruction}_z"][mode, daz + 2 * ftz], shown)
        assert_same_bits(flags, flags_of(data[f"{instruction}_mxcsr"][mode, daz + 2 * ftz]), shown)


@pytest.mark.parametrize("mode", range(4), ids=X86_MODES)
def test_narrowing_gives_the_processors_codes_and_flags(mode: int):
    data = load("hardware", "x86", "vcvtps2ph.npz")
    for daz in (0, 1):
        how = {"rounding": X86_MODES[mode], "nan": "x86", "subnormal_inputs_as_zero": bool(daz)}
        got, flags = arithmetic.convert(data["x"], "fp32", "fp16", codes=True, return_flags=True, **how)
        assert_same_bits(got, data["z"][mode, daz], data["x"])
        assert_same_bits(flags, flags_of(data["mxcsr"][mode, daz]), data["x"])


def test_widening_gives_the_processors_codes_and_flags():
    data = load("hardware", "x86", "vcvtph2ps.npz")
    got, flags = arithmetic.convert(data["x"], "fp16", "fp32", codes=True, return_flags=True, nan="x86")
    assert_same_bits(got, data["z"], data["x"])
    assert_same_bits(flags, flags_of(data["mxcsr"]), data["x"])
