"""The report of `finetune`, from tables alone: its first line in every case, its notes, and what a page shows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from attnprobe.dropout.methods import METHODS
from attnprobe.errors import RunFolderError
from attnprobe.finetune.tables import REFERENCES as COMPARED_WITH
from attnprobe.report import headline, write_report
from attnprobe.report.finetune import finetune_page
from attnprobe.report.finetune_study import REFERENCES, read_finetune
from tests.helpers.browsing import visiting
from tests.helpers.finetunes import compared, comparison, rates, row, rows, training, write_finetune
from tests.helpers.outline import Outline, figures_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

COST = "The dearest, “attendout”, takes 3.4 times as long a step as “none”."
BOTH = ("steps", "time")


def notes(run: Path) -> list[str]:
    """The notes of a run's page."""
    return list(finetune_page(read_finetune(run)).notes)


def test_no_method_beats_the_others(tmp_path: Path) -> None:
    run = write_finetune(tmp_path / "run", comparisons=compared())
    assert headline(run) == (
        "With equal steps, “attendout” has the best mean accuracy, 0.962 [0.948, 0.976] over 3 seeds; no method beats "
        f"“none” or “weights” with a corrected p below 0.05. {COST}"
    )


def test_which_methods_beat_which(tmp_path: Path) -> None:
    both = write_finetune(tmp_path / "both", comparisons=compared(drophead=0.03, attendout=0.001))
    assert "; “drophead” and “attendout” beat “none” and “weights” with a corrected p below 0.05. " in headline(both)
    one = [
        comparison("attendout", "none", 0.012, 0.02),
        comparison("attendout", "weights", 0.009, 0.05),
        comparison("weights", "none", 0.003, 0.6),
    ]
    first = write_finetune(tmp_path / "one", comparisons=one)
    assert "; “attendout” beats “none”, and no method beats “weights” with a corrected p below 0.05. " in headline(
        first
    )


def test_a_difference_to_the_worse_beats_nothing(tmp_path: Path) -> None:
    worse = [comparison("scheduled", "none", -0.02, 0.001), comparison("drophead", "none", math.nan, math.nan)]
    run = write_finetune(tmp_path / "run", comparisons=worse)
    assert "; no method beats “none” with a corrected p below 0.05." in headline(run)
    assert "With equal steps, “scheduled” is worse than “none”, beyond chance." in notes(run)
    assert not any("drophead" in note for note in notes(run))


def test_many_methods_are_counted(tmp_path: Path) -> None:
    every = [comparison(name, "none", 0.01, 0.001) for name in ("weights", "drophead", "scheduled", "attendout")]
    assert "; 4 methods beat “none” with" in headline(write_finetune(tmp_path / "run", comparisons=every))


def test_one_seed_and_no_comparisons(tmp_path: Path) -> None:
    run = write_finetune(tmp_path / "run", rows(seeds=1))
    assert headline(run) == (
        "With equal steps, “attendout” has the best accuracy, 0.962 [0.952, 0.972]; no method was compared with "
        f"another, so no difference is settled. {COST}"
    )
    assert "With one seed a method, intervals and p-values know of the examples alone." in notes(run)
    assert "“attendout” learnt from 4,000 rows, the others from 4,500." in notes(run)


def test_without_none_costs_are_absolute(tmp_path: Path) -> None:
    run = write_finetune(
        tmp_path / "run", rows(("weights", "attendout")), comparisons=[comparison("attendout", "weights", 0.009, 0.2)]
    )
    assert headline(run).endswith("; no method beats “weights” with a corrected p below 0.05.")
    assert "With equal steps, “none” was not trained." in notes(run)
    head, *body = Outline(write_report(run).read_text()).tables("chart-metric")[0]
    assert head == [
        *("Method", "Accuracy [95 %]", "Against weights [95 %]", "p", "Steps", "Time, ms", "Memory, MiB"),
        "Runs",
    ]
    assert body[1] == [
        *("attendout (reinforce, window)", "0.962 [0.948, 0.976]", "+0.9 [−0.4, +2.2]", "0.20", "250"),
        *("850", "2,200", "3"),
    ]


def test_little_is_enough_for_a_page(tmp_path: Path) -> None:
    alone = write_finetune(tmp_path / "alone", rows(("weights",), seeds=1))
    assert headline(alone) == (
        "With “weights” as the only method, accuracy is 0.953 [0.943, 0.963], so nothing can be compared."
    )
    assert finetune_page(read_finetune(alone)).alerts == [
        "This run left no comparisons.csv, rates.csv, training.csv, so the sections made from them are missing."
    ]
    assert [section.key for section in finetune_page(read_finetune(alone)).sections] == ["metric", "run"]
    bare = [
        {name: of[name] for name in ("training", "dropout", "match", "seed", "metric_name", "value")} for of in rows()
    ]
    bare[0]["dropout"] = "of another release"
    write_report(write_finetune(tmp_path / "bare", bare))
    (alone / "finetune.csv").unlink()
    with pytest.raises(RunFolderError, match=r"a run folder holds finetune\.csv"):
        headline(alone)


def test_what_was_not_measured(tmp_path: Path) -> None:
    unknown: dict[str, Any] = {
        "value": math.nan,
        "drop_rate": math.nan,
        "seconds_per_step": math.nan,
        "peak_memory": math.nan,
    }
    some = write_finetune(tmp_path / "some", [*rows(("none", "attendout")), row("drophead", **unknown)], whole=True)
    assert "Not measured: drophead." in notes(some)
    shown = Outline(write_report(some).read_text())
    assert "nan" not in shown.text.lower()
    assert shown.tables("chart-metric")[0][3][:2] == ["drophead", "n/a"]
    nothing = write_finetune(tmp_path / "nothing", [row("none", **unknown), row("weights", **unknown)])
    assert headline(nothing) == "No training was measured, so no finding can be given."
    write_report(nothing)


