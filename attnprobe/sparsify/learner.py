"""A model under learnable gates or a fixed mask, and its loss: what the Trainer trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor, nn

from attnprobe.attention import AttentionCall, AttentionSession
from attnprobe.masks.applying import PassReader, of_queries
from attnprobe.masks.gates import Gates
from attnprobe.masks.mask import Mask, spread
from attnprobe.masks.tokens import TokenRules
from attnprobe.objectives import Objective
from attnprobe.scoring import first_output
from attnprobe.training.hidden import LastStates, hidden_distance
from attnprobe.training.lesson import DenseOutputs, mixed_loss, prepared_from

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PAPER_SHIFT = 1e4
"""What SparseBERT's code takes from the score of a closed cell."""


class Learner(nn.Module):
    """What the Trainer trains: a model under gates (or under a fixed mask, or dense), and its loss.

    Attributes:
        model: the attached model.
        gates: learnable gates; None where only weights are trained.
    """

    accepts_loss_kwargs = False  # the Trainer divides by the number of accumulated batches
    _keys_to_ignore_on_save = None  # the Trainer asks for it where it loads a checkpoint

    def __init__(
        self,
        model: PreTrainedModel,
        gates: Gates | None,
        *,
        objective: Objective,
        dense: DenseOutputs | None,
        train_weights: bool,
        distill: float,
        price: float | None,
        paper_form: bool = False,
        hidden: float = 0.0,
    ) -> None:
        super().__init__()
        self.paper_form, self.hidden = paper_form, hidden
        self.states, self.dense_states = LastStates(), LastStates()
        self.model, self.gates = model, gates
        self.objective, self.dense = objective, dense
        self.train_weights, self.distill, self.price = train_weights, distill, price
        self.values: Tensor | None = None
        """Gates in force: (sites, heads, gates seen + 2), drawn anew in each pass; None for the dense model."""
        self.fixed: Mask | None = None

    def train(self, mode: bool = True) -> Learner:
        """As for any module, but frozen weights see no dropout."""
        super().train(mode)
        if not self.train_weights:
            self.model.eval()
        return self

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        """The mean loss of a batch, as ``loss``; tensors are those of :meth:`Lesson.collate`."""
        prepared = prepared_from(tensors)
        if self.dense is not None:
            self.values = None
            prepared = prepared.with_dense(self.dense.now(prepared) if self.hidden else self.dense.of(prepared))
        self.values = self.gates.draw() if self.gates is not None and self.fixed is None else None
        output = self.objective.output(first_output(self.model, prepared.inputs), prepared)
        loss = mixed_loss(self.objective, output, prepared, self.distill)
        if self.hidden:
            assert self.states.states is not None
            assert self.dense_states.states is not None
            mask = prepared.inputs["attention_mask"]
            loss = loss + self.hidden * hidden_distance(self.states.states, self.dense_states.states, mask)
        if self.gates is not None:
            if self.fixed is not None:
                loss = loss + 0.0 * self.gates.logits.sum()  # every process has a gradient for every parameter
            elif self.price is not None:
                loss = loss + self.price * self._bought()
        return {"loss": loss}

    def _bought(self) -> Tensor:
        """What the price is for: the expected density; in the paper's form the sum of the gates as drawn."""
        assert self.gates is not None
        assert self.values is not None
        return self.values[..., :-2].sum() if self.paper_form else self.gates.density().float()


@contextmanager
def gated(session: AttentionSession, learner: Learner, rules: TokenRules) -> Iterator[None]:
    """Put the learner's gates, or its fixed mask, in force in every pass of its model."""
    reader = PassReader(rules)

    def values(call: AttentionCall) -> Tensor | None:
        if learner.values is None or learner.gates is None:
            return None
        gates = learner.gates
        index = reader.once("index", lambda: gates.index(reader.positions(call)))
        return of_queries(spread(learner.values[call.site.index], index), call)

    def gate(call: AttentionCall) -> Tensor | None:
        if learner.fixed is not None:
            return _fixed(learner.fixed, reader, call)
        return None if learner.paper_form else values(call)

    def shift(call: AttentionCall) -> Tensor | None:
        drawn = values(call) if learner.paper_form else None
        return None if drawn is None else -PAPER_SHIFT * (1 - drawn)

    with reader.reading(session), session.gate(gate), session.shift(shift):
        yield


def _fixed(mask: Mask, reader: PassReader, call: AttentionCall) -> Tensor:
    at = reader.positions(call)
    cells = reader.once("cells", lambda: mask.cells(at))
    return of_queries(mask.keep(at, call.site.index, cells), call)
