"""Masks that nothing is trained for: equally sparse heads, the best gates for their price, and what gates are worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import Tensor

from attnprobe.attention import attach
from attnprobe.data.batches import Batch
from attnprobe.masks.gates import complete
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import DIAGONALS
from attnprobe.masks.sparsity import GateCounts, count_gates
from attnprobe.masks.tokens import TokenRules
from attnprobe.objectives import Objective, SequenceFidelity, SequenceTask
from attnprobe.scoring import scored_output
from attnprobe.sparsify.controls import GateSums, random_mask, scored_mask
from tests.helpers.probing import CLS, HEADS, LABELS, ROWS, SEP, SITES, Row, batch_of, tiny_bert
from tests.helpers.ragged import TEXTS, positions_of
from tests.helpers.tolerance import assert_identical, assert_near
from tests.importance.setting import dense
from tests.importance.setting import reference as model_reference
from tests.references import masks as reference
from tests.references.importance import cross_entropy, kl
from tests.references.masks import Text

GRANULARITIES = {
    "cell": Granularity(name="cell", length=13),
    "block": Granularity(name="block", length=15, block_size=5),
    "offset": Granularity(name="offset", length=17, segment_aware=True),
}
EVERY_GRANULARITY = pytest.mark.parametrize("granularity", GRANULARITIES.values(), ids=GRANULARITIES)


def count(granularity: Granularity, diagonal: str = "free") -> GateCounts:
    return count_gates(granularity, [positions_of(TEXTS)], diagonal=diagonal)


def kept(counts: GateCounts, gates: Tensor) -> list[int]:
    """Cells kept by the gates of every head of every site."""
    return [int(cells) for cells in (gates.long() * counts.cells).sum(-1).flatten()]


@pytest.mark.parametrize("diagonal", DIAGONALS)
@EVERY_GRANULARITY
def test_random_masks_are_as_sparse_in_every_head(granularity: Granularity, diagonal: str) -> None:
    """As many cells as fit: no closed gate of a head would still go in."""
    counts = count(granularity, diagonal)
    for density in (0.2, 0.5, 0.83):
        mask = random_mask(granularity, counts, sites=SITES, heads=HEADS, density=density, diagonal=diagonal, seed=3)
        assert (mask.granularity, mask.diagonal) == (granularity, diagonal)
        assert mask.gates.shape == (SITES, HEADS, granularity.gates)
        budget = round(density * counts.valid - counts.fixed)
        for gates, cells in zip(mask.gates.flatten(0, 1), kept(counts, mask.gates), strict=True):
            left = budget - cells
            assert left >= 0
            assert (counts.cells[counts.seen & ~gates] > left).all()
        heads = {tuple(gates.tolist()) for gates in mask.gates.flatten(0, 1)}
        assert len(heads) > 1
        assert_identical(mask.gates, complete(mask.gates, counts.seen, granularity))


def test_where_a_head_is_one_gate_heads_are_drawn() -> None:
    granularity = Granularity(name="head", length=13)
    counts = count(granularity)
    for seed in range(5):
        mask = random_mask(granularity, counts, sites=SITES, heads=HEADS, density=0.5, diagonal="free", seed=seed)
        assert int(mask.gates.sum()) == 3
        assert float(counts.density(mask.gates)) == pytest.approx(0.5)


@EVERY_GRANULARITY
def test_random_masks_are_their_seeds(granularity: Granularity) -> None:
    counts = count(granularity)
    torch.manual_seed(1)
    first, again, other = (
        random_mask(granularity, counts, sites=SITES, heads=HEADS, density=0.5, diagonal="free", seed=seed).gates
        for seed in (5, 5, 6)
    )
    assert_identical(again, first)
    assert not torch.equal(other, first)


def test_random_gates_are_equally_likely() -> None:
    granularity = Granularity(name="cell", length=3)
    counts = count_gates(granularity, [positions_of((TEXTS[4],))], diagonal="free")
    draws = 400
    opened = sum(
        random_mask(granularity, counts, sites=1, heads=1, density=4 / 9, diagonal="free", seed=seed).gates.double()
        for seed in range(draws)
    )
    assert isinstance(opened, Tensor)
    error = math.sqrt(4 / 9 * 5 / 9 / draws)
    assert ((opened / draws - 4 / 9).abs() < 4 * error).all()


@pytest.mark.parametrize("diagonal", DIAGONALS)
@EVERY_GRANULARITY
def test_the_best_gates_of_all_heads(granularity: Granularity, diagonal: str) -> None:
    counts = count(granularity, diagonal)
    scores = torch.rand(SITES, HEADS, granularity.gates, generator=torch.Generator().manual_seed(1)).double()
    for density in (0.25, 0.6):
        mask = scored_mask(scores, granularity, counts, density=density, diagonal=diagonal)
        budget = round((density * counts.valid - counts.fixed) * SITES * HEADS)
        costs = counts.cells[counts.seen].tolist() * (SITES * HEADS)
        chosen = mask.gates[:, :, counts.seen].flatten()
        assert chosen.tolist() == reference.fill(scores[:, :, counts.seen].flatten().tolist(), costs, budget)
        assert 0 <= budget - sum(kept(counts, mask.gates)) < int(counts.cells.max())
        assert_identical(mask.gates, complete(mask.gates, counts.seen, granularity))
        assert len(set(kept(counts, mask.gates))) > 1  # heads are not made alike


def tiny_counts(costs: Sequence[int]) -> tuple[Granularity, GateCounts]:
    """Gates of given costs: those of the blocks of one row."""
    granularity = Granularity(name="block", length=3, block_size=1)
    cells = torch.tensor([*costs, *[0] * (9 - len(costs))])
    return granularity, GateCounts(cells=cells, fixed=0, valid=int(cells.sum()), seen=cells > 0)


def worth(scores: Tensor, gates: Tensor, costs: Sequence[int]) -> float:
    return float((scores[..., : len(costs)] * gates[..., : len(costs)] * torch.tensor(costs)).sum())


def test_of_equal_gates_no_choice_is_worth_more() -> None:
    """Against all choices within the budget."""
    granularity, counts = tiny_counts([2] * 5)
    for seed in range(10):
        scores = torch.rand(1, 2, 9, generator=torch.Generator().manual_seed(seed)).double()
        mask = scored_mask(scores, granularity, counts, density=0.45, diagonal="free")
        best = reference.best_worth(scores[..., :5].flatten().tolist(), [2] * 10, round(0.45 * 20))
        assert worth(scores, mask.gates, [2] * 5) == pytest.approx(best)


def test_of_other_gates_no_choice_is_worth_much_more() -> None:
    """By score a cell: the best wherever the budget is used up, and at most one gate short of it elsewhere."""
    costs = [1, 2, 3, 5, 7]
    granularity, counts = tiny_counts(costs)
    exact = 0
    for seed in range(20):
        scores = torch.rand(1, 2, 9, generator=torch.Generator().manual_seed(seed)).double()
        density = 0.2 + 0.03 * seed
        mask = scored_mask(scores, granularity, counts, density=density, diagonal="free")
        flat, budget = scores[..., :5].flatten().tolist(), round(density * 36)
        best, found = reference.best_worth(flat, costs * 2, budget), worth(scores, mask.gates, costs)
        ranked = sorted(zip(flat, costs * 2, strict=True), reverse=True)
        spent = [sum(cost for _, cost in ranked[:n]) for n in range(11)]
        if budget in spent:
            exact += 1
            assert found == pytest.approx(best)
        first_out = next((score * cost for n, (score, cost) in enumerate(ranked) if spent[n + 1] > budget), 0.0)
        assert best - first_out - 1e-12 <= found <= best + 1e-12
    assert exact > 2


CHOSEN = ROWS[1:3]
RULES = TokenRules(cls_id=CLS, sep_id=SEP, causal=False)
SMALL = {
    "block": Granularity(name="block", length=8, block_size=4),
    "offset": Granularity(name="offset", length=4, segment_aware=True),
    "head": Granularity(name="head", length=2),
}
STEP = 1e-5
Numbers = dict[tuple[int, int, int], float]
"""By site, head and gate."""


def collect(granularity: Granularity, objective: Objective, batch: Batch, seed: int = 0) -> GateSums:
    sums = GateSums(granularity, sites=SITES, heads=HEADS, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    with attach(tiny_bert()) as session:
        prepared = objective.prepare(batch)
        with torch.no_grad():
            prepared = prepared.with_dense(scored_output(session.model, objective, prepared))
        sums.add(session, objective, prepared, RULES, generator)
    return sums


def require_equal(found: Tensor, expected: Numbers, *, rel: float = 1e-4) -> None:
    """Every gate's number, those of gates without cells being 0."""
    largest = max(map(abs, expected.values()))
    assert largest > 0
    for site in range(SITES):
        for head in range(HEADS):
            for gate, number in enumerate(found[site, head].tolist()):
                wanted = expected.get((site, head, gate), 0.0)
                assert number == pytest.approx(wanted, rel=rel, abs=1e-5 * largest), (site, head, gate)


