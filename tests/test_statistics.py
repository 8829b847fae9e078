"""Intervals and rank correlations against scipy's own."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from attnprobe.statistics import bootstrap_means, interval, metric_interval, rank_correlation

N, FIGURES, RESAMPLES, SEED = 29, 5, 211, 7


def table(seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).gamma(2.0, size=(N, FIGURES))


def in_blocks(values: NDArray[np.float64], sizes: Iterable[int] = (11, 13, 5)) -> object:
    """The rows shuffled and in blocks, as batches come."""
    order = np.random.default_rng(3).permutation(len(values))
    parts = np.split(order, np.cumsum(list(sizes))[:-1])
    return lambda: ((rows, values[rows]) for rows in parts)


def test_means_and_intervals_are_scipys() -> None:
    values = table()
    found = bootstrap_means(in_blocks(values), N, resamples=RESAMPLES, seed=SEED)  # type: ignore[arg-type]
    low, high = found.interval()
    assert found.examples.tolist() == [N] * FIGURES
    assert found.replicates.shape == (FIGURES, RESAMPLES)
    for figure in range(FIGURES):
        expected = stats.bootstrap(
            (values[:, figure],), np.mean, n_resamples=RESAMPLES, batch=50, method="percentile", rng=SEED
        )
        assert found.value[figure] == pytest.approx(values[:, figure].mean())
        np.testing.assert_allclose(found.replicates[figure], expected.bootstrap_distribution)
        interval_of_scipy = (expected.confidence_interval.low, expected.confidence_interval.high)
        assert (low[figure], high[figure]) == pytest.approx(interval_of_scipy)


def test_figures_that_some_examples_lack_are_means_over_the_others() -> None:
    values = table()
    values[3:9, 1] = np.nan
    values[:, 2] = np.nan
    values[1:, 3] = np.nan
    found = bootstrap_means(in_blocks(values), N, resamples=RESAMPLES, seed=SEED)  # type: ignore[arg-type]
    assert found.examples.tolist() == [N, N - 6, 0, 1, N]
    assert found.value[1] == pytest.approx(np.nanmean(values[:, 1]))
    expected = stats.bootstrap(
        (np.arange(N),),
        lambda rows, axis=-1: np.nanmean(values[rows, 1], axis=axis),
        n_resamples=RESAMPLES,
        batch=50,
        method="percentile",
        vectorized=True,
        rng=SEED,
    )
    np.testing.assert_allclose(found.replicates[1], expected.bootstrap_distribution)
    low, high = found.interval()
    assert np.isnan([found.value[2], low[2], high[2]]).all()
    assert [found.value[3], low[3], high[3]] == pytest.approx([values[0, 3]] * 3)


def test_all_estimates_of_a_run_share_their_resamples() -> None:
    values = table()
    together = bootstrap_means(in_blocks(values), N, resamples=RESAMPLES, seed=SEED)  # type: ignore[arg-type]
    one_block = in_blocks(values[:, 2:3], [N])
    apart = bootstrap_means(one_block, N, resamples=RESAMPLES, seed=SEED)  # type: ignore[arg-type]
    other = bootstrap_means(one_block, N, resamples=RESAMPLES, seed=SEED + 1)  # type: ignore[arg-type]
    np.testing.assert_allclose(apart.replicates[0], together.replicates[2])
    assert not np.allclose(other.replicates, apart.replicates)
    part = together.part(slice(1, 3))
    assert part.value.tolist() == together.value[1:3].tolist()
    np.testing.assert_array_equal(part.replicates, together.replicates[1:3])


def test_ratios_are_paired() -> None:
    values = table()
    values[:, 1] = 3 * values[:, 0]
    values[:, 3] = 0.0
    found = bootstrap_means(in_blocks(values), N, resamples=RESAMPLES, seed=SEED)  # type: ignore[arg-type]
    ratio = found.part(slice(1, 2)).over(found.part(slice(0, 1)))
    low, high = ratio.interval()
    assert (ratio.value[0], low[0], high[0]) == pytest.approx((3.0, 3.0, 3.0))
    assert np.isnan(found.part(slice(0, 1)).over(found.part(slice(3, 4))).value).all()


def test_one_example_has_a_mean_and_no_interval() -> None:
    found = bootstrap_means(in_blocks(table()[:1], [1]), 1, resamples=RESAMPLES, seed=SEED)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.value, table()[0])
    assert np.isnan(found.interval()).all()


def test_equal_values_have_an_interval_of_no_width() -> None:
    found = bootstrap_means(in_blocks(np.full((N, 1), 2.5)), N, resamples=RESAMPLES, seed=SEED)  # type: ignore[arg-type]
    assert [float(side[0]) for side in found.interval()] == [2.5, 2.5]


def test_intervals_leave_out_what_is_no_number() -> None:
    low, high = interval(np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan]]))
    assert (low[0], high[0]) == pytest.approx((1.05, 2.95))
    assert np.isnan([low[1], high[1]]).all()


def test_intervals_of_metrics_are_scipys() -> None:
    random = np.random.default_rng(1)
    labels = random.integers(0, 2, N).astype(np.float64)
    predictions = np.where(random.random(N) < 0.8, labels, 1 - labels)

    def accuracy(predicted: NDArray[np.floating], true: NDArray[np.floating]) -> float:
        return float((predicted == true).mean())

    low, high = metric_interval(accuracy, predictions, labels, resamples=RESAMPLES, seed=SEED)
    expected = stats.bootstrap(
        ((predictions == labels).astype(float),), np.mean, n_resamples=RESAMPLES, method="percentile", rng=SEED
    ).confidence_interval
    assert (low, high) == pytest.approx((expected.low, expected.high))
    assert np.isnan(metric_interval(accuracy, predictions[:1], labels[:1], resamples=RESAMPLES, seed=SEED)).all()


@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_is_scipys_column_by_column(ties: bool) -> None:
    random = np.random.default_rng(2)
    first, second = random.normal(size=(2, 13, 7))
    second += first
    if ties:
        first, second = first.round(), second.round()
    expected = [stats.spearmanr(first[:, column], second[:, column]).statistic for column in range(7)]
    np.testing.assert_allclose(rank_correlation(first, second), expected)


def test_rank_correlation_leaves_out_what_a_column_lacks() -> None:
    random = np.random.default_rng(4)
    first, second = random.normal(size=(2, 11, 3))
    first[2, 0] = second[5, 0] = np.nan  # lacking in the first column alone
    found = rank_correlation(first, second)
    keep = [item for item in range(11) if item not in (2, 5)]
    assert found[0] == pytest.approx(stats.spearmanr(first[keep, 0], second[keep, 0]).statistic)
    assert found[1] == pytest.approx(stats.spearmanr(first[:, 1], second[:, 1]).statistic)


def test_rank_correlation_needs_three_items_that_differ() -> None:
    first = np.array([[1.0, 1.0], [2.0, 1.0], [np.nan, 1.0], [3.0, 1.0]])
    second = np.array([[1.0, 2.0], [np.nan, 1.0], [1.0, 3.0], [3.0, 4.0]])
    assert np.isnan(rank_correlation(first, second)).all()
