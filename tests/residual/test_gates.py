"""Gates on the score stream: where they start, how they are driven to 1, and what is exported."""

from __future__ import annotations

import pytest
import torch

from attnprobe.residual.gates import GATES_BY, ResidualGates
from tests.helpers.tolerance import assert_identical


@pytest.mark.parametrize("by", GATES_BY)
def test_gates_start_at_zero(by: str) -> None:
    gates = ResidualGates(sites=4, heads=3, by=by)
    assert gates.gates.shape == (3, 3 if by == "head" else 1)
    assert not gates.effective().any()
    assert gates.settled("sum").gates.shape == (3, 3)


def test_upper_sites_are_forced_first() -> None:
    """Three gates, whose ramps take half of the whole: the top's begins at 0, the middle's at 1/4, the last at 1/2."""
    gates = ResidualGates(sites=4, heads=2)
    seen = {}
    for progress in (0.0, 0.25, 0.5, 0.75, 1.0):
        gates.force(progress)
        seen[progress] = gates.forced.flatten().tolist()
    assert seen == {
        0.0: [0.0, 0.0, 0.0],
        0.25: [0.0, 0.0, 0.5],
        0.5: [0.0, 0.5, 1.0],
        0.75: [0.5, 1.0, 1.0],
        1.0: [1.0, 1.0, 1.0],
    }


def test_two_sites_have_one_ramp() -> None:
    gates = ResidualGates(sites=2, heads=2)
    gates.force(0.25)
    assert gates.forced.tolist() == [[0.5]]


def test_what_is_forced_is_exactly_one_and_has_no_gradient() -> None:
    gates = ResidualGates(sites=3, heads=2, initial=0.3)
    assert_identical(gates.effective(), gates.gates)
    gates.force(1.0)
    assert_identical(gates.effective(), torch.ones(2, 2))
    gates.effective().sum().backward()
    assert gates.gates.grad is not None
    assert not gates.gates.grad.any()
    assert gates.settled("mean").canonical