def by_gate(row: Row, granularity: Granularity) -> dict[int, list[tuple[int, int]]]:
    text = Text(ids=row.ids, cls=CLS, sep=SEP)
    found: dict[int, list[tuple[int, int]]] = {}
    for i, j in text.cells():
        found.setdefault(reference.gate(text, i, j, **granularity.as_dict()), []).append((i, j))
    return found


@pytest.mark.parametrize("granularity", SMALL.values(), ids=SMALL)
def test_mass_against_a_loop(granularity: Granularity) -> None:
    expected: Numbers = {}
    for row in ROWS:
        for gate, cells in by_gate(row, granularity).items():
            for site in range(SITES):
                for head in range(HEADS):
                    p = dense(row).p[site][head]
                    more = math.fsum(float(p[i, j]) for i, j in cells)
                    expected[site, head, gate] = expected.get((site, head, gate), 0.0) + more
    sums = collect(granularity, SequenceTask(("accuracy",)), batch_of())
    require_equal(sums.mass, expected)
    tokens = sum(len(row.ids) for row in ROWS)
    assert_near(sums.mass.sum(-1), torch.full((SITES, HEADS), float(tokens), dtype=torch.float64), 1e-6)


@cache
def logits_near(row: Row, granularity: Granularity, site: int, head: int, gate: int) -> tuple[Tensor, Tensor, Tensor]:
    """The slow model's logits with one gate at 1 + STEP, at 1 - STEP, and at 1."""
    sides = []
    for change in (STEP, -STEP):
        factors = torch.ones(SITES, HEADS, len(row.ids), len(row.ids), dtype=torch.float64)
        for i, j in by_gate(row, granularity)[gate]:
            factors[site, head, i, j] += change
        sides.append(model_reference().run(row.ids, row.types, factors=factors).logits)
    return sides[0], sides[1], dense(row).logits


