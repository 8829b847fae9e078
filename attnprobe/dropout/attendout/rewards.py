"""What the two nets are compared by, on training rows that neither learns from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnprobe.attention import AttentionSession, evaluating
from attnprobe.data.batches import Encoded
from attnprobe.objectives import Objective, Prepared
from attnprobe.scoring import scored_output

LARGEST_REWARD = 1.0
"""Rewards are cut off here, either way, so that one lost window does not drown the others."""

COMPARED = 4
"""Batches of reward rows that a comparison looks at, at most: another draw of them each time."""

BASELINE_DECAY = 0.9


def drawn_from(
    encoded: Encoded, rows: Sequence[int], objective: Objective, *, batch_size: int, seed: int, device: torch.device
) -> Callable[[int], list[Prepared]]:
    """Gives the rows of the comparison after a step, as batches: drawn anew, the same in every process.

    Args:
        encoded: the data.
        rows: numbers of the rows that are drawn from.
        objective: what they are scored by.
        batch_size: of a pass.
        seed: of the draws.
        device: of the nets.
    """

    def draw(step: int) -> list[Prepared]:
        generator = np.random.default_rng((seed, step))
        count = min(len(rows), COMPARED * batch_size)
        drawn = generator.choice(np.asarray(rows), size=count, replace=False).tolist()
        return [objective.prepare(encoded.batch(part).to(device)) for part in encoded.plan(batch_size, rows=drawn)]

    return draw


@dataclass(frozen=True, kw_only=True)
class Rewards:
    """How nets are compared.

    Attributes:
        draw: gives the batches of a comparison, by the number of steps taken.
        objective: what they are scored by.
        measure: ``loss``, ``accuracy`` or ``sign``.
    """

    draw: Callable[[int], list[Prepared]]
    objective: Objective
    measure: str

    def score(self, output: Tensor, prepared: Prepared) -> Tensor:
        """(batch,): how good an output is, without gradient; NaN where a row has nothing to be scored."""
        if self.measure == "accuracy":
            return self.objective.hits(output, prepared)
        return -self.objective.loss(output, prepared).detach()

    def scores(self, session: AttentionSession, batches: Sequence[Prepared]) -> list[Tensor]:
        """Scores of a net on batches of :attr:`draw`, its dropout off: (batch,) each."""
        with evaluating(session.model), torch.no_grad():
            return [self.score(scored_output(session.model, self.objective, batch), batch) for batch in batches]

    def reward(self, masked: Tensor, plain: Tensor) -> Tensor:
        """What the net with masks is ahead by, cut off; with ``sign``: 1 or -1. Scores alike in shape."""
        ahead = masked - plain
        return ahead.sign() if self.measure == "sign" else ahead.clamp(-LARGEST_REWARD, LARGEST_REWARD)


class Baseline:
    """The moving average of past rewards, which is taken from each. It begins at the first.

    Attributes:
        value: None before the first reward.
    """

    def __init__(self, value: float | None = None) -> None:
        self.value = value

    def advantage(self, reward: Tensor) -> Tensor:
        """The reward less the baseline, which then moves towards the reward's mean."""
        mean = float(reward.nanmean())
        before = mean if self.value is None else self.value
        self.value = BASELINE_DECAY * before + (1 - BASELINE_DECAY) * mean
        return reward - before
