"""The arithmetic of optimizers: whole updates of float32 or float64 weights in one pass, and parts of other updates.

Each operation is the processor's own, rounded once, in the order and with the fused multiply-adds of torch's kernels.
So these kernels want `floating_point.default_environment` around them. The NaNs that whole updates write are the
positive quiet one: which of two NaNs an operation hands on differs between processors.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mpsim_kernels._jit import kernel
from mpsim_kernels.floating_point import fma32, fma64

__all__ = [
    "COUPLED",
    "DECOUPLED",
    "FIRST",
    "NONE",
    "RUNNING",
    "SUMMED",
    "make_adam",
    "make_add_scaled",
    "make_add_square",
    "make_lerp",
    "make_sgd",
    "square_sums",
    "sum_to_odd",
]

NONE, COUPLED, DECOUPLED = range(3)
"""Weight decay: none; a share of the weights added to the gradient; the weights themselves shrunk first."""

FIRST, RUNNING = 1, 2
"""Momentum: the first step, which sets it to the gradient, or a later one. NONE: there is none."""

SUMMED = 1024
"""Numbers that one sum of squares takes, whatever the threads."""

_CHUNK = 4096  # elements counted in 32 bits, as wide as the lanes of float32


@functools.cache
def make_sgd(width: int, decay: int, momentum: int, nesterov: bool) -> Callable[..., None]:
    """Return the kernel of a step of stochastic gradient descent on floats of ``width`` bits.

    Parameters
    ----------
    width
        32 or 64.
    decay
        NONE or COUPLED.
    momentum
        NONE, FIRST or RUNNING.
    nesterov
        Look ahead along the momentum.

    Returns
    -------
    kernel
        ``sgd(w, grad, buffer, out, sign, weight_decay, beta, share, rate, counts)``. Arrays [n]; ``out`` may be ``w``;
        ``buffer`` is not touched without momentum. ``sign`` is 1, or -1 to climb; ``share`` of the gradient goes into
        the momentum; ``rate`` is the negative learning rate. ``counts``: int64 [2], directions that were not zero,
        and of these those that left the weight unchanged.
    """
    real: Any = np.float32 if width == 32 else np.float64
    fma: Any = fma32 if width == 32 else fma64
    NAN = real(np.nan)

    @kernel
    def sgd(
        w: Any,
        grad: Any,
        buffer: Any,
        out: Any,
        sign: Any,
        weight_decay: Any,
        beta: Any,
        share: Any,
        rate: Any,
        counts: Any,
    ) -> None:
        for first in range(0, w.size, _CHUNK):
            part = slice(first, min(first + _CHUNK, w.size))
            ws, grads, buffers, outs = w[part], grad[part], buffer[part], out[part]
            moved = lost = np.int32(0)
            for i in range(ws.size):
                x, weight = sign * grads[i], ws[i]
                if decay == COUPLED:
                    x = fma(weight_decay, weight, x)
                if momentum != NONE:
                    b = fma(share, x, beta * buffers[i]) if momentum == RUNNING else x
                    b = b if b == b else NAN
                    buffers[i] = b
                    x = fma(beta, b, x) if nesterov else b
                new = fma(rate, x, weight)
                new = new if new == new else NAN
                moved = np.int32(moved + np.int32(x != real(0)))
                lost = np.int32(lost + np.int32((x != real(0)) & (new == weight)))
                outs[i] = new
            counts[0] += np.int64(moved)
            counts[1] += np.int64(lost)

    return sgd


@functools.cache
def make_adam(width: int, decay: int, amsgrad: bool, half: bool) -> Callable[..., None]:
    """Return the kernel of a step of Adam on floats of ``width`` bits.

    Parameters
    ----------
    width
        32 or 64.
    decay
        NONE, COUPLED or DECOUPLED.
    amsgrad
        Divide by the largest second moment so far.
    half
        The gradient's share in the first moment is at least a half, where torch interpolates from the other end.

    Returns
    -------
    kernel
        ``adam(w, grad, m, v, largest, out, scalars, counts)``. Arrays [n]; ``m`` and ``v`` are the moments, ``largest``
        is touched only with ``amsgrad``, ``out`` may be ``w``. ``scalars``, of the arrays' type: sign, weight decay or
        the factor on the weights, 1 - beta1, beta2, 1 - beta2, root of the second bias correction, epsilon, minus the
        step size. ``counts``: int64 [2], as of `make_sgd`; the direction is the first moment, or the decay.
    """
    real: Any = np.float32 if width == 32 else np.float64
    fma: Any = fma32 if width == 32 else fma64
    NAN = real(np.nan)

    @kernel
    def adam(w: Any, grad: Any, m: Any, v: Any, largest: Any, out: Any, scalars: Any, counts: Any) -> None:
        sign, weight_decay, share, beta2 = scalars[0], scalars[1], scalars[2], scalars[3]
        share2, correction, eps, rate = scalars[4], scalars[5], scalars[6], scalars[7]
        rest = share - real(1)
        for first in range(0, w.size, _CHUNK):
            part = slice(first, min(first + _CHUNK, w.size))
            ws, grads, ms, vs, largests, outs = w[part], grad[part], m[part], v[part], largest[part], out[part]
            moved = lost = np.int32(0)
            for i in range(ws.size):
                x, weight = sign * grads[i], ws[i]
                base = weight
                if decay == COUPLED:
                    x = fma(weight_decay, base, x)
                if decay == DECOUPLED:
                    base = base * weight_decay
                mean = fma(rest, x - ms[i], x) if half else fma(share, x - ms[i], ms[i])
                mean = mean if mean == mean else NAN
                square = fma(share2 * x, x, vs[i] * beta2)
                square = square if square == square else NAN
                ms[i] = mean
                vs[i] = square
                if amsgrad:
                    # torch.maximum: NaN where either is.
                    square = largests[i] if largests[i] > square or largests[i] != largests[i] else square
                    largests[i] = square
                new = base + rate * mean / (np.sqrt(square) / correction + eps)
                new = new if new == new else NAN
                nonzero = (mean != real(0)) & (rate != real(0))
                if decay == DECOUPLED:
                    nonzero = nonzero | ((weight != real(0)) & (weight_decay != real(1)))
                moved = np.int32(moved + np.int32(nonzero))
                lost = np.int32(lost + np.int32(nonzero & (new == weight)))
                outs[i] = new
            counts[0] += np.int64(moved)
            counts[1] += np.int64(lost)

    return adam


@functools.cache
def make_add_scaled(width: int) -> Callable[..., None]:
    """Return ``add(a, x, y, out)``: ``out = a * x + y`` with a number ``a``, rounded once."""
    fma: Any = fma32 if width == 32 else fma64

    @kernel
    def add(a: Any, x: Any, y: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = fma(a, x[i], y[i])

    return add


@functools.cache
def make_add_square(width: int) -> Callable[..., None]:
    """Return ``add(a, x, y, out)``: ``out = (a * x) * x + y``, rounded after ``a * x`` and at the end."""
    fma: Any = fma32 if width == 32 else fma64

    @kernel
    def add(a: Any, x: Any, y: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = fma(a * x[i], x[i], y[i])

    return add


@functools.cache
def make_lerp(width: int) -> Callable[..., None]:
    """Return ``lerp(x, y, share)``: moves ``x`` [n] towards ``y`` by a share of the distance, from the nearer end."""
    real: Any = np.float32 if width == 32 else np.float64
    fma: Any = fma32 if width == 32 else fma64

    @kernel
    def lerp(x: Any, y: Any, share: Any) -> None:
        rest = share - real(1)
        for i in range(x.size):
            distance = y[i] - x[i]
            x[i] = fma(share, distance, x[i]) if share < real(0.5) else fma(rest, distance, y[i])

    return lerp


@kernel
def sum_to_odd(a: Any, x: Any, y: Any, out: Any) -> None:
    """Write ``a * x + y`` of float32 numbers as float64, rounded to odd.

    The product is exact in float64 (24 + 24 bits). The error of the sum is found exactly (Knuth's TwoSum) and, where
    the sum is inexact and even, moves it to its odd neighbour; a second rounding to 50 bits or fewer is then right
    (Boldo and Melquiond 2008).
    """
    scale = np.float64(a)
    for i in range(x.size):
        product, addend = scale * np.float64(x[i]), np.float64(y[i])
        total = product + addend
        back = total - product
        error = (product - (total - back)) + (addend - back)
        word = np.float64(total).view(np.int64)
        # One word up is one step away from zero: right when the error has the sign of the sum.
        step = np.int64(1) if (error > 0) == (total > 0) else np.int64(-1)
        # Neither NaN nor, with an infinity among the terms, an infinite or NaN error.
        inexact = error < 0 or error > 0
        move = inexact and abs(error) < np.inf and (word & np.int64(1)) == 0
        odd = np.int64(word + (step if move else np.int64(0))).view(np.float64)
        out[i] = odd if total == total else np.nan


@kernel
def square_sums(x: Any, first: Any, sums: Any) -> None:
    """Write the sums of squares of `SUMMED` numbers each, in float64; ``sums[j]`` is that of chunk ``first + j``."""
    for j in range(sums.size):
        start = (first + j) * SUMMED
        stop = min(start + SUMMED, x.size)
        s0 = s1 = s2 = s3 = np.float64(0)
        for i in range(start, start + (stop - start) // 4 * 4, 4):
            a, b, c, d = np.float64(x[i]), np.float64(x[i + 1]), np.float64(x[i + 2]), np.float64(x[i + 3])
            s0, s1, s2, s3 = s0 + a * a, s1 + b * b, s2 + c * c, s3 + d * d
        for i in range(start + (stop - start) // 4 * 4, stop):
            s0 += np.float64(x[i]) * np.float64(x[i])
        sums[j] = (s0 + s1) + (s2 + s3)
