"""Two copies of a model, fine-tuned side by side, with and without masks; the G-Net that makes these; their contest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnprobe.attention import AttentionSession, evaluating
from attnprobe.distributed import averaged
from attnprobe.dropout.attendout.draws import draw, drawn_through, log_probability, packed, unpacked
from attnprobe.dropout.attendout.gnet import valid_cells
from attnprobe.dropout.attendout.method import AttendOut, dropped_by_site, masks_in_force, masks_with_gradient
from attnprobe.dropout.attendout.rewards import Baseline, Rewards
from attnprobe.dropout.base import Step
from attnprobe.objectives import Prepared
from attnprobe.scoring import scored_output
from attnprobe.training.lesson import prepared_from

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SYNC_TEMPERATURE = 0.02
"""Of the draw of the net that both go on from: P(A) = sigmoid((R_A - R_D) / temperature)."""

RATE_WEIGHT = 10.0
"""Of the squared distance of the drop rate from the one wanted, where the G-Net learns straight-through."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Masks that a training batch had: what the G-Net read, and what was kept, in bits.

    Attributes:
        inputs: ``input_ids`` and ``attention_mask``, each (batch, tokens).
        bits: of :func:`~.draws.packed`.
        shape: (batch, sites, queries, keys).
    """

    inputs: dict[str, Tensor]
    bits: Tensor
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A comparison of the two nets.

    Attributes:
        step: optimizer steps taken.
        reward: mean reward of the net with masks.
        winner: ``A``, the net with masks, or ``D``.
        rates: share dropped at each site by the masks since the last comparison.
    """

    step: int
    reward: float
    winner: str
    rates: tuple[float, ...]


