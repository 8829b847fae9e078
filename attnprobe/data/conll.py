"""Sentences in columns: a token and its tags a line, a blank line between sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnprobe.data.table import Table
from attnprobe.errors import DataError

_TAG = re.compile(r"O|[BIESLU]-\S+")
_DOCUMENT = "-DOCSTART-"

Sentence = list[list[str]]


def is_span_tag(tag: str) -> bool:
    """Whether it is `O`, or a prefix of BIO, BIOES or BILOU with a type."""
    return _TAG.fullmatch(tag) is not None


def looks_like_conll(lines: Sequence[str]) -> bool:
    """Whether all lines have the same number of fields, and a column holds only tags of spans, some of them not O."""
    try:
        sentences = _sentences(lines, source="")
    except DataError:
        return False
    column = _tag_column(sentences)
    return column is not None and any(row[column] != "O" for sentence in sentences for row in sentence)


def read_conll(lines: Sequence[str], *, source: str) -> Table:
    """A table of `tokens` and `tags`, one row a sentence.

    The token is the first field. The tags are the last column that holds only tags of spans; else the second of two
    columns (parts of speech). A file of one column has no tags.

    Raises:
        DataError: lines with different numbers of fields, or several columns of which none holds tags.
    """
    sentences = _sentences(lines, source=source)
    tokens = [[row[0] for row in sentence] for sentence in sentences]
    width = len(sentences[0][0]) if sentences else 1
    if width == 1:
        return Table(columns={"tokens": tokens}, source=source)
    column = 1 if width == 2 else _tag_column(sentences)
    if column is None:
        raise DataError(
            f"no column of {source} holds only O and B-, I- ... tags, and there are {width}: "
            "keep two columns, token and tag"
        )
    tags = [[row[column] for row in sentence] for sentence in sentences]
    return Table(columns={"tokens": tokens, "tags": tags}, source=source)


def _sentences(lines: Sequence[str], *, source: str) -> list[Sentence]:
    sentences: list[Sentence] = []
    sentence: Sentence = []
    width = 0
    for number, line in enumerate(lines, 1):
        fields = _fields(line)
        if not fields or fields[0] == _DOCUMENT:
            if sentence:
                sentences.append(sentence)
            sentence = []
            continue
        width = width or len(fields)
        if len(fields) != width:
            raise DataError(
                f"line {number} of {source} has {len(fields)} fields, those before it {width}: "
                "every line needs a token and its tags, with a blank line between sentences"
            )
        sentence.append(fields)
    return [*sentences, sentence] if sentence else sentences


def _fields(line: str) -> list[str]:
    """Split at tabs, else at blanks; not at other white space, which may be a token."""
    line = line.strip(" \t\r")
    return re.split(r"\t" if "\t" in line else r" +", line) if line else []


def _tag_column(sentences: Sequence[Sentence]) -> int | None:
    rows = [row for sentence in sentences for row in sentence]
    width = len(rows[0]) if rows else 0
    for column in range(width - 1, 0, -1):
        if all(map(is_span_tag, {row[column] for row in rows})):
            return column
    return None
