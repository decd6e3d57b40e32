"""Block-scaled operands that sit where a dot product changes its mind, for the exact twin and for whole matrices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mpsim.encoding import decode
from mpsim.formats import FP32, FloatFormat
from reference import scaled_dot as twin
from vectors import vectors

Array = np.ndarray[Any, Any]

ELEMENTS = ("any", "close", "zeros", "subnormal", "special")
SCALES = ("close", "any", "ends", "floor", "overflow", "nan")
STARTS = ("none", "zeros", "close", "any", "special")


@dataclass(frozen=True)
class Case:
    """Codes of one product of matrices."""

    a: Array
    b: Array
    c: Array
    scale_a: Array
    scale_b: Array

    def values(self, unit: twin.Unit) -> tuple[Array, Array, Array, Array, Array]:
        """Return the arguments of a kernel: float32 elements and accumulators, and codes of scales."""
        a, b = decode(self.a, unit.a), decode(self.b, unit.b)
        return a, b, self.c.view(np.float32), self.scale_a, self.scale_b

    def expected(self, unit: twin.Unit) -> Array:
        """Return the twin's result as float32."""
        arrays = self.a, self.b, self.scale_a, self.scale_b, self.c
        codes = twin.matmul(unit, *(x.tolist() for x in arrays))
        return np.array(codes, np.uint32).reshape(self.c.shape).view(np.float32)


def published(pattern: str, tiles: int | None = None) -> Iterator[tuple[dict[str, Any], list[tuple[Case, Array]]]]:
    """Yield, for each file of published models, what it says of itself, and its cases and words of results.

    Disputed results are those of recorded devices. Of each file the first ``tiles`` cases are taken.
    """
    for path in sorted(vectors("matrix-units").glob(pattern)):
        with np.load(path) as file:
            arrays, meta = dict(file), json.loads(str(file["meta"]))
        want = arrays["d"].copy()
        disputed = np.unpackbits(arrays["disputed"], axis=-1, count=meta["n"]).astype(bool)
        want[disputed] = arrays["disputed_alt"]
        columns = [arrays[key][:tiles] for key in ("a", "b", "c", "scale_a", "scale_b")]
        yield meta, [(Case(*case), d) for *case, d in zip(*columns, want[:tiles], strict=True)]


def element_codes(rng: np.random.Generator, shape: tuple[int, ...], fmt: FloatFormat, kind: str) -> Array:
    """Return codes of a format: any finite ones, exponents that lie close, mostly zeros or subnormals, or specials."""
    codes = rng.integers(0, fmt.max_code + 1, shape)
    if kind == "close":
        field = rng.integers(max(fmt.bias - 1, 1), fmt.bias + 2, shape)
        codes = np.minimum(field << fmt.m | codes & ((1 << fmt.m) - 1), fmt.max_code)
    if kind == "subnormal":
        codes = np.where(rng.random(shape) < 0.7, codes & ((1 << fmt.m) - 1), codes)
    if kind == "zeros":
        codes[rng.random(shape) < 0.8] = 0
    if kind == "special":
        codes = np.where(rng.random(shape) < 0.01, rng.integers(fmt.max_code, fmt.last_code + 1, shape), codes)
    signs = rng.integers(0, 2, shape) * fmt.sign_code
    return (codes | signs).astype(fmt.code_dtype)


