"""A family's model under control, attached once a module; and what is compared of a model's outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from attnprobe.attention import AttentionCall, AttentionSession
from tests.helpers.families import Family, Inputs, run


@dataclass(frozen=True, kw_only=True)
class Attached:
    """A model inside ``attach``.

    Attributes:
        family: its row of the matrix.
        model: in eval mode, float32.
        session: the session.
        inputs: the family's ragged batch, padded right.
        own: the outputs of the model's own eager attention for them, from before it was attached.
    """

    family: Family
    model: PreTrainedModel
    session: AttentionSession
    inputs: Inputs
    own: Inputs

    def outputs(self, inputs: Inputs | None = None) -> Inputs:
        """What can be compared of the outputs: see :func:`without_padding`."""
        given = self.inputs if inputs is None else inputs
        return without_padding(run(self.model, given), given)

    def per_token(self, inputs: Inputs | None = None) -> Tensor:
        """The output of the real tokens: (tokens of all rows, width)."""
        return self.outputs(inputs)[self.family.output]

    def probabilities(self, inputs: Inputs | None = None) -> list[Tensor]:
        """What observers see: (batch, heads, queries, keys) of every site, by depth."""
        seen: list[tuple[int, Tensor]] = []

        def observe(call: AttentionCall, probabilities: Tensor) -> None:
            seen.append((call.site.index, probabilities))

        with self.session.observe(observe):
            run(self.model, self.inputs if inputs is None else inputs)
        assert [index for index, _ in seen] == list(range(len(self.session.sites)))
        return [probabilities for _, probabilities in seen]


def without_padding(outputs: Inputs, inputs: Inputs) -> Inputs:
    """Outputs of real tokens, (tokens of all rows, ...), and those that have no token axis as they are.

    What a model returns for padding is nobody's business, and differs: a padded query that sees no key gives 0 here,
    the mean of all values in a model's own eager attention.
    """
    if "attention_mask" not in inputs:
        return outputs
    real = inputs["attention_mask"].bool()
    return {name: x[real] if x.shape[:2] == real.shape else x for name, x in outputs.items()}


def random_gate(call: AttentionCall, *, seed: int = 5, share: float = 0.6) -> Tensor:
    """A boolean gate of its own for every site: (batch, heads, queries, keys), the diagonal open."""
    generator = torch.Generator().manual_seed(seed + call.site.index)
    gate = torch.rand(call.shape, generator=generator) < share
    return gate | torch.eye(call.shape[-1], dtype=torch.bool)
