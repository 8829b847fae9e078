"""A task with a clue that mostly holds in the rows learnt from, and in no others: what a G-Net should learn to drop.

A row is eight words; its label is whether `good` or `bad` is the more frequent of its first seven. Its last word gives
the label away (`cat` or `dog`) in all but a few of the rows that are learnt from; in all others it is drawn at random.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from attnprobe.attention import attach, evaluating
from attnprobe.data.batches import Batch
from attnprobe.dropout.attendout import AttendOut
from attnprobe.dropout.attendout.rewards import Rewards
from attnprobe.dropout.attendout.rivals import Rivals
from attnprobe.dropout.base import Step
from attnprobe.dropout.options import DropoutOptions
from attnprobe.objectives import Prepared, SequenceTask
from attnprobe.scoring import scored_output
from tests.helpers.tiny_checkpoints import BERT_SPECIALS, WORDS, bert_config

CLS, SEP = BERT_SPECIALS.index("[CLS]"), BERT_SPECIALS.index("[SEP]")
GOOD, BAD, CAT, DOG, *_ = (len(BERT_SPECIALS) + WORDS.index(word) for word in ("good", "bad", "cat", "dog"))
FILLERS = tuple(len(BERT_SPECIALS) + WORDS.index(word) for word in ("the", "a", "of", "and", "is"))
TOLD, CLUE = 7, 8
"""Words that tell the label rightly, and the clue's position; [CLS] is at 0."""
HOLDS = 0.97
"""Share of the rows learnt from in which the clue is right."""
LEARNT, REWARDING, TESTED, BATCH = 512, 128, 1000, 32
RATE = 0.15
OBJECTIVE = SequenceTask(("accuracy",))


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of the task: ids (rows, tokens), labels (rows,)."""

    ids: Tensor
    labels: Tensor

    def prepared(self, rows: Tensor) -> Prepared:
        """Some of them as a batch."""
        ids, labels = self.ids[rows], self.labels[rows]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        special = ids < len(BERT_SPECIALS)
        batch = Batch(indices=rows, inputs=inputs, labels=labels, special=special, segments=None)
        return Prepared(batch=batch, inputs=inputs, labels=labels)


def make_rows(count: int, *, holds: float, seed: int) -> Rows:
    """Rows whose clue is right in a share of them."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(2, size=count)
    words = generator.choice(FILLERS, size=(count, TOLD))
    for row, label in zip(words, labels, strict=True):
        row[generator.permutation(TOLD)[:3]] = [(BAD, GOOD)[label]] * 2 + [(GOOD, BAD)[label]]
    said = np.where(generator.random(count) < holds, labels, 1 - labels)
    columns = [np.full(count, CLS), words, np.where(said == 1, CAT, DOG), np.full(count, SEP)]
    return Rows(ids=torch.from_numpy(np.column_stack(columns)).long(), labels=torch.from_numpy(labels).long())


def make_model(seed: int) -> BertForSequenceClassification:
    """A small BERT that knows nothing: one site, so that the classifier's own row is all that counts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BertForSequenceClassification(
            bert_config(
                hidden_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=64,
                initializer_range=0.1,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """Accuracy where the clue says nothing; share that the G-Net drops of the clue's cells, and of the other words'."""

    accuracy: float
    clue: float
    others: float


def learn(options: DropoutOptions | None, *, seed: int, steps: int) -> Learnt:
    """Train with AttendOut, or without any dropout."""
    learnt = make_rows(LEARNT, holds=HOLDS, seed=3 * seed)
    rewarding, tested = (make_rows(n, holds=0.5, seed=3 * seed + k) for k, n in ((1, REWARDING), (2, TESTED)))
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), ExitStack() as stack:
        torch.manual_seed(seed)
        nets = [make_model(seed) for _ in range(1 if options is None else 2)]
        sessions = [stack.enter_context(attach(net)) for net in nets]
        optimizer = torch.optim.AdamW([p for net in nets for p in net.parameters()], lr=1e-3)
        rivals = None
        if options is not None:
            method = AttendOut(sites=1, rate=RATE, options=options)
            method.prepare(sessions[0])
            every = torch.arange(REWARDING).split(BATCH)
            rewards = Rewards(
                draw=lambda _: [rewarding.prepared(part) for part in every], objective=OBJECTIVE, measure=options.reward
            )
            rivals = Rivals(sessions[0], sessions[1], method, rewards, seed=seed)
        for net in nets:
            net.train()
        for step in range(1, steps + 1):
            prepared = learnt.prepared(torch.randint(LEARNT, (BATCH,), generator=generator))
            if rivals is None:
                plain = Step(session=sessions[0], objective=OBJECTIVE, prepared=prepared)
                loss = plain.loss(plain.output())
            else:
                loss = rivals.of(prepared)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rivals is not None and step % rivals.options.dropout_step == 0:
                rivals.contest(step, optimizer)
        found = accuracy(nets[0], tested)
        if rivals is None:
            return Learnt(accuracy=found, clue=0.0, others=0.0)
        with torch.no_grad():
            logits, _ = rivals.method.logits(sessions[0], tested.prepared(torch.arange(TESTED)).inputs)
        dropped = torch.sigmoid(-logits[:, :, 0])  # of the row that the classifier reads
        return Learnt(accuracy=found, clue=float(dropped[..., CLUE].mean()), others=float(dropped[..., 1:CLUE].mean()))


def accuracy(net: BertForSequenceClassification, rows: Rows) -> float:
    """Share of the rows that are told rightly."""
    prepared = rows.prepared(torch.arange(len(rows.labels)))
    with evaluating(net), torch.no_grad():
        output = scored_output(net, OBJECTIVE, prepared)
    return float((output.argmax(-1) == rows.labels).float().mean())
