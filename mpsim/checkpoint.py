"""Save a training run in one file, and go on with it bit for bit.

Examples
--------
>>> import os, tempfile
>>> from mpsim import nn, optim
>>> model = nn.Linear(2, 1, rng=0)
>>> optimizer = optim.Adam(model.parameters())
>>> path = os.path.join(tempfile.mkdtemp(), "run.npz")
>>> save(path, model=model, optimizer=optimizer)
>>> load(path, model=model, optimizer=optimizer)
{}
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim._npz import MAX_BYTES, read_arrays, write_arrays
from mpsim.amp import LossScaler, load_scaling_state, scaling_state
from mpsim.nn import Module
from mpsim.optim import Optimizer
from mpsim.optim.lr_scheduler import LRScheduler

__all__ = ["load", "save"]

_VERSION = 1


def save(
    path: str | os.PathLike[str],
    *,
    model: Module | None = None,
    optimizer: Optimizer | None = None,
    scaler: LossScaler | None = None,
    schedule: LRScheduler | None = None,
    generator: np.random.Generator | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write everything that the rest of a training run depends on.

    The file appears under its name when it is complete; until then what was there stays.

    Parameters
    ----------
    path : path of a ``.npz`` file
    model, optimizer, scaler, schedule, generator
        What to save; each may be left out. With the model go the amax histories of FP8 recipes.
    extra : mapping, optional
        Anything that JSON can hold, such as the number of the epoch.

    Raises
    ------
    TypeError
        ``extra`` has something that JSON cannot hold.
    """
    arrays: dict[str, NDArray[Any]] = {}
    meta: dict[str, Any] = {"version": _VERSION, "extra": dict(extra or {})}
    if model is not None:
        arrays.update({f"model/{name}": array for name, array in model.state_dict().items()})
        arrays.update({f"scaling/{name}": array for name, array in scaling_state(model).items()})
        meta["model"] = _formats(model)
    if optimizer is not None:
        state = optimizer.state_dict()
        for i, entry in state["state"].items():
            arrays.update({f"optimizer/{i}/{name}": value for name, value in entry.items() if name != "step"})
        steps = {i: entry["step"] for i, entry in state.pop("state").items()}
        meta["optimizer"] = {"class": type(optimizer).__name__, "steps": steps, **state}
    if scaler is not None:
        meta["scaler"] = scaler.state_dict()
    if schedule is not None:
        meta["schedule"] = schedule.state_dict()
    if generator is not None:
        meta["generator"] = generator.bit_generator.state
    arrays["meta"] = np.array(json.dumps(meta, default=_plain))
    write_arrays(path, arrays)


def load(
    path: str | os.PathLike[str],
    *,
    model: Module | None = None,
    optimizer: Optimizer | None = None,
    scaler: LossScaler | None = None,
    schedule: LRScheduler | None = None,
    generator: np.random.Generator | None = None,
) -> dict[str, Any]:
    """Bring a training run to where it was saved; nothing changes if anything does not fit.

    Parameters
    ----------
    path : path of a file that `save` wrote
    model, optimizer, scaler, schedule, generator
        Made as those that were saved, and all of those.

    Returns
    -------
    extra : dict

    Raises
    ------
    ValueError
        The file is damaged or no checkpoint, or has or lacks one of the parts, or a part does not fit.
    OSError
        There is no such file, or it cannot be read.
    """
    arrays, meta = _read(Path(path))
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler, "schedule": schedule, "generator": generator}
    for name, part in parts.items():
        if part is not None and name not in meta:
            raise ValueError(f"{path} has no {name}: leave {name} out")
        if part is None and name in meta:
            raise ValueError(f"{path} has a {name}: pass {name}=, made as the one that was saved")
    with contextlib.ExitStack() as undo:
        if model is not None:
            if _formats(model) != meta["model"]:
                raise ValueError(f"{path}: the parameters have other names or formats than those of the model")
            undo.callback(model.load_state_dict, model.state_dict())
            model.load_state_dict(_below("model/", arrays))
            undo.callback(load_scaling_state, model, scaling_state(model))
            load_scaling_state(model, _below("scaling/", arrays))
        if optimizer is not None:
            undo.callback(optimizer.load_state_dict, optimizer.state_dict())
            optimizer.load_state_dict(_optimizer_state(meta["optimizer"], arrays, optimizer))
        if scaler is not None:
            if bool(meta["scaler"]) != scaler.enabled:
                raise ValueError(f"{path}: the scaler was {'en' if meta['scaler'] else 'dis'}abled")
            if scaler.enabled:
                undo.callback(scaler.load_state_dict, scaler.state_dict())
            scaler.load_state_dict(meta["scaler"])
        if schedule is not None:
            undo.callback(schedule.load_state_dict, schedule.state_dict())
            schedule.load_state_dict(meta["schedule"])
        if generator is not None:
            own = generator.bit_generator.state["bit_generator"]
            if meta["generator"]["bit_generator"] != own:
                raise ValueError(f"{path}: generator is a {meta['generator']['bit_generator']}; this is a {own}")
            generator.bit_generator.state = meta["generator"]
        undo.pop_all()
    extra: dict[str, Any] = meta["extra"]
    return extra


def _formats(model: Module) -> dict[str, str]:
    return {name: parameter.format.name for name, parameter in model.named_parameters()}


def _below(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _optimizer_state(meta: dict[str, Any], arrays: Mapping[str, NDArray[Any]], optimizer: Optimizer) -> dict[str, Any]:
    """Return what `Optimizer.load_state_dict` takes."""
    if meta["class"] != type(optimizer).__name__:
        raise ValueError(f"optimizer was a {meta['class']}; this is a {type(optimizer).__name__}")
    state = {i: {"step": step, **_below(f"optimizer/{i}/", arrays)} for i, step in meta["steps"].items()}
    return {"state": state, **{name: meta[name] for name in ("param_groups", "rules", "counts")}}


def _read(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return all arrays of a file, whose check sums are right, and what it says about them."""
    with _explained(path):
        arrays = read_arrays(path, max(MAX_BYTES, path.stat().st_size))  # `save` compresses nothing
        meta = json.loads(str(arrays.pop("meta")))
        if meta["version"] != _VERSION:
            raise ValueError(f"version {meta['version']}")
    return arrays, meta


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"{path} is damaged, or no checkpoint of version {_VERSION} ({reason})") from error


def _plain(value: Any) -> Any:
    """Return a NumPy scalar or array as JSON has it."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"extra has a {type(value).__name__}, which JSON cannot hold")
