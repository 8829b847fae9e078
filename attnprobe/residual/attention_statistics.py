"""What attention looks like: entropy of its rows, and how much adjacent sites differ. As RealFormer's paper reports it.

    H = -sum_j p_j ln p_j                        over the valid keys of a query, in nats; also H / ln(valid keys)
    JSD(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2        in nats, 0 to ln 2; not its root

Dropout is off, padding is left out. Rows of special tokens count unless they are left out. JSD is between the rows of
one query in head i of a site and head j of the site below it: for equal indices, as in the paper, and for the pairs
that differ least (an assignment), since head indices of an ordinary checkpoint mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attnprobe.attention import AttentionCall, AttentionSession, evaluating
from attnprobe.scoring import first_output


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionStatistics:
    """Entropy and divergence over some texts.

    Attributes:
        entropy: float32 (sites, heads, rows), nats, of every query row that counts.
        relative: the same over ln(valid keys); NaN where there is one key.
        divergence: float64 (sites - 1, heads below, heads above), mean JSD in nats.
    """

    entropy: NDArray[np.float32]
    relative: NDArray[np.float32]
    divergence: NDArray[np.float64]

    def same_heads(self) -> NDArray[np.float64]:
        """(sites - 1,): mean JSD of heads of one index."""
        own = np.arange(self.divergence.shape[1])
        mean: NDArray[np.float64] = self.divergence[:, own, own].mean(1)
        return mean

    def matched_heads(self) -> NDArray[np.float64]:
        """(sites - 1,): mean JSD of the pairs of heads that differ least."""
        return np.array([pair[linear_sum_assignment(pair)].mean() for pair in self.divergence])


class _Collector:
    def __init__(self, *, sites: int, heads: int) -> None:
        self.sites = sites
        self.entropies: list[list[Tensor]] = [[] for _ in range(sites)]
        self.relatives: list[list[Tensor]] = [[] for _ in range(sites)]
        self.divergence = torch.zeros(sites - 1, heads, heads, dtype=torch.float64)
        self.rows = 0
        self.counted: Tensor | None = None
        self._below: tuple[Tensor, Tensor] | None = None

    def __call__(self, call: AttentionCall, probabilities: Tensor) -> None:
        """Take one site's probabilities in: (batch, heads, queries, keys)."""
        assert self.counted is not None
        p = probabilities.detach().float().transpose(1, 2)[self.counted]  # (rows, heads, keys)
        keys = call.valid.expand(probabilities.shape[0], -1, *probabilities.shape[2:])[:, 0][self.counted].sum(-1)
        entropy = _entropy(p)
        site = call.site.index
        self.entropies[site].append(entropy.T.cpu())
        self.relatives[site].append(
            (entropy / keys.float().log().unsqueeze(1)).masked_fill(keys[:, None] < 2, torch.nan).T.cpu()
        )
        if site == 0:
            self.rows += len(p)
        elif self._below is not None:
            q, of_q = self._below
            for head in range(p.shape[1]):
                middle = _entropy((q[:, head : head + 1].to(p.device) + p) / 2)
                jsd = middle - (of_q[:, head : head + 1].to(p.device) + entropy) / 2
                self.divergence[site - 1, head] += jsd.clamp_min(0).double().sum(0).cpu()
        self._below = (p, entropy) if site < self.sites - 1 else None


def _entropy(p: Tensor) -> Tensor:
    """-sum p ln p over the last axis."""
    entropy: Tensor = -torch.special.xlogy(p, p).sum(-1)
    return entropy


def measure(session: AttentionSession, batches: Iterable[tuple[dict[str, Tensor], Tensor]]) -> AttentionStatistics:
    """Entropy and divergence of an attached model's attention, under whatever is in force.

    Args:
        session: the attached model.
        batches: inputs, and which queries count, bool (batch, tokens).
    """
    collector = _Collector(sites=len(session.sites), heads=session.sites[0].heads)
    with session.observe(collector), evaluating(session.model), torch.no_grad():
        for inputs, counted in batches:
            collector.counted = counted
            first_output(session.model, inputs)
    return AttentionStatistics(
        entropy=torch.stack([torch.cat(parts, dim=1) for parts in collector.entropies]).numpy(),
        relative=torch.stack([torch.cat(parts, dim=1) for parts in collector.relatives]).numpy(),
        divergence=(collector.divergence / max(1, collector.rows)).numpy(),
    )
