"""Masks that nothing is trained for: what a learnt mask has to beat at equal sparsity."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnprobe.attention import AttentionCall, AttentionSession
from attnprobe.data.positions import Positions
from attnprobe.importance.taylor import frozen
from attnprobe.masks.applying import PassReader
from attnprobe.masks.gates import complete, fill
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import GateMask
from attnprobe.masks.sparsity import GateCounts
from attnprobe.masks.tokens import TokenRules
from attnprobe.objectives import Objective, Prepared
from attnprobe.scoring import scored_output


def random_mask(
    granularity: Granularity, counts: GateCounts, *, sites: int, heads: int, density: float, diagonal: str, seed: int
) -> GateMask:
    """Gates drawn at random, as dense in every head: the k-th of every random order that still fits is open.

    Where a head is one gate, heads are drawn.
    """
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(sites, heads, int(counts.seen.sum()), generator=generator)
    rows = scores.reshape(-1, scores.shape[-1] if granularity.gates > 1 else scores.numel())
    budget = round((density * counts.valid - counts.fixed) * (sites * heads // len(rows)))
    chosen = torch.stack([fill(row, counts.cells[counts.seen], budget) for row in rows]).view_as(scores)
    return _mask(chosen, granularity, counts, diagonal)


def scored_mask(
    scores: Tensor, granularity: Granularity, counts: GateCounts, *, density: float, diagonal: str
) -> GateMask:
    """The gates with the highest scores of a cell, over all sites and heads.

    Args:
        scores: (sites, heads, gates), per cell of the gate: a gate's worth over its price.
        granularity, counts: of the gates.
        density: share of valid cells kept at most.
        diagonal: see :class:`~attnprobe.masks.mask.Mask`.
    """
    sites, heads, _ = scores.shape
    budget = round((density * counts.valid - counts.fixed) * sites * heads)
    seen = scores[:, :, counts.seen]
    return _mask(fill(seen, counts.cells[counts.seen], budget), granularity, counts, diagonal)


def _mask(chosen: Tensor, granularity: Granularity, counts: GateCounts, diagonal: str) -> GateMask:
    full = torch.ones(*chosen.shape[:2], granularity.gates, dtype=torch.bool)
    full[:, :, counts.seen] = chosen
    gates = complete(full, counts.seen, granularity)
    return GateMask(granularity=granularity, gates=gates, diagonal=diagonal)


class GateSums:
    """What each gate collects over batches: attention, first-order effect, slope squared. All (sites, heads, gates).

    Attributes:
        mass: attention probability on the gate's cells.
        effect: first-order change of the loss when a cell is removed, p (g.o - g.v), summed over the gate's cells;
            for label-free objectives its square by example (their loss has no slope at the dense model).
        fisher: square of the loss's slope along the gate, summed over examples.
    """

    def __init__(self, granularity: Granularity, *, sites: int, heads: int, device: torch.device) -> None:
        self.granularity = granularity
        shape = (sites, heads, granularity.gates)
        self.mass, self.effect, self.fisher = (torch.zeros(shape, dtype=torch.float64, device=device) for _ in range(3))

    def add(
        self,
        session: AttentionSession,
        objective: Objective,
        prepared: Prepared,
        rules: TokenRules,
        generator: torch.Generator,
    ) -> None:
        """Take in a batch: one forward and one backward pass."""
        reader = PassReader(rules)
        first: list[Tensor] = []

        def observe(call: AttentionCall, probabilities: Tensor) -> None:
            at = reader.positions(call)
            index = reader.once("index", lambda: _index(self.granularity, at))
            valid = at.valid.unsqueeze(1)
            p = probabilities.detach().float() * valid
            self.mass[call.site.index] += self._by_gate(p, index).sum(0)
            if not probabilities.requires_grad:
                probabilities.requires_grad_()
            first[:] = first[:1] or [probabilities]
            site = call.site.index
            probabilities.register_hook(lambda a: self._add_slopes(objective, site, p, a.float(), index))

        with frozen(session.model), torch.enable_grad(), reader.reading(session), session.observe(observe):
            output = scored_output(session.model, objective, prepared)
            probed = objective.probe(output, prepared, generator)
            torch.autograd.grad(probed[probed.isfinite()].sum(), first[0])
        first.clear()

    def _add_slopes(self, objective: Objective, site: int, p: Tensor, a: Tensor, index: Tensor) -> None:
        own = (p * a).sum(-1, keepdim=True)
        change = self._by_gate(p * (own - a), index)  # (batch, heads, gates)
        effect = objective.effect(change.cpu().numpy().astype(np.float64))
        self.effect[site] += torch.from_numpy(effect).sum(0).to(self.effect.device)
        self.fisher[site] += change.square().sum(0)

    def _by_gate(self, cells: Tensor, index: Tensor) -> Tensor:
        """(batch, heads, queries, keys) -> float64 (batch, heads, gates)."""
        batch, heads = cells.shape[:2]
        total = torch.zeros(batch, heads, self.granularity.gates, dtype=torch.float64, device=cells.device)
        flat = index.flatten(1).unsqueeze(1).expand(batch, heads, -1)
        return total.scatter_add(2, flat, cells.double().flatten(2))

    def scores(self, name: str, counts: GateCounts) -> Tensor:
        """``mass``, ``effect`` or ``fisher`` a cell: (sites, heads, gates), on the host."""
        sums: Tensor = getattr(self, name)
        return sums.cpu() / counts.cells.clamp_min(1)


def _index(granularity: Granularity, at: Positions) -> Tensor:
    return granularity.index(at).clamp(0, granularity.gates - 1)
