"""Checks of what comes into an optimizer: parameters, groups, saved states."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpsim.optim.updates import Array, Rules
from mpsim.stochastic import Draws
from mpsim.tensor import Tensor

__all__ = ["Loaded", "checked_groups", "checked_state", "packed_rules", "rules_of"]


def checked_groups(params: Iterable[Tensor] | Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return groups with lists of parameters, which must be leaf tensors, each once."""
    if isinstance(params, Tensor):
        raise TypeError("params is a Tensor; an iterable of tensors is needed, such as model.parameters()")
    given = list(params)
    if not given:
        raise ValueError("params is empty; pass model.parameters() of a model with at least one layer")
    groups: list[dict[str, Any]] = []
    if isinstance(given[0], dict):
        for group in given:
            if not isinstance(group, dict) or "params" not in group:
                raise TypeError("params has a group without 'params'; each must be a dict that has it")
            members = group["params"]
            if isinstance(members, set | frozenset):
                raise TypeError("params is a set, which has no order; pass a list")
            groups.append({**group, "params": [members] if isinstance(members, Tensor) else list(members)})
    else:
        groups.append({"params": given})
    members = [parameter for group in groups for parameter in group["params"]]
    for parameter in members:
        if not isinstance(parameter, Tensor):
            raise TypeError(f"params has a {type(parameter).__name__}; each must be a Tensor, as of model.parameters()")
        if not parameter.is_leaf:
            raise ValueError("params has a tensor that an operation made; only leaves can be updated")
    if len({id(parameter) for parameter in members}) < len(members):
        raise ValueError("params has a tensor more than once, which would be updated twice")
    return groups


class Loaded(NamedTuple):
    """A saved state that fits."""

    groups: list[dict[str, Any]]
    state: dict[int, tuple[int, dict[str, Array]]]
    rules: Mapping[str, Any]
    counts: list[list[int]]


def checked_state(
    state_dict: Mapping[str, Any], groups: Sequence[dict[str, Any]], params: Sequence[Tensor], kept: tuple[str, ...]
) -> Loaded:
    """Return a saved state after comparing it with the optimizer's groups and parameters."""
    for key in ("state", "param_groups", "rules", "counts"):
        if key not in state_dict:
            raise ValueError(f"load_state_dict: {key!r} is missing; pass what state_dict() returned")
    saved = state_dict["param_groups"]
    sizes, own = [len(g["params"]) for g in saved], [len(g["params"]) for g in groups]
    if sizes != own:
        raise ValueError(f"load_state_dict: groups of {sizes} parameters; the optimizer has groups of {own}")
    for i, (group, new) in enumerate(zip(groups, saved, strict=True)):
        different = sorted((group.keys() ^ new.keys()) - {"initial_lr"})
        if different:
            where = "missing in" if different[0] in group else "unknown to"
            other = "the state" if different[0] in group else "this optimizer"
            raise ValueError(f"load_state_dict: option {different[0]!r} of group {i} is {where} {other}")
    counts = [[int(n) for n in pair] for pair in state_dict["counts"]]
    if len(counts) != 1 + len(params):
        raise ValueError(f"load_state_dict: counts has {len(counts)} rows; {1 + len(params)} are needed")
    state = {int(i): _entry(int(i), entry, params, kept) for i, entry in state_dict["state"].items()}
    # JSON has no tuples.
    restored = [{k: tuple(v) if isinstance(v, list) and k != "params" else v for k, v in g.items()} for g in saved]
    return Loaded(restored, state, state_dict["rules"], counts)


def _entry(
    i: int, entry: Mapping[str, Any], params: Sequence[Tensor], kept: tuple[str, ...]
) -> tuple[int, dict[str, Array]]:
    """Return the step and the arrays of one parameter."""
    if not 0 <= i < len(params):
        raise ValueError(f"load_state_dict: state of parameter {i}; the optimizer has {len(params)}")
    if "step" not in entry:
        raise ValueError(f"load_state_dict: 'step' of parameter {i} is missing")
    arrays: dict[str, Array] = {}
    for name, value in entry.items():
        if name == "step":
            continue
        if name not in kept:
            raise ValueError(f"load_state_dict: {name!r} of parameter {i} is not kept here; kept are {', '.join(kept)}")
        array = np.asarray(value)
        if array.shape != params[i].shape:
            raise ValueError(
                f"load_state_dict: {name!r} of parameter {i} has shape {array.shape}; {params[i].shape} is needed"
            )
        if array.dtype != params[i].data.dtype:
            raise ValueError(
                f"load_state_dict: {name!r} of parameter {i} has dtype {array.dtype}; {params[i].data.dtype} is needed"
            )
        arrays[name] = np.array(array, order="C")
    return int(entry["step"]), arrays


def packed_rules(rules: Rules) -> dict[str, Any]:
    """Return the rules as plain strings and numbers."""
    return {
        "update": str(rules.update),
        "state_format": None if rules.state_format is None else rules.state_format.name,
        "state_rounding": str(rules.state_rounding),
        "rng": None if rules.draws is None else dataclasses.asdict(rules.draws),
        "scaled": {name: fmt.name for name, fmt in rules.scaled.items()},
    }


def rules_of(packed: Mapping[str, Any], own: Rules) -> Rules:
    """Return the optimizer's rules with the random numbers of a saved state; the rest must agree."""
    mine = packed_rules(own)
    for name in ("update", "state_format", "state_rounding", "scaled"):
        if packed.get(name) != mine[name]:
            raise ValueError(f"load_state_dict: {name} is {packed.get(name)!r}; the optimizer has {mine[name]!r}")
    if (packed.get("rng") is None) != (own.draws is None):
        raise ValueError("load_state_dict: rng is missing, or not wanted")
    return own if own.draws is None else dataclasses.replace(own, draws=Draws(**packed["rng"]))
