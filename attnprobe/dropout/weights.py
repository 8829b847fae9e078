"""The usual dropout of attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from attnprobe.dropout.base import Dropout, Step


class WeightsDropout(Dropout):
    """Weights after softmax: p -> p b / (1 - rate), b of {0, 1} by cell (Vaswani et al. 2017, arXiv:1706.03762).

    Rows then sum to 1 in the mean alone. A rate of 1 leaves no weight at all.
    """

    @contextmanager
    def applied(self, step: Step) -> Iterator[None]:
        with step.session.weights_dropout(self.rate):
            yield

    def rates(self, progress: float) -> Sequence[float]:
        del progress
        return [self.rate] * self.sites
