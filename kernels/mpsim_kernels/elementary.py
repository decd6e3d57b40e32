"""Functions of single elements by the exponential and the normal distribution, computed in float64.

The exponential is within one unit of float64's last place. What is built of it is computed as its formula stands, each
operation rounded once, multiply-adds of polynomials fused, so these kernels want
`floating_point.default_environment` around them. The bits are those of the formulas on every processor, where a C
library's or NumPy's own exponential differs from one to the next.

With M(a) = exp(a**2 / 2) Q(a), Q the upper tail of the normal distribution, one polynomial serves all of it:
(1 + a) M(a) is smooth on [0, inf) and, in t = (a - 5) / (a + 5), within 1e-16 of a polynomial of degree 22 (after
Schonfelder 1978, Math. Comp. 32, 1232). The results are within some 1e-15 of the exact ones, relatively, wherever they
are normal numbers: in a tail too, where 1 - erf(x) would cancel.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpsim_kernels._jit import inlined_kernel, kernel
from mpsim_kernels.floating_point import fma64

__all__ = ["FUNCTIONS", "SLOPES", "exponential", "make_function", "make_slope", "normal_probability"]

FUNCTIONS = ("exp", "sigmoid", "silu", "erf", "gelu", "gelu_tanh")
"""Functions of `make_function`."""

SLOPES = ("silu", "gelu", "gelu_tanh")
"""Functions whose derivative `make_slope` knows."""

# Expansion of (1 + a) M(a) in Chebyshev polynomials, computed to 50 digits at 60 nodes, as powers of t.
_MILLS = np.array(
    [
        0.46151582985003775, -0.09155228183401112, 0.031030368425963708, 0.010002352385413518, -0.026401042966308307,
        0.024536963238891124, -0.015170415402514863, 0.0065220007252342425, -0.00167607234455447, 7.79121440702919e-06,
        0.00018233414511643843, -5.360602125091952e-05, -9.896097759279782e-06, 9.055745037072721e-06,
        -7.034644683537101e-08, -1.3004549261799018e-06, 1.27878221820937e-07, 1.8846163807542468e-07,
        -2.6286205089898754e-08, -2.54667816805072e-08, 3.627373163401201e-09, 2.2070652717459774e-09,
        -2.8220772290629865e-10,
    ]
)  # fmt: skip

# erf(x) = x * (sum of these times x**(2 n)): the series of the integral of exp(-x**2); 13 terms do below 1/2.
_SERIES = np.array([2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(13)])

# exp(r) = 1 + r + r**2 * (sum of these times r**n), for |r| to ln(2) / 2: what is left out is below 2**-57.
_EXPONENTIAL = np.array([1 / math.factorial(n + 2) for n in range(12)])

_LOG2_E = np.float64(1.4426950408889634)
_LN2_HIGH = np.float64(float.fromhex("0x1.62e42fefap-1"))  # 36 bits, so that its products with integers are exact
_LN2_LOW = np.float64(float.fromhex("0x1.cf79abc9e3b3ap-40"))
_MAGIC = np.float64(1.5 * 2.0**52)  # added, it leaves the nearest integer in the last places
_BIAS = np.int64(1023)
_PLACE = np.int64(52)
_LEAST, _MOST = np.float64(-746.0), np.float64(710.0)  # beyond these the results are 0 and infinity
_HALFWAY = np.float64(1000.0)
_FAR = np.float64(40.0)

_ONE, _HALF, _FIVE, _TEN = np.float64(1), np.float64(0.5), np.float64(5), np.float64(10)
_DENSITY = np.float64(1 / math.sqrt(2 * math.pi))
_SQRT2 = np.float64(math.sqrt(2))
_QUARTER, _TWO = np.float64(0.25), np.float64(2)
_ROOT, _CUBIC, _THREE = np.float64(2 * math.sqrt(2 / math.pi)), np.float64(0.044715), np.float64(3)


@inlined_kernel
def _polynomial(x: Any, coefficients: Any, degree: Any) -> Any:
    """Return a polynomial: its even and its odd part by Horner's rule, in fused steps that run side by side."""
    square = np.float64(x * x)
    odd_degree = degree & 1
    even, odd = np.float64(coefficients[degree - odd_degree]), np.float64(coefficients[degree - 1 + odd_degree])
    for k in range(degree - odd_degree - 2, -1, -2):
        even = fma64(even, square, np.float64(coefficients[k]))
    for k in range(degree + odd_degree - 3, -1, -2):
        odd = fma64(odd, square, np.float64(coefficients[k]))
    return fma64(odd, x, even)


@inlined_kernel
def _power_of_two(n: Any) -> Any:
    """Return 2**n for an integer n, a float64, from -1022 to 1023."""
    return np.int64((np.float64(n + _MAGIC).view(np.int64) + _BIAS) << _PLACE).view(np.float64)


