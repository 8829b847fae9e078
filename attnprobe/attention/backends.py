"""Ways to compute one attention call. All give the same result; each says what it can be asked.

    scores = residual(q k^T * scaling, soft-capped) + bias
    scores = dropped where it is not kept     (a row with nothing kept: all valid keys alike)
    p      = softmax over valid keys          (a row with no valid key: 0)
    p      = p * gate, renormalised           (a row with nothing kept: 0)
    out    = p v

A closed cell of a boolean gate is a cell that is not valid: for gates of 0 and 1 the two lines are one.
Block-sparse kernels join as further functions of the same form in ``BACKENDS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
        kept: bool, broadcastable alike; False drops the cell's score. Unlike a closed gate, a row that keeps nothing
            spreads over all its valid keys.
    """

    closed_or_open: Tensor | None = None
    soft: Tensor | None = None
    renormalise: bool = True
    kept: Tensor | None = None


Observer = Callable[[AttentionCall, Tensor], None]
Backend = Callable[[AttentionCall, Gating, "list[Observer]"], "tuple[Tensor, Tensor | None]"]


def expand_groups(states: Tensor, heads: int) -> Tensor:
    """Repeat key or value heads so that each query head has its own: (batch, heads, keys, dim)."""
    kv_heads = states.shape[1]
    return states if kv_heads == heads else states.repeat_interleave(heads // kv_heads, dim=1)


def dropped(scores: Tensor, kept: Tensor, valid: Tensor) -> Tensor:
    """Scores (batch, heads, queries, keys) without the cells that are not kept; equal ones where a row keeps none.

    Dropped scores are replaced, not lowered: a constant on a whole row would give the row back.
    """
    nothing = ~(valid & kept).any(dim=-1, keepdim=True)
    return scores.masked_fill(~kept, torch.finfo(scores.dtype).min).masked_fill(nothing, 0.0)


LEAST_TOTAL = 1e-4
"""Gates of a row whose open cells have less probability than this get the gradient they had at this much."""


class _Renormalised(torch.autograd.Function):
    """Softly gated probabilities, renormalised: w = p g / sum(p g), p = softmax(scores); 0 where a row keeps nothing.

    w is computed as softmax(scores + log g): exact, as is its gradient to the scores, however little the open cells
    have. That to the gates is

        dL/dg = p / max(sum(p g), LEAST_TOTAL) (dL/dw - sum(w dL/dw))

    Without the bound, rows whose drawn gates leave next to nothing (sums of 1e-20 are common once weights learn too)
    have slopes so large that they drown those of all others, and overflow in the end.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, gate: Tensor, valid: Tensor) -> Tensor:
        """(batch, heads, queries, keys), in float32 at least; scores of closed cells are the lowest number."""
        wide = torch.promote_types(scores.dtype, torch.float32)
        scores, gate = scores.to(wide), gate.to(wide)
        lowest = torch.finfo(wide).min
        closed = ~valid | (gate <= 0)
        weights = functional.softmax((scores + gate.log()).masked_fill(closed, lowest), dim=-1).masked_fill(closed, 0.0)
        ctx.save_for_backward(scores, gate, weights, valid)
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """To scores and gate."""
        scores, gate, weights, valid = ctx.saved_tensors
        centred = gradient - (gradient * weights).sum(dim=-1, keepdim=True)
        probabilities = functional.softmax(scores, dim=-1).masked_fill(~valid, 0.0)
        total = (probabilities * gate).sum(dim=-1, keepdim=True).clamp_min(LEAST_TOTAL)
        total = total.masked_fill(weights.sum(dim=-1, keepdim=True) == 0, 1.0)  # nothing is open: a finite slope
        return weights * centred, (centred * probabilities / total).sum_to_size(gate.shape), None


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
    if gating.kept is not None:
        scores = dropped(scores, gating.kept, valid)
    scores = scores.masked_fill(~valid, torch.finfo(scores.dtype).min)
    if gating.soft is not None and gating.renormalise:
        probabilities = _Renormalised.apply(scores, gating.soft, valid)  # type: ignore[no-untyped-call]
    else:
        probabilities = functional.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
        probabilities = probabilities.masked_fill(~valid.any(dim=-1, keepdim=True), 0.0)
    probabilities = probabilities.to(call.value.dtype)
    if gating.soft is not None and not gating.renormalise:
        probabilities = probabilities * gating.soft.to(probabilities.dtype)
    for observe in observers:
        observe(call, probabilities)
    weights = functional.dropout(probabilities, p=call.dropout) if call.dropout else probabilities
    return torch.matmul(weights, expand_groups(call.value, call.site.heads)), probabilities


def sdpa(call: AttentionCall, gating: Gating, observers: list[Observer]) -> tuple[Tensor, Tensor | None]:
    """torch's fused kernel under a boolean mask. Calls that it has no form for go to :func:`eager`.

    These are: observers (the kernel forms no probabilities), soft gates (their logarithm has no gradient at 0),
    soft-capped scores, scores that are carried on, and dropped scores.

    Returns:
        The output (batch, heads, queries, value_dim), and None.
    """
    needs_scores = call.softcap is not None or call.residual is not None or gating.kept is not None
    if observers or gating.soft is not None or needs_scores:
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
