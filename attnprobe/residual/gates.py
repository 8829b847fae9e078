"""Learnable gates on the score stream: 0 at the start, and driven to 1 where the end is RealFormer itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnprobe.residual.stream import Residual

GATES_BY = ("site", "head")


class ResidualGates(nn.Module):
    """g of :mod:`attnprobe.residual.stream`, for every site but the first.

    What is in force is (1 - t) g + t: g is learnt, and t goes from 0 to 1 where the end state is to be canonical,
    at the upper sites first.

    Attributes:
        gates: g, float32 (sites - 1, heads), or (sites - 1, 1) with a gate a site.
        forced: t, float32 (sites - 1, 1).
    """

    def __init__(self, *, sites: int, heads: int, by: str = "head", initial: float = 0.0) -> None:
        """Args: sites: of the model. heads: of each. by: one of ``GATES_BY``. initial: g at the start."""
        super().__init__()
        self.heads = heads
        self.gates = nn.Parameter(torch.full((sites - 1, heads if by == "head" else 1), initial))
        self.register_buffer("forced", torch.zeros(sites - 1, 1))
        self.forced: Tensor

    def effective(self) -> Tensor:
        """The gates in force, with gradient: exactly g at t = 0, and exactly 1 at t = 1."""
        return torch.lerp(self.gates, torch.ones_like(self.gates), self.forced)

    @torch.no_grad()
    def force(self, progress: float) -> None:
        """Set t of all sites.

        Args:
            progress: of the whole ramp, 0 to 1. A site's own takes half of it: the highest's the first half, the
                lowest's the second.
        """
        below_top = torch.linspace(1, 0, len(self.forced)) if len(self.forced) > 1 else torch.zeros(1)
        self.forced.copy_(((progress - below_top / 2) * 2).clamp(0, 1).unsqueeze(1))

    def settled(self, variant: str) -> Residual:
        """What is in force now, as it is exported."""
        gates = self.effective().detach().cpu().float()
        return Residual(variant=variant, gates=gates.expand(-1, self.heads).contiguous())
