"""The one mask that is left: within its budget, nothing that fits left out, and decided where nothing was learnt."""

from __future__ import annotations

import pytest
import torch

from attnprobe.masks.gates import SHARINGS, complete, fill
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.relaxations import RELAXATIONS
from tests.helpers.tolerance import assert_identical
from tests.masks.gated import (
    EVERY_DIAGONAL,
    EVERY_SHARING,
    HEADS,
    KINDS,
    OFFSET,
    SITES,
    make,
    scatter,
)
from tests.references import masks as reference


@EVERY_DIAGONAL
@EVERY_SHARING
@pytest.mark.parametrize("granularity", KINDS.values(), ids=KINDS)
def test_a_decision_keeps_to_its_budget(granularity: Granularity, share: str, diagonal: str) -> None:
    """Never more cells than asked for, and no gate is closed that would still fit: against a loop."""
    gates = scatter(make(granularity, diagonal=diagonal, share=share))
    counts, rows = gates.counts, gates.logits.shape[0] * gates.logits.shape[1]
    costs = counts.cells[counts.seen].tolist()
    for wanted in (0.15, 0.37, 0.5, 0.73, 1.0):
        mask = gates.decide(wanted)
        assert mask.diagonal == diagonal
        chosen = mask.gates[:, :, counts.seen][: gates.logits.shape[0], : gates.logits.shape[1]]
        budget = round((wanted * counts.valid - counts.fixed) * rows)
        expected = reference.fill(gates.logits.detach().flatten().tolist(), costs * rows, budget)
        assert chosen.flatten().tolist() == expected
        left = budget - sum(cost for cost, kept in zip(costs * rows, expected, strict=True) if kept)
        assert left >= 0
        assert all(kept or cost > left for cost, kept in zip(costs * rows, expected, strict=True))
        assert float(counts.density(mask.gates)) == pytest.approx(
            wanted - left / (rows * counts.valid), abs=0.6 / (rows * counts.valid)
        )
        assert_identical(mask.gates[:, :, counts.seen], chosen.expand(SITES, HEADS, -1))


def test_a_decision_without_a_density() -> None:
    """Every gate that is rather open: what the natural density counts."""
    for relaxation in RELAXATIONS:
        for share in SHARINGS:
            gates = scatter(make(relaxation=relaxation, share=share, diagonal="keep"), scale=1.0, at=-0.5)
            for gates.temperature in (0.1, 1.0):
                mask = gates.decide(None)
                assert float(gates.counts.density(mask.gates)) == pytest.approx(gates.natural_density(), abs=1e-12)
                p = reference.open_probability(
                    relaxation, float(gates.logits[0, 0, 3].detach()) / gates.temperature, gates.smoothness
                )
                assert bool(mask.gates[:, :, gates.seen[3]][0, 0]) == (p > 0.5)
    assert 0 < gates.natural_density() < 1


def test_decided_gates_have_the_density_they_were_held_at() -> None:
    """Cold gates are open or closed: the threshold changes nothing."""
    gates = scatter(make(KINDS["cell"]))
    gates.temperature = 0.02
    gates.hold(0.3)
    assert gates.natural_density() == pytest.approx(0.3, abs=0.005)
    assert float(gates.counts.density(gates.decide(0.3).gates)) == pytest.approx(0.3, abs=0.001)


FILLED: dict[str, tuple[list[float], list[int], int, list[int]]] = {
    "the highest first": ([0.1, 0.9, 0.5], [2, 2, 2], 4, [0, 1, 1]),
    "of equals the first": ([1.0, 1.0, 1.0], [1, 1, 1], 2, [1, 1, 0]),
    "what does not fit is passed over": ([3.0, 2.0, 1.0], [5, 7, 3], 9, [1, 0, 1]),
    "the first does not fit": ([3.0, 2.0, 1.0], [50, 4, 5], 9, [0, 1, 1]),
    "nothing fits": ([3.0, 2.0], [5, 7], 4, [0, 0]),
    "no budget": ([3.0, 2.0], [1, 1], 0, [0, 0]),
    "less than none": ([3.0, 2.0], [1, 1], -3, [0, 0]),
    "all": ([3.0, -2.0], [1, 1], 2, [1, 1]),
    "no gate": ([], [], 5, []),
    "what costs nothing and comes first": ([3.0, 2.0], [0, 5], 1, [1, 0]),
    "what costs nothing and comes behind": ([3.0, 2.0, 1.0, 0.5], [9, 0, 4, 5], 5, [0, 0, 1, 0]),
}


