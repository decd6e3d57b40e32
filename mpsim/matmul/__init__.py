"""Matrix products as matrix units compute them, and as libraries make them of a unit's instructions."""

from mpsim.matmul.counting import MatmulCounters
from mpsim.matmul.explain import Explanation, Step, explain_dot
from mpsim.matmul.products import matmul, matmul_codes
from mpsim.matmul.schedules import SCHEDULES, Reduction, Schedule, Split

__all__ = [
    "SCHEDULES",
    "Explanation",
    "MatmulCounters",
    "Reduction",
    "Schedule",
    "Split",
    "Step",
    "explain_dot",
    "matmul",
    "matmul_codes",
]
