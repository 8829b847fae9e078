"""What is known of a corpus by its name: columns, label names, official metrics.

The label names stand in the order of the corpus's own integers (GLUE: Wang et al. 2019, arXiv:1804.07461, Table 1;
metrics too. Where two metrics are official, accuracy, or Pearson's correlation, is the primary one, as printed there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnprobe.errors import UsageError

Kind = Literal["classification", "regression", "token_classification", "text"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way of naming the columns that hold a row's text (or two texts) and its label."""

    text: tuple[str, ...]
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """A corpus: what its rows are, where they stand in its files, and what it is scored by.

    Attributes:
        name: as typed after `--task`; also GLUE's configuration on the hub.
        kind: what is predicted.
        layouts: the ways in which its columns are named, the usual one first.
        label_names: the names behind the integers 0, 1, ...; () when there are none.
        metrics: official metrics, the primary one first.
        headerless: column names of the corpus's own files, when those have no header line.
        missing_labels: what stands for "no label", beside an empty field and, for classes, -1 and -100.
        hub: (dataset, configuration) on the hub; None when it has no place there.
    """

    name: str
    kind: Kind
    layouts: tuple[Layout, ...]
    label_names: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy",)
    headerless: tuple[str, ...] = ()
    missing_labels: tuple[str, ...] = ()
    hub: tuple[str, str] | None = None

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The usual names of the text columns: one, or two for pairs."""
        return self.layouts[0].text

    @property
    def label_column(self) -> str | None:
        """The usual name of the label column."""
        return self.layouts[0].label


_GLUE = "nyu-mll/glue"
_ENTAILMENT = ("entailment", "not_entailment")
_SENTENCES = Layout(text=("sentence1", "sentence2"), label="label")

_ALL = (
    Task(
        name="cola",
        kind="classification",
        layouts=(Layout(text=("sentence",), label="label"),),
        label_names=("unacceptable", "acceptable"),
        metrics=("matthews_correlation",),
        headerless=("source", "label", "mark", "sentence"),
        hub=(_GLUE, "cola"),
    ),
    Task(
        name="sst2",
        kind="classification",
        layouts=(Layout(text=("sentence",), label="label"),),
        label_names=("negative", "positive"),
        hub=(_GLUE, "sst2"),
    ),
    Task(
        name="mrpc",
        kind="classification",
        layouts=(_SENTENCES, Layout(text=("#1 String", "#2 String"), label="Quality")),
        label_names=("not_equivalent", "equivalent"),
        metrics=("accuracy", "f1"),
        hub=(_GLUE, "mrpc"),
    ),
    Task(
        name="stsb",
        kind="regression",
        layouts=(_SENTENCES, Layout(text=("sentence1", "sentence2"), label="score")),
        metrics=("pearson", "spearman"),
        missing_labels=("-1", "-1.0"),
        hub=(_GLUE, "stsb"),
    ),
    Task(
        name="rte",
        kind="classification",
        layouts=(_SENTENCES,),
        label_names=_ENTAILMENT,
        hub=(_GLUE, "rte"),
    ),
    Task(
        name="qnli",
        kind="classification",
        layouts=(Layout(text=("question", "sentence"), label="label"),),
        label_names=_ENTAILMENT,
        hub=(_GLUE, "qnli"),
    ),
    Task(
        name="qqp",
        kind="classification",
        layouts=(
            Layout(text=("question1", "question2"), label="label"),
            Layout(text=("question1", "question2"), label="is_duplicate"),
        ),
        label_names=("not_duplicate", "duplicate"),
        metrics=("accuracy", "f1"),
        hub=(_GLUE, "qqp"),
    ),
    Task(
        name="mnli",
        kind="classification",
        layouts=(
            Layout(text=("premise", "hypothesis"), label="label"),
            Layout(text=("sentence1", "sentence2"), label="gold_label"),
        ),
        label_names=("entailment", "neutral", "contradiction"),
        missing_labels=("-",),
        hub=(_GLUE, "mnli"),
    ),
    Task(
        name="wnli",
        kind="classification",
        layouts=(_SENTENCES,),
        label_names=("not_entailment", "entailment"),
        hub=(_GLUE, "wnli"),
    ),
    Task(
        name="token-classification",
        kind="token_classification",
        layouts=(
            Layout(text=("tokens",), label="tags"),
            Layout(text=("tokens",), label="ner_tags"),
            Layout(text=("tokens",), label="labels"),
        ),
        metrics=("span_f1", "token_accuracy"),
    ),
    Task(name="text", kind="text", layouts=(Layout(text=("text",)),), metrics=()),
)

TASKS: dict[str, Task] = {task.name: task for task in _ALL}

#: Layouts tried when no task is named, pairs first: `question` and `sentence` before `sentence` alone.
COMMON_LAYOUTS: tuple[Layout, ...] = tuple(
    sorted(
        dict.fromkeys(
            [
                Layout(text=("text",), label="label"),
                Layout(text=("text",), label="score"),
                *(layout for task in _ALL for layout in task.layouts),
            ]
        ),
        key=lambda layout: -len(layout.text),
    )
)


def find_task(name: str) -> Task:
    """The task of that name; `STS-B`, `token_classification` and the like are understood.

    Raises:
        UsageError: no such task.
    """

    def plain(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "")

    for task in _ALL:
        if plain(task.name) == plain(name):
            return task
    raise UsageError(f"--task must be one of {', '.join(TASKS)}, not {name!r}: choose one, or leave it out")
