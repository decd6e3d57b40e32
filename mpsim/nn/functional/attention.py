"""Attention."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from mpsim.nn.functional.normalisation import fresh_draws
from mpsim.stochastic import DrawsLike
from mpsim.tensor import Tensor, apply, as_tensor

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | ArrayLike | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    rng: DrawsLike = None,
) -> Tensor:
    """Return ``softmax(scale * query @ key.T + attn_mask) @ value``, as one operation.

    Parameters
    ----------
    query : Tensor [..., queries, size]
    key : Tensor [..., keys, size]
    value : Tensor [..., keys, value size]
    attn_mask : booleans or numbers, broadcast to [..., queries, keys], optional
        True where a query may look at a key; numbers are added to the scores.
    dropout_p : float
        Probability to drop a weight; for training.
    is_causal : bool
        Query i looks at keys 0 to i alone.
    scale : float, optional
        1 / sqrt(size) unless given.
    rng : int or Draws, optional
        As for `dropout`.

    Notes
    -----
    The scores and their sums are held in FP32; the weights are rounded to the format of the inputs for the second
    product, before their division by the sum, as in FlashAttention. A query that may look at no key gives zeros.
    """
    q, k, v = as_tensor(query), as_tensor(key), as_tensor(value)
    name = "scaled_dot_product_attention"
    for argument, t in (("query", q), ("key", k), ("value", v)):
        if t.ndim < 2:
            raise ValueError(f"{name}: {argument} is {t.shape}; it needs at least 2 dimensions")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"{name}: query is {q.shape}, key is {k.shape}; the last sizes must be equal")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"{name}: key is {k.shape}, value is {v.shape}; shape[-2] must be equal")
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"{name}: dropout_p is {dropout_p}; it must be from 0 to 1")
    scores = (*np.broadcast_shapes(q.shape[:-2], k.shape[:-2]), q.shape[-2], k.shape[-2])
    bias, allowed = None, None
    if is_causal:
        if attn_mask is not None:
            raise ValueError(f"{name}: is_causal is a mask already; attn_mask must be None with it")
        allowed = np.tri(q.shape[-2], k.shape[-2], dtype=np.bool_)
    elif attn_mask is not None:
        mask = attn_mask if isinstance(attn_mask, Tensor) else np.asarray(attn_mask)
        try:
            np.broadcast_to(np.empty(()), np.broadcast_shapes(mask.shape, scores))
        except ValueError:
            raise ValueError(f"{name}: attn_mask is {mask.shape}; it must broadcast to {scores}") from None
        if isinstance(mask, np.ndarray) and mask.dtype == np.bool_:
            allowed = mask
        else:
            bias = as_tensor(mask).to(q.format)
    return apply(
        name,
        q,
        k,
        v,
        bias,
        allowed=allowed,
        scale=1 / math.sqrt(q.shape[-1]) if scale is None else scale,
        dropout_p=dropout_p,
        draws=fresh_draws(rng) if dropout_p else None,
    )
