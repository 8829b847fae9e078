"""Integrated gradients against a quadrature of the reference's own gradients, and their completeness."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnprobe.importance import integrated_gradients
from attnprobe.importance.options import ImportanceOptions
from attnprobe.objectives import SequenceFidelity
from tests.helpers.probing import HEADS, MAX_OFFSET, ROWS, SITES, Row, Setting, batch_of, probing, series
from tests.helpers.probing import assert_close as close
from tests.importance.setting import MEASURED, cells_of, reference
from tests.references.importance import cross_entropy, everywhere, offset_cells

ALL = {"sites": range(SITES), "heads": range(HEADS)}


def loss_at(row: Row, gate: torch.Tensor) -> torch.Tensor:
    logits = reference().run(row.ids, row.types, factors=gate, renormalise=False).logits
    return cross_entropy(logits, row.label)


def attributions(row: Row, nodes: np.ndarray[tuple[int], np.dtype[np.float64]], weights: object) -> torch.Tensor:
    """(sites, heads, queries, keys): the integral of dL/dgate along the line from 0 to 1."""
    n = len(row.ids)
    total = torch.zeros(SITES, HEADS, n, n, dtype=torch.float64)
    for node, weight in zip(nodes, np.asarray(weights), strict=True):
        gate = torch.full_like(total, float(node)).requires_grad_()
        total += float(weight) * torch.autograd.grad(loss_at(row, gate), gate)[0]
    return total


def gauss(steps: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], object]:
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return (nodes + 1) / 2, weights / 2


def test_the_reference_gradient_is_a_slope() -> None:
    row, step = ROWS[2], 1e-6
    n = len(row.ids)
    gate = torch.full((SITES, HEADS, n, n), 0.7, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss_at(row, gate), gate)
    for place in [(0, 1, 2, 3), (1, 2, 0, 4), (0, 0, 4, 4)]:
        up, down = gate.detach().clone(), gate.detach().clone()
        up[place] += step
        down[place] -= step
        close(slope[place], (loss_at(row, up) - loss_at(row, down)) / (2 * step), rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("internal_batch_size", [1, 7])
def test_every_level_against_a_quadrature(internal_batch_size: int) -> None:
    steps = 5
    options = ImportanceOptions(n_steps=steps, internal_batch_size=internal_batch_size)
    with probing(Setting(options=options)) as (context, item):
        found = integrated_gradients.measure(context, item)
    for number, row in enumerate(ROWS):
        expected = -attributions(row, *gauss(steps))
        for place, name in enumerate(context.layout.classes):
            cells = cells_of(row)[name]
            actual = series(found, "class_head/loss")[number, place]
            if not cells:
                assert np.isnan(actual).all()
                continue
            by_head = [
                [sum(float(expected[c]) for c in everywhere(cells, sites=[s], heads=[h])) for h in range(HEADS)]
                for s in range(SITES)
            ]
            close(actual, by_head, atol=1e-6)
            close(series(found, "class_site/loss")[number, place], np.sum(by_head, axis=1), atol=1e-6)
            close(series(found, "class/loss")[number, place], np.sum(by_head), atol=1e-6)
        close(series(found, "head/loss")[number], expected.sum((2, 3)), atol=1e-6)
        close(series(found, "site/loss")[number], expected.sum((1, 2, 3)), atol=1e-6)
        for place, offset in enumerate(range(-MAX_OFFSET, MAX_OFFSET + 1)):
            cells = offset_cells(MEASURED[row], offset)
            if cells:
                total = sum(float(expected[c]) for c in everywhere(cells, **ALL))
                close(series(found, "offset/loss")[number, place], total, atol=1e-6)


def test_a_riemann_sum_gives_the_same_integral() -> None:
    row, steps = ROWS[3], 400
    middle = (np.arange(steps) + 0.5) / steps
    with probing(Setting(batch=batch_of((row,)), options=ImportanceOptions(n_steps=64))) as (context, item):
        found = integrated_gradients.measure(context, item)
    expected = -attributions(row, middle, np.full(steps, 1 / steps)).sum((2, 3))
    close(series(found, "head/loss")[0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("objective", [None, SequenceFidelity()], ids=["task", "fidelity"])
def test_completeness(objective: SequenceFidelity | None) -> None:
    """Everything the loss changes by, from all gates closed to all open, is attributed: less than 0.1 % is missing."""
    options = ImportanceOptions(n_steps=64)
    setting = Setting(options=options) if objective is None else Setting(options=options, objective=objective)
    with probing(setting) as (context, item):
        found = integrated_gradients.measure(context, item)
    gap, total = series(found, "completeness/gap"), series(found, "completeness/total")
    assert np.abs(gap).mean() < 1e-3 * np.abs(total).mean()
    close(series(found, "site/loss").sum(1), -(total + gap), atol=1e-5)
    if objective is None:
        for number, row in enumerate(ROWS):
            n = len(row.ids)
            ends = [torch.full((SITES, HEADS, n, n), end, dtype=torch.float64) for end in (0.0, 1.0)]
            closed, open_ = (float(loss_at(row, gate)) for gate in ends)
            close(total[number], open_ - closed, rtol=1e-4, atol=1e-5)


def test_too_few_steps_are_incomplete() -> None:
    with probing(Setting(options=ImportanceOptions(n_steps=1))) as (context, item):
        found = integrated_gradients.measure(context, item)
    gap, total = series(found, "completeness/gap"), series(found, "completeness/total")
    assert np.abs(gap).mean() > 1e-3 * np.abs(total).mean()


def test_each_example_is_the_same_alone_and_in_a_batch() -> None:
    options = ImportanceOptions(n_steps=3, max_cells=400)
    with probing(Setting(options=options)) as (context, item):
        together = integrated_gradients.measure(context, item)
    for number, row in enumerate(ROWS):
        with probing(Setting(batch=batch_of((row,)), options=options)) as (context, item):
            alone = integrated_gradients.measure(context, item)
        for name in ("class/loss", "head/loss", "completeness/gap"):
            close(series(alone, name)[0], series(together, name)[number], atol=1e-6)
