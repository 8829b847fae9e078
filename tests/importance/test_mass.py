"""Shares of attention against sums over cells, and a five-token example worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attnprobe.importance import mass
from tests.helpers.probing import HEADS, MAX_OFFSET, ROWS, SITES, Row, Setting, batch_of, probing, series, tiny_bert
from tests.helpers.probing import assert_close as close
from tests.importance.setting import MEASURED, cells_of, dense, reference
from tests.references.importance import offset_cells, share, uniform_share


def test_the_reference_is_the_same_model() -> None:
    """Ahead of everything: the hand-written forward pass gives the model's own logits, padded or not."""
    model = tiny_bert()
    with torch.no_grad():
        logits = model(**batch_of().inputs).logits
    for row, expected in zip(ROWS, logits, strict=True):
        close(dense(row).logits, expected, rtol=1e-10, atol=1e-12)
    other = reference().run(ROWS[0].ids, ROWS[0].types, removed=[(1, 2, 0, 3)]).logits
    assert float((other - logits[0]).abs().max()) > 1e-4


@pytest.mark.parametrize("include_special", [True, False])
def test_shares_by_class_site_and_head(include_special: bool) -> None:
    setting = Setting(include_special=include_special, classes=("diagonal", "next", "neighbour", "other", "window"))
    setting = setting if not include_special else Setting()
    with probing(setting) as (context, item):
        found = mass.measure(context, item)
    shares, uniform = series(found, "class_head/share"), series(found, "class_head/uniform")
    expected, even = np.full(shares.shape, np.nan), np.full(shares.shape, np.nan)
    for number, row in enumerate(ROWS):
        cells = cells_of(row, include_special=include_special)
        measured = [cell for name in ("diagonal", *_OFF_DIAGONAL) for cell in cells[name]]
        for place, name in enumerate(context.layout.classes):
            if not cells[name]:
                continue
            even[number, place] = uniform_share(cells[name], measured)
            for site in range(SITES):
                for head in range(HEADS):
                    p = dense(row).p[site][head]
                    expected[number, place, site, head] = share(p, cells[name], measured)
    close(shares, expected)
    close(uniform, even)
    close(series(found, "class_site/share"), expected.mean(3))
    close(series(found, "class_site/uniform"), even.mean(3))
    close(series(found, "class/share"), expected.mean((2, 3)))
    close(series(found, "class/uniform"), even[:, :, 0, 0])
    assert np.isfinite(expected).any()
    assert np.isnan(expected).any()


_OFF_DIAGONAL = (
    *("cls_key", "cls_query", "sep_key", "sep_query"),
    *("previous", "next", "neighbour", "cross_segment", "other"),
)


def test_shares_of_the_partition_sum_to_one() -> None:
    with probing(Setting(classes=("diagonal", *_OFF_DIAGONAL))) as (context, item):
        found = mass.measure(context, item)
    for name in ("share", "uniform"):
        close(np.nansum(series(found, f"class_head/{name}"), axis=1), np.ones((len(ROWS), SITES, HEADS)))


def test_shares_by_offset() -> None:
    with probing(Setting()) as (context, item):
        found = mass.measure(context, item)
    assert context.layout.offsets == tuple(range(-MAX_OFFSET, MAX_OFFSET + 1))
    expected = np.full((len(ROWS), 2 * MAX_OFFSET + 1), np.nan)
    even = np.full_like(expected, np.nan)
    for number, row in enumerate(ROWS):
        measured = MEASURED[row]
        for place, offset in enumerate(range(-MAX_OFFSET, MAX_OFFSET + 1)):
            cells = offset_cells(measured, offset)
            if cells:
                heads = [p for site in dense(row).p for p in site]
                expected[number, place] = sum(share(p, cells, measured) for p in heads) / len(heads)
                even[number, place] = uniform_share(cells, measured)
    close(series(found, "offset/share"), expected)
    close(series(found, "offset/uniform"), even)


def test_five_tokens_with_two_sep_and_padding_by_hand() -> None:
    """[CLS] a [SEP] b [SEP] and two of padding, under attention that is uniform because all queries are 0.

    Of 25 cells: 5 on the diagonal; column 0 below it: 4; row 0 right of it: 4; columns 2 and 4 in rows 1, 3 and in
    each other's: 6; rows 2 and 4 at a and b: 4; a to b and b to a, two apart: 2.
    """
    row = ROWS[2]
    longer = Row(ids=(*ROWS[0].ids,), segments=ROWS[0].segments, label=1)
    model = tiny_bert()
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.attention.self.query.weight.zero_()
            layer.attention.self.query.bias.zero_()
    with probing(Setting(model=model, batch=batch_of((row, longer)))) as (context, item):
        found = mass.measure(context, item)
        counts = item.cells.counts[0].tolist()
    shares = dict(zip(context.layout.classes, series(found, "class/share")[0], strict=True))
    cells = dict(zip(context.layout.classes, counts, strict=True))
    by_hand = {
        **{"diagonal": 5, "cls_key": 4, "cls_query": 4, "sep_key": 6, "sep_query": 4, "neighbour": 2},
        **{"cls": 8, "sep": 10, "special": 18, "window": 7},
    }
    for name, count in by_hand.items():
        assert cells[name] == count
        close(shares[name], count / 25)
    for name in ("previous", "next", "cross_segment", "other"):
        assert cells[name] == 0
        assert math.isnan(shares[name])
    offsets = dict(zip(context.layout.offsets, series(found, "offset/share")[0], strict=True))
    for offset, count in {0: 5, 1: 4, -1: 4, 2: 3, -2: 3, 3: 2, -3: 2}.items():
        close(offsets[offset], count / 25)
    close(series(found, "class/share")[0], series(found, "class/uniform")[0])
    close(series(found, "head/entropy-included")[0], np.full((SITES, HEADS), math.log(5)))
    close(series(found, "head/normalised-excluded")[0], np.ones((SITES, HEADS)))
    close(series(found, "head/jsd-included")[0, 1], np.zeros(HEADS))


def test_each_example_is_the_same_alone_and_in_a_batch() -> None:
    with probing(Setting()) as (context, item):
        together = mass.measure(context, item)
    for number, row in enumerate(ROWS):
        with probing(Setting(batch=batch_of((row,)))) as (context, item):
            alone = mass.measure(context, item)
        for name, values in alone.per_example.items():
            if not name.startswith("offset"):  # alone, a short row has fewer offsets
                close(values[0], together.per_example[name][number])
