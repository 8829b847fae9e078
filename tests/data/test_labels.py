"""Labels: words and integers, in the numbers of the head."""

from __future__ import annotations

import logging
import math

import pytest

from attnprobe.data.labels import Head, LabelReader, holds_fractions
from attnprobe.data.table import Cell
from attnprobe.errors import DataError

MNLI = ("entailment", "neutral", "contradiction")
PLACEHOLDERS = {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}


def reader(
    ids: dict[str, int] | None = None,
    width: int = 3,
    names: tuple[str, ...] = (),
    missing: tuple[str, ...] = (),
) -> LabelReader:
    return LabelReader(head=Head.of(ids, width), source="data", names=names, missing=missing)


def test_integers_in_all_their_forms() -> None:
    cells: list[Cell] = [0, "1", "2.0", 1.0, True, " 2 "]
    assert reader(PLACEHOLDERS).classes(cells) == [0, 1, 2, 1, 1, 2]


def test_no_label() -> None:
    assert reader(missing=("-",)).classes([None, "", -1, "-1", -100, "-", 2]) == [-1, -1, -1, -1, -1, -1, 2]


def test_words_are_looked_up_in_the_head() -> None:
    head = {"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2}
    assert reader(head, names=MNLI).classes(["entailment", "contradiction", ""]) == [2, 0, -1]


def test_integers_are_translated_when_the_head_orders_the_names_differently() -> None:
    head = {"contradiction": 0, "neutral": 1, "entailment": 2}
    assert reader(head, names=MNLI).classes([0, 1, 2]) == [2, 1, 0]
    assert reader(head).classes([0, 1, 2]) == [0, 1, 2]


def test_words_of_the_corpus_without_names_in_the_head() -> None:
    assert reader(PLACEHOLDERS, names=("entailment", "not_entailment")).classes(["not-entailment", "entailment"]) == [
        1,
        0,
    ]


def test_names_that_are_numbers() -> None:
    assert reader({"1": 0, "2": 1, "3": 2}).classes(["1", "3", "2"]) == [0, 2, 1]


def test_exact_names_go_before_alike_ones() -> None:
    head = {"us": 0, "US": 1}
    assert reader(head, width=2).classes(["US", "us"]) == [1, 0]
    with pytest.raises(DataError, match=r"label 'Us' in row 1 of data is not one of the classes .*\(us, US\)"):
        reader(head, width=2).classes(["Us"])


def test_other_names_than_the_head_are_taken_in_order_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert reader({"yes": 0, "no": 1}, width=2, names=("entailment", "not_entailment")).classes([1]) == [1]
    assert caplog.messages == [
        "the labels of data (entailment, not_entailment) are taken for the head's classes (yes, no)"
    ]


@pytest.mark.parametrize(
    ("cells", "ids", "names", "message"),
    [
        ([0, 1.5], None, (), "label 1.5 in row 2 of data is not a class: classes are whole numbers from 0, or words"),
        ([math.nan], None, (), "label nan in row 1 of data is not a class"),
        (["nan"], None, (), "label 'nan' in row 1 of data is not a class"),
        ([[0]], None, (), r"label \[0\] in row 1 of data is neither a whole number nor a word"),
        (
            [0, 3],
            None,
            (),
            "label 3 in row 2 of data does not fit the checkpoint's head, whose classes are 0 to 2: use",
        ),
        ([-2], None, (), "label -2 in row 1 of data does not fit"),
        (["a"], PLACEHOLDERS, (), "label 'a' in row 1 of data is a word, but the checkpoint's head names no classes"),
        (["a", "d"], {"a": 0, "b": 1, "c": 2}, (), r"label 'd' in row 2 of data is not one of .* \(a, b, c\): rename"),
        (["x"], None, MNLI, r"label 'x' in row 1 of data is not one of .* \(entailment, neutral, contradiction\)"),
        (
            [0],
            {"neutral": 0, "b": 1, "c": 2},
            MNLI,
            "the labels of data are entailment, .* head neutral, b, c: the two",
        ),
    ],
)
def test_labels_that_do_not_fit(
    cells: list[Cell], ids: dict[str, int] | None, names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        reader(ids, names=names).classes(cells)


def test_labels_of_words() -> None:
    head = {"O": 0, "B-PER": 1, "I-PER": 2}
    texts: list[tuple[str, ...]] = [("a", "b"), ("c",)]
    assert reader(head).word_classes(texts, [["B-PER", "O"], [None]]) == [[1, 0], [-100]]
    assert reader(head).word_classes(texts, [[2, -100], [-1]]) == [[2, -100], [-100]]
    with pytest.raises(DataError, match="row 2 of data has 1 words and 2 labels: every word needs one"):
        reader(head).word_classes(texts, [["O", "O"], ["O", "O"]])
    with pytest.raises(DataError, match=r"row 1 of data has 2 words and no list of labels \('O'\)"):
        reader(head).word_classes(texts, ["O", ["O"]])
    with pytest.raises(DataError, match="label 'B-LOC' in row 2 of data is not one of"):
        reader(head).word_classes(texts, [["O", "O"], ["B-LOC"]])


def test_values() -> None:
    values = reader(missing=("-1", "-1.0")).values(["5.000", 2, None, -1.0, "-1"])
    assert values[:2] == [5.0, 2.0]
    assert all(map(math.isnan, values[2:]))
    assert reader().values([-1.0]) == [-1.0]


@pytest.mark.parametrize("cell", ["high", "nan", math.inf, [1.0]])
def test_values_must_be_finite(cell: Cell) -> None:
    with pytest.raises(DataError, match="in row 1 of data is not a number: every label must be finite"):
        reader().values([cell])


def test_fractions_make_values() -> None:
    assert holds_fractions(["1", 0.5, None])
    assert not holds_fractions(["1.0", 2, ""])
    assert not holds_fractions(["0.5", "high"])


def test_names_of_the_head() -> None:
    assert Head.of({"b": 1, "a": 0}, 2).names == ("a", "b")
    assert Head.of({"b": 1}, 2).names == ()
    assert Head.of(PLACEHOLDERS, 3).names == ()
    assert Head.of(None, 3).ids == {}
