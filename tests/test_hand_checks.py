"""Results of real matrix units that are small enough to check by hand, or were published with their inputs."""

import json
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim.matmul import matmul, matmul_codes
from vectors import vectors

CANCELLING = [[-(2.0**13), -0.5, -0.25, -0.125]], [[2.0**10], [1.0], [1.0], [1.0]]

FIRST = [
    # Khattak and Mikaitis 2025: one large product, which 2**23 cancels, and three small ones.
    ("v100", "fp16", None, 0.0),
    ("t4", "fp16", None, -0.5),
    *((gpu, inputs, None, -0.5) for gpu in ("a100", "l40s") for inputs in ("fp16", "bf16", "tf32")),
    *((gpu, inputs, None, -0.75) for gpu in ("h100", "b200", "rtx5090") for inputs in ("fp16", "bf16", "tf32")),
    ("l40s", "e5m2", None, 0.0),
    ("h100", "e5m2", None, 0.0),
    ("b200", "e5m2", "tcgen05.mma.k32", -0.75),
    ("mi100", "fp16", None, -0.875),
    ("mi100", "bf16", None, -0.875),
    ("mi250x", "fp16", None, 0.0),
    ("mi250x", "bf16", "mfma_f32_16x16x16bf16_1k", 0.0),
    ("mi250x", "bf16", "mfma_f32_16x16x8bf16", -0.375),
    *(("mi300x", inputs, None, -0.5) for inputs in ("fp16", "bf16", "tf32")),
    ("mi300x", "e5m2fnuz", None, -1.0),
    # Chains of fused multiply-adds.
    ("mi100", "fp32", None, -0.875),
    ("mi300x", "fp32", None, -0.875),
    ("avx512-bf16", "bf16", None, -0.875),
]


@pytest.mark.parametrize(("unit", "inputs", "instruction", "want"), FIRST)
def test_what_is_left_beside_a_large_accumulator(unit: str, inputs: str, instruction: str | None, want: float) -> None:
    assert matmul(*CANCELLING, c=2.0**23, unit=unit, inputs=inputs, instruction=instruction).item() == want


@pytest.mark.parametrize("unit", ["a100", "h100", "mi250x", "mi300x"])
def test_fp64_chains_round_at_each_step(unit: str) -> None:
    assert matmul(*CANCELLING, c=2.0**23, unit=unit, inputs="fp64", out="fp64").item() == -0.875


def test_cdna_1_has_no_matrix_instruction_for_fp64() -> None:
    with pytest.raises(ValueError, match="fp64"):
        matmul(*CANCELLING, unit="mi100", inputs="fp64", out="fp64")


@pytest.mark.parametrize(
    ("unit", "factors", "small", "want"),
    [
        # Products are not normalised before they are aligned: 1.5 * 1.5 reaches one bit farther down than 1.0 * 2.25.
        ("v100", (1.5, 1.5), (-23, -23), 2.25 + 2.0**-22),
        ("v100", (1.0, 2.25), (-23, -23), 2.25),
        ("a100", (1.5, 1.5), (-23, -24, -24), 2.25 + 2.0**-22),
    ],
)
def test_products_are_aligned_as_they_come(unit: str, factors: tuple[float, float], small: Any, want: float) -> None:
    a, b = np.zeros((1, 4)), np.zeros((4, 1))
    a[0, 0], b[0, 0] = factors
    for i, e in enumerate(small, 1):
        a[0, i], b[i, 0] = 2.0 ** (e // 2), 2.0 ** (e - e // 2)
    assert matmul(a, b, unit=unit, inputs="fp16").item() == want


@pytest.mark.parametrize("unit", ["l40s", "h100"])
def test_an_fp8_unit_clears_ten_fraction_bits_of_an_accumulator(unit: str) -> None:
    zeros = np.zeros((1, 32), np.uint8)
    got = matmul_codes(zeros, zeros.T, np.array([[0x3FFFFFFF]], np.uint32), unit=unit, inputs="e4m3")
    assert_same_bits(got, np.array([[0x3FFFFC00]], np.uint32))


@pytest.mark.parametrize(("e", "want"), [(-132, 0x1FFFF), (-133, 0x10000)])
def test_alignment_stops_at_a_floor(e: int, want: int) -> None:
    a, b = np.zeros((1, 8)), np.zeros((8, 1))
    a[0, :2], b[:2, 0] = (2.0**-60, -(2.0**-84)), 2.0 ** (e + 60)
    assert_same_bits(matmul(a, b, unit="a100", inputs="bf16").view(np.uint32), np.array([[want]], np.uint32))


def test_a_product_of_zero_has_no_exponent() -> None:
    c = np.array([[0x00012345]], np.uint32).view(np.float32)
    got = matmul([[0.0, 0.0]], [[2.0**100], [0.0]], c=c, unit="a100", inputs="bf16")
    assert_same_bits(got, c)


# Results that people published.


def published(name: str) -> dict[str, Any]:
    points = json.loads(vectors("hardware", "published", "gpu_points.json").read_text())["points"]
    return next(point for point in points if point["id"] == name)


def test_a_reported_sum_of_subnormals_on_hopper() -> None:
    point = published("h100-bf16-subnormal-1")
    a, b = (np.array([int(code, 16) for code in point[side]], np.uint16) for side in "ab")
    got = matmul_codes(a[None, :], b[:, None], unit="h100", inputs="bf16")
    assert_same_bits(got, np.array([[int(point["d"], 16)]], np.uint32))


@pytest.mark.parametrize(
    ("device", "unit", "inputs", "starts_from_c"),
    [
        ("V100", "v100", "fp16", False),
        ("A100", "a100", "fp16", False),
        ("H100", "h100", "fp16", True),
        ("CPU", "mi100", "fp32", False),
    ],
)
def test_a_published_product_whose_large_terms_cancel(device: str, unit: str, inputs: str, starts_from_c: bool) -> None:
    # Li et al. 2024 (FTTN), section V: all elements are equal, so one shows the 8192 x 8192. The paper prints
    # magnitudes, and does not say where C enters; each of these has one place that gives its number. Its two AMD
    # numbers need more than that: what is printed for the MI100 is what one chain of the MI250X model gives.
    k = np.arange(8192)
    a = np.where(k == 0, 2.0**10, np.where(k % 2 == 1, 2.0**-2, 2.0**-3))[None, :]
    b = np.where(k == 0, 2.0**10, 2.0**-3)[:, None]
    c = 2.0**20
    got = matmul(-a, b, c, unit=unit, inputs=inputs) if starts_from_c else c - matmul(a, b, unit=unit, inputs=inputs)
    assert abs(got.item()) == float(published("fttn-gemm")["d"][device])
