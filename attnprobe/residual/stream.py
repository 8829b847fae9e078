"""The score stream of RealFormer (He et al., Findings of ACL 2021): scores that are handed on from site to site.

With s_l = q_l k_l^T * scaling, soft-capped and rotated as the model has it, g a gate for every site but the first and
every head, and S_0 = s_0:

    sum     S_l = s_l + g S_(l-1)                            P_l = softmax(S_l + bias) over valid keys
    mean    S_l as above, n_l = 1 + g n_(l-1), n_0 = 1       P_l = softmax(S_l / n_l + bias) over valid keys

What is handed on is S_l: scaled, after adding what came from below, before bias, mask and dropout. At g = 0 this is
the checkpoint, bit for bit; at g = 1 it is RealFormer (mean: its running mean). Head i adds to head i. Departures: the
gates, which the paper does not have; and scores in half precision are summed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnprobe.attention import AttentionCall, AttentionSession
from attnprobe.errors import CheckpointError, UnsupportedModelError

VARIANTS: dict[str, str] = {
    "sum": "scores are summed over sites",
    "mean": "softmax sees the sum's running mean",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Residual:
    """Residual attention as it stands: what an export applies.

    Attributes:
        variant: a key of :data:`VARIANTS`.
        gates: float32 (sites - 1, heads): how much of the scores below each site but the first takes in.
    """

    variant: str
    gates: Tensor

    @property
    def canonical(self) -> bool:
        """Whether this is RealFormer as published: every gate is 1."""
        return bool((self.gates == 1).all())

    def describe(self) -> dict[str, Any]:
        """As plain values."""
        return {"variant": self.variant, "gates": self.gates.tolist()}

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Residual:
        """Back from :meth:`describe`. Raises: CheckpointError."""
        try:
            gates = torch.tensor(description["gates"], dtype=torch.float32)
            variant = description["variant"]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"its residual attention is malformed ({error}); export the model again") from error
        if variant not in VARIANTS or gates.dim() != 2 or not bool(gates.isfinite().all()):
            raise CheckpointError("its residual attention is malformed; export the model again")
        return cls(variant=variant, gates=gates)


class Stream:
    """The scores on their way through one forward pass. One buffer: each site's scores take in what is carried.

    Args:
        variant: a key of :data:`VARIANTS`.
        gates: gives the gates of a pass, (sites - 1, heads or 1), asked once a pass.
    """

    def __init__(self, variant: str, gates: Callable[[], Tensor]) -> None:
        self._averages = variant == "mean"
        self._source = gates
        self._gates: Tensor | None = None
        self._carried: Tensor | None = None
        self._count: Tensor | None = None

    def __call__(self, call: AttentionCall, scores: Tensor) -> Tensor:
        """The scores that count at a site. Raises: UnsupportedModelError where sites don't see the same keys."""
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if call.site.index == 0:
            self._gates, self._carried, self._count = self._source(), scores, None
            return scores
        gates, carried = self._gates, self._carried
        if gates is None or carried is None or carried.shape != scores.shape:
            raise UnsupportedModelError(
                "residual attention needs sites that all see the same queries and keys, in one pass from the first to "
                "the last: here a layer sees others, as with a cache of a sliding window; switch that off"
            )
        gate = gates[call.site.index - 1].to(scores).view(1, -1, 1, 1)
        scores = scores.addcmul_(gate, carried.to(scores.device))
        self._carried = scores if call.site.index < len(gates) else None
        if not self._averages:
            return scores
        self._count = 1 + gate * (1 if self._count is None else self._count.to(scores.device))
        return scores / self._count


@contextmanager
def carried(session: AttentionSession, variant: str, gates: Callable[[], Tensor]) -> Iterator[None]:
    """Make an attached model's attention residual.

    Args:
        session: the attached model.
        variant: a key of :data:`VARIANTS`.
        gates: gives (sites - 1, heads or 1); asked in every pass.

    Raises:
        UnsupportedModelError: the model's sites differ in their heads, or there is one alone.
    """
    if len({site.heads for site in session.sites}) > 1:
        raise UnsupportedModelError("residual attention needs sites with the same heads: head i adds to head i")
    if len(session.sites) < 2:
        raise UnsupportedModelError("residual attention needs two sites at least, and the model has one")
    with session.carry(Stream(variant, gates)):
        yield


@contextmanager
def residual(session: AttentionSession, what: Residual) -> Iterator[None]:
    """Make an attached model's attention residual as an export has it.

    Raises:
        CheckpointError: the gates are another model's.
        UnsupportedModelError: see :func:`carried`.
    """
    expected = (len(session.sites) - 1, session.sites[0].heads)
    if tuple(what.gates.shape) != expected:
        raise CheckpointError(
            f"the residual attention is for {what.gates.shape[0] + 1} sites of {what.gates.shape[1]} heads, the model "
            f"has {expected[0] + 1} of {expected[1]}: it belongs to another model"
        )
    with carried(session, what.variant, lambda: what.gates):
        yield
