import dataclasses
import functools
import inspect
import json
import sys
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpsim
from bits import assert_same_bits
from mpsim import hardware, units
from mpsim.cli import main
from mpsim.encoding import encode
from mpsim.formats import get_format
from mpsim.hardware import designs
from mpsim.hardware.boxes import Box, Design, Setting, by_hand, emulated, same_answers
from mpsim.hardware.findings import Finding
from mpsim.hardware.hypotheses import predicted
from mpsim.hardware.matching import arithmetic_of
from mpsim.hardware.measures import _special
from mpsim.hardware.structure import find_structure, summation_tree, sums_along, tree_text
from mpsim.matmul import Schedule, matmul_codes
from mpsim.matmul._families import fused_numbers
from mpsim.units import Family, MatrixUnit, Order, ZeroTerms
from mpsim_kernels import host_x86
from mpsim_kernels.fused_dot import general_gemm
from mpsim_kernels.host_code import missing

pytestmark = pytest.mark.skipif(
    bool(numba.config.DISABLE_JIT), reason="a thousand dot products take minutes without machine code"
)


def distinct_rows() -> list[MatrixUnit]:
    """Return one row of each arithmetic in the catalogue."""
    return list({arithmetic_of(row): row for row in reversed(units.UNITS)}.values())[::-1]


def setting_of(row: MatrixUnit, k: int = 64) -> Setting:
    scale = get_format(row.scale) if row.scale else None
    return Setting(*row.inputs, get_format(row.out), (64, 64, k), scale, row.scale_block)


def scaled_box(row: MatrixUnit) -> Any:
    """Return a block-scaled unit as a function of values, its scales too."""

    def product(a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any) -> Any:
        scales = {"scale_a": encode(scale_a, row.scale), "scale_b": encode(scale_b, row.scale)}
        left, right = (encode(x, fmt) for x, fmt in zip((a, b), row.inputs, strict=True))
        return matmul_codes(left, right, c.astype(np.float32).view(np.uint32), row, **scales).view(np.float32)

    return product


def probed(row: MatrixUnit) -> Finding:
    """Return what probing finds out about a row that it sees only through a function."""
    if row.scale:
        return hardware.probe(scaled_box(row), (row.a, row.b), row.out, scale=row.scale, scale_block=row.scale_block)
    return hardware.probe(functools.partial(mpsim.matmul, unit=row), (row.a, row.b), row.out)


def assert_identified(row: MatrixUnit) -> None:
    """Fail unless a row is found without looking, and no row of another arithmetic with it."""
    found = probed(row)
    twins = [other for other in units.UNITS if arithmetic_of(other) == arithmetic_of(row)]
    assert row in found.rows
    assert set(twins) <= set(found.rows)
    assert found.unit is not None
    assert found.unit.architecture == "found"  # proposed by what was measured, not taken from the catalogue
    chains = (Family.FMA_CHAIN, Family.ROUNDED, Family.EXACT)  # the same bits where products are exact
    assert found.unit.family is row.family or row.family in chains
    setting = setting_of(row)
    for other in found.others:
        assert not same_answers(np.array([other.expected], setting.dtype), np.array([other.got], setting.dtype)).any()


def one_of_each_family() -> list[MatrixUnit]:
    chosen: dict[Any, MatrixUnit] = {}
    for row in units.UNITS:
        if row.family not in (Family.ROUNDED, Family.EXACT):
            chosen.setdefault(row.family, row)
    ideal = [units.ideal("fp16", "fp32", order=order) for order in Order]
    return [*chosen.values(), *ideal, next(row for row in units.UNITS if row.family is Family.EXACT)]


def without_scales() -> list[MatrixUnit]:
    return [row for row in one_of_each_family() if not row.scale]


@pytest.mark.parametrize("row", one_of_each_family(), ids=lambda row: f"{row.family.value}-{row.order}")
def test_a_row_of_each_family_is_identified_without_looking(row: MatrixUnit) -> None:
    assert_identified(row)


@pytest.mark.long
@pytest.mark.parametrize("row", distinct_rows(), ids=str)
def test_every_row_of_the_catalogue_is_identified_without_looking(row: MatrixUnit) -> None:
    assert_identified(row)


def test_the_distinct_rows_stand_for_all() -> None:
    kinds = {arithmetic_of(row) for row in distinct_rows()}
    assert {arithmetic_of(row) for row in units.UNITS} == kinds


# Units that no chip has.


def general_box(unit: MatrixUnit) -> Any:
    """Return a fused unit by the kernel that takes all its numbers at run time."""
    numbers, operands = fused_numbers(unit)

    def product(a: Any, b: Any, c: Any) -> Any:
        words = (np.ascontiguousarray(x, np.float32).view(np.int32) for x in (a, b, c))
        return general_gemm(*words, numbers, operands).view(np.float32)

    return product


