"""Scaled dot-product attention, one operation as in FlashAttention.

Scores stay in FP32. The weights before their division by the sum are what the second product multiplies, and so are
rounded to the inputs' format; so are the gradients of the scores. Nothing of the size of the scores is kept for
the backward pass, which computes them again (Dao 2023, arXiv 2307.08691, algorithms 1 and 2, with one block).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim.ops import _rows
from mpsim.ops._numeric import summed_to
from mpsim.ops.normalisation import dropout_mask
from mpsim.ops.reductions import exp, softmax_gradient
from mpsim.ops.table import Array, Call, Gradients, Operation
from mpsim.stochastic import Draws

__all__ = ["OPERATIONS"]


def _transposed(a: Array) -> Array:
    return a.swapaxes(-1, -2)


def _weights(
    call: Call,
    query: Array,
    key: Array,
    bias: Array | None,
    allowed: NDArray[np.bool_] | None,
    scale: float,
    divided: bool = False,
) -> tuple[Array, Array]:
    """Return exp(score - largest score of its row), and the sum of each row, by which they may be ``divided``."""
    scores = call.matmul(query, _transposed(key), roles=("query", "key"))
    if _rows.suit(scores, bias):
        return _rows.attention_weights(scores, scale, bias, allowed, divided)
    scores = scores * query.dtype.type(scale)
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = np.where(allowed, scores, scores.dtype.type(-np.inf))
    largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    # A row without any allowed score gets weights 0 rather than NaN, as in torch.
    weights = exp(scores - np.where(np.isneginf(largest), scores.dtype.type(0), largest))
    total = weights.sum(axis=-1, keepdims=True)
    total = np.where(total == 0, total.dtype.type(1), total)
    return weights / total if divided else weights, total


def _kept(shape: tuple[int, ...], dtype: np.dtype[np.generic], p: float, draws: Draws | None) -> Array | None:
    """Return the factor of each weight under dropout."""
    if not p or draws is None:
        return None
    return np.asarray(dropout_mask(shape, p, draws) * (1 / (1 - p) if p < 1 else 0.0), dtype)


def _attention(
    call: Call,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    *,
    allowed: NDArray[np.bool_] | None = None,
    scale: float,
    dropout_p: float = 0.0,
    draws: Draws | None = None,
) -> Array:
    weights, total = _weights(call, query, key, bias, allowed, scale)
    kept = _kept(weights.shape, query.dtype, dropout_p, draws)
    if kept is not None:
        weights = weights * kept
    return np.asarray(call.matmul(call.operand(weights), value, roles=("weights", "value")) / total)


def _attention_vjp(
    call: Call,
    g: Array,
    _: Array,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    *,
    allowed: NDArray[np.bool_] | None = None,
    scale: float,
    dropout_p: float = 0.0,
    draws: Draws | None = None,
) -> Gradients:
    probability, _total = _weights(call, query, key, bias, allowed, scale, divided=True)
    kept = _kept(probability.shape, query.dtype, dropout_p, draws)
    used = probability if kept is None else probability * kept
    by_value = None
    if call.wanted[2]:
        by_value = call.matmul(_transposed(call.operand(used)), g, "input_gradient", ("probabilities", "gradient"))
    by_used = call.matmul(g, _transposed(value), "input_gradient", ("gradient", "value"))
    by_probability = by_used if kept is None else by_used * kept
    by_score = softmax_gradient(by_probability, probability)
    held = call.operand(by_score)
    factor = query.dtype.type(scale)
    by_query = by_key = None
    if call.wanted[0]:
        by_query = call.matmul(held, key, "input_gradient", ("score_gradient", "key")) * factor
    if call.wanted[1]:
        by_key = call.matmul(_transposed(held), query, "input_gradient", ("score_gradient", "query")) * factor
    gradients = (
        None if by_query is None else summed_to(by_query, query.shape),
        None if by_key is None else summed_to(by_key, key.shape),
        None if by_value is None else summed_to(by_value, value.shape),
        None if bias is None else summed_to(by_score, bias.shape),
    )
    return gradients[: len(call.wanted)]


OPERATIONS = (
    Operation(
        "scaled_dot_product_attention",
        _attention,
        _attention_vjp,
        reads=("query", "key", "value", "bias"),
        formats="equal",
    ),
)
