"""Random products over all of K, which confirm a unit together with a schedule or tell it from a black box."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim.formats import FP32
from mpsim.hardware import designs
from mpsim.hardware.boxes import Answers, Arrays, Box, Design, Setting, emulated, emulated_matrices, plain, same_answers
from mpsim.hardware.matching import Witness
from mpsim.matmul.schedules import Schedule
from mpsim.rounding import round_to
from mpsim.units import MatrixUnit

__all__ = ["Trials", "ask_trials"]

_SHORT = 512
"""Dot products of a few terms."""


class _Kind(NamedTuple):
    """Of random matrices."""

    spread: int
    """Powers of two up to which elements are spread."""
    share: float = 1.0
    """Of the elements of A that are not zero."""
    windows: int = 0
    """Into how many parts K is cut if every product has its opposite in its part, which leaves rounding errors only."""
    c: str = ""
    """Accumulators, where there are any: ``"random"``, or ``"opposite"`` to the sums, which leaves their errors too."""


_KINDS = (_Kind(0, c="opposite"), _Kind(2, windows=1), _Kind(6, 0.3), _Kind(14, 0.1, c="random"))
_NARROW_KINDS = tuple(_Kind(2, windows=n) for n in (2, 4, 8))
"""Besides, where partial sums may be rounded to a narrow result and only small ones show what came before."""


@dataclass(frozen=True)
class Trials:
    """Dot products of a few terms, matrices, and what a black box makes of them."""

    setting: Setting
    designs: list[Design]
    answers: Answers
    matrices: list[tuple[Arrays, NDArray[Any]]]
    takes_c: bool
    places: tuple[NDArray[np.intp], NDArray[np.intp]]
    """Rows and columns of the elements that are compared: all of them, or the diagonal's that are treated alike."""

    def on_diagonal(self) -> Trials:
        """Return the same with the elements compared where designs are asked about."""
        diagonal = self.places[0] == self.places[1]
        return replace(self, places=(self.places[0][diagonal], self.places[1][diagonal]))

    def agreement(self, unit: MatrixUnit, schedule: Schedule) -> tuple[int, int]:
        """Return how many elements a unit with a schedule gives as the box does, and how many there are."""
        compared = [same for _, _, same in self._compared(unit, schedule)]
        return sum(int(np.count_nonzero(same)) for same in compared), sum(same.size for same in compared)

    def departure(self, unit: MatrixUnit, schedule: Schedule) -> Witness | None:
        """Return a dot product, rather a short one, on which they differ; None where all are the same."""
        for i, given, same in self._compared(unit, schedule):
            if not same.all():
                return Witness(unit, *(self._element if i else self._shortest)(i, given, same), schedule)
        return None

    def _compared(self, unit: MatrixUnit, schedule: Schedule) -> Iterator[tuple[int, NDArray[Any], NDArray[np.bool_]]]:
        """Yield what a unit gives, and where the box gives the same: first (0) the designs, then each matrix."""
        setting = self.setting._replace(schedule=schedule)
        given = emulated(unit, self.designs, setting)
        yield 0, given, same_answers(given, self.answers)
        for i, (x, got) in enumerate(self.matrices, 1):
            given = emulated_matrices(unit, x, setting).astype(setting.dtype, copy=False)[self.places]
            yield i, given, same_answers(given, got[self.places])

    def _shortest(self, _: int, given: NDArray[Any], same: NDArray[np.bool_]) -> tuple[Design, float, float]:
        """Return the shortest of the designs whose answers differ, what was given, and the box's answer."""
        i = min(np.flatnonzero(~same).tolist(), key=lambda j: len(self.designs[j].products))
        return self.designs[i], float(given[i]), float(self.answers[i])

    def _element(self, i: int, given: NDArray[Any], same: NDArray[np.bool_]) -> tuple[Design, float, float]:
        """Return the same of the elements of the i-th matrix, counted from 1."""
        x, got = self.matrices[i - 1]
        first = int(np.flatnonzero(~same)[0])
        row, column = (int(places[first]) for places in self.places)
        factors = zip(range(self.setting.k), x.a[row].tolist(), x.b[:, column].tolist(), strict=True)
        products = tuple((k, left, right) for k, left, right in factors if left and right)
        return Design(products, float(x.c[row, column])), float(given[first]), float(got[row, column])


def ask_trials(box: Box, seed: int = 0) -> Trials:
    """Return a black box's answers to random products of its shape."""
    setting, takes_c = box.setting, box.takes_c
    rng = np.random.default_rng(seed)
    asked = designs.crossings(setting, _SHORT, takes_c, seed)
    m, n, _ = setting.shape
    every = np.indices((m, n)).reshape(2, -1)
    alike = every if box.places is None or len(box.places) == min(m, n) else np.array([box.places, box.places])
    kinds = _KINDS + (_NARROW_KINDS if setting.out.p < FP32.p else ())
    matrices = [_random_matrices(setting, rng, kind, takes_c) for kind in kinds]
    return Trials(
        setting, asked, box.ask(asked), [(x, box.ask_matrices(x)) for x in matrices], takes_c, (alike[0], alike[1])
    )


def _random_matrices(setting: Setting, rng: np.random.Generator, kind: _Kind, takes_c: bool) -> Arrays:
    m, n, k = setting.shape
    drawn = designs.random_values(rng, setting.a, m * k, kind.spread) * (rng.random(m * k) < kind.share)
    a, b = drawn.reshape(m, k), designs.random_values(rng, setting.b, k * n, kind.spread).reshape(k, n)
    for window in np.array_split(np.arange(k), kind.windows) if kind.windows else ():
        left, right = rng.permutation(window)[: window.size // 2 * 2].reshape(2, -1)
        a[:, right], b[right] = a[:, left], -b[left]
    x = plain(a.astype(setting.dtype), b.astype(setting.dtype), setting)
    if not (takes_c and kind.c):
        return x
    if kind.c == "opposite":
        largest = float(setting.out.max_finite)
        c = np.clip(-(a @ b), -largest, largest)
    else:
        c = rng.standard_normal((m, n)) * min(float(k) ** 0.5, float(setting.out.max_finite) / 16)
    return x._replace(c=round_to(c, setting.out).astype(setting.dtype))
