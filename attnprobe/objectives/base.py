"""The form of every objective, and a batch as an objective scores it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnprobe.data.batches import Batch
from attnprobe.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A batch as an objective scores it.

    Attributes:
        batch: what the data layer gave.
        inputs: what the model is called with; each (batch, tokens).
        labels: (batch,) for sequence heads; (batch, tokens) with -100 where no token is scored; None without labels.
        dense: the scored output of the untouched model, once it is known.
    """

    batch: Batch
    inputs: dict[str, Tensor]
    labels: Tensor | None
    dense: Tensor | None = None

    def with_dense(self, output: Tensor) -> Prepared:
        """The same, knowing the dense model's scored output."""
        return replace(self, dense=output.detach())


class Objective(ABC):
    """A per-example loss, a divergence from the dense output, and a metric, all of one scored output.

    Attributes:
        kind: ``task``, ``masked_lm``, ``causal_lm`` or ``fidelity``.
        loss_unit: unit of the loss.
        divergence_unit: unit of the divergence.
        metrics: names of the metrics, the primary one first; keys of :data:`~attnprobe.metrics.METRICS`.
    """

    kind: str
    loss_unit: str
    divergence_unit: str
    metrics: tuple[str, ...]

    def prepare(self, batch: Batch) -> Prepared:
        """Turn a batch into what the model is called with and scored against."""
        return Prepared(batch=batch, inputs=batch.inputs, labels=batch.labels)

    @abstractmethod
    def output(self, result: Tensor, prepared: Prepared) -> Tensor:
        """The scored part of a model's first output."""

    @abstractmethod
    def loss(self, output: Tensor, prepared: Prepared) -> Tensor:
        """(batch,): the loss of each example, differentiable."""

    @abstractmethod
    def divergence(self, output: Tensor, prepared: Prepared) -> Tensor:
        """(batch,): how far the output is from ``prepared.dense``, at least 0."""

    @abstractmethod
    def predictions(self, output: Tensor, prepared: Prepared) -> Tensor:
        """(batch, columns): what the metric reads of each example."""

    def hits(self, output: Tensor, prepared: Prepared) -> Tensor:
        """(batch,): share of an example's scored classes that are right. Raises: UsageError without classes."""
        del output, prepared
        raise UsageError(f"a {self.kind} scored in {self.loss_unit} has no classes to be right about: use its loss")

    def references(self, prepared: Prepared) -> Tensor:
        """(batch,): what the metric compares predictions with; 0 where predictions are counts."""
        return torch.zeros(len(prepared.batch.indices))

    def rows(self, prepared: Prepared, rows: Tensor) -> Prepared:
        """Some rows of a prepared batch, in the order given and as often."""
        return replace(
            prepared,
            inputs={name: tensor[rows] for name, tensor in prepared.inputs.items()},
            labels=None if prepared.labels is None else prepared.labels[rows],
            dense=None if prepared.dense is None else prepared.dense[rows],
        )

    def probe(self, output: Tensor, prepared: Prepared, generator: torch.Generator) -> Tensor:
        """(batch,): the scalar whose first-order change ``taylor`` reads; the loss, unless its slope is 0."""
        del generator
        return self.loss(output, prepared)

    def effect(self, change: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn the first-order change of :meth:`probe` into an effect on the loss."""
        return change
