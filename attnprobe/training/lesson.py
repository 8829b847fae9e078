"""What is trained on: rows in order, as the objective scores them, and the dense model's outputs on them."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnprobe.data.batches import Batch, Encoded
from attnprobe.masks.tokens import TokenRules
from attnprobe.objectives import Objective, Prepared
from attnprobe.scoring import scored_output
from attnprobe.training.options import DistillingOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MEGABATCH = 50
"""Batches whose rows are sorted by length together: less padding, and still a different mixture in every batch."""

_KEEP_LABELS = 256
"""Dense outputs of more columns than this are computed anew instead of being kept."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What is trained on.

    Attributes:
        encoded: the training data.
        rows: the rows of it that may be used.
        objective: what the output is scored by.
        rules: how positions are told.
    """

    encoded: Encoded
    rows: Sequence[int]
    objective: Objective
    rules: TokenRules

    def collate(self, rows: list[int]) -> dict[str, Tensor]:
        """Some rows as the objective scores them, as flat named tensors."""
        return _flat(self.objective.prepare(self.encoded.batch(rows)))


def _flat(prepared: Prepared) -> dict[str, Tensor]:
    tensors = {f"input_{name}": tensor for name, tensor in prepared.inputs.items()}
    tensors |= {"rows": prepared.batch.indices, "special": prepared.batch.special}
    if prepared.labels is not None:
        tensors["labels"] = prepared.labels
    return tensors


def prepared_from(tensors: dict[str, Tensor]) -> Prepared:
    """A batch back from :meth:`Lesson.collate`."""
    inputs = {n.removeprefix("input_"): tensor for n, tensor in tensors.items() if n.startswith("input_")}
    labels = tensors.get("labels")
    batch = Batch(indices=tensors["rows"], inputs=inputs, labels=labels, special=tensors["special"], segments=None)
    return Prepared(batch=batch, inputs=inputs, labels=labels)


def mixed_loss(objective: Objective, output: Tensor, prepared: Prepared, distill: float) -> Tensor:
    """(1 - distill) L + distill D, the mean over a batch: L the objective's loss, D the divergence from the dense.

    Without dense outputs it is L alone; a fidelity objective's loss is D itself.
    """
    if prepared.dense is None:
        return objective.loss(output, prepared).nanmean()
    divergence = objective.divergence(output, prepared).nanmean()
    if objective.kind == "fidelity" or distill == 1:
        return divergence
    return (1 - distill) * objective.loss(output, prepared).nanmean() + distill * divergence


def needs_dense(objective: Objective, options: DistillingOptions) -> bool:
    """Whether the loss needs the dense model."""
    return objective.kind == "fidelity" or options.distill > 0


class DenseOutputs:
    """The dense model's scored outputs on training rows.

    A row's output depends in its last digits on the rows beside it in a batch. So that a training does not depend on
    what this process did before, outputs are kept from batches of their own, and never from those of a training.

    Attributes:
        model: the dense model: the one that is trained where its weights stay, else a copy.
    """

    def __init__(self, model: PreTrainedModel, objective: Objective) -> None:
        self.model, self.objective = model, objective
        self._tables: dict[tuple[int, ...], Tensor | None] = {}
        self._table: Tensor | None = None

    def keep(self, lesson: Lesson, rows: Sequence[int], batch_size: int) -> None:
        """Compute the outputs of these rows, where they are small; :meth:`of` is then asked for no others."""
        key = (batch_size, *sorted(set(rows)))
        if key not in self._tables:
            self._tables[key] = self._computed(lesson, key[1:], batch_size)
        self._table = self._tables[key]

    def _computed(self, lesson: Lesson, rows: Sequence[int], batch_size: int) -> Tensor | None:
        """Outputs by number of the row, (all rows, columns); None where they are large, or by token."""
        table: Tensor | None = None
        for batch in map(lesson.encoded.batch, lesson.encoded.plan(batch_size, rows=rows)):
            prepared = self.objective.prepare(batch.to(self.model.device))
            output = self.now(prepared)
            by_token = output.dim() > 2 or (prepared.labels is not None and prepared.labels.dim() > 1)
            if by_token or output.shape[1] > _KEEP_LABELS:
                return None
            if table is None:
                table = output.new_full((len(lesson.encoded), *output.shape[1:]), math.nan)
            table[prepared.batch.indices] = output
        return table

    def of(self, prepared: Prepared) -> Tensor:
        """Scored output of a batch of the rows that are kept, or of any batch where none are, without gradient."""
        return self.now(prepared) if self._table is None else self._table[prepared.batch.indices]

    def now(self, prepared: Prepared) -> Tensor:
        """Scored output of any batch, computed anew, without gradient."""
        with torch.no_grad():
            return scored_output(self.model, self.objective, prepared)


def dense_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model's weights that stays as it is, in eval mode and without gradients."""
    twin = copy.deepcopy(model).eval()
    twin.requires_grad_(False)
    return twin


def training_order(
    lengths: Sequence[int], rows: Sequence[int], *, batch_size: int, batches: int, seed: int
) -> list[int]:
    """The rows of all batches, end to end: passes over the data in random order, each batch of rows of like length.

    Args:
        lengths: tokens of every row of the data.
        rows: those that may be used.
        batch_size: rows in a batch.
        batches: how many.
        seed: the same seed gives the same order.
    """
    generator = np.random.default_rng(seed)
    order: list[int] = []
    while len(order) < batches * batch_size:
        shuffled = generator.permutation(np.asarray(rows))
        for start in range(0, len(shuffled), _MEGABATCH * batch_size):
            mega = sorted(shuffled[start : start + _MEGABATCH * batch_size].tolist(), key=lambda row: lengths[row])
            cut = [mega[at : at + batch_size] for at in range(0, len(mega), batch_size)]
            if len(cut) > 1 and len(cut[-1]) < batch_size:  # a short batch would shift all that follow
                cut.pop()
            cut = [(batch * math.ceil(batch_size / len(batch)))[:batch_size] for batch in cut]
            order += [row for at in generator.permutation(len(cut)) for row in cut[at]]
    return order[: batches * batch_size]