def scale_codes(
    rng: np.random.Generator, shape_a: tuple[int, int], shape_b: tuple[int, int], scale: twin.Scale, kind: str
) -> tuple[Array, Array]:
    """Return the scales of both sides: close to 1, any, the ends of the range, sums at a limit of fp32, or some NaN."""
    last = (1 << scale.bits) - 2
    middle = scale.bias << scale.m
    if kind in ("floor", "overflow"):
        # The exponents of each pair add up to one where results become subnormal, or infinite.
        target = -133 if kind == "floor" else 126
        center = rng.integers(0, last + 1)
        left = center + rng.integers(-3, 4, shape_a)
        right = (target + 2 * scale.bias << scale.m) - center + rng.integers(-20, 21, shape_b)
        return tuple(np.clip(x, 0, last).astype(np.uint8) for x in (left, right))  # type: ignore[return-value]
    sides = []
    for shape in (shape_a, shape_b):
        codes = rng.integers(0, last + 1, shape)
        if kind == "close":
            codes = rng.integers(middle - 4, middle + 5, shape)
        if kind == "ends":
            codes = rng.choice([0, 1, 2, last - 1, last], shape)
        if kind == "nan":
            codes[rng.random(shape) < 0.02] = last + 1
        if scale.bits < 8:
            codes |= rng.integers(0, 2, shape) << scale.bits
        sides.append(codes.astype(np.uint8))
    return sides[0], sides[1]


def starts(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> Array | None:
    """Return words of fp32 accumulators."""
    if kind == "none":
        return None
    words = rng.integers(0, 1 << 32, shape, np.uint32)
    fields = words >> np.uint32(23) & np.uint32(255)
    if kind == "zeros":
        words &= np.uint32(0x80000000)
    if kind == "close":
        words = words & np.uint32(0x807FFFFF) | rng.integers(110, 145, shape, np.uint32) << np.uint32(23)
    if kind == "any":
        words[fields == 255] &= np.uint32(0x807FFFFF)
    if kind == "special":
        special = rng.random(shape) < 0.1
        words[special] = rng.choice(np.array([0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF], np.uint32), shape)[
            special
        ]
    return words


def random_case(
    unit: twin.Unit, shape: tuple[int, int, int], kinds: tuple[str, str, str], rng: np.random.Generator
) -> Case:
    """Return a product of matrices of the kinds of elements, scales and accumulators; "none" are zeros."""
    m, k, n = shape
    blocks = -(-k // unit.block)
    scale_a, scale_b = scale_codes(rng, (m, blocks), (blocks, n), unit.scale, kinds[1])
    a, b = element_codes(rng, (m, k), unit.a, kinds[0]), element_codes(rng, (k, n), unit.b, kinds[0])
    c = starts(rng, (m, n), kinds[2])
    return Case(a, b, np.zeros((m, n), np.uint32) if c is None else c, scale_a, scale_b)


@st.composite
def cases(draw: st.DrawFn, unit: twin.Unit) -> Case:
    """Draw a small product of matrices, often with products that cancel or an accumulator where the cut falls."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    length = unit.terms * (unit.group_length or 1)
    k = draw(st.sampled_from([0, 1, length - 1, length, length + 1, 2 * length + unit.block // 2 + 1]))
    shape = draw(st.integers(1, 3)), k, draw(st.integers(1, 3))
    kinds = draw(st.tuples(*(st.sampled_from(names) for names in (ELEMENTS, SCALES, STARTS))))
    case = random_case(unit, shape, kinds, rng)
    if k > 1 and draw(st.booleans()):
        half = min(k // 2, unit.block)
        flip = draw(st.sampled_from([0, 1]))
        case.a[:, half : 2 * half] = case.a[:, :half] ^ unit.a.code_dtype.type(unit.a.sign_code)
        case.b[half : 2 * half] = case.b[:half] ^ unit.b.code_dtype.type(flip)
        case.scale_a[:] = case.scale_a[:, :1]
        case.scale_b[:] = case.scale_b[:1]
    if k > 0 and draw(st.booleans()):
        # The accumulator's exponent is that of the first products, or as far from it as the sum is wide.
        bits = unit.fraction_bits
        away = draw(st.sampled_from([-200, -bits - 7, -bits - 1, -bits, -24, -1, 0, 1, 2, bits, bits + 3, 200]))
        exponents = (unit.scale.term(int(x[0, 0])).exponent for x in (case.scale_a, case.scale_b))
        field = np.uint32(min(max(sum(exponents) + away + FP32.bias, 0), 254))
        case.c[:] = case.c & np.uint32(0x807FFFFF) | field << np.uint32(23)
    return case