def change_of(label: int, row: Row, granularity: Granularity, place: tuple[int, int, int]) -> float:
    """First-order change of a label's cross-entropy when a gate of one row is closed."""
    more, less, _ = logits_near(row, granularity, *place)
    return -float(cross_entropy(more, label) - cross_entropy(less, label)) / (2 * STEP)


def places(row: Row, granularity: Granularity) -> list[tuple[int, int, int]]:
    gates = by_gate(row, granularity)
    return [(site, head, gate) for site in range(SITES) for head in range(HEADS) for gate in gates]


def test_effect_of_a_task_against_central_differences() -> None:
    """Single gates of single rows: the sum of changes, and for `fisher` of their squares."""
    granularity = SMALL["block"]
    effect: Numbers = {}
    fisher: Numbers = {}
    for row in CHOSEN:
        for place in places(row, granularity):
            change = change_of(row.label, row, granularity, place)
            effect[place] = effect.get(place, 0.0) + change
            fisher[place] = fisher.get(place, 0.0) + change**2
    sums = collect(granularity, SequenceTask(("accuracy",)), batch_of(CHOSEN))
    require_equal(sums.effect, effect)
    require_equal(sums.fisher, fisher)
    assert min(effect.values()) < 0 < max(effect.values())


def test_one_gate_for_a_whole_row_has_no_first_order_effect() -> None:
    """All of a row's cells, larger by the same, change nothing: heads can't be ranked by it."""
    sums = collect(SMALL["head"], SequenceTask(("accuracy",)), batch_of(CHOSEN))
    assert sums.effect.abs().max() < 1e-5
    assert sums.fisher.abs().max() < 1e-10


