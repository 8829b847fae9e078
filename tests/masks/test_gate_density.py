"""The density of gates: expected, drawn on average, held from step to step, and left alone by the gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnprobe.masks.gates import Gates
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import DIAGONALS
from tests.helpers.tolerance import assert_identical, assert_near
from tests.masks.gated import (
    EVERY_DIAGONAL,
    EVERY_RELAXATION,
    EVERY_SHARING,
    KINDS,
    density,
    make,
    scatter,
)
from tests.references import masks as reference


def reference_density(gates: Gates, relaxation: str) -> float:
    seen = gates.counts.seen
    return reference.expected_density(
        gates.logits.detach().double().flatten(0, 1).tolist(),
        gates.counts.cells[seen].tolist(),
        fixed=gates.counts.fixed,
        valid=gates.counts.valid,
        relaxation=relaxation,
        temperature=gates.temperature,
        smoothness=gates.smoothness,
    )


@EVERY_DIAGONAL
@EVERY_RELAXATION
def test_expected_density_against_the_reference(relaxation: str, diagonal: str) -> None:
    for granularity in KINDS.values():
        gates = scatter(make(granularity, diagonal=diagonal, relaxation=relaxation))
        for gates.temperature in (0.005, 0.5, 1.0, 3.0):
            assert gates.density().dtype == torch.float64
            assert density(gates) == pytest.approx(reference_density(gates, relaxation), abs=1e-12)


@EVERY_RELAXATION
def test_expected_density_is_the_mean_of_what_is_drawn(relaxation: str) -> None:
    gates = scatter(make(relaxation=relaxation), scale=1.0)
    gates.temperature = 0.5
    weight = gates.counts.cells[gates.counts.seen].double() / gates.counts.valid
    shares = []
    for gates.step in range(400):
        drawn = gates.draw().detach().double()[..., :-2]
        opened = (drawn > (0.5 if relaxation == "soft" else 0.0)).double()
        shares.append(float((opened @ weight).mean()))
    mean = torch.tensor(shares).mean()
    error = torch.tensor(shares).std() / len(shares) ** 0.5
    assert abs(float(mean) - density(gates)) < 4 * float(error)


LOGITS = {"alike": (0.0, 3.0), "near": (0.3, 3.0), "wide": (30.0, 50.0), "high": (1.0, 1000.0), "low": (1.0, -1000.0)}


@EVERY_DIAGONAL
@EVERY_SHARING
@EVERY_RELAXATION
def test_a_density_is_held(relaxation: str, share: str, diagonal: str) -> None:
    """From any logits, at any temperature, in the first step and in later ones; the order of the gates stays."""
    gates = make(diagonal=diagonal, relaxation=relaxation, share=share)
    for number, (scale, at) in enumerate(LOGITS.values()):
        for temperature in (0.005, 0.5, 20.0):
            scatter(gates, scale=scale, at=at)
            gates.step, gates.temperature = number % 2, temperature
            before = gates.logits.detach().clone()
            for wanted in (0.5, 0.2, gates.fixed_share + 0.01):
                gates.hold(wanted)
                assert density(gates) == pytest.approx(wanted, abs=1e-6)
            moved = (gates.logits.detach() - before).double()
            assert float(moved.max() - moved.min()) < 3e-4


@pytest.mark.parametrize("granularity", KINDS.values(), ids=KINDS)
def test_a_density_is_held_while_temperature_and_logits_change(granularity: Granularity) -> None:
    """As in training, and faster: steps of 0.1, a temperature that falls to 0.005."""
    gates = make(granularity)
    generator = torch.Generator().manual_seed(1)
    for gates.step in range(60):
        gates.temperature = 0.5 * 0.01 ** max(0.0, gates.step / 10 - 5)
        wanted = 0.3 + 0.7 * max(0.0, 1 - gates.step / 30) ** 3
        gates.hold(wanted)
        if gates.step:
            assert density(gates) == pytest.approx(wanted, abs=1e-6)
        with torch.no_grad():
            gates.logits.add_(0.1 * torch.randn(gates.logits.shape, generator=generator).sign())


def test_what_is_dense_anyway_is_left_alone() -> None:
    for diagonal in DIAGONALS:
        gates = scatter(make(diagonal=diagonal))
        before = gates.logits.detach().clone()
        for wanted in (1.0, gates.fixed_share + gates.free_share):
            gates.hold(wanted)
        assert_identical(gates.logits.detach(), before)


def test_shares_by_hand() -> None:
    """256 valid cells of 13, 7, 5, 3 and 2 tokens; 30 are the diagonal's."""
    valid, own_cells = 169 + 49 + 25 + 9 + 4, 30
    for diagonal, fixed, free in (
        ("free", 0, valid),
        ("keep", own_cells, valid - own_cells),
        ("drop", 0, valid - own_cells),
    ):
        gates = make(diagonal=diagonal)
        assert gates.fixed_share == pytest.approx(fixed / valid)
        assert gates.free_share == pytest.approx(free / valid)
        assert gates.free_share == pytest.approx(float(gates.weight.sum()))


@EVERY_SHARING
@EVERY_RELAXATION
def test_projecting_leaves_the_density_to_first_order(relaxation: str, share: str) -> None:
    gates = scatter(make(relaxation=relaxation, share=share, diagonal="keep"), scale=1.0)
    gates.temperature = 0.5
    gradient = torch.randn(gates.logits.shape, generator=torch.Generator().manual_seed(5)) + 0.5
    start, dense = gates.logits.detach().clone(), density(gates)

    def change(direction: Tensor, size: float) -> float:
        with torch.no_grad():
            gates.logits.copy_(start + size * direction)
        found = density(gates) - dense
        with torch.no_grad():
            gates.logits.copy_(start)
        return found

    gates.logits.grad = gradient.clone()
    gates.project_gradient()
    projected = gates.logits.grad
    for size in (1e-2, 1e-3):  # what is left is of second order
        assert abs(change(gradient, size)) > 1e-2 * size
        assert abs(change(projected, size)) < size**2
    gates.logits.grad = projected.clone()
    gates.project_gradient()
    assert_near(gates.logits.grad, projected)  # nothing is left to take out
    assert float((projected * gradient).sum()) > 0  # still downhill


def test_projecting_without_a_gradient_or_a_slope() -> None:
    gates = make()
    gates.project_gradient()
    assert gates.logits.grad is None
    scatter(gates, scale=0.0, at=1e4)  # every gate is open for good: the density has no slope
    gates.logits.grad = torch.ones_like(gates.logits)
    gates.project_gradient()
    assert_identical(gates.logits.grad, torch.ones_like(gates.logits))
