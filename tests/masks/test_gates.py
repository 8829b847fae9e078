"""Gates: drawn, held at a density, decided within a budget; shared, moved and stored."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnprobe.masks.gates import SHARINGS, Gates, complete, fill
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import DIAGONALS
from attnprobe.masks.relaxations import RELAXATIONS
from attnprobe.masks.sparsity import GateCounts, count_gates
from tests.helpers.ragged import CAUSAL, PAIR, TEXTS, batch, own, positions_of, rules_of
from tests.helpers.tolerance import assert_identical, assert_near
from tests.references import masks as reference
from tests.references.masks import Text

SITES, HEADS = 2, 3
OFFSET = Granularity(name="offset", length=17)
KINDS = {
    "cell": Granularity(name="cell", length=13),
    "block": Granularity(name="block", length=15, block_size=5),
    "head": Granularity(name="head", length=13),
    "offset": OFFSET,
}
EVERY_RELAXATION = pytest.mark.parametrize("relaxation", RELAXATIONS)
EVERY_SHARING = pytest.mark.parametrize("share", SHARINGS)
EVERY_DIAGONAL = pytest.mark.parametrize("diagonal", DIAGONALS)


def count(granularity: Granularity, diagonal: str, texts: Iterable[Text] = TEXTS) -> GateCounts:
    return count_gates(granularity, [positions_of(tuple(texts))], diagonal=diagonal)


def make(granularity: Granularity = OFFSET, *, diagonal: str = "free", **options: Any) -> Gates:
    return Gates(granularity, count(granularity, diagonal), sites=SITES, heads=HEADS, diagonal=diagonal, **options)


def scatter(gates: Gates, *, scale: float = 3.0, at: float = 0.0, seed: int = 0) -> Gates:
    """Draw the logits wide apart."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        gates.logits.copy_(at + scale * torch.randn(gates.logits.shape, generator=generator))
    return gates


def density(gates: Gates) -> float:
    return float(gates.density().detach())


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
        for gates.temperature in (0.02, 0.5, 1.0, 3.0):
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
        for temperature in (0.02, 0.5, 20.0):
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
    """As in training: steps of 0.1, a temperature that falls to 0.02."""
    gates = make(granularity)
    generator = torch.Generator().manual_seed(1)
    for gates.step in range(60):
        gates.temperature = 0.5 * 0.04 ** max(0.0, gates.step / 10 - 5)
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
    """230 valid cells of 13 + 7 + 5 + 3 + 2 tokens: 256 in all; the diagonal has 30."""
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


@EVERY_RELAXATION
def test_draws_depend_on_seed_and_step_alone(relaxation: str) -> None:
    one, same, other = (scatter(make(relaxation=relaxation, seed=seed), scale=1.0) for seed in (3, 3, 4))
    torch.manual_seed(11)
    first = one.draw().detach()
    torch.rand(5)
    assert_identical(one.draw().detach(), first)
    assert_identical(same.draw().detach(), first)
    assert not torch.equal(other.draw().detach(), first)
    same.step = 1
    assert not torch.equal(same.draw().detach(), first)
    same.step = 0
    assert_identical(copy.deepcopy(same).draw().detach(), first)


def test_drawing_leaves_the_global_generator_alone() -> None:
    gates = make()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    gates.draw()
    assert_identical(torch.rand(3), expected)


@EVERY_SHARING
@EVERY_RELAXATION
def test_what_is_drawn(relaxation: str, share: str) -> None:
    """In [0, 1], float32, one for each site, head and gate, then one that is open and one that is closed."""
    gates = scatter(make(relaxation=relaxation, share=share), scale=20.0)
    seen = int(gates.counts.seen.sum())
    for gates.step in range(150):
        gates.temperature = 0.02 if gates.step % 2 else 1.0
        drawn = gates.draw().detach()
        assert (drawn.shape, drawn.dtype) == ((SITES, HEADS, seen + 2), torch.float32)
        assert drawn.isfinite().all()
        assert ((drawn >= 0) & (drawn <= 1)).all()
        assert (drawn[..., -2] == 1).all()
        assert (drawn[..., -1] == 0).all()
        if share != "none":
            axis = SHARINGS.index(share) - 1
            assert_identical(drawn, drawn.narrow(axis, 0, 1).expand_as(drawn))
    assert gates.logits.shape == (1 if share == "sites" else SITES, 1 if share == "heads" else HEADS, seen)


def test_heads_and_sites_draw_apart() -> None:
    drawn = make(relaxation="soft").draw().detach()[..., :-2]
    for axis in (0, 1):
        assert not torch.equal(drawn.select(axis, 0), drawn.select(axis, 1))


