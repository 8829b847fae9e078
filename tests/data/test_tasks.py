"""What is known of the corpora."""

from __future__ import annotations

import pytest

from attnprobe.data.tasks import COMMON_LAYOUTS, TASKS, find_task
from attnprobe.errors import UsageError


def test_every_glue_task_is_there() -> None:
    assert list(TASKS) == [
        "cola", "sst2", "mrpc", "stsb", "rte", "qnli", "qqp", "mnli", "wnli", "token-classification", "text",
    ]  # fmt: skip


def test_metrics_are_known() -> None:
    from attnprobe.metrics import METRICS

    assert {metric for task in TASKS.values() for metric in task.metrics} <= METRICS.keys()


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("cola", ("matthews_correlation",)),
        ("sst2", ("accuracy",)),
        ("mrpc", ("accuracy", "f1")),
        ("stsb", ("pearson", "spearman")),
        ("qqp", ("accuracy", "f1")),
    ],
)
def test_official_metrics(name: str, metrics: tuple[str, ...]) -> None:
    assert TASKS[name].metrics == metrics


@pytest.mark.parametrize(
    ("typed", "name"),
    [("STS-B", "stsb"), ("SST-2", "sst2"), ("token_classification", "token-classification"), ("CoLA", "cola")],
)
def test_find_task_forgives_the_spelling(typed: str, name: str) -> None:
    assert find_task(typed) is TASKS[name]


def test_unknown_task_lists_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"--task must be one of cola, sst2, .*, text, not 'sst3': choose one"):
        find_task("sst3")


def test_usual_columns() -> None:
    assert TASKS["mnli"].text_columns == ("premise", "hypothesis")
    assert TASKS["mnli"].label_column == "label"
    assert TASKS["text"].label_column is None


def test_pairs_are_tried_before_single_texts() -> None:
    widths = [len(layout.text) for layout in COMMON_LAYOUTS]
    assert widths == sorted(widths, reverse=True)
    assert len(set(COMMON_LAYOUTS)) == len(COMMON_LAYOUTS)