class Rivals(nn.Module):
    """What the Trainer trains with AttendOut: the net with masks (A), the net without (D), and their G-Net.

    Both begin equal. Every few steps both are scored on the reward rows, the G-Net learns from the masks since the last
    time, and both go on from the one that is drawn in favour of the better. The G-Net takes no part in
    back-propagation through a training step: its parameters want gradients in :meth:`contest` alone.

    Args:
        masked, plain: the attached nets A and D.
        method: prepared for A.
        rewards: how they are compared.
        seed: of the draw of the winner.
    """

    accepts_loss_kwargs = False  # the Trainer divides by the number of accumulated batches
    _keys_to_ignore_on_save = None  # the Trainer asks for it where it loads a checkpoint

    def __init__(
        self,
        masked: AttentionSession,
        plain: AttentionSession,
        method: AttendOut,
        rewards: Rewards,
        *,
        seed: int,
    ) -> None:
        super().__init__()
        self.masked, self.plain, self.method = masked.model, plain.model, method
        self.sessions, self.rewards, self.seed = (masked, plain), rewards, seed
        self.options = method.options
        method.requires_grad_(False)
        self.optimizer = torch.optim.Adam(method.parameters(), lr=self.options.gnet_learning_rate)
        self.baseline = Baseline()
        self.drawn: list[Drawn] = []
        self.verdicts: list[Verdict] = []
        self.progress = 0.0

    @property
    def winner(self) -> PreTrainedModel:
        """The net that the last comparison was drawn for."""
        return self.plain if self.verdicts and self.verdicts[-1].winner == "D" else self.masked

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        """The loss of a batch, as ``loss``; tensors are those of :meth:`~attnprobe.training.lesson.Lesson.collate`."""
        return {"loss": self.of(prepared_from(tensors))}

    def of(self, prepared: Prepared) -> Tensor:
        """The sum of both nets' mean loss on a batch, so that each has the gradient of its own."""
        masked, plain = (
            Step(session=session, objective=self.rewards.objective, prepared=prepared, progress=self.progress)
            for session in self.sessions
        )
        loss = self.method.loss(masked) + plain.loss(plain.output())
        assert self.method.kept is not None
        inputs = {name: prepared.inputs[name] for name in ("input_ids", "attention_mask")}
        kept = self.method.kept
        self.drawn.append(Drawn(inputs=inputs, bits=packed(kept), shape=tuple(kept.shape)))
        return loss

    def contest(self, step: int, optimizer: torch.optim.Optimizer) -> Verdict:
        """Compare the nets, teach the G-Net, and let both go on from the winner, its optimizer's moments too.

        Args:
            step: optimizer steps taken.
            optimizer: of the nets.
        """
        batches = self.rewards.draw(step)
        masked, plain = (self.rewards.scores(session, batches) for session in self.sessions)
        score, against = (float(torch.cat(found).nanmean()) for found in (masked, plain))
        rates = self._rates()
        if self.options.gnet_training == "straight-through":
            reward = self._teach_through(batches)
        elif self.options.reward_scope == "sample":
            reward = self._teach_by_sample(batches, plain)
        else:
            reward = self._teach_by_window(torch.tensor(score), torch.tensor(against))
        lead = (score - against) / SYNC_TEMPERATURE
        chance = 1 / (1 + math.exp(-min(max(lead, -50.0), 50.0)))
        won = np.random.default_rng((self.seed, step)).random() < chance
        self._follow(won, optimizer)
        self.drawn.clear()
        verdict = Verdict(step=step, reward=reward, winner="A" if won else "D", rates=rates)
        self.verdicts.append(verdict)
        return verdict

    def _teach_by_window(self, score: Tensor, against: Tensor) -> float:
        """REINFORCE with one reward for all masks since the last comparison, one update a batch of them."""
        reward = self.rewards.reward(score, against)
        advantage = self.baseline.advantage(reward)
        for drawn in self.drawn:
            with self._learning():
                logits, valid = self.method.logits(self.sessions[0], drawn.inputs)
                kept = unpacked(drawn.bits, torch.Size(drawn.shape))
                (-advantage * log_probability(logits, kept, valid).mean()).backward()
        return float(reward)

    def _teach_by_sample(self, batches: list[Prepared], plain: list[Tensor]) -> float:
        """REINFORCE with masks drawn for the reward rows: each row's own score, against that of the net without."""
        rewards = []
        for prepared, against in zip(batches, plain, strict=True):
            with self._learning():
                logits, valid = self.method.logits(self.sessions[0], prepared.inputs)
                kept = draw(logits)
                with masks_in_force(self.sessions[0], kept):
                    (score,) = self.rewards.scores(self.sessions[0], [prepared])
                reward = self.rewards.reward(score, against)
                rewards.append(reward)
                each = self.baseline.advantage(reward) * log_probability(logits, kept, valid)
                (-each.nanmean()).backward()
        return float(torch.cat(rewards).nanmean())

    def _teach_through(self, batches: list[Prepared]) -> float:
        """The gradient of the reward rows' loss through the masks, and of the distance from the rate wanted."""
        session, losses = self.sessions[0], []
        for prepared in batches:
            with self._learning(), evaluating(session.model):
                logits, valid = self.method.logits(session, prepared.inputs)
                with masks_with_gradient(session, drawn_through(logits), valid):
                    output = scored_output(session.model, self.rewards.objective, prepared)
                loss = self.rewards.objective.loss(output, prepared).nanmean()
                losses.append(loss.detach())
                cells = valid.unsqueeze(1)
                rate = (functional.sigmoid(-logits) * cells).sum() / cells.expand_as(logits).sum().clamp_min(1)
                total = loss + RATE_WEIGHT * (rate - self.method.rate).square()
                learnt = list(self.method.parameters())
                gradients = torch.autograd.grad(total, learnt, allow_unused=True)  # one site has no use for values
                for parameter, gradient in zip(learnt, gradients, strict=True):
                    parameter.grad = gradient
        return -float(torch.stack(losses).mean())

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """An update of the G-Net, whose parameters want gradients within; the step is on all processes' mean."""
        learnt = list(self.method.parameters())
        self.method.requires_grad_(True)
        try:
            yield
            for parameter in learnt:
                if parameter.grad is not None:
                    parameter.grad = averaged(parameter.grad)
            self.optimizer.step()
        finally:
            self.method.requires_grad_(False)
            self.optimizer.zero_grad(set_to_none=True)

    def _rates(self) -> tuple[float, ...]:
        """Share dropped at each site by the masks since the last comparison, the mean over batches."""
        causal, shares = self.sessions[0].sites[0].causal, []
        for drawn in self.drawn:
            valid = valid_cells(drawn.inputs["attention_mask"], causal=causal)
            shares.append(dropped_by_site(unpacked(drawn.bits, torch.Size(drawn.shape)), valid))
        return tuple(float(share) for share in torch.stack(shares).mean(0).tolist())

    def _follow(self, won: bool, optimizer: torch.optim.Optimizer) -> None:
        """Give the loser the winner's weights and moments."""
        winner, loser = (self.masked, self.plain) if won else (self.plain, self.masked)
        with torch.no_grad():
            for ahead, behind in zip(winner.parameters(), loser.parameters(), strict=True):
                behind.copy_(ahead)
                moments, own = optimizer.state.get(ahead, {}), optimizer.state.get(behind, {})
                for name, tensor in moments.items():
                    own[name].copy_(tensor)

    def get_extra_state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the weights, as tensors and plain values."""
        return {
            "drawn": [(drawn.inputs, drawn.bits, drawn.shape) for drawn in self.drawn],
            "verdicts": [(v.step, v.reward, v.winner, v.rates) for v in self.verdicts],
            "baseline": self.baseline.value,
            "optimizer": self.optimizer.state_dict(),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Back from :meth:`get_extra_state`."""
        device = self.masked.device
        self.drawn = [
            Drawn(inputs={n: t.to(device) for n, t in inputs.items()}, bits=bits.to(device), shape=tuple(shape))
            for inputs, bits, shape in state["drawn"]
        ]
        self.verdicts = [
            Verdict(step=step, reward=reward, winner=winner, rates=tuple(rates))
            for step, reward, winner, rates in state["verdicts"]
        ]
        self.baseline = Baseline(state["baseline"])
        self.optimizer.load_state_dict(state["optimizer"])
