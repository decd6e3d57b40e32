"""Sight: what happened to every tensor of a run, where numbers were lost first, and what would have kept them."""

from __future__ import annotations

from mpsim.observe.findings import CAUSES, Finding
from mpsim.observe.histograms import Histogram
from mpsim.observe.operands import Operand
from mpsim.observe.pairs import Comparison, Pair, compare
from mpsim.observe.record import KINDS, Entry, Record, observe
from mpsim.observe.what_if import Loss, WhatIf, Window, scale_windows, what_if
from mpsim.observe.zeros import ZeroCauses

__all__ = [
    "CAUSES",
    "KINDS",
    "Comparison",
    "Entry",
    "Finding",
    "Histogram",
    "Loss",
    "Operand",
    "Pair",
    "Record",
    "WhatIf",
    "Window",
    "ZeroCauses",
    "compare",
    "observe",
    "scale_windows",
    "what_if",
]
