"""The G-Net, its draws, REINFORCE against enumeration, and the contest of two nets."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attnprobe.attention import attach
from attnprobe.dropout.attendout import AttendOut
from attnprobe.dropout.attendout.draws import draw, drawn_through, log_probability, packed, unpacked
from attnprobe.dropout.attendout.gnet import GNet, sinusoids, valid_cells
from attnprobe.dropout.attendout.method import masks_in_force, masks_with_gradient
from attnprobe.dropout.attendout.rewards import Baseline, Rewards
from attnprobe.dropout.attendout.rivals import Rivals
from attnprobe.dropout.options import DropoutOptions
from attnprobe.objectives import Prepared
from tests.dropout.stepping import OBJECTIVE, stepping
from tests.helpers.probing import ROWS, SITES, batch_of, tiny_bert
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near


def test_bits_come_back() -> None:
    bits = torch.rand(3, 2, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.5
    stored = packed(bits)
    assert stored.dtype == torch.uint8
    assert len(stored) == math.ceil(bits.numel() / 8)
    assert_identical(unpacked(stored, bits.shape), bits)


def test_the_log_probability_is_the_mean_over_valid_cells() -> None:
    logits = torch.tensor([[[[0.3, -1.0], [2.0, 0.0]]]], dtype=torch.float64)
    kept = torch.tensor([[[[True, False], [True, True]]]])
    valid = torch.tensor([[[True, True], [False, True]]])
    p = [1 / (1 + math.exp(-0.3)), 1 - 1 / (1 + math.exp(1.0)), 0.5]
    found = log_probability(logits, kept, valid)
    assert float(found) == pytest.approx(sum(map(math.log, p)) / 3)


def test_reinforce_is_the_gradient_in_expectation() -> None:
    """Four cells, a reward of the whole mask: 10,000 draws against the sum over all 16 masks."""
    logits = torch.tensor([0.5, -0.7, 1.2, 0.0], requires_grad=True)

    def reward(kept: Tensor) -> Tensor:
        worth = torch.tensor([1.0, -2.0, 0.5, 0.0])
        return (kept * worth).sum(-1) + 1.5 * kept[..., 0] * kept[..., 3]

    masks = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)))
    probability = torch.where(masks > 0, torch.sigmoid(logits), torch.sigmoid(-logits)).prod(-1)
    (exact,) = torch.autograd.grad((probability * reward(masks)).sum(), logits)
    torch.manual_seed(0)
    as_mask = logits.view(1, 1, 2, 2).expand(10_000, 1, 2, 2)
    kept = draw(as_mask)
    rewards = reward(kept.view(-1, 4).float())
    valid = torch.ones(10_000, 2, 2, dtype=torch.bool)
    each = 4 * (rewards - 0.3) * log_probability(as_mask, kept, valid)  # any baseline; four cells, not their mean
    (found,) = torch.autograd.grad(each.mean(), logits)
    spread = torch.stack(
        [(rewards - 0.3) * (kept.view(-1, 4)[:, n].float() - torch.sigmoid(logits[n])) for n in range(4)]
    ).std(1) / math.sqrt(10_000)
    assert bool(((found - exact).abs() < 4 * spread.detach()).all())
    assert_differs(found, torch.zeros(4))


def test_a_straight_draw_is_0_or_1_with_the_gradient_of_its_probability() -> None:
    logits = torch.tensor([0.5, -0.7, 1.2], requires_grad=True)
    torch.manual_seed(1)
    drawn = drawn_through(logits)
    assert set(drawn.tolist()) <= {0.0, 1.0}
    drawn.sum().backward()
    p = torch.sigmoid(logits.detach())
    assert logits.grad is not None
    assert_near(logits.grad, p * (1 - p))


def test_the_baseline_moves_slowly_and_begins_at_the_first_reward() -> None:
    baseline = Baseline()
    assert float(baseline.advantage(torch.tensor(0.4))) == 0.0
    assert float(baseline.advantage(torch.tensor(1.4))) == pytest.approx(1.0)
    assert baseline.value == pytest.approx(0.9 * 0.4 + 0.1 * 1.4)


def test_a_gnet_begins_near_its_rate_and_cells_of_padding_have_no_say() -> None:
    torch.manual_seed(0)
    gnet = GNet(sites=3, width=11, rank=7, rate=0.1)
    embedded = torch.randn(2, 5, 11)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with torch.no_grad():
        logits = gnet(embedded, valid_cells(mask, causal=False), mask.cumsum(1) - 1)
        alone = gnet(embedded[1:, :3], valid_cells(mask[1:, :3], causal=False), mask[1:, :3].cumsum(1) - 1)
    assert logits.shape == (2, 3, 5, 5)
    assert float(torch.sigmoid(-logits).mean()) == pytest.approx(0.1, abs=0.01)
    assert_near(logits[1:, :, :3, :3], alone)


def test_positions_are_those_of_tokens() -> None:
    positions = torch.tensor([[0, 1, 2]])
    assert sinusoids(positions, 5).shape == (1, 3, 5)
    assert_differs(sinusoids(positions, 5)[:, 0], sinusoids(positions, 5)[:, 1])


@pytest.mark.parametrize("causal", [False, True])
def test_valid_cells(causal: bool) -> None:
    found = valid_cells(torch.tensor([[1, 1, 0]]), causal=causal)[0].int().tolist()
    assert found == [[1, int(not causal), 0], [1, 1, 0], [0, 0, 0]]


def test_masks_with_a_gradient_are_the_masks() -> None:
    with stepping() as step:
        attention_mask = step.prepared.inputs["attention_mask"]
        valid = valid_cells(attention_mask, causal=False)
        tokens = attention_mask.shape[1]
        kept = torch.rand(len(ROWS), SITES, tokens, tokens, generator=torch.Generator().manual_seed(2)) < 0.6
        kept |= torch.eye(tokens, dtype=torch.bool)
        plain = step.output().detach()
        with masks_in_force(step.session, kept):
            expected = step.output().detach()
        as_numbers = kept.double().requires_grad_()
        with masks_with_gradient(step.session, as_numbers, valid):
            found = step.output()
        assert_near(found.detach(), expected)
        assert_differs(found.detach(), plain)
        step.loss(found).backward()
        assert as_numbers.grad is not None
        assert as_numbers.grad[:, 0][valid].any()


class Contest:
    """Two tiny nets with other weights, and the G-Net."""

    def __init__(self, *, seed: int = 0, **options: object) -> None:
        self.options = DropoutOptions(dropout=("attendout",), **options)  # type: ignore[arg-type]
        self.nets = tiny_bert(torch.float32), tiny_bert(torch.float32, seed=1)
        self.seed = seed
        batch = batch_of()
        self.prepared = Prepared(batch=batch, inputs=batch.inputs, labels=batch.labels)

    def run(self, passes: int = 2) -> Rivals:
        a, d = self.nets
        with attach(a) as masked, attach(d) as plain:
            torch.manual_seed(self.seed)
            method = AttendOut(sites=SITES, rate=0.3, options=self.options)
            method.prepare(masked)
            rewards = Rewards(draw=lambda _: [self.prepared], objective=OBJECTIVE, measure=self.options.reward)
            rivals = Rivals(masked, plain, method, rewards, seed=self.seed)
            optimizer = torch.optim.AdamW([*a.parameters(), *d.parameters()], lr=1e-4)
            rivals.train()
            for _ in range(passes):
                rivals.of(self.prepared).backward()
            optimizer.step()
            self.before = [parameter.detach().clone() for parameter in method.parameters()]
            rivals.contest(passes, optimizer)
            self.optimizer = optimizer
        return rivals


TRAININGS: dict[str, dict[str, Any]] = {
    "window": {},
    "sample": {"reward_scope": "sample"},
    "straight-through": {"gnet_training": "straight-through"},
    "sign": {"reward": "sign", "reward_scope": "sample"},
    "accuracy": {"reward": "accuracy", "reward_scope": "sample"},
}


@pytest.mark.parametrize("options", TRAININGS.values(), ids=TRAININGS)
def test_after_a_contest_both_nets_are_the_winner_and_the_gnet_has_learnt(options: dict[str, Any]) -> None:
    contest = Contest(**options)
    rivals = contest.run()
    for ahead, behind in zip(contest.nets[0].parameters(), contest.nets[1].parameters(), strict=True):
        assert_identical(ahead, behind)
        moments, own = (contest.optimizer.state[p] for p in (ahead, behind))
        assert_identical(moments["exp_avg"], own["exp_avg"])
        assert ahead.data_ptr() != behind.data_ptr()
    after = list(rivals.method.parameters())
    changed = any(not torch.equal(a, b) for a, b in zip(after, contest.before, strict=True))
    alike = options == {} or options.get("reward") == "accuracy"  # the first baseline is its own window's reward; and
    assert changed != alike  # with labels that both nets get as wrong, or right, all rows' rewards are alike
    assert not any(parameter.requires_grad for parameter in after)
    assert not rivals.drawn
    (verdict,) = rivals.verdicts
    assert all(0.1 < rate < 0.5 for rate in verdict.rates)


def test_the_better_net_is_followed() -> None:
    """The reward rows' labels are what one of the nets says."""
    for better in (0, 1):
        contest = Contest()
        with torch.no_grad():
            said = contest.nets[better](**contest.prepared.inputs).logits.argmax(-1)
        contest.prepared = Prepared(batch=contest.prepared.batch, inputs=contest.prepared.inputs, labels=said)
        assert contest.run(passes=1).verdicts[0].winner == "AD"[better]


def test_the_state_of_a_contest_comes_back() -> None:
    contest = Contest(reward_scope="sample")
    rivals = contest.run()
    with attach(contest.nets[0]) as masked, attach(contest.nets[1]) as plain:
        rivals.sessions = (masked, plain)
        rivals.train()
        rivals.of(contest.prepared)
        state = {name: value for name, value in rivals.state_dict().items() if not name.startswith(("masked", "plain"))}
        other = Contest(reward_scope="sample", seed=7).run()
        other.load_state_dict(state, strict=False)
    assert other.verdicts == rivals.verdicts
    assert other.baseline.value == rivals.baseline.value
    assert_identical(other.drawn[0].bits, rivals.drawn[0].bits)
    for ours, theirs in zip(other.method.parameters(), rivals.method.parameters(), strict=True):
        assert_identical(ours, theirs)