@settings(max_examples=5)
@given(
    inputs=st.sampled_from(["fp16", "bf16", "e4m3", "e5m2"]),
    length=st.integers(3, 32),
    bits=st.integers(8, 28),
    precision=st.sampled_from([24, 24, 14, 19]),
    rounding=st.sampled_from(["toward-zero", "nearest-even"]),
)
def test_unknown_fused_units_are_recovered(inputs: str, length: int, bits: int, precision: int, rounding: str) -> None:
    unit = dataclasses.replace(
        units.get("a100", "fp16"), a=inputs, b=inputs, block_length=length,
        fraction_bits=max(bits, precision), result_precision=precision, rounding=rounding,
    )  # fmt: skip
    found = hardware.probe(general_box(unit), inputs, shape=(64, 64, 64)).unit
    assert found is not None
    assert (found.family, found.block_length, found.result_precision) == (Family.FUSED, length, precision)
    assert found.fraction_bits == unit.fraction_bits
    if unit.fraction_bits > precision:
        assert found.rounding == rounding


@pytest.mark.parametrize("numbers", [(1, 24, 24), (2, 13, 14), (48, 26, 24)])
def test_the_shortest_and_longest_blocks_are_recovered(numbers: tuple[int, int, int]) -> None:
    length, bits, precision = numbers
    unit = dataclasses.replace(units.get("a100"), block_length=length, fraction_bits=bits, result_precision=precision)
    found = hardware.probe(general_box(unit)).unit
    assert found is not None
    assert (found.block_length, found.fraction_bits, found.result_precision) == numbers


@pytest.mark.parametrize("floor", [-140, -133, -126, -119])
def test_the_alignment_floor_is_measured_where_products_reach_it(floor: int) -> None:
    unit = dataclasses.replace(units.get("a100", "bf16"), alignment_floor=floor)
    found = hardware.probe(general_box(unit), "bf16")
    assert found.unit is not None
    assert found.fact("smallest bit") == f"2^{floor - 24}"
    assert found.unit.floor == floor


def test_zeros_that_align_others_are_noticed() -> None:
    unit = dataclasses.replace(units.get("a100", "bf16"), zero_terms=ZeroTerms.MMA_SIM)
    found = hardware.probe(general_box(unit), "bf16").unit
    assert found is not None
    assert found.zero_terms is ZeroTerms.MMA_SIM


@pytest.mark.parametrize("rounding", ["toward-zero", "nearest-away", "to-odd", "up", "down"])
def test_the_rounding_of_a_chain_is_recovered(rounding: str) -> None:
    unit = units.ideal("fp16", "fp32", rounding=rounding)
    found = hardware.probe(functools.partial(mpsim.matmul, unit=unit)).unit
    assert found is not None
    assert (found.family, found.rounding) == (Family.ROUNDED, rounding)


# What facts say.


def test_facts_of_a_hopper() -> None:
    found = hardware.probe(functools.partial(mpsim.matmul, unit="h100"))
    told = {name: found.fact(name) for name in inspect.cleandoc(
        """order
        summed at once
        fraction bits of products
        fraction bits of c
        products normalised
        subnormal a
        zero, all terms -0
        inf - inf"""
    ).splitlines()}  # fmt: skip
    assert told == {
        "order": "blocks of 16: 0 to 63 in order",
        "summed at once": "16 products",
        "fraction bits of products": "25",
        "fraction bits of c": "25",
        "products normalised": "no",
        "subnormal a": "kept",
        "zero, all terms -0": "+0",
        "inf - inf": "NaN 0x7fffffff",
    }
    assert "hopper mma.m16n8k16" in str(found)
    assert found.to_dict()["facts"]["summed at once"] == "16 products"


def test_normalised_products_are_noticed() -> None:
    unit = units.get("a100")

    def product(a: Any, b: Any, c: Any) -> Any:
        # 1.5 * 1.5 as 1 * 2.25 in a wider format: the exponent is that of the product.
        p = np.einsum("mk,kn->mnk", a.astype(np.float64), b.astype(np.float64))
        wide = dataclasses.replace(unit, a="fp32", b="fp32")
        numbers, operands = fused_numbers(wide)
        d = np.zeros(c.shape, np.float32)
        for i in range(c.shape[0]):
            row, one = p[i, i][None].astype(np.float32), np.ones((p.shape[2], 1), np.float32)
            words = (x.view(np.int32) for x in (row, one, c[i : i + 1, i : i + 1].copy()))
            d[i, i] = general_gemm(*words, numbers, operands).view(np.float32)[0, 0]
        return d

    with np.errstate(all="ignore"):
        found = hardware.probe(product, shape=(16, 16, 16))
    assert found.fact("products normalised") == "yes"


