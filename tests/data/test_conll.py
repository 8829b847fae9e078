"""Sentences in columns."""

from __future__ import annotations

import pytest

from attnprobe.data.conll import is_span_tag, looks_like_conll, read_conll
from attnprobe.errors import DataError


def test_the_last_column_of_tags_is_taken() -> None:
    lines = [
        "-DOCSTART- -X- -X- O", "",
        "EU NNP B-NP B-ORG", "rejects VBZ B-VP O", "", "",
        "O NNP B-NP B-PER",
    ]  # fmt: skip
    table = read_conll(lines, source="a")
    assert table.columns == {"tokens": [["EU", "rejects"], ["O"]], "tags": [["B-ORG", "O"], ["B-PER"]]}


def test_columns_after_the_tag_are_passed_over() -> None:
    assert read_conll(["EU B-ORG 0", "no O 0"], source="a").columns["tags"] == [["B-ORG", "O"]]


def test_tabs_keep_blanks_and_odd_spaces_are_tokens() -> None:
    assert read_conll(["New York\tB-LOC", "\u00a0\tO"], source="a").columns["tokens"] == [["New York", "\u00a0"]]
    assert read_conll(["\u00a0 O"], source="a").columns["tokens"] == [["\u00a0"]]


def test_two_columns_may_hold_any_tags_and_one_none() -> None:
    assert read_conll(["go VB", "now RB"], source="a").columns["tags"] == [["VB", "RB"]]
    assert read_conll(["go", "now"], source="a").columns == {"tokens": [["go", "now"]]}


def test_no_column_of_tags() -> None:
    with pytest.raises(
        DataError, match=r"no column of a holds only O and B-, I- \.\.\. tags, and there are 3: keep two"
    ):
        read_conll(["go VB 1"], source="a")


def test_only_tagged_sentences_look_like_it() -> None:
    assert looks_like_conll(["EU B-ORG", "no O", ""])
    assert not looks_like_conll(["no O"])
    assert not looks_like_conll(["EU B-ORG", "and more words here"])
    assert not looks_like_conll(["a b", "c d"])
    assert not looks_like_conll([""])


@pytest.mark.parametrize("tag", ["O", "B-PER", "I-a-b", "E-X", "S-X", "L-X", "U-X"])
def test_span_tags(tag: str) -> None:
    assert is_span_tag(tag)
    assert not is_span_tag(tag.lower() + " ")