@inlined_kernel
def exponential(x: Any) -> Any:
    """Return e**x."""
    inside = _LEAST if x < _LEAST else (_MOST if x > _MOST else x)  # a NaN stays
    n = np.float64(np.float64(inside * _LOG2_E + _MAGIC) - _MAGIC)
    r = np.float64(np.float64(inside - n * _LN2_HIGH) - n * _LN2_LOW)
    p = np.float64(_ONE + (r + r * r * _polynomial(r, _EXPONENTIAL, 11)))
    # In two steps, of which only the second rounds or overflows.
    near = -_HALFWAY if n < -_HALFWAY else (_HALFWAY if n > _HALFWAY else n)
    return np.float64(p * _power_of_two(near) * _power_of_two(np.float64(n - near)))


@inlined_kernel
def _mills(a: Any) -> Any:
    """Return exp(a**2 / 2) times the probability of more than ``a``, which is not negative."""
    # 1 - 10 / (a + 5) is (a - 5) / (a + 5), also at infinity.
    return np.float64(_polynomial(np.float64(_ONE - _TEN / (a + _FIVE)), _MILLS, 22) / (_ONE + a))


@inlined_kernel
def _bell(x: Any, exact: bool) -> Any:
    """Return exp(-x**2 / 2); unless the square is exact, what its rounding left out is put back as a factor near 1."""
    if exact:
        return exponential(np.float64(-_HALF * x * x))
    inside = -_FAR if x < -_FAR else (_FAR if x > _FAR else x)  # beyond, the result is 0
    square = np.float64(inside * inside)
    e = exponential(np.float64(-_HALF * square))
    return fma64(e, np.float64(-_HALF * fma64(inside, inside, np.float64(-square))), e)


@inlined_kernel
def _probability(x: Any, bell: Any) -> Any:
    tail = np.float64(bell * _mills(np.float64(abs(x))))
    return tail if x < 0 else np.float64(_ONE - tail)


@inlined_kernel
def normal_probability(x: Any) -> Any:
    """Return the normal distribution's cumulative probability at ``x``."""
    return _probability(x, _bell(x, False))


@inlined_kernel
def _error_function(x: Any) -> Any:
    """Return the error function."""
    size, square = np.float64(abs(x)), np.float64(x * x)
    far = np.float64(_ONE - _TWO * exponential(np.float64(-square)) * _mills(np.float64(_SQRT2 * size)))
    small = square if square < _QUARTER else _QUARTER
    near = np.float64(size * _polynomial(small, _SERIES, 12))
    result = near if size < _HALF else far
    return np.float64(math.copysign(result, x))


@inlined_kernel
def _logistic(v: Any, x: Any) -> Any:
    """Return ``v`` times the logistic function of ``x``, v / (1 + exp(-x))."""
    return np.float64(v / (_ONE + exponential(np.float64(-x))))


@inlined_kernel
def _twice_argument(x: Any) -> Any:
    """Return 2 u with u = sqrt(2 / pi) (x + 0.044715 x**3); GELU's x (1 + tanh u) / 2 is x / (1 + exp(-2 u))."""
    return np.float64(_ROOT * (x + _CUBIC * (x * x * x)))


@functools.cache
def make_function(name: str, width: int) -> Callable[..., None]:
    """Return ``function(x, out)``, for contiguous arrays of floats of ``width`` bits, 32 or 64; see `FUNCTIONS`."""
    F: Any = np.float32 if width == 32 else np.float64
    which, narrow = FUNCTIONS.index(name), width == 32

    @kernel
    def function(x: Any, out: Any) -> None:
        for i in range(x.size):
            v = np.float64(x[i])
            if which == 0:
                y = exponential(v)
            elif which == 1:
                y = _logistic(_ONE, v)
            elif which == 2:
                y = _logistic(v, v)
            elif which == 3:
                y = _error_function(v)
            elif which == 4:
                y = np.float64(v * _probability(v, _bell(v, narrow)))
            else:
                y = _logistic(v, _twice_argument(v))
            out[i] = F(y)

    return function


@functools.cache
def make_slope(name: str, width: int) -> Callable[..., None]:
    """Return ``slope(g, x, out)``: ``g`` times the derivative of a function at ``x``; see `SLOPES`."""
    F: Any = np.float32 if width == 32 else np.float64
    which, narrow = SLOPES.index(name), width == 32

    @kernel
    def slope(g: Any, x: Any, out: Any) -> None:
        for i in range(x.size):
            v, w = np.float64(x[i]), np.float64(g[i])
            if which == 0:
                s = _logistic(_ONE, v)
                y = np.float64(w * (s * (_ONE + v * (_ONE - s))))
            elif which == 1:
                bell = _bell(v, narrow)
                y = np.float64(w * (_probability(v, bell) + v * (bell * _DENSITY)))
            else:
                s = _logistic(_ONE, _twice_argument(v))
                inner = np.float64(_ROOT * (_ONE + _THREE * _CUBIC * (v * v)))
                y = np.float64(w * (s + v * (s * (_ONE - s)) * inner))
            out[i] = F(y)

    return slope
