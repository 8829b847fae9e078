"""The ways to a mask: one line a method. Choices, labels and documentation derive from this table. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to a mask.

    Attributes:
        kind: ``learnt`` by training; ``scored``: the gates with the highest scores, in the same granularity;
            ``random``: gates drawn at random, in the same granularity; ``pattern``: fixed beforehand.
        summary: what it is, for help and documentation.
    """

    kind: Literal["learnt", "scored", "random", "pattern"]
    summary: str


METHODS: dict[str, Method] = {
    "dam": Method(kind="learnt", summary="the learnt mask (Shi et al. 2021)"),
    "random": Method(kind="random", summary="as sparse in every head, gates drawn at random"),
    "magnitude": Method(kind="scored", summary="the gates with most attention on the training data"),
    "taylor": Method(kind="scored", summary="the gates whose removal costs most, to first order"),
    "window": Method(kind="pattern", summary="a band around the diagonal"),
    "star": Method(kind="pattern", summary="a band, and the first token's row and column"),
    "longformer": Method(kind="pattern", summary="a band, and the rows and columns of the first tokens"),
    "bigbird": Method(kind="pattern", summary="longformer and random keys"),
    "strided": Method(kind="pattern", summary="a band, and every so many tokens"),
    "fixed": Method(kind="pattern", summary="blocks, and the last columns of each"),
    "logsparse": Method(kind="pattern", summary="distances that are powers of two"),
}
