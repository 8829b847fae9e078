"""First-order effects against the formulas taken cell by cell, and against finite differences of the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnprobe.data.positions import locate
from attnprobe.importance import taylor
from attnprobe.importance.cells import Cells
from attnprobe.importance.layout import Layout
from attnprobe.importance.options import ImportanceOptions
from tests.helpers.probing import HEADS, MAX_OFFSET, ROWS, SITES, Setting, batch_of, probing, series, tiny_bert
from tests.helpers.probing import assert_close as close
from tests.importance.setting import MEASURED, cells_of, dense, reference, slopes
from tests.references.importance import cross_entropy, everywhere, first_order, offset_cells

EXACT, SLOPE = ImportanceOptions(taylor_form="row-exact"), ImportanceOptions(taylor_form="derivative")


@pytest.mark.parametrize("include_special", [True, False])
@pytest.mark.parametrize("options", [EXACT, SLOPE], ids=lambda o: o.taylor_form)
def test_classes_and_offsets_against_the_formula(options: ImportanceOptions, include_special: bool) -> None:
    with probing(Setting(options=options, include_special=include_special)) as (context, item):
        found = taylor.measure(context, item)
    exact = options is EXACT
    for number, row in enumerate(ROWS):
        trace = dense(row)
        g = slopes(row)
        cells = cells_of(row, include_special=include_special)
        for place, name in enumerate(context.layout.classes):
            actual = series(found, "class_head/loss")[number, place]
            if not cells[name]:
                assert np.isnan(actual).all()
                continue
            expected = [
                [first_order(trace, g, cells[name], site=site, head=head, exact=exact) for head in range(HEADS)]
                for site in range(SITES)
            ]
            close(actual, expected)
            close(series(found, "class_site/loss")[number, place], np.sum(expected, axis=1))
            close(series(found, "class/loss")[number, place], np.sum(expected))
        measured = [cell for cell in MEASURED[row] if cell in {*cells["diagonal"], *_beside(cells)}]
        for place, offset in enumerate(range(-MAX_OFFSET, MAX_OFFSET + 1)):
            chosen = offset_cells(measured, offset)
            actual = series(found, "offset/loss")[number, place]
            if not chosen:
                assert np.isnan(actual)
                continue
            places = [(site, head) for site in range(SITES) for head in range(HEADS)]
            close(actual, sum(first_order(trace, g, chosen, site=s, head=h, exact=exact) for s, h in places))


def _beside(cells: dict[str, list[tuple[int, int]]]) -> list[tuple[int, int]]:
    return [cell for name in ("special", "window", "cross_segment", "other") for cell in cells[name]]


def test_heads_and_sites_are_minus_g_dot_o() -> None:
    with probing(Setting(options=EXACT)) as (context, item):
        found = taylor.measure(context, item)
    for number, row in enumerate(ROWS):
        trace = dense(row)
        g = slopes(row)
        expected = [
            [
                -sum(float(a @ o) for a, o in zip(g[site][head], trace.o[site][head], strict=True))
                for head in range(HEADS)
            ]
            for site in range(SITES)
        ]
        close(series(found, "head/loss")[number], expected)
        close(series(found, "site/loss")[number], np.sum(expected, axis=1))


def test_the_derivative_is_the_slope_of_the_loss() -> None:
    """Central differences: the class's cells are gated by 1 - e and 1 + e, their rows renormalised."""
    step = 1e-5
    with probing(Setting(options=SLOPE)) as (context, item):
        found = taylor.measure(context, item)
    row = ROWS[0]
    n = len(row.ids)
    for place, name in enumerate(context.layout.classes):
        for site, head in [(0, 1), (1, 2)] if cells_of(row)[name] else []:
            losses = []
            for factor in (1 - step, 1 + step):
                gate = torch.ones(SITES, HEADS, n, n, dtype=torch.float64)
                for cell in everywhere(cells_of(row)[name], sites=[site], heads=[head]):
                    gate[cell] = factor
                logits = reference().run(row.ids, row.types, factors=gate).logits
                losses.append(float(cross_entropy(logits, row.label)))
            slope = (losses[0] - losses[1]) / (2 * step)
            close(series(found, "class_head/loss")[0, place, site, head], slope, rtol=1e-4, atol=1e-6)


def test_whole_heads_against_finite_differences() -> None:
    """Not renormalised: the head's output fades."""
    step = 1e-5
    with probing(Setting(options=EXACT)) as (context, item):
        found = taylor.measure(context, item)
    row = ROWS[1]
    n = len(row.ids)
    for site, head in [(0, 0), (1, 1)]:
        losses = []
        for factor in (1 - step, 1 + step):
            gate = torch.ones(SITES, HEADS, n, n, dtype=torch.float64)
            gate[site, head] = factor
            logits = reference().run(row.ids, row.types, factors=gate, renormalise=False).logits
            losses.append(float(cross_entropy(logits, row.label)))
        close(series(found, "head/loss")[1, site, head], (losses[0] - losses[1]) / (2 * step), rtol=1e-4)


