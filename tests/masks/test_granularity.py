"""Which gate governs a cell: every cell against a loop, by hand, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnprobe.errors import CheckpointError, DataError, UsageError
from attnprobe.masks.granularity import GRANULARITIES, Granularity
from tests.helpers.ragged import CAUSAL, PLAIN, SINGLE, TEXTS, own, positions_of
from tests.references import masks as reference
from tests.references.masks import Text

SIDES = pytest.mark.parametrize("side", ["right", "left"])

BOTH_WAYS: dict[str, tuple[Granularity, int]] = {
    "cell": (Granularity(name="cell", length=17), 289),
    "block of 5": (Granularity(name="block", length=15, block_size=5), 9),
    "block of 7": (Granularity(name="block", length=14, block_size=7), 4),
    "block of 1": (Granularity(name="block", length=13, block_size=1), 169),
    "head": (Granularity(name="head", length=3), 1),
    "offset": (Granularity(name="offset", length=17), 5 * 33),
    "symmetric": (Granularity(name="offset", length=17, symmetric=True), 5 * 17),
    "segment-aware": (Granularity(name="offset", length=17, segment_aware=True), 6 * 33),
    "both": (Granularity(name="offset", length=17, segment_aware=True, symmetric=True), 6 * 17),
    "offset of short rows": (Granularity(name="offset", length=3), 5 * 5),
    "symmetric, of short rows": (Granularity(name="offset", length=2, symmetric=True, segment_aware=True), 6 * 2),
    "one token": (Granularity(name="offset", length=1), 5),
}
ONE_WAY: dict[str, tuple[Granularity, int]] = {
    "cell": (Granularity(name="cell", length=11, causal=True), 121),
    "block": (Granularity(name="block", length=12, block_size=3, causal=True), 16),
    "head": (Granularity(name="head", length=11, causal=True), 1),
    "offset": (Granularity(name="offset", length=13, causal=True), 2 * 13),
    "symmetric": (Granularity(name="offset", length=13, causal=True, symmetric=True), 2 * 13),
    "segment-aware": (Granularity(name="offset", length=13, causal=True, segment_aware=True), 3 * 13),
    "offset of short rows": (Granularity(name="offset", length=5, causal=True), 2 * 5),
}


def require_equal(granularity: Granularity, texts: tuple[Text, ...], side: str) -> None:
    """Every valid cell of a padded batch has the gate that the reference gives it in its text alone."""
    index = granularity.index(positions_of(texts, side=side, padding=3))
    assert index.dtype == torch.int64
    width = max(len(text.ids) for text in texts) + 3
    assert index.shape == (len(texts), width, width)
    for row, text in zip(index, texts, strict=True):
        gates = own(row, text, side).tolist()
        for i, j in text.cells():
            assert gates[i][j] == reference.gate(text, i, j, **granularity.as_dict()), (text, i, j)
            assert 0 <= gates[i][j] < granularity.gates


@SIDES
@pytest.mark.parametrize(("granularity", "gates"), BOTH_WAYS.values(), ids=BOTH_WAYS)
def test_every_cell_against_the_reference(granularity: Granularity, gates: int, side: str) -> None:
    assert granularity.gates == gates
    require_equal(granularity, TEXTS, side)


@SIDES
@pytest.mark.parametrize(("granularity", "gates"), ONE_WAY.values(), ids=ONE_WAY)
def test_every_cell_of_causal_attention(granularity: Granularity, gates: int, side: str) -> None:
    assert granularity.gates == gates
    require_equal(granularity, CAUSAL, side)


@SIDES
def test_without_special_tokens_there_is_one_zone(side: str) -> None:
    granularity = Granularity(name="offset", length=17)
    require_equal(granularity, PLAIN, side)
    at = positions_of(PLAIN, side=side)
    assert int(granularity.index(at)[at.valid].max()) < granularity.distances


def test_offsets_by_hand() -> None:
    """[CLS] a b [SEP]; masks on disk hold these numbers: they never change."""
    row = (Text(ids=(2, 9, 9, 3), cls=2, sep=3),)
    by_hand = {
        "signed": (False, [[10, 16, 15, 14], [11, 3, 2, 22], [12, 4, 3, 23], [13, 33, 32, 24]]),
        "symmetric": (True, [[4, 9, 10, 11], [5, 0, 1, 14], [6, 1, 0, 13], [7, 18, 17, 12]]),
    }
    for symmetric, gates in by_hand.values():
        granularity = Granularity(name="offset", length=4, symmetric=symmetric)
        assert granularity.index(positions_of(row))[0].tolist() == gates


def test_the_others_by_hand() -> None:
    """The lower triangle alone has gates in causal attention; blocks count along rows first."""
    causal = Granularity(name="offset", length=3, causal=True).index(positions_of(CAUSAL))
    lower = [row[: number + 1] for number, row in enumerate(causal[1, :4, :4].tolist())]
    assert lower == [[3], [4, 0], [5, 1, 0], [5, 2, 1, 0]]
    blocks = Granularity(name="block", length=6, block_size=2).index(positions_of((Text(ids=(7, 7, 7)),)))
    assert blocks[0].tolist() == [[0, 0, 1], [0, 0, 1], [3, 3, 4]]
    cells = Granularity(name="cell", length=3).index(positions_of((Text(ids=(7, 7, 7)),)))
    assert cells[0].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_the_zones() -> None:
    assert Granularity(name="offset", length=5, segment_aware=True).zones == reference.ZONES
    assert Granularity(name="offset", length=5).zones == reference.ZONES[:-1]
    assert Granularity(name="offset", length=5, segment_aware=True, causal=True).zones == reference.CAUSAL_ZONES


def test_gates_of_the_row_of_cls_are_one_a_cell() -> None:
    """One gate for the whole row would be closed first, and nothing would reach the classifier."""
    for symmetric in (False, True):
        granularity = Granularity(name="offset", length=17, symmetric=symmetric)
        gates = granularity.index(positions_of((TEXTS[1],)))[0]
        assert len(set(gates[0].tolist())) == len(set(gates[:, 0].tolist())) == 13
        assert not set(gates[0, 1:].tolist()) & set(gates[1:, 1:].reshape(-1).tolist())


def test_the_other_side_of_a_pair_is_apart_when_asked() -> None:
    pair = positions_of((TEXTS[1],))
    plain, aware = (
        Granularity(name="offset", length=17, segment_aware=aware).index(pair)[0] for aware in (False, True)
    )
    differ = {(i, j) for i, j in (plain != aware).nonzero().tolist()}
    assert differ == {(i, j) for i in range(1, 5) for j in range(6, 12)} | {
        (i, j) for i in range(6, 12) for j in range(1, 5)
    }


@SIDES
@pytest.mark.parametrize("name", ["cell", "block"])
def test_rows_beyond_the_length_are_refused_where_gates_are_of_positions(name: str, side: str) -> None:
    granularity = Granularity(name=name, length=12, block_size=3)
    assert granularity.limit == 12
    granularity.index(positions_of((SINGLE,), side=side, padding=31))  # padding is no token
    with pytest.raises(DataError) as caught:
        granularity.index(positions_of(TEXTS, side=side))
    assert str(caught.value) == (
        f"a mask by {name} covers 12 tokens, and a row has 13: cut the input, or learn the mask with a larger "
        "--max-length"
    )


@pytest.mark.parametrize("name", ["offset", "head"])
def test_rows_of_any_length_where_gates_are_of_distances(name: str) -> None:
    assert Granularity(name=name, length=2).limit is None
    require_equal(Granularity(name=name, length=2), TEXTS, "left")


@pytest.mark.parametrize("granularity", [row[0] for row in (*BOTH_WAYS.values(), *ONE_WAY.values())], ids=str)
def test_there_and_back(granularity: Granularity) -> None:
    values = granularity.as_dict()
    assert all(type(value) in (str, int, bool) for value in values.values())
    assert Granularity.from_dict(values) == granularity


GOOD: dict[str, Any] = Granularity(name="block", length=6, block_size=3).as_dict()
ENTRIES = "name, length, block_size, symmetric, segment_aware, causal"
MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, f"^a granularity has the entries {ENTRIES}, not {{}}: export the model again$"),
    "one too many": ({**GOOD, "stride": 2}, f"^a granularity has the entries {ENTRIES}, not "),
    **{
        f"without {name}": ({k: v for k, v in GOOD.items() if k != name}, f"^a granularity has the entries {ENTRIES}, ")
        for name in GOOD
    },
    **{
        f"{name}: {value!r}": ({**GOOD, name: value}, f"^a granularity has the entries {ENTRIES}, not ")
        for name, value in [
            ("name", None),
            ("name", 3),
            ("length", "6"),
            ("length", 6.0),
            ("length", True),
            ("block_size", None),
            ("symmetric", 1),
            ("segment_aware", "no"),
            ("causal", 0),
        ]
    },
    "unknown": (
        {**GOOD, "name": "row"},
        r"^a granularity that cannot be \(--granularity must be one of cell, offset, block, head, not 'row'\): export",
    ),
    "no token": ({**GOOD, "length": 0}, r"^a granularity that cannot be \(a mask must cover at least 1 token, not 0\)"),
    "does not divide": (
        {**GOOD, "block_size": 4},
        r"^a granularity that cannot be \(--block-size must divide .*\): export the model again$",
    ),
}


@pytest.mark.parametrize(("values", "text"), MALFORMED.values(), ids=MALFORMED)
def test_what_a_file_may_not_say(values: dict[str, Any], text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        Granularity.from_dict(values)


def test_a_long_mistake_is_told_in_short() -> None:
    with pytest.raises(CheckpointError) as caught:
        Granularity.from_dict({"name": "x" * 10_000})
    assert len(str(caught.value)) < 400


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": (
        {"name": "row", "length": 5},
        "--granularity must be one of cell, offset, block, head, not 'row'",
    ),
    "no token": ({"name": "cell", "length": 0}, "a mask must cover at least 1 token, not 0"),
    "no block": ({"name": "block", "length": 5, "block_size": 0}, "--block-size must be at least 1, not 0"),
    "does not divide": (
        {"name": "block", "length": 13, "block_size": 5},
        "--block-size must divide the maximum length, and 5 does not divide 13: choose another --block-size or "
        "--max-length",
    ),
}


@pytest.mark.parametrize(("values", "text"), REFUSED.values(), ids=REFUSED)
def test_what_can_not_be_meant_is_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Granularity(**values)
    assert str(caught.value) == text


def test_a_block_size_matters_to_blocks_alone() -> None:
    assert Granularity(name="cell", length=13, block_size=5).gates == 169


def test_the_table_says_what_each_is() -> None:
    assert list(GRANULARITIES) == ["cell", "offset", "block", "head"]
    assert all(kind.summary[0].islower() and kind.summary[-1] != "." for kind in GRANULARITIES.values())
