"""Which columns are read."""

from __future__ import annotations

import pytest

from attnprobe.data.columns import find_columns, row_texts, row_words
from attnprobe.data.table import Cell, Table
from attnprobe.data.tasks import TASKS, Layout
from attnprobe.errors import DataError


def table(*names: str, **columns: list[Cell]) -> Table:
    usual: dict[str, list[Cell]] = {name: ["x"] for name in names}
    return Table(columns=usual | columns, source="data")


@pytest.mark.parametrize(
    ("task", "names", "text", "label"),
    [
        ("mrpc", ["Quality", "#1 ID", "#1 String", "#2 String"], ("#1 String", "#2 String"), "Quality"),
        ("stsb", ["sentence1", "sentence2", "score"], ("sentence1", "sentence2"), "score"),
        ("mnli", ["sentence1", "sentence2", "gold_label"], ("sentence1", "sentence2"), "gold_label"),
        ("qnli", ["index", "question", "sentence"], ("question", "sentence"), None),
        (None, ["index", "question", "sentence", "label"], ("question", "sentence"), "label"),
        (None, ["text", "label"], ("text",), "label"),
        (None, ["review", "label"], ("review",), "label"),
        (None, ["review"], ("review",), None),
        (None, ["tokens", "pos_tags", "ner_tags"], ("tokens",), "ner_tags"),
    ],
)
def test_usual_columns(task: str | None, names: list[str], text: tuple[str, ...], label: str | None) -> None:
    found = find_columns(table(*names), task=TASKS[task] if task else None)
    assert found == Layout(text=text, label=label)


def test_columns_asked_for() -> None:
    data = table("text", "title", "label", "stars")
    found = find_columns(data, task=None, text_columns=("title", "text"), label_column="stars")
    assert found == Layout(text=("title", "text"), label="stars")
    assert find_columns(table("review", "stars"), task=None, label_column="stars").text == ("review",)


def test_the_error_lists_the_columns_that_are_there() -> None:
    with pytest.raises(DataError, match="no column 'txt' in data: it has 'text', 'label'; choose one with --text-col"):
        find_columns(table("text", "label"), task=None, text_columns=("txt",))
    with pytest.raises(DataError, match="no column 'y' in data: it has 'text', 'label'; choose one with --label-col"):
        find_columns(table("text", "label"), task=None, label_column="y")
    with pytest.raises(DataError, match="no column 'sentence2' in data: it has 'sentence1', 'label'"):
        find_columns(table("sentence1", "label"), task=TASKS["rte"])
    with pytest.raises(DataError, match="which column of data holds the text is not plain: it has 'a', 'b'; choose"):
        find_columns(table("a", "b"), task=None)


def test_texts_and_words() -> None:
    assert row_texts(table(a=["x", ""], b=["y", "NA"]), ("a", "b")) == [("x", "y"), ("", "NA")]
    assert row_words(table(tokens=[["x", ""], ["y"]]), "tokens") == [("x", ""), ("y",)]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (None, "column 'a' in row 1 of data is empty, not a text: choose with --text-column"),
        (5, "is int 5, not a text"),
        (["x"], r"is list \['x'\], not a text"),
        ("x\ud800", "has half a surrogate pair"),
    ],
)
def test_fields_that_are_no_texts(cell: Cell, message: str) -> None:
    with pytest.raises(DataError, match=message):
        row_texts(table(a=[cell]), ("a",))


@pytest.mark.parametrize("cell", ["x y", [], None])
def test_fields_that_are_no_words(cell: Cell) -> None:
    with pytest.raises(DataError, match="column 'a' in row 1 of data holds no list of words"):
        row_words(table(a=[cell]), "a")
