import contextlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import nn
from mpsim.formats import get_format
from mpsim.tensor import Tensor

SUFFIX = pytest.mark.parametrize("suffix", [".npz", ".safetensors"])


def model(seed: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 2, 2, rng=seed), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 3, format="bf16", rng=seed + 1)
    )


@SUFFIX
def test_a_state_goes_through_a_file_bit_for_bit(suffix: str, tmp_path: Path):
    one, other = model(0), model(5)
    one[1](np.random.default_rng(0).normal(size=(4, 2, 3, 3)).astype(np.float32))  # moves the statistics
    nn.save(one, tmp_path / f"state{suffix}")
    loaded = nn.load(tmp_path / f"state{suffix}")
    other.load_state_dict(loaded)
    assert loaded.keys() == one.state_dict().keys()
    for name, array in one.state_dict().items():
        assert_same_bits(other.state_dict()[name], array)
        assert_same_bits(loaded[name], array)
    assert int(loaded["1.num_batches_tracked"]) == 1


@SUFFIX
@pytest.mark.parametrize("fmt", ["fp64", "fp32", "tf32", "fp16", "bf16", "e4m3", "e5m2", "e4m3fnuz", "e8m0", "e2m1"])
def test_values_of_every_format_are_kept(suffix: str, fmt: str, tmp_path: Path):
    x = Tensor(np.abs(np.random.default_rng(0).normal(size=(3, 5))), format=fmt)
    path = tmp_path / f"x{suffix}"
    nn.save({"x": x, "scalar": Tensor(1.0, format=fmt), "empty": Tensor(np.ones((0, 3)), format=fmt)}, path)
    loaded = nn.load(path)
    assert_same_bits(loaded["x"], x.data)
    assert (loaded["scalar"].shape, loaded["empty"].shape) == ((), (0, 3))
    if suffix == ".safetensors" and fmt not in ("tf32", "e2m1"):
        widths = get_format(fmt).bits // 8
        assert path.stat().st_size < 500 + 16 * widths
        header = json.loads(path.read_bytes()[8:].split(b"}}")[0] + b"}}")
        assert header["x"]["data_offsets"][1] - header["x"]["data_offsets"][0] == 15 * widths


@SUFFIX
def test_arrays_are_kept_as_they_are(suffix: str, tmp_path: Path):
    arrays = {
        "f": np.array([1.5, -0.0, np.inf], np.float32),
        "d": np.array([[0.1]]),
        "i": np.array([-(2**40)]),
        "b": np.array([255, 0], np.uint8),
        "t": np.arange(6.0).reshape(2, 3).T,
    }
    nn.save(arrays, tmp_path / f"a{suffix}")
    loaded = nn.load(str(tmp_path / f"a{suffix}"))
    for name, array in arrays.items():
        assert_same_bits(loaded[name], array)


@SUFFIX
def test_a_file_that_was_there_stays_when_writing_fails(suffix: str, tmp_path: Path, monkeypatch: Any):
    path = tmp_path / f"state{suffix}"
    nn.save({"x": np.ones(3)}, path)

    def fail(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        nn.save({"x": np.zeros(3)}, path)
    assert nn.load(path)["x"].tolist() == [1.0] * 3
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@SUFFIX
def test_a_file_cut_off_anywhere_is_refused(suffix: str, tmp_path: Path):
    path = tmp_path / f"state{suffix}"
    nn.save({"x": np.arange(20.0), "y": np.ones(3, np.float32)}, path)
    content = path.read_bytes()
    for length in range(0, len(content), 3):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="is not a complete"):
            nn.load(path)


def test_a_flipped_bit_in_an_npz_file_is_noticed(tmp_path: Path):
    path = tmp_path / "state.npz"
    nn.save({"x": np.arange(20.0)}, path)
    content = bytearray(path.read_bytes())
    place = content.find(np.arange(20.0).tobytes())
    content[place + 50] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is not a complete \.npz file: .*CRC"):
        nn.load(path)


def test_every_damaged_byte_gives_the_same_kind_of_error_or_none(tmp_path: Path):
    path = tmp_path / "state.npz"
    nn.save({"x": np.arange(3.0)}, path)
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in (1, 64):
            path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
            with contextlib.suppress(ValueError):
                nn.load(path)


def test_files_of_others_are_refused(tmp_path: Path):
    np.savez(tmp_path / "recording.npz", a=np.ones(3))
    with pytest.raises(ValueError, match=r"recording\.npz is an \.npz file that mpsim\.nn\.save did not write"):
        nn.load(tmp_path / "recording.npz")
    (tmp_path / "text.npz").write_text("a, b\n1, 2\n" * 100)
    with pytest.raises(ValueError, match=r"is not a complete \.npz file"):
        nn.load(tmp_path / "text.npz")
    (tmp_path / "text.safetensors").write_text("a, b\n1, 2\n" * 100)
    with pytest.raises(ValueError, match=r"is not a complete \.safetensors file: its header"):
        nn.load(tmp_path / "text.safetensors")
    np.savez(tmp_path / "later.npz", __mpsim_state__=2)
    with pytest.raises(ValueError, match="has version 2 of the format"):
        nn.load(tmp_path / "later.npz")
    with pytest.raises(FileNotFoundError):
        nn.load(tmp_path / "absent.npz")
    with pytest.raises(ValueError, match=r"ends in '\.pt'; \.npz or \.safetensors is needed"):
        nn.load(tmp_path / "state.pt")


def test_pickled_objects_are_never_loaded(tmp_path: Path):
    path = tmp_path / "objects.npz"
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        nn.load(path)


HEADERS: dict[str, tuple[Any, str]] = {
    "not JSON": (b"{]", "its header cannot be read"),
    "a list": ([1, 2], "its header cannot be read"),
    "no offsets": ({"x": {"dtype": "F32", "shape": [1]}}, "its header cannot be read"),
    "a hole": ({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "x does not begin where the one before"),
    "too short": ({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, "4 bytes of data are due, 8 there"),
    "another shape": ({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, "x has 8 bytes; shape"),
    "another dtype": ({"x": {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]}}, "x has dtype F4; known are F64"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_wrong_header_of_safetensors_is_told(name: str, tmp_path: Path):
    header, message = HEADERS[name]
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(ValueError, match=message):
        nn.load(path)


def test_the_safetensors_library_reads_and_writes_the_same_files(tmp_path: Path):
    library = pytest.importorskip("safetensors.numpy")
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([1.5, 2.0], np.float16),
        "c": np.array(7, np.int64),
        "d": np.ones((0, 2)),
    }
    nn.save(arrays, tmp_path / "ours.safetensors")
    theirs = library.load_file(tmp_path / "ours.safetensors")
    for name, array in arrays.items():
        assert_same_bits(theirs[name], array)
    library.save_file(arrays, tmp_path / "theirs.safetensors", metadata={"format": "np"})
    ours = nn.load(tmp_path / "theirs.safetensors")
    for name, array in arrays.items():
        assert_same_bits(ours[name], array.astype(np.float32) if name == "b" else array)


def test_a_name_that_the_format_needs_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="is the name of the mark"):
        nn.save({"__mpsim_state__": np.ones(1)}, tmp_path / "x.npz")


def test_an_npz_file_is_an_ordinary_one(tmp_path: Path):
    nn.save(model(0), tmp_path / "x.npz")
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        assert archive.testzip() is None
    with np.load(tmp_path / "x.npz") as stored:
        assert_same_bits(stored["3.bias"], model(0)[3].state_dict()["bias"])
