"""Matrix products against recordings of real devices, and the rules of shapes and formats."""

import dataclasses
import functools
import json
from typing import Any

import numba
import numpy as np
import pytest

import mxcsr as fpu
from bits import assert_same_bits
from mpsim import units
from mpsim.encoding import decode, encode
from mpsim.formats import get_format
from mpsim.matmul import matmul, matmul_codes
from mpsim.rounding import round_to
from vectors import vectors

Array = np.ndarray[Any, Any]

FORMATS = {
    "f16": "fp16", "bf16": "bf16", "tf32": "tf32", "xf32": "tf32", "f32": "fp32", "f64": "fp64", "e4m3": "e4m3",
    "e5m2": "e5m2", "e4m3fnuz": "e4m3fnuz", "e5m2fnuz": "e5m2fnuz", "e2m1": "e2m1", "ue8m0": "e8m0", "ue4m3": "ue4m3",
}  # fmt: skip
GPUS = ("V100", "A100", "A2", "Ada", "L40S", "H100", "H200", "B200")
RECORDED = [
    *((gpu, "f16", out) for gpu in GPUS for out in ("fp32", "fp16")),
    *((gpu, inputs, "fp32") for gpu in GPUS[1:] for inputs in ("bf16", "tf32")),
    *((gpu, inputs, "fp32") for gpu in GPUS[3:] for inputs in ("e4m3", "e5m2")),
    *((gpu, inputs, "fp16") for gpu in GPUS[3:] if gpu != "L40S" for inputs in ("e4m3", "e5m2")),
]
DEVICES = {"Ada": "ada"}
ARCHITECTURES = {
    "volta": "volta",
    "turing": "turing",
    "ampere": "ampere",
    "adalovelace": "ada",
    "hopper": "hopper",
    "blackwell": "blackwell",
    "rtxblackwell": "rtx-blackwell",
    "cdna1": "cdna1",
    "cdna2": "cdna2",
    "cdna3": "cdna3",
}


@pytest.fixture
def every() -> int:
    """Step through recorded rows: all of them as machine code, every 50th where kernels run as plain Python."""
    return 50 if numba.config.DISABLE_JIT else 1


@functools.cache
def archive(*parts: str) -> dict[str, Any]:
    with np.load(vectors(*parts)) as file:
        return dict(file)


@pytest.mark.parametrize(("gpu", "inputs", "out"), RECORDED)
def test_recorded_dot_products_of_real_gpus(gpu: str, inputs: str, out: str, every: int) -> None:
    recorded = archive("hardware", "nvidia_toolbox.npz")
    wanted = {"gpu": gpu, "input_format": inputs, "output": out}
    name = next(row["inputs"] for row in json.loads(str(recorded["meta"])) if wanted.items() <= row.items())
    a, b = (recorded[f"inputs/{name}/{side}"][::every] for side in "ab")
    c, want = (recorded[f"{gpu}/{inputs}/{array}"][::every] for array in ("c_fp32", f"d_{out}"))
    if out == "fp16":
        c = encode(c.view(np.float32), "fp16")
    fp8 = inputs in ("e4m3", "e5m2")
    if fp8 and out == "fp32" and gpu in ("H100", "H200"):
        c = np.zeros_like(c)  # recorded with wgmma, from zero
    instruction = "mma.m16n8k4" if inputs == "tf32" else None
    if fp8 and (gpu == "B200" or (gpu in ("H100", "H200") and out == "fp16")):
        instruction = "mma.m16n8k32"
    got = matmul_codes(
        a[:, None, :],
        b[:, :, None],
        c[:, None, None],
        unit=DEVICES.get(gpu, gpu),
        inputs=FORMATS[inputs],
        out=out,
        instruction=instruction,
    )
    assert_same_bits(got[:, 0, 0], want)


def test_every_recording_of_the_toolbox_is_replayed() -> None:
    rows = json.loads(str(archive("hardware", "nvidia_toolbox.npz")["meta"]))
    assert {(row["gpu"], row["input_format"], row["output"]) for row in rows} == set(RECORDED)


def instruction_of(meta: dict[str, Any]) -> str:
    """Return the name that the catalogue gives to a file's instruction."""
    match meta["family"]:
        case "mfma":
            return f"mfma_{meta['instruction']}"
        case "tcgen05mma":
            return f"tcgen05.mma.k{meta['k']}"
        case "tcgen05mma_block_scale":
            return f"tcgen05.mma.block_scale.k{meta['k']}"
        case "mma_block_scale":
            return f"mma.block_scale.{meta['instruction'].split('.')[0]}"
    return f"{meta['family']}.{meta['instruction'].split('.')[0]}"


