"""The finding: hand-made class figures, and the exact sentence they must give."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attnprobe.report import finding
from attnprobe.report.labels import METHODS, PARTITION, UNIONS, class_name, class_tick
from attnprobe.report.summary import notes
from attnprobe.report.tables import read_run
from tests.helpers.run_folders import write_run_folder


def table(
    figures: dict[str, tuple[float, float, float, float]], method: str = "ablation", unit: str = "loss"
) -> pd.DataFrame:
    """Rows of level class: name -> value, interval, control."""
    return pd.DataFrame(
        [
            {
                "method": method,
                "level": "class",
                "position_class": name,
                "site": None,
                "head": None,
                "value": value,
                "unit": unit,
                "ci_low": low,
                "ci_high": high,
                "control": control,
            }
            for name, (value, low, high, control) in figures.items()
        ]
    )


APART = {
    "diagonal": (-0.004, -0.006, -0.002, 0.05),
    "cls_key": (0.05, 0.043, 0.057, 0.04),
    "next": (0.33, 0.3, 0.36, 0.05),
    "cls_query": (2.0, 1.76, 2.23, 0.03),
}


def test_finding_of_ablation() -> None:
    assert finding(table(APART)) == (
        "The diagonal matters least: removing it from every head changes the loss by -0.0040 nats [-0.0060, -0.0020] "
        "(as many random cells of the same rows: +0.050); "
        "[CLS] as key is number 3 of 4 in importance: +0.0500 [+0.0430, +0.0570] (random: +0.040); "
        "and [CLS] as query matters most: +2.00 [+1.76, +2.23] (random: +0.030)."
    )


def test_overlapping_intervals_leave_the_order_open() -> None:
    overlapping = APART | {"sep_key": (0.001, -0.003, 0.005, 0.04)}
    sentence = finding(table(overlapping))
    assert sentence.endswith(
        " The intervals of the diagonal and [SEP] as key overlap: the order of these two is not settled."
    )
    assert "not settled" not in finding(table(APART))


def test_missing_intervals_say_nothing_about_the_order() -> None:
    bare = {name: (value, np.nan, np.nan, np.nan) for name, (value, *_) in APART.items()}
    sentence = finding(table(bare))
    assert sentence.startswith(
        "The diagonal matters least: removing it from every head changes the loss by -0.00400 nats;"
    )
    assert "not settled" not in sentence


def test_unions_and_absent_classes_are_not_ranked() -> None:
    sentence = finding(table(APART | {"special": (-5.0, -6, -4, 0), "cross_segment": (np.nan,) * 4}))
    assert sentence == finding(table(APART))


def test_a_row_class_is_compared_with_rows() -> None:
    sentence = finding(table({"sep_query": (0.006, 0.004, 0.008, 0.03), "next": (0.33, 0.3, 0.36, 0.05)}))
    assert "(as many rows of ordinary tokens: +0.030)" in sentence


@pytest.mark.parametrize(
    ("method", "unit", "start"),
    [
        (
            "integrated-gradients",
            "loss",
            "By integrated gradients (ablation was not run), the diagonal matters least: the",
        ),
        ("taylor", "loss", "By row-exact Taylor (ablation was not run), the diagonal matters least: removing it"),
        (
            "mass",
            "density",
            "By attention mass (ablation was not run), the diagonal gets the least attention for its size",
        ),
        ("mass", "share", "By attention mass (ablation was not run), the diagonal gets the least attention: it gets"),
        ("learned", "gate", "By learned gates (ablation was not run), the diagonal is needed least: its gates end at"),
        ("norm", "share", "By norm (ablation was not run), the diagonal matters least: its share by norm is"),
    ],
)
def test_fallback_names_the_method(method: str, unit: str, start: str) -> None:
    assert finding(table(APART, method, unit)).startswith(start)


def test_methods_are_preferred_in_their_order() -> None:
    everything = pd.concat([table(APART, method, "loss") for method in reversed(METHODS)])
    assert finding(everything) == finding(table(APART))
    without = everything[everything["method"] != "ablation"]
    assert finding(without).startswith("By integrated gradients")


def test_label_free_ablation_is_a_distance() -> None:
    sentence = finding(table({"diagonal": (0.004, 0.002, 0.006, 0.05), "next": (0.3, 0.2, 0.4, 0.1)}, unit="kl"))
    assert "removing it from every head moves the output by 0.0040 [0.0020, 0.0060]" in sentence
    assert "+" not in sentence


def test_unit_of_the_loss() -> None:
    assert "changes the loss by -0.0040 squared error [" in finding(table(APART), loss_unit="squared error")


def test_one_class_or_none() -> None:
    one = finding(table({"diagonal": APART["diagonal"]}))
    assert one.startswith(
        "Only the diagonal was measured: removing it from every head changes the loss by -0.0040 nats"
    )
    assert finding(table({"cls": APART["diagonal"]})) == (
        "No position class was measured in this run, so no finding can be given."
    )


def test_labels_are_distinct() -> None:
    names = [*PARTITION, *UNIONS]
    assert len({class_tick(name) for name in names}) == len(names)
    assert class_name("diagonal") == "the diagonal"
    assert class_tick("diagonal") == "diagonal"
    assert class_tick("made_up") == "made_up"


def test_no_head_is_called_harmless_under_fidelity(tmp_path: Path) -> None:
    """The divergence of any change is above 0, and so is the low end of its interval."""
    write_run_folder(tmp_path, sites=2, heads=3, length=5)
    assert any(re.match(r"Of 6 heads, \d can each be removed alone", note) for note in notes(read_run(tmp_path)))
    record = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    record["objective"] |= {"kind": "fidelity", "loss_unit": "1 - cosine"}
    (tmp_path / "run.json").write_text(json.dumps(record), encoding="utf-8")
    (sentence,) = [note for note in notes(read_run(tmp_path)) if note.startswith("Of 6 heads")]
    assert re.fullmatch(
        r"Of 6 heads removed alone, head \d of site \d is needed most \(\S+ \(1 - cosine\) \[.*\]\)\.", sentence
    )
