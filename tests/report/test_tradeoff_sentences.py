"""The finding of a sweep: hand-made rows, and the exact sentences they must give."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from attnprobe.report import headline
from attnprobe.report.tradeoff.points import points_of
from attnprobe.report.tradeoff.sentences import finding, in_points, notes
from attnprobe.report.tradeoff.study import Study, study_of
from tests.helpers.sweep_folders import row, write_sweep

NAN = math.nan
DAM = row("dam", "dam", value=0.958, sparsity=0.9, exported=True)
RANDOM = row("random", "random", value=0.743, sparsity=0.9)
MAGNITUDE = row("magnitude", "magnitude", value=0.906, sparsity=0.9)
STAR = row("star", "star", value=0.798, sparsity=0.84)

EXPORTED = (
    "The exported model removes 90.0 % of the attention cells with DAM (offset, frozen weights): accuracy "
    "0.958 [0.942, 0.974], 0.8 points [-0.2, 1.8] below dense (0.966), no measurable difference."
)
ALONE = "No control was run, so nothing shows whether learning the mask was worth it."


def study(*rows: dict[str, Any], max_drop: float = 0.01, reason: str = "") -> Study:
    return study_of("minilm", points_of(rows), max_drop=max_drop, reason=reason)


def test_exported_and_ahead_of_every_control() -> None:
    assert finding(study(row(), DAM, RANDOM, MAGNITUDE, STAR)) == (
        f"{EXPORTED} At equal or lower sparsity, the random mask has 0.743 (21.5 points [20.1, 22.9] behind), the "
        "magnitude mask has 0.906 (5.2 points [3.8, 6.6] behind) and the best fixed pattern, star at 84.0 %, has 0.798 "
        "(16.0 points [14.6, 17.4] behind). The learnt mask is ahead of all of these."
    )


def test_one_control() -> None:
    assert finding(study(row(), DAM, STAR)) == (
        f"{EXPORTED} At equal or lower sparsity, the best fixed pattern, star at 84.0 %, has 0.798 (16.0 points "
        "[14.6, 17.4] behind). The learnt mask is ahead of it. No random mask or magnitude mask was run at equal or "
        "lower sparsity."
    )


def test_no_random_control() -> None:
    said = finding(study(row(), DAM, MAGNITUDE, STAR))
    assert said.endswith("is ahead of all of these. No random mask was run at equal or lower sparsity.")


def test_a_single_point() -> None:
    assert finding(study(row(), DAM)) == f"{EXPORTED} {ALONE}"


def test_controls_at_higher_sparsity_alone() -> None:
    said = finding(study(row(), DAM, row("w", "window", value=0.5, sparsity=0.99)))
    assert (
        said == f"{EXPORTED} No control is as dense or denser, so nothing shows whether learning the mask was worth it."
    )


def test_none_within_the_limit() -> None:
    """The run's own sentence says why; the best learnt mask is the one that loses least on the rows held out."""
    rows = (row(), DAM | {"exported": False, "heldout_drop": 0.03}, RANDOM)
    reason = "no model is exported: on the rows held out none loses at most 1 points of accuracy"
    best = (
        "The best learnt mask, DAM (offset, frozen weights), removes 90.0 % of the cells: accuracy 0.958 "
        "[0.942, 0.974], 0.8 points [-0.2, 1.8] below dense (0.966), no measurable difference."
    )
    said = finding(study(*rows, reason=reason))
    assert said.startswith(
        f"No model is exported: on the rows held out none loses at most 1 points of accuracy. {best} "
    )
    assert finding(study(*rows)).startswith(
        "No model was exported: no masked model loses at most 1.0 points of accuracy on the rows held out, by its "
        f"confidence bound. {best} "
    )
    assert finding(study(*rows, max_drop=NAN)).startswith(f"No model was exported. {best} ")


def test_a_learnt_mask_that_loses_to_random() -> None:
    rows = (row(), DAM | {"exported": False}, row("r", "random", value=0.99, sparsity=0.9), MAGNITUDE)
    assert finding(study(*rows, max_drop=NAN)).endswith(
        "At equal or lower sparsity, the random mask has 0.990 (3.2 points [1.8, 4.6] ahead) and the magnitude mask "
        "has 0.906 (5.2 points [3.8, 6.6] behind). The learnt mask is ahead of the magnitude mask and is behind the "
        "random mask. No fixed pattern was run at equal or lower sparsity."
    )


def test_overlapping_intervals_are_said() -> None:
    near = row("m", "magnitude", value=0.95, sparsity=0.9)
    assert (
        "the magnitude mask has 0.950 (learnt minus control +0.8 points [-0.6, +2.2]) and the best fixed pattern, star "
        "at 84.0 %, has 0.798 (16.0 points [14.6, 17.4] behind). The learnt mask is ahead of the best fixed pattern "
        "and does not measurably differ from the magnitude mask."
    ) in finding(study(row(), DAM, near, STAR))


