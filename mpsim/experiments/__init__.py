"""Studies: one a module, from a frozen configuration to a frozen result with its claims."""

from mpsim.experiments.registry import Claim, Progress, Result, Table, configure, get, names, run
from mpsim.experiments.results import open_folder, read_result, write_result

__all__ = [
    "Claim",
    "Progress",
    "Result",
    "Table",
    "configure",
    "get",
    "names",
    "open_folder",
    "read_result",
    "run",
    "write_result",
]
