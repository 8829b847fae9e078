"""Integrated gradients of the loss over all gates at once, from all closed to all open (Sundararajan et al. 2017).

The gates are one tensor (batch, sites, heads, queries, keys) on the probabilities, *without* renormalising: with it a
row's output does not depend on the scale of its gates and jumps at 0, and nothing would be complete. captum computes
the attributions and their completeness; an effect is minus the attribution: what the loss owes to the cell's absence.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from captum.attr import IntegratedGradients
from torch import Tensor

from attnprobe.attention import AttentionCall
from attnprobe.importance.cells import Cells
from attnprobe.importance.context import Arrays, Context, Item, Measurement
from attnprobe.importance.taylor import frozen
from attnprobe.scoring import to_numpy


def measure(context: Context, item: Item) -> Measurement:
    """Attributions of every class (by site, by head), head, site and offset; and how complete they are."""
    parts = [_attribute(context, item, rows) for rows in _parts(context, item)]
    return Measurement(per_example={name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _parts(context: Context, item: Item) -> Iterator[Tensor]:
    """Rows of the batch in parts whose gates fit in memory."""
    batch, tokens = item.cells.at.token.shape
    layout = context.layout
    cells = layout.sites * layout.heads * tokens**2
    size = max(1, min(context.options.internal_batch_size, context.options.max_cells // cells))
    yield from torch.split(torch.arange(batch, device=item.cells.map.device), size)


def _attribute(context: Context, item: Item, rows: Tensor) -> Arrays:
    """Attributions of some rows of a batch, by level."""
    layout, objective = context.layout, context.objective
    part = objective.rows(item.prepared, rows)
    tokens = item.cells.at.token.shape[1]
    parameter = next(context.session.model.parameters())
    gates = torch.ones(
        len(rows), layout.sites, layout.heads, tokens, tokens, dtype=parameter.dtype, device=parameter.device
    )

    def loss(scaled: Tensor, numbers: Tensor) -> Tensor:
        def gate(call: AttentionCall) -> Tensor:
            return scaled[:, call.site.index]

        prepared = objective.rows(part, numbers)
        with context.session.gate(gate, renormalise=False):
            return objective.loss(context.forward(prepared), prepared)

    numbers = torch.arange(len(rows), device=rows.device)
    with frozen(context.session.model):
        attributions, delta = IntegratedGradients(loss).attribute(
            gates,
            baselines=torch.zeros_like(gates),
            additional_forward_args=(numbers,),
            n_steps=context.options.n_steps,
            internal_batch_size=max(len(rows), context.options.internal_batch_size),
            return_convergence_delta=True,
        )
    total = attributions.double().sum((1, 2, 3, 4))
    attributions[~delta.isfinite()] = torch.nan  # an example without a loss has no effects either
    levels = _by_level(-attributions.detach(), Cells(item.cells.at.rows(rows), layout))
    return levels | {
        "completeness/gap": to_numpy(delta),
        "completeness/total": to_numpy(total - delta),  # what the loss changed by, from all closed to all open
    }


def _by_level(effects: Tensor, cells: Cells) -> Arrays:
    """Sum effects (batch, sites, heads, queries, keys) at every level."""
    class_head = torch.stack([cells.by_class(site) for site in effects.unbind(1)], dim=1).permute(0, 3, 1, 2)
    class_head = class_head.masked_fill(~(cells.counts > 0)[:, :, None, None], torch.nan)
    head = effects.sum((3, 4))
    offset = cells.by_offset(effects.sum((1, 2))).masked_fill(~(cells.offset_counts > 0), torch.nan)
    levels = {
        "class": class_head.sum((2, 3)),
        "class_site": class_head.sum(3),
        "class_head": class_head,
        "head": head,
        "site": head.sum(2),
        "offset": offset,
    }
    return {f"{level}/loss": to_numpy(values) for level, values in levels.items()}
