"""AttendOut's masks in a model's passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from attnprobe.attention import AttentionCall, AttentionSession
from attnprobe.dropout.attendout.draws import draw
from attnprobe.dropout.attendout.gnet import GNet, valid_cells
from attnprobe.dropout.base import Dropout, Step


class AttendOut(Dropout):
    """Cells that a G-Net draws, by sample, site, query and key, alike for all heads (Wu et al. 2021, 2104.04692v3).

    Scores of dropped cells are replaced before softmax, which renormalises; a row that keeps nothing is uniform over
    its valid keys. The model's own dropout acts beside it. How the G-Net learns is in :mod:`.rivalry`. ``rate`` is the
    share dropped at first; where the G-Net learns straight-through, the share that it is held at.
    """

    keeps_own = True
    gnet: GNet

    def prepare(self, session: AttentionSession) -> None:
        """Make the G-Net for a model."""
        embeddings = session.model.get_input_embeddings()
        assert isinstance(embeddings.weight, Tensor)
        vocabulary, width = embeddings.weight.shape
        own, options = self.options.own_embeddings, self.options
        rank = options.gnet_rank
        self.gnet = GNet(
            sites=self.sites,
            width=rank if own else width,
            rank=rank,
            rate=min(max(self.rate, 1e-3), 1 - 1e-3),
            vocabulary=vocabulary if own else None,
        ).to(session.model.device)
        self.kept: Tensor | None = None
        self.valid: Tensor | None = None

    def logits(self, session: AttentionSession, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """What the G-Net says of a batch: logits of keeping (batch, sites, queries, keys), valid cells (batch, q, k).

        Unless it has its own, it reads the model's embeddings as they are, and no gradient goes to these.

        Args:
            session: the attached model.
            inputs: ``input_ids`` and ``attention_mask``, each (batch, tokens).
        """
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        embeddings = self.gnet.embeddings
        if embeddings is not None:
            embedded = embeddings(ids)
        else:
            with torch.no_grad():
                embedded = session.model.get_input_embeddings()(ids)
        valid = valid_cells(mask, causal=session.sites[0].causal)
        return self.gnet(embedded, valid, (mask.cumsum(1) - 1).clamp_min(0)), valid

    @contextmanager
    def applied(self, step: Step) -> Iterator[None]:
        """Draw masks for the batch, and put them in force."""
        with torch.no_grad(), torch.autocast(step.session.model.device.type, enabled=False):
            logits, self.valid = self.logits(step.session, step.prepared.inputs)
        self.kept = draw(logits)
        with masks_in_force(step.session, self.kept):
            yield

    def rates(self, progress: float) -> Sequence[float]:
        del progress
        if self.kept is None or self.valid is None:
            return [self.rate] * self.sites
        return [float(share) for share in dropped_by_site(self.kept, self.valid).tolist()]


def dropped_by_site(kept: Tensor, valid: Tensor) -> Tensor:
    """Share of the valid cells that masks drop: (sites,).

    Args:
        kept: bool (batch, sites, queries, keys).
        valid: bool (batch, queries, keys).
    """
    cells = valid.unsqueeze(1)
    return (~kept & cells).sum((0, 2, 3)) / cells.sum().clamp_min(1)


@contextmanager
def masks_in_force(session: AttentionSession, kept: Tensor) -> Iterator[None]:
    """Drop what masks drop. ``kept``: bool (batch, sites, queries, keys)."""

    def of_site(call: AttentionCall) -> Tensor:
        return kept[:, call.site.index].unsqueeze(1)

    with session.drop(of_site):
        yield


@contextmanager
def masks_with_gradient(session: AttentionSession, kept: Tensor, valid: Tensor) -> Iterator[None]:
    """The same with a gradient to the masks, which gate probabilities here: equal where the masks are 0 and 1.

    Args:
        session: the attached model.
        kept: float (batch, sites, queries, keys), 0 or 1.
        valid: bool (batch, queries, keys). A row that keeps no valid cell keeps them all.
    """
    nothing = ((kept * valid.unsqueeze(1)) == 0).all(-1, keepdim=True)
    whole = torch.where(nothing, torch.ones_like(kept), kept)

    def of_site(call: AttentionCall) -> Tensor:
        return whole[:, call.site.index].unsqueeze(1)

    with session.gate(of_site):
        yield
