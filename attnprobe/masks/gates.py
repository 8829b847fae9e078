"""Learnable gates: drawn open or closed in each step, held at a density, and decided once at the end.

SparseBERT's differentiable attention mask (Shi et al. 2021) draws M = Gumbel-sigmoid(alpha) and adds lambda * sum(M)
to the loss. Departures: gates act on probabilities and rows are renormalised (see :mod:`attnprobe.attention`); the
density is not bought with a penalty but held. The Lagrange multiplier of the constraint

    sum_g cells_g * P(gate g is open) = wanted share of the valid cells

is solved for in every step instead of being integrated, which overshoots: the gradient of the logits is freed of its
part along the constraint (:meth:`Gates.project_gradient`), and one number added to all logits puts what an optimiser's
step changed back on it (:meth:`Gates.hold`). The wanted share falls from 1 to the target over the first steps.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from attnprobe.data.positions import Positions
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import GateMask
from attnprobe.masks.relaxations import RELAXATIONS, SMOOTHNESS, logistic_noise
from attnprobe.masks.sparsity import GateCounts

SHARINGS = ("none", "sites", "heads")
_NEWTON_STEPS = 24
_TINY = 1e-12
_HEAD_START = 1.0


class Gates(nn.Module):
    """The gates of a model, of those that govern any cell of the training data.

    Attributes:
        logits: (sites or 1, heads or 1, gates seen), float32.
        granularity, counts: which cells each governs, and how many.
    """

    def __init__(
        self,
        granularity: Granularity,
        counts: GateCounts,
        *,
        sites: int,
        heads: int,
        diagonal: str = "free",
        share: str = "none",
        relaxation: str = "straight-through",
        initial: float = 3.0,
        smoothness: float = SMOOTHNESS,
        spread_initial: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Start with gates that are alike.

        Args:
            granularity: which cells each governs.
            counts: of the training data, for the same ``diagonal``.
            sites: of the model.
            heads: of each site.
            diagonal: ``free``, ``keep`` or ``drop``, see :class:`~attnprobe.masks.mask.Mask`.
            share: one set of gates for all ``sites``, all ``heads``, or ``none`` shared.
            relaxation: a key of :data:`~attnprobe.masks.relaxations.RELAXATIONS`.
            initial: logit at the start.
            smoothness: how soft a drawn gate is; the temperature of the Gumbel-sigmoid at logits over ``temperature``.
            spread_initial: standard deviation of the logits at the start.
            seed: of everything that is drawn.
        """
        super().__init__()
        self.granularity, self.counts, self.diagonal = granularity, counts, diagonal
        self.sites, self.heads, self.seed = sites, heads, seed
        self.relaxation, self.smoothness = RELAXATIONS[relaxation], smoothness
        self.temperature = 1.0
        self.step = 0
        seen = counts.seen.nonzero()[:, 0]
        shape = (1 if share == "sites" else sites, 1 if share == "heads" else heads, len(seen))
        generator = torch.Generator().manual_seed(seed)
        self.logits = nn.Parameter(initial + spread_initial * torch.randn(shape, generator=generator))
        self.register_buffer("average", self.logits.detach().clone())
        self.average: Tensor
        slot = torch.full((granularity.gates,), len(seen), dtype=torch.int64)
        slot[seen] = torch.arange(len(seen))
        self.register_buffer("slot", slot, persistent=False)
        self.register_buffer("seen", seen, persistent=False)
        self.register_buffer("weight", counts.cells[seen].double() / counts.valid, persistent=False)
        self.register_buffer("ends", torch.tensor([1.0, 0.0]), persistent=False)
        self.slot: Tensor
        self.seen: Tensor
        self.weight: Tensor
        self.ends: Tensor

    @torch.no_grad()
    def start_from(self, scores: Tensor) -> None:
        """Start the logits apart: by the logarithm of a positive score, ``_HEAD_START`` logits a standard deviation.

        Args:
            scores: (sites, heads, gates); averaged where gates are shared.
        """
        seen = scores[:, :, self.counts.seen].double()
        for axis in (0, 1):
            if self.logits.shape[axis] == 1:
                seen = seen.mean(axis, keepdim=True)
        logs = seen.clamp_min(torch.finfo(torch.float64).tiny).log()
        deviation = logs.std().clamp_min(1e-9) if logs.numel() > 1 else logs.new_ones(())
        apart = ((logs - logs.mean()) / deviation).clamp(-3, 3)
        self.logits.add_((_HEAD_START * apart).to(self.logits))

    @property
    def fixed_share(self) -> float:
        """Share of valid cells that are kept whatever the gates say."""
        return self.counts.fixed / self.counts.valid

    @property
    def free_share(self) -> float:
        """Share of valid cells on which gates decide."""
        return int(self.counts.cells.sum()) / self.counts.valid

    def index(self, at: Positions) -> Tensor:
        """Where each cell finds its gate in :meth:`draw`: int64 (batch, queries, keys)."""
        index = self.slot[self.granularity.index(at).clamp(0, len(self.slot) - 1)]
        if self.diagonal == "free":
            return index
        end = len(self.seen) + (0 if self.diagonal == "keep" else 1)
        return index.masked_fill(at.offset == 0, end)

    def draw(self) -> Tensor:
        """Gates of this step in [0, 1], with gradient: (sites, heads, gates seen + 2), the last two open and closed.

        The noise depends on seed and step alone: the same in every process of a distributed run.
        """
        number = int(np.random.SeedSequence([self.seed, self.step]).generate_state(1)[0])
        generator = torch.Generator(self.logits.device).manual_seed(number)
        noise = logistic_noise(tuple(self.logits.shape), generator)
        return self._with_ends(self.relaxation.draw(self.logits.float() / self.temperature, noise, self.smoothness))

    def quiet(self) -> Tensor:
        """As :meth:`draw`, without noise: sigmoid(logits)."""
        return self._with_ends(torch.sigmoid(self.logits.float()))

    def _with_ends(self, gates: Tensor) -> Tensor:
        full = gates.expand(self.sites, self.heads, -1)
        return torch.cat([full, self.ends.expand(self.sites, self.heads, 2)], dim=-1)

    def density(self) -> Tensor:
        """Expected share of valid cells that are kept: float64 scalar, with gradient."""
        return self._share(self._open_probability(self.logits.double()))

    def natural_density(self) -> float:
        """Share of valid cells that are kept when every gate is open that is rather open than closed."""
        return float(self._share((self.logits > self.level).double()))

    @property
    def level(self) -> float:
        """The logit above which a gate is rather open than closed."""
        return self.temperature * self.relaxation.level(self.smoothness)

    def _open_probability(self, logits: Tensor) -> Tensor:
        return self.relaxation.open_probability(logits / self.temperature, self.smoothness)

    def _share(self, gates: Tensor) -> Tensor:
        return (gates @ self.weight.to(gates.dtype)).mean() + self.fixed_share

    @torch.no_grad()
    def hold(self, wanted: float) -> None:
        """Add the one number to all logits at which the expected density is ``wanted``.

        Newton's method from where the last step left off, kept inside a bracket: at its ends the most open gate, or the
        least, is as open as all are on average. Asks the device for nothing, unless that is the host.
        """
        if wanted >= self.fixed_share + self.free_share:
            return
        share = min(max((wanted - self.fixed_share) / self.free_share, _TINY), 1 - _TINY)
        alpha, weight = self.logits.double(), self.weight
        middle = self.temperature * math.log(share / (1 - share)) + self.level
        low, high = middle - alpha.max(), middle - alpha.min()
        shift = torch.clamp(alpha.new_zeros(()), low, high)
        for _ in range(_NEWTON_STEPS):
            p = self._open_probability(alpha + shift)
            excess = self._share(p) - wanted
            if excess.device.type == "cpu" and abs(float(excess)) < _TINY:
                break
            low, high = torch.where(excess > 0, low, shift), torch.where(excess > 0, shift, high)
            slope = ((p * (1 - p)) @ weight).mean().clamp_min(_TINY) / self.temperature
            step = shift - excess / slope
            inside = (step > low) & (step < high)
            shift = torch.where(inside, step, (low + high) / 2)
        self.logits.copy_(alpha + shift)

    @torch.no_grad()
    def take_in(self, decay: float) -> None:
        """Move the running average of the logits towards what they are now; decay 0 starts it anew."""
        self.average.lerp_(self.logits, 1 - decay)

    @torch.no_grad()
    def settle_on_average(self) -> None:
        """Put the logits to their running average, in which the noise of single steps is less."""
        self.logits.copy_(self.average)

    @torch.no_grad()
    def project_gradient(self) -> None:
        """Take the part along the density's own gradient out of the logits' gradient."""
        if self.logits.grad is None:
            return
        p = self._open_probability(self.logits)
        along = p * (1 - p) * self.weight.to(p.dtype)
        share = (self.logits.grad * along).sum() / (along * along).sum().clamp_min(1e-30)
        self.logits.grad -= share * along

    def decide(self, density: float | None) -> GateMask:
        """The one mask that is left: the gates with the largest logits, as many as the density allows.

        Going down the order, a gate that governs too many cells to fit is passed over. Gates that govern no cell of
        the data are decided by the nearest that do, see :func:`complete`.

        Args:
            density: share of valid cells kept at most; None: every gate that is rather open than closed.
        """
        logits = self.logits.detach().cpu()
        if density is None:
            chosen = logits > self.level
        else:
            chosen = fill(logits, self.counts.cells[self.counts.seen], self._budget(density))
        full = torch.ones(self.sites, self.heads, self.granularity.gates, dtype=torch.bool)
        full[:, :, self.counts.seen] = chosen.expand(self.sites, self.heads, -1)
        return GateMask(
            granularity=self.granularity,
            gates=complete(full, self.counts.seen, self.granularity),
            diagonal=self.diagonal,
        )

    def _budget(self, density: float) -> int:
        """Cells that gates may keep, over all rows of the logits."""
        rows = self.logits.shape[0] * self.logits.shape[1]
        return round((density * self.counts.valid - self.counts.fixed) * rows)