def test_effect_without_labels_against_central_differences() -> None:
    """Half the square of the change of the logarithm of a drawn label's probability, summed over rows."""
    granularity = SMALL["block"]
    batch = batch_of(CHOSEN)
    sums = collect(granularity, SequenceFidelity(), batch, seed=7)
    probabilities = torch.stack([torch.softmax(dense(row).logits, -1) for row in CHOSEN])
    labels = torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(7))[:, 0].tolist()
    effect: Numbers = {}
    fisher: Numbers = {}
    for row, label in zip(CHOSEN, labels, strict=True):
        for place in places(row, granularity):
            change = change_of(label, row, granularity, place)
            effect[place] = effect.get(place, 0.0) + change**2 / 2
            fisher[place] = fisher.get(place, 0.0) + change**2
    require_equal(sums.effect, effect)
    require_equal(sums.fisher, fisher)


def test_effect_without_labels_is_the_divergence_on_average() -> None:
    """Over many draws: KL from the dense output to second order, which no first-order change of the KL would show."""
    granularity, row, copies = SMALL["block"], CHOSEN[0], 1024
    sums = collect(granularity, SequenceFidelity(), batch_of([row] * copies))
    found, expected = 0.0, 0.0
    for place in places(row, granularity):
        more, less, plain = logits_near(row, granularity, *place)
        expected += (kl(plain, more) + kl(plain, less)) / 2 / STEP**2
        found += float(sums.effect[place]) / copies
    assert found == pytest.approx(expected, rel=0.15)


def test_sums_add_up_over_batches_whatever_the_padding() -> None:
    granularity = SMALL["offset"]
    together = collect(granularity, SequenceTask(("accuracy",)), batch_of())
    apart = GateSums(granularity, sites=SITES, heads=HEADS, device=torch.device("cpu"))
    objective = SequenceTask(("accuracy",))
    with attach(tiny_bert()) as session:
        for row in ROWS:
            apart.add(session, objective, objective.prepare(batch_of([row])), RULES, torch.Generator())
    for name in ("mass", "effect", "fisher"):
        assert_near(getattr(apart, name), getattr(together, name), 1e-5)


def test_the_model_is_left_as_it_was() -> None:
    model, objective = tiny_bert(), SequenceTask(("accuracy",))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sums = GateSums(SMALL["block"], sites=SITES, heads=HEADS, device=torch.device("cpu"))
    with attach(model) as session:
        plain = model(**batch_of().inputs).logits.detach()
        sums.add(session, objective, objective.prepare(batch_of()), RULES, torch.Generator())
        assert_identical(model(**batch_of().inputs).logits.detach(), plain)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad
        assert parameter.grad is None
        assert_identical(parameter.detach(), before[name])
    assert model.config.num_labels == LABELS


def test_scores_are_by_cell() -> None:
    granularity = SMALL["block"]
    counts = count_gates(granularity, [RULES.positions(*_tokens())], diagonal="free")
    sums = collect(granularity, SequenceTask(("accuracy",)), batch_of())
    for name in ("mass", "effect", "fisher"):
        scores = sums.scores(name, counts)
        assert scores.shape == (SITES, HEADS, 4)
        assert scores.isfinite().all()
        assert_near(scores * counts.cells.clamp_min(1), getattr(sums, name))
    assert (sums.scores("mass", counts) <= 1).all()


def _tokens() -> tuple[Tensor, Tensor]:
    inputs = batch_of().inputs
    return inputs["input_ids"], inputs["attention_mask"]
