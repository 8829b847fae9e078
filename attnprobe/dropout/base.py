"""The form of every dropout method: what it does to one training pass, and to the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from attnprobe.attention import AttentionCall, AttentionSession
from attnprobe.dropout.options import DropoutOptions
from attnprobe.objectives import Objective, Prepared
from attnprobe.scoring import scored_output


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A batch that is trained on, and the model that is trained.

    Attributes:
        session: the attached model.
        objective: what it is scored by.
        prepared: the batch.
        progress: share of the training that is behind, from 0 to 1.
        epoch: passes over the data that are behind, whole ones.
    """

    session: AttentionSession
    objective: Objective
    prepared: Prepared
    progress: float = 0.0
    epoch: int = 0

    def output(self) -> Tensor:
        """The scored output of one pass, under whatever is in force."""
        return scored_output(self.session.model, self.objective, self.prepared)

    def loss(self, output: Tensor) -> Tensor:
        """The objective's loss, the mean over the batch."""
        return self.objective.loss(output, self.prepared).nanmean()


class Dropout(nn.Module):
    """A dropout method; this one drops no attention at all. What a method has to learn are its parameters.

    Attributes:
        keeps_own: whether the checkpoint's own attention dropout acts beside it, or gives way to it.
        recomputable: whether its passes can be recomputed (gradient checkpointing).

    Args:
        sites: number of sites.
        rate: share that the method drops, as its own docstring has it.
        options: of all methods.
    """

    keeps_own: ClassVar[bool] = False
    recomputable: ClassVar[bool] = True

    def __init__(self, *, sites: int, rate: float, options: DropoutOptions) -> None:
        super().__init__()
        self.sites, self.rate, self.options = sites, rate, options

    @contextmanager
    def applied(self, step: Step) -> Iterator[None]:
        """Put the method in force for the training passes within."""
        if self.keeps_own:
            yield
        else:
            with step.session.weights_dropout(0.0):
                yield

    def loss(self, step: Step) -> Tensor:
        """The loss of a batch, which the method may add to, or take over several passes."""
        with self.applied(step):
            return step.loss(step.output())

    def rates(self, progress: float) -> Sequence[float]:
        """Share of the attention weights that is dropped at each site, at that time of the training; of a method that
        learns, or looks at the data, in the last pass. (sites,)
        """
        del progress
        return [0.0] * self.sites

    def prepare(self, session: AttentionSession) -> None:
        """Make parameters that depend on the model; called once, before its first step."""


def bernoulli(call: AttentionCall, rate: float, *, heads: int | None = None) -> Tensor:
    """Which cells of a call are kept when each is dropped by itself with probability ``rate``: bool.

    Args:
        call: the call; the draw is made on its device, by torch's own generator.
        rate: probability of dropping.
        heads: 1 for a draw that all heads share.

    Returns:
        (batch, heads, queries, keys).
    """
    batch, own, queries, keys = call.shape
    shape = (batch, own if heads is None else heads, queries, keys)
    return torch.rand(shape, device=call.query.device) >= rate


def dropped_share(kept: Tensor, call: AttentionCall) -> Tensor:
    """Share of a call's valid cells that is not kept: a scalar without gradient.

    Args:
        kept: bool, broadcastable to (batch, heads, queries, keys).
        call: the call. A query that is padding still has valid keys; it is left out where keys and queries are the same
            tokens and see each other, so that its own column tells.
    """
    valid = call.valid.expand(call.shape[0], -1, call.shape[2], -1)
    if not call.site.causal:
        valid = valid & valid.transpose(-1, -2)
    valid = valid.expand_as(valid & kept)
    return ((~kept & valid).sum() / valid.sum().clamp_min(1)).detach()
