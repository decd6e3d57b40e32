"""Sums of a block of products and an accumulator, rounded once to float32, for whole rows of outputs.

Products of float32 numbers are exact in float64. What their sum needs depends on how far apart the exponents lie:

- If every term is a multiple of a unit and all together are below ``2**53`` units, a chain of additions is exact.
- If there is room for two numbers of 53 bits, each product is cut on a grid, and the parts above and below are
  summed apart, both exactly.
- Two products of any size leave an exact error term when they are added.
- Anything else goes to the long accumulator of `mpsim_kernels.exact_sums`.

The second and the third give the sum of the products as two numbers that do not overlap. These and the accumulator
are added with rounding to odd before the rounding to float32, after S. Boldo and G. Melquiond, "Emulation of a FMA and
correctly rounded sums: proved algorithms using rounding to odd", IEEE Transactions on Computers 57 (2008).

All of it needs the default floating-point environment. Infinities and NaNs make what they make in any order; where
they leave a NaN in an error term, the sum of the main terms is the result.
"""

from typing import Any

import numpy as np

from mpsim_kernels._jit import inner_kernel, kernel
from mpsim_kernels.exact_sums import add_exactly, rounded_sum
from mpsim_kernels.floating_point import fma64

__all__ = ["add_products", "any_block", "cut_products", "exact_block_2", "exact_block_4", "pair_block", "round_cut"]


@kernel
def exact_block_2(a: Any, b: Any, acc: Any) -> None:
    """Add 2 products, ``a`` float64 [2] and ``b`` float64 [2, W], to ``acc`` float32 [W], if additions are exact."""
    a0, a1 = a[0], a[1]
    b0, b1 = b[0], b[1]
    for j in range(acc.size):
        acc[j] = np.float32(fma64(a1, b1[j], fma64(a0, b0[j], np.float64(acc[j]))))


@kernel
def exact_block_4(a: Any, b: Any, acc: Any) -> None:
    """Add 4 products."""
    a0, a1, a2, a3 = a[0], a[1], a[2], a[3]
    b0, b1, b2, b3 = b[0], b[1], b[2], b[3]
    for j in range(acc.size):
        low = fma64(a1, b1[j], fma64(a0, b0[j], np.float64(acc[j])))
        acc[j] = np.float32(fma64(a3, b3[j], fma64(a2, b2[j], low)))


@inner_kernel
def add_products(a: Any, b: Any, total: Any) -> None:
    """Add 4 products to ``total`` float64 [W], without the rounding that ends a block."""
    a0, a1, a2, a3 = a[0], a[1], a[2], a[3]
    b0, b1, b2, b3 = b[0], b[1], b[2], b[3]
    for j in range(total.size):
        low = fma64(a1, b1[j], fma64(a0, b0[j], total[j]))
        total[j] = fma64(a3, b3[j], fma64(a2, b2[j], low))


@kernel
def cut_products(a: Any, b: Any, high: Any, low: Any) -> None:
    """Add 4 products to ``high + low``, both float64 [W].

    ``high`` began as 3/2 of a power of two, so large that its last bit is the grid: each product is rounded to it
    when it is added. What is rounded off is found exactly.
    """
    a0, a1, a2, a3 = a[0], a[1], a[2], a[3]
    b0, b1, b2, b3 = b[0], b[1], b[2], b[3]
    for j in range(high.size):
        x0, x1, x2, x3 = b0[j], b1[j], b2[j], b3[j]
        t = high[j]
        t0 = fma64(a0, x0, t)
        t1 = fma64(a1, x1, t0)
        t2 = fma64(a2, x2, t1)
        t3 = fma64(a3, x3, t2)
        left = fma64(a0, x0, t - t0) + fma64(a1, x1, t0 - t1)
        right = fma64(a2, x2, t1 - t2) + fma64(a3, x3, t2 - t3)
        low[j] = low[j] + (left + right)
        high[j] = t3


@inner_kernel
def _rounded(s: Any, low: Any, c: Any, main: Any) -> Any:
    """Return ``s + low + c`` rounded once to float32.

    ``low`` is at most half the last place of ``s``, and either it has 48 bits or its last bit is at most 52 places
    below that of ``s``; ``c`` is a float32, and ``main`` what ``s`` was before error terms.
    """
    t = s + c
    u = t - s
    # If this sum is not exact, its terms lie so far apart that it is no multiple of the last place of t, but perhaps
    # half of that, and then z is the odd neighbour below a power of two. So rest has the sign of all that is left over,
    # or does not matter.
    g = ((s - (t - u)) + (c - u)) + low
    z = t + g
    rest = g - (z - t)
    # To odd: where something is left over, a last bit 0 becomes the odd neighbour on its side. An odd z is no float32
    # nor half-way between two, so that rounding it once more gives what rounding the sum gives.
    word = np.float64(z).view(np.int64)
    step = np.int64(1) if (rest < np.float64(0)) == (z < np.float64(0)) else np.int64(-1)
    even = (word & np.int64(1)) == np.int64(0)
    odd = np.int64(word + (step if even and rest != np.float64(0) else np.int64(0))).view(np.float64)
    return np.float32(main + c if rest != rest else odd)


@kernel
def round_cut(high: Any, low: Any, anchor: Any, acc: Any) -> None:
    """End a block: add the sums of `cut_products` to ``acc`` float32 [W]; ``high`` began as ``anchor``."""
    for j in range(acc.size):
        main = high[j] - anchor
        s = main + low[j]
        acc[j] = _rounded(s, low[j] - (s - main), np.float64(acc[j]), main)


@kernel
def pair_block(a: Any, b: Any, acc: Any) -> None:
    """Add 2 products of any size."""
    a0, a1 = a[0], a[1]
    b0, b1 = b[0], b[1]
    for j in range(acc.size):
        x, y = a0 * b0[j], a1 * b1[j]
        s = x + y
        u = s - x
        acc[j] = _rounded(s, (x - (s - u)) + (y - u), np.float64(acc[j]), s)


@kernel
def any_block(a: Any, b: Any, limbs: Any, acc: Any) -> None:
    """Add any number of products of any size; ``limbs`` int64 [8, LIMBS] are zero, and are so again."""
    for first in range(0, acc.size, 8):  # a line of the cache
        special = np.zeros(8, np.float64)
        for g in range(8):
            c = np.float64(acc[first + g])
            if np.isfinite(c):
                add_exactly(c, limbs[g])
            else:
                special[g] = c
        for k in range(a.size):
            for g in range(8):
                product = a[k] * b[k, first + g]
                if np.isfinite(product):
                    add_exactly(product, limbs[g])
                else:
                    special[g] += product
        for g in range(8):
            total = rounded_sum(limbs[g])
            acc[first + g] = total if special[g] == np.float64(0) else np.float32(special[g])
