"""Losses of trained task heads: of a whole sequence, and of each token."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from attnprobe.metrics import spans
from attnprobe.objectives.base import Objective, Prepared


def _kl(output: Tensor, dense: Tensor) -> Tensor:
    """KL(dense || output) in nats over the last axis."""
    log_dense, log_output = functional.log_softmax(dense, -1), functional.log_softmax(output, -1)
    return (log_dense.exp() * (log_dense - log_output)).sum(-1).clamp_min(0.0)


class SequenceTask(Objective):
    """Cross-entropy of a trained sequence classifier. Scored output: logits (batch, labels)."""

    kind, loss_unit, divergence_unit = "task", "nats", "nats"

    def __init__(self, metrics: tuple[str, ...]) -> None:
        self.metrics = metrics

    def output(self, result: Tensor, prepared: Prepared) -> Tensor:
        del prepared
        return result.float() if result.dtype != torch.float64 else result

    def loss(self, output: Tensor, prepared: Prepared) -> Tensor:
        assert prepared.labels is not None
        return functional.cross_entropy(output, prepared.labels, reduction="none")

    def divergence(self, output: Tensor, prepared: Prepared) -> Tensor:
        assert prepared.dense is not None
        return _kl(output, prepared.dense)

    def predictions(self, output: Tensor, prepared: Prepared) -> Tensor:
        del prepared
        return output.argmax(-1, keepdim=True)

    def hits(self, output: Tensor, prepared: Prepared) -> Tensor:
        assert prepared.labels is not None
        return (output.argmax(-1) == prepared.labels).float()

    def references(self, prepared: Prepared) -> Tensor:
        assert prepared.labels is not None
        return prepared.labels


class RegressionTask(SequenceTask):
    """Squared error of a trained regression head. Scored output: (batch, 1)."""

    loss_unit = divergence_unit = "squared error"

    def loss(self, output: Tensor, prepared: Prepared) -> Tensor:
        assert prepared.labels is not None
        return (output[:, 0] - prepared.labels.to(output.dtype)).square()

    def divergence(self, output: Tensor, prepared: Prepared) -> Tensor:
        assert prepared.dense is not None
        return (output[:, 0] - prepared.dense[:, 0]).square()

    def predictions(self, output: Tensor, prepared: Prepared) -> Tensor:
        del prepared
        return output[:, :1]

    def hits(self, output: Tensor, prepared: Prepared) -> Tensor:
        return Objective.hits(self, output, prepared)


class TokenTask(Objective):
    """Mean cross-entropy over an example's labelled tokens. Scored output: their logits (tokens scored, labels).

    An example without a labelled token has no loss: NaN, which every mean here leaves out.
    """

    kind, loss_unit, divergence_unit = "task", "nats", "nats"
    metrics: tuple[str, ...] = ("token_accuracy",)

    def output(self, result: Tensor, prepared: Prepared) -> Tensor:
        assert prepared.labels is not None
        scored = result[prepared.labels != -100]
        return scored.float() if scored.dtype != torch.float64 else scored

    def _mean(self, per_token: Tensor, prepared: Prepared) -> Tensor:
        assert prepared.labels is not None
        scored = prepared.labels != -100
        rows = scored.nonzero()[:, 0]
        total = per_token.new_zeros(len(scored)).index_add(0, rows, per_token)
        return total / scored.sum(1)

    def loss(self, output: Tensor, prepared: Prepared) -> Tensor:
        assert prepared.labels is not None
        labels = prepared.labels[prepared.labels != -100]
        return self._mean(functional.cross_entropy(output, labels, reduction="none"), prepared)

    def divergence(self, output: Tensor, prepared: Prepared) -> Tensor:
        assert prepared.dense is not None
        return self._mean(_kl(output, prepared.dense), prepared)

    def hits(self, output: Tensor, prepared: Prepared) -> Tensor:
        assert prepared.labels is not None
        return self._mean((output.argmax(-1) == prepared.labels[prepared.labels != -100]).float(), prepared)

    def rows(self, prepared: Prepared, rows: Tensor) -> Prepared:
        """As for any objective; the dense output has no row an example, but one a scored token."""
        chosen = super().rows(replace(prepared, dense=None), rows)
        if prepared.dense is None or prepared.labels is None:
            return chosen
        by_example = torch.split(prepared.dense, (prepared.labels != -100).sum(1).tolist())
        return chosen.with_dense(torch.cat([by_example[row] for row in rows.tolist()]))

    def _counts(self, right: Tensor, scored: Tensor) -> Tensor:
        """(batch, 2): scored tokens that are right, scored tokens."""
        correct = scored.sum(1).new_zeros(len(scored)).index_add(0, scored.nonzero()[:, 0], right.long())
        return torch.stack([correct, scored.sum(1)], dim=1)

    def predictions(self, output: Tensor, prepared: Prepared) -> Tensor:
        """(batch, 2): tokens predicted rightly, tokens scored."""
        assert prepared.labels is not None
        scored = prepared.labels != -100
        return self._counts(output.argmax(-1) == prepared.labels[scored], scored)


class SpanTask(TokenTask):
    """Token classification whose labels are BIO tags: as :class:`TokenTask`, with span F1 as its metric."""

    metrics = ("span_f1",)

    def __init__(self, tags: tuple[str, ...]) -> None:
        self.tags = tags

    def predictions(self, output: Tensor, prepared: Prepared) -> Tensor:
        """(batch, 3): spans found rightly, spans predicted, spans in the data."""
        assert prepared.labels is not None
        scored = prepared.labels != -100
        sizes = scored.sum(1).tolist()
        counts = []
        for found, gold in zip(
            torch.split(output.argmax(-1), sizes), torch.split(prepared.labels[scored], sizes), strict=True
        ):
            predicted, true = (spans([self.tags[tag] for tag in tags.tolist()]) for tags in (found, gold))
            counts.append([len(predicted & true), len(predicted), len(true)])
        return torch.tensor(counts, device=output.device).reshape(len(sizes), 3)