@pytest.mark.parametrize(("scores", "costs", "budget", "kept"), FILLED.values(), ids=FILLED)
def test_filling_by_hand(scores: list[float], costs: list[int], budget: int, kept: list[int]) -> None:
    found = fill(torch.tensor(scores), torch.tensor(costs, dtype=torch.int64), budget)
    assert found.dtype == torch.bool
    assert found.tolist() == [bool(k) for k in kept]


def test_filling_against_the_loop() -> None:
    generator = torch.Generator().manual_seed(7)
    for number in range(60):
        scores = torch.randint(0, 9, (SITES, HEADS, 11), generator=generator).float()  # many ties
        costs = torch.randint(1, 30, (11,), generator=generator)
        budget = int(torch.randint(0, int(costs.sum()) * 6, (1,), generator=generator))
        found = fill(scores, costs, budget)
        assert found.shape == scores.shape
        expected = reference.fill(scores.flatten().tolist(), costs.tolist() * 6, budget)
        assert found.flatten().tolist() == expected, number


def test_unseen_distances_take_the_nearest_seen() -> None:
    """In each zone, of two as near the nearer to the query; a zone without data stays open."""
    granularity = Granularity(name="offset", length=4)
    seen = torch.zeros(5, 7, dtype=torch.bool)
    gates = torch.zeros(5, 7, dtype=torch.bool)
    seen[0, [1, 5]] = True  # distances -2 and 2
    gates[0, 1] = True
    seen[1, [0, 4]] = True  # -3 and 1: -1 is as near to both, and 1 is nearer to the query
    gates[1, 4] = True
    result = complete(gates.view(1, 1, 35), seen.view(35), granularity).view(5, 7).int().tolist()
    assert result[0][:3] == [1, 1, 1]
    assert result[0][4:] == [0, 0, 0]
    assert result[1] == [0, 0, 1, 1, 1, 1, 1]
    assert result[2:] == [[1] * 7] * 3


def test_unseen_distances_counted_one_way() -> None:
    for granularity in (
        Granularity(name="offset", length=6, symmetric=True),
        Granularity(name="offset", length=6, causal=True),
    ):
        zones = len(granularity.zones)
        seen = torch.zeros(zones, 6, dtype=torch.bool)
        gates = torch.zeros(zones, 6, dtype=torch.bool)
        seen[0, [1, 3]] = gates[0, 1] = True
        result = complete(gates.view(1, 1, -1), seen.view(-1), granularity).view(zones, 6).int().tolist()
        assert result[0] == [1, 1, 1, 0, 0, 0]
        assert result[1:] == [[1] * 6] * (zones - 1)


@pytest.mark.parametrize("name", ["cell", "block", "head"])
def test_other_unseen_gates_stay_open(name: str) -> None:
    granularity = KINDS[name]
    seen = torch.arange(granularity.gates) % 3 == 1
    gates = torch.zeros(1, 2, granularity.gates, dtype=torch.bool)
    result = complete(gates, seen, granularity)
    assert result[:, :, ~seen].all()
    assert not result[:, :, seen].any()
    assert not gates.any()  # what was given is left alone


def test_a_decision_is_complete() -> None:
    """Row 12 of distances up to 16 that no text has is decided by the farthest that one has."""
    gates = scatter(make())
    mask = gates.decide(0.4)
    assert_identical(mask.gates, complete(mask.gates, gates.counts.seen, OFFSET))
    other = mask.gates[:, :, : OFFSET.distances]
    seen = gates.counts.seen[: OFFSET.distances].nonzero()[:, 0]
    assert_identical(other[:, :, -1], other[:, :, int(seen.max())])
    assert_identical(other[:, :, 0], other[:, :, int(seen.min())])
