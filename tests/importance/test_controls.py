"""Matched random cells: as many in every row, from the row's others, each of them as likely."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from attnprobe.importance.controls import matched_offset, matched_random
from tests.helpers.probing import MAX_OFFSET, ROWS, Setting, probing
from tests.importance.setting import MEASURED, cells_of

ORDINARY = ("diagonal", "cls_key", "sep_key", "previous", "next", "neighbour", "cross_segment", "other", "window")
WHOLE_ROWS = ("cls_query", "sep_query")


@pytest.mark.parametrize("include_special", [True, False])
def test_every_row_has_as_many_from_its_other_cells(include_special: bool) -> None:
    with probing(Setting(include_special=include_special)) as (context, item):
        generator = torch.Generator().manual_seed(3)
        for place, name in enumerate(context.layout.classes):
            if name not in ORDINARY:
                continue
            drawn = matched_random(item.cells, place, generator)
            for number, row in enumerate(ROWS):
                cells = cells_of(row, include_special=include_special)
                mine = {(i, j) for i, j in drawn[number].nonzero().tolist()}
                everything = {c for kind in ("diagonal", "special", *ORDINARY) for c in cells[kind]}
                assert not mine & set(cells[name])
                assert mine <= everything
                for i in range(len(row.ids)):
                    others = sum(c[0] == i for c in everything) - sum(c[0] == i for c in cells[name])
                    asked = sum(c[0] == i for c in cells[name])
                    assert sum(c[0] == i for c in mine) == min(asked, others)


def test_whole_rows_are_matched_by_rows_of_ordinary_tokens() -> None:
    with probing(Setting()) as (context, item):
        generator = torch.Generator().manual_seed(5)
        for name in WHOLE_ROWS:
            place = context.layout.classes.index(name)
            drawn = matched_random(item.cells, place, generator)
            for number, row in enumerate(ROWS):
                mine = [(i, j) for i, j in drawn[number].nonzero().tolist()]
                ordinary = [i for i, segment in enumerate(row.segments) if segment >= 0]
                assert all(i in ordinary and i != j and j < len(row.ids) for i, j in mine)
                asked = sorted(Counter(i for i, _ in cells_of(row)[name]).values(), reverse=True)
                possible = [min(count, len(row.ids) - 1) for count in asked[: len(ordinary)]]
                assert sorted(Counter(i for i, _ in mine).values(), reverse=True) == possible


def test_unions_have_a_part_of_each_kind() -> None:
    with probing(Setting()) as (context, item):
        place = context.layout.classes.index("cls")
        drawn = matched_random(item.cells, place, torch.Generator().manual_seed(7))
    for number, row in enumerate(ROWS[:3]):
        mine = {(i, j) for i, j in drawn[number].nonzero().tolist()}
        moved = Counter(i for i, _ in mine).most_common(1)[0]
        assert moved[1] == len(row.ids) - 1  # [CLS]'s row went to this one
        assert (moved[0], moved[0]) not in mine  # as [CLS]'s does, it keeps its diagonal
        assert not any(i == 0 for i, _ in mine)
        assert len(mine) <= len(cells_of(row)["cls"])


def test_cells_of_a_row_are_equally_likely() -> None:
    draws = 600
    with probing(Setting()) as (context, item):
        generator = torch.Generator().manual_seed(11)
        place = context.layout.classes.index("previous")
        total = sum(matched_random(item.cells, place, generator)[1].double() for _ in range(draws))
    assert isinstance(total, torch.Tensor)
    row, n = total[3, : len(ROWS[1].ids)], len(ROWS[1].ids)
    share = 1 / (n - 1)
    error = np.sqrt(share * (1 - share) / draws)
    assert row[2] == 0  # the previous token itself
    assert all(abs(float(count) / draws - share) < 4 * error for j, count in enumerate(row) if j != 2)


def test_offsets_are_matched_by_one_cell_a_row() -> None:
    with probing(Setting()) as (_, item):
        generator = torch.Generator().manual_seed(13)
        for offset in range(-MAX_OFFSET, MAX_OFFSET + 1):
            drawn = matched_offset(item.cells, offset, generator)
            for number, row in enumerate(ROWS):
                mine = [(i, j) for i, j in drawn[number].nonzero().tolist()]
                rows = [i for i, j in MEASURED[row] if i - j == offset and len(row.ids) > 1]
                assert sorted(i for i, _ in mine) == rows
                assert all(i - j != offset for i, j in mine)


def test_the_same_generator_draws_the_same() -> None:
    with probing(Setting()) as (context, item):
        place = context.layout.classes.index("sep_key")
        first, again, other = (
            matched_random(item.cells, place, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
        )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
