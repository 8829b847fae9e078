"""Learn a gate for every cell of the frozen model; importance is what is left of the gates (Shi et al. 2021).

SparseBERT's own analysis gives every head and cell (i, j) a number alpha, P = sigmoid(alpha), without noise, and reads
off the mean P of each position class. Here alpha starts at 0 (there: very near it), so that every gate starts at 0.5,
and a few dozen steps minimise

    mean loss of the examples with p_ij P_ij in place of p_ij  +  price * worth * mean P

over alpha alone: a gate stays open as far as it pays. ``worth`` is how far the output moves when all gates close, in
the unit of the loss. At a price of 1 a gate pays if it is worth more than the average cell.

Departures, and why:

- P multiplies the probabilities; the paper's code adds -c (1 - P) to the scores, with c = 10,000. Both are 0 at P = 0
  and the checkpoint at P = 1, but with such a c a gate a thousandth below the best of its row is as good as closed.
- Rows are *not* renormalised, as in :mod:`attnprobe.importance.integrated_gradients`, for the same reason. Renormalised
  (and softmax renormalises the paper's form), a row does not change when all its gates fall together. The loss then
  says nothing on the size of P, and nothing on whether a whole row is needed; a price moves all gates down that one
  flat direction; and where the loss is fidelity, equal gates are its minimum, so that only rounding errors would move
  them. What is closed here goes to no other key. So a key that is attended to because it holds *nothing* (often
  [CLS] or [SEP]) ends low, while ablation, which gives its attention to the rest of the row, may find it needed.
- There is a price. Without one nothing that is merely useless would ever close.
- The paper has one gate for all sites. Here each site has its own, unless ``--learned-sharing sites``.
- Weights stay as they are; the paper trained them too.

The gates are learnt on the rows that they are measured on: what they say of these rows is partly fitted to them. The
intervals are over examples, for the gates as learnt; they do not hold what another fit would find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from attnprobe.attention import AttentionCall
from attnprobe.importance.context import Arrays, Context, Item, Items, Measurement
from attnprobe.importance.taylor import frozen
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import spread
from attnprobe.scoring import to_numpy

LEARNING_RATE = 0.3
"""Of alpha: a gate that every step pushes the same way is all but closed (or open) after some 15 steps."""

_WORTH_BATCHES = 4
"""Batches on which the worth of all attention is measured: it only sets the scale of the price."""


def fit(context: Context, items: Items, generator: torch.Generator) -> Arrays:
    """Learn the gates, on all batches in random order, pass after pass.

    Args:
        context: of the run.
        items: all batches.
        generator: decides the order.

    Returns:
        ``gates``: float32 (sites or 1, heads, length * length), each in [0, 1]; NaN where no batch has a loss.
    """
    layout, options = context.layout, context.options
    sites = 1 if options.learned_sharing == "sites" else layout.sites
    device = next(context.session.model.parameters()).device
    alpha = torch.zeros(sites, layout.heads, _grid(context).gates, device=device, requires_grad=True)
    # A few dozen steps of one tensor, kept as one piece of the run: there is nothing here that a Trainer would do.
    optimizer = torch.optim.AdamW([alpha], lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.0)
    order = list(_order(items.number, options.learned_steps, generator))
    price = options.learned_price * _worth(context, items, order)
    ready = lru_cache(maxsize=1)(partial(_ready, context, items))  # of a single batch nothing is computed twice
    learnt = False
    with frozen(context.session.model), torch.enable_grad():
        for number in order:
            loss = loss_under(context, ready(number), torch.sigmoid(alpha), price)
            if loss is None:
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            learnt = True
    gates = torch.sigmoid(alpha) if learnt else torch.full_like(alpha, torch.nan)
    return {"gates": to_numpy(gates)}


def loss_under(context: Context, item: Item, gates: Tensor, price: float) -> Tensor | None:
    """What a step minimises: mean loss of a batch under gates, and ``price`` times the mean gate of its cells.

    Args:
        context: of the run.
        item: the batch. Only its measured cells are gated.
        gates: (sites or 1, heads, length * length).
        price: of having every gate open, in the unit of the loss.

    Returns:
        A scalar; None where no example has a loss.
    """
    index = _index(context, item)
    with context.session.gate(_gate(gates, index), renormalise=False):
        losses = context.objective.loss(context.forward(item.prepared), item.prepared)
    losses = losses[losses.isfinite()]
    if not len(losses):
        return None
    cells = torch.bincount(index.flatten(), minlength=gates.shape[-1] + 1)[:-1].to(gates.dtype)
    mean_gate = gates.mean((0, 1)) @ cells / cells.sum().clamp_min(1.0)
    return losses.mean() + price * mean_gate


def measure(context: Context, item: Item) -> Measurement:
    """Mean gate of every class (by site, by head), head, site and offset; beside it, that of all other cells."""
    gates = torch.from_numpy(context.fitted["learned"]["gates"]).to(item.cells.map.device)
    cells, index = item.cells, _index(context, item)
    measured = (cells.map >= 0).unsqueeze(1)
    by_class, by_offset, whole = [], [], []
    for site in _with_end(gates):
        values = spread(site, index) * measured
        by_class.append(cells.by_class(values))
        by_offset.append(cells.by_offset(values.mean(1)))
        whole.append(values.sum((2, 3)))
    classes = torch.stack(by_class, dim=1).permute(0, 3, 1, 2)  # (batch, classes, sites or 1, heads)
    heads = torch.stack(whole, dim=1)  # (batch, sites or 1, heads)
    number = measured.sum((1, 2, 3))
    one, all_others = cells.counts, number[:, None] - cells.counts
    class_gate = classes / one[:, :, None, None]
    class_others = (heads.unsqueeze(1) - classes) / all_others[:, :, None, None]
    class_others = class_others.masked_fill((one == 0)[:, :, None, None], torch.nan)
    offsets, offset_cells = torch.stack(by_offset).mean(0), cells.offset_counts
    levels = {
        "class/gate": class_gate.mean((2, 3)),
        "class/others": class_others.mean((2, 3)),
        "offset/gate": offsets / offset_cells,
        "offset/others": (heads.mean((1, 2))[:, None] - offsets) / (number[:, None] - offset_cells),
    }
    levels["offset/others"] = levels["offset/others"].masked_fill(offset_cells == 0, torch.nan)
    if len(gates) == context.layout.sites:
        head = heads / number[:, None, None]
        levels |= {
            "class_site/gate": class_gate.mean(3),
            "class_site/others": class_others.mean(3),
            "class_head/gate": class_gate,
            "class_head/others": class_others,
            "head/gate": head,
            "site/gate": head.mean(2),
        }
    return Measurement(per_example={name: to_numpy(values) for name, values in levels.items()})


def _grid(context: Context) -> Granularity:
    return Granularity(name="cell", length=context.longest, causal=context.layout.causal)


def _index(context: Context, item: Item) -> Tensor:
    """Where each cell finds its gate, int64 (batch, queries, keys); cells that are not measured: behind the last."""
    grid, at = _grid(context), item.cells.at
    return grid.index(at).masked_fill(~at.valid, grid.gates)


def _with_end(gates: Tensor) -> Tensor:
    """Gates (sites, heads, gates) with an open one behind the last, for cells that are not measured."""
    return torch.cat([gates, gates.new_ones(*gates.shape[:2], 1)], dim=-1)


def _gate(gates: Tensor, index: Tensor) -> Callable[[AttentionCall], Tensor]:
    full = _with_end(gates)

    def gate(call: AttentionCall) -> Tensor:
        return spread(full[call.site.index if len(full) > 1 else 0], index)

    return gate


def _ready(context: Context, items: Items, number: int) -> Item:
    """A batch with what its loss needs: fidelity compares with the dense output."""
    item = items.make(number)
    if context.objective.kind != "fidelity":
        return item
    return replace(item, prepared=context.with_dense(item.prepared))


def _worth(context: Context, items: Items, order: Sequence[int]) -> float:
    """How far the output moves when all measured cells close: mean divergence, in the unit of the loss."""
    moved = []
    with torch.no_grad():
        for number in list(dict.fromkeys(order))[:_WORTH_BATCHES]:
            item = items.make(number)
            prepared = context.with_dense(item.prepared)
            closed = torch.zeros(1, context.layout.heads, _grid(context).gates, device=item.cells.map.device)
            with context.session.gate(_gate(closed, _index(context, item)), renormalise=False):
                moved.append(context.objective.divergence(context.forward(prepared), prepared))
    worth = torch.cat(moved).nanmean()
    return float(worth) if worth.isfinite() else 0.0


def _order(batches: int, steps: int, generator: torch.Generator) -> Iterator[int]:
    """The batch of each step: passes over all of them, each in an order of its own."""
    left: list[int] = []
    for _ in range(steps):
        left = left or torch.randperm(batches, generator=generator).tolist()
        yield left.pop()
