"""Attach to a model as it is meant to run: with all that an export applies to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from transformers import PreTrainedModel

from attnprobe.attention import AttentionSession, attach
from attnprobe.export.format import Applied
from attnprobe.masks.applying import applied
from attnprobe.residual.stream import residual


@contextmanager
def attached(model: PreTrainedModel, what: Applied | None, *, backend: str = "eager") -> Iterator[AttentionSession]:
    """Attach to a model under its mask and with its residual attention, where it has them.

    Raises:
        AttnProbeError: see :func:`~attnprobe.attention.attach`, :func:`~attnprobe.masks.applying.applied` and
            :func:`~attnprobe.residual.stream.residual`.
    """
    with attach(model, backend=backend) as session, ExitStack() as stack:
        if what is not None and what.residual is not None:
            stack.enter_context(residual(session, what.residual))
        if what is not None and what.mask is not None and what.rules is not None:
            stack.enter_context(applied(session, what.mask, what.rules))
        yield session
