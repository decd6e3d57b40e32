"""The bits do not depend on the machine: digests of everything, and the same digests under other conditions."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import pytest

import digest
import mxcsr as fpu
from mpsim import arithmetic
from mpsim.ops import TABLE

FOLDER = Path(__file__).parent
STORED = json.loads((FOLDER / "golden" / "digests.json").read_text(encoding="utf-8"))
KERNELS = [name for name in digest.PARTS if name not in ("differentiable", "table")]
"""Parts that are computed in kernels: NumPy's own arithmetic follows the processor's control register."""

compiled = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="takes many minutes as plain Python")


def stored(*parts: str) -> dict[str, str]:
    return {name: value for name, value in STORED.items() if name.split(":")[0] in parts}


def process(*arguments: str, **environment: str) -> dict[str, Any]:
    """Return the digests that a process of its own finds, under other environment variables."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment
    command = [sys.executable, str(FOLDER / "digest.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def without_avx512() -> str:
    """Return Numba's word for all features of this processor but AVX-512."""
    features = llvm.get_host_cpu_features()
    wide = {"evex512", "avx512f"} | {name for name in features if name.startswith(("avx512", "avx10"))}
    features.update(dict.fromkeys(wide & features.keys(), False))
    return str(features.flatten())


@compiled
@pytest.mark.parametrize("part", digest.PARTS)
def test_every_result_is_the_stored_one(part: str) -> None:
    found, size = digest.digests({part: digest.PARTS[part]})
    assert found == stored(part)
    assert size > 2000


def test_every_part_is_stored() -> None:
    assert {name.split(":")[0] for name in STORED} == {*digest.PARTS, *digest.EXTRACTS}


def test_every_operation_is_stored() -> None:
    """Those of the table, and those of IEEE 754."""
    names = {part: {name.split(": ")[1].split()[0] for name in stored(part)} for part in digest.PARTS}
    assert names["table"] == set(TABLE)
    functions = {name for name in arithmetic.__all__ if inspect.isfunction(getattr(arithmetic, name))}
    assert names["operations"] | names["other operations"] == functions - {"current", "env"}


@compiled
@pytest.mark.parametrize("word", [fpu.FTZ | fpu.DAZ, fpu.ROUND_UP, fpu.ROUND_TO_ZERO | fpu.FTZ | fpu.DAZ])
def test_the_control_register_changes_nothing(word: int) -> None:
    parts = {name: digest.PARTS[name] for name in KERNELS if name != "formats"}
    with fpu.mxcsr(fpu.DEFAULT | word):
        found, _ = digest.digests(parts)
    assert found == stored(*parts)


@pytest.mark.long
@pytest.mark.parametrize("word", [fpu.FTZ | fpu.DAZ, fpu.ROUND_DOWN])
def test_the_control_register_changes_no_format(word: int) -> None:
    with fpu.mxcsr(fpu.DEFAULT | word):
        found, _ = digest.digests({"formats": digest.formats})
    assert found == stored("formats")


@compiled
@pytest.mark.parametrize("threads", ["1", "2"])
def test_the_number_of_threads_changes_nothing(threads: str) -> None:
    found = process("large", NUMBA_NUM_THREADS=threads)
    assert found["digests"] == stored("large")
    assert found["threads"] == (threads == "2")


def test_plain_python_gives_the_same() -> None:
    assert process("small", "tiny", NUMBA_DISABLE_JIT="1")["digests"] == stored("small", "tiny")


OTHER_CODE = {"generic": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}, "without AVX-512": {}}


@pytest.mark.long
@pytest.mark.parametrize("kind", OTHER_CODE)
def test_machine_code_for_other_processors_gives_the_same(kind: str) -> None:
    environment = OTHER_CODE[kind] or {
        "NUMBA_CPU_NAME": llvm.get_host_cpu_name(),
        "NUMBA_CPU_FEATURES": without_avx512(),
    }
    assert process(**environment)["digests"] == STORED


@compiled
def test_machine_code_for_any_processor_converts_the_same() -> None:
    assert process("tiny", **OTHER_CODE["generic"])["digests"] == stored("tiny")


def test_a_changed_bit_changes_the_digest() -> None:
    def changed() -> Any:
        for name, array in digest.tiny():
            yield name, array ^ array.dtype.type(1) if name == "encode" else array

    found, _ = digest.digests({"tiny": changed})
    assert {name for name in found if found[name] != STORED[name]} == {"tiny: encode"}