def test_a_box_without_accumulator_is_identified_as_far_as_it_shows() -> None:
    found = hardware.probe(lambda a, b: mpsim.matmul(a, b, unit="v100"))
    assert found.fact("accumulator") == "not given"
    assert units.get("v100") in found.rows
    assert units.get("a100") not in found.rows


def test_a_function_of_the_wrong_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"the function returned shape \(64,\).*\(64, 64\) is needed"):
        hardware.probe(lambda a, b: np.zeros(64))
    with pytest.raises(ValueError, match="K of at least 4"):
        hardware.probe(np.matmul, shape=(8, 8, 2))
    with pytest.raises(ValueError, match="both or neither"):
        hardware.probe(np.matmul, scale="e8m0")


# Orders of summation.


@pytest.mark.parametrize("row", without_scales(), ids=lambda row: f"{row.family.value}-{row.order}")
def test_exact_steps_agree_with_the_kernels_on_designs(row: MatrixUnit) -> None:
    setting = setting_of(row, 16)
    asked = [*designs.cancellations(setting, 0, [1, 5, 9]), *designs.random_dots(setting, 8)]
    own = np.concatenate([by_hand(row, design, setting) for design in asked])
    assert same_answers(own, emulated(row, asked, setting)).all()


@pytest.mark.parametrize("order", list(Order))
def test_the_tree_of_a_plain_sum_is_found(order: Order) -> None:
    unit = units.ideal("fp16", "fp32", order=order)
    setting = setting_of(unit, 8)._replace(shape=(8, 8, 8))
    tree = summation_tree(Box(lambda a, b: mpsim.matmul(a, b, unit=unit), setting))
    pairwise = (((0, 1), (2, 3)), ((4, 5), (6, 7)))
    chain = (((((((0, 1), 2), 3), 4), 5), 6), 7)
    assert tree == (pairwise if order is Order.PAIRWISE else chain)


def test_split_k_is_seen_in_the_tree() -> None:
    schedule = Schedule(split_k=2, tile=16)
    setting = setting_of(units.ideal("fp16"), 64)
    box = Box(lambda a, b: mpsim.matmul(a, b, unit=units.ideal("fp16"), schedule=schedule), setting)
    tree = summation_tree(box)
    assert tree is not None
    assert tree_text(tree) == "(0 to 31) + (32 to 63)"
    products = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32)
    want = np.float32(0) + [functools.reduce(np.add, half) for half in products.reshape(9, 2, 32)[:, 0]]
    want += np.array([functools.reduce(np.add, half) for half in products.reshape(9, 2, 32)[:, 1]])
    got = sums_along(tree, products)
    assert got is not None
    assert_same_bits(got, want.astype(np.float32))


@pytest.mark.parametrize("family", [Family.FUSED, Family.EXACT_BLOCKS, Family.VDPBF16PS, Family.AMX])
def test_predicted_cancellations_are_those_of_the_kernels(family: Family) -> None:
    row = next(row for row in units.UNITS if row.family is family and row.out == "fp32")
    box = Box(functools.partial(mpsim.matmul, unit=row), setting_of(row))
    assert find_structure(box).hidden == predicted(family, row.block_length, 64)


def test_places_that_are_summed_otherwise_are_left_out() -> None:
    def product(a: Any, b: Any) -> Any:
        d = mpsim.matmul(a, b, unit="a100")
        d[60:, 60:] = mpsim.matmul(a[60:, ::-1], b[::-1, 60:], unit="a100")
        return d

    found = hardware.probe(product)
    assert found.fact("places") == "60 of 64 treated alike"
    assert units.get("a100") in found.rows


# Real arithmetic.


def test_numpy_adds_fp16_products_in_fp32_one_after_another() -> None:
    found = hardware.probe(hardware.numpy_matmul("fp16"), "fp16", "fp16")
    assert found.fact("order") == "0 to 63 in order"
    assert found.rounded_to == "fp16"
    assert found.unit is not None
    assert found.unit.out == "fp32"


def test_numpys_fp32_order_is_a_tree_or_that_of_no_tree() -> None:
    found = hardware.probe(hardware.numpy_matmul("fp32"), "fp32", shape=(32, 32, 32))
    assert found.fact("subnormal a") == "kept"
    assert found.fact("order")


@pytest.mark.parametrize("inputs", ["bf16", "fp16"])
def test_torch_on_a_cpu_sums_small_products_in_four_chains(inputs: str) -> None:
    pytest.importorskip("torch")
    found = hardware.probe(hardware.torch_matmul("cpu", inputs), inputs, inputs, shape=(16, 16, 16))
    chains = " + ".join(f"({k} to {k + 12} in steps of 4)" for k in range(4))
    assert found.fact("order").replace("(", "").replace(")", "") == chains.replace("(", "").replace(")", "")
    agreeing, _, asked = found.fact("fp32 additions").removeprefix("in this order give ").partition(" of ")
    assert agreeing == asked.removesuffix(" answers")


