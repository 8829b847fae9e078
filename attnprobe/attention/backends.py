"""Ways to compute one attention call. All give the same result; each says what it can be asked.

    scores = residual(q k^T * scaling, soft-capped) + bias
    p      = softmax over valid keys          (a row with no valid key: 0)
    p      = p * gate, renormalised           (a row with nothing kept: 0)
    out    = p v

A closed cell of a boolean gate is a cell that is not valid: for gates of 0 and 1 the two lines are one.
Block-sparse kernels join as further functions of the same form in ``BACKENDS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from attnprobe.attention.call import AttentionCall


@dataclass(frozen=True, kw_only=True, eq=False)
class Gating:
    """Gates on the attention probabilities of one call.

    Attributes:
        closed_or_open: bool, broadcastable to (batch, heads, queries, keys); False removes the cell.
        soft: float factors on the probabilities, broadcastable alike; gradients flow to them.
        renormalise: whether a row of softly gated probabilities is divided by its sum.
    """

    closed_or_open: Tensor | None = None
    soft: Tensor | None = None
    renormalise: bool = True


Observer = Callable[[AttentionCall, Tensor], None]
Backend = Callable[[AttentionCall, Gating, "list[Observer]"], "tuple[Tensor, Tensor | None]"]


def expand_groups(states: Tensor, heads: int) -> Tensor:
    """Repeat key or value heads so that each query head has its own: (batch, heads, keys, dim)."""
    kv_heads = states.shape[1]
    return states if kv_heads == heads else states.repeat_interleave(heads // kv_heads, dim=1)


def eager(call: AttentionCall, gating: Gating, observers: list[Observer]) -> tuple[Tensor, Tensor | None]:
    """The reference: every probability is formed, observed if asked, and returned.

    Returns:
        The output (batch, heads, queries, value_dim), and the probabilities (batch, heads, queries, keys) after
        gating and before dropout.
    """
    valid = call.valid if gating.closed_or_open is None else call.valid & gating.closed_or_open
    scores = torch.matmul(call.query, expand_groups(call.key, call.site.heads).transpose(2, 3)) * call.scaling
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if call.residual is not None:
        scores = call.residual(scores)
    if call.bias is not None:
        scores = scores + call.bias
    scores = scores.masked_fill(~valid, torch.finfo(scores.dtype).min)
    probabilities = functional.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    probabilities = probabilities.to(call.value.dtype)
    probabilities = probabilities.masked_fill(~valid.any(dim=-1, keepdim=True), 0.0)
    if gating.soft is not None:
        probabilities = probabilities * gating.soft.to(probabilities.dtype)
        if gating.renormalise:
            total = probabilities.sum(dim=-1, keepdim=True)
            probabilities = probabilities / total.masked_fill(total == 0, 1.0)  # a tiny number's gradient overflows
    for observe in observers:
        observe(call, probabilities)
    weights = functional.dropout(probabilities, p=call.dropout) if call.dropout else probabilities
    return torch.matmul(weights, expand_groups(call.value, call.site.heads)), probabilities


def sdpa(call: AttentionCall, gating: Gating, observers: list[Observer]) -> tuple[Tensor, Tensor | None]:
    """torch's fused kernel under a boolean mask. Calls that it has no form for go to :func:`eager`.

    These are: observers (the kernel forms no probabilities), soft gates (their logarithm has no gradient at 0),
    soft-capped scores, and scores that are carried on.

    Returns:
        The output (batch, heads, queries, value_dim), and None.
    """
    if observers or gating.soft is not None or call.softcap is not None or call.residual is not None:
        return eager(call, gating, observers)
    valid = call.valid if gating.closed_or_open is None else call.valid & gating.closed_or_open
    has_key = valid.any(dim=-1, keepdim=True)
    mask = valid | ~has_key  # a row without keys would be NaN, backward too: open it, then set it to 0
    if call.bias is not None:
        bias = call.bias.to(call.query.dtype)
        mask = bias.masked_fill(~mask, -torch.inf)
    output = functional.scaled_dot_product_attention(
        call.query,
        expand_groups(call.key, call.site.heads),
        expand_groups(call.value, call.site.heads),
        attn_mask=mask,
        dropout_p=call.dropout,
        scale=call.scaling,
    )
    return output.masked_fill(~has_key, 0.0), None


BACKENDS: dict[str, Backend] = {"eager": eager, "sdpa": sdpa}
