"""The tiny batch as the references see it: each row alone, without padding."""

from __future__ import annotations

from functools import cache

from torch import Tensor

from tests.helpers.probing import CLS, HEADS, ROWS, SEP, WINDOW, Row, tiny_bert
from tests.references.importance import Cell, ReferenceBert, Trace, classes, cross_entropy, gradients

MEASURED = {row: [(i, j) for i in range(len(row.ids)) for j in range(len(row.ids))] for row in ROWS}
"""All cells of each row."""


@cache
def reference() -> ReferenceBert:
    """The reference's copy of the tiny model."""
    return ReferenceBert(tiny_bert().state_dict(), heads=HEADS)


@cache
def dense(row: Row) -> Trace:
    """A row's untouched pass."""
    return reference().run(row.ids, row.types)


def cells_of(row: Row, *, include_special: bool = True) -> dict[str, list[Cell]]:
    """A row's cells by class and union."""
    return classes(row.ids, row.segments, cls=CLS, sep=SEP, window=WINDOW, include_special=include_special)


@cache
def slopes(row: Row) -> list[list[list[Tensor]]]:
    """A row's gradients of the loss by each site's, head's and query's output."""
    trace = reference().run(row.ids, row.types, graph=True)
    return gradients(trace, cross_entropy(trace.logits, row.label))
