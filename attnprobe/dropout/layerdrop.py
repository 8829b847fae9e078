"""LayerDrop: whole layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from attnprobe.attention import AttentionSession
from attnprobe.dropout.base import Dropout, Step
from attnprobe.errors import UnsupportedModelError


class LayerDrop(Dropout):
    """Whole layers, one draw a layer and pass; a dropped one hands on its input (Fan et al. 2020, arXiv:1909.11556)."""

    @contextmanager
    def applied(self, step: Step) -> Iterator[None]:
        blocks = step.session.blocks
        assert blocks is not None
        dropped = (torch.rand(len(blocks.modules)) < self.rate).tolist()
        with super().applied(step), ExitStack() as stack:
            for number, drop in enumerate(dropped):
                if drop:
                    stack.enter_context(blocks.skipped(number))
            yield

    def rates(self, progress: float) -> Sequence[float]:
        del progress
        return [self.rate] * self.sites

    def prepare(self, session: AttentionSession) -> None:
        """Raises: UnsupportedModelError for a model whose layers can't be left out."""
        if session.blocks is None:
            raise UnsupportedModelError(
                f"layerdrop needs a model whose layers lie one after another, and {type(session.model).__name__} has "
                "none such: leave layerdrop out of --dropout"
            )
