"""Comparisons over seeds and examples on made-up predictions, and Holm's correction worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnprobe.finetune.comparing import Comparison, compare_over_seeds, holm
from attnprobe.training.scores import Scores

EXAMPLES, SEEDS = 101, 3


def right(shares: tuple[float, ...], *, seed: int = 0) -> list[Scores]:
    """For each seed the predictions of a classifier that is right on about that share of the examples."""
    generator = np.random.default_rng(seed)
    reference = np.random.default_rng(11).integers(0, 2, size=EXAMPLES)
    return [
        _scores(np.where(generator.random(EXAMPLES) < share, reference, 1 - reference), reference) for share in shares
    ]


def _scores(prediction: NDArray[Any], reference: NDArray[Any]) -> Scores:
    return Scores(
        prediction=prediction[:, None].astype(np.float32),
        reference=reference.astype(np.float32),
        loss=np.zeros(len(reference), dtype=np.float32),
    )


def compare(ours: list[Scores], theirs: list[Scores], *, metric: str = "accuracy", seed: int = 0) -> Comparison:
    return compare_over_seeds(metric, ours, theirs, resamples=199, seed=seed)


def accuracy(of: list[Scores]) -> list[float]:
    return [float((one.prediction[:, 0] == one.reference).mean()) for one in of]


def test_what_is_identical_does_not_differ() -> None:
    same = right((0.7, 0.8, 0.75))
    assert compare(same, same) == Comparison(difference=0.0, low=0.0, high=0.0, p_value=1.0, wins=0, seeds=3)


def test_a_clear_win() -> None:
    better, worse = right((0.95, 0.97, 0.93)), right((0.6, 0.55, 0.65), seed=1)
    found = compare(better, worse)
    assert found.difference == pytest.approx(np.mean(accuracy(better)) - np.mean(accuracy(worse)))
    assert 0 < found.low < found.difference < found.high
    assert found.p_value == 2 / 200  # none of 199 replicates is on the other side
    assert (found.wins, found.seeds) == (3, 3)


def test_the_other_way_round_has_the_other_sign() -> None:
    """The same examples and seeds are drawn for both."""
    one, other = right((0.9, 0.7, 0.8)), right((0.75, 0.8, 0.7), seed=1)
    there, back = compare(one, other), compare(other, one)
    assert back.difference == pytest.approx(-there.difference)
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low))
    assert back.p_value == there.p_value
    assert there.wins + back.wins == SEEDS


def test_what_seeds_disagree_on_is_not_settled() -> None:
    """Two seeds that win and lose by as much: examples alone would settle each of them."""
    up, down = (0.95, 0.6), (0.6, 0.95)
    found = compare(right(up), right(down, seed=1))
    assert found.low < 0 < found.high
    assert found.low < found.difference < found.high
    assert found.p_value > 0.2
    alone = compare(right(up[:1]), right(down[:1], seed=1))
    assert (alone.p_value, alone.wins, alone.seeds) == (2 / 200, 1, 1)


def test_chance_alone_is_small_as_often_as_it_should_be() -> None:
    """Forty pairs of classifiers that are equally good."""
    found = [compare(right((0.7, 0.7, 0.7), seed=2 * n), right((0.7, 0.7, 0.7), seed=2 * n + 1)) for n in range(40)]
    assert sum(one.p_value < 0.05 for one in found) <= 6
    assert sum(one.low <= 0 <= one.high for one in found) >= 34
    assert {one.p_value < 0.5 for one in found} == {True, False}


def test_the_seed_decides() -> None:
    one, other = right((0.8, 0.8, 0.8)), right((0.75, 0.7, 0.8), seed=1)
    assert compare(one, other) == compare(one, other)
    assert compare(one, other) != compare(one, other, seed=1)


def test_what_cannot_be_measured_is_not_settled() -> None:
    """A model that says the same of everything has no correlation with anything."""
    reference = np.arange(EXAMPLES) / 7
    constant, exact = _scores(np.ones(EXAMPLES), reference), _scores(reference, reference)
    found = compare([exact], [constant], metric="pearson")
    assert np.isnan(found.difference)
    assert not found.p_value < 0.05
    assert found.wins == 0


@pytest.mark.parametrize(
    ("p_values", "expected"),
    [
        ([], []),
        ([0.03], [0.03]),
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # 4 x .005, 3 x .01, 2 x .03, then 1 x .04 not below
        ([0.5, 0.4, 0.9], [1.0, 1.0, 1.0]),
        ([0.02, 0.02], [0.04, 0.04]),
    ],
)
def test_holm(p_values: list[float], expected: list[float]) -> None:
    assert holm(p_values) == pytest.approx(expected)
