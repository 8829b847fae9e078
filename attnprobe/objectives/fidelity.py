"""Label-free objectives: how far the output has moved from the dense model's."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from attnprobe.data.batches import Batch
from attnprobe.objectives.base import Objective, Prepared
from attnprobe.objectives.tasks import RegressionTask, SequenceTask, TokenTask


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
