"""Work out what the kernels need to know of a block format, a scale rule and a tensor."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.blocks.formats import BlockFormat, Element, IntElement
from mpsim.blocks.rules import RECIPES, RuleLike, ScaleRecipe, ScaleRule
from mpsim.exact import power_of_two, read_number
from mpsim.formats import E2M1, FloatFormat
from mpsim.modes import Overflow
from mpsim_kernels._threads import in_ranges
from mpsim_kernels.blocks import PLAN, largest_finite

__all__ = ["element_bounds", "plan_for", "rule_for", "tensor_scales"]

_RANGE = 1 << 16  # elements worth a thread

_Number: TypeAlias = "tuple[int, int]"  # sig and e


def rule_for(fmt: BlockFormat, rule: RuleLike) -> ScaleRule | ScaleRecipe:
    """Return the rule that is meant; None is the format's default."""
    if fmt.has_power_scales:
        if isinstance(rule, ScaleRecipe) or rule in RECIPES:
            raise ValueError(
                f"scale_rule is {getattr(rule, 'name', rule)!r}, but the scales of {fmt} are powers of two: "
                f"it must be one of {', '.join(ScaleRule)}"
            )
        return ScaleRule.FLOOR if rule is None else ScaleRule.of(rule, "scale_rule")
    name = "division" if rule is None else str(rule)
    if not isinstance(rule, ScaleRecipe):
        if name not in RECIPES:
            raise ValueError(
                f"scale_rule is {name!r}; for the {fmt.scale} scales of {fmt} it must be a ScaleRecipe or one of "
                f"{', '.join(RECIPES)}"
            )
        rule = RECIPES[name]
    if rule.four_over_six is not None and fmt.element != E2M1:
        raise ValueError(
            f"scale_rule {rule.name!r} chooses between 4 and 6, which is for e2m1 elements; {fmt} has none"
        )
    return rule


def _quotient(x: _Number, y: _Number) -> _Number:
    """Return the quotient of positive numbers rounded to float32, nearest even; the largest finite one if it overflows.

    In integers, which are several times faster than fractions.
    """
    (n, e), (d, f) = x, y
    exponent = n.bit_length() - d.bit_length()
    if n << max(-exponent, 0) < d << max(exponent, 0):
        exponent -= 1
    unit = max(exponent + e - f, -126) - 23
    shift = e - f - unit
    n, d = n << max(shift, 0), d << max(-shift, 0)
    sig, rest = divmod(n, d)
    if 2 * rest > d or (2 * rest == d and sig & 1):
        sig += 1
    return (sig, unit) if sig.bit_length() + unit <= 128 else ((1 << 24) - 1, 104)


def tensor_scales(
    fmt: BlockFormat, rule: ScaleRule | ScaleRecipe, given: float | None, words: NDArray[Any]
) -> tuple[_Number, _Number]:
    """Return the scale of the tensor, and what blocks' scales are multiplied by instead of divided by it."""
    one = (1, 0)
    if given is not None:
        if not fmt.tensor_scale:
            raise ValueError(f"tensor_scale is {given!r}, but {fmt} has no scale of the tensor")
        negative, exact = read_number(given)
        top = power_of_two(128) / Fraction(fmt.scale.max_finite)
        if negative or not isinstance(exact, Fraction) or not power_of_two(-149) <= exact <= top:
            raise ValueError(
                f"tensor_scale is {given!r}; a positive number is needed, which float32 holds even times a {fmt.scale}"
            )
        scale = _quotient((exact.numerator, 0), (exact.denominator, 0))
        return scale, _quotient(one, scale)
    if not fmt.tensor_scale or not isinstance(rule, ScaleRecipe):
        return one, one
    amax = _largest_magnitude(words)
    if not amax[0]:
        return one, one
    full, least = _full_scale(fmt, rule), (1, -149)
    if rule.times_encode:
        encode_scale = _quotient(full, amax)
        encode_scale = encode_scale if encode_scale[0] else least
        return _quotient(one, encode_scale), encode_scale
    scale = _quotient(amax, full)
    scale = scale if scale[0] else least
    return scale, _quotient(one, scale)


@functools.cache
def _full_scale(fmt: BlockFormat, rule: ScaleRecipe) -> _Number:
    """Return the largest element times the largest scale."""
    return _parts(Fraction(rule.largest_scale or fmt.scale.max_finite) * fmt.max_element)


def _largest_magnitude(words: NDArray[Any]) -> _Number:
    """Return the largest finite magnitude, exactly."""
    unsigned = words.dtype.type
    f, bias, top = (23, 127, 0x7F80_0000) if words.itemsize == 4 else (52, 1023, 0x7FF0 << 48)
    infinity, magnitude = unsigned(top), unsigned(top | ((1 << f) - 1))
    found: list[int] = []
    in_ranges(
        lambda start, stop: found.append(int(largest_finite(words[start:stop], magnitude, infinity))),
        words.size,
        _RANGE,
    )
    word = max(found)
    exponent, fraction = word >> f, word & ((1 << f) - 1)
    return fraction + (1 << f if exponent else 0), max(exponent, 1) - bias - f


