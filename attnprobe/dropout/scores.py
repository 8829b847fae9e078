"""Scores dropped by cell before softmax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from attnprobe.attention import AttentionCall
from attnprobe.dropout.base import Dropout, Step, bernoulli


class ScoresDropout(Dropout):
    """Scores before softmax: s -> -inf by cell and head with probability ``rate``; softmax renormalises, no 1/(1-rate).

    A row that keeps nothing is uniform over its valid keys. The plain form of what AttendOut learns (Wu et al. 2021,
    arXiv:2104.04692v3); methods that differ from it in their rates alone are its children.
    """

    @contextmanager
    def applied(self, step: Step) -> Iterator[None]:
        rates = self.rates(step.progress)

        def kept(call: AttentionCall) -> Tensor | None:
            rate = rates[call.site.index]
            return bernoulli(call, rate) if rate else None

        with super().applied(step), step.session.drop(kept):
            yield

    def rates(self, progress: float) -> Sequence[float]:
        del progress
        return [self.rate] * self.sites