def test_every_file_of_model_outputs_is_compared() -> None:
    names = [path.name for path in vectors("matrix-units").glob("*.npz") if not path.name.startswith("mmaemu_")]
    assert len(names) == 155
    assert all(name.split("_")[0] in ARCHITECTURES for name in names)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_published_model_outputs(architecture: str, every: int) -> None:
    compared = 0
    for path in sorted(vectors("matrix-units").glob(f"{architecture}_*.npz")):
        with np.load(path) as file:
            tiles = dict(file)
        meta = json.loads(str(tiles["meta"]))
        scales = {}
        if meta["scale_format"]:
            scales = {name: tiles[name][::every] for name in ("scale_a", "scale_b")}
            scales["scale_format"] = FORMATS[meta["scale_format"]]
        got = matmul_codes(
            tiles["a"][::every],
            tiles["b"][::every],
            tiles["c"][::every],
            unit=ARCHITECTURES[architecture],
            inputs=(FORMATS[meta["a_format"]], FORMATS[meta["b_format"]]),
            out=FORMATS[meta["d_format"]],
            instruction=instruction_of(meta),
            **scales,
        )
        # Where models differ, recordings speak for the one that drops zero terms and stops at the floor.
        want = tiles["d"]
        want[np.unpackbits(tiles["disputed"], axis=-1, count=meta["n"]).astype(bool)] = tiles["disputed_alt"]
        want = want[::every]
        if not meta["nan_bits_exact"]:
            number = {4: np.float32, 8: np.float64}[want.itemsize]
            nan = np.isnan(want.view(number))
            assert np.isnan(got[nan].view(number)).all()
            got = np.where(nan, want, got)
        assert_same_bits(got, want)
        compared += got.size
    assert compared


def reference(a: Array, b: Array, c: Any = 0.0) -> Array:
    """Return a product whose every sum is exact, so that any order of summation gives it."""
    return (np.matmul(a.astype(np.float64), b.astype(np.float64)) + c).astype(np.float32)


@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [
        ((3,), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3,)),
        ((4, 2, 3), (3,)),
        ((3,), (4, 3, 2)),
        ((2, 3), (3, 5)),
        ((4, 2, 3), (3, 5)),
        ((4, 2, 3), (4, 3, 5)),
        ((2, 3), (4, 3, 5)),
        ((6, 1, 2, 3), (4, 3, 5)),
        ((2, 0), (0, 3)),
        ((4, 2, 0), (0, 3)),
        ((4, 2, 0), (4, 0, 3)),
        ((0, 2, 3), (3, 5)),
        ((2, 3), (0, 3, 5)),
    ],
)
@pytest.mark.parametrize("unit", ["v100", "native"])
def test_shapes_follow_numpy(shape_a: tuple[int, ...], shape_b: tuple[int, ...], unit: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, shape_a), rng.integers(-9, 9, shape_b)
    want = reference(a, b)
    assert_same_bits(matmul(a, b, unit=unit), want)
    assert_same_bits(matmul(a, b, c=np.full(want.shape, 2.0), unit=unit), want + np.float32(2))
    assert_same_bits(matmul(a, b, c=1.0, unit=unit), want + np.float32(1))


def test_accumulators_broadcast() -> None:
    a, b = np.ones((4, 2, 3)), np.ones((3, 5))
    c = np.arange(5.0)
    assert_same_bits(matmul(a, b, c), reference(a, b, c))
    assert_same_bits(matmul(a, b, c[:2, None]), reference(a, b, c[:2, None]))


def test_layouts_and_types_change_nothing() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((5, 12)), rng.standard_normal((12, 7))
    want = matmul(a, b)
    assert_same_bits(matmul(a.tolist(), np.asfortranarray(b)), want)
    assert_same_bits(matmul(a[::-1].copy()[::-1], b[:, ::-1].copy()[:, ::-1]), want)
    half = a.astype(np.float16), b.astype(np.float16)
    assert_same_bits(matmul(*half), want)
    assert_same_bits(matmul(*half, rounded=True), want)
    assert_same_bits(matmul(half[0].astype(np.float32), half[1].astype(np.float32), rounded=True), want)


def test_operands_are_rounded_once_to_the_input_format() -> None:
    # In float32 first, the last bit would make a tie, which goes down.
    x = np.array([[1 + 2.0**-11 + 2.0**-40]])
    assert matmul(x, [[1.0]]).item() == 1 + 2.0**-10
    assert matmul(x, [[1.0]], unit="a100", inputs="bf16").item() == 1.0
    assert matmul([[1 + 2.0**-11 + 2.0**-12]], [[1.0]], inputs="tf32").item() == 1.0  # the low bits are ignored
    assert matmul([[70000.0]], [[1.0]]).item() == np.inf


def test_values_and_codes_agree() -> None:
    rng = np.random.default_rng(2)
    for inputs, out in (("fp16", "fp32"), ("fp16", "fp16"), ("bf16", "fp32")):
        a = round_to(rng.standard_normal((6, 20)).astype(np.float32), inputs)
        b = round_to(rng.standard_normal((20, 5)).astype(np.float32), inputs)
        c = round_to(rng.standard_normal((6, 5)).astype(np.float32), out)
        codes = matmul_codes(encode(a, inputs), encode(b, inputs), encode(c, out), inputs=inputs, out=out)
        assert codes.dtype == get_format(out).code_dtype
        assert_same_bits(decode(codes, out), matmul(a, b, c, inputs=inputs, out=out))


