"""R-Drop: two passes that have to agree."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from attnprobe.dropout.base import Dropout, Step


class RDrop(Dropout):
    """The model's own dropout twice (Liang et al. 2021, arXiv:2106.14448).

        L = (L1 + L2) / 2 + w (D(1, 2) + D(2, 1)) / 2

    D is the objective's divergence, KL for classes and the squared difference for values; gradients go to both sides.
    The paper sums the two losses, and weighs D by w / 2 of that: the same direction at twice the length.
    """

    keeps_own = True

    def loss(self, step: Step) -> Tensor:
        first, second = step.output(), step.output()
        plain = (step.loss(first) + step.loss(second)) / 2
        return plain + self.options.r_drop_weight * symmetric_divergence(step, first, second)


def symmetric_divergence(step: Step, first: Tensor, second: Tensor) -> Tensor:
    """(D(first, second) + D(second, first)) / 2, the mean over the batch; both have gradients."""
    there = step.objective.divergence(first, replace(step.prepared, dense=second))
    back = step.objective.divergence(second, replace(step.prepared, dense=first))
    return (there + back).nanmean() / 2
