import hashlib
import io
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpsim.datasets import digits, load_npz


def test_digits_are_the_published_ones() -> None:
    # 13 writers, so many images of each class (Alpaydin and Kaynak 1998, optdigits.names).
    data = digits("all")
    assert np.bincount(data.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    pixels = (data.x * 16).astype(np.uint8)
    digest = hashlib.sha256(pixels.tobytes() + data.y.astype(np.uint8).tobytes()).hexdigest()
    assert digest == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
    # The first image is the zero that every tutorial shows.
    assert pixels[0].reshape(8, 8)[1].tolist() == [0, 0, 13, 15, 10, 15, 5, 0]
    assert data.licence == "CC BY 4.0"
    assert "10.24432/C50P49" in data.source


@pytest.mark.parametrize(("split", "rows"), [("train", 1438), ("test", 359), ("all", 1797)])
def test_digits_have_the_documented_shapes(split: Any, rows: int) -> None:
    data = digits(split)
    assert (data.x.shape, data.x.dtype) == ((rows, 64), np.float32)
    assert (data.y.shape, data.y.dtype) == ((rows,), np.int64)
    assert len(data) == rows
    assert (data.x.min(), data.x.max()) == (0.0, 1.0)
    assert data.x.flags.c_contiguous
    assert data.x.flags.writeable


def test_train_and_test_images_together_are_all() -> None:
    rows = [tuple(row) for split in ("train", "test") for row in digits(split).x.tolist()]
    assert sorted(rows) == sorted(tuple(row) for row in digits("all").x.tolist())


def test_every_class_is_split_alike() -> None:
    part, whole = np.bincount(digits("test").y), np.bincount(digits("all").y)
    assert np.all(abs(part - whole / 5) <= 0.5 + 1e-9)


def test_arrays_belong_to_the_caller() -> None:
    digits().x[:] = 7
    assert digits().x.max() == 1.0


def test_an_unknown_split_is_named() -> None:
    with pytest.raises(ValueError, match="split is 'valid'; it must be 'train', 'test' or 'all'"):
        digits("valid")  # type: ignore[arg-type]


# A user's own file.


def mnist(**changes: Any) -> dict[str, Any]:
    """A tiny file in the form of MNIST's, some arrays replaced; None leaves one out."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x_train": rng.integers(0, 256, (12, 4, 3), dtype=np.uint8),
        "y_train": np.arange(12, dtype=np.uint8) % 3,
        "x_test": rng.integers(0, 256, (5, 4, 3), dtype=np.uint8),
        "y_test": np.arange(5, dtype=np.uint8) % 3,
    }
    arrays["x_train"][0, 0, 0] = 255
    return {name: array for name, array in (arrays | changes).items() if array is not None}


def save(path: Path, arrays: Mapping[str, Any]) -> Path:
    np.savez(path, **arrays)
    return path


def test_mnist_form_is_read_flattened_and_scaled(tmp_path: Path) -> None:
    arrays = mnist()
    path = save(tmp_path / "mnist.npz", arrays)
    for split in ("train", "test"):
        data = load_npz(path, split)
        want = (arrays[f"x_{split}"].reshape(-1, 12) / np.float32(255)).astype(np.float32)
        assert np.array_equal(data.x, want)
        assert data.x.dtype == np.float32
        assert np.array_equal(data.y, arrays[f"y_{split}"])
        assert (data.name, data.y.dtype) == ("mnist", np.int64)
    assert len(load_npz(str(path), "all")) == 17


def test_compressed_column_major_and_other_integers_are_read(tmp_path: Path) -> None:
    x = np.asfortranarray(np.arange(24).reshape(6, 4))
    np.savez_compressed(tmp_path / "a.npz", x=x, y=np.arange(6).reshape(6, 1))
    data = load_npz(tmp_path / "a.npz", "all")
    assert np.array_equal(data.x, (np.arange(24).reshape(6, 4) / 23).astype(np.float32))
    assert data.y.tolist() == [0, 1, 2, 3, 4, 5]


def test_floats_are_taken_as_they_are(tmp_path: Path) -> None:
    x = np.linspace(-3, 3, 20).reshape(10, 2)
    data = load_npz(save(tmp_path / "a.npz", {"x": x.astype(">f8"), "y": np.zeros(10, int)}), "all")
    assert np.array_equal(data.x, x.astype(np.float32))


def test_x_and_y_alone_are_split_as_the_digits_are(tmp_path: Path) -> None:
    whole = digits("all")
    path = save(tmp_path / "a.npz", {"x": whole.x, "y": whole.y})
    for split in ("train", "test"):
        assert np.array_equal(load_npz(path, split).x, digits(split).x)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, r"it holds x_train, y_train, x_test; x_train, y_train, x_test, y_test or x, y are needed"),
        ({"x_train": np.zeros(12)}, r"x_train has shape \(12,\)"),
        ({"x_train": np.zeros((0, 3)), "y_train": np.zeros(0, int)}, r"x_train has shape \(0, 3\)"),
        ({"x_train": np.zeros((12, 4, 3), complex)}, "x_train has dtype complex128; integers or floats"),
        ({"x_train": np.full((12, 4, 3), "a")}, "x_train has dtype <U1"),
        ({"x_train": np.full((12, 12), -1)}, "x_train has negative integers"),
        ({"x_train": np.full((12, 12), np.nan)}, "x_train has values that are not finite"),
        ({"x_train": np.full((12, 12), 1e300)}, "x_train has values that are not finite"),
        ({"x_train": np.zeros((12, 5))}, "have (5 and 12|12 and 5) features; they must agree"),
        ({"y_train": np.arange(11)}, "x_train has 12 rows, y_train has 11"),
        ({"y_train": np.zeros(12)}, "y_train has dtype float64"),
        ({"y_train": np.eye(12, dtype=int)}, r"y_train has dtype int64 and shape \(12, 12\); integer labels of shape"),
        ({"y_train": np.arange(12) - 1}, "y_train runs from -1 to 10"),
        ({"y_train": np.arange(12) + 10**12}, "y_train runs from 1000000000000"),
        ({"x_train": np.array([object()] * 12)}, "x_train holds pickled Python objects, which are never loaded"),
    ],
)
def test_wrong_arrays_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "wrong.npz"
    np.savez(path, allow_pickle=True, **mnist(**changes))
    with pytest.raises(ValueError, match=message) as caught:
        load_npz(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


class Trap:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickles_are_never_executed(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    bare = tmp_path / "bare.npz"
    bare.write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(ValueError, match=r"not an \.npz archive"):
        load_npz(bare)
    inside = tmp_path / "inside.npz"
    np.savez(inside, allow_pickle=True, **mnist(y_train=np.array([Trap(sprung)] * 12)))
    with pytest.raises(ValueError, match="never loaded"):
        load_npz(inside)
    assert not sprung.exists()


def header(shape: str, descr: str = "|u1") -> bytes:
    """The head of an .npy file that claims a shape."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header("(1000000, 1000000)"), "x claims 1,000,000,000,000 bytes"),
        (header("(100, 100)"), r"x claims shape \(100, 100\), which is not what the file holds"),
        (header("(-1, 4)"), "x claims shape"),
        (header("(2, 2)") + bytes(5), r"x claims shape \(2, 2\), which"),
        (header("(2, 2)", "nonsense"), r"damaged\.npz: ."),
        (header("(2, 2"), r"damaged\.npz: ."),
        (header("__import__('os').getcwd()"), r"damaged\.npz: ."),
        (b"\x93NUMPY\x09\x00" + bytes(100), r"x has .npy version \(9, 0\)"),
        (b"", r"damaged\.npz: ."),
        (b"no header", r"damaged\.npz: ."),
    ],
)
def test_damaged_members_are_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "damaged.npz"
    labels = io.BytesIO()
    np.save(labels, np.zeros(2, int))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", labels.getvalue())
    with pytest.raises(ValueError, match=message) as caught:
        load_npz(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_cut_short_or_altered_anywhere_is_refused_or_read_right(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "cut.npz"
    (np.savez_compressed if compressed else np.savez)(path, **mnist())
    whole, want = path.read_bytes(), load_npz(path, "all")
    refused = 0
    rng = np.random.default_rng(1)
    cuts = [whole[:n] for n in range(0, len(whole), 97)]
    flips = [
        whole[:n] + bytes([whole[n] ^ int(rng.integers(1, 256))]) + whole[n + 1 :] for n in range(0, len(whole), 7)
    ]
    for damaged in cuts + flips:
        path.write_bytes(damaged)
        try:
            got = load_npz(path, "all")
        except ValueError as error:
            assert str(error).startswith(f"{path}: ")  # noqa: PT017 (either way out is right)
            refused += 1
        else:
            assert np.array_equal(got.x, want.x)
            assert np.array_equal(got.y, want.y)
    assert refused >= len(cuts)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npz: no such file; give the path"):
        load_npz(tmp_path / "nowhere.npz")
    with pytest.raises(ValueError, match="it is a folder"):
        load_npz(tmp_path)