def fill(scores: Tensor, cells: Tensor, budget: int) -> Tensor:
    """Open the gates with the highest scores while they fit: bool, of the shape of ``scores``.

    Args:
        scores: (rows, ..., gates).
        cells: int64 (gates,), what each gate costs.
        budget: cells that may be kept in all.
    """
    flat = scores.reshape(-1)
    costs = cells.expand_as(scores).reshape(-1)
    order = torch.argsort(flat, descending=True, stable=True)
    total = costs[order].cumsum(0)
    whole = int((total <= budget).sum())  # totals never fall, so these are the first ones
    keep = torch.zeros_like(flat, dtype=torch.bool)
    keep[order[:whole]] = True
    left = budget - (int(total[whole - 1]) if whole else 0)
    priced = costs[costs > 0]
    smallest = int(priced.min()) if len(priced) else 1
    for gate in order[whole:].tolist():
        if left < smallest:
            break
        if 0 < int(costs[gate]) <= left:
            keep[gate] = True
            left -= int(costs[gate])
    return keep.view_as(scores)


def complete(gates: Tensor, seen: Tensor, granularity: Granularity) -> Tensor:
    """Decide gates that govern no cell of the data: nothing was learnt about them.

    Under ``offset`` a distance takes the state of the nearest seen distance of its zone (of two, the nearer to the
    query); a zone that the data has nothing of, and gates of the other granularities, stay open.

    Args:
        gates: bool (sites, heads, gates), right where seen.
        seen: bool (gates,).
        granularity: of the gates.
    """
    result = gates.clone()
    result[:, :, ~seen] = True
    if granularity.name != "offset":
        return result
    size = granularity.distances
    centre = 0 if granularity.symmetric or granularity.causal else size // 2
    for start in range(0, granularity.gates, size):
        known = seen[start : start + size].nonzero()[:, 0]
        for distance in (~seen[start : start + size]).nonzero()[:, 0].tolist() if len(known) else []:
            gap = (known - distance).abs() * size + (known - centre).abs()
            result[:, :, start + distance] = gates[:, :, start + int(known[gap.argmin()])]
    return result