def test_draws_by_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits over the temperature, beside noise that has none."""
    shape = (SITES, HEADS, int(count(OFFSET, "free").seen.sum()))
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr("attnprobe.masks.gates.logistic_noise", lambda _shape, _generator: noise)
    for relaxation in RELAXATIONS:
        gates = scatter(make(relaxation=relaxation, smoothness=0.7))
        gates.temperature = 0.3
        pairs = zip(gates.logits.detach().flatten().tolist(), noise.flatten().tolist(), strict=True)
        expected = [reference.drawn(relaxation, alpha / 0.3, drawn, 0.7) for alpha, drawn in pairs]
        assert_near(gates.draw()[..., :-2].detach(), torch.tensor(expected).view(shape))


def test_quiet_gates_have_no_noise() -> None:
    gates = scatter(make())
    gates.temperature = 0.1
    quiet = gates.quiet().detach()
    assert_near(quiet[..., :-2], torch.sigmoid(gates.logits.detach()))
    assert quiet[..., -2:].unique().tolist() == [0, 1]


@EVERY_DIAGONAL
@pytest.mark.parametrize("side", ["right", "left"])
def test_every_cell_finds_its_gate(side: str, diagonal: str) -> None:
    """The diagonal's by option; cells of gates that the data had none of are open."""
    counts = count(OFFSET, diagonal, TEXTS[:1])  # 7 tokens: no larger distance is known
    gates = Gates(OFFSET, counts, sites=SITES, heads=HEADS, diagonal=diagonal)
    drawn = torch.arange(len(gates.seen) + 2)
    seen = counts.seen.nonzero()[:, 0].tolist()
    index = gates.index(positions_of(TEXTS, side=side, padding=2))
    for row, text in zip(drawn[index], TEXTS, strict=True):
        found = own(row, text, side).tolist()
        for i, j in text.cells():
            gate = reference.gate(text, i, j, **OFFSET.as_dict())
            expected = seen.index(gate) if gate in seen else len(seen)
            if i == j and diagonal != "free":
                expected = len(seen) + (diagonal == "drop")
            assert found[i][j] == expected


def test_rows_of_no_valid_cell_are_no_error() -> None:
    """Causal cells of the future have numbers too, which mean nothing."""
    granularity = Granularity(name="offset", length=5, causal=True)
    counts = count(granularity, "drop", CAUSAL[:1])
    gates = Gates(granularity, counts, sites=1, heads=1, diagonal="drop")
    index = gates.index(positions_of(CAUSAL, padding=3))
    assert 0 <= int(index.min()) <= int(index.max()) < gates.draw().shape[-1]


def test_starting_from_scores() -> None:
    """By their logarithm, a standard deviation a logit; in the same order; shared gates from the mean."""
    scores = torch.rand(SITES, HEADS, OFFSET.gates, generator=torch.Generator().manual_seed(2)).exp()
    gates = make(initial=2.0)
    gates.start_from(scores)
    seen = scores[:, :, gates.counts.seen]
    started = gates.logits.detach()
    assert_identical(started.flatten().argsort(), seen.flatten().argsort())
    assert float(started.mean()) == pytest.approx(2.0, abs=0.05)
    assert float(started.std()) == pytest.approx(1.0, abs=0.05)
    for share, axis in (("sites", 0), ("heads", 1)):
        shared = make(share=share, initial=2.0)
        shared.start_from(scores)
        assert_identical(shared.logits.detach().flatten().argsort(), seen.mean(axis).flatten().argsort())


def test_starting_from_scores_that_tell_nothing() -> None:
    """All alike, 0 among them, far apart: finite, and at most three logits from the middle."""
    for scores in (torch.ones(SITES, HEADS, OFFSET.gates), torch.zeros(SITES, HEADS, OFFSET.gates)):
        gates = make(initial=2.0)
        gates.start_from(scores)
        assert_near(gates.logits.detach(), torch.full_like(gates.logits, 2.0), 1e-3)
    wild = torch.ones(SITES, HEADS, OFFSET.gates)
    wild[0, 0, OFFSET.distances // 2] = 1e30
    wild[0, 1, OFFSET.distances // 2] = 0
    gates = make(initial=2.0)
    gates.start_from(wild)
    assert gates.logits.isfinite().all()
    assert (gates.logits - 2).abs().max() <= 3.001
    head = make(KINDS["head"], share="sites", initial=2.0)
    head.start_from(torch.rand(SITES, HEADS, 1))
    assert head.logits.isfinite().all()


def test_the_start() -> None:
    gates = make(initial=-1.5)
    assert gates.logits.unique().tolist() == [-1.5]
    apart, again, other = (make(initial=0.0, spread_initial=1e-3, seed=seed).logits.detach() for seed in (1, 1, 2))
    assert_identical(apart, again)
    assert not torch.equal(apart, other)
    assert float(apart.std()) == pytest.approx(1e-3, rel=0.2)


def test_the_running_average() -> None:
    gates = scatter(make())
    first = gates.logits.detach().clone()
    gates.take_in(0.0)
    scatter(gates, seed=1)
    second = gates.logits.detach().clone()
    gates.take_in(0.75)
    gates.settle_on_average()
    assert_near(gates.logits.detach(), 0.75 * first + 0.25 * second)


def test_stored_and_read_again() -> None:
    gates = scatter(make(seed=5))
    gates.take_in(0.5)
    file = io.BytesIO()
    torch.save(gates.state_dict(), file)
    file.seek(0)
    assert set(gates.state_dict()) == {"logits", "average"}
    again = make(seed=5)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert_identical(again.draw().detach(), gates.draw().detach())
    assert_identical(again.average, gates.average)
    assert_identical(again.decide(0.3).gates, gates.decide(0.3).gates)


def test_gates_are_a_module() -> None:
    """Seen by optimisers, moved as a whole; drawn in float32 whatever the logits are."""
    gates = make()
    assert [name for name, _ in gates.named_parameters()] == ["logits"]
    meta = copy.deepcopy(gates).to("meta")
    assert {tensor.device.type for tensor in (*meta.parameters(), *meta.buffers())} == {"meta"}
    ids, mask = (tensor.to("meta") for tensor in batch(TEXTS))
    assert meta.index(rules_of(PAIR).positions(ids, mask)).device.type == "meta"
    for dtype in (torch.bfloat16, torch.float16):
        moved = scatter(copy.deepcopy(gates).to(dtype))
        for moved.step in range(30):
            drawn = moved.draw()
            assert drawn.dtype == torch.float32
            assert drawn.isfinite().all()
        drawn.sum().backward()
        assert moved.logits.grad is not None
        assert moved.logits.grad.isfinite().all()
