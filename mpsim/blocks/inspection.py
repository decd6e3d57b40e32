"""Why a block became what it became, and how scale rules compare on data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim._arrays import as_source
from mpsim._noise import sqnr
from mpsim.blocks._plans import rule_for
from mpsim.blocks.arrays import BlockArray, element_values, float_value, scale_values
from mpsim.blocks.formats import BlockFormat, BlockFormatLike, get_block_format
from mpsim.blocks.quantization import BlockCounters, quantize
from mpsim.blocks.rules import RuleLike, rule_name
from mpsim.exact import decimal_text, error_text
from mpsim.modes import Overflow, Rounding

__all__ = ["BlockInspection", "ElementInspection", "RuleComparison", "compare_rules", "inspect_block"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementInspection:
    """One element of a block."""

    given: Fraction | float
    """The number, exact; an infinity or a NaN as a float."""
    quotient: Fraction | float
    """The number divided by the scale."""
    code: int
    element: Fraction | float
    """What the code stands for."""
    value: Fraction | float
    """The element times the scale."""
    clipped: bool
    """Whether the quotient lies beyond the largest element."""

    @property
    def error(self) -> Fraction | None:
        """Value minus number given; None where either is not finite."""
        if isinstance(self.value, Fraction) and isinstance(self.given, Fraction):
            return self.value - self.given
        return None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BlockInspection:
    """One block taken apart."""

    format: BlockFormat
    scale_rule: str
    amax: Fraction | float
    """Largest magnitude; NaN or infinite where there is such a number."""
    scale_code: int
    scale: Fraction | float
    """What elements are multiplied by, the scale of the tensor included."""
    tensor_scale: float
    scales_by_rule: dict[str, tuple[int, Fraction | float, int]]
    """For each rule: code and value of the scale, and how many elements it clips."""
    elements: tuple[ElementInspection, ...]

    @property
    def clipped(self) -> int:
        """How many elements are clipped."""
        return sum(element.clipped for element in self.elements)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types; exact numbers are decimal strings."""
        return {
            "format": self.format.name,
            "scale_rule": self.scale_rule,
            "amax": decimal_text(self.amax),
            "scale_code": f"0x{self.scale_code:02x}",
            "scale": decimal_text(self.scale),
            "tensor_scale": self.tensor_scale,
            "scales_by_rule": {
                name: {"scale_code": f"0x{code:02x}", "scale": decimal_text(value), "clipped": clipped}
                for name, (code, value, clipped) in self.scales_by_rule.items()
            },
            "elements": [
                {
                    "given": decimal_text(e.given),
                    "quotient": decimal_text(e.quotient, 17),
                    "code": f"0x{e.code:x}",
                    "element": decimal_text(e.element),
                    "value": decimal_text(e.value),
                    "error": None if e.error is None else decimal_text(e.error),
                    "clipped": e.clipped,
                }
                for e in self.elements
            ],
        }

    def __str__(self) -> str:
        f = self.format
        lines = [
            f"block of {len(self.elements)} in {f}: {f.element} elements up to {decimal_text(f.max_element)}, "
            f"{f.scale} scale, rule {self.scale_rule}",
            f"amax    {decimal_text(self.amax, 12)}",
            f"scale   {decimal_text(self.scale, 12)}  (code 0x{self.scale_code:02x})",
            "by rule "
            + ", ".join(
                f"{name} {decimal_text(value, 6)}" + (f" (clips {clipped})" if clipped else "")
                for name, (_, value, clipped) in self.scales_by_rule.items()
            ),
            "",
            f"{'given':>14} {'/ scale':>14} {'code':>6} {'element':>10} {'value':>14} {'error':>10}",
        ]
        for e in self.elements:
            error = "" if e.error is None else error_text(e.error)
            lines.append(
                f"{decimal_text(e.given, 8):>14} {decimal_text(e.quotient, 8):>14} {f'0x{e.code:02x}':>6} "
                f"{decimal_text(e.element, 8):>10} {decimal_text(e.value, 8):>14} {error:>10}"
                + (f"  clipped at {decimal_text(f.max_element)}" if e.clipped else "")
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<{len(self.elements)} in {self.format}: amax {decimal_text(self.amax, 6)}, scale "
            f"{decimal_text(self.scale, 6)}, {self.clipped} clipped>"
        )


