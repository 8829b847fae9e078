"""First-order effects of every gate from one forward and one backward pass.

With g = dL/do at a head's output row o = sum_j p_j v_j, and a_j = g . v_j (the gradient that the probabilities
receive anyway):

    row-exact:  removing the cells C of a row changes its output by exactly sum_C p_j (o - v_j) / (1 - P_C),
                so the loss by  (g . o - sum_C p_j a_j - (1 - P_C) g . o) / (1 - P_C)  =  rest_a / rest_p - g . o,
                the mean of a over what is left of the row, less the row's own
    derivative: the slope at the full gate, sum_C p_j (g . o - a_j): the same without 1 / (1 - P_C)
    a row left empty, a head, a site:  -g . o   (Michel et al. 2019)

Effects are added up over rows, heads and sites while the gradient passes by; no attention matrix is kept longer than
the backward pass keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from attnprobe.attention import AttentionCall
from attnprobe.importance.cells import Cells
from attnprobe.importance.context import Context, Item, Measurement
from attnprobe.importance.layout import Layout


class _Effects:
    """First-order changes of one batch, filled site by site as the backward pass reaches them."""

    def __init__(self, cells: Cells, layout: Layout, form: str) -> None:
        self.cells, self.form = cells, form
        batch, device = len(cells.map), cells.map.device
        self.class_head = torch.zeros(batch, *layout.shape("class_head"), dtype=torch.float64, device=device)
        self.head = torch.zeros(batch, *layout.shape("head"), dtype=torch.float64, device=device)
        self.offset = torch.zeros(batch, *layout.shape("offset"), dtype=torch.float64, device=device)
        self.first: Tensor | None = None

    def observe(self, call: AttentionCall, probabilities: Tensor) -> None:
        """Hook a site's probabilities, so that their gradient is read when it comes by."""
        if not probabilities.requires_grad:
            probabilities.requires_grad_()
        if self.first is None:
            self.first = probabilities
        p = probabilities.detach()
        probabilities.register_hook(lambda a: self._add(call.site.index, p, a))

    def _add(self, site: int, p: Tensor, a: Tensor) -> None:
        """Take in probabilities p and their gradient a, both (batch, heads, queries, keys)."""
        wide = torch.promote_types(p.dtype, torch.float32)
        p, a = p.to(wide), a.to(wide)
        weighted = p * a
        own = weighted.sum(-1)  # g . o, (batch, heads, queries)
        self.head[:, site] = -(own * self.cells.at.token.unsqueeze(1)).sum(-1).double()
        self.class_head[:, :, site] = self._by_class(p, weighted, own).sum(2).transpose(1, 2).double()
        self.offset += self.cells.by_offset(self._by_cell(p, weighted, own)).double()

    def _by_class(self, p: Tensor, weighted: Tensor, own: Tensor) -> Tensor:
        """Effect of each named class in each row: (batch, heads, queries, classes)."""
        inside = self.cells.membership.to(p.dtype).T  # (classes of the partition + 1, classes)
        outside = 1 - inside
        mass, moment = self.cells.by_row_and_class(p), self.cells.by_row_and_class(weighted)
        counts = self.cells.row_counts.to(p.dtype).unsqueeze(1)
        if self.form == "derivative":
            effect = (mass @ inside) * own.unsqueeze(-1) - moment @ inside
        else:
            rest = (mass @ outside).clamp_min(torch.finfo(p.dtype).tiny)
            effect = (moment @ outside) / rest - own.unsqueeze(-1)
            effect = torch.where(counts @ outside > 0, effect, -own.unsqueeze(-1))
        return torch.where(counts @ inside > 0, effect, 0.0)

    def _by_cell(self, p: Tensor, weighted: Tensor, own: Tensor) -> Tensor:
        """Effect of removing each cell alone, summed over heads: (batch, queries, keys)."""
        effect = p * own.unsqueeze(-1) - weighted
        if self.form == "derivative":
            return effect.sum(1)
        effect = (effect / (1 - p).clamp_min(10 * torch.finfo(p.dtype).eps)).sum(1)
        alone = self.cells.row_counts.sum(-1, keepdim=True) == 1
        return torch.where(alone, -own.sum(1).unsqueeze(-1), effect)


def measure(context: Context, item: Item) -> Measurement:
    """First-order effect of every class (by site, by head), head, site and offset on the loss."""
    effects = _Effects(item.cells, context.layout, context.options.taylor_form)
    with frozen(context.session.model), torch.enable_grad(), context.session.observe(effects.observe):
        output = context.forward(item.prepared)
        probed = context.objective.probe(output, item.prepared, item.generator)
        assert effects.first is not None
        torch.autograd.grad(probed[probed.isfinite()].sum(), effects.first)
        effects.first = None  # its hook refers to the effects: a circle that would keep its memory for a while
    has_class, has_offset = item.cells.counts > 0, item.cells.offset_counts > 0
    unknown = ~probed.detach().isfinite()
    class_head, head = effects.class_head, effects.head
    changes = {
        "class": (class_head.sum((2, 3)), has_class),
        "class_site": (class_head.sum(3), has_class),
        "class_head": (class_head, has_class),
        "head": (head, None),
        "site": (head.sum(2), None),
        "offset": (effects.offset, has_offset),
    }
    per_example = {}
    for level, (change, has) in changes.items():
        effect = context.objective.effect(change.cpu().numpy()).astype(np.float32)
        if has is not None:
            effect[~has.cpu().numpy()] = np.nan
        effect[unknown.cpu().numpy()] = np.nan
        per_example[f"{level}/loss"] = effect
    return Measurement(per_example=per_example)


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Ask for no gradient of any parameter: only attention's is wanted, and weight gradients cost a third of it."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)
