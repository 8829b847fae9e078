"""Adversarial self-attention: cells that an adversary chooses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnprobe.attention import AttentionCall, AttentionSession
from attnprobe.attention.backends import expand_groups
from attnprobe.dropout.base import Dropout, Step, dropped_share
from attnprobe.dropout.r_drop import symmetric_divergence

KEPT_AT_FIRST = 3.0
"""Logit of keeping a cell before the adversary has learnt."""


class _Reversed(torch.autograd.Function):
    """The identity, whose gradient has the other sign (Ganin & Lempitsky 2015, arXiv:1409.7495)."""

    @staticmethod
    def forward(ctx: object, value: Tensor) -> Tensor:
        del ctx
        return value.view_as(value)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        del ctx
        return -gradient


class AdversarialSelfAttention(Dropout):
    """Cells that an adversary drops so that the output changes most (Wu & Zhao 2022, arXiv:2206.12608).

    At each site m = [sigmoid((q Wq)(k Wk)^T / sqrt(d) + b) > 1/2], alike for all heads, with the sigmoid's gradient
    (straight-through). With D the symmetric divergence of the outputs with and without the masks, the model descends
    and the adversary climbs in

        L + w D - c (share dropped)

    w ``--asa-divergence``, c ``--asa-size``. The paper projects the layer's input; here q and k, the heads side by side
    and detached, take its place, so that any family will do.
    """

    keeps_own = True
    recomputable = False
    _shares: Tensor | None = None

    def prepare(self, session: AttentionSession) -> None:
        """Make the adversary's projections for a model."""
        widths = [site.heads * site.head_dim for site in session.sites]
        device = session.model.device
        self.query, self.key = (nn.ModuleList(nn.Linear(w, w, bias=False) for w in widths) for _ in range(2))
        self.bias = nn.Parameter(torch.full((self.sites,), KEPT_AT_FIRST))
        for weight in (*self.query.parameters(), *self.key.parameters()):
            nn.init.normal_(weight, std=0.02)
        self.to(device)

    def loss(self, step: Step) -> Tensor:
        plain = step.output()
        shares: list[Tensor] = []
        soft_shares: list[Tensor] = []

        def gate(call: AttentionCall) -> Tensor:
            kept = self._kept(call)
            shares.append(dropped_share(kept.detach() > 0.5, call))
            valid = call.valid.expand(kept.shape[0], -1, kept.shape[2], -1)
            soft_shares.append(((1 - kept) * valid).sum() / valid.sum().clamp_min(1))
            return kept

        with step.session.gate(gate):
            masked = step.output()
        self._shares = torch.stack(shares)
        divergence = symmetric_divergence(step, plain, masked)
        size = torch.stack(soft_shares).mean()
        return step.loss(plain) + self.options.asa_divergence * divergence - self.options.asa_size * size

    def _kept(self, call: AttentionCall) -> Tensor:
        """1 where a cell is kept, else 0: (batch, 1, queries, keys); the adversary's gradient is reversed.

        A row that keeps no valid cell keeps them all.
        """
        site = call.site.index
        query, key = (
            tensor.detach().to(self.bias.dtype).transpose(1, 2).flatten(2)
            for tensor in (call.query, expand_groups(call.key, call.site.heads))
        )
        width = query.shape[-1]
        scores = self.query[site](query) @ self.key[site](key).transpose(1, 2) / math.sqrt(width)
        soft: Tensor = torch.sigmoid(_Reversed.apply((scores + self.bias[site]).float()))  # type: ignore[no-untyped-call]
        hard = (soft > 0.5).float()
        kept = (hard + soft - soft.detach()).unsqueeze(1)
        nothing = ~((hard.unsqueeze(1) > 0) & call.valid).any(-1, keepdim=True)
        return torch.where(nothing, torch.ones_like(kept), kept)

    def rates(self, progress: float) -> Sequence[float]:
        del progress
        return [0.0] * self.sites if self._shares is None else [float(share) for share in self._shares.tolist()]
