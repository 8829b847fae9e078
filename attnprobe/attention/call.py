"""One application of attention, as every backend and every intervention sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """One application of attention in a forward pass of a model.

    Attributes:
        index: depth among the sites, from 0. A shared layer (ALBERT) is one module and many sites.
        name: dotted name of the module that calls attention.
        module: that module.
        application: which call of the module this is within one forward pass, from 0.
        heads: query heads.
        kv_heads: key and value heads; fewer than ``heads`` under grouped-query attention.
        head_dim: width of a query row.
        causal: whether a query is kept from later keys.
    """

    index: int
    name: str
    module: nn.Module
    application: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionCall:
    """What a model hands to attention at one site.

    Attributes:
        site: where.
        query: (batch, heads, queries, head_dim).
        key: (batch, kv_heads, keys, head_dim).
        value: (batch, kv_heads, keys, value_dim).
        valid: bool, broadcastable to (batch, heads, queries, keys): padding and causality combined; True = may attend.
        scaling: factor on the dot products.
        bias: added to the scores (T5's position bias, ALiBi), broadcastable to (batch, heads, queries, keys).
        softcap: scores become ``softcap * tanh(scores / softcap)`` (Gemma 2).
        dropout: probability of dropping an attention weight, 0 outside training.
        residual: gives the scores that count from the call's own: (batch, heads, queries, keys), scaled and
            soft-capped, before bias and mask. It may write into what it is given.
    """

    site: Site
    query: Tensor
    key: Tensor
    value: Tensor
    valid: Tensor
    scaling: float
    bias: Tensor | None
    softcap: float | None
    dropout: float
    residual: Callable[[Tensor], Tensor] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[-2]


def split_mask(mask: Tensor | None, like: Tensor, keys: int) -> tuple[Tensor, Tensor | None]:
    """Turn whatever a model passes as its mask into (valid, bias).

    Booleans pass through. An additive float mask (LayoutLM builds its own) is split into the cells it closes and
    the bias it leaves on the others, so that a closed cell is closed and never a large number added to another.

    Args:
        mask: None, bool, integer (1 = keep) or additive float; broadcastable to (batch, heads, queries, keys).
        like: the query, (batch, heads, queries, head_dim); gives shape and device where there is no mask.
        keys: number of keys.
    """
    if mask is None:
        return like.new_ones((1, 1, like.shape[-2], keys), dtype=torch.bool), None
    if mask.dtype == torch.bool:
        return mask, None
    if not mask.is_floating_point():
        return mask != 0, None
    valid = mask > torch.finfo(mask.dtype).min / 2
    return valid, mask.masked_fill(~valid, 0.0)
