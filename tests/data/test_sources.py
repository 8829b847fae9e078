"""From options to examples."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnprobe.data.sources import DataOptions, Examples, load_examples
from attnprobe.data.tasks import Kind
from attnprobe.errors import DataError, UsageError


def load(
    path: Path,
    content: str,
    *,
    task: str | None = None,
    label2id: Mapping[str, int] | None = None,
    num_labels: int | None = 2,
    hint: Kind | None = None,
    limit: int | None = None,
    text_columns: tuple[str, ...] = (),
    label_column: str | None = None,
) -> Examples:
    path.write_text(content, encoding="utf-8")
    options = DataOptions(task=task, eval_file=path, limit=limit, text_columns=text_columns, label_column=label_column)
    return load_examples(options, split="eval", label2id=label2id, num_labels=num_labels, kind_hint=hint)


def test_classes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    examples = load(path, "text,label\na,0\nb,1\nc,-1\n")
    assert examples.kind == "classification"
    assert examples.texts == [("a",), ("b",), ("c",)]
    assert examples.labels == [0, 1, -1]
    assert examples.unlabelled == 1
    assert examples.metrics == ("accuracy",)
    assert examples.label_names == ()
    assert examples.source == str(path)
    assert len(examples) == 3


@pytest.mark.parametrize(
    ("task", "name", "content", "texts", "labels"),
    [
        ("cola", "a.tsv", "gj04\t1\t\tIt works.\ngj04\t0\t*\tIt work.\n", [("It works.",), ("It work.",)], [1, 0]),
        ("sst2", "a.tsv", 'sentence\tlabel\n"fine\t1\n', [('"fine',)], [1]),
        (
            "mrpc",
            "a.txt",
            "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\ta\tb\r\n",
            [("a", "b")],
            [1],
        ),
        ("rte", "a.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tnot_entailment\n", [("a", "b")], [1]),
        ("qnli", "a.tsv", "index\tquestion\tsentence\tlabel\n0\ta\tb\tentailment\n", [("a", "b")], [0]),
        ("wnli", "a.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n", [("a", "b")], [1]),
        ("qqp", "a.tsv", "id\tquestion1\tquestion2\tis_duplicate\n0\ta\tb\t1\n", [("a", "b")], [1]),
        (
            "mnli",
            "a.tsv",
            "sentence1\tsentence2\tlabel1\tgold_label\na\tb\tneutral\tcontradiction\nc\td\tneutral\t-\n",
            [("a", "b"), ("c", "d")],
            [2, -1],
        ),
    ],
)
def test_the_corpora_s_own_files(
    tmp_path: Path, task: str, name: str, content: str, texts: list[tuple[str, ...]], labels: list[int]
) -> None:
    examples = load(tmp_path / name, content, task=task, num_labels=3 if task == "mnli" else 2)
    assert examples.texts == texts
    assert examples.labels == labels
    assert len(examples.label_names) == (3 if task == "mnli" else 2)


def test_values(tmp_path: Path) -> None:
    content = "sentence1\tsentence2\tscore\na\tb\t5.000\nc\td\t-1\n"
    examples = load(tmp_path / "a.tsv", content, task="stsb", num_labels=1)
    assert examples.kind == "regression"
    assert examples.metrics == ("pearson", "spearman")
    assert examples.labels is not None
    assert examples.labels[0] == 5.0
    assert math.isnan(examples.labels[1])
    assert examples.unlabelled == 1


def test_what_labels_without_a_task_are(tmp_path: Path) -> None:
    whole, fractions = "text,label\na,1\n", "text,label\na,1\nb,0.5\n"
    assert load(tmp_path / "a.csv", whole).kind == "classification"
    assert load(tmp_path / "a.csv", whole, num_labels=1, hint="regression").labels == [1.0]
    assert load(tmp_path / "a.csv", fractions, num_labels=1).kind == "regression"
    with pytest.raises(DataError, match=r"label '0\.5' in row 2 of .* is not a class"):
        load(tmp_path / "a.csv", fractions, hint="classification")


def test_tagged_sentences(tmp_path: Path) -> None:
    head = {"O": 0, "B-PER": 1, "I-PER": 2}
    examples = load(tmp_path / "a.txt", "Ada B-PER 0\nsang O 0\n\nGo O 0\n", label2id=head, num_labels=3)
    assert examples.kind == "token_classification"
    assert examples.texts == [("Ada", "sang"), ("Go",)]
    assert examples.labels == [[1, 0], [0]]
    assert examples.label_names == ("O", "B-PER", "I-PER")
    assert examples.metrics == ("span_f1", "token_accuracy")


@pytest.mark.parametrize("column", ["tags", "ner_tags", "labels"])
def test_lists_of_words(tmp_path: Path, column: str) -> None:
    content = f'{{"tokens": ["a", "b"], "{column}": [1, 0]}}\n'
    examples = load(tmp_path / "a.jsonl", content)
    assert examples.labels == [[1, 0]]
    assert examples.metrics == ("token_accuracy",)
    assert load(tmp_path / "a.jsonl", content, task="token-classification").labels == [[1, 0]]


def test_parts_of_speech_have_no_spans(tmp_path: Path) -> None:
    examples = load(tmp_path / "a.conll", "go VB\nnow RB\n", label2id={"VB": 0, "RB": 1})
    assert examples.metrics == ("token_accuracy",)


def test_raw_text(tmp_path: Path) -> None:
    examples = load(tmp_path / "a.txt", "One.\n\nTwo.\n", num_labels=None, hint="text")
    assert (examples.kind, examples.texts, examples.labels) == ("text", [("One.",), ("Two.",)], None)
    assert (examples.metrics, examples.unlabelled) == ((), 2)


def test_without_a_head_labels_are_not_looked_at(tmp_path: Path) -> None:
    examples = load(tmp_path / "a.csv", "text,label\na,what\n", num_labels=None)
    assert (examples.kind, examples.labels, examples.label_names) == ("text", None, ())
    words = load(tmp_path / "a.conll", "Ada B-PER\n", num_labels=None)
    assert (words.kind, words.texts, words.labels) == ("token_classification", [("Ada",)], None)
    assert load(tmp_path / "a.csv", "text,label\na,what\n", task="text").labels is None


def test_a_file_without_labels_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        examples = load(tmp_path / "a.tsv", "index\tsentence\n0\ta\n", task="sst2")
        load(tmp_path / "a.tsv", "index\tsentence\n0\ta\n", task="sst2", num_labels=None)
    assert examples.labels is None
    assert examples.unlabelled == 1
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith(
        "has no column of labels (it has index, sentence): its rows are read as unlabelled; "
        "name one with --label-column"
    )


def test_all_unlabelled_is_no_error(tmp_path: Path) -> None:
    examples = load(tmp_path / "a.csv", "text,label\na,-1\nb,-1\n")
    assert examples.unlabelled == len(examples) == 2


def test_limit_is_taken_before_labels_are_checked(tmp_path: Path) -> None:
    assert load(tmp_path / "a.csv", "text,label\na,0\nb,9\n", limit=1).labels == [0]


def test_digest_tells_texts_and_labels_apart(tmp_path: Path) -> None:
    digests = {
        load(tmp_path / "a.csv", content).digest
        for content in ("text,label\na,0\n", "text,label\na,1\n", "text,label\nb,0\n", "text,label\na,0\na,0\n")
    }
    again = load(tmp_path / "b.tsv", "text\tlabel\na\t0\n").digest
    assert len(digests) == 4
    assert again in digests
    assert len(again) == 64


@pytest.mark.parametrize(
    ("content", "task", "num_labels", "hint", "message"),
    [
        ("text,label\n", None, 2, None, "has no rows: give data with at least one"),
        ("text,label\na,2\n", None, 2, None, "label 2 in row 1 of .* does not fit the checkpoint's head"),
        ("sentence1,label\na,0\n", "rte", 2, None, "no column 'sentence2' in .*: it has 'sentence1', 'label'"),
        ("text,label\na,0.5\n", None, 2, None, r"is for regression, the checkpoint's head does classification \(2 cl"),
        ("sentence,label\na,0\n", "sst2", 1, "regression", "is for classification, the checkpoint's head does regres"),
        ("text,label\na,0\n", None, 2, "token_classification", "the checkpoint's head does token classification: use"),
        (
            "tokens,tags\na,O\n",
            "token-classification",
            2,
            None,
            "column 'tokens' in row 1 of .* holds no list of words",
        ),
    ],
)
def test_data_unfit_for_the_head(
    tmp_path: Path, content: str, task: str | None, num_labels: int, hint: Kind | None, message: str
) -> None:
    with pytest.raises(DataError, match=message) as raised:
        load(tmp_path / "a.csv", content, task=task, num_labels=num_labels, hint=hint)
    assert "\n" not in str(raised.value)


def test_train_and_eval_files_and_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*names: str | None) -> object:
        asked.append(names)
        raise ConnectionError("offline")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    train = tmp_path / "train.csv"
    train.write_text("sentence,label\na,0\n")
    options = DataOptions(task="sst2", train_file=train)
    assert len(load_examples(options, split="train", label2id=None, num_labels=2, kind_hint=None)) == 1
    with pytest.raises(DataError, match=r"nyu-mll/glue/sst2 cannot be read \(offline\)"):
        load_examples(options, split="eval", label2id=None, num_labels=2, kind_hint=None)
    assert asked == [("nyu-mll/glue", "sst2")]


@pytest.mark.parametrize(("split", "flag"), [("train", "--train-file"), ("eval", "--eval-file")])
def test_no_data(split: str, flag: str) -> None:
    with pytest.raises(UsageError, match=f"no data to .*: give {flag}, --dataset-name, or a --task of GLUE"):
        load_examples(DataOptions(task="text"), split=split, label2id=None, num_labels=None, kind_hint=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "glue"}, "--task must be one of"),
        ({"limit": 0}, "--limit must be at least 1, not 0"),
        ({"text_columns": ("a", "b", "c")}, "--text-column is given once, or twice .* not as a, b, c"),
        ({"text_columns": ("a", "a")}, "--text-column is given once"),
        ({"task": "rte", "text_columns": ("a",)}, r"task rte needs --text-column 2 time\(s\) .*sentence2\), not 1"),
        ({"task": "sst2", "text_columns": ("a", "b")}, r"task sst2 needs --text-column 1 time\(s\)"),
        ({"text_columns": ("a",), "label_column": "a"}, "column 'a' cannot be both text and label"),
        ({"split": "test", "eval_file": Path("a.csv")}, "--split test names a split of a data set, but --eval-file"),
        ({"dataset_config": "x"}, "--dataset-config x needs a --dataset-name"),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DataOptions(**options)  # type: ignore[arg-type]


def test_every_option_has_its_help() -> None:
    assert all(option.metadata["help"].endswith((".", "]")) for option in fields(DataOptions))


def test_reading_needs_none_of_the_heavy_packages() -> None:
    heavy = ("torch", "transformers", "pandas", "pyarrow", "numpy", "datasets")
    code = f"import sys, attnprobe.data.sources; sys.exit(any(m in sys.modules for m in {heavy}))"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
