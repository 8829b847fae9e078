"""A tiny classifier, attached, and what a dropout method does to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnprobe.attention import AttentionCall, AttentionSession, attach
from attnprobe.dropout.base import Dropout, Step
from attnprobe.dropout.methods import METHODS
from attnprobe.dropout.options import DropoutOptions
from attnprobe.objectives import Prepared, SequenceTask
from tests.helpers.probing import ROWS, SITES, Row, batch_of, tiny_bert

OBJECTIVE = SequenceTask(("accuracy",))


@contextmanager
def stepping(rows: tuple[Row, ...] = ROWS, **changes: Any) -> Iterator[Step]:
    """A step of a model in training mode, without dropout of its own, on a ragged batch."""
    model = tiny_bert()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    with attach(model) as session:
        model.train()
        batch = batch_of(rows)
        prepared = Prepared(batch=batch, inputs=batch.inputs, labels=batch.labels)
        yield Step(session=session, objective=OBJECTIVE, prepared=prepared, **changes)


def method(name: str, step: Step, *, rate: float | None = None, seed: int = 0, **options: Any) -> Dropout:
    """A method, ready for the step's model."""
    torch.manual_seed(seed)
    rate = METHODS[name].rate if rate is None else rate
    made = METHODS[name].load()(sites=SITES, rate=rate, options=DropoutOptions(dropout=(name,), **options))
    made.prepare(step.session)
    return made


def output(made: Dropout, step: Step, seed: int = 1) -> Tensor:
    """The scored output under a method."""
    torch.manual_seed(seed)
    with torch.no_grad(), made.applied(step):
        return step.output()


def weights(session: AttentionSession, made: Dropout, step: Step, seed: int = 1) -> list[Tensor]:
    """What softmax gives under a method, by site: (batch, heads, queries, keys)."""
    seen: list[Tensor] = []

    def observe(call: AttentionCall, probabilities: Tensor) -> None:
        del call
        seen.append(probabilities.detach())

    with session.observe(observe):
        output(made, step, seed)
    return seen


def again(step: Step, **changes: Any) -> Step:
    """The same step at another time."""
    return replace(step, **changes)
