"""Sparsity, three ways, never one for another; and how many cells each gate governs.

cell     share of the data's valid cells that are removed, over sites and heads
nominal  share of an n x n grid without padding that is removed, as papers print it: one row of the longest input
block    share of that grid's kernel blocks in which nothing is kept: what a block-sparse kernel could skip
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnprobe.data.positions import Positions, class_map, partition
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import Mask
from attnprobe.masks.tokens import TokenRules

KERNEL_BLOCK = 128
"""Side of a block of flex_attention, in tokens."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GateCounts:
    """How many valid cells of the data each gate of a head governs.

    Attributes:
        cells: int64 (gates,), of cells that gates decide on.
        fixed: cells that ``diagonal`` keeps, whatever the gates say.
        valid: all valid cells; those that ``diagonal`` drops are in here alone.
        seen: bool (gates,), gates that govern any cell of the data learnt from.
    """

    cells: Tensor
    fixed: int
    valid: int
    seen: Tensor

    def density(self, gates: Tensor) -> Tensor:
        """Share of valid cells kept, averaged over sites and heads: float64 scalar.

        Args:
            gates: (sites, heads, gates), bool or probabilities.
        """
        kept = (gates.double() * self.cells.to(gates.device)).sum(-1).mean()
        return (kept + self.fixed) / self.valid


def count_gates(granularity: Granularity, positions: Iterable[Positions], *, diagonal: str) -> GateCounts:
    """Count the cells of each gate over the data.

    Args:
        granularity: which gate governs a cell.
        positions: of every batch.
        diagonal: ``free``: gates decide on the diagonal too; ``keep`` or ``drop``: they don't.
    """
    cells = torch.zeros(granularity.gates, dtype=torch.int64)
    fixed = valid = 0
    for at in positions:
        decided = at.valid if diagonal == "free" else at.valid & (at.offset != 0)
        index = granularity.index(at)[decided].cpu()
        cells += torch.bincount(index, minlength=granularity.gates)
        valid += int(at.valid.sum())
        if diagonal == "keep":
            fixed += int((at.valid & (at.offset == 0)).sum())
    return GateCounts(cells=cells, fixed=fixed, valid=valid, seen=cells > 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Account:
    """What a mask keeps of the data.

    Attributes:
        kept: int64 (sites, heads, classes): cells kept, by position class.
        valid: int64 (classes,): valid cells of one head.
        nominal: nominal sparsity, a fraction.
        block: block sparsity, a fraction.
        block_size: side of a kernel block, in tokens.
        causal: which partition the classes are of.
    """

    kept: Tensor
    valid: Tensor
    nominal: float
    block: float
    block_size: int
    causal: bool

    @property
    def cell(self) -> float:
        """Cell sparsity, a fraction."""
        sites, heads, _ = self.kept.shape
        return 1 - float(self.kept.sum()) / (float(self.valid.sum()) * sites * heads)

    def kept_by_class(self) -> dict[str, float]:
        """Share kept of every class that the data has, over sites and heads."""
        sites, heads, _ = self.kept.shape
        shares = self.kept.sum((0, 1)).double() / (self.valid * sites * heads)
        return {
            name: float(shares[number])
            for number, name in enumerate(partition(self.causal))
            if int(self.valid[number]) > 0
        }


def account(
    mask: Mask,
    positions: Iterable[Positions],
    rules: TokenRules,
    *,
    sites: int,
    heads: int,
    length: int,
    block_size: int = KERNEL_BLOCK,
) -> Account:
    """Count what a mask keeps.

    Args:
        mask: the mask.
        positions: of every batch of the data.
        rules: how the positions of the full row are told.
        sites: of the model.
        heads: of each site.
        length: tokens of the full row, special ones included.
        block_size: side of a kernel block, in tokens.
    """
    classes = len(partition(rules.causal))
    kept = torch.zeros(sites, heads, classes, dtype=torch.int64)
    valid = torch.zeros(classes, dtype=torch.int64)
    for at in positions:
        cells = class_map(at)
        real = cells >= 0
        valid += torch.bincount(cells[real].cpu(), minlength=classes)
        shared = mask.cells(at)
        for site in range(sites):
            kept[site] += _by_class(mask.keep(at, site, shared), cells, real, heads, classes)
    nominal, block = _of_grid(mask, full_row(rules, length), sites, block_size)
    return Account(kept=kept, valid=valid, nominal=nominal, block=block, block_size=block_size, causal=rules.causal)


def _by_class(keep: Tensor, cells: Tensor, real: Tensor, heads: int, classes: int) -> Tensor:
    """int64 (heads, classes): kept valid cells, from keep (batch, heads or 1, queries, keys)."""
    keep = keep.expand(len(cells), -1, -1, -1) & real.unsqueeze(1)
    counts = [torch.bincount(cells[keep[:, head]].cpu(), minlength=classes) for head in range(keep.shape[1])]
    return torch.stack(counts).expand(heads, classes)


def full_row(rules: TokenRules, length: int) -> Positions:
    """One row without padding, of so many tokens: [CLS] first and [SEP] last, where there are such."""
    ids = torch.full((1, length), -1, dtype=torch.int64)
    if rules.sep_id is not None:
        ids[0, -1] = rules.sep_id
    if rules.cls_id is not None:
        ids[0, 0] = rules.cls_id
    return rules.positions(ids, torch.ones_like(ids))


def _of_grid(mask: Mask, at: Positions, sites: int, size: int) -> tuple[float, float]:
    """Nominal and block sparsity over the whole grid; under causal attention, over the cells on and below its diagonal
    and the blocks that hold any.
    """
    length = at.token.shape[1]
    pad = -length % size
    real = torch.nn.functional.pad(at.valid, (0, pad, 0, pad))
    rows = (length + pad) // size

    def any_in_block(cells: Tensor) -> Tensor:
        found: Tensor = cells.unflatten(-2, (rows, size)).unflatten(-1, (rows, size)).any(-1).any(-2)
        return found

    cells = blocks = 0.0
    shared = mask.cells(at)
    for site in range(sites):
        keep = mask.keep(at, site, shared) & at.valid.unsqueeze(1)
        cells += float(keep.double().mean(1).sum())
        kept = any_in_block(torch.nn.functional.pad(keep, (0, pad, 0, pad)))
        blocks += float(kept.double().mean(1).sum())
    return 1 - cells / (sites * float(at.valid.sum())), 1 - blocks / (sites * float(any_in_block(real).sum()))
