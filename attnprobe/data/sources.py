"""From what the user names (a task, a file, a data set) to examples: texts, labels, and what they are scored by."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from attnprobe.data.columns import LABEL_FLAG, find_columns, holds_words, row_texts, row_words
from attnprobe.data.conll import is_span_tag
from attnprobe.data.files import ENDINGS, read_file
from attnprobe.data.hub import EVAL_SPLITS, read_hub
from attnprobe.data.labels import IGNORED, UNLABELLED, Head, LabelReader, class_names, holds_fractions
from attnprobe.data.table import Cell, Table
from attnprobe.data.tasks import TASKS, Kind, Layout, Task, find_task
from attnprobe.errors import DataError, UsageError

logger = logging.getLogger(__name__)

Labels = list[int] | list[float] | list[list[int]]

_METRICS: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy",),
    "regression": ("pearson", "spearman"),
    "token_classification": ("span_f1", "token_accuracy"),
    "text": (),
}


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Where the data is. The metadata's `help` is the text that the command line and the documentation show.

    Raises:
        UsageError: an option that cannot be meant.
    """

    task: str | None = field(
        default=None,
        metadata={
            "help": f"What the data is: {', '.join(TASKS)}. "
            "Knows the corpus's columns and metrics; without a file, GLUE is read through `datasets`."
        },
    )
    train_file: Path | None = field(default=None, metadata={"help": f"File to learn from ({', '.join(ENDINGS)})."})
    eval_file: Path | None = field(default=None, metadata={"help": f"File to measure on ({', '.join(ENDINGS)})."})
    dataset_name: str | None = field(
        default=None, metadata={"help": "Data set to read through `datasets` (extra `hub`)."}
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of --dataset-name."})
    split: str | None = field(
        default=None,
        metadata={"help": f"Split of the data set to measure on [default: the first of {', '.join(EVAL_SPLITS)}]."},
    )
    text_columns: tuple[str, ...] = field(
        default=(), metadata={"help": "Column with the text; twice for pairs. [default: the task's]"}
    )
    label_column: str | None = field(default=None, metadata={"help": "Column with the label. [default: the task's]"})
    limit: int | None = field(default=None, metadata={"help": "Read only the first rows, so many."})

    def __post_init__(self) -> None:
        task = find_task(self.task) if self.task else None
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit must be at least 1, not {self.limit}")
        if len(self.text_columns) > 2 or len(set(self.text_columns)) < len(self.text_columns):
            raise UsageError(
                "--text-column is given once, or twice with two columns for pairs, "
                f"not as {', '.join(self.text_columns)}"
            )
        if task and self.text_columns and len(self.text_columns) != len(task.text_columns):
            raise UsageError(
                f"task {task.name} needs --text-column {len(task.text_columns)} time(s) "
                f"(by default {', '.join(task.text_columns)}), not {len(self.text_columns)}"
            )
        if self.split is not None and self.eval_file is not None:
            raise UsageError(
                f"--split {self.split} names a split of a data set, but --eval-file is given: leave one out"
            )
        if self.dataset_config is not None and self.dataset_name is None:
            raise UsageError(f"--dataset-config {self.dataset_config} needs a --dataset-name")
        if self.label_column is not None and self.label_column in self.text_columns:
            raise UsageError(f"column {self.label_column!r} cannot be both text and label: change {LABEL_FLAG}")


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Rows of text, with what they should be told to be.

    Attributes:
        kind: what is predicted; `text` when there is nothing to compare a prediction with.
        texts: a row each: (text,), or (first, second); for token classification the words of the sentence.
        labels: a row each, in the numbers of the checkpoint's head: a class (-1: unlabelled), a value
            (NaN: unlabelled), or a class for every word (-100: ignored). None when there are none.
        label_names: the names of the classes 0, 1, ...; () when unknown.
        metrics: names in `attnprobe.metrics.METRICS`, the primary one first; () when there are no labels.
        source: what was read, for people.
        digest: sha256 over texts and labels.
        unlabelled: how many rows have no label at all.
    """

    kind: Kind
    texts: list[tuple[str, ...]]
    labels: Labels | None
    label_names: tuple[str, ...]
    metrics: tuple[str, ...]
    source: str
    digest: str
    unlabelled: int

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def of(
        cls,
        *,
        kind: Kind,
        texts: list[tuple[str, ...]],
        source: str,
        labels: Labels | None = None,
        label_names: tuple[str, ...] = (),
        metrics: tuple[str, ...] = (),
    ) -> Examples:
        """Examples from rows at hand: counts the unlabelled, computes the digest."""
        rows: Sequence[object] = labels if labels is not None else [None] * len(texts)
        digest = hashlib.sha256()
        for text, label in zip(texts, rows, strict=True):
            digest.update(json.dumps([text, label]).encode() + b"\n")
        return cls(
            kind=kind,
            texts=texts,
            labels=labels,
            label_names=label_names,
            metrics=metrics,
            source=source,
            digest=digest.hexdigest(),
            unlabelled=sum(map(_unlabelled, rows)),
        )

    def labelled(self) -> Examples:
        """The rows that have a label."""
        keep = [row for row, label in enumerate(self.labels or ()) if not _unlabelled(label)]
        return Examples.of(
            kind=self.kind,
            texts=[self.texts[row] for row in keep],
            source=self.source,
            labels=cast("Labels", [self.labels[row] for row in keep] if self.labels else []),
            label_names=self.label_names,
            metrics=self.metrics,
        )


def _unlabelled(label: object) -> bool:
    if isinstance(label, list):
        return all(tag == IGNORED for tag in label)
    return label is None or label == UNLABELLED if not isinstance(label, float) else math.isnan(label)


def load_examples(
    options: DataOptions,
    *,
    split: Literal["train", "eval"],
    label2id: Mapping[str, int] | None,
    num_labels: int | None,
    kind_hint: Kind | None,
) -> Examples:
    """Read the examples of one split.

    Args:
        options: where they are.
        split: whether to read those to learn from or those to measure on.
        label2id: the names of the head's outputs; placeholders (LABEL_0, ...) count as none.
        num_labels: the number of the head's outputs. None: no head; labels are not looked at, and dropped.
        kind_hint: what the head does. Without a task, labels that are all whole numbers are classes unless it says
            `regression`; without it too, labels with fractions are values.

    Raises:
        DataError: data that is missing, malformed, or unfit for the head.
        UsageError: no data is named.
        MissingDependencyError: a data set by name, without the package `datasets`.
    """
    task = find_task(options.task) if options.task else None
    table = _read(options, task, split)
    if not len(table):
        raise DataError(f"{table.source} has no rows: give data with at least one")
    layout = find_columns(table, task=task, text_columns=options.text_columns, label_column=options.label_column)
    words = _are_words(table, layout, task)
    texts = row_words(table, layout.text[0]) if words else row_texts(table, layout.text)
    column = layout.label
    if num_labels is None or (task and task.kind == "text"):
        column = None
    elif column is None:
        logger.warning(
            "%s has no column of labels (it has %s): its rows are read as unlabelled; name one with %s",
            table.source,
            ", ".join(table.columns),
            LABEL_FLAG,
        )
    if num_labels is None or column is None:
        return Examples.of(kind="token_classification" if words else "text", texts=texts, source=table.source)
    cells = table.column(column, flag=LABEL_FLAG)
    kind: Kind = "token_classification" if words else _label_kind(cells, task, kind_hint)
    head = Head.of(label2id, num_labels)
    _check_head(kind, kind_hint, head, table.source)
    names = table.label_names.get(column) or (task.label_names if task else ())
    reader = LabelReader(head=head, source=table.source, names=names, missing=task.missing_labels if task else ())
    labels: Labels
    if kind == "token_classification":
        labels = reader.word_classes(texts, cells)
    elif kind == "regression":
        labels = reader.values(cells)
    else:
        labels = reader.classes(cells)
    label_names = () if kind == "regression" else head.names or (names if len(names) == head.width else ())
    metrics = _metrics(kind, task, label_names)
    return Examples.of(
        kind=kind, texts=texts, labels=labels, label_names=label_names, metrics=metrics, source=table.source
    )


@dataclass(frozen=True, kw_only=True)
class FoundLabels:
    """What the labels of a training file are, where there is no head to say it.

    Attributes:
        kind: what is predicted.
        names: of the classes 0, 1, ...; LABEL_0, ... where the file has whole numbers without names; () for values.
    """

    kind: Kind
    names: tuple[str, ...]


def find_labels(options: DataOptions) -> FoundLabels:
    """Find out what the labels to learn from are: the task's, the data set's, else those that occur.

    Raises:
        DataError: no labels, or a single class.
        UsageError: no data is named.
    """
    task = find_task(options.task) if options.task else None
    table = _read(options, task, "train")
    layout = find_columns(table, task=task, text_columns=options.text_columns, label_column=options.label_column)
    if layout.label is None:
        raise DataError(
            f"{table.source} has no column of labels to learn from (it has {', '.join(table.columns)}): "
            f"name one with {LABEL_FLAG}"
        )
    cells = table.column(layout.label, flag=LABEL_FLAG)
    kind: Kind = "token_classification" if _are_words(table, layout, task) else _label_kind(cells, task, None)
    if kind == "regression":
        return FoundLabels(kind=kind, names=())
    missing = task.missing_labels if task else ()
    names = table.label_names.get(layout.label) or (task.label_names if task else ()) or class_names(cells, missing)
    if len(names) < 2:
        raise DataError(f"{table.source} has {len(names)} classes to learn to tell apart: give rows of at least two")
    return FoundLabels(kind=kind, names=tuple(names))


def _read(options: DataOptions, task: Task | None, split: Literal["train", "eval"]) -> Table:
    """The table of the split: its file, else the data set, else the task's place on the hub."""
    training = split == "train"
    path = options.train_file if training else options.eval_file
    if path is not None:
        table = read_file(path, task=task)
        return table.head(options.limit) if options.limit is not None else table
    name, config = options.dataset_name, options.dataset_config
    if name is None:
        if task is None or task.hub is None:
            purpose, flag = ("learn from", "--train-file") if training else ("measure on", "--eval-file")
            raise UsageError(f"no data to {purpose}: give {flag}, --dataset-name, or a --task of GLUE")
        name, config = task.hub
    return read_hub(name, config, None if training else options.split, training=training, limit=options.limit)


def _are_words(table: Table, layout: Layout, task: Task | None) -> bool:
    if task:
        return task.kind == "token_classification"
    return len(layout.text) == 1 and holds_words(table.columns[layout.text[0]])


def _label_kind(cells: Sequence[Cell], task: Task | None, hint: Kind | None) -> Kind:
    if task:
        return task.kind
    if hint in ("classification", "regression"):
        return hint
    return "regression" if holds_fractions(cells) else "classification"


def _check_head(kind: Kind, hint: Kind | None, head: Head, source: str) -> None:
    if hint not in (None, kind, "text"):
        does = hint.replace("_", " ")
    elif kind == "regression" and head.width != 1:
        does = f"classification ({head.width} classes)"
    else:
        return
    raise DataError(
        f"{source} is for {kind.replace('_', ' ')}, the checkpoint's head does {does}: "
        "use a checkpoint trained for it, or --objective fidelity, which needs no labels"
    )


def _metrics(kind: Kind, task: Task | None, label_names: tuple[str, ...]) -> tuple[str, ...]:
    """The task's metrics, else those of the kind; spans are only scored where the tags mark some."""
    if kind == "token_classification" and not (label_names and all(map(is_span_tag, label_names))):
        return ("token_accuracy",)
    return task.metrics if task else _METRICS[kind]
