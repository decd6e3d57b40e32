"""Find out what a matrix unit does from its results alone."""

from __future__ import annotations

import dataclasses

import numpy as np

from mpsim.formats import FP32, FormatLike, get_format
from mpsim.hardware import designs
from mpsim.hardware.boxes import Answers, Box, Design, MatmulFunction, Setting, same_answers
from mpsim.hardware.findings import Fact, Finding
from mpsim.hardware.hypotheses import hypotheses
from mpsim.hardware.matching import Witness, arithmetic_of, candidates, first_fit, witness
from mpsim.hardware.measures import Measures, measure
from mpsim.hardware.structure import Structure, Tree, find_structure, summation_tree, sums_along, tree_text
from mpsim.rounding import round_to
from mpsim.units import InputsLike, MatrixUnit

__all__ = ["probe"]

_RANDOM = 384
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
    told apart, and where formats have little range too; blocks longer than K look like blocks of K.

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
    structure = find_structure(box)
    measures = measure(box, structure)
    _ask_more(box, measures, seed)
    return _found(box, structure, measures)


def _telling(setting: Setting) -> list[Design]:
    """Return a few designs whose answers depend on the order of summation, to find places that are treated alike."""
    k = setting.k
    js = sorted({1, 2, 3, k // 4, k // 2 - 1, k // 2, k - 1} - {0})
    return [*designs.cancellations(setting, 0, js), *designs.random_dots(setting, 12, seed=1)[::3]]


def _ask_more(box: Box, m: Measures, seed: int) -> None:
    """Ask what confirms a finding: the cancellations once more, among products and accumulators, and random ones."""
    some = range(1, min(box.setting.k, 34))
    m.ask(box, designs.cancellations(box.setting, 0, some))
    m.ask(box, designs.cancellations(box.setting, 0, some, accumulator=True))
    m.ask(box, designs.pairs_on_a_large_accumulator(box.setting)[:34])
    m.ask(box, designs.random_dots(box.setting, _RANDOM, seed))


def _found(box: Box, structure: Structure, m: Measures) -> Finding:
    asked, answers = m.asked, np.concatenate(m.answers)
    unit = first_fit(hypotheses(box.setting, structure, m), asked, answers, box.setting)
    rows, others = _compared(asked, answers, box.setting, unit)
    if unit is None and rows:
        unit = rows[0]
    rounded = "" if unit is None or unit.out == box.setting.out.name else box.setting.out.name
    return Finding(_facts(box, structure, m), unit, rounded, tuple(rows), tuple(others), len(asked))


def _compared(
    asked: list[Design], answers: Answers, setting: Setting, unit: MatrixUnit | None
) -> tuple[list[MatrixUnit], list[Witness]]:
    """Return the rows of the catalogue that give all answers, and the others with where they do not."""
    rows: list[MatrixUnit] = []
    others: list[Witness] = []
    seen: dict[MatrixUnit, Witness | None] = {}
    if unit is not None:
        seen[arithmetic_of(unit)] = None
    for row in candidates(setting):
        key = arithmetic_of(row)
        if key not in seen:
            seen[key] = witness(row, asked, answers, setting)
        found = seen[key]
        if found is None:
            rows.append(row)
        else:
            others.append(dataclasses.replace(found, unit=row))
    return rows, others


def _facts(box: Box, structure: Structure, m: Measures) -> tuple[Fact, ...]:
    """Return what was measured in words."""
    places = box.places or ()
    alike = len(places) == min(box.setting.shape[:2])
    said = {
        "places": "all give the same" if alike else f"{len(places)} of {min(box.setting.shape[:2])} treated alike",
        **_order(box, structure, m),
        "summed at once": _block(structure),
        "accumulator": _accumulator(structure),
        "fraction bits of products": _bits(m.fraction_bits, len(structure.block) > 2),
        "fraction bits of c": _bits(m.accumulator_bits, len(structure.block) > 1) if box.takes_c else "not given",
        "products normalised": _ANSWERS[m.normalises if len(structure.block) > 2 else None],
        "conversion": m.rounding or "not seen",
        "smallest bit": "none is lost" if m.finest is None else f"2^{m.finest}",
        **{f"subnormal {name}": text for name, text in m.subnormals.items()},
        **{f"zero, {name}": text for name, text in m.zeros.items()},
        **{name: text for name, text in m.specials.items() if text},
    }
    return tuple(Fact(name, text) for name, text in said.items())


def _order(box: Box, structure: Structure, m: Measures) -> dict[str, str]:
    """Return the order of summation, and how far float32 additions in that order explain the answers."""
    if structure.narrow:
        return {"order": "not seen: no product hides another"}
    if structure.distorted:
        return {"order": "not seen: hidden terms leave a trace (rounding to odd or away from zero)"}
    tree = summation_tree(box)
    if tree is None:
        return {"order": "exact sums in blocks" if structure.exact_inside else "that of no tree"}
    told = {"order": tree_text(tree)}
    if not box.takes_c and box.setting.a.p + box.setting.b.p <= FP32.p:
        agreeing = _agreeing(box.setting, tree, m)
        if agreeing is not None:
            told["fp32 additions"] = f"in this order give {agreeing} of {len(m.asked)} answers"
    return told


def _agreeing(setting: Setting, tree: Tree, m: Measures) -> int | None:
    """Return how many answers are sums of exact products along a tree in fp32, rounded to the result's format."""
    products = np.zeros((len(m.asked), setting.k), np.float32)
    with np.errstate(all="ignore"):
        for i, design in enumerate(m.asked):
            for k, x, y in design.products:
                products[i, k] = np.float32(x) * np.float32(y)
        sums = sums_along(tree, products)
    if sums is None:
        return None
    own = round_to(np.float32(0) + sums, setting.out)
    return int(np.count_nonzero(same_answers(own, np.concatenate(m.answers))))


def _block(structure: Structure) -> str:
    n = len(structure.block)
    if n == 1:
        return "one product after another"
    steps = structure.block == tuple(range(n))
    return f"{n} products" + ("" if steps else f", k = {', '.join(map(str, structure.block[:6]))}, ...")


def _accumulator(structure: Structure) -> str:
    if not structure.accumulator_hidden:
        return "not given"
    if structure.narrow:
        return "not seen"
    if structure.exact_inside:
        return "in the first block"
    hidden = structure.accumulator_hidden[1:]
    if all(hidden):
        return "first, or with the first products"
    return "last" if not any(hidden) else f"after {hidden.index(True) + 1} products"


def _bits(bits: int | None, joined: bool) -> str:
    if not joined:
        return "no terms are aligned"
    return "all that were tried" if bits is None else str(bits)