def inspect_block(
    x: ArrayLike,
    fmt: BlockFormatLike,
    scale_rule: RuleLike = None,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.SATURATE,
    tensor_scale: float | None = None,
) -> BlockInspection:
    """Take one block apart: its amax, its scale under each rule, and what becomes of each element.

    Parameters
    ----------
    x : array_like of real numbers, one axis
        At most as many as the block has elements.
    fmt, scale_rule, rounding, overflow, tensor_scale
        As for `quantize`.

    Examples
    --------
    >>> seen = inspect_block([957.0, 100.0], "mxfp8_e4m3")
    >>> seen.scale, seen.elements[0].clipped, seen.elements[0].value, seen.scales_by_rule["rceil"][1]
    (Fraction(2, 1), True, Fraction(896, 1), Fraction(4, 1))
    """
    f = get_block_format(fmt)
    source = as_source(x)
    if source.ndim != 1 or not 1 <= source.size <= f.length:
        raise ValueError(f"x has shape {source.shape}; one block of {f} is a list of 1 to {f.length} numbers")
    rule = rule_for(f, scale_rule)
    given = [_exact_value(float(number)) for number in source]
    q = quantize(source, f, -1, rule, rounding, overflow, tensor_scale=tensor_scale)
    rules: dict[str, tuple[int, Fraction | float, int]] = {}
    for name in dict.fromkeys([*f.rules, rule_name(rule)]):
        each = rule if name == rule_name(rule) else name
        counters = BlockCounters()
        other = quantize(source, f, -1, each, rounding, overflow, counters=counters, tensor_scale=tensor_scale)
        rules[name] = int(other.scales[0]), _scale_of(other), counters.clipped
    scale = _scale_of(q)
    values = element_values(f.element)
    return BlockInspection(
        format=f,
        scale_rule=rule_name(rule),
        amax=_amax(given),
        scale_code=int(q.scales[0]),
        scale=scale,
        tensor_scale=q.tensor_scale,
        scales_by_rule=rules,
        elements=tuple(
            _inspect_element(number, int(code), _exact_value(float(values[code])), scale, f.max_element)
            for number, code in zip(given, q.codes, strict=True)
        ),
    )


def _inspect_element(
    given: Fraction | float, code: int, element: Fraction | float, scale: Fraction | float, largest: Fraction
) -> ElementInspection:
    quotient: Fraction | float = math.nan
    value: Fraction | float = math.nan
    if isinstance(scale, Fraction):
        if isinstance(given, Fraction):
            quotient = given / scale if scale else Fraction(0)
        value = element * scale
    clipped = isinstance(quotient, Fraction) and abs(quotient) > largest
    return ElementInspection(given=given, quotient=quotient, code=code, element=element, value=value, clipped=clipped)


def _exact_value(x: float) -> Fraction | float:
    return Fraction(x) if math.isfinite(x) else x


def _scale_of(q: BlockArray) -> Fraction | float:
    """Return the scale of the first block, times that of the tensor."""
    scale = _exact_value(float_value(q.format.scale, int(q.scales.reshape(-1)[0])))
    return scale * Fraction(q.tensor_scale) if isinstance(scale, Fraction) else scale


def _amax(numbers: Sequence[Fraction | float]) -> Fraction | float:
    if any(number != number for number in numbers):
        return math.nan
    return max(max(numbers), -min(numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleComparison:
    """How well one scale rule does on data."""

    scale_rule: str
    clipped_blocks: float
    """Share of the blocks with a clipped element."""
    clipped: float
    """Share of the elements that lie beyond the largest one, times the scale."""
    overflows: float
    """Share of the elements that would have been rounded farther out: not clipped only, but wrong by more than that."""
    underflows: float
    """Share of the elements, nonzero before, that become zero."""
    sqnr_db: float
    """Signal-to-noise ratio: ``10 log10(sum x**2 / sum (x - value)**2)``; infinite where all values are exact."""


def compare_rules(
    x: ArrayLike, fmt: BlockFormatLike, axis: int = -1, rules: Sequence[RuleLike] | None = None
) -> list[RuleComparison]:
    """Return how often each scale rule clips, and the noise it makes.

    Parameters
    ----------
    x : array_like of finite real numbers
    fmt, axis
        As for `quantize`.
    rules : sequence of ScaleRule, ScaleRecipe or names
        By default all that go with the format.

    Examples
    --------
    >>> rows = compare_rules(np.linspace(1, 2, 320, endpoint=False), "mxfp4", rules=["floor", "rceil"])
    >>> [(row.scale_rule, row.clipped_blocks) for row in rows]
    [('floor', 0.5), ('rceil', 0.0)]
    """
    f = get_block_format(fmt)
    data = np.asarray(as_source(x), np.float64)
    rows = []
    for rule in f.rules if rules is None else rules:
        counters, resolved = BlockCounters(), rule_for(f, rule)
        q = quantize(data, f, axis, resolved, counters=counters)
        rows.append(
            RuleComparison(
                scale_rule=rule_name(resolved),
                clipped_blocks=_clipped_blocks(data, q) / q.scales.size if q.scales.size else math.nan,
                clipped=counters.clipped / data.size if data.size else math.nan,
                overflows=counters.elements.share("overflows"),
                underflows=counters.elements.share("underflows"),
                sqnr_db=sqnr(data, q.dequantize(np.float64)),
            )
        )
    return rows


def _clipped_blocks(data: NDArray[np.float64], q: BlockArray) -> int:
    """Return how many blocks have an element that is clipped."""
    # A clipped element is held at the largest code, and lies farther out than its value.
    numbers = scale_values(q.format.scale, q.tensor_scale)[q.scales]
    starts = np.arange(0, data.shape[q.axis], q.format.length)
    amax = np.maximum.reduceat(abs(data), starts, axis=q.axis)
    return int(np.count_nonzero(amax > numbers * float(q.format.max_element)))
