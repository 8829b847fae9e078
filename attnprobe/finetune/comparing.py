"""Paired comparison of two methods over seeds and examples at once, corrected for the number of comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnprobe.statistics import interval
from attnprobe.training.scores import Scores, computed


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A method against another.

    Attributes:
        difference: mean over seeds of the metric, the method less the other.
        low, high: 95 % interval.
        p_value: two-sided, of a difference of 0.
        wins: seeds in which the method is ahead.
        seeds: that both have.
    """

    difference: float
    low: float
    high: float
    p_value: float
    wins: int
    seeds: int


def compare_over_seeds(
    metric: str, ours: Sequence[Scores], theirs: Sequence[Scores], *, resamples: int, seed: int
) -> Comparison:
    """Compare two methods, seed by seed and example by example.

    Seeds and examples are both resampled, crossed: a replicate is the mean over the seeds drawn of the difference of
    the metric on the examples drawn, which are the same for all seeds and both methods. The p-value is twice the share
    of replicates on the far side of 0, counting the observed one (Davison & Hinkley 1997, 4.4). With one seed the
    interval knows of examples alone.

    Args:
        metric: its name.
        ours, theirs: scores of the same examples, one for each seed, in the same order.
        resamples: replicates.
        seed: of the draws.
    """
    measure = computed(metric)
    generator = np.random.default_rng(seed)
    seeds, examples = len(ours), len(ours[0].reference)

    def differences(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(
            [
                measure(a.prediction[rows], a.reference[rows]) - measure(b.prediction[rows], b.reference[rows])
                for a, b in zip(ours, theirs, strict=True)
            ]
        )

    observed = differences(np.arange(examples))
    replicates = np.asarray(
        [
            differences(generator.integers(examples, size=examples))[generator.integers(seeds, size=seeds)].mean()
            for _ in range(resamples)
        ]
    )
    low, high = interval(replicates[None])
    tail = min(int((~(replicates > 0)).sum()), int((~(replicates < 0)).sum()))  # what is no number is on both sides
    return Comparison(
        difference=float(observed.mean()),
        low=float(low[0]),
        high=float(high[0]),
        p_value=min(1.0, 2 * (1 + tail) / (1 + resamples)),
        wins=int((observed > 0).sum()),
        seeds=seeds,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number, step down (Holm 1979): the chance of one false claim among all is kept."""
    order = np.argsort(p_values, kind="stable")
    corrected = np.empty(len(p_values))
    highest = 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[at]))
        corrected[at] = highest
    return [float(value) for value in corrected]
