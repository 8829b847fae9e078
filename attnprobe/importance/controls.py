"""Matched random cells: what a position class is compared with, so that n cells never stand against n squared."""

from __future__ import annotations

import torch
from torch import Tensor

from attnprobe.data.positions import Positions, partition
from attnprobe.importance.cells import Cells


def matched_random(cells: Cells, name: int, generator: torch.Generator) -> Tensor:
    """Draw random cells to match a named class: bool (batch, queries, keys).

    In every row as many as the class has there, from the row's other valid cells; all of them where there are fewer.
    A class that takes whole rows ([CLS] as query) leaves its rows no others: as many cells are then drawn in as many
    rows of random ordinary tokens, their diagonal left alone.
    """
    classes = list(partition(cells.at.causal).values())
    members = cells.membership[name, :-1].nonzero()[:, 0].tolist()
    chosen = cells.of(name)
    rows = [number for number in members if classes[number].whole_row]
    if not rows:
        return _within_rows(chosen, cells.at.valid & ~chosen, generator)
    whole = torch.isin(cells.map, torch.tensor(rows, device=cells.map.device))
    elsewhere = _in_ordinary_rows(whole, cells.at, generator)
    rest = chosen & ~whole
    kept = (cells.at.offset == 0) & elsewhere.any(-1, keepdim=True)
    return elsewhere | _within_rows(rest, cells.at.valid & ~(chosen | elsewhere | kept), generator)


def matched_offset(cells: Cells, offset: int, generator: torch.Generator) -> Tensor:
    """One random other cell in every row that has one at the offset: bool (batch, queries, keys)."""
    chosen = cells.of_offset(offset)
    return _within_rows(chosen, cells.at.valid & ~chosen, generator)


def _within_rows(chosen: Tensor, pool: Tensor, generator: torch.Generator) -> Tensor:
    """As many cells of the pool, row by row, as are chosen."""
    return _draw(chosen.sum(-1), pool, generator)


def _draw(counts: Tensor, pool: Tensor, generator: torch.Generator) -> Tensor:
    """``counts`` (batch, queries) random cells of each row of the pool (batch, queries, keys)."""
    order = torch.rand(pool.shape, generator=generator).to(pool.device).masked_fill(~pool, 2.0)
    rank = order.argsort(-1).argsort(-1)
    return pool & (rank < counts.unsqueeze(-1))


def _in_ordinary_rows(whole: Tensor, at: Positions, generator: torch.Generator) -> Tensor:
    """Each row's count of cells, moved to the row of a random ordinary token of the same example."""
    counts = whole.sum(-1)
    ordinary = at.measured & ~at.special & (counts == 0)
    order = torch.rand(counts.shape, generator=generator).to(counts.device).masked_fill(~ordinary, 2.0)
    rank = order.argsort(-1).argsort(-1)
    largest_first = counts.sort(-1, descending=True).values
    moved = largest_first.gather(1, rank) * ordinary
    return _draw(moved, at.valid & (at.offset != 0), generator)
