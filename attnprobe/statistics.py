"""Intervals: paired bootstrap over examples, one set of resamples for all figures of a run.

A figure is a mean over the examples that have it, or a ratio of two such means. Its per-example values are read in
blocks, so that memory does not grow with the number of examples; scipy draws the resamples and runs the bootstrap.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Blocks = Callable[[], Iterable[tuple[NDArray[np.int64], NDArray[np.floating]]]]
"""Gives (example numbers (rows,), values (rows, figures)) block by block, anew at each call. NaN = n/a."""

CONFIDENCE = 0.95
_DRAWS = 250_000
"""Draws of examples held at once: resamples are drawn in batches, fewer at a time the more examples there are."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Means over examples with their bootstrap distribution.

    Attributes:
        value: (figures,), NaN where no example has the figure.
        replicates: (figures, resamples): the same mean in each resample of the examples. Estimates of one run share
            their resamples, so that replicate r of one figure is paired with replicate r of every other.
        examples: (figures,) int64: examples that have the figure.
    """

    value: Floats
    replicates: Floats
    examples: NDArray[np.int64]

    def interval(self) -> tuple[Floats, Floats]:
        """Percentile interval of 95 % of every figure: (low, high), each (figures,)."""
        return interval(self.replicates)

    def part(self, figures: slice) -> Estimate:
        """Some of the figures."""
        return Estimate(value=self.value[figures], replicates=self.replicates[figures], examples=self.examples[figures])

    def over(self, other: Estimate) -> Estimate:
        """The ratio of two means, paired resample by resample; NaN where the divisor is 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            value, replicates = self.value / other.value, self.replicates / other.replicates
        value[~np.isfinite(value)] = np.nan
        replicates[~np.isfinite(replicates)] = np.nan
        return Estimate(value=value, replicates=replicates, examples=self.examples)


def interval(replicates: Floats) -> tuple[Floats, Floats]:
    """Percentile interval along the last axis, of the replicates that are numbers; NaN where none is."""
    tail = 100 * (1 - CONFIDENCE) / 2
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        low, high = np.nanpercentile(replicates, [tail, 100 - tail], axis=-1)
    return low, high


def bootstrap_means(blocks: Blocks, examples: int, *, resamples: int, seed: int) -> Estimate:
    """Means of every figure over its examples, and their bootstrap replicates.

    Args:
        blocks: the per-example values.
        examples: number of examples, N; blocks hold each of 0..N-1 once.
        resamples: bootstrap resamples.
        seed: the same seed and N give the same resamples: estimates made apart are still paired.
    """
    counts = sum(np.isfinite(values).sum(0) for _, values in blocks())

    def means(numbers: NDArray[np.int64], axis: int = -1) -> Floats:
        del axis
        drawn = np.atleast_2d(numbers)
        weights = np.empty((len(drawn), examples), dtype=np.float32)  # how often each example was drawn
        for row, draw in zip(weights, drawn, strict=True):
            row[:] = np.bincount(draw, minlength=examples)
        total: Floats | float = 0.0
        present: Floats | float = 0.0
        for rows, values in blocks():
            has = np.isfinite(values)
            share = weights[:, rows].astype(np.float64)
            total = total + share @ np.where(has, values, 0.0)
            present = present + share @ has.astype(np.float64)
        with np.errstate(invalid="ignore"):
            result: Floats = (np.asarray(total) / np.asarray(present)).T
        return result if numbers.ndim > 1 else result[:, 0]

    everyone = np.arange(examples)
    value = means(everyone)
    if examples < 2:  # nothing to resample: the interval is unknown
        return Estimate(value=value, replicates=np.full((len(value), 1), np.nan), examples=np.asarray(counts))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        warnings.filterwarnings("ignore", "invalid value", RuntimeWarning)
        result = stats.bootstrap(
            (everyone,),
            means,
            vectorized=True,
            method="percentile",
            n_resamples=resamples,
            batch=max(1, _DRAWS // examples),
            rng=seed,
        )
    return Estimate(value=value, replicates=result.bootstrap_distribution, examples=np.asarray(counts))


def metric_interval(
    metric: Callable[[NDArray[np.floating], NDArray[np.floating]], float],
    predictions: NDArray[np.floating],
    labels: NDArray[np.floating],
    *,
    resamples: int,
    seed: int,
) -> tuple[float, float]:
    """Paired percentile bootstrap of a metric that is no mean (F1, correlations): (low, high)."""
    if len(labels) < 2:
        return float("nan"), float("nan")

    def of_rows(numbers: NDArray[np.int64]) -> float:
        return metric(predictions[numbers], labels[numbers])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        result = stats.bootstrap(
            (np.arange(len(labels)),), of_rows, vectorized=False, method="percentile", n_resamples=resamples, rng=seed
        )
    low, high = interval(np.atleast_2d(result.bootstrap_distribution))
    return float(low[0]), float(high[0])


def rank_correlation(first: Floats, second: Floats) -> Floats:
    """Spearman's rank correlation of two sets of items, column by column: (items, columns) twice -> (columns,).

    A column leaves out the items that are NaN on either side; NaN with fewer than 3 left, or where one side is
    constant.
    """
    known = np.isfinite(first) & np.isfinite(second)
    a, b = (_centred_ranks(side, known) for side in (first, second))
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Floats = (a * b).sum(0) / np.sqrt((a**2).sum(0) * (b**2).sum(0))
    result[known.sum(0) < 3] = np.nan
    return result


def _centred_ranks(values: Floats, known: NDArray[np.bool_]) -> Floats:
    """Ranks within each column among its known items, less their mean; 0 for the others."""
    ranks = np.where(known, stats.rankdata(np.where(known, values, np.inf), axis=0), 0.0)  # unknown: ranked last
    centred: Floats = np.where(known, ranks - ranks.sum(0) / known.sum(0).clip(1), 0.0)
    return centred
