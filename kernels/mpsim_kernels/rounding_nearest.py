"""Round float32 or float64 words to nearest even with half the steps, for formats of the shape NARROW.

A subnormal result is found by an addition: what is added to a power of two loses the bits below the quantum, and the
processor rounds to nearest even as it drops them. All other steps are on integers. The addition is right only in
`mpsim_kernels.floating_point.default_environment`; its terms and its sum are normal numbers, or a number that is
subnormal in the source itself and far below half the smallest quantum, so no flush bit matters.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mpsim_kernels._jit import kernel
from mpsim_kernels.bits import shl, shr

__all__ = ["make_nearest_rounder"]


@functools.cache
def make_nearest_rounder(width: int, codes: bool) -> Callable[..., None]:
    """Return ``rounder(x, out, grid, random, counts)``, of which the last two arguments are ignored.

    It gives what that of `mpsim_kernels.rounding.make_rounder` does for nearest-even and the shape NARROW. Call it in
    the default environment.
    """
    U: Any = np.uint32 if width == 32 else np.uint64
    S: Any = np.int32 if width == 32 else np.int64
    FLOAT: Any = np.float32 if width == 32 else np.float64
    F, BIAS = (23, 127) if width == 32 else (52, 1023)
    F_WORD, F_SIGNED, BIAS_SIGNED = U(F), S(F), S(BIAS)
    INF = S((2 ** (width - 1 - F) - 1) << F)
    MAGNITUDE, SIGN, TOP = U((1 << (width - 1)) - 1), U(1 << (width - 1)), U(width - 1)
    ONE, ONE_SIGNED = U(1), S(1)

    @kernel
    def rounder(x: Any, out: Any, grid: Any, random: Any, counts: Any) -> None:
        g = grid[0]
        m, bias, sign = S(g["m"]), S(g["bias"]), U(g["sign"])
        sign_down = U(TOP - U(g["sign_shift"]))
        over, nan, largest = S(min(U(g["over_plus"]), MAGNITUDE)), S(U(g["nan_plus"]) & MAGNITUDE), S(g["max_pattern"])
        rebias, keep = S(S(BIAS_SIGNED - bias) + ONE_SIGNED), U(F_SIGNED - m)
        normal = S(shl(U(rebias), F_WORD))  # word of the smallest normal number
        # A power of two whose last place is the quantum of subnormal numbers.
        magic = U(shl(U(U(rebias) + keep), F_WORD))
        magic_float = FLOAT(U(magic).view(FLOAT))
        below_half, kept = U(shl(ONE, U(keep - ONE)) - ONE), U(~U(shl(ONE, keep) - ONE))
        first = S(shl(U(rebias - ONE_SIGNED), U(m)))  # what a normal number's code lies below its word's top bits
        for i in range(x.size):
            word = x[i]
            a = U(word & MAGNITUDE)
            shifted = FLOAT(FLOAT(a.view(FLOAT)) + magic_float)
            half = U(U(a + below_half) + U(shr(a, keep) & ONE))
            is_normal, is_nan = S(a) >= normal, S(a) > INF
            if codes:
                small = S(S(shifted.view(S)) - S(magic))
                r = S(S(shr(half, keep)) - first) if is_normal else small
                bare = U(nan if is_nan else S(min(r, over)))
                out[i] = U(bare | U(shr(word, sign_down) & sign))
            else:
                small = S(FLOAT(shifted - magic_float).view(S))
                r = S(U(half & kept)) if is_normal else small
                bare = U(nan if is_nan else (over if r > largest else r))
                out[i] = U(bare | U(word & SIGN))

    return rounder
