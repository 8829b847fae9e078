"""Position classes: examples written out by hand, and what holds of any input on either side of padding."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from attnprobe.data.positions import (
    BIDIRECTIONAL,
    CAUSAL,
    REGIONS,
    UNIONS,
    Positions,
    class_map,
    locate,
    membership,
    partition,
)
from attnprobe.errors import UsageError
from tests.helpers.tolerance import assert_identical
from tests.references.importance import classes

PAD, CLS, SEP = 0, 1, 2
LETTERS = {
    "D": "diagonal",
    "C": "cls_key",
    "R": "cls_query",
    "F": "first_key",
    "S": "sep_key",
    "Q": "sep_query",
    "P": "previous",
    "N": "next",
    "W": "neighbour",
    "X": "cross_segment",
    "O": "other",
    ".": "",
}
"""One letter a class, as the tables below write them; a dot is a cell that is not valid."""

# [CLS] a [SEP] b [SEP], window 2; a and b are of two texts, but neighbours first.
PAIR = (CLS, 11, SEP, 12, SEP)
PAIR_SEGMENTS = (-1, 0, -1, 1, -1)
PAIR_TABLE = """
    D R R R R
    C D S W S
    C Q D Q S
    C W S D S
    C Q S Q D
"""

# [CLS] a b [SEP] c d e [SEP], window 2.
LONG_PAIR = (CLS, 11, 12, SEP, 13, 14, 15, SEP)
LONG_PAIR_SEGMENTS = (-1, 0, 0, -1, 1, 1, 1, -1)
LONG_PAIR_TABLE = """
    D R R R R R R R
    C D N S X X X S
    C P D S W X X S
    C Q Q D Q Q Q S
    C X W S D N W S
    C X X S P D N S
    C X X S W P D S
    C Q Q S Q Q Q D
"""

# a b c d e f, window 2, no special tokens: the first is an ordinary one.
PLAIN = (11, 12, 13, 14, 15, 16)
PLAIN_TABLE = """
    D N W O O O
    P D N W O O
    W P D N W O
    O W P D N W
    O O W P D N
    O O O W P D
"""

# The same under causal attention: the first token stands for [CLS]; its row is its diagonal.
PLAIN_CAUSAL_TABLE = """
    D . . . . .
    F D . . . .
    F P D . . .
    F W P D . .
    F O W P D .
    F O O W P D
"""

# a [SEP] b c d, causal, window 2.
SEP_CAUSAL = (11, SEP, 12, 13, 14)
SEP_CAUSAL_TABLE = """
    D . . . .
    F D . . .
    F S D . .
    F S P D .
    F S W P D
