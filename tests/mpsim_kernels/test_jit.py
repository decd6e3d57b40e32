import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from mpsim_kernels._jit import inner_kernel

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from mpsim.encoding import encode
from mpsim_kernels._jit import source_digest
print(source_digest(), encode([1.0, 65520.0], "fp16").tolist())
"""
pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")


def run(cache: Path) -> str:
    """Run a small program in a process of its own and return the digest that it prints after checking its result."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    digest, result = done.stdout.strip().split(" ", 1)
    assert result == "[15360, 31744]"
    return digest


def test_compiled_kernels_are_kept_in_a_folder_named_after_the_sources(tmp_path: Path):
    digest = run(tmp_path)
    folder = tmp_path / f"kernels-{digest}"
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    compiled = {path: path.stat().st_mtime_ns for path in folder.rglob("*.nbc")}
    assert compiled
    run(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.nbc")} == compiled


def test_without_a_folder_to_write_kernels_are_compiled_all_the_same(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("")
    run(file / "below")
    assert file.read_text() == ""
    assert list(tmp_path.iterdir()) == [file]


def test_a_part_of_kernels_is_not_called_from_python():
    part = inner_kernel(lambda x: x)
    with pytest.raises(TypeError, match="is a part of kernels, which alone can call it"):
        part(1)
