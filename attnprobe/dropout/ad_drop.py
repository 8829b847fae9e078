"""AD-DROP: cells that the model's answer owes most to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnprobe.attention import AttentionCall, evaluating
from attnprobe.dropout.base import Dropout, Step, dropped_share


class ADDrop(Dropout):
    """Cells of high attribution, dropped before softmax in a second pass (Yang et al. 2022, arXiv:2210.05883).

    The first pass, its dropout off, gives each cell's attribution, p_ij dy/dp_ij, y minus the loss (the paper: the
    logit of the label that the model says itself). In each row the share ``--ad-drop-region`` of its valid cells that
    have the highest is drawn from; each of these is dropped with probability ``rate``. Cross-tuning, as published: in
    every second pass over the data (the first, the third, ...) nothing is dropped.
    """

    keeps_own = True
    recomputable = False
    _shares: Tensor | None = None

    def loss(self, step: Step) -> Tensor:
        if step.epoch % 2 == 0:
            self._shares = None
            return step.loss(step.output())
        attributions = self._attributions(step)
        shares: list[Tensor] = []

        def kept(call: AttentionCall) -> Tensor:
            left = ~self._drawn(call, attributions[call.site.index])
            shares.append(dropped_share(left, call))
            return left

        with step.session.drop(kept):
            loss = step.loss(step.output())
        self._shares = torch.stack(shares[: self.sites])
        return loss

    def _attributions(self, step: Step) -> list[Tensor]:
        """Attribution of every cell, by site: (batch, heads, queries, keys) each."""
        seen: dict[int, Tensor] = {}

        def observe(call: AttentionCall, probabilities: Tensor) -> None:
            seen[call.site.index] = probabilities

        with evaluating(step.session.model), step.session.observe(observe):
            loss = step.loss(step.output())
        sites = [seen[site] for site in range(self.sites)]
        return [-(p * g).detach() for p, g in zip(sites, torch.autograd.grad(loss, sites), strict=True)]

    def _drawn(self, call: AttentionCall, attribution: Tensor) -> Tensor:
        """The cells that are dropped: bool (batch, heads, queries, keys)."""
        valid = call.valid.expand(call.shape)
        ranks = attribution.masked_fill(~valid, -torch.inf).argsort(-1, descending=True).argsort(-1)
        region = ranks < (self.options.ad_drop_region * valid.sum(-1, keepdim=True)).ceil()
        return region & valid & (torch.rand(call.shape, device=attribution.device) < self.rate)

    def rates(self, progress: float) -> Sequence[float]:
        del progress
        return [0.0] * self.sites if self._shares is None else [float(share) for share in self._shares.tolist()]
