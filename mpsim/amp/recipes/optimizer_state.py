"""How low-precision training systems keep weights and moments, as options of the optimizers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from mpsim.amp.recipes.base import named

__all__ = ["OPTIMIZER_STATES", "optimizer_state"]

OPTIMIZER_STATES: dict[str, Mapping[str, Any]] = {
    "ms-amp-o1": {"scaled": {"weight": "fp16"}},
    "ms-amp-o2": {"scaled": {"weight": "fp16", "exp_avg": "e4m3", "exp_avg_sq": "fp16"}},
    "ms-amp-o3": {"scaled": {"weight": "fp16", "exp_avg": "e4m3", "exp_avg_sq": "fp16"}},
    "deepseek-v3": {"state_format": "bf16"},
}
"""Options by system. MS-AMP's O3 differs from O2 in what is stored and sent between devices, not in the numbers: its
FP8 weights are cast from the FP16 ones, as the products of O1 and O2 cast theirs."""


def optimizer_state(name: str) -> dict[str, Any]:
    """Return the options of `optim.AdamW` that keep weights and moments as a system does.

    Parameters
    ----------
    name : {"ms-amp-o1", "ms-amp-o2", "ms-amp-o3", "deepseek-v3"}

    Raises
    ------
    ValueError
        No such system; the message lists those that there are.

    Examples
    --------
    >>> from mpsim import nn, optim
    >>> model = nn.Linear(4, 2, rng=0)
    >>> optimizer = optim.AdamW(model.parameters(), **optimizer_state("deepseek-v3"))
    >>> optimizer_state("ms-amp-o2")["scaled"]["exp_avg"]
    'e4m3'
    """
    return copy.deepcopy(dict(named(OPTIMIZER_STATES, name, "name")))
