"""Find out what a matrix unit does from its results alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mpsim.formats import FP32, FormatLike, get_format
from mpsim.hardware import designs
from mpsim.hardware.boxes import Box, Design, MatmulFunction, Setting, same_answers
from mpsim.hardware.findings import Fact, Finding
from mpsim.hardware.matching import Witness, arithmetic_of, candidates, witness
from mpsim.hardware.structure import Structure, Tree, hidden_summands, summation_tree, sums_along, tree_text
from mpsim.hardware.studies import Studies, Study, found_schedule, in_turn, other_schedules
from mpsim.hardware.trials import Trials, ask_trials
from mpsim.matmul.schedules import Schedule
from mpsim.rounding import round_to
from mpsim.units import InputsLike, MatrixUnit

__all__ = ["probe"]

_LONG, _LONGEST = 128, 1024
"""Products whose order of summation is read off in full: always, and where no schedule explains it."""
_ANSWERS = {None: "not seen", True: "yes", False: "no"}


def probe(
    matmul_function: MatmulFunction,
    inputs: InputsLike = "fp16",
    out: FormatLike = "fp32",
    *,
    shape: tuple[int, int, int] = (64, 64, 64),
    scale: FormatLike | None = None,
    scale_block: int = 0,
    seed: int = 0,
) -> Finding:
    """Return what a matrix product does, found out from its results on designed inputs.

    Parameters
    ----------
    matmul_function : callable
        Takes float32 values ``a`` [M, K] and ``b`` [K, N] of the input formats (float64 where a format is fp64) and
        returns [M, N]. An argument named ``c`` gets accumulators [M, N], values of ``out``. A block-scaled product gets
        ``scale_a`` [M, K / block] and ``scale_b`` [K / block, N], values too.
    inputs : format or pair of formats
    out : format
        Of the results.
    shape : (M, N, K)
        Of every product that is asked for: libraries choose their ways by it.
    scale : format, optional
        Of the blocks' scales, ``"e8m0"`` or ``"ue4m3"``.
    scale_block : int
        Elements along K that share a scale.
    seed : int
        Of the random dot products that confirm the finding.

    Returns
    -------
    Finding

    Raises
    ------
    ValueError
        Unknown formats, a shape with K below 4, scales without block length; a result of another shape.

    Notes
    -----
    Each design shows one property; the papers are named in `mpsim.hardware.designs`. What they show proposes units,
    and one that gives every answer, those of random dot products included, is the finding. Without ``c`` less can be
    told apart, and where formats have little range too: FP8 in chains of a few products, or with a narrow result, may
    leave the schedule or a number of the unit open, which ``agreement`` shows. Blocks longer than K look like blocks
    of K.

    Examples
    --------
    >>> from functools import partial
    >>> import mpsim
    >>> found = probe(partial(mpsim.matmul, unit="v100"), shape=(16, 16, 8))
    >>> found.unit.family.value, found.unit.block_length, found.unit.fraction_bits
    ('fused', 4, 23)
    >>> [str(row) for row in found.rows]
    ['volta mma.m8n8k4 (fp16 x fp16 -> fp32)']
    """
    a, b = (get_format(fmt) for fmt in (inputs if isinstance(inputs, tuple) else (inputs, inputs)))
    scales = None if scale is None else get_format(scale)
    if shape[2] < 4 or min(shape) < 1:
        raise ValueError(f"probe: shape is {shape}; M and N of at least 1 are needed, and K of at least 4")
    if (scales is None) != (scale_block == 0):
        raise ValueError(f"probe: scale is {scale!r}, scale_block = {scale_block}; it needs both or neither")
    box = Box(matmul_function, Setting(a, b, get_format(out), shape, scales, scale_block))
    box = box.alike(_telling(box.setting))
    hidden = hidden_summands(box)
    schedules = in_turn(box, hidden)
    trials = ask_trials(box, seed)
    study, unit, schedule, compared = _searched(box, schedules, hidden, trials, seed)
    rows, others = _compared(study, unit, schedule, compared)
    near: tuple[list[Schedule], list[Witness]] = ([], [])
    agreement = (0, 0)
    if unit is not None:
        agreement = trials.agreement(unit, schedule or Schedule())
        near = near if schedule is None else other_schedules(unit, schedule, schedules, compared)
    return Finding(
        facts=_facts(box, study, schedule, trials),
        unit=unit,
        rounded_to="" if unit is None or unit.out == box.setting.out.name else box.setting.out.name,
        rows=tuple(rows),
        others=tuple(others),
        asked=len(study.measures.asked),
        k=box.setting.k,
        schedule=schedule,
        schedules=tuple(near[0]),
        other_schedules=tuple(near[1]),
        agreement=agreement,
    )


def _searched(
    box: Box, schedules: list[Schedule], hidden: Sequence[int | None], trials: Trials, seed: int
) -> tuple[Study, MatrixUnit | None, Schedule | None, Trials]:
    """Return study, unit and schedule, and the trials they stand: all, else those on the diagonal alone."""
    studies: Studies = {}
    found = found_schedule(box, schedules, hidden, trials, seed, studies)
    if found[2] is not None or found[1] is None:
        return *found, trials
    diagonal = trials.on_diagonal()
    return *found_schedule(box, schedules, hidden, diagonal, seed, studies), diagonal


def _telling(setting: Setting) -> list[Design]:
    """Return a few designs whose answers depend on the order of summation, to find places that are treated alike."""
    k = setting.k
    js = sorted({1, 2, 3, k // 4, k // 2 - 1, k // 2, k - 1} - {0})
    return [*designs.cancellations(setting, 0, js), *designs.random_dots(setting, 12, seed=1)[::3]]


def _compared(
    study: Study, unit: MatrixUnit | None, schedule: Schedule | None, trials: Trials
) -> tuple[list[MatrixUnit], list[Witness]]:
    """Return the rows of the catalogue that give all answers, and the others with where they do not."""
    rows: list[MatrixUnit] = []
    others: list[Witness] = []
    seen: dict[MatrixUnit, Witness | None] = {}
    if unit is not None:
        seen[arithmetic_of(unit)] = None
    for row in candidates(study.box.setting):
        key = arithmetic_of(row)
        if key not in seen:
            seen[key] = _told_apart(row, study, schedule, trials)
        found = seen[key]
        if found is None:
            rows.append(row)
        else:
            others.append(dataclasses.replace(found, unit=row))
    return rows, others


def _told_apart(row: MatrixUnit, study: Study, schedule: Schedule | None, trials: Trials) -> Witness | None:
    """Return where a row differs from a box: on the chain that was studied, else on all of K by the same schedule."""
    found = witness(row, study.measures.asked, study.answers, study.box.setting)
    if found is not None:
        return dataclasses.replace(found, design=study.box.placed(found.design), schedule=schedule or Schedule())
    return None if schedule is None else trials.departure(row, schedule)


def _facts(box: Box, study: Study, schedule: Schedule | None, trials: Trials) -> tuple[Fact, ...]:
    """Return what was measured in words."""
    structure, m = study.structure, study.measures
    places = box.places or ()
    alike = len(places) == min(box.setting.shape[:2])
    said = {
        "places": "all give the same" if alike else f"{len(places)} of {min(box.setting.shape[:2])} treated alike",
        **_order(box, study, schedule, trials),
        "summed at once": _block(structure),
        "accumulator": _accumulator(box, study),
        "fraction bits of products": _bits(m.fraction_bits, len(structure.block) > 2),
        "fraction bits of c": _accumulator_bits(box, study),
        "products normalised": _ANSWERS[m.normalises if len(structure.block) > 2 else None],
        "conversion": m.rounding or "not seen",
        "smallest bit": "none is lost" if m.finest is None else f"2^{m.finest}",
        **{f"subnormal {name}": text for name, text in m.subnormals.items()},
        **{f"zero, {name}": text for name, text in m.zeros.items()},
        **{name: text for name, text in m.specials.items() if text},
    }
    return tuple(Fact(name, text) for name, text in said.items())


def _order(box: Box, study: Study, schedule: Schedule | None, trials: Trials) -> dict[str, str]:
    """Return the order of summation, and how far float32 additions in that order explain the answers.

    Of a long sum whose schedule is known it is the order inside a chain.
    """
    structure = study.structure
    if structure.narrow:
        return {"order": "not seen: no product hides another"}
    if structure.distorted:
        return {"order": "not seen: hidden terms leave a trace (rounding to odd or away from zero)"}
    if (box.setting.k > _LONG and schedule is not None) or box.setting.k > _LONGEST:
        tree = summation_tree(study.box)
        inside = "exact sums in blocks" if tree is None else tree_text(tree)
        return {"order": f"{inside}, of the first {study.box.setting.k} places of its chain"}
    tree = summation_tree(box)
    if tree is None:
        return {"order": "exact sums in blocks" if structure.exact_inside else "that of no tree"}
    told = {"order": tree_text(tree)}
    if not box.takes_c and box.setting.a.p + box.setting.b.p <= FP32.p:
        agreeing = _agreeing(tree, trials)
        if agreeing is not None:
            told["fp32 additions"] = f"in this order give {agreeing} of {len(trials.designs)} answers"
    return told


def _agreeing(tree: Tree, trials: Trials) -> int | None:
    """Return how many answers are sums of exact products along a tree in fp32, rounded to the result's format."""
    products = np.zeros((len(trials.designs), trials.setting.k), np.float32)
    with np.errstate(all="ignore"):
        for i, design in enumerate(trials.designs):
            for k, x, y in design.products:
                products[i, k] = np.float32(x) * np.float32(y)
        sums = sums_along(tree, products)
    if sums is None:
        return None
    own = round_to(np.float32(0) + sums, trials.setting.out)
    return int(np.count_nonzero(same_answers(own, trials.answers)))


def _block(structure: Structure) -> str:
    n = len(structure.block)
    if n == 1:
        return "one product after another"
    steps = structure.block == tuple(range(n))
    return f"{n} products" + ("" if steps else f", k = {', '.join(map(str, structure.block[:6]))}, ...")


def _accumulator(box: Box, study: Study) -> str:
    structure = study.structure
    if not structure.accumulator_hidden:
        return "added to the sum of chains, in fp32" if box.takes_c else "not given"
    if structure.narrow:
        return "not seen"
    if structure.exact_inside:
        return "in the first block"
    hidden = structure.accumulator_hidden[1:]
    if all(hidden):
        return "first, or with the first products"
    return "last" if not any(hidden) else f"after {hidden.index(True) + 1} products"


def _accumulator_bits(box: Box, study: Study) -> str:
    if not study.box.takes_c:
        return "no terms are aligned" if box.takes_c else "not given"
    return _bits(study.measures.accumulator_bits, len(study.structure.block) > 1)


def _bits(bits: int | None, joined: bool) -> str:
    if not joined:
        return "no terms are aligned"
    return "all that were tried" if bits is None else str(bits)
