"""Options that mimic known implementations, against their own results."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bits import assert_same_bits
from mpsim.encoding import decode, encode
from mpsim.formats import CATALOGUE, FP16, finfo
from mpsim.presets import CONVERSIONS, RANDOM_BITS, conversion, draws
from mpsim.rounding import round_to
from vectors import vectors

E4M3_EDGE = [464.0, 465.0, 1000.0, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        # Published results of each implementation for one tie, two overflows, infinities and NaN.
        ("ml_dtypes", [0x7E, 0x7F, 0x7F, 0x7F, 0xFF, 0x7F]),
        ("ocp", [0x7E, 0x7F, 0x7F, 0x7F, 0xFF, 0x7F]),
        ("amd-gfx950", [0x7E, 0x7F, 0x7F, 0x7F, 0xFF, 0x7F]),
        ("ocp-saturating", [0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F]),
        ("cuda", [0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F]),
        ("torch", [0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F]),
    ],
)
def test_e4m3_beyond_448_is_what_each_implementation_makes_of_it(name: str, codes: list[int]):
    assert encode(E4M3_EDGE, "e4m3", **conversion(name, "e4m3")).tolist() == codes


def test_cuda_drops_the_sign_of_nans():
    minus_nan = np.array([0xFFC12345], np.uint32).view(np.float32)
    want = {"e4m3": 0x7F, "e5m2": 0x7F, "fp16": 0x7FFF, "bf16": 0x7FFF, "e2m1": 0x7, "e3m2": 0x1F}
    assert {fmt: int(encode(minus_nan, fmt, **conversion("cuda", fmt))[0]) for fmt in want} == want


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float8_e4m3fnuz"])
def test_ml_dtypes_is_met_on_specials_too(name: str):
    x = np.array([*E4M3_EDGE, -np.nan, 1e30, -1e30, 0.0, -0.0], np.float32)
    want = x.astype(np.dtype(getattr(ml_dtypes, name)))
    assert_same_bits(encode(x, name, **conversion("ml_dtypes", name)), want.view(f"u{want.itemsize}"), x)


@pytest.mark.parametrize("daz", [False, True])
@pytest.mark.parametrize(("r", "rounding"), [*enumerate(["nearest-even", "down", "up", "toward-zero"])])
def test_x86_conversions_to_fp16_replay_with_payloads(r: int, rounding: str, daz: bool):
    with np.load(vectors("hardware", "x86", "vcvtps2ph.npz")) as recorded:
        x, want = recorded["x"].view(np.float32), recorded["z"][r, int(daz)]
    options = conversion("x86", "fp16") | {"subnormal_inputs_as_zero": daz}
    assert_same_bits(encode(x, "fp16", rounding, **options), want, x)


def test_x86_conversions_to_bf16_and_from_fp16_replay_with_payloads():
    with np.load(vectors("hardware", "x86", "vcvtneps2bf16.npz")) as recorded:
        x = recorded["x"].view(np.float32)
        assert_same_bits(encode(x, "bf16", **conversion("x86", "bf16")), recorded["z"], x)
    with np.load(vectors("hardware", "x86", "vcvtph2ps.npz")) as recorded:
        assert_same_bits(decode(recorded["x"], "fp16", nan="payload").view(np.uint32), recorded["z"], recorded["x"])


@pytest.mark.parametrize("source", [np.float32, np.float64])
@pytest.mark.parametrize("fmt", [f for f in CATALOGUE if f.specials == "ieee" and f.bits <= 16], ids=str)
def test_payloads_survive_a_round_trip(fmt: Any, source: Any):
    nans = np.arange(fmt.max_code + 2, fmt.last_code + 1, dtype=fmt.code_dtype)
    nans = np.concatenate([nans, nans | fmt.code_dtype.type(fmt.sign_code)])
    quiet = nans | fmt.code_dtype.type(1 << (fmt.m - 1))
    values = decode(nans, fmt, nan="payload").astype(source)
    assert_same_bits(encode(values, fmt, nan="payload"), quiet, nans)


@pytest.mark.parametrize(("vendor", "fmt"), [(v, f) for v, formats in RANDOM_BITS.items() for f in formats])
def test_a_vendors_stochastic_rounding_has_the_resolution_of_its_bits(vendor: str, fmt: str):
    # What is less than one unit of the last bit that counts never goes up, if float32 can hold it; a half does so
    # half of the time.
    chosen, fraction_bits = draws(vendor, fmt, seed=3), finfo(fmt).nmant
    assert chosen.bits is not None
    if fraction_bits + chosen.bits + 1 <= 23:
        less = np.full(10_000, np.float32(1 + 2.0 ** -(fraction_bits + chosen.bits + 1)))
        assert np.all(round_to(less, fmt, "stochastic", rng=chosen) == 1)
    middle = np.full(10_000, np.float32(1 + 2.0 ** -(fraction_bits + 1)))
    assert 0.45 < np.mean(round_to(middle, fmt, "stochastic", rng=chosen) > 1) < 0.55


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="draws: vendor is 'intel': it must be one of nvidia, amd"):
        draws("intel", "fp16")
    with pytest.raises(ValueError, match="amd does not round stochastically to fp16"):
        draws("amd", "fp16")
    with pytest.raises(ValueError, match=r"name is 'torhc': did you mean 'torch'\? it must be one of ocp"):
        conversion("torhc", "e4m3")
    with pytest.raises(ValueError, match="nan is 'payload', but NaNs of e4m3 have none"):
        encode(1.0, "e4m3", nan="payload")
    with pytest.raises(ValueError, match="nan is 'payload', but NaNs of e4m3 have none"):
        decode([0], "e4m3", nan="payload")
    for wrong in (0x7C00, 0x3C00, -1, 1 << 16):
        with pytest.raises(ValueError, match="not a NaN of fp16"):
            encode(1.0, FP16, nan=wrong)
    with pytest.raises(ValueError, match=r"nan is 'quiet'.*canonical, payload"):
        encode(1.0, FP16, nan="quiet")
    with pytest.raises(ValueError, match="x86 does not convert to e4m3, only to fp16, bf16"):
        conversion("x86", "e4m3")
    assert all(known.source for known in CONVERSIONS.values())
