"""Exact twin of ``mpsim.blocks``, in integers and fractions.

Every rule is written as its definition: a scale is searched for, not computed from bits. Only the independent fields of
formats and recipes are read.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mpsim.blocks import BlockFormat, IntElement, ScaleRecipe
from reference import rounding as twin

FLOAT32_MAX = Fraction(2**24 - 1) * 2**104
TINY = Fraction(1, 1 << twin.SCALE)


def power(k: int) -> Fraction:
    return Fraction(2) ** k


def floor_log2(x: Fraction) -> int:
    """Return the largest k with 2**k <= x."""
    k = x.numerator.bit_length() - x.denominator.bit_length() + 1
    while power(k) > x:
        k -= 1
    return k


def fl(x: Fraction) -> Fraction:
    """Return x >= 0 rounded to float32, subnormals kept, without an upper bound of the exponent."""
    if x == 0:
        return x
    unit = power(max(floor_log2(x), -126) - 23)
    sig, rest = divmod(x, unit)
    if rest > unit / 2 or (rest == unit / 2 and sig % 2 == 1):
        sig += 1
    return sig * unit


def bounded(x: Fraction) -> Fraction:
    """Return x, at most the largest float32."""
    return min(x, FLOAT32_MAX)


# Elements and scales of a format.


def largest_element(fmt: BlockFormat) -> Fraction:
    element = fmt.element
    if isinstance(element, IntElement):
        return Fraction(2 ** (element.bits - 1) - 1, 2**element.fraction_bits)
    return Fraction(twin.magnitude(element, twin.largest(element)), 1 << twin.SCALE)


def fraction_bits(fmt: BlockFormat) -> int:
    """Return how many bits of the significand follow the first one in the largest binade."""
    return fmt.element.bits - 2 if isinstance(fmt.element, IntElement) else fmt.element.p - 1


def has_power_scales(fmt: BlockFormat) -> bool:
    return fmt.scale.p == 1 and not fmt.scale.has_zero


def scale_value(fmt: BlockFormat, code: int) -> Fraction | None:
    """Return what a scale code stands for; None is NaN."""
    number = twin.decode(fmt.scale, code)
    return number.fraction if number.kind == "finite" else None


# Scales of powers of two.


def exponent(fmt: BlockFormat, rule: str, amax: Fraction) -> int:
    """Return the exponent of the scale before it is held in range."""
    largest = largest_element(fmt)
    emax = floor_log2(largest)
    k = floor_log2(amax)
    match rule:
        case "floor":
            return k - emax
        case "ceil":
            return (k if amax == power(k) else k + 1) - emax
        case "rceil":
            e = k - emax - 2
            while amax > largest * power(e):
                e += 1
            return e
        case "rceil-fp32":
            product = fl(amax * fl(1 / largest))
            e = k - emax - 3
            while product > power(e):
                e += 1
            return e
        case "even":
            unit = power(k - fraction_bits(fmt))
            return floor_log2((amax / unit + Fraction(1, 2)) // 1 * unit) - emax
        case "nearest":
            square = (amax / largest) ** 2  # 2**(2e - 1) < square < 2**(2e + 1)
            e = k - emax - 2
            while square > power(2 * e + 1):
                e += 1
            return e
    raise AssertionError(rule)


# Scales with a fraction.


def tensor_scales(fmt: BlockFormat, recipe: ScaleRecipe, amax: Fraction) -> tuple[Fraction, Fraction]:
    """Return the scale of the tensor and its encode scale."""
    if not fmt.tensor_scale or amax == 0:
        return Fraction(1), Fraction(1)
    largest = Fraction(twin.magnitude(fmt.scale, twin.largest(fmt.scale)), 1 << twin.SCALE)
    full = Fraction(recipe.largest_scale or largest) * largest_element(fmt)
    if recipe.times_encode:
        encode = bounded(fl(full / amax)) or power(-149)
        return bounded(fl(1 / encode)), encode
    scale = bounded(fl(amax / full)) or power(-149)
    return scale, bounded(fl(1 / scale))


def float_scale(
    fmt: BlockFormat, recipe: ScaleRecipe, amax: Fraction, tensor: Fraction, encode: Fraction, four: bool = False
) -> int:
    """Return the code of the scale of a block before it is held in range; one past the largest is overflow."""
    largest = largest_element(fmt)
    amax = fl(amax)
    ratio = fl(amax * fl(1 / largest)) if recipe.times_inverse else fl(amax / largest)
    ratio = fl(ratio * encode) if recipe.times_encode else fl(ratio / tensor)
    if four:
        ratio = fl(ratio * Fraction(6, 4))
    return twin.round_magnitude(fmt.scale, scaled(ratio), False, recipe.rounding)


def divided(recipe: ScaleRecipe | None, x: Fraction, scale: Fraction, tensor: Fraction) -> Fraction:
    """Return x > 0 divided by the scale of its block; what vanishes is left tiny."""
    total = scale * tensor
    if recipe is None or recipe.quotients == "exact":
        return x / total if total else TINY
    total = fl(total)
    if recipe.quotients == "division":
        return (fl(x / total) if total else TINY) or TINY
    return fl(x * (bounded(fl(1 / total)) if total else FLOAT32_MAX)) or TINY


def scaled(x: Fraction) -> int:
    """Return x * 2**SCALE, its last bit set where more bits were cut off, so that it lies where x does."""
    whole, rest = divmod(x * (1 << twin.SCALE), 1)
    return max(whole | (rest != 0), int(x > 0))


# Whole blocks.


@dataclass(frozen=True)
class Block:
    scale: int
    codes: list[int]
    events: set[str]


def element_code(fmt: BlockFormat, negative: bool, x: Fraction, mode: str, overflow: str) -> int:
    """Return the code of a quotient."""
    element = fmt.element
    if isinstance(element, IntElement):
        whole, rest = divmod(x * 2**element.fraction_bits, 1)
        if rest:
            away = {
                "nearest-even": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
                "nearest-away": rest >= Fraction(1, 2),
                "toward-zero": False,
                "up": not negative,
                "down": negative,
                "to-odd": whole % 2 == 0,
            }
            whole += away[mode]
        most = 2 ** (element.bits - 1) - (0 if negative and not element.symmetric else 1)
        whole = min(whole, most)
        return (-whole if negative else whole) % 2**element.bits
    return twin.encode(element, twin.Number(negative, "finite", scaled(x)), mode, overflow)


def nan_code(fmt: BlockFormat) -> int:
    return 0 if isinstance(fmt.element, IntElement) else twin.nan(fmt.element, False)


def quantize_block(
    fmt: BlockFormat,
    x: list[float],
    rule: str | ScaleRecipe,
    mode: str = "nearest-even",
    overflow: str = "saturate",
    tensor: Fraction = Fraction(1),
    encode: Fraction = Fraction(1),
    whole: Fraction | None = None,
) -> Block:
    """Quantise the numbers of one block; ``whole`` is the amax of the tensor, where its scale follows from that."""
    six = scaled_block(fmt, x, rule, mode, overflow, tensor, encode)
    if isinstance(rule, str) or rule.four_over_six is None:
        return six
    four = scaled_block(fmt, x, rule, mode, overflow, tensor, encode, four=True)
    errors = [block_error(fmt, rule, x, block, tensor, whole) for block in (four, six)]
    return four if errors[0] < errors[1] else six


def single(op: Callable[[Any, Any], Any], a: float, b: float) -> float:
    """Return the result of an operation on two float32, rounded to float32."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return float(op(a, b))
    exact = op(Fraction(a), Fraction(b))
    size = fl(abs(exact))
    result = math.inf if size > FLOAT32_MAX else float(size)
    return -result if exact < 0 else result


