"""The states that a model's body hands to its head, and how far they are from another model's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LastStates:
    """The last hidden states of a model's last pass.

    Attributes:
        states: (batch, tokens, width); None before the first pass.
    """

    states: Tensor | None = None

    @contextmanager
    def of(self, model: PreTrainedModel) -> Iterator[None]:
        """Follow a model's passes."""

        def see(_: nn.Module, __: Any, output: Any) -> None:
            self.states = output[0]

        handle = model.base_model.register_forward_hook(see)
        try:
            yield
        finally:
            handle.remove()
            self.states = None


def hidden_distance(states: Tensor, dense: Tensor, attention_mask: Tensor) -> Tensor:
    """sum |h - h'|^2 / sum |h'|^2 over tokens that are no padding: a scalar.

    Args:
        states, dense: h and h', (batch, tokens, width).
        attention_mask: (batch, tokens).
    """
    real = attention_mask.bool()
    wide = torch.promote_types(states.dtype, torch.float32)
    ours, theirs = states[real].to(wide), dense[real].to(wide).detach()
    return (ours - theirs).square().sum() / theirs.square().sum()
