"""Gates: drawn, found by their cells, started, shared, moved and stored."""

from __future__ import annotations

import copy
import io

import pytest
import torch

from attnprobe.masks.gates import SHARINGS, Gates
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.relaxations import RELAXATIONS
from tests.helpers.ragged import CAUSAL, PAIR, TEXTS, batch, own, positions_of, rules_of
from tests.helpers.tolerance import assert_identical, assert_near
from tests.masks.gated import (
    EVERY_DIAGONAL,
    EVERY_RELAXATION,
    EVERY_SHARING,
    HEADS,
    KINDS,
    OFFSET,
    SITES,
    count,
    make,
    scatter,
)
from tests.references import masks as reference


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
