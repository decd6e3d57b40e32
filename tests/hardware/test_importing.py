"""Recordings in the layouts of others, where they are at hand, and made up in small."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from bits import assert_same_bits
from mpsim.encoding import encode
from mpsim.hardware import RecordedSet, Recording, read, replay, write
from mpsim.hardware.importing import _format
from mpsim.matmul import matmul, matmul_codes
from vectors import vectors

Array = np.ndarray[Any, Any]

compiled = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="plain Python takes minutes")


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(-64, 64, shape) / 16


def thinned(part: RecordedSet, step: int) -> RecordedSet:
    """Return every ``step``-th of independent products or conversions."""
    if part.kind == "gemm":
        return part
    return dataclasses.replace(part, arrays={name: array[::step] for name, array in part.arrays.items()})


def compared(path: Path, step: int = 1, every: int = 1) -> int:
    """Replay some of the sets in part; return how many results were equal."""
    recording = read(path)
    sets = tuple(thinned(part, step) for part in recording.sets[::every])
    outcomes = replay(Recording(device=recording.device, sets=sets))
    assert [o.first for o in outcomes if o.different] == []
    return sum(o.results for o in outcomes)


HARDWARE = {
    "x86/vcvtps2ph.npz": (1, 1, 8 * 9061),
    "x86/vcvtph2ps.npz": (1, 1, 32768),
    "x86/vcvtneps2bf16.npz": (1, 1, 15048),
    "x86/x86_f32.npz": (4, 1, 6 * 16 * 1221),
    "x86/vdpbf16ps.npz": (10, 1, 2400),
    "x86/vdpbf16ps_gemm.npz": (1, 1, 14 * 256),
    "x86_vdpbf16ps.npz": (10, 1, 4096),
    "rtx4060_fp8_mma.npz": (4, 1, 29000),
    "rtx4060_fp8_gemm.npz": (1, 40, 1000),
    "nvidia_toolbox.npz": (100, 1, 48 * 40),
}
"""Files with a step through their results, a step through their sets, and the least number that is compared."""


def test_imported_settings_of_one_instruction_are_written_apart(tmp_path: Path) -> None:
    """All sixteen settings of an instruction have its name."""
    rng = np.random.default_rng(0)
    instructions = ("addss", "subss", "mulss", "divss", "sqrtss", "fmass")
    arrays = {name: np.zeros(2, np.uint32) for name in "abc"}
    arrays |= {f"{name}_z": rng.integers(0, 1 << 32, (4, 4, 2), np.uint64).astype(np.uint32) for name in instructions}
    arrays |= {f"{name}_mxcsr": rng.integers(0, 64, (4, 4, 2), np.uint8) for name in instructions}
    np.savez(tmp_path / "x86_f32.npz", **arrays)
    recording = read(tmp_path / "x86_f32.npz")
    write(tmp_path / "r.npz", recording)
    for ours, theirs in zip(recording.sets, read(tmp_path / "r.npz").sets, strict=True):
        assert_same_bits(theirs.results, ours.results)
        assert_same_bits(theirs.arrays["flags"], ours.arrays["flags"])


def test_formats_have_the_names_of_others() -> None:
    names = {
        "f16": "fp16",
        "xf32": "tf32",
        "ue8m0": "e8m0",
        "float8_e4m3fn": "e4m3",
        "bfloat16": "bf16",
        "FP16": "fp16",
    }
    assert {name: _format(name) for name in names} == names


@compiled
@pytest.mark.parametrize("name", HARDWARE)
def test_recordings_of_hardware_replay(name: str) -> None:
    step, every, least = HARDWARE[name]
    assert compared(vectors("hardware", *name.split("/")), step, every) >= least


@pytest.mark.long
@pytest.mark.parametrize("name", HARDWARE)
def test_recordings_of_hardware_replay_in_full(name: str) -> None:
    assert compared(vectors("hardware", *name.split("/"))) >= HARDWARE[name][2]


@compiled
def test_products_of_torch_on_avx512_replay_where_onednn_made_them() -> None:
    recording = read(vectors("hardware", "x86", "torch_cpu_mm.npz"))
    outcomes = replay(recording)
    assert sum(o.results for o in outcomes) == 10752
    assert not any(o.different for o in outcomes)
    assert {o.row for o in outcomes if o.skipped} == {"torch bf16 (bf16)", "torch f16 (fp16)"}


@compiled
@pytest.mark.parametrize(
    "name",
    [
        "ampere_mma_m16n8k16-f32-f16-f16-f32",
        "hopper_wgmma_m64n8k32-f32-e4m3-e5m2",
        "cdna3_mfma_f32_16x16x16_bf16",
        "blackwell_tcgen05mma_block_scale_m128n8k64-block16-f32-e2m1-e2m1-ue4m3",
        "blackwell_tcgen05mma_block_scale_m128n8k64-block32-f32-e2m1-e2m1-ue8m0",
        "mmaemu_h100pcie_fp8_gemm",
    ],
)
def test_published_models_replay(name: str) -> None:
    assert compared(vectors("matrix-units", f"{name}.npz"), every=20 if name.startswith("mmaemu") else 1) > 20


@pytest.mark.long
def test_all_published_models_replay() -> None:
    for path in sorted(vectors("matrix-units").glob("*.npz")):
        assert compared(path) > 100


class Texts:
    """A folder as MATLAB-tensor-core has it."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "model_validation" / "A100" / "fp16"
        self.folder.mkdir(parents=True)
        a, b, self.c = numbers(1, 6, 8), numbers(2, 6, 8), numbers(3, 6).astype(np.float32)
        self.d = matmul(a[:, None, :], b[:, :, None], self.c[:, None, None], unit="a100")[:, 0, 0]
        for side, x in (("a", a), ("b", b)):
            self.write(f"{side}_A100_fp16.txt", x.astype(np.float32), "08x")
        self.write("c_A100_fp32.txt", self.c[:, None], "032b")
        self.write("d_A100_fp32.txt", self.d[:, None], "032b")

    def write(self, name: str, x: Array, style: str) -> None:
        rows = [" ".join(format(word, style) for word in row) for row in x.view(np.uint32).tolist()]
        (self.folder / name).write_text("\n".join(rows) + "\n")


