"""Small data sets: the digits that ship with the package, and a user's own ``.npz`` file."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from mpsim._npz import BROKEN, read_array

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

__all__ = ["Dataset", "Split", "digits", "load_npz"]

Split: TypeAlias = Literal["train", "test", "all"]

_MAX_CLASSES = 1 << 16


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Inputs and labels of a classification task; the arrays belong to the caller."""

    x: NDArray[np.float32]
    """Inputs, [n, features]."""
    y: NDArray[np.int64]
    """Labels 0 .. classes - 1, [n]."""
    name: str
    split: Split
    licence: str
    source: str

    def __len__(self) -> int:
        return len(self.y)


def digits(split: Split = "train") -> Dataset:
    """Return handwritten digits: 1,797 images of 8 x 8 pixels (Alpaydin and Kaynak 1998, CC BY 4.0).

    Parameters
    ----------
    split : {"train", "test", "all"}
        1,438, 359 or 1,797 images. In each class the middle one of every five consecutive images is a test
        image: no random numbers, classes and writers in proportion on both sides.

    Returns
    -------
    Dataset
        ``x`` float32 [n, 64], grey levels scaled to 0 .. 1, all exact multiples of 1/16; ``y`` int64 [n].

    Examples
    --------
    >>> train = digits()
    >>> train.x.shape, train.x.max(), train.y[:5]
    ((1438, 64), np.float32(1.0), array([0, 1, 2, 3, 4]))
    """
    chosen = _check_split(split)
    with resources.files("mpsim").joinpath("data", "digits.npz").open("rb") as file, np.load(file) as arrays:
        images, labels = arrays["images"], arrays["labels"].astype(np.int64)
    keep = _rows(labels, chosen)
    return Dataset(
        x=(images.reshape(len(images), -1)[keep] / np.float32(16)).astype(np.float32),
        y=labels[keep],
        name="digits",
        split=chosen,
        licence="CC BY 4.0",
        source="Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits, UCI, doi:10.24432/C50P49",
    )


def load_npz(path: str | os.PathLike[str], split: Split = "train") -> Dataset:
    """Read a data set from a NumPy archive such as Keras' ``mnist.npz``.

    Parameters
    ----------
    path : path of an ``.npz`` file
        With the arrays ``x_train, y_train, x_test, y_test``, or with ``x, y``, which are split as in `digits`.
        Inputs are [n, ...] and are flattened. Integers are divided by the largest in the file; floats are taken
        as they are. Labels are integers from 0, [n].
    split : {"train", "test", "all"}

    Returns
    -------
    Dataset
        ``x`` float32 [n, features], ``y`` int64 [n].

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file is no such archive; the message names the file and says what would work. Nothing in the file is
        ever executed: pickled objects are refused.
    """
    chosen, where = _check_split(split), Path(path)
    if not where.exists():
        raise FileNotFoundError(
            f"{where}: no such file; give the path of an .npz with x_train, y_train, x_test, y_test"
        )
    if where.is_dir():
        raise ValueError(f"{where}: it is a folder; give the path of an .npz file")
    with where.open("rb") as file:
        try:
            if not zipfile.is_zipfile(file):
                raise ValueError(
                    "it is not an .npz archive, or it is cut short; numpy.savez(path, x=..., y=...) writes one"
                )
            with zipfile.ZipFile(file) as archive:
                x, y = _read_pairs(archive, chosen)
        except BROKEN as error:
            raise ValueError(f"{where}: {' '.join(str(error).split())}") from error
    return Dataset(x=x, y=y, name=where.stem, split=chosen, licence="unknown", source=str(where))


def _check_split(split: str) -> Split:
    for known in get_args(Split):
        if split == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"split is {split!r}; it must be 'train', 'test' or 'all'")


def _rows(labels: NDArray[np.int64], split: Split) -> NDArray[np.bool_]:
    """Return which rows belong to a part: the third of every five images of a class is for testing."""
    rank = np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        rank[labels == label] = np.arange(np.count_nonzero(labels == label))
    test = rank % 5 == 2
    parts: dict[Split, NDArray[np.bool_]] = {"test": test, "train": ~test, "all": np.ones(len(labels), np.bool_)}
    return parts[split]


def _read_pairs(archive: zipfile.ZipFile, split: Split) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return inputs and labels of one part of an archive."""
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    if {"x_train", "y_train", "x_test", "y_test"} <= set(names):
        pairs = {part: _pair(archive, f"x_{part}", f"y_{part}") for part in ("train", "test")}
    elif {"x", "y"} <= set(names):
        pairs = {"all": _pair(archive, "x", "y")}
    else:
        found = ", ".join(names[:8]) or "nothing"
        raise ValueError(f"it holds {found}; x_train, y_train, x_test, y_test or x, y are needed")
    widths = {x.shape[1] for x, _ in pairs.values()}
    if len(widths) > 1:
        raise ValueError(f"x_train and x_test have {' and '.join(map(str, widths))} features; they must agree")
    if any(x.dtype.kind != "f" for x, _ in pairs.values()):
        largest = max(int(x.max()) for x, _ in pairs.values()) or 1
        pairs = {part: (x / np.float32(largest), y) for part, (x, y) in pairs.items()}
    if "all" in pairs:
        x, y = pairs["all"]
        keep = _rows(y, split)
        x, y = x[keep], y[keep]
        if not len(y):
            raise ValueError(f"its {len(keep)} rows leave none for split={split!r}; ask for split='all'")
    elif split == "all":
        x, y = (np.concatenate([pairs["train"][i], pairs["test"][i]]) for i in (0, 1))
    else:
        x, y = pairs[split]
    return np.ascontiguousarray(x, np.float32), np.ascontiguousarray(y, np.int64)


def _pair(archive: zipfile.ZipFile, x_name: str, y_name: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return checked inputs, as integers from 0 or finite float32, [n, features], and labels [n]."""
    x, y = read_array(archive, x_name), read_array(archive, y_name)
    if x.ndim < 2 or not x.size:
        raise ValueError(f"{x_name} has shape {x.shape}; [n, features] or [n, height, width] is needed, and not empty")
    if x.dtype.kind not in "biuf":
        raise ValueError(f"{x_name} has dtype {x.dtype}; integers or floats are needed")
    if y.dtype.kind not in "biu" or (y.ndim, *y.shape[1:]) not in ((1,), (2, 1)):
        raise ValueError(f"{y_name} has dtype {y.dtype} and shape {y.shape}; integer labels of shape [n] are needed")
    if len(x) != len(y):
        raise ValueError(f"{x_name} has {len(x)} rows, {y_name} has {len(y)}; they must agree")
    if y.min() < 0 or y.max() >= _MAX_CLASSES:
        raise ValueError(f"{y_name} runs from {y.min()} to {y.max()}; labels from 0, below {_MAX_CLASSES}, are needed")
    x = x.reshape(len(x), -1)
    if x.dtype.kind == "f":
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise ValueError(f"{x_name} has values that are not finite in float32")
    elif x.min() < 0:
        raise ValueError(f"{x_name} has negative integers; pixels from 0 up, or floats, are needed")
    return x, y.reshape(-1).astype(np.int64)