def test_derivatives_of_a_row_sum_to_zero() -> None:
    """Scaling all cells of a row changes nothing, so the partition's slopes cancel; removals do not."""
    partition = ("diagonal", "special", "previous", "next", "neighbour", "cross_segment", "other")
    sums = {}
    for options in (SLOPE, EXACT):
        with probing(Setting(options=options, classes=partition)) as (context, item):
            sums[options] = np.nansum(series(taylor.measure(context, item), "class_head/loss"), axis=1)
    close(sums[SLOPE], np.zeros_like(sums[SLOPE]), atol=1e-6)
    assert np.abs(sums[EXACT]).max() > 1e-3


def test_a_row_of_which_nothing_is_left() -> None:
    """By hand, under causal attention: the first token has one key, itself; without it there is no o."""
    at = locate(
        {"input_ids": torch.tensor([[5, 6]]), "attention_mask": torch.ones(1, 2, dtype=torch.long)},
        torch.zeros(1, 2, dtype=torch.bool),
        None,
        cls_id=None,
        sep_id=None,
        causal=True,
    )
    layout = Layout(sites=1, heads=1, causal=True, classes=("diagonal", "first_key"), offsets=(0, 1))
    effects = taylor._Effects(Cells(at, layout), layout, "row-exact")
    effects._add(0, torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]]), torch.tensor([[[[2.0, 3.0], [4.0, 8.0]]]]))
    first, second = 2.0, 0.25 * 4 + 0.75 * 8  # g . o of either row
    assert effects.class_head[0, :, 0, 0].tolist() == [-first + (4 - second), 8 - second]
    assert effects.offset[0].tolist() == pytest.approx([-first + (4 - second), 8 - second])
    assert effects.head[0, 0, 0].item() == -first - second


def test_rows_of_a_single_other_key() -> None:
    row = ROWS[4]
    trace = dense(row)
    g = slopes(row)
    with probing(Setting(batch=batch_of((row,)), options=EXACT, classes=("special", "diagonal"))) as (context, item):
        found = taylor.measure(context, item)
    for place, name in enumerate(context.layout.classes):
        for site in range(SITES):
            for head in range(HEADS):
                expected = first_order(trace, g, cells_of(row)[name], site=site, head=head, exact=True)
                close(series(found, "class_head/loss")[0, place, site, head], expected)


def test_row_exact_is_g_times_what_ablation_does_to_a_row() -> None:
    """[CLS]'s row at one head: the output of an actual run without the cells, less the dense one, times g."""
    row, query = ROWS[0], 0
    with probing(Setting(options=EXACT)) as (context, item):
        found = taylor.measure(context, item)
    cells = cells_of(row)["cls_query"]
    place = context.layout.classes.index("cls_query")
    for site in range(SITES):
        for head in range(HEADS):
            removed = everywhere(cells, sites=[site], heads=[head])
            after = reference().run(row.ids, row.types, removed=removed).o[site][head][query]
            change = float(slopes(row)[site][head][query] @ (after - dense(row).o[site][head][query]))
            close(series(found, "class_head/loss")[0, place, site, head], change)
            assert abs(change) > 1e-5


def test_float32_and_no_trace_left_behind() -> None:
    with probing(Setting(options=EXACT)) as (context, item):
        wide = taylor.measure(context, item)
    setting = Setting(options=EXACT, model=tiny_bert(torch.float32))
    frozen = next(iter(setting.model.parameters()))
    frozen.requires_grad_(False)
    with probing(setting) as (context, item):
        narrow = taylor.measure(context, item)
    close(series(narrow, "class/loss"), series(wide, "class/loss"), rtol=1e-3, atol=1e-4)
    parameters = list(setting.model.parameters())
    assert all(p.grad is None for p in parameters)
    assert [p.requires_grad for p in parameters] == [False] + [True] * (len(parameters) - 1)


def test_each_example_is_the_same_alone_and_in_a_batch() -> None:
    with probing(Setting(options=EXACT)) as (context, item):
        together = taylor.measure(context, item)
    for number, row in enumerate(ROWS):
        with probing(Setting(batch=batch_of((row,)), options=EXACT)) as (context, item):
            alone = taylor.measure(context, item)
        for name in ("class_head/loss", "head/loss", "site/loss"):
            close(series(alone, name)[0], series(together, name)[number])