def test_a_whole_page(tmp_path: Path) -> None:
    trainings = rows(matches=BOTH)
    trainings[-1]["exported"] = True
    run = write_finetune(tmp_path / "run", trainings, whole=True, comparisons=compared(matches=BOTH, attendout=0.0004))
    page = finetune_page(read_finetune(run))
    assert page.title == "Dropout of attention while fine-tuning minilm-trec"
    assert [section.key for section in page.sections] == ["metric", "rates", "learning", "run"]
    assert page.alerts == []
    assert (
        "With equal time, “attendout” is best, 0.962 [0.948, 0.976]; “attendout” beats “none” and “weights” with a "
        "corrected p below 0.05."
    ) in page.notes
    assert (
        "“attendout (reinforce, window), equal steps”: the net with masks beat the one without in 50 % of 36 contests "
        "logged."
    ) in page.notes
    document = write_report(run).read_text()
    shown = Outline(document)
    assert shown.options("chart-metric") == ["Equal steps", "Equal time"]
    steps, time = shown.tables("chart-metric")
    assert steps[5] == [
        *("attendout (reinforce, window)", "0.962 [0.948, 0.976]", "+1.2 [+0.6, +1.8]", "<0.001", "+0.9 [+0.5, +1.4]"),
        *("<0.001", "250", "3.4", "2.2", "3"),
    ]
    assert steps[0][-3:-1] == ["Time, ×\N{NO-BREAK SPACE}none", "Memory, ×\N{NO-BREAK SPACE}none"]
    assert steps[1][2:4] == ["", ""]
    assert time[5][0] == "attendout (reinforce, window) ★ exported"
    assert time[1][6] == "850"
    for method in ("none", "weights", "drophead", "scheduled", "attendout"):
        assert METHODS[method].summary in shown.text
    assert "whole heads (Zhou et al. 2020); rate 0.2; 20.0 % dropped on average" in shown.text
    without, seeds, means, costs = figures_of(document)["metric"][0]["data"]
    assert without["x"] == [0.95, 0.95]
    assert seeds["x"][:3] == [0.95, 0.954, 0.946]
    assert means["x"] == [0.95, 0.953, 0.957, 0.954, 0.962]
    assert costs["x"] == [1.0, 1.05, 1.1, 1.1, 3.4]


def test_rates_are_means_over_the_seeds_of_those_that_drop(tmp_path: Path) -> None:
    trainings = rows(("none", "weights", "attendout"))
    run = write_finetune(tmp_path / "run", trainings, rates=rates(trainings), training=training(trainings))
    document = write_report(run).read_text()
    shown = Outline(document)
    assert shown.options("chart-rates") == ["attendout (reinforce, window)", "weights"]
    deepest = figures_of(document)["rates"][0]["data"][2]
    assert deepest["x"][::5] == [0, 50, 100]
    assert deepest["y"][::5] == pytest.approx([2, 17, 32])
    assert shown.tables("chart-rates")[0] == [
        ["Site", "At first", "At last", "Mean"],
        ["1", "2.0 %", "12.0 %", "7.0 %"],
        ["2", "2.0 %", "22.0 %", "12.0 %"],
        ["3", "2.0 %", "32.0 %", "17.0 %"],
    ]


def test_what_was_logged_is_drawn_where_it_was(tmp_path: Path) -> None:
    run = write_finetune(tmp_path / "run", whole=True)
    document = write_report(run).read_text()
    of_view = dict(zip(Outline(document).options("chart-training"), figures_of(document)["training"], strict=True))
    assert [trace["name"] for trace in of_view["none"]["data"]] == ["loss"] * 3 + ["gradient norm"] * 3
    rewards = [trace for trace in of_view["attendout (reinforce, window)"]["data"] if trace["name"] == "reward"]
    assert [trace["x"] for trace in rewards] == [list(range(20, 251, 20))] * 3


def test_the_references_are_those_of_the_command() -> None:
    assert REFERENCES == COMPARED_WITH
    assert set(REFERENCES) < set(METHODS)


def test_an_interval_does_not_exceed_the_metric(tmp_path: Path) -> None:
    run = write_finetune(tmp_path / "run", [row("none", value=0.995), row("weights", value=0.9)])
    assert "accuracy, 0.9950 [0.9850, 1.0000];" in headline(run)


def test_the_page_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    run = write_finetune(tmp_path / "run", rows(matches=BOTH), sites=7, whole=True)
    with visiting(browser, write_report(run), width=390) as page:
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
        for chart in ("metric", "rates", "training"):
            assert page.locator(f"#chart-{chart} .main-svg").count() >= 1, chart
        drawn = page.locator("#chart-rates .scatterlayer .trace")
        assert drawn.count() == 7
        page.locator("#chart-rates [data-series]:visible").first.click()
        assert drawn.count() == 6
        page.locator("#chart-metric select").select_option(label="Equal time")
        assert "at equal time" in (page.locator("#chart-metric .plot").get_attribute("aria-label") or "")


def test_a_table_of_no_comparisons(tmp_path: Path) -> None:
    run = write_finetune(tmp_path / "run", whole=True)
    pd.DataFrame(columns=["dropout", "variant", "match", "against", "difference", "p_corrected"]).to_csv(
        run / "comparisons.csv", index=False
    )
    assert "no method was compared with another" in headline(run)
