"""Share of attention probability, and statistics of heads: what attention does, whether or not it matters.

A class's share is the attention that its cells receive over all that measured cells receive; beside it the share that
uniform attention would give them (each row spread evenly over its valid cells). Their ratio is the density.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnprobe.attention import AttentionCall
from attnprobe.importance.cells import Cells
from attnprobe.importance.context import Context, Item, Measurement
from attnprobe.importance.heads import HeadStatistics
from attnprobe.scoring import to_numpy


class _Mass:
    """Collects, site by site, what falls on each class, offset and cell."""

    def __init__(self, cells: Cells, context: Context) -> None:
        self.cells = cells
        self.by_class: list[Tensor] = []  # per site: (batch, heads, classes)
        self.by_offset: list[Tensor] = []  # per site: (batch, offsets)
        self.heads = HeadStatistics(cells.at, context.layout, length=context.map_length)

    def observe(self, call: AttentionCall, probabilities: Tensor) -> None:
        p = probabilities.to(torch.promote_types(probabilities.dtype, torch.float32))
        measured = p * (self.cells.map >= 0).unsqueeze(1)
        total = measured.sum((2, 3)).clamp_min(torch.finfo(p.dtype).tiny)
        self.by_class.append(self.cells.by_class(measured) / total.unsqueeze(-1))
        share = (measured / total[:, :, None, None]).mean(1)
        self.by_offset.append(self.cells.by_offset(share))
        self.heads.add(call.site.index, p)


def measure(context: Context, item: Item) -> Measurement:
    """Mass of every class (by site, by head) and offset; entropies, divergences and average maps of heads."""
    cells = item.cells
    mass = _Mass(cells, context)
    with torch.no_grad(), context.session.observe(mass.observe):
        context.forward(item.prepared)
    class_head = torch.stack(mass.by_class, dim=1).permute(0, 3, 1, 2)  # (batch, classes, sites, heads)
    uniform_class, uniform_offset = _uniform(cells)
    has_class, has_offset = cells.counts > 0, cells.offset_counts > 0

    def masked(values: Tensor, has: Tensor) -> Tensor:
        return values.masked_fill(~has.reshape(*has.shape, *[1] * (values.dim() - 2)), torch.nan)

    like = class_head.new_ones(class_head.shape)
    per_example = {
        "class/share": masked(class_head.mean((2, 3)), has_class),
        "class/uniform": masked(uniform_class, has_class),
        "class_site/share": masked(class_head.mean(3), has_class),
        "class_site/uniform": masked(uniform_class[:, :, None] * like[:, :, :, 0], has_class),
        "class_head/share": masked(class_head, has_class),
        "class_head/uniform": masked(uniform_class[:, :, None, None] * like, has_class),
        "offset/share": masked(torch.stack(mass.by_offset).mean(0), has_offset),
        "offset/uniform": masked(uniform_offset, has_offset),
        **mass.heads.per_example(),
    }
    return Measurement(
        per_example={name: to_numpy(values) for name, values in per_example.items()}, sums=mass.heads.sums()
    )


def _uniform(cells: Cells) -> tuple[Tensor, Tensor]:
    """Shares under uniform attention: (batch, classes), (batch, offsets)."""
    measured = (cells.map >= 0).float()
    rows = measured.sum(-1, keepdim=True).clamp_min(1.0)
    even = measured / rows
    total = even.sum((1, 2)).clamp_min(1.0)
    by_class = cells.by_class(even.unsqueeze(1))[:, 0] / total.unsqueeze(1)
    return by_class, cells.by_offset(even) / total.unsqueeze(1)