def test_text_files_of_matlab_tensor_core_replay(tmp_path: Path) -> None:
    texts = Texts(tmp_path)
    for folder in (tmp_path, tmp_path / "model_validation", texts.folder):
        recording = read(folder)
        (outcome,) = replay(recording)
        assert (outcome.results, outcome.different) == (6, 0)
        assert outcome.row == "ampere mma.m16n8k16 (fp16 x fp16 -> fp32)"
    (part,) = recording.sets
    assert_same_bits(part.arrays["c"][:, 0, 0], texts.c.view(np.uint32))
    texts.write("d_A100_fp32.txt", -texts.d[:, None], "032b")
    assert replay(read(tmp_path))[0].different == 6


def test_text_files_that_are_none_are_told(tmp_path: Path) -> None:
    texts = Texts(tmp_path)
    (texts.folder / "a_A100_fp16.txt").write_text("3f800000 not\n")
    with pytest.raises(ValueError, match=r"a_A100_fp16.txt: rows of float32 words in base 16 are needed"):
        read(tmp_path)
    (texts.folder / "a_A100_fp16.txt").unlink()
    with pytest.raises(ValueError, match=r"no files a_<GPU>_<format>\.txt"):
        read(tmp_path)


def test_tiles_of_mma_sim_replay_by_the_rule_of_recordings(tmp_path: Path) -> None:
    a, b = encode(numbers(1, 2, 16, 16), "fp16"), encode(numbers(2, 2, 16, 8), "fp16")
    c = np.zeros((2, 16, 8), np.uint32)
    d = matmul_codes(a, b, c, unit="a100")
    disputed = np.zeros((2, 16, 1), np.uint8)
    disputed[1, 3, 0] = 0x80
    right, d[1, 3, 0] = d[1, 3, 0], 7
    meta = {
        "arch": "Ampere", "family": "mma", "instruction": "m16n8k16.f32.f16.f16.f32", "k": 16, "a_format": "f16",
        "b_format": "f16", "d_format": "f32", "scale_format": None, "block_size": 0,
    }  # fmt: skip
    arrays = {"a": a, "b": b, "c": c, "d": d, "disputed": disputed, "disputed_alt": np.array([right], np.uint32)}
    np.savez(tmp_path / "tiles.npz", meta=np.array(json.dumps(meta)), **arrays)
    (outcome,) = replay(read(tmp_path / "tiles.npz"))
    assert (outcome.results, outcome.different) == (256, 0)
    del arrays["disputed"]
    np.savez(tmp_path / "tiles.npz", meta=np.array(json.dumps(meta)), **arrays)
    assert replay(read(tmp_path / "tiles.npz"))[0].different == 1


def test_products_of_mmaemu_replay_from_pools(tmp_path: Path) -> None:
    a, b = numbers(1, 3, 192), numbers(2, 192, 2)
    d = encode(matmul(a, b, unit="h100", inputs="e4m3", promotion=128, scale_a=2.0, scale_b=0.5, result="fp16"), "fp16")
    case = {
        "m": 3, "n": 2, "k": 192, "a_format": "e4m3", "b_format": "e4m3", "a_offset": 4, "b_offset": 0, "d_offset": 2,
        "out_dtype": "float16", "fast_accum": False, "split": 1, "scheme": "none", "scale_result_bits": None,
        "scale_a_bits": 0x40000000, "scale_b_bits": 0x3F000000,
    }  # fmt: skip
    pools = {
        "a": np.concatenate([np.zeros(4, np.uint8), encode(a, "e4m3").ravel()]),
        "b": encode(b, "e4m3").T.ravel(),
        "d": np.concatenate([np.zeros(2, np.uint8), d.ravel().view(np.uint8)]),
    }
    np.savez(tmp_path / "h100_gemm.npz", cases=np.array(json.dumps([case])), **pools)
    (outcome,) = replay(read(tmp_path / "h100_gemm.npz"))
    assert (outcome.results, outcome.different) == (6, 0)
    np.savez(tmp_path / "somewhere.npz", cases=np.array(json.dumps([case])), **pools)
    assert replay(read(tmp_path / "somewhere.npz"))[0].skipped
    case["a_offset"] = 10**9
    np.savez(tmp_path / "bad.npz", cases=np.array(json.dumps([case])), **pools)
    with pytest.raises(ValueError, match=r"bad\.npz: "):
        read(tmp_path / "bad.npz")
