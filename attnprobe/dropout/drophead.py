"""DropHead: whole heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from attnprobe.attention import AttentionCall
from attnprobe.dropout.base import Dropout, Step


class DropHead(Dropout):
    """Whole heads, by sample: o_h -> o_h b_h H / sum(b), P(b = 0) = rate (Zhou et al. 2020, arXiv:2004.13342).

    Never all heads: where all are drawn, one at random is kept, so that at a rate of 1 exactly one is. The paper moves
    the rate down and up again over training; here it is constant.
    """

    @contextmanager
    def applied(self, step: Step) -> Iterator[None]:
        def gate(call: AttentionCall) -> Tensor:
            return kept_heads(call.shape[0], call.shape[1], self.rate, call.query.device).to(call.query.dtype)

        with super().applied(step), step.session.gate(gate, renormalise=False):
            yield

    def rates(self, progress: float) -> Sequence[float]:
        del progress
        return [self.rate] * self.sites


def kept_heads(batch: int, heads: int, rate: float, device: torch.device) -> Tensor:
    """Factors on the heads' outputs: (batch, heads, 1, 1), 0 or heads / heads kept."""
    kept = torch.rand(batch, heads, device=device) >= rate
    spared = torch.rand(batch, heads, device=device).argmax(1, keepdim=True)
    kept = kept | (~kept.any(1, keepdim=True) & torch.zeros_like(kept).scatter(1, spared, True))
    return (kept * (heads / kept.sum(1, keepdim=True))).view(batch, heads, 1, 1)