@pytest.mark.skipif(
    bool(missing(host_x86.VDPBF16PS)) or not missing(host_x86.TDPBF16PS), reason="AVX512_BF16 without AMX is needed"
)
@pytest.mark.parametrize(
    ("shape", "threads", "schedule"),
    [
        ((64, 64, 64), 2, Schedule()),
        ((64, 64, 768), 2, Schedule(promotion=512)),
        ((64, 64, 1024), 2, Schedule(promotion=512)),
        ((64, 64, 2048), 2, Schedule(promotion=1024)),
        ((1, 64, 2048), 1, Schedule(promotion=512)),
        ((1, 64, 2048), 2, Schedule(split_k=2, split="contiguous", tile=64, promotion=512)),
    ],
)
def test_torch_on_avx512_is_seen_to_chain_vdpbf16ps(
    shape: tuple[int, int, int], threads: int, schedule: Schedule
) -> None:
    """oneDNN cuts long K, and a product of one row in as many parts as there are threads."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = hardware.probe(hardware.torch_matmul("cpu", "bf16"), "bf16", "bf16", shape=shape)
    finally:
        torch.set_num_threads(before)
    assert found.rows == (units.get("avx512-bf16"),)
    assert found.schedule == schedule
    assert found.agreement[0] == found.agreement[1] > 700


def test_what_torch_and_numpy_do_not_have_is_said() -> None:
    with pytest.raises(ValueError, match="inputs is 'e4m3'"):
        hardware.numpy_matmul("e4m3")
    with pytest.raises(ValueError, match=r"torch\.mm on cpu takes fp64, fp32, fp16, bf16"):
        hardware.torch_matmul("cpu", "tf32")


class Torch:
    """A torch that sees one GPU."""

    __version__, bfloat16 = "2.0", None

    class cuda:  # noqa: N801
        is_available = staticmethod(lambda: True)
        device_count = staticmethod(lambda: 1)


def test_a_device_is_checked_before_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch)
    for device in ("cpu", "cuda", "cuda:0"):
        assert hardware.torch_matmul(device, "bf16")
    with pytest.raises(ValueError, match="device is 'cuda:1', and torch sees 1 GPUs, counted from 0"):
        hardware.torch_matmul("cuda:1", "bf16")
    for device in ("tpu", "cuda:", "cpu:1"):
        with pytest.raises(ValueError, match=f"device is '{device}'; it must be 'cpu', 'cuda' or 'cuda:1'"):
            hardware.torch_matmul(device, "bf16")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match="torch is not installed"):
        hardware.torch_matmul("cuda:1", "bf16")


@pytest.mark.parametrize(
    ("out", "code"),
    [("e4m3", "0x7f"), ("e5m2", "0x7e"), ("e4m3fnuz", "0x80"), ("fp16", "0x7e00"), ("fp32", "0x7fc00000")],
)
def test_a_nan_is_shown_as_its_format_has_it(out: str, code: str) -> None:
    fmt = get_format(out)
    box = Box(lambda a, b: a @ b, Setting(fmt, fmt, fmt))
    assert _special(box, np.array([np.nan], np.float32)) == f"NaN {code}"


def test_designs_say_what_goes_in() -> None:
    design = Design(((0, 1.5, 2.0**40), (3, -0.1875, 1.0)), -0.0)
    assert str(design) == "a[0] = 1.5, b[0] = 2^40; a[3] = -0.1875, b[3] = 1; c = -0"


# The command line.


def test_identify_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["identify", "--device", "v100", "--inputs", "fp16"]) == 0
    shown = capsys.readouterr().out
    assert "order                      blocks of 4: 0 to 63 in order" in shown
    assert "volta mma.m8n8k4 (fp16 x fp16 -> fp32)" in shown
    assert main(["identify", "--device", "numpy", "--inputs", "fp16", "--shape", "8,8,16", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["device"], data["facts"]["order"], data["rounded_to"]) == ("numpy", "0 to 15 in order", "fp16")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "numpy", "--inputs", "bf16"], "NumPy multiplies matrices of fp64, fp32, fp16"),
        (["--device", "v1000"], "unknown unit 'v1000'"),
        (["--device", "cuda:one"], "device is 'cuda:one'; it must be 'cpu', 'cuda' or 'cuda:1' and so on"),
        (["--device", "v100", "--inputs", "fp16", "--shape", "64"], "three sizes with commas between"),
        (["--device", "numpy", "--inputs", "fp16", "--shape", "8,8,2"], "K of at least 4"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(["identify", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
