"""LayerDrop of attention alone: whole sites made uniform."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from attnprobe.attention import AttentionCall
from attnprobe.dropout.base import Dropout, Step


class AttentionLayerDrop(Dropout):
    """Attention of a whole site made uniform over valid keys with probability ``rate``, one draw a site and pass.

    The control "Attn.LayerDrop" of Wu et al. (2021, arXiv:2104.04692v3, Table 4), which costs nothing.
    """

    @contextmanager
    def applied(self, step: Step) -> Iterator[None]:
        dropped = (torch.rand(self.sites) < self.rate).tolist()

        def kept(call: AttentionCall) -> Tensor | None:
            return call.valid.new_zeros(1, 1, 1, 1) if dropped[call.site.index] else None

        with super().applied(step), step.session.drop(kept):
            yield

    def rates(self, progress: float) -> Sequence[float]:
        del progress
        return [self.rate] * self.sites
