"""What a checkpoint is asked to keep: the loss that removing attention may change.

Chosen by what the checkpoint has: a trained task head and labels give the task's loss, a language-model head gives the
language-model loss, everything else is label-free fidelity to the dense model. A random head never gives a number.

Losses are per example, and averaged over examples: an example with many tokens counts once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from attnprobe.data.batches import Batch


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
        from attnprobe.metrics import spans

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


class MaskedLM(TokenTask):
    """Loss of a masked language model on 15 % of an example's ordinary tokens, all replaced by the mask token.

    Which tokens is drawn from the seed and the example's number alone: the same in every pass, batch and run.
    """

    kind = "masked_lm"

    def __init__(self, *, mask_id: int, seed: int, share: float = 0.15) -> None:
        self.mask_id, self.seed, self.share = mask_id, seed, share

    def prepare(self, batch: Batch) -> Prepared:
        ids, ordinary = batch.inputs["input_ids"], batch.inputs["attention_mask"].bool() & ~batch.special
        chosen = torch.zeros_like(ordinary)
        for row, index in enumerate(batch.indices.tolist()):
            candidates = ordinary[row].nonzero()[:, 0].cpu().numpy()
            if candidates.size:
                count = max(1, round(self.share * candidates.size))
                drawn = np.random.default_rng([self.seed, index]).choice(candidates, count, replace=False)
                chosen[row, torch.from_numpy(drawn)] = True
        inputs = batch.inputs | {"input_ids": ids.masked_fill(chosen, self.mask_id)}
        return Prepared(batch=batch, inputs=inputs, labels=ids.masked_fill(~chosen, -100))


class CausalLM(TokenTask):
    """Next-token loss of a causal language model."""

    kind = "causal_lm"

    def prepare(self, batch: Batch) -> Prepared:
        ids, token = batch.inputs["input_ids"], batch.inputs["attention_mask"].bool()
        labels = torch.full_like(ids, -100)
        labels[:, :-1] = ids[:, 1:].masked_fill(~(token[:, 1:] & token[:, :-1]), -100)
        return Prepared(batch=batch, inputs=batch.inputs, labels=labels)


class Fidelity(Objective):
    """Label-free: the loss *is* the divergence from the dense model, 0 at the dense model and without slope there.

    First-order effects of such a loss would all be 0. ``taylor`` therefore reads the first-order change of a random
    :meth:`probe` of the output whose mean square is twice the divergence, up to third order.
    """

    kind = "fidelity"

    def loss(self, output: Tensor, prepared: Prepared) -> Tensor:
        return self.divergence(output, prepared)

    def effect(self, change: NDArray[np.float64]) -> NDArray[np.float64]:
        half_square: NDArray[np.float64] = change**2 / 2
        return half_square


def _log_probability_of_draw(output: Tensor, generator: torch.Generator) -> Tensor:
    """log p_y of a label y drawn from the output: E[(d log p_y)^2] / 2 is the KL (p's Fisher information is its
    curvature), and labels drawn apart do not add to each other's mean square.
    """
    log_p = functional.log_softmax(output, -1)
    drawn = torch.multinomial(log_p.detach().exp().cpu(), 1, generator=generator).to(output.device)
    return log_p.gather(1, drawn)[:, 0]


class SequenceFidelity(Fidelity, SequenceTask):
    """KL to the dense prediction of a trained sequence classifier, in nats."""

    def __init__(self) -> None:
        super().__init__(("agreement",))

    def references(self, prepared: Prepared) -> Tensor:
        assert prepared.dense is not None
        return prepared.dense.argmax(-1)

    def probe(self, output: Tensor, prepared: Prepared, generator: torch.Generator) -> Tensor:
        del prepared
        return _log_probability_of_draw(output, generator)


class RegressionFidelity(Fidelity, RegressionTask):
    """Squared difference from the dense value of a trained regression head: the square of the output's change."""

    def __init__(self) -> None:
        super().__init__(("pearson",))

    def references(self, prepared: Prepared) -> Tensor:
        assert prepared.dense is not None
        return prepared.dense[:, 0]

    def probe(self, output: Tensor, prepared: Prepared, generator: torch.Generator) -> Tensor:
        del prepared, generator
        return output[:, 0]

    def effect(self, change: NDArray[np.float64]) -> NDArray[np.float64]:
        square: NDArray[np.float64] = change**2
        return square