def as_single(x: float | Fraction) -> float:
    return x if isinstance(x, float) and not math.isfinite(x) else single(operator.add, x, 0.0)  # type: ignore[arg-type]


def block_error(
    fmt: BlockFormat, recipe: ScaleRecipe, x: list[float], block: Block, tensor: Fraction, whole: Fraction | None
) -> float:
    """Return how far a block is from its numbers, as Transformer Engine adds it up in float32."""
    scale = scale_value(fmt, block.scale)
    if scale is None:
        return math.nan
    errors = []
    for number, code in zip(x, block.codes, strict=True):
        value = single(operator.mul, twin.to_float(twin.decode(fmt.element, code)), float(scale))
        if whole is None:
            value = single(operator.mul, value, float(tensor))
        else:
            full = (recipe.largest_scale or int(fmt.scale.max_finite)) * 6.0
            value = single(operator.truediv, single(operator.mul, value, as_single(whole)), full)
        difference = single(operator.sub, value, as_single(number))
        errors.append(
            single(operator.mul, difference, difference) if recipe.four_over_six == "mse" else abs(difference)
        )
    if recipe.four_over_six == "max":
        return math.nan if any(math.isnan(e) for e in errors) else max(errors)
    sums = []
    for start in range(0, len(errors), 16):
        sums.append(0.0)
        for error in errors[start : start + 16]:
            sums[-1] = single(operator.add, sums[-1], error)
    while len(sums) & (len(sums) - 1):
        sums.append(0.0)
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [single(operator.add, a, b) for a, b in zip(sums[:half], sums[half:], strict=True)]
    return sums[0]


