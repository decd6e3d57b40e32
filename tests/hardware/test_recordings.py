import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim.cli import main
from mpsim.encoding import encode
from mpsim.hardware import RecordedSet, Recording, read, replay, write
from mpsim.matmul import matmul_codes

Array = np.ndarray[Any, Any]


def product(**facts: Any) -> RecordedSet:
    rng = np.random.default_rng(0)
    a, b = (encode(rng.integers(-99, 99, shape) / 16, "fp16") for shape in ((2, 3, 8), (2, 8, 5)))
    d = matmul_codes(a, b, unit="v100")
    told = {"unit": "v100", "inputs": "fp16", "out": "fp32", **facts}
    return RecordedSet(name="tiles", kind="instruction", arrays={"a": a, "b": b, "d": d}, facts=told)


def conversion(**arrays: Array) -> RecordedSet:
    x = np.array([0x3F800000, 0x33800000], np.uint32)
    parts = {"x": x, "z": encode(x.view(np.float32), "fp16"), **arrays}
    return RecordedSet(name="cvt", kind="conversion", arrays=parts, facts={"source": "fp32", "target": "fp16"})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.npz"
    write(path, Recording(device="a card", sets=(product(), conversion()), software={"driver": "1"}, recorded="today"))
    back = read(path)
    assert (back.device, back.software, back.recorded) == ("a card", {"driver": "1"}, "today")
    for ours, theirs in zip((product(), conversion()), back.sets, strict=True):
        assert (ours.name, ours.kind, ours.facts) == (theirs.name, theirs.kind, theirs.facts)
        assert ours.arrays.keys() == theirs.arrays.keys()
        for name, array in ours.arrays.items():
            assert_same_bits(theirs.arrays[name], array)
    assert [(o.results, o.different) for o in replay(back)] == [(30, 0), (2, 0)]


def test_sets_share_arrays_in_the_file(tmp_path: Path) -> None:
    x, z = np.zeros(4096, np.uint32), np.zeros(4096, np.uint16)
    sets = [
        RecordedSet(
            name=f"n{i}", kind="conversion", arrays={"x": x, "z": z}, facts={"source": "fp32", "target": "fp16"}
        )
        for i in range(2)
    ]
    write(tmp_path / "r.npz", Recording(device="d", sets=tuple(sets)))
    assert sorted(np.load(tmp_path / "r.npz").files) == ["0/n0/x", "0/n0/z", "meta"]


def test_sets_of_one_name_keep_their_own_arrays(tmp_path: Path) -> None:
    first, second = (conversion(flags=np.full(2, flag, np.uint8)) for flag in (0, 1))
    write(tmp_path / "r.npz", Recording(device="d", sets=(first, second)))
    back = read(tmp_path / "r.npz").sets
    assert [part.arrays["flags"].tolist() for part in back] == [[0, 0], [1, 1]]


def test_a_set_says_what_is_wrong_with_it() -> None:
    with pytest.raises(ValueError, match="tiles: kind is 'matrix': it must be one of instruction, gemm"):
        RecordedSet(name="tiles", kind="matrix", arrays={})
    with pytest.raises(ValueError, match="cvt: a set of kind conversion without z, target"):
        RecordedSet(name="cvt", kind="conversion", arrays={"x": np.zeros(1, np.uint32)}, facts={"source": "fp32"})
    with pytest.raises(TypeError, match="cvt: z has dtype uint32; uint16 is needed for fp16"):
        conversion(z=np.zeros(2, np.uint32))
    with pytest.raises(ValueError, match=r"x \(2,\), z \(3,\); vectors of one length are needed"):
        conversion(z=np.zeros(3, np.uint16))
    with pytest.raises(ValueError, match="y: a set of kind conversion has no such array"):
        conversion(y=np.zeros(2, np.uint16))
    with pytest.raises(ValueError, match="unknown format 'fp61'"):
        product(inputs="fp61")


class Meta:
    """What the file of a good recording says, to be spoilt."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "bad.npz"
        write(self.path, Recording(device="d", sets=(conversion(),)))
        with np.load(self.path) as file:
            self.arrays = dict(file)
        self.meta = json.loads(str(self.arrays.pop("meta")))

    def save(self, **arrays: Any) -> None:
        np.savez(self.path, **{"meta": np.array(json.dumps(self.meta)), **self.arrays, **arrays})


def huge(m: Meta) -> None:
    """Let the header of an array claim 2^40 elements."""
    header = b"{'descr': '<u4', 'fortran_order': False, 'shape': (1099511627776,), }"
    header = header.ljust(117) + b"\n"
    with zipfile.ZipFile(m.path, "a") as archive:
        archive.writestr("huge.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


BAD = {
    "cut short": lambda m: m.path.write_bytes(m.path.read_bytes()[:-100]),
    "no archive": lambda m: m.path.write_text("hello"),
    "empty": lambda m: m.path.write_bytes(b""),
    "damaged": lambda m: (m.save(), m.path.write_bytes(m.path.read_bytes().replace(b"NUMPY", b"NUMQY"))),
    "pickle": lambda m: m.save(extra=np.array([{}], object)),
    "pickled meta": lambda m: m.save(meta=np.array({"mpsim_recording": 1}, object)),
    "huge": huge,
    "meta is no JSON": lambda m: m.save(meta=np.array("{")),
    "meta is deep": lambda m: m.save(meta=np.array("[" * 100_000)),
    "meta is a number": lambda m: m.save(meta=np.array(3)),
    "meta is a list": lambda m: m.save(meta=np.array("[1]")),
    "version": lambda m: (m.meta.update(mpsim_recording=9), m.save()),
    "no sets": lambda m: (m.meta.pop("sets"), m.save()),
    "sets of text": lambda m: (m.meta.update(sets=["a"]), m.save()),
    "kind": lambda m: (m.meta["sets"][0].update(kind="x"), m.save()),
    "options": lambda m: (m.meta["sets"][0].update(options=[1]), m.save()),
    "unknown option": lambda m: (m.meta["sets"][0].update(options={"colour": "red"}), m.save()),
    "missing array": lambda m: (m.arrays.pop("0/cvt/z"), m.save()),
    "dtype": lambda m: m.save(**{"0/cvt/z": np.zeros(2, np.float64)}),
    "shape": lambda m: m.save(**{"0/cvt/z": np.zeros((2, 2), np.uint16)}),
    "format": lambda m: (m.meta["sets"][0].update(target="fp99"), m.save()),
    "nothing known": lambda m: np.savez(m.path, weights=np.zeros(3)),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_told_in_one_line(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = Meta(tmp_path)
    BAD[kind](meta)
    assert main(["validate", str(meta.path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"mpsim: {meta.path}: ")
    assert len(err) < 400


def test_a_missing_file_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(tmp_path / "none.npz")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["validate", str(tmp_path)]) == 2
    assert "no files a_<GPU>_<format>.txt" in capsys.readouterr().err


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.npz"
    path.write_text("before")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        write(path, Recording(device="d", sets=(conversion(),)))
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["r.npz"]
