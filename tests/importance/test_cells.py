"""Sums over cells, by class and by offset: one example counted by hand, on either side of padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnprobe.data.positions import BIDIRECTIONAL, Positions, locate
from attnprobe.importance.cells import Cells
from attnprobe.importance.controls import matched_random
from attnprobe.importance.layout import Layout
from tests.helpers.tolerance import assert_identical, assert_near

PAD, CLS, SEP = 0, 1, 2
TOKENS = (CLS, 11, 12, 13, 14, SEP)
PADDING = 2

COUNTS = {
    "diagonal": 6,
    "cls_key": 5,
    "cls_query": 5,
    "sep_key": 4,
    "sep_query": 4,
    "previous": 3,
    "next": 3,
    "neighbour": 4,
    "cross_segment": 0,
    "other": 2,
    "cls": 10,
    "sep": 8,
    "special": 18,
    "window": 16,
}
"""Cells of [CLS] a b c d [SEP] at a window of 2."""

each_side = pytest.mark.parametrize("side", ["right", "left"])


def _layout(*, causal: bool = False, reach: int = 3) -> Layout:
    names = ("first_key", "sep_query", "sep_key", "window") if causal else tuple(COUNTS)
    offsets = tuple(range(0 if causal else -reach, reach + 1))
    return Layout(sites=1, heads=2, causal=causal, classes=names, offsets=offsets)


def _positions(side: str, *, causal: bool = False, include_special: bool = True) -> Positions:
    """[CLS] a b c d [SEP] and, as another row, [CLS] a [SEP]."""
    width = len(TOKENS) + PADDING
    ids = torch.full((2, width), PAD)
    for row, tokens in enumerate((TOKENS, (CLS, 11, SEP))):
        columns = slice(0, len(tokens)) if side == "right" else slice(width - len(tokens), width)
        ids[row, columns] = torch.tensor(tokens)
    return locate(
        {"input_ids": ids, "attention_mask": (ids != PAD).long()},
        (ids == CLS) | (ids == SEP),
        None,
        cls_id=CLS,
        sep_id=SEP,
        causal=causal,
        window=2,
        include_special=include_special,
    )


def _cells(side: str, *, causal: bool = False, include_special: bool = True) -> Cells:
    return Cells(_positions(side, causal=causal, include_special=include_special), _layout(causal=causal))


def _values(heads: int = 2) -> Tensor:
    """A different number in every cell: (batch, heads, queries, keys)."""
    width = len(TOKENS) + PADDING
    return torch.randn(2, heads, width, width, generator=torch.Generator().manual_seed(23), dtype=torch.float64)


@each_side
def test_counts_by_class(side: str) -> None:
    counts = _cells(side).counts
    assert dict(zip(COUNTS, counts[0].int().tolist(), strict=True)) == COUNTS
    short = dict(zip(COUNTS, counts[1].int().tolist(), strict=True))
    assert {name: count for name, count in short.items() if name in BIDIRECTIONAL and count} == {
        "diagonal": 3,
        "cls_key": 2,
        "cls_query": 2,
        "sep_key": 1,
        "sep_query": 1,
    }


@each_side
def test_counts_by_row(side: str) -> None:
    """[CLS]'s row, and that of b: [CLS] | a | itself | c | d | [SEP]."""
    counts = _cells(side).row_counts[0]
    first = 0 if side == "right" else PADDING
    names = [*BIDIRECTIONAL, "not measured"]
    assert _present(names, counts[first]) == {"diagonal": 1, "cls_query": 5}
    assert _present(names, counts[first + 2]) == {
        "cls_key": 1,
        "previous": 1,
        "diagonal": 1,
        "next": 1,
        "neighbour": 1,
        "sep_key": 1,
    }
    padded = counts[6:] if side == "right" else counts[:PADDING]
    assert not padded.any()


@each_side
def test_cells_that_are_not_measured_are_counted_apart(side: str) -> None:
    """Without special tokens: 4 x 4 cells of the first row, 1 x 1 of the second; the rest of 36 and 9 is outside."""
    cells = _cells(side, include_special=False)
    assert cells.row_counts[..., :-1].sum((1, 2)).tolist() == [16, 1]
    assert cells.row_counts[..., -1].sum(1).tolist() == [36 - 16, 9 - 1]


@each_side
def test_counts_by_offset(side: str) -> None:
    """n - |i - j| cells at an offset of a row of n tokens; what lies beyond the reach is left out."""
    counts = _cells(side).offset_counts
    assert counts.tolist() == [[3, 4, 5, 6, 5, 4, 3], [0, 1, 2, 3, 2, 1, 0]]
    causal = _cells(side, causal=True).offset_counts
    assert causal.tolist() == [[6, 5, 4, 3], [3, 2, 1, 0]]


@each_side
def test_sums_are_over_the_cells_that_the_names_say(side: str) -> None:
    cells, values = _cells(side), _values()
    by_class = cells.by_class(values)
    for number in range(len(COUNTS)):
        chosen = cells.of(number)
        assert chosen.sum((1, 2)).tolist() == cells.counts[:, number].tolist()
        assert_near(by_class[..., number], (values * chosen.unsqueeze(1)).sum((2, 3)))
    by_offset = cells.by_offset(values[:, 0])
    for number, offset in enumerate(cells.layout.offsets):
        chosen = cells.of_offset(offset)
        assert chosen.sum((1, 2)).tolist() == cells.offset_counts[:, number].tolist()
        assert_near(by_offset[:, number], (values[:, 0] * chosen).sum((1, 2)))
    whole = cells.by_row_and_class(values).sum((2, 3))
    assert_near(whole, (values * cells.at.valid.unsqueeze(1)).sum((2, 3)))


def test_both_sides_of_padding_have_the_same_cells() -> None:
    right, left = _cells("right"), _cells("left")
    assert_identical(left.map[0, PADDING:, PADDING:], right.map[0, :-PADDING, :-PADDING])
    assert_identical(left.map[1, -3:, -3:], right.map[1, :3, :3])
    assert_identical(left.counts, right.counts)


@each_side
@pytest.mark.parametrize("causal", [False, True])
def test_controls_stay_within_valid_cells_of_no_class_of_theirs(side: str, causal: bool) -> None:
    """In every row as many as the class, or all that there are, whichever side the padding is on."""
    cells = _cells(side, causal=causal)
    for number, name in enumerate(cells.layout.classes):
        chosen = cells.of(number)
        drawn = matched_random(cells, number, torch.Generator().manual_seed(29))
        assert not (drawn & ~cells.at.valid).any()
        if name in ("cls", "sep", "special"):  # unions with whole rows: an ordinary row stands for [CLS]'s
            continue
        assert not (drawn & chosen).any()
        if name not in ("cls_query", "sep_query"):
            others = (cells.at.valid & ~chosen).sum(-1)
            assert_identical(drawn.sum(-1), torch.minimum(chosen.sum(-1), others))


def test_a_row_class_without_ordinary_rows_has_no_control() -> None:
    """[CLS] [SEP]: there is no other token whose row could be closed."""
    ids = torch.tensor([[CLS, SEP]])
    special = torch.ones_like(ids, dtype=torch.bool)
    at = locate({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, special, None, cls_id=CLS, sep_id=SEP)
    cells = Cells(at, _layout())
    number = cells.layout.classes.index("cls_query")
    assert cells.of(number).sum() == 1
    assert not matched_random(cells, number, torch.Generator().manual_seed(0)).any()


def _present(names: list[str], counts: Tensor) -> dict[str, int]:
    return {name: count for name, count in zip(names, counts.int().tolist(), strict=True) if count}
