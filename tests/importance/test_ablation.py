"""Ablation against the reference run with the same cells taken away."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnprobe.importance import ablation
from attnprobe.importance.controls import matched_offset, matched_random
from attnprobe.importance.options import ABLATION_LEVELS, ImportanceOptions
from tests.helpers.probing import HEADS, MAX_OFFSET, ROWS, SITES, Row, Setting, batch_of, probing, series
from tests.helpers.probing import assert_close as close
from tests.importance.setting import MEASURED, cells_of, dense, reference
from tests.references.importance import Cell, cross_entropy, everywhere, kl, offset_cells

ALL_SITES, ALL_HEADS = range(SITES), range(HEADS)


def effect(
    row: Row, cells: list[Cell], *, site: int | None = None, head: int | None = None
) -> tuple[float, float, float]:
    """Change of the loss, KL from the dense output, predicted class."""
    sites = ALL_SITES if site is None else [site]
    heads = ALL_HEADS if head is None else [head]
    logits = reference().run(row.ids, row.types, removed=everywhere(cells, sites=sites, heads=heads)).logits
    before = dense(row).logits
    change = float(cross_entropy(logits, row.label) - cross_entropy(before, row.label))
    return change, kl(before, logits), float(logits.argmax())


def only(*levels: str, **changes: int) -> ImportanceOptions:
    return ImportanceOptions(ablation_levels=levels, **{"control_draws": 1} | changes)  # type: ignore[arg-type]


def test_classes_everywhere_by_site_and_by_head() -> None:
    with probing(Setting(options=only("class", "class_site", "class_head"))) as (context, item):
        found = ablation.measure(context, item)
    names = context.layout.classes
    for number, row in enumerate(ROWS):
        cells = cells_of(row)
        for place, name in enumerate(names):
            figures = {
                f"{level}/{what}": series(found, f"{level}/{what}")[number, place]
                for level in ("class", "class_site", "class_head")
                for what in ("loss", "kl", "prediction")
            }
            if not cells[name]:
                assert all(np.isnan(values).all() for values in figures.values())
                continue
            _same(figures, "class", (), effect(row, cells[name]))
            for site in ALL_SITES:
                _same(figures, "class_site", (site,), effect(row, cells[name], site=site))
                for head in ALL_HEADS:
                    _same(figures, "class_head", (site, head), effect(row, cells[name], site=site, head=head))


def _same(figures: dict[str, object], level: str, at: tuple[int, ...], expected: tuple[float, float, float]) -> None:
    loss, divergence, prediction = expected
    close(np.asarray(figures[f"{level}/loss"])[at], loss)
    close(np.asarray(figures[f"{level}/kl"])[at], divergence)
    close(np.asarray(figures[f"{level}/prediction"])[(*at, 0)], prediction)


def test_whole_sites_and_heads_are_left_empty() -> None:
    with probing(Setting(options=only("site", "head"))) as (context, item):
        found = ablation.measure(context, item)
    for number, row in enumerate(ROWS):
        for site in ALL_SITES:
            loss, divergence, _ = effect(row, MEASURED[row], site=site)
            close(series(found, "site/loss")[number, site], loss)
            close(series(found, "site/kl")[number, site], divergence)
            for head in ALL_HEADS:
                loss, divergence, _ = effect(row, MEASURED[row], site=site, head=head)
                close(series(found, "head/loss")[number, site, head], loss)
                close(series(found, "head/kl")[number, site, head], divergence)
    assert "site/control_loss" not in found.per_example


def test_offsets() -> None:
    with probing(Setting(options=only("offset"))) as (context, item):
        found = ablation.measure(context, item)
    for number, row in enumerate(ROWS):
        for place, offset in enumerate(range(-MAX_OFFSET, MAX_OFFSET + 1)):
            cells = offset_cells(MEASURED[row], offset)
            actual = series(found, "offset/loss")[number, place]
            if cells:
                close(actual, effect(row, cells)[0])
            else:
                assert np.isnan(actual)


def test_without_special_tokens_only_cells_of_ordinary_ones_are_removed() -> None:
    with probing(Setting(options=only("class"), include_special=False)) as (context, item):
        found = ablation.measure(context, item)
    assert context.layout.classes == ("diagonal", "previous", "next", "neighbour", "cross_segment", "other", "window")
    assert np.isnan(series(found, "class/loss")[-1]).all()  # [CLS] [SEP] has no ordinary token
    for number, row in enumerate(ROWS):
        cells = cells_of(row, include_special=False)
        for place, name in enumerate(context.layout.classes):
            if cells[name]:
                close(series(found, "class/loss")[number, place], effect(row, cells[name])[0])


def test_controls_are_means_over_the_cells_drawn() -> None:
    draws, offsets = 3, 2 * MAX_OFFSET + 1
    with probing(Setting(options=only("class", "offset", control_draws=draws))) as (context, item):
        found = ablation.measure(context, item)
        generator = torch.Generator().manual_seed(0)
        drawn = []
        for number in range(len(context.layout.classes)):
            drawn.append([matched_random(item.cells, number, generator) for _ in range(draws)])
        by_offset = [matched_offset(item.cells, offset, generator) for offset in context.layout.offsets]
    for place, masks in enumerate(drawn):
        for number, row in enumerate(ROWS):
            removed = [[(i, j) for i, j in mask[number].nonzero().tolist()] for mask in masks]
            actual = [series(found, f"class/control_{what}")[number, place] for what in ("loss", "kl", "cells")]
            if all(removed) and cells_of(row)[context.layout.classes[place]]:
                effects = [effect(row, cells) for cells in removed]
                close(actual[:2], np.mean([e[:2] for e in effects], axis=0))
                assert actual[2] == pytest.approx(np.mean([len(cells) for cells in removed]))
            else:
                assert np.isnan(actual).all()
    for place in range(offsets):
        cells = [(i, j) for i, j in by_offset[place][0].nonzero().tolist()]
        close(series(found, "offset/control_loss")[0, place], effect(ROWS[0], cells)[0])


def test_a_class_that_no_example_has_is_not_a_number() -> None:
    batch = batch_of(ROWS[3:])
    options = only("class", "class_site")
    with probing(Setting(batch=batch, classes=("cross_segment", "other"), options=options)) as (context, item):
        found = ablation.measure(context, item)
    for level, shape in {"class": (2, 2), "class_site": (2, 2, SITES)}.items():
        for what in ("loss", "kl"):
            values = series(found, f"{level}/{what}")
            assert values.shape == shape
            assert np.isnan(values).all()


def test_the_model_is_what_it_was() -> None:
    setting = Setting(options=ImportanceOptions(ablation_levels=ABLATION_LEVELS, control_draws=1))
    before = {name: tensor.clone() for name, tensor in setting.model.state_dict().items()}
    with torch.no_grad():
        logits = setting.model(**setting.batch.inputs).logits
    with probing(setting) as (context, item):
        ablation.measure(context, item)
    with torch.no_grad():
        assert torch.equal(setting.model(**setting.batch.inputs).logits, logits)
    assert all(torch.equal(tensor, before[name]) for name, tensor in setting.model.state_dict().items())


def test_each_example_is_the_same_alone_and_in_a_batch() -> None:
    with probing(Setting(options=only("class", "head"))) as (context, item):
        together = ablation.measure(context, item)
    for number, row in enumerate(ROWS):
        with probing(Setting(batch=batch_of((row,)), options=only("class", "head"))) as (context, item):
            alone = ablation.measure(context, item)
        for name in ("class/loss", "class/kl", "head/loss"):
            close(series(alone, name)[0], series(together, name)[number])
