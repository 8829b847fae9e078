"""Means over seeds, their intervals, comparisons and the Pareto front: answers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from attnprobe.report.tradeoff.means import means_of, over_seeds
from attnprobe.report.tradeoff.points import points_of
from attnprobe.report.tradeoff.study import Study, comparisons, front, study_of
from tests.helpers.sweep_folders import row

NAN = math.nan


def study(*rows: dict[str, Any], max_drop: float = 0.01) -> Study:
    return study_of("minilm", points_of(rows), max_drop=max_drop)


def test_one_seed_keeps_its_interval() -> None:
    assert list(over_seeds([0.9], [0.8], [0.95])) == pytest.approx([0.9, 0.8, 0.95])


def test_seeds_and_examples_add_in_quadrature() -> None:
    """Three seeds 1, 2, 3: t(0.975, 2) = 4.302653, sd 1, so Student's half width is 4.302653 / sqrt(3) = 2.484138."""
    value, low, high = over_seeds([1.0, 2.0, 3.0], [0.0, 1.0, 2.0], [3.0, 4.0, 5.0])
    assert value == 2
    assert low == pytest.approx(2 - math.hypot(1, 2.484138), rel=1e-6)
    assert high == pytest.approx(2 + math.hypot(2, 2.484138), rel=1e-6)


def test_equal_seeds_leave_the_bootstrap() -> None:
    assert list(over_seeds([0.5, 0.5], [0.3, 0.4], [0.6, 0.6])) == pytest.approx([0.5, 0.35, 0.6])


def test_no_bootstrap_no_interval() -> None:
    value, low, high = over_seeds([0.4, 0.6], [NAN, NAN], [NAN, NAN])
    assert value == pytest.approx(0.5)
    assert math.isnan(low)
    assert math.isnan(high)


def test_no_interval_reaches_beyond_the_best_metric() -> None:
    (mean,) = means_of(points_of([row("a", "dam", value=0.99, half=0.02, sparsity=0.5)]))
    assert [mean.low, mean.high] == pytest.approx([0.97, 1.0])
    assert mean.drop_low == pytest.approx(-0.024 - 0.01)


def test_points_differ_in_seed_and_draw_alone() -> None:
    """Seeds and draws join a mean; target, training, diagonal and granularity each make another."""
    rows = [row("a", "dam", sparsity=0.9, seed=0), row("b", "dam", sparsity=0.9, seed=1)]
    rows += [row("c", "random", sparsity=0.9, draw=0), row("d", "random", sparsity=0.9, draw=1)]
    rows += [row("e", "dam", sparsity=0.8), row("f", "dam", sparsity=0.9, train="all")]
    rows += [row("g", "dam", sparsity=0.9, diagonal="drop"), row("h", "dam", sparsity=0.9, granularity="cell")]
    means = means_of(points_of([*rows, row()]))
    grouped = [[point.point for point in mean.points] for mean in means]
    assert sorted(grouped) == [["a", "b"], ["c", "d"], ["dense"], ["e"], ["f"], ["g"], ["h"]]
    assert grouped[0] == ["dense"]
    assert [mean.repeats for mean in means if len(mean.points) == 2] == ["2 seeds", "2 draws"]
    assert [mean.line.name for mean in means] == [
        "dense",
        "DAM, cell, frozen weights",
        "DAM, offset, diagonal removed, frozen weights",
        "DAM, offset, weights too",
        "DAM, offset, frozen weights",
        "DAM, offset, frozen weights",
        "random mask, offset",
    ]


def test_what_a_point_does_not_have_is_not_counted() -> None:
    rows = [
        row("a", "dam", sparsity=0.9, kept_cls_key=0.25),
        row("b", "dam", sparsity=0.9, kept_cls_key=NAN, steps=NAN),
    ]
    (mean,) = means_of(points_of(rows))
    assert mean.kept == {"cls_key": 0.25}
    assert mean.of("steps") == 600


def test_a_control_is_taken_at_the_highest_sparsity_that_is_not_above() -> None:
    """Within half a point counts as equal; 0.506 is above 0.5, 0.504 is not."""
    of = study(
        row("dam", "dam", value=0.9, sparsity=0.5),
        row("s1", "star", value=0.8, sparsity=0.3),
        row("s2", "star", value=0.7, sparsity=0.504),
        row("s3", "star", value=0.6, sparsity=0.506),
        row("w", "window", value=0.95, sparsity=0.6),
    )
    (found,) = comparisons(of, of.learnt[0])
    assert found.control.points[0].point == "s2"
    assert found.difference == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("control", "verdict"),
    [(0.880, "ahead"), (0.890, "no difference"), (0.910, "no difference"), (0.920, "behind")],
)
def test_verdicts(control: float, verdict: str) -> None:
    """Both drops have a half width of 0.01, so a difference is settled from 0.0141 on."""
    of = study(row("dam", "dam", value=0.9, sparsity=0.5), row("w", "window", value=control, sparsity=0.5))
    (found,) = comparisons(of, of.learnt[0])
    assert found.verdict == verdict
    assert found.high - found.low == pytest.approx(2 * math.hypot(0.01, 0.01))


def test_differences_without_drops_are_made_of_the_values() -> None:
    more = {"drop": NAN, "drop_ci_low": NAN, "drop_ci_high": NAN}
    of = study(
        row("dam", "dam", value=0.9, sparsity=0.5, half=0.03, **more),
        row("w", "window", value=0.8, sparsity=0.5, half=0.04, **more),
    )
    (found,) = comparisons(of, of.learnt[0])
    assert [found.difference, found.low] == pytest.approx([0.1, 0.05])
    assert found.verdict == "ahead"


def test_no_interval_no_verdict() -> None:
    of = study(
        row("dam", "dam", value=0.9, sparsity=0.5, half=NAN, drop_half=NAN),
        row("w", "window", value=0.1, sparsity=0.5, half=NAN, drop_half=NAN),
    )
    assert [found.verdict for found in comparisons(of, of.learnt[0])] == ["no interval"]


def test_the_front_holds_what_nothing_exceeds() -> None:
    of = study(
        row(),
        row("a", "dam", value=0.96, sparsity=0.5),
        row("b", "dam", value=0.95, sparsity=0.9),
        row("c", "star", value=0.94, sparsity=0.8),
        row("d", "window", value=0.97, sparsity=0.4),
        row("e", "random", value=0.5, sparsity=0.95),
    )
    assert [mean.points[0].point for mean in front(of, "cell_sparsity")] == ["d", "a", "b", "e"]


def test_the_best_learnt_mask_is_chosen_on_the_rows_held_out() -> None:
    dense, good = row(), row("good", "dam", value=0.96, sparsity=0.8, heldout_drop=0.004)
    lucky = row("lucky", "dam", value=0.97, sparsity=0.9, heldout_drop=0.05)
    star = row("star", "star", value=0.97, sparsity=0.99, heldout_drop=0.0)
    best = study(dense, good, lucky, star).best
    assert best is not None
    assert best.points[0].point == "good"
    nearest = study(dense, good | {"heldout_drop": 0.07}, lucky, star).best
    assert nearest is not None
    assert nearest.points[0].point == "lucky"
    exported = study(dense, good, lucky | {"exported": True}, star).best
    assert exported is not None
    assert exported.points[0].point == "lucky"
    assert study(dense, star).best is None