@functools.lru_cache(maxsize=256)
def plan_for(
    fmt: BlockFormat, rule: ScaleRule | ScaleRecipe, overflow: Overflow, tensor: _Number, encode_scale: _Number
) -> NDArray[Any]:
    """Return the kernels' `PLAN` record."""
    plan = np.zeros(1, PLAN)
    scale = fmt.scale
    plan["length"] = fmt.length
    plan["scale_nan"] = scale.nan_code
    inverse = _quotient((1, 0), _parts(fmt.max_element))
    if isinstance(rule, ScaleRule):
        plan["power"] = True
        plan["low"], plan["high"] = scale.emin, scale.emax
        plan["base"], plan["threshold"], plan["threshold_low"] = _power_rule(fmt, rule, inverse)
    else:
        plan["m"], plan["emin"], plan["max_code"] = scale.m, scale.emin, scale.max_code
        plan["least"] = {"zero": 0, "subnormal": 1, "normal": 1 << scale.m}[rule.least]
        plan["upward"] = rule.rounding == "up"
        plan["max_sig"], plan["max_e"] = _parts(fmt.max_element)
        plan["inverse_sig"], plan["inverse_e"] = inverse
        plan["by_inverse"], plan["by_encode"] = rule.times_inverse, rule.times_encode
        plan["tensor_sig"], plan["tensor_e"] = tensor
        plan["encode_sig"], plan["encode_e"] = encode_scale
        plan["quotients"] = ("exact", "division", "reciprocal").index(rule.quotients)
    _describe_element(plan, fmt.element, overflow)
    return plan


def _parts(x: Fraction) -> _Number:
    """Return a number with finitely many bits as ``sig * 2**e`` with odd ``sig``."""
    e = 1 - x.denominator.bit_length()
    sig = x.numerator
    zeros = (sig & -sig).bit_length() - 1
    return sig >> zeros, e + zeros


def _power_rule(fmt: BlockFormat, rule: ScaleRule, inverse: _Number) -> tuple[int, int, int]:
    """Return base and thresholds: the exponent is that of amax plus base, one more from a significand on.

    Significands have 53 bits, the hidden one included.
    """
    one, base = 1 << 52, -fmt.emax_element
    largest = int(fmt.max_element * power_of_two(52 - fmt.emax_element))
    match rule:
        case ScaleRule.FLOOR:
            threshold = 2 * one
        case ScaleRule.CEIL:
            threshold = one + 1
        case ScaleRule.RCEIL:
            threshold = largest + 1
        case ScaleRule.EVEN:
            # Half a unit of the last place below the next power of two, the significand rounds up to it.
            m = fmt.element.m if isinstance(fmt.element, FloatFormat) else fmt.element.bits - 2
            threshold = 2 * one - (one >> (m + 1))
        case ScaleRule.NEAREST:
            # amax / max, both significands in 1..2, against sqrt(2) or its half; neither is rational.
            if largest**2 < 2 * one**2:
                threshold = math.isqrt(2 * largest**2) + 1
            else:
                base, threshold = base - 1, math.isqrt(largest**2 // 2) + 1
        case ScaleRule.RCEIL_FP32:
            sig, e = inverse
            shift = 24 - sig.bit_length()
            sig, e = sig << shift, e - shift
            # The product passes a power of two, once rounded, where it is beyond it by more than half an ulp.
            top = 75 if sig == 1 << 23 else 76
            threshold = ((1 << top) + (1 << (top - 24))) // sig + 1
            # At 2**-127 float32 is subnormal, and an ulp twice as large.
            threshold_low = ((1 << top) + (1 << (top - 23))) // sig + 1
            return top + e - 52, threshold, threshold_low
    return base, threshold, threshold


def _describe_element(plan: NDArray[Any], element: Element, overflow: Overflow) -> None:
    if isinstance(element, IntElement):
        plan["element_m"], plan["element_bias"] = element.magnitudes.m, element.magnitudes.bias
        plan["element_max"] = plan["element_over"] = element.largest
        plan["element_mask"] = plan["flip"] = (1 << element.bits) - 1  # two's complement
        plan["shift"] = 1
        return
    plan["element_m"], plan["element_bias"] = element.m, element.bias
    plan["element_max"] = plan["element_over"] = element.max_code
    if overflow is Overflow.IEEE and not element.saturates:
        over = (element.inf_code, element.nan_code, element.max_code)
        plan["element_over"] = next(code for code in over if code is not None)
    plan["element_nan"] = element.nan_to if element.nan_code is None else element.nan_code
    plan["shift"], plan["element_mask"] = element.sign_code, (1 << element.bits) - 1


@functools.cache
def element_bounds(element: FloatFormat) -> NDArray[np.uint64]:
    """Return the first words of float64 that round, to nearest even, to the codes 1, 2, ... without sign."""
    values = [element.magnitude(code) for code in range(element.max_code + 1)]
    middles = np.array([(a + b) / 2 for a, b in itertools.pairwise(values)]).view(np.uint64)
    middles += np.arange(middles.size, dtype=np.uint64) % 2 == 0  # there the lower code is even, and gets the tie
    return middles
