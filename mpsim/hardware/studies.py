"""The unit inside a schedule: one chain is studied as if there were nothing else, then tried with all of K."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.formats import FP32, FP64
from mpsim.hardware import designs
from mpsim.hardware.boxes import Answers, Box
from mpsim.hardware.hypotheses import hypotheses, is_predicted
from mpsim.hardware.layouts import first_chain, is_usual, plain, proposals, schedule_text, signature, variants
from mpsim.hardware.matching import Witness, arithmetic_of, candidates, fits
from mpsim.hardware.measures import Measures, measure
from mpsim.hardware.structure import Structure, find_structure
from mpsim.hardware.trials import Trials
from mpsim.matmul.schedules import Schedule
from mpsim.units import Family, MatrixUnit

__all__ = ["Studies", "Study", "found_schedule", "in_turn", "other_schedules"]

_STUDIED = 128
"""Places of a chain that are enough to study it."""
_RANDOM = 384
_UNITS = 4
"""Units that fit one chain which are tried on all of K: the likeliest."""
_ALIKE = 2
"""The same of one family with one format of results, where none of those goes with any schedule."""
_STUDIES = 8
"""Chains that are studied before a box is given up."""


@dataclass(frozen=True)
class Study:
    """What one chain of a box was found to do."""

    box: Box
    """The places of that chain alone."""
    structure: Structure
    measures: Measures

    @functools.cached_property
    def answers(self) -> Answers:
        """What the box said, to ``measures.asked``."""
        return np.concatenate(self.measures.answers)

    @functools.cached_property
    def units(self) -> list[MatrixUnit]:
        """Units that give every answer; rows of the catalogue only where what was measured proposes none."""
        found = list(itertools.islice(self._fitting(self._proposed()), _UNITS))
        return found or list(itertools.islice(self._fitting(candidates(self.box.setting)), _UNITS))

    @functools.cached_property
    def varied_units(self) -> list[MatrixUnit]:
        """Rows of the catalogue that give every answer, and what was measured: a few of every kind.

        One chain of few products with a narrow result may fit many units of a kind, and the right one be of another.
        """
        kinds: Counter[tuple[Family, str]] = Counter()
        found = []
        rows = {arithmetic_of(row): row for row in candidates(self.box.setting)}.values()
        for unit in self._fitting(unit for unit in (*rows, *self._proposed()) if kinds[unit.family, unit.out] < _ALIKE):
            kinds[unit.family, unit.out] += 1
            found.append(unit)
        return found

    def _proposed(self) -> Iterator[MatrixUnit]:
        return hypotheses(self.box.setting, self.structure, self.measures)

    def _fitting(self, units: Iterable[MatrixUnit]) -> Iterator[MatrixUnit]:
        return fits(units, self.measures.asked, self.answers, self.box.setting)


def studied(box: Box, schedule: Schedule, seed: int) -> Study:
    """Return what the chain of k = 0 does if the box follows a schedule.

    A promoted chain gets no accumulator: that is added to its result.
    """
    chain = first_chain(schedule, box.setting.k)[:_STUDIED]
    return _studied_places(box, chain, _alone(schedule, len(chain)), schedule.promotion > 0, seed)


def _studied_places(box: Box, places: NDArray[np.intp], schedule: Schedule, without_c: bool, seed: int) -> Study:
    if not schedule.is_one_chain or len(places) < box.setting.k:
        box = box.inside(places.tolist(), schedule, without_c)
    structure = find_structure(box)
    measures = measure(box, structure) if len(places) > 2 else Measures()
    some = range(1, min(box.setting.k, 34))
    measures.ask(box, designs.cancellations(box.setting, 0, some))
    measures.ask(box, designs.cancellations(box.setting, 0, some, accumulator=True))
    measures.ask(box, designs.pairs_on_a_large_accumulator(box.setting)[:34])
    measures.ask(box, designs.random_dots(box.setting, _RANDOM, seed))
    return Study(box, structure, measures)


def _alone(schedule: Schedule, n: int) -> Schedule:
    """Return a schedule that treats n products as the first chain of another one, whose others are zero."""
    if schedule.promotion:
        return Schedule(promotion=n)
    return schedule if schedule.is_one_chain else Schedule(split_k=2, tile=n)


def in_turn(box: Box, hidden: Sequence[int | None]) -> list[Schedule]:
    """Return the schedules that a box may follow, the likeliest first.

    Those are the ones whose first chain some family explains, with tiles such as libraries have.
    """
    setting = box.setting
    if setting.scale is not None or FP64 in setting[:3]:
        return [Schedule()]

    def explained(schedule: Schedule) -> bool:
        own = tuple(hidden[k] for k in first_chain(schedule, setting.k).tolist())
        if own not in verdicts:
            verdicts[own] = is_predicted(own)
        return verdicts[own]

    verdicts: dict[tuple[int | None, ...], bool] = {}
    return sorted(proposals(hidden), key=lambda schedule: (not explained(schedule), not is_usual(schedule)))


Studies: TypeAlias = dict[tuple[bytes, bool, bool], Study]
"""By the places of a chain, and whether it is promoted, or all there is."""


def found_schedule(
    box: Box,
    schedules: Sequence[Schedule],
    hidden: Sequence[int | None],
    trials: Trials,
    seed: int,
    studies: Studies,
) -> tuple[Study, MatrixUnit | None, Schedule | None]:
    """Return the first study, unit and schedule that give all that a box gives.

    Where there are none, the schedule is None, and the unit one that gives the answers of the first chain that has any.
    Studies that were made before are used again, and new ones are kept with them.
    """
    best: tuple[Study, MatrixUnit] | None = None
    tried: set[Any] = set()
    for varied, schedule in itertools.product((False, True), schedules):
        chain = first_chain(schedule, box.setting.k)
        key = chain[:_STUDIED].tobytes(), schedule.promotion > 0, schedule.is_one_chain
        if key not in studies and len(studies) == _STUDIES:
            continue
        if key not in studies:
            studies[key] = studied(box, schedule, seed)
        study = studies[key]
        cut = _signature(trials, schedule)
        for unit in study.varied_units if varied else study.units:
            best = best or (study, unit)
            if (unit, cut) not in tried and trials.departure(unit, schedule) is None:
                return study, unit, schedule
            tried.add((unit, cut))
    if best is None:
        best = _unit_of_a_chain(box, hidden, seed)
    if best is not None:
        return *best, None
    return next(iter(studies.values())), None, None


def _unit_of_a_chain(box: Box, hidden: Sequence[int | None], seed: int) -> tuple[Study, MatrixUnit] | None:
    """Return the study of the longest part of K that looks like one chain, and the unit there, if it has one."""
    seen = np.array([-1 if count is None else count for count in hidden])
    for count in np.unique(seen[1:])[::-1]:
        own = np.flatnonzero(seen < count)
        if own.size > 2 and is_predicted([hidden[k] for k in own.tolist()]):
            study = _studied_places(box, own[:_STUDIED], Schedule(split_k=2, tile=box.setting.k), False, seed)
            return (study, study.units[0]) if study.units else None
    return None


def other_schedules(
    unit: MatrixUnit, found: Schedule, proposed: Sequence[Schedule], trials: Trials
) -> tuple[list[Schedule], list[Witness]]:
    """Return schedules that cannot be told from the one that was found, and others with where they differ.

    They are those that the structure allows, the presets, and those that differ in one number: of all that make the
    same additions, the shortest to say of each kind.
    """
    if trials.setting.scale is not None or FP64 in trials.setting[:3]:
        return [], []
    known: dict[Any, Witness | None] = {_signature(trials, found): None}
    same, others, said = [], [], {(_signature(trials, found), *_kind(plain(found)))}
    for schedule in sorted(dict.fromkeys(map(plain, (*variants(found), *proposed))), key=_length):
        cut = _signature(trials, schedule)
        if cut not in known:
            known[cut] = trials.departure(unit, schedule)
            if (departure := known[cut]) is not None:
                others.append(dataclasses.replace(departure, schedule=schedule))
        if known[cut] is None and (cut, *_kind(schedule)) not in said:
            said.add((cut, *_kind(schedule)))
            same.append(schedule)
    return same, others


def _kind(schedule: Schedule) -> tuple[Any, ...]:
    return schedule.reduction, schedule.split_k > 1, schedule.stripes > 1, schedule.promotion > 0


def _length(schedule: Schedule) -> tuple[int, str]:
    text = schedule_text(schedule)
    return len(text), text


def _signature(trials: Trials, schedule: Schedule) -> Any:
    return signature(schedule, trials.setting.k, trials.takes_c, trials.setting.out.p < FP32.p)