def test_low_bits_of_tf32_words_are_ignored() -> None:
    a = np.array([[0x3F800000, 0x3F801FFF]], np.uint32)
    one = np.full((2, 1), 0x3F800000, np.uint32)
    assert matmul_codes(a, one, inputs="tf32").item() == 0x40000000
    nan = np.array([[0x7F800001]], np.uint32)  # its payload is gone, so it is an infinity
    assert matmul_codes(nan, one[:1], inputs="tf32").item() == 0x7F800000


def test_volta_widens_fp16_accumulators() -> None:
    c = np.array([[0x0001]], np.uint16)  # 2**-24, subnormal in fp16 and normal in fp32
    zero = np.zeros((1, 1), np.uint16)
    assert matmul_codes(zero, zero, c, unit="v100").item() == 0x33800000


def test_every_nan_has_one_pattern() -> None:
    nan = np.array([[np.nan]], np.float32)
    for out, pattern in (("fp32", 0x7FFFFFFF), ("fp16", 0x7FFF)):
        assert matmul(nan, -nan, out=out).view(np.uint32).item() == 0x7FFFFFFF
        assert matmul_codes(encode(nan, "fp16"), encode(nan, "fp16"), out=out).item() == pattern


def test_overflow_of_fp16_results_stays() -> None:
    a = np.array([[60000.0, 60000.0, 0.0, 0.0, -60000.0, -60000.0]])
    assert matmul(a, np.ones((6, 1)), unit="v100", out="fp16").item() == np.inf
    assert matmul(a, np.ones((6, 1)), unit="v100", out="fp32").item() == 0.0


def test_a_unit_that_might_have_been() -> None:
    a, b = np.array([[-(2.0**13), 0.5]]), np.array([[2.0**10], [1.0]])
    for bits, want in ((23, 0.0), (24, 0.5)):
        unit = dataclasses.replace(units.get("a100"), fraction_bits=bits)
        assert matmul(a, b, c=2.0**23, unit=unit).item() == want


def test_native_rounds_inputs_and_results_only_if_asked() -> None:
    x = np.array([[1 + 2.0**-20]], np.float32)
    one = np.ones((1, 1), np.float32)
    assert matmul(x, one, unit="native").item() == x.item()
    assert matmul(x, one, unit="native", inputs="fp16").item() == 1.0
    assert matmul(x, one, unit="native", out="bf16").item() == 1.0
    assert matmul_codes(x.view(np.uint32), one.view(np.uint32), unit="native").item() == x.view(np.uint32).item()


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="MXCSR is set through Numba, which is disabled")
@pytest.mark.parametrize("state", [fpu.FTZ | fpu.DAZ, fpu.ROUND_UP])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_state_of_the_processor_changes_nothing(dtype: Any, state: int) -> None:
    rng = np.random.default_rng(3)
    a = np.ldexp(rng.standard_normal((6, 9)), rng.integers(-130, 20, (6, 9))).astype(dtype)
    b, c = a.T.copy(), np.full((6, 6), 1e-40, dtype)
    want = matmul(a, b, c, inputs="bf16"), matmul(a, b, c, out="fp16")
    with fpu.mxcsr(fpu.DEFAULT | state):
        got = matmul(a, b, c, inputs="bf16"), matmul(a, b, c, out="fp16")
    assert_same_bits(got[0], want[0])
    assert_same_bits(got[1], want[1])


def test_shapes_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a is \(4, 8\), b is \(7, 3\); a\.shape\[-1\] must equal b\.shape\[-2\]"):
        matmul(np.ones((4, 8)), np.ones((7, 3)))
    with pytest.raises(ValueError, match=r"a is \(8,\), b is \(7,\); a\.shape\[-1\] must equal b\.shape\[-1\]"):
        matmul(np.ones(8), np.ones(7))
    with pytest.raises(ValueError, match="at least one axis"):
        matmul(1.0, np.ones(3))
    with pytest.raises(ValueError, match="do not broadcast"):
        matmul(np.ones((2, 1, 1)), np.ones((3, 1, 1)))
    with pytest.raises(ValueError, match=r"c is \(3, 2\); it must broadcast to the result's shape \(2, 3\)"):
        matmul(np.ones((2, 4)), np.ones((4, 3)), np.ones((3, 2)))


def test_codes_must_be_integers() -> None:
    with pytest.raises(TypeError, match="unsigned integers"):
        matmul_codes(np.ones((1, 1)), np.ones((1, 1), np.uint16))
    with pytest.raises(TypeError, match="unsigned integers"):
        matmul_codes(np.ones((1, 1)), np.ones((1, 1)), inputs="tf32")
