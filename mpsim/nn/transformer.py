"""Attention with several heads, and the transformer's block."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim.formats import FormatLike
from mpsim.nn import functional
from mpsim.nn.affine import Linear
from mpsim.nn.initialisation import RngLike, constant, xavier_uniform
from mpsim.nn.module import Module
from mpsim.nn.normalisation import Dropout, LayerNorm
from mpsim.stochastic import Draws
from mpsim.tensor import Tensor, as_tensor

__all__ = ["MultiheadAttention", "TransformerBlock"]

Mask: TypeAlias = "NDArray[Any]"
"""Booleans, True where a query may look; or numbers that are added to the scores."""


class MultiheadAttention(Module):
    """Attention in several subspaces at once.

    Parameters
    ----------
    embed_dim : int
    num_heads : int
        A divisor of ``embed_dim``.
    dropout : float
        Probability to drop a weight of attention, in training.
    bias : bool
    batch_first : bool
        Whether inputs are [batch, sequence, embed_dim] rather than [sequence, batch, embed_dim].
    format, rng
        As for `Linear`. ``in_proj_weight`` [3 * embed_dim, embed_dim] is Xavier's uniform, the biases are zeros.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        format: FormatLike = "fp32",
        rng: RngLike = None,
    ) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim is {embed_dim}, num_heads {num_heads}; the heads must divide it")
        generator = np.random.default_rng(rng)
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.in_proj_weight = xavier_uniform(generator, (3 * embed_dim, embed_dim), format)
        self.in_proj_bias = constant(0.0, (3 * embed_dim,), format) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, format, generator)
        if self.out_proj.bias is not None:
            self.out_proj.bias.data[:] = 0
        self.draws = Draws(seed=int(generator.integers(1 << 63)))

    def forward(
        self,
        query: Tensor | ArrayLike,
        key: Tensor | ArrayLike,
        value: Tensor | ArrayLike,
        key_padding_mask: ArrayLike | None = None,
        need_weights: bool = True,
        attn_mask: ArrayLike | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from ``query`` to ``key`` and ``value``.

        Parameters
        ----------
        query, key, value : Tensor [sequence, batch, embed_dim], or with the batch first, or without
        key_padding_mask : booleans [batch, keys], optional
            True for keys that are to be ignored.
        need_weights : bool
            Return the weights too; without them attention is one operation, and faster.
        attn_mask : booleans or numbers [queries, keys] or [batch * heads, queries, keys], optional
            True where a query must *not* look at a key; numbers are added to the scores.
        average_attn_weights : bool
            Return the mean of the weights over the heads.
        is_causal : bool
            Query i looks at keys 0 to i alone; stands for the mask.

        Returns
        -------
        output : Tensor, shape of ``query``
        weights : Tensor [batch, queries, keys] or [batch, heads, queries, keys], or None
        """
        q, k, v = as_tensor(query), as_tensor(key), as_tensor(value)
        for name, t in (("query", q), ("key", k), ("value", v)):
            if t.ndim not in (2, 3) or t.ndim != q.ndim or t.shape[-1] != self.embed_dim:
                raise ValueError(f"{name} is {t.shape}; (sequence, batch, {self.embed_dim}) is needed")
        alone = q.ndim == 2
        # Of self-attention there is one input.
        given = [q] if query is key and key is value else [q, k, v]
        if alone:
            given = [t.unsqueeze(0) for t in given]
        elif not self.batch_first:
            given = [t.transpose(0, 1) for t in given]
        heads = [self._heads(t) for t in self._projected(given)]
        mask = self._mask(heads[0].shape, heads[1].shape[2], key_padding_mask, attn_mask, is_causal)
        p = self.dropout if self.training else 0.0
        if p:
            self.draws = dataclasses.replace(self.draws, stream=self.draws.stream + 1)
        weights = None
        if need_weights:
            scores = heads[0] * (1 / math.sqrt(heads[0].shape[-1])) @ heads[1].transpose(-1, -2)
            weights = (scores if mask is None else scores + as_tensor(_added(mask)).to(scores.format)).softmax(-1)
            weights = functional.dropout(weights, p, rng=self.draws) if p else weights
            y = weights @ heads[2]
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            y = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], mask, p, rng=self.draws)
        batch, _, length, _ = y.shape
        output = self.out_proj(y.transpose(1, 2).reshape(batch, length, self.embed_dim))
        if alone:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _projected(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        """Return query, key and value in the space of the heads; where they are one tensor, by one product."""
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if len(inputs) == 1:
            return functional.linear(inputs[0], weight, bias).chunk(3, -1)
        weights = weight.chunk(3)
        biases: tuple[Tensor | None, ...] = (None,) * 3 if bias is None else bias.chunk(3)
        return tuple(functional.linear(t, w, b) for t, w, b in zip(inputs, weights, biases, strict=True))

    def _heads(self, t: Tensor) -> Tensor:
        """Return [batch, sequence, embed_dim] as [batch, heads, sequence, size]."""
        batch, length, _ = t.shape
        return t.reshape(batch, length, self.num_heads, self.embed_dim // self.num_heads).transpose(1, 2)

    def _mask(
        self,
        shape: tuple[int, ...],
        keys: int,
        padding: ArrayLike | None,
        attn_mask: ArrayLike | None,
        is_causal: bool,
    ) -> Mask | None:
        """Return where a query may look, or what is added to its scores; None where nothing is masked."""
        batch, heads, queries, _ = shape
        allowed: Mask | None = np.tri(queries, keys, dtype=np.bool_) if is_causal else None
        added: Mask | None = None
        if attn_mask is not None and not is_causal:
            mask = np.asarray(attn_mask)
            if mask.shape not in ((queries, keys), (batch * heads, queries, keys)):
                raise ValueError(
                    f"attn_mask is {mask.shape}; ({queries}, {keys}) or ({batch * heads}, {queries}, {keys}) is needed"
                )
            if mask.ndim == 3:
                mask = mask.reshape(batch, heads, queries, keys)
            if mask.dtype == np.bool_:
                allowed = ~mask
            else:
                added = mask
        if padding is not None:
            ignored = np.asarray(padding)
            if ignored.dtype != np.bool_ or ignored.shape not in ((batch, keys), (keys,) if batch == 1 else ()):
                raise ValueError(f"key_padding_mask is {ignored.shape}; booleans ({batch}, {keys}) are needed")
            open_keys = ~ignored.reshape(batch, 1, 1, keys)
            allowed = open_keys if allowed is None else allowed & open_keys
        if added is None:
            return allowed
        return added if allowed is None else added + _added(allowed)


def _added(mask: Mask) -> Mask:
    """Return a mask as numbers to add: 0 where True, -inf where False."""
    return np.where(mask, np.float32(0), np.float32(-np.inf)) if mask.dtype == np.bool_ else mask


class TransformerBlock(Module):
    """A layer of a transformer, normalised first: ``x + attention(norm1(x))``, then ``x + mlp(norm2(x))``.

    Its parameters have the names of torch.nn.TransformerEncoderLayer, which is this block with ``norm_first=True``.

    Parameters
    ----------
    d_model, nhead : int
        Size of the vectors, and heads of attention.
    dim_feedforward : int
        Size between the two linear maps.
    dropout : float
        After attention, inside and after the linear maps, and of the weights of attention.
    activation : {"relu", "gelu"}
    layer_norm_eps : float
    batch_first : bool
    bias : bool
    format, rng
        As for `Linear`.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        bias: bool = True,
        format: FormatLike = "fp32",
        rng: RngLike = None,
    ) -> None:
        if activation not in ("relu", "gelu"):
            raise ValueError(f'activation is {activation!r}; it must be "relu" or "gelu"')
        generator = np.random.default_rng(rng)
        self.activation = activation
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first, format, generator)
        self.linear1 = Linear(d_model, dim_feedforward, bias, format, generator)
        self.linear2 = Linear(dim_feedforward, d_model, bias, format, generator)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, format=format)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, format=format)
        self.dropout, self.dropout1, self.dropout2 = (
            Dropout(dropout, rng=int(generator.integers(1 << 63))) for _ in range(3)
        )

    def forward(
        self,
        src: Tensor | ArrayLike,
        src_mask: ArrayLike | None = None,
        src_key_padding_mask: ArrayLike | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Map ``src`` to vectors of the same shape; masks as for `MultiheadAttention`."""
        x = as_tensor(src)
        h = self.norm1(x)
        h, _ = self.self_attn(
            h, h, h, src_key_padding_mask, need_weights=False, attn_mask=src_mask, is_causal=is_causal
        )
        x = x + self.dropout1(h)
        h = self.linear1(self.norm2(x))
        h = functional.relu(h) if self.activation == "relu" else functional.gelu(h)
        result: Tensor = x + self.dropout2(self.linear2(self.dropout(h)))
        return result