def test_no_interval_at_all() -> None:
    rows = [row("dam", "dam", value=0.9, sparsity=0.9, half=NAN, drop_half=NAN, exported=True)]
    rows += [row("random", "random", value=0.5, sparsity=0.9, half=NAN, drop_half=NAN)]
    assert finding(study(row(half=NAN, drop_half=NAN), *rows)) == (
        "The exported model removes 90.0 % of the attention cells with DAM (offset, frozen weights): accuracy 0.900, "
        "6.6 points below dense (0.966), without an interval. At equal or lower sparsity, the random mask has 0.500 "
        "(40.0 points behind). No interval was measured, so no difference is settled. No magnitude mask or fixed "
        "pattern was run at equal or lower sparsity."
    )


def test_several_seeds_are_said() -> None:
    seeds = [row(f"dam-{n}", "dam", value=0.95 + n / 100, sparsity=0.9, target=0.9, seed=n) for n in range(3)]
    seeds[2]["exported"] = True
    said = finding(study(row(), *seeds))
    assert (
        "accuracy 0.970 [0.954, 0.986], 0.4 points [-0.6, 1.4] above dense (0.966), no measurable difference." in said
    )
    assert (
        "Over its 3 seeds the mean is 0.960 [0.930, 0.990], 0.6 points [-2.1, 3.3] below dense, no measurable" in said
    )


def test_an_exported_control() -> None:
    said = finding(study(row(), DAM | {"exported": False}, MAGNITUDE | {"exported": True}))
    assert said.startswith(
        "The exported model removes 90.0 % of the attention cells with a mask that was not learnt, magnitude mask "
        "(offset): accuracy 0.906"
    )
    assert "The best learnt mask, DAM (offset, frozen weights), removes 90.0 %" in said


def test_no_learnt_mask() -> None:
    said = finding(study(row(), RANDOM, STAR, max_drop=NAN))
    assert said == (
        "No model was exported. No learnt mask was run. The best control, star, removes 84.0 % of the cells: accuracy "
        "0.798 [0.782, 0.814], 16.8 points [15.8, 17.8] below dense (0.966)."
    )


@pytest.mark.parametrize("rows", [(), (row(),), (row(), row("dam", "dam", value=NAN, sparsity=0.5))])
def test_nothing_to_say(rows: tuple[dict[str, Any], ...]) -> None:
    assert finding(study(*rows)) == "No masked model was measured, so no finding can be given."
    assert notes(study(*rows)) == []


def test_tuned_masks_are_held_against_tuned_controls() -> None:
    dam = DAM | {"train": "all"}
    tuned = row("tuned", "random", value=0.93, sparsity=0.9, train="weights")
    assert "the random mask has 0.930" in finding(study(row(), dam, RANDOM, tuned))
    assert "the random mask has 0.743" in finding(study(row(), DAM, RANDOM, tuned))
    assert "the random mask with frozen weights has 0.743" in finding(study(row(), dam, RANDOM))


def test_notes() -> None:
    dam = DAM | {"kept_diagonal": 0.021, "kept_cls_query": 0.7, "sparsity_before_threshold": 0.8964}
    tuned = row("dense-weights", "dense", value=0.97, train="weights", steps=600)
    assert notes(study(row(), tuned, dam, RANDOM, STAR, reason="dam is exported: the sparsest that is good")) == [
        "dam is exported: the sparsest that is good.",
        "Of 2 comparisons of a learnt mask with a control, the learnt mask is ahead in 2.",
        "Without a mask but tuned for as many steps, the model has accuracy 0.970 [0.954, 0.986].",
        "Before the final threshold, learnt masks were 0.36 points or less from their target sparsity over the "
        "training data (1 mask).",
        "The best learnt mask keeps most of [CLS] as query (70 % of its cells) and least of the diagonal (2 %).",
    ]


def test_points_are_written_to_a_tenth() -> None:
    assert in_points(0.0123, 0.002, 0.021) == "1.2 [0.2, 2.1]"
    assert in_points(0.0123, 0.0121, 0.0125) == "1.230 [1.210, 1.250]"
    assert in_points(0.0123, NAN, NAN, signed=True) == "+1.2"
    assert in_points(NAN, NAN, NAN) == "n/a"


def test_the_headline_is_that_of_the_folder(tmp_path: Path) -> None:
    write_sweep(tmp_path, [row(), DAM])
    assert headline(tmp_path) == f"{EXPORTED} {ALONE}"
