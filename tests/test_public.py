import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import mpsim

SOURCE = Path(mpsim.__file__)


def run(program: str) -> str:
    """Run a program in a fresh interpreter that finds mpsim where this one does."""
    code = f"import sys\nsys.path[:0] = {sys.path!r}\n{program}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", mpsim.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(mpsim, name)
    if isinstance(value, ModuleType):
        assert value.__name__ == f"mpsim.{name}"
    assert name in dir(mpsim)


@pytest.mark.parametrize("name", mpsim.__all__)
def test_public_names_are_public_where_they_live(name: str) -> None:
    if name in mpsim._HOME:
        home = importlib.import_module(f"mpsim.{mpsim._HOME[name]}")
        assert name in home.__all__
        assert getattr(mpsim, name) is getattr(home, name)
    else:
        assert getattr(mpsim, name) is importlib.import_module(f"mpsim.{name}")


def test_formats_are_all_public() -> None:
    constants = {name for name in importlib.import_module("mpsim.formats").__all__ if name.isupper()}
    assert constants <= set(mpsim.__all__)


def test_type_checkers_see_the_names_that_run() -> None:
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    seen = {
        (n.module or "mpsim", a.name, a.asname) for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names
    }
    objects = {(f"mpsim.{home}", name, name) for name, home in mpsim._HOME.items()}
    assert seen == objects | {("mpsim", name, name) for name in mpsim._MODULES}


def test_importing_mpsim_imports_nothing_heavy() -> None:
    program = "import mpsim; print(*sys.modules)"
    loaded = set(run(program).split())
    assert "mpsim" in loaded
    assert not loaded & {"numba", "matplotlib", "numpy", "rich", "typer", "mpsim.formats"}


def test_inspect_needs_no_compiler() -> None:
    loaded = set(run("import mpsim; mpsim.inspect('0.1', mpsim.FP16); print(*sys.modules)").split())
    assert "mpsim.inspect" in loaded
    assert not loaded & {"numba", "matplotlib"}


FUNCTIONS = sorted(name for name, home in mpsim._HOME.items() if name == home)
ORDERS = [
    "import mpsim",
    "import mpsim.{name}",
    "import mpsim; mpsim.{name}; import mpsim.{name}",
    "from mpsim.{name} import {name}; import mpsim",
    "import importlib, mpsim; importlib.import_module('mpsim.{name}')",
    "import mpsim.cli, mpsim.nn, mpsim.{name}",
    "from mpsim import *; import mpsim",
]


def test_some_functions_share_the_name_of_their_module() -> None:
    assert {"inspect", "matmul"} <= set(FUNCTIONS)


@pytest.mark.parametrize("order", ORDERS)
def test_a_function_is_itself_in_whatever_order_things_are_imported(order: str) -> None:
    imports = "\n".join(order.format(name=name) for name in FUNCTIONS)
    run(
        f"{imports}\n"
        f"for name in {FUNCTIONS!r}:\n"
        "    module = sys.modules.get(f'mpsim.{name}') or __import__(f'mpsim.{name}', fromlist=['x'])\n"
        "    assert getattr(mpsim, name) is getattr(module, name), name\n"
        "    assert callable(getattr(mpsim, name)), name\n"
        "    scope = {}\n"
        "    exec(f'from mpsim import {name}', scope)\n"
        "    assert scope[name] is getattr(module, name), name\n"
        "    exec(f'from mpsim.{name} import {name}', scope)\n"
        "    assert scope[name] is getattr(module, name), name\n"
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_module_behind_a_function_is_still_a_module(name: str) -> None:
    assert isinstance(getattr(mpsim, name), FunctionType)
    assert isinstance(sys.modules[f"mpsim.{name}"], ModuleType)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'mpsim' has no attribute 'encodee'"):
        mpsim.encodee  # noqa: B018
    with pytest.raises(ImportError):
        exec("from mpsim import encodee")
    assert not hasattr(mpsim, "np")
