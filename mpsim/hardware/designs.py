"""Questions of a probe: dot products that make one property of a matrix unit visible each.

The ideas are those of Fasi, Higham, Mikaitis and Pranesh 2021 ("Numerical behavior of NVIDIA tensor cores"), FTTN (Li
et al. 2024), FPRev (which reads the order of a sum off masked cancellations), Khattak and Mikaitis (arXiv 2512.07004)
and MMA-Sim (arXiv 2511.10909): a large term hides a small one, and whether the small one is there once the large one
is cancelled tells where and when it was added.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpsim.formats import FloatFormat
from mpsim.hardware.boxes import Design, Setting
from mpsim.rounding import round_to

__all__ = [
    "HIDING",
    "Range",
    "cancellations",
    "conversions",
    "crossings",
    "kept_bits",
    "lone_accumulators",
    "pairs_on_a_large_accumulator",
    "random_dots",
    "random_values",
    "smallest_bits",
    "special_values",
    "subnormals",
    "zeros",
]


HIDING = 34
"""Bits between two products that let one hide a thousand of the other from any sum of 24 bits."""


class Range(NamedTuple):
    """Exponents that products of two normal powers of two can have, and those of the result."""

    a: FloatFormat
    b: FloatFormat
    out: FloatFormat

    @property
    def lowest(self) -> int:
        """Exponent of the smallest product."""
        return self.a.emin + self.b.emin

    @property
    def highest(self) -> int:
        """Exponent of the largest product."""
        return self.a.emax + self.b.emax

    @property
    def large(self) -> int:
        """Exponent of a product that hides others."""
        return min(self.highest, self.out.emax)

    @property
    def small(self) -> int:
        """Exponent of a product that is hidden: normal, of normal operands, unless that is too near to hide many."""
        if self.large - max(self.lowest, self.out.emin) >= HIDING:
            return max(self.lowest, self.out.emin, self.large - 60)
        return max(self.lowest - self.a.m - self.b.m, self.out.emin - self.out.m)

    def power(self, e: int, factor: float = 1.0) -> tuple[float, float]:
        """Return operands, normal if they can be, whose product is ``factor * 2**e``; the factor is the left one's."""
        normal = e >= self.lowest
        least_a = self.a.emin - (0 if normal else self.a.m)
        least_b = self.b.emin - (0 if normal else self.b.m)
        left = min(max(e // 2, least_a, e - self.b.emax), self.a.emax, e - least_b)
        return math.ldexp(factor, left), math.ldexp(1.0, e - left)


def cancellations(
    setting: Setting, i: int, js: Sequence[int], accumulator: bool = False, places: Sequence[int] | None = None
) -> list[Design]:
    """Return a large product at ``i``, the same with a minus at each of ``js``, and small ones at every other place.

    Small products that meet the large one before it is cancelled are lost, so their number tells how many summands lie
    under the node of the summation tree that joins i and j (FPRev). With ``accumulator`` the one small term is ``c``;
    with ``places`` small products stand there alone.
    """
    r = Range(*setting[:3])
    x, y = r.power(r.large)
    ks = range(setting.k) if places is None else places
    small = () if accumulator else tuple((k, *r.power(r.small)) for k in ks)
    c = math.ldexp(1.0, r.small) if accumulator else 0.0
    return [Design((*(p for p in small if p[0] not in (i, j)), (i, x, y), (j, -x, y)), c) for j in js]


def pairs_on_a_large_accumulator(setting: Setting) -> list[Design]:
    """Return an accumulator whose unit in the last place is two, one at k = 0, and another one at each k.

    A lone one is rounded away, two are not: a changed result means that both were summed before they were rounded.
    For formats with too little range for `cancellations`.
    """
    r = Range(*setting[:3])
    e = max(r.lowest, 0)
    x, y = r.power(e)
    c = math.ldexp(1.0, e + setting.out.p)
    return [Design(((0, x, y), *(((k, x, y),) if k else ())), c) for k in range(setting.k)]


def kept_bits(setting: Setting, block: Sequence[int], use_c: bool, factor: float = 1.0) -> list[Design]:
    """Return a large product, its negative, and a third term d bits lower, for d = 0, 1, 2, ...

    ``block`` are places that are summed at once; the third term is a product there, or ``c``. Where it is not lost, a
    bit so far below the largest exponent is kept (Fasi et al. 2021). With ``factor`` 1.5 the large products are 1.5 *
    1.5: a unit that normalises products keeps one bit less of the others.
    """
    r = Range(*setting[:3])
    e = r.large - 2
    x, y = r.power(e, factor)
    y *= factor
    lowest = max(setting.out.quantum_exponent if use_c else r.lowest, e - 60)
    designs = []
    for d in range(e - lowest + 1):
        cancel = (block[0], x, y), (block[1], -x, y)
        if use_c:
            designs.append(Design(cancel, math.ldexp(1.0, e - d)))
        else:
            designs.append(Design((*cancel, (block[2], *r.power(e - d)))))
    return designs


def conversions(setting: Setting, places: Sequence[int], use_c: bool) -> list[Design]:
    """Return a large term plus parts of its last place, of either sign, for significands of several lengths.

    The large term is ``c``, or the product at the first of ``places``, which the last of them cancels, so that a result
    narrower than the accumulator shows the accumulator's last place.
    """
    r = Range(*setting[:3])
    top = min(r.highest, r.out.emax - 4, r.lowest + 40) if use_c else min(r.large - 4, r.small + 34)
    designs = []
    for p in sorted({r.out.p, 24, 14, 11, 8}):
        quantum = top - p + 1
        if quantum - 3 < r.lowest or (use_c and p > r.out.p):
            continue
        for sign, eighths in itertools.product((1.0, -1.0), (-6, -5, -4, -3, -2, 2, 3, 4, 5, 6, 7)):
            terms = _parts(r, eighths, quantum, places[1:])
            if use_c:
                large = math.ldexp(1.5, top), math.ldexp(1.5, top) + math.ldexp(1.0, quantum)
                designs += [Design(terms, sign * x) for x in large]
            elif r.a.m >= 1 and len(places) > len(terms) + 1:
                x, y = r.power(top, 1.5)
                designs.append(Design(((places[0], sign * x, y), *terms, (places[-1], -sign * x, y))))
    return designs


def _parts(r: Range, eighths: int, quantum: int, places: Sequence[int]) -> tuple[tuple[int, float, float], ...]:
    """Return products, powers of two, that make so many eighths of a quantum."""
    sign = math.copysign(1.0, eighths)
    bits = [bit for bit in range(3) if abs(eighths) >> bit & 1]
    return tuple((k, sign * x, y) for k, (x, y) in zip(places, (r.power(quantum - 3 + b) for b in bits), strict=False))


def smallest_bits(setting: Setting, block: Sequence[int]) -> tuple[list[Design], list[Design]]:
    """Return lone products down to the smallest number, and sums of one to four of it less a product of d bits lower.

    What is lost shows below what no block is aligned to, however small its terms are: the alignment floor (Khattak and
    Mikaitis 2026). A result rounds up or down according to whether the lower product is kept.
    """
    r = Range(*setting[:3])
    quantum = setting.out.quantum_exponent
    lowest = r.lowest - r.a.m - r.b.m
    lone = [
        Design(((block[0], *r.power(e)),)) for e in range(quantum + 24, quantum - 1, -1) if lowest <= e <= r.highest
    ]
    if quantum - 1 < lowest or quantum + 3 > r.highest:
        return lone, []
    sums = []
    for halves in (2, 3, 4, 8):
        for e in range(quantum - 1, max(lowest, quantum - 40) - 1, -1):
            x, y = r.power(e)
            sums.append(Design(((block[0], *_tiny_product(r, quantum - 1, halves)), (block[1], -x, y))))
    return lone, sums


def _tiny_product(r: Range, e: int, factor: int) -> tuple[float, float]:
    """Return operands whose product is ``factor * 2**e``, by whole exponents where the left one is subnormal."""
    shift = 1 if factor % 3 else 0
    whole = 0 if factor == 3 else factor.bit_length() - shift
    return r.power(e + whole, factor / 2.0**whole)


def lone_accumulators(setting: Setting) -> list[Design]:
    """Return accumulators without products: small, subnormal, and of full length."""
    out = setting.out
    quantum = out.quantum_exponent
    numbers = [math.ldexp(1.0, e) for e in range(quantum, out.emin + 2)]
    numbers += [float(out.max_finite), 1.0 + out.eps, 2.0 - out.eps]
    numbers += [math.ldexp(3.0, quantum), math.ldexp(1.0, out.emin) - math.ldexp(1.0, quantum)]
    return [Design((), sign * x) for x in numbers for sign in (1.0, -1.0)]


def subnormals(setting: Setting) -> dict[str, list[Design]]:
    """Return subnormal operands on either side, a subnormal accumulator, and subnormal results of normal operands.

    Units that flush them give zero. Each comes with both signs.
    """
    r, out = Range(*setting[:3]), setting.out
    found: dict[str, list[Design]] = {}
    for side, fmt, other in (("a", r.a, r.b), ("b", r.b, r.a)):
        if not fmt.has_subnormals:
            continue
        small = math.ldexp(1.0, fmt.emin - 1) if fmt.m else 0.0
        e = min(max(out.emin + 2 - fmt.emin, 0), other.emax)
        pair = (small, math.ldexp(1.0, e))
        pair = pair if side == "a" else pair[::-1]
        found[side] = [Design(((0, s * pair[0], pair[1]),)) for s in (1.0, -1.0)]
    half = math.ldexp(1.0, out.emin - 1)
    found["c"] = [Design((), s * half) for s in (1.0, -1.0)]
    if r.lowest <= out.emin - 1:
        x, y = r.power(out.emin - 1)
        found["result"] = [Design(((0, s * x, y),)) for s in (1.0, -1.0)]
        found["tiny"] = _tiny(r)
    return found


def _tiny(r: Range) -> list[Design]:
    """Return sums that are just below the smallest normal number, where flushing before or after rounding differs."""
    e = r.out.emin
    designs = []
    for d in range(r.out.p - 3, r.out.p + 5):
        if e - d < r.lowest:
            break
        x, y = r.power(e)
        u, v = r.power(e - d)
        designs += [Design(((0, s * x, y), (1, -s * u, v))) for s in (1.0, -1.0)]
    return designs


def zeros(setting: Setting) -> dict[str, Design]:
    """Return sums that are zero, whose signs tell IEEE additions from adders that know one zero only.

    The last holds back a tiny accumulator where a zero product takes part in the alignment, as MMA-Sim has it.
    """
    r = Range(*setting[:3])
    x, y = r.power(max(r.lowest, 0))
    every = tuple((k, -0.0, 1.0) for k in range(setting.k))
    largest = float(r.a.max_finite), float(r.b.max_finite)
    return {
        "-0 and no products": Design((), -0.0),
        "all terms -0": Design(every, -0.0),
        "1 - 1": Design(((0, x, y), (1, -x, y))),
        "-1 + 1 and c = -0": Design(((0, -x, y), (1, x, y)), -0.0),
        "0 times the largest": Design(
            ((0, 0.0, largest[1]), (1, largest[0], 0.0)), 3.0 * float(setting.out.min_subnormal)
        ),
    }


def special_values(setting: Setting) -> dict[str, Design]:
    """Return NaNs, infinities and sums past the largest number, as far as the formats have them (FTTN, MMA-Sim).

    Large products that cancel tell an adder of wider range from one that rounds, and overflows, at every step.
    """
    r, out = Range(*setting[:3]), setting.out
    one = 1.0
    found: dict[str, Design] = {}
    if r.a.nan_code is not None:
        found["NaN in a"] = Design(((0, math.nan, one),))
    if out.nan_code is not None:
        found["NaN in c"] = Design(((0, one, one),), math.nan)
    if r.a.inf_code is not None:
        found["inf * 0"] = Design(((0, math.inf, 0.0),))
        found["inf - inf"] = Design(((0, math.inf, one), (1, -math.inf, one)))
        found["inf"] = Design(((0, -math.inf, one), (1, one, one)))
    if out.inf_code is not None:
        found["inf in c"] = Design(((0, one, one),), -math.inf)
        found["c near the largest"] = Design(((0, *r.power(min(r.highest, out.emax))),), float(out.max_finite))
    if r.highest > out.emax:
        x, y = r.power(out.emax + 1)
        u, v = r.power(out.emax)
        found["overflow that cancels"] = Design(((0, x, y), (1, -x, y), (2, u, v)))
        found["overflow"] = Design(((0, -x, y),))
        found["sum that overflows"] = Design(((0, u, v), (1, u, v), (2, -u, v)))
    return found


def random_dots(setting: Setting, count: int, seed: int = 0) -> list[Design]:
    """Return random dot products: exponents close together or far apart, few products or all, with c and without."""
    rng = np.random.default_rng(seed)
    k, r = setting.k, Range(*setting[:3])
    designs = []
    for i in range(count):
        spread = (0, 2, 6, 14)[i % 4]
        a, b = (random_values(rng, fmt, k, spread) for fmt in (r.a, r.b))
        keep = rng.random(k) < (1.0, 0.3, 0.08)[i % 3]
        terms = tuple((j, float(a[j]), float(b[j])) for j in range(k) if keep[j])
        size = max((abs(x * y) for _, x, y in terms), default=1.0)
        c = float(round_to(rng.standard_normal() * size * 2.0 ** rng.integers(-8, 9), r.out)) if i % 5 else 0.0
        scales: tuple[tuple[int, float], ...] = ()
        if setting.scale is not None:
            blocks = -(-k // setting.scale_block)
            exponents = (
                rng.integers(-3, 4, blocks) * (1 if i % 2 else 3)
                if setting.scale.m == 0
                else rng.integers(-3, 4, blocks)
            )
            scales = tuple((block, float(2.0**e)) for block, e in enumerate(exponents.tolist()))
        designs.append(Design(terms, c if math.isfinite(c) else 0.0, scales))
    return designs


def crossings(setting: Setting, count: int, use_c: bool, seed: int = 0) -> list[Design]:
    """Return short dot products at places all over K, near to each other or not.

    Most are a large product and its negative with one to three smaller ones, the others a few random products.
    """
    rng = np.random.default_rng(seed)
    k, r = setting.k, Range(*setting[:3])
    top = r.large - 2
    designs = []
    for i in range(count):
        n = min(k, 3 + i % 3)
        near = min(k, (2, 8, 32, 128)[i % 4] * n)
        ks = ((int(rng.integers(k)) + rng.choice(near if i % 8 < 4 else k, n, replace=False)) % k).tolist()
        if i % 3:
            x, y = r.power(top)
            lower = rng.integers(1, max(min(top - r.small, 40), 2), n - 2).tolist()
            small = tuple((at, *r.power(top - d)) for at, d in zip(ks[2:], lower, strict=True))
            terms = ((ks[0], x, y), (ks[1], -x, y), *small)
            c = math.ldexp(1.0, max(top - int(rng.integers(1, 30)), setting.out.emin))
        else:
            a, b = (random_values(rng, fmt, n, (0, 3, 8)[i % 9 // 3]) for fmt in (r.a, r.b))
            terms = tuple(zip(ks, a.tolist(), b.tolist(), strict=True))
            c = float(round_to(rng.standard_normal(), r.out))
        designs.append(Design(terms, c if use_c and i % 5 == 0 else 0.0))
    return designs


def random_values(
    rng: np.random.Generator, fmt: FloatFormat, k: int, spread: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return ``k`` values of a format, normally distributed, times powers of two up to ``spread``."""
    exponents = rng.integers(-spread, spread + 1, k)
    x = np.ldexp(rng.standard_normal(k), exponents) * min(1.0, 2.0 ** (fmt.emax - 3))
    largest = float(fmt.max_finite)
    rounded: np.ndarray[tuple[int], np.dtype[np.float64]] = round_to(np.clip(x, -largest, largest), fmt)
    return rounded