def scaled_block(
    fmt: BlockFormat,
    x: list[float],
    rule: str | ScaleRecipe,
    mode: str,
    overflow: str,
    tensor: Fraction,
    encode: Fraction,
    four: bool = False,
) -> Block:
    """Quantise the numbers of one block, the largest of them to about 6, or 4."""
    numbers = [twin.number(v) for v in x]
    if any(number.kind != "finite" for number in numbers):
        return Block(twin.nan(fmt.scale, False), [nan_code(fmt)] * len(x), {"nan_blocks"})
    sizes = [abs(number.fraction) for number in numbers]
    amax, events = max(sizes), set()
    last = twin.largest(fmt.scale)
    if isinstance(rule, ScaleRecipe):
        least = {"zero": 0, "subnormal": 1, "normal": twin.smallest_normal(fmt.scale)}[rule.least]
        code = float_scale(fmt, rule, amax, tensor, encode, four) if amax else 0
        lowest = max(least, 1)
    else:
        # The code of a power of two is its exponent, counted from the smallest.
        smallest = floor_log2(scale_value(fmt, 0) or Fraction(0))
        code = exponent(fmt, rule, amax) - smallest if amax else 0
        least = lowest = 0
    if amax == 0:
        events.add("zero_blocks")
    else:
        events |= {"scales_saturated"} if code > last else set()
        events |= {"scales_underflowed"} if code < lowest else set()
    code = max(min(code, last), least)
    scale = scale_value(fmt, code)
    assert scale is not None
    recipe = rule if isinstance(rule, ScaleRecipe) else None
    quotients = [divided(recipe, size, scale, tensor) if size else size for size in sizes]
    codes = [
        element_code(fmt, number.negative, quotient, mode, overflow)
        for number, quotient in zip(numbers, quotients, strict=True)
    ]
    return Block(code, codes, events)


def quantize_rows(
    fmt: BlockFormat,
    x: np.ndarray,
    rule: str | ScaleRecipe,
    mode: str = "nearest-even",
    overflow: str = "saturate",
    tensor_scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray, Fraction]:
    """Return codes, scales and the scale of the tensor for rows [m, n] cut into blocks along the last axis."""
    tensor = encode = Fraction(1)
    whole = None
    if isinstance(rule, ScaleRecipe):
        finite = [abs(Fraction(v)) for v in x.reshape(-1).tolist() if np.isfinite(v)]
        whole = max(finite, default=Fraction(0))
        tensor, encode = tensor_scales(fmt, rule, whole)
        if tensor_scale is not None or not fmt.tensor_scale:
            whole = None
        if tensor_scale is not None:
            tensor = bounded(fl(Fraction(tensor_scale)))
            encode = bounded(fl(1 / tensor))
    cuts = range(0, x.shape[1], fmt.length)
    codes = np.zeros(x.shape, np.int64)
    scales = np.zeros((x.shape[0], len(cuts)), np.uint8)
    for i, row in enumerate(x.tolist()):
        for j, cut in enumerate(cuts):
            block = quantize_block(fmt, row[cut : cut + fmt.length], rule, mode, overflow, tensor, encode, whole)
            scales[i, j] = block.scale
            codes[i, cut : cut + fmt.length] = block.codes
    dtype = np.uint8 if fmt.element.bits <= 8 else np.uint16
    return codes.astype(dtype), scales, tensor


def value(fmt: BlockFormat, code: int, scale: int, tensor: Fraction, dtype: type[Any]) -> Any:
    """Return the value of an element in float32 or float64."""
    number = scale_value(fmt, scale)
    element = fmt.element
    if number is None:
        return dtype(np.nan)
    if isinstance(element, IntElement):
        signed = code - 2**element.bits if code >= 2 ** (element.bits - 1) else code
        negative, size = signed < 0, Fraction(abs(signed), 2**element.fraction_bits)
    else:
        decoded = twin.decode(element, code)
        if decoded.kind == "nan" or (decoded.kind == "infinite" and number == 0):
            return dtype(np.nan)
        if decoded.kind == "infinite":
            return dtype(-np.inf if decoded.negative else np.inf)
        negative, size = decoded.negative, abs(decoded.fraction)
    size *= number * tensor
    if dtype is np.float32:
        size = fl(size)
        if size > FLOAT32_MAX:
            return dtype(-np.inf if negative else np.inf)
    as_float = float(size)
    assert Fraction(as_float) == size  # exact
    return dtype(-as_float if negative else as_float)
