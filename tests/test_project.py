import re
from pathlib import Path

import pytest

import mpsim

ROOT = Path(__file__).resolve().parents[1]
TEST_COMMAND = re.compile(r'^pip install -e "\.\[test\]" && .*$', re.MULTILINE)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_readme_has_one_test_command_and_ci_runs_it() -> None:
    commands = TEST_COMMAND.findall(read("README.md"))
    assert len(commands) == 1
    assert "pytest" in commands[0]
    script = read(".ci/run")
    # The line is taken from the README with the pattern above, and nothing else in the script runs tests.
    assert """grep --max-count=1 '^pip install -e "\\.\\[test\\]" && ' README.md""" in script
    assert 'step "$test_line"' in script
    code = [line for line in script.splitlines() if not line.lstrip().startswith("#")]
    assert not any("pytest" in line for line in code)


def test_readme_says_how_to_reproduce_the_experiment() -> None:
    assert "\npip install . && mpsim reproduce underflow\n" in read("README.md")


def test_ci_can_be_executed() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_changelog_has_the_version() -> None:
    assert re.search(rf"^## \[{re.escape(mpsim.__version__)}\]", read("CHANGELOG.md"), re.MULTILINE)


@pytest.mark.parametrize("folder", ["mpsim", "kernels", "tests", "notebooks", ".ci"])
def test_no_path_of_one_machine_is_written_down(folder: str) -> None:
    absolute = re.compile(r"(?<![\w./])/(?:home|root|tmp|work|mnt|Users)/|[A-Z]:\\\\")
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md", ".ipynb", ".toml", ""}]
    for path in filter(Path.is_file, files):
        found = absolute.search(path.read_text(encoding="utf-8"))
        assert not found or path == Path(__file__), f"{path.relative_to(ROOT)}: {found and found.group()}"


def test_shipped_data_says_where_it_comes_from() -> None:
    data = [path for path in (ROOT / "mpsim" / "data").iterdir() if path.name != "README.md"]
    assert data
    for path in data:
        assert f"## {path.name}" in read("mpsim/data/README.md")
