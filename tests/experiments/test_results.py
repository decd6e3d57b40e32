import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpsim.experiments import open_folder, read_result, write_result


def result(content: Any) -> Any:
    return SimpleNamespace(to_dict=lambda: content)


def test_a_folder_is_made_with_its_parents(tmp_path: Path):
    folder = open_folder(tmp_path / "a" / "b")
    assert folder == tmp_path / "a" / "b"
    assert list(folder.iterdir()) == []
    assert open_folder(str(folder)) == folder  # empty: nothing to lose


def test_a_folder_with_something_in_it_is_left_alone_unless_forced(tmp_path: Path):
    (tmp_path / "result.json").write_text("old")
    with pytest.raises(ValueError, match=r"exists already; .* -o, or replace it with --force"):
        open_folder(tmp_path)
    assert open_folder(tmp_path, force=True) == tmp_path
    assert (tmp_path / "result.json").read_text() == "old"


@pytest.mark.parametrize("force", [False, True])
def test_a_file_in_the_way_is_an_error(tmp_path: Path, force: bool):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ValueError, match="is a file; choose another folder"):
        open_folder(file, force=force)
    with pytest.raises(ValueError, match=r"cannot be written \(.*\); choose another with -o"):
        open_folder(file / "below", force=force)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)  # root may write anywhere
    with pytest.raises(ValueError, match=r"cannot be written \(Permission denied\)"):
        open_folder(tmp_path)


def test_a_result_goes_round(tmp_path: Path):
    content = {"experiment": "x", "numbers": [1, 0.1, 5e-324, 1.7976931348623157e308], "none": None, "ü": "Δ"}
    path = write_result(result(content), tmp_path)
    assert path == tmp_path / "result.json"
    assert read_result(tmp_path) == read_result(str(tmp_path)) == content
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_crash_while_writing_leaves_the_older_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    write_result(result({"old": True}), tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_result(result({"new": True}), tmp_path)
    assert read_result(tmp_path) == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object()])
def test_what_is_not_json_leaves_the_older_result(tmp_path: Path, bad: Any):
    write_result(result({"old": True}), tmp_path)
    with pytest.raises((ValueError, TypeError)):
        write_result(result({"bad": bad}), tmp_path)
    assert read_result(tmp_path) == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ('{"a": ', "cannot be read"),
        ("[1]", "holds list"),
        ("3", "holds int"),
        ("\xff", "cannot"),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, text: str, message: str):
    (tmp_path / "result.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=message) as error:
        read_result(tmp_path)
    assert str(tmp_path / "result.json") in str(error.value)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(ValueError, match=r"result\.json cannot be read"):
        read_result(tmp_path)


def test_the_file_ends_with_a_newline_and_is_strict_json(tmp_path: Path):
    text = write_result(result({"a": 1.5}), tmp_path).read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert json.loads(text) == {"a": 1.5}
