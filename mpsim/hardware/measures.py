"""Numbers of a matrix unit, each read off the answers to designs of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mpsim.encoding import encode
from mpsim.formats import Specials
from mpsim.hardware import designs
from mpsim.hardware.boxes import Answers, Box, Design
from mpsim.hardware.structure import Structure

__all__ = ["Measures", "measure"]


@dataclass
class Measures:
    """What was asked and answered, and what the answers say."""

    asked: list[Design] = field(default_factory=list)
    answers: list[Answers] = field(default_factory=list)
    fraction_bits: int | None = None
    """Bits kept of a product below the largest exponent of its block; None: all that were tried."""
    accumulator_bits: int | None = None
    """The same of the accumulator."""
    normalises: bool | None = None
    """Whether products are normalised before they are aligned."""
    rounding: str = ""
    """How a sum is converted to the accumulator's format."""
    finest: int | None = None
    """Exponent of the smallest bit that is kept of a product, however small the terms of its block are."""
    subnormals: dict[str, str] = field(default_factory=dict)
    zeros: dict[str, str] = field(default_factory=dict)
    specials: dict[str, str] = field(default_factory=dict)

    def ask(self, box: Box, questions: Sequence[Design]) -> Answers:
        """Return a box's answers, and keep them with the questions."""
        if not box.takes_c:
            questions = [design for design in questions if design.c == 0 and not np.signbit(design.c)]
        answers = box.ask(questions)
        self.asked.extend(questions)
        self.answers.append(answers)
        return answers


def measure(box: Box, structure: Structure) -> Measures:
    """Return the numbers of a unit whose order of summation is known."""
    m = Measures()
    setting, block = box.setting, structure.block
    places = (*block, *(k for k in range(setting.k) if k not in block))
    if len(block) > 2 or not box.takes_c:
        m.fraction_bits = _last_kept(m.ask(box, designs.kept_bits(setting, places, use_c=False)))
        if setting.a.m >= 1 and setting.b.m >= 1 and m.fraction_bits is not None:
            larger = _last_kept(m.ask(box, designs.kept_bits(setting, places, use_c=False, factor=1.5)))
            m.normalises = None if larger is None else larger < m.fraction_bits
    if box.takes_c:
        m.accumulator_bits = _last_kept(m.ask(box, designs.kept_bits(setting, places, use_c=True)))
        m.rounding = _rounding(box, m, places)
        m.ask(box, designs.conversions(setting, places, use_c=True))
        m.ask(box, designs.lone_accumulators(setting))
    m.ask(box, designs.conversions(setting, places, use_c=False))
    m.finest = _finest(box, m, places)
    for name, questions in designs.subnormals(setting).items():
        if name == "tiny":
            m.ask(box, questions)
        elif (answers := m.ask(box, questions)).size:
            m.subnormals[name] = "kept" if (answers != 0).all() else _flushed(answers)
    for name, question in designs.zeros(setting).items():
        if (answer := m.ask(box, [question])).size:
            m.zeros[name] = f"{answer[0]:+g}"
    for name, question in designs.special_values(setting).items():
        if (answer := m.ask(box, [question])).size or box.takes_c:
            m.specials[name] = _special(box, answer) if answer.size else ""
    return m


def _last_kept(answers: Answers) -> int | None:
    """Return the largest d whose bit is not lost, and None where none is lost."""
    lost = np.flatnonzero(answers == 0)
    return int(lost[0]) - 1 if lost.size else None


def _finest(box: Box, m: Measures, places: Sequence[int]) -> int | None:
    """Return the exponent of the smallest bit that changes results as small as can be; None where none is lost."""
    lone, questions = designs.smallest_bits(box.setting, places)
    kept = m.ask(box, lone) != 0
    if kept.any() and not kept.all():
        return _exponent(lone[int(np.flatnonzero(kept)[-1])], 0)
    answers = m.ask(box, questions)
    finest = []
    for first in dict.fromkeys(design.products[0] for design in questions):
        chosen = [i for i, design in enumerate(questions) if design.products[0] == first]
        values = answers[chosen]
        lost = values == values[-1]
        if lost.all() or not lost[-3:].all():
            continue
        finest.append(_exponent(questions[chosen[int(np.flatnonzero(~lost)[-1])]], 1))
    return min(finest, default=None)


def _exponent(design: Design, product: int) -> int:
    """Return the exponent of one of a design's products of powers of two."""
    _, x, y = design.products[product]
    return math.frexp(x)[1] + math.frexp(y)[1] - 2


_QUARTERS = (-3, -2, -1, 1, 2, 3)
_STEPS: dict[tuple[int, ...], str] = {
    (-1, -1, -1, 0, 0, 0): "toward zero",
    (-1, -1, 0, 0, 0, 0): "toward zero",  # where quarters are cut before they are added
    (-1, 0, 0, 0, 0, 1): "to nearest, ties to even",
    (-1, 0, 0, 0, 1, 1): "to nearest, ties away",
    (-1, -1, -1, 1, 1, 1): "to odd",
    (0, 0, 0, 1, 1, 1): "away from zero",
}
"""From what -3/4 to 3/4 of the last place do to an even number, to the direction of rounding."""


def _rounding(box: Box, m: Measures, places: Sequence[int]) -> str:
    """Return how an accumulator plus quarters of its last place is rounded."""
    r = designs.Range(*box.setting[:3])
    quantum = max(r.lowest + 2, 0)
    scores = []
    for sign in (1.0, -1.0):
        c = sign * (math.ldexp(1.5, quantum + r.out.p - 1))
        questions = []
        for quarters in _QUARTERS:
            bits = [bit for bit in range(2) if abs(quarters) >> bit & 1]
            products = [r.power(quantum - 2 + bit, math.copysign(1.0, sign * quarters)) for bit in bits]
            questions.append(Design(tuple((k, x, y) for k, (x, y) in zip(places, products, strict=False)), c))
        answers = m.ask(box, questions).astype(np.float64)
        scores.append(tuple(int(step) for step in np.rint((answers - c) * sign / 2.0**quantum)))
    return _direction(scores[0], scores[1])


def _direction(plus: tuple[int, ...], minus: tuple[int, ...]) -> str:
    """Return the name of what happens to positive and, mirrored, to negative sums."""
    if plus == minus == (0,) * len(_QUARTERS):
        return "nothing below the last place is kept"
    names = _STEPS.get(plus, "other"), _STEPS.get(minus, "other")
    if names == ("toward zero", "away from zero"):
        return "down"
    if names == ("away from zero", "toward zero"):
        return "up"
    return names[0] if names[0] == names[1] else "not symmetric"


def _flushed(answers: Answers) -> str:
    if (answers == 0).all():
        return "flushed to +0" if not np.signbit(answers).any() else "flushed, sign kept"
    return "in part"


def _special(box: Box, answer: Answers) -> str:
    """Return a result as text, NaNs with their bits in the result's format."""
    value = float(answer[0])
    if not math.isnan(value):
        return f"{value:g}"
    out = box.setting.out
    has_payload = out.specials is Specials.IEEE and out.nan_has_sign
    code = int(encode(answer, out, nan="payload" if has_payload else "canonical")[0])
    return f"NaN 0x{code:0{(out.bits + 3) // 4}x}"
