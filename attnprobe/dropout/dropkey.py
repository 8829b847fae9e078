"""DropKey: scores dropped at a rate that falls with depth."""

from __future__ import annotations

from collections.abc import Sequence

from attnprobe.dropout.scores import ScoresDropout


class DropKey(ScoresDropout):
    """Scores, at rate (1 - l / sites) at site l = 0, 1, ... (Li et al. 2023, arXiv:2208.02646).

    The paper draws keys for each query anew, as here, and finds a rate that falls with depth better than a constant
    one; it names no slope, and a straight line is taken.
    """

    def rates(self, progress: float) -> Sequence[float]:
        del progress
        return [self.rate * (1 - site / self.sites) for site in range(self.sites)]