class TokenFidelity(Fidelity, TokenTask):
    """KL to the dense prediction of every ordinary token, averaged over an example's tokens, in nats."""

    metrics = ("token_accuracy",)

    def prepare(self, batch: Batch) -> Prepared:
        ordinary = batch.inputs["attention_mask"].bool() & ~batch.special
        labels = torch.zeros_like(batch.inputs["input_ids"]).masked_fill(~ordinary, -100)
        return Prepared(batch=batch, inputs=batch.inputs, labels=labels)

    def predictions(self, output: Tensor, prepared: Prepared) -> Tensor:
        """(batch, 2): tokens whose prediction is the dense model's, tokens in all."""
        assert prepared.labels is not None
        assert prepared.dense is not None
        return self._counts(output.argmax(-1) == prepared.dense.argmax(-1), prepared.labels != -100)

    def probe(self, output: Tensor, prepared: Prepared, generator: torch.Generator) -> Tensor:
        assert prepared.labels is not None
        scale = (prepared.labels != -100).sum(1).to(output.dtype).sqrt()
        return self._mean(_log_probability_of_draw(output, generator), prepared) * scale


class EmbeddingFidelity(Fidelity):
    """1 - cosine to the dense model's embedding: an encoder without a head. Output: (batch, units, width).

    ``mean`` and ``cls`` have one unit, the pooled embedding; ``tokens`` compares every token and averages.
    The probe: with random signs r, projected off the embedding e, E[(r . de)^2] / (2 |e|^2) is 1 - cosine.
    """

    loss_unit = divergence_unit = "1 - cosine"
    metrics = ("cosine",)

    def __init__(self, pooling: str = "tokens") -> None:
        self.pooling = pooling

    def _weights(self, prepared: Prepared) -> Tensor:
        """(batch, tokens): the share of each token in an example's mean."""
        token = prepared.inputs["attention_mask"]
        return token / token.sum(1, keepdim=True)

    def output(self, result: Tensor, prepared: Prepared) -> Tensor:
        states = result.float() if result.dtype != torch.float64 else result
        if self.pooling == "mean":
            return torch.einsum("bt,btw->bw", self._weights(prepared).to(states.dtype), states).unsqueeze(1)
        return states[:, :1] if self.pooling == "cls" else states

    def _average(self, per_unit: Tensor, prepared: Prepared) -> Tensor:
        if self.pooling != "tokens":
            return per_unit[:, 0]
        return (per_unit * self._weights(prepared)).sum(1)

    def divergence(self, output: Tensor, prepared: Prepared) -> Tensor:
        assert prepared.dense is not None
        distance = 1 - functional.cosine_similarity(output, prepared.dense, dim=-1)
        return self._average(distance.clamp_min(0.0), prepared)

    def predictions(self, output: Tensor, prepared: Prepared) -> Tensor:
        return 1 - self.divergence(output, prepared).unsqueeze(1)

    def probe(self, output: Tensor, prepared: Prepared, generator: torch.Generator) -> Tensor:
        unit = functional.normalize(output.detach(), dim=-1)
        signs = torch.randint(0, 2, output.shape, generator=generator).to(output) * 2 - 1
        tangent = signs - (signs * unit).sum(-1, keepdim=True) * unit
        along: Tensor = (tangent * output).sum(-1) / output.detach().norm(dim=-1)
        return along[:, 0] if self.pooling != "tokens" else (along * self._weights(prepared).sqrt()).sum(1)
