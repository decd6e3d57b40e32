"""Functions of whole rows: softmax, the weights of attention, normalisation, and what goes backward through them.

A row stays in the first-level cache from its first sum to its last division. Each step is rounded once to the
arrays' dtype, exponentials and inverse roots being computed in float64, so these kernels want
`floating_point.default_environment` around them. A sum of a row goes in one order on every machine: see `row_sum`.
"""

from typing import Any

import numpy as np

from mpsim_kernels._jit import inlined_kernel, kernel
from mpsim_kernels.elementary import exponential

__all__ = [
    "attention_weights",
    "normalise",
    "normalise_backward",
    "normalise_sums",
    "row_sum",
    "softmax",
    "softmax_backward",
]

_BLOCK = 128  # terms that eight running sums take; longer rows are halved
_LEAST_32, _LEAST_64 = -104.0, -746.0  # the exponentials of less are 0
_EIGHT = np.uint64(8)
_DEPTH = 64  # halvings that no row is long enough for


@inlined_kernel
def _short_sum(x: Any, start: Any, stop: Any) -> Any:
    if stop - start < 8:
        if start == stop:
            return x.dtype.type(0)
        total = x[start]
        for i in range(start + 1, stop):
            total += x[i]
        return total
    y = x[start:stop]
    s0, s1, s2, s3, s4, s5, s6, s7 = y[0], y[1], y[2], y[3], y[4], y[5], y[6], y[7]
    for j in range(1, y.size // 8):
        k = np.uint64(j) * _EIGHT  # unsigned, so that nothing asks whether it counts from the end
        s0 += y[k]
        s1 += y[k + np.uint64(1)]
        s2 += y[k + np.uint64(2)]
        s3 += y[k + np.uint64(3)]
        s4 += y[k + np.uint64(4)]
        s5 += y[k + np.uint64(5)]
        s6 += y[k + np.uint64(6)]
        s7 += y[k + np.uint64(7)]
    total = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
    for i in range(y.size // 8 * 8, y.size):
        total += y[i]
    return total


@inlined_kernel
def _middle(start: Any, stop: Any) -> Any:
    return start + (stop - start) // 2 // 8 * 8


@kernel
def row_sum(x: Any, start: Any, stop: Any) -> Any:
    """Return the sum of ``x[start:stop]``, in the dtype of ``x`` and in the order of `numpy.sum`.

    Up to 128 terms are dealt to eight running sums, which are then added in pairs; what is left over comes last. More
    terms are halved, at a multiple of eight.
    """
    if stop - start <= _BLOCK:
        return _short_sum(x, start, stop)
    # Numba cannot load recursive functions from its cache: the halves that wait are kept here.
    begin, end = np.empty(_DEPTH, np.int64), np.empty(_DEPTH, np.int64)
    left, has_left = np.empty(_DEPTH, x.dtype), np.zeros(_DEPTH, np.bool_)
    depth = 0
    begin[0], end[0] = start, stop
    while True:
        first, last = begin[depth], end[depth]
        if last - first > _BLOCK:
            depth += 1
            begin[depth], end[depth], has_left[depth] = first, _middle(first, last), False
            continue
        total = _short_sum(x, first, last)
        depth -= 1
        while depth >= 0 and has_left[depth]:
            total = left[depth] + total
            depth -= 1
        if depth < 0:
            return total
        left[depth], has_left[depth] = total, True
        begin[depth + 1], end[depth + 1] = _middle(begin[depth], end[depth]), end[depth]
        depth += 1
        has_left[depth] = False


@inlined_kernel
def _largest(x: Any) -> Any:
    """Return the largest element, -inf of none; NaN where one is."""
    largest, is_number = x.dtype.type(-np.inf), True
    for i in range(x.size):
        v = x[i]
        largest = v if v > largest else largest
        is_number &= v == v
    return largest if is_number else x.dtype.type(np.nan)


@inlined_kernel
def _exponentials(x: Any, out: Any) -> Any:
    """Write exp(x - the largest element) to another array, and return their sum; all are 0 where all ``x`` are -inf."""
    F = x.dtype.type
    largest = _largest(x)
    if largest == F(-np.inf):
        largest = F(0)
    least = F(_LEAST_32 if x.itemsize == 4 else _LEAST_64)
    for i in range(x.size):
        distance = F(x[i] - largest)
        lost = distance < least  # not left to the exponential: processors are slow where results underflow
        e = exponential(np.float64(F(0) if lost else distance))
        out[i] = F(0) if lost else F(e)
    return row_sum(out, 0, out.size)


@kernel
def softmax(x: Any, out: Any) -> None:
    """Write ``exp(x) / sum(exp(x))`` of each row."""
    for r in range(x.shape[0]):
        row = out[r]
        total = _exponentials(x[r], row)
        for i in range(row.size):
            row[i] = row[i] / total


@kernel
def softmax_backward(g: Any, y: Any, out: Any) -> None:
    """Write ``(g - sum(g * y)) * y`` of each row: the gradient of what ``y`` is the softmax of."""
    for r in range(g.shape[0]):
        grad, probability, row = g[r], y[r], out[r]
        for i in range(row.size):
            row[i] = grad[i] * probability[i]
        total = row_sum(row, 0, row.size)
        for i in range(row.size):
            row[i] = (grad[i] - total) * probability[i]


@kernel
def attention_weights(
    x: Any, first: Any, scale: Any, bias: Any, allowed: Any, divided: Any, out: Any, totals: Any
) -> None:
    """Write exp(score - the largest score) for each row of scores, and each row's sum; 1 for rows without a score.

    A score is ``x * scale + bias``, or -inf where it is not allowed. The matrices ``bias`` and ``allowed`` repeat
    until they have as many rows as there are scores; ``x`` begins with the ``first`` of these. Without rows they do
    nothing. Where ``divided`` holds, the weights are divided by their sum.
    """
    F = x.dtype.type
    scores = np.empty(x.shape[1], x.dtype)
    for r in range(x.shape[0]):
        products, row = x[r], out[r]
        for i in range(row.size):
            scores[i] = products[i] * scale
        if bias.shape[0]:
            added = bias[(first + r) % bias.shape[0]]
            for i in range(row.size):
                scores[i] = scores[i] + added[i]
        if allowed.shape[0]:
            mask = allowed[(first + r) % allowed.shape[0]]
            for i in range(row.size):
                scores[i] = scores[i] if mask[i] else F(-np.inf)
        total = _exponentials(scores, row)
        totals[r] = F(1) if total == F(0) else total
        if divided:
            for i in range(row.size):
                row[i] = row[i] / totals[r]


@kernel
def normalise(x: Any, weight: Any, bias: Any, eps: Any, centred: Any, out: Any, mean: Any, rstd: Any) -> None:
    """Write ``(x - mean) * rstd * weight + bias`` of each row, and both statistics.

    ``rstd`` is one over the root of the mean square of ``x - mean``, plus ``eps``. Unless ``centred``, the mean is 0.
    """
    F = x.dtype.type
    count = F(x.shape[1])
    for r in range(x.shape[0]):
        values, row = x[r], out[r]
        middle = F(row_sum(values, 0, values.size) / count) if centred else F(0)
        for i in range(row.size):
            deviation = values[i] - middle
            row[i] = deviation * deviation
        variance = F(row_sum(row, 0, row.size) / count)
        factor = F(1.0 / np.sqrt(np.float64(variance + eps)))
        for i in range(row.size):
            row[i] = (values[i] - middle) * factor * weight[i] + bias[i]
        mean[r], rstd[r] = middle, factor


@kernel
def normalise_backward(g: Any, x: Any, weight: Any, centred: Any, mean: Any, rstd: Any, out: Any) -> None:
    """Write the gradient of ``x``, both statistics being those of its rows."""
    F = x.dtype.type
    count = F(x.shape[1])
    for r in range(x.shape[0]):
        grad, values, row = g[r], x[r], out[r]
        middle, factor = mean[r], rstd[r]
        shift = F(0)
        if centred:
            for i in range(row.size):
                row[i] = grad[i] * weight[i]
            shift = F(row_sum(row, 0, row.size) / count)
        for i in range(row.size):
            row[i] = grad[i] * weight[i] * ((values[i] - middle) * factor)
        slope = F(row_sum(row, 0, row.size) / count)
        for i in range(row.size):
            row[i] = factor * (grad[i] * weight[i] - shift - (values[i] - middle) * factor * slope)


@kernel
def normalise_sums(g: Any, x: Any, mean: Any, rstd: Any, start: Any, stop: Any, by_weight: Any, by_bias: Any) -> None:
    """Write the gradients of the columns ``start`` to ``stop`` of weight and bias: sums over the rows, in order."""
    F = x.dtype.type
    weights, biases = by_weight[start:stop], by_bias[start:stop]
    nothing = F(-0.0) if x.shape[0] else F(0)  # -0 + x is x, even for -0
    weights[:] = nothing
    biases[:] = nothing
    for r in range(x.shape[0]):
        grad, values = g[r, start:stop], x[r, start:stop]
        middle, factor = mean[r], rstd[r]
        for i in range(grad.size):
            weights[i] += grad[i] * ((values[i] - middle) * factor)
            biases[i] += grad[i]