"""


def _positions(
    *rows: tuple[int, ...],
    segments: tuple[tuple[int, ...], ...] | None = None,
    padding: int = 0,
    side: str = "right",
    cls_id: int | None = CLS,
    causal: bool = False,
    window: int = 2,
    include_special: bool = True,
) -> Positions:
    """Positions of rows of one length or several, with ``padding`` more columns than the longest has."""
    width = max(map(len, rows)) + padding

    def pad(row: tuple[int, ...], value: int) -> list[int]:
        filling = [value] * (width - len(row))
        return [*row, *filling] if side == "right" else [*filling, *row]

    ids = torch.tensor([pad(row, PAD) for row in rows])
    mask = torch.tensor([pad((1,) * len(row), 0) for row in rows])
    special = (ids == CLS) | (ids == SEP)
    texts = None if segments is None else torch.tensor([pad(row, -1) for row in segments])
    return locate(
        {"input_ids": ids, "attention_mask": mask},
        special,
        texts,
        cls_id=cls_id,
        sep_id=SEP,
        causal=causal,
        window=window,
        include_special=include_special,
    )


def _names(at: Positions, row: int = 0) -> list[list[str]]:
    """The class of each cell of a row of the batch, by name; empty where invalid."""
    names = ["", *partition(at.causal)]
    return [[names[number + 1] for number in line] for line in class_map(at)[row].tolist()]


def _table(text: str, padding: int = 0, side: str = "right") -> list[list[str]]:
    """A table of letters as names, with invalid rows and columns for padding."""
    lines = [line.split() for line in text.split("\n") if line.strip()]
    blank = ["."] * padding
    lines = [line + blank if side == "right" else blank + line for line in lines]
    rows = [["."] * len(lines[0])] * padding
    return [[LETTERS[letter] for letter in line] for line in (lines + rows if side == "right" else rows + lines)]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("padding", [0, 2])
def test_a_pair_of_five_tokens(side: str, padding: int) -> None:
    at = _positions(PAIR, segments=(PAIR_SEGMENTS,), padding=padding, side=side)
    assert _names(at) == _table(PAIR_TABLE, padding, side)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_pair_whose_texts_see_each_other(side: str) -> None:
    """In one batch with a shorter pair: each row has its own padding."""
    segments = (LONG_PAIR_SEGMENTS, PAIR_SEGMENTS)
    at = _positions(LONG_PAIR, PAIR, segments=segments, side=side)
    assert _names(at, 0) == _table(LONG_PAIR_TABLE)
    assert _names(at, 1) == _table(PAIR_TABLE, 3, side)


def test_without_a_pair_the_cells_between_are_other() -> None:
    assert _names(_positions(LONG_PAIR)) == _table(LONG_PAIR_TABLE.replace("X", "O"))


def test_a_wider_window_takes_from_what_follows_it() -> None:
    wide = _names(_positions(PLAIN, window=4))
    expected = _table(PLAIN_TABLE.replace("O", "W"))
    expected[0][5] = expected[5][0] = "other"
    assert wide == expected


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    ("tokens", "table"),
    [(PLAIN, PLAIN_CAUSAL_TABLE), (SEP_CAUSAL, SEP_CAUSAL_TABLE)],
    ids=["plain", "with a separator"],
)
def test_causal_attention(tokens: tuple[int, ...], table: str, side: str) -> None:
    at = _positions(tokens, padding=3, side=side, causal=True, cls_id=None)
    assert _names(at) == _table(table, 3, side)


def test_a_causal_row_of_a_separator() -> None:
    """[SEP] as a query has what its key classes leave; as the first token it is the first token."""
    assert _names(_positions((11, 12, 13, SEP), causal=True))[3] == ["first_key", "sep_query", "sep_query", "diagonal"]
    assert _names(_positions((SEP, 12, 13), causal=True))[2] == ["first_key", "previous", "diagonal"]


@pytest.mark.parametrize("cls_id", [None, CLS])
def test_without_cls_the_class_has_no_cells_and_index_0_is_not_taken_for_it(cls_id: int | None) -> None:
    """Neither where the tokenizer has none, nor where the input has none."""
    at = _positions(PLAIN, cls_id=cls_id)
    assert not at.cls.any()
    assert _names(at) == _table(PLAIN_TABLE)
    assert not _positions(PAIR, cls_id=None).cls.any()


def test_a_token_is_special_only_where_the_tokenizer_put_it() -> None:
    """The id of [CLS] or [SEP] in the text itself is text."""
    ids = torch.tensor([PAIR])
    everywhere = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    at = locate(everywhere, torch.zeros_like(ids, dtype=torch.bool), None, cls_id=CLS, sep_id=SEP)
    assert not at.cls.any()
    assert not at.sep.any()
    assert not at.special.any()


def test_without_special_tokens_their_rows_and_columns_are_left_out() -> None:
    table = """
        . . . . . . . .
        . D N . X X X .
        . P D . W X X .
        . . . . . . . .
        . X W . D N W .
        . X X . P D N .
        . X X . W P D .
        . . . . . . . .
    """
    at = _positions(LONG_PAIR, segments=(LONG_PAIR_SEGMENTS,), include_special=False)
    assert _names(at) == _table(table)
    assert_identical(at.valid[0], at.measured[0, :, None] & at.measured[0, None, :])


def test_offsets_count_tokens_from_the_query_back_to_the_key() -> None:
    offset = _positions(PLAIN, padding=2, side="left").offset[0, 2:, 2:]
    for i in range(len(PLAIN)):
        for j in range(len(PLAIN)):
            assert offset[i, j] == i - j


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("include_special", [True, False])
def test_any_input_gets_the_classes_that_the_reference_gives(side: str, include_special: bool) -> None:
    draw = random.Random(17)
    for _ in range(20):
        lengths = [draw.randint(1, 6) for _ in range(4)]
        rows = [(CLS, *_text(draw, a), SEP, *_text(draw, b), SEP) for a, b in zip(lengths, lengths[::-1], strict=True)]
        texts = [(-1, *([0] * a), -1, *([1] * b), -1) for a, b in zip(lengths, lengths[::-1], strict=True)]
        window, padding = draw.randint(2, 5), draw.randint(0, 3)
        at = _positions(
            *rows,
            segments=tuple(texts),
            padding=padding,
            side=side,
            window=window,
            include_special=include_special,
        )
        for number, (row, segments) in enumerate(zip(rows, texts, strict=True)):
            first = 0 if side == "right" else at.token.shape[1] - len(row)
            expected = classes(row, segments, cls=CLS, sep=SEP, window=window, include_special=include_special)
            for name, cells in _by_class(at, number).items():
                assert cells == {(i + first, j + first) for i, j in expected[name]}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("include_special", [True, False])
def test_every_valid_cell_is_in_exactly_one_class_and_no_other_cell_in_any(
    side: str, causal: bool, include_special: bool
) -> None:
    draw = random.Random(19)
    for _ in range(20):
        rows = [tuple(draw.choices((CLS, SEP, *range(11, 17)), k=draw.randint(1, 9))) for _ in range(5)]
        at = _positions(
            *rows,
            padding=draw.randint(0, 3),
            side=side,
            causal=causal,
            window=draw.randint(2, 5),
            include_special=include_special,
        )
        for number, row in enumerate(rows):
            first = 0 if side == "right" else at.token.shape[1] - len(row)
            valid = {
                (i + first, j + first)
                for i, query in enumerate(row)
                for j, key in enumerate(row)
                if (not causal or j <= i) and (include_special or not {query, key} & {CLS, SEP})
            }
            found = list(_by_class(at, number).values())
            assert set().union(*found) == valid
            assert sum(map(len, found)) == len(valid)


@pytest.mark.parametrize("causal", [True, False])
def test_the_class_of_a_cell_is_the_first_whose_description_it_meets(causal: bool) -> None:
    at = _positions(LONG_PAIR, PAIR, segments=(LONG_PAIR_SEGMENTS, PAIR_SEGMENTS), causal=causal)
    numbers = class_map(at)
    meets = torch.stack([c.contains(at).expand_as(at.valid) for c in partition(causal).values()]).int()
    assert_identical(numbers[at.valid], meets.argmax(0)[at.valid])
    assert bool((numbers[~at.valid] == -1).all())


def test_regions_are_whole_rows_and_columns() -> None:
    at = _positions(PAIR, padding=1)
    seps = {2, 4}
    for name, cells in {
        "cls_column": {(i, 0) for i in range(6)},
        "cls_row": {(0, j) for j in range(6)},
        "sep_column": {(i, j) for i in range(6) for j in seps},
        "sep_row": {(i, j) for i in seps for j in range(6)},
    }.items():
        assert _cells(REGIONS[name](at).expand(1, 6, 6)[0]) == cells


def test_membership_of_classes_and_unions() -> None:
    def members(name: str, causal: bool) -> list[str]:
        return [c for c, is_in in zip(partition(causal), membership([name], causal)[0].tolist(), strict=True) if is_in]

    for causal in (True, False):
        for name in partition(causal):
            assert members(name, causal) == [name]
    assert members("cls", causal=False) == ["cls_key", "cls_query"]
    assert members("cls", causal=True) == ["first_key", "first_query"]
    assert members("special", causal=False) == ["cls_key", "cls_query", "sep_key", "sep_query"]
    assert members("window", causal=False) == ["diagonal", "previous", "next", "neighbour"]
    assert members("window", causal=True) == ["diagonal", "previous", "neighbour"]
    assert membership([], causal=True).shape == (0, len(CAUSAL))
    assert set().union(*UNIONS.values()) <= {*BIDIRECTIONAL, *CAUSAL}


def test_an_unknown_class_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError) as raised:
        membership(["diagonal", "first_key"], causal=False)
    assert str(raised.value) == (
        "unknown position class 'first_key'; classes of bidirectional attention: diagonal, cls_key, cls_query, "
        "sep_key, sep_query, previous, next, neighbour, cross_segment, other, cls, sep, special, window"
    )
    with pytest.raises(UsageError, match="'next'; classes of causal attention: diagonal, first_key, first_query"):
        membership(["next"], causal=True)


@pytest.mark.parametrize("window", [1, 0, -3])
def test_a_window_below_2_is_refused(window: int) -> None:
    with pytest.raises(UsageError, match=rf"window must reach at least 2 tokens .*, not {window}$"):
        _positions(PAIR, window=window)


def _text(draw: random.Random, length: int) -> tuple[int, ...]:
    return tuple(draw.choices(range(11, 17), k=length))


def _cells(where: Tensor) -> set[tuple[int, int]]:
    """The cells where a (queries, keys) tensor is True."""
    return {(i, j) for i, j in where.nonzero().tolist()}


def _by_class(at: Positions, row: int) -> dict[str, set[tuple[int, int]]]:
    """The cells of each class of the partition in a row of the batch."""
    numbers = class_map(at)[row]
    return {name: _cells(numbers == number) for number, name in enumerate(partition(at.causal))}
