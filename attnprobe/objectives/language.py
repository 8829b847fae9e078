"""Losses of language-model heads."""

from __future__ import annotations

import numpy as np
import torch

from attnprobe.data.batches import Batch
from attnprobe.objectives.base import Prepared
from attnprobe.objectives.tasks import TokenTask


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
