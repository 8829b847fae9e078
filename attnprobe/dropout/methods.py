"""The dropout methods: one line a method. Choices, labels and documentation derive from this table. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnprobe.dropout.base import Dropout


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to drop attention while a model is fine-tuned.

    Attributes:
        where: module in this package and class, as ``module.Class``.
        rate: what it drops unless told otherwise; its docstring says of what this is the share.
        summary: what it is, for help and documentation.
    """

    where: str
    rate: float
    summary: str

    def load(self) -> type[Dropout]:
        """The class."""
        module, _, name = self.where.rpartition(".")
        found: type[Dropout] = getattr(import_module(f"attnprobe.dropout.{module}"), name)
        return found


METHODS: dict[str, Method] = {
    "none": Method(where="base.Dropout", rate=0.0, summary="no attention is dropped"),
    "weights": Method(where="weights.WeightsDropout", rate=0.1, summary="weights after softmax, the usual dropout"),
    "scores": Method(where="scores.ScoresDropout", rate=0.1, summary="scores before softmax"),
    "dropkey": Method(
        where="dropkey.DropKey", rate=0.2, summary="scores, at a rate that falls with depth (Li et al. 2023)"
    ),
    "drophead": Method(where="drophead.DropHead", rate=0.2, summary="whole heads (Zhou et al. 2020)"),
    "layerdrop": Method(where="layerdrop.LayerDrop", rate=0.1, summary="whole layers (Fan et al. 2020)"),
    "attn-layerdrop": Method(
        where="attention_layerdrop.AttentionLayerDrop", rate=0.2, summary="attention of whole layers, made uniform"
    ),
    "scheduled": Method(
        where="scheduled.ScheduledDropout", rate=0.2, summary="scores, at rates that --schedule gives over training"
    ),
    "r-drop": Method(
        where="r_drop.RDrop",
        rate=0.0,
        summary="two passes that have to agree (Liang et al. 2021)",
    ),
    "ad-drop": Method(
        where="ad_drop.ADDrop",
        rate=0.3,
        summary="cells of high attribution (Yang et al. 2022)",
    ),
    "asa": Method(
        where="asa.AdversarialSelfAttention",
        rate=0.0,
        summary="cells that an adversary chooses (Wu et al. 2022)",
    ),
    "attendout": Method(
        where="attendout.AttendOut",
        rate=0.1,
        summary="cells that a G-Net learns to choose, by two models side by side (Wu et al. 2021)",
    ),
}
