"""Gates on a GPU: drawn within their bounds, held at the density, the same in each step of that number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnprobe.masks.gates import Gates
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.relaxations import RELAXATIONS
from attnprobe.masks.sparsity import count_gates, full_row
from attnprobe.masks.tokens import TokenRules
from tests.helpers.tolerance import assert_identical, assert_near

SITES, HEADS, LENGTH = 2, 3, 13


def _gates(device: str, relaxation: str = "hard-concrete") -> Gates:
    granularity = Granularity(name="offset", length=LENGTH)
    row = full_row(TokenRules(cls_id=2, sep_id=3, causal=False), LENGTH)
    counts = count_gates(granularity, [row], diagonal="free")
    gates = Gates(granularity, counts, sites=SITES, heads=HEADS, relaxation=relaxation, spread_initial=1.0, seed=5)
    return gates.to(device)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_gates_are_drawn_between_closed_and_open(device: str, relaxation: str) -> None:
    gates = _gates(device, relaxation)
    drawn: list[Tensor] = []
    for step in range(5):
        gates.step = step
        drawn.append(gates.draw())
    values = torch.stack(drawn)
    assert values.device.type == torch.device(device).type
    plain = values.detach()
    assert bool(plain.isfinite().all())
    assert float(plain.min()) >= -1e-6
    assert float(plain.max()) <= 1 + 1e-6
    assert float(plain[..., :-2].std()) > 0.01
    values.square().sum().backward()
    assert gates.logits.grad is not None
    assert bool(gates.logits.grad.isfinite().all())
    assert float(gates.logits.grad.abs().sum()) > 0


def test_a_step_draws_the_same_gates_again_and_another_step_others(device: str) -> None:
    gates = _gates(device)
    gates.step = 7
    first, again = gates.draw(), gates.draw()
    assert_identical(first, again)
    gates.step = 8
    assert not bool((gates.draw() == first).all())


@pytest.mark.parametrize("wanted", [0.05, 0.5, 0.95])
def test_the_density_is_held_as_on_the_host(device: str, wanted: float) -> None:
    here, host = _gates(device), _gates("cpu")
    for gates in (here, host):
        gates.hold(wanted)
    assert float(here.density().detach()) == pytest.approx(wanted, abs=1e-5)
    assert_near(here.logits.cpu(), host.logits, 1e-5)
    assert_identical(here.decide(wanted).gates, host.decide(wanted).gates)
