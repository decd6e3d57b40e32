"""The studies by name, and what they have in common."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from mpsim.modes import unknown

__all__ = ["Claim", "Progress", "Result", "Table", "configure", "get", "names", "run"]

Progress: TypeAlias = "Callable[[float, str], None]"
"""Called with the share of the work done, 0 to 1, and what has just been finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement of the literature, beside what was measured."""

    source: str
    """Who says so, and where."""
    statement: str
    criterion: str
    """What the measured numbers must satisfy for the claim to hold."""
    measured: str
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Part of a result, ready to be shown."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Result(Protocol):
    """What every study returns."""

    @property
    def experiment(self) -> str:
        """Name of the study."""

    @property
    def complete(self) -> bool:
        """Whether every part was run."""

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims that the finished parts allow to judge."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """What was measured, for people."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dictionaries, lists, strings and numbers."""


_STUDIES = ("underflow", "digits", "language", "copying", "cartpole", "adaptive")


def names() -> tuple[str, ...]:
    """Return the names of all studies."""
    return _STUDIES


def get(name: str) -> ModuleType:
    """Return the module of a study, with ``Config`` and ``run``.

    Raises
    ------
    ValueError
        No study has that name.
    """
    if name not in _STUDIES:
        raise unknown("experiment", name, _STUDIES)
    return importlib.import_module(f"mpsim.experiments.{name}")


def configure(name: str, overrides: Mapping[str, Any] | None = None) -> Any:
    """Return the configuration of a study, with fields that differ from their defaults.

    Raises
    ------
    ValueError
        Unknown study, or a field that its ``Config`` does not have or does not accept.
    """
    study = get(name)
    fields = [field.name for field in dataclasses.fields(study.Config)]
    for key in overrides or {}:
        if key not in fields:
            raise unknown(f"{name}: setting", key, fields)
    return study.Config(**(overrides or {}))


def run(
    name: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    workers: int = 1,
    progress: Progress | None = None,
    on_part: Callable[[Any], None] | None = None,
) -> Any:
    """Run a study.

    Parameters
    ----------
    name : str
    overrides : mapping, optional
        Fields of the study's ``Config`` that differ from their defaults.
    workers : int
        Processes to use. More than one needs a main module that can be imported (``if __name__ == "__main__"``).
    progress : callable, optional
        See `Progress`.
    on_part : callable, optional
        Called with the incomplete result after each part.

    Returns
    -------
    Result
        Of the study's own type.

    Raises
    ------
    ValueError
        Unknown study, or a field that its ``Config`` does not have or does not accept.

    Examples
    --------
    >>> result = run("underflow", {"epochs": 0})
    >>> result.complete
    True
    """
    config = configure(name, overrides)
    return get(name).run(config, workers=workers, progress=progress, on_part=on_part)
