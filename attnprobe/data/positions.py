"""Position classes: the partition of an attention matrix's valid cells by what its query and key are.

Everything is told by token: [CLS] and [SEP] by their ids, neighbours by token position, so that left and right
padding give the same classes. Position classes after Shi et al. 2021 (SparseBERT), made into a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnprobe.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Positions:
    """What is known of a batch's tokens, and so of its cells.

    Attributes:
        token: bool (batch, tokens): not padding.
        index: int64 (batch, tokens): position among the row's own tokens, from 0.
        cls: bool (batch, tokens): the [CLS] token, or the first token under causal attention.
        sep: bool (batch, tokens): [SEP] tokens.
        special: bool (batch, tokens): any special token that the tokenizer added.
        segments: int64 (batch, tokens): which text of a pair, -1 for special tokens; None without pairs.
        causal: whether a query is kept from later keys.
        window: reach of the ``neighbour`` class, in tokens.
        include_special: whether cells of special tokens count at all.
    """

    token: Tensor
    index: Tensor
    cls: Tensor
    sep: Tensor
    special: Tensor
    segments: Tensor | None
    causal: bool = False
    window: int = 4
    include_special: bool = True

    def rows(self, rows: Tensor) -> Positions:
        """The positions of some rows of the batch."""
        return replace(
            self,
            token=self.token[rows],
            index=self.index[rows],
            cls=self.cls[rows],
            sep=self.sep[rows],
            special=self.special[rows],
            segments=None if self.segments is None else self.segments[rows],
        )

    @property
    def offset(self) -> Tensor:
        """i - j in tokens, int64 (batch, queries, keys): positive where a query attends to an earlier token."""
        return self.index.unsqueeze(2) - self.index.unsqueeze(1)

    @property
    def measured(self) -> Tensor:
        """bool (batch, tokens): tokens whose rows and columns count."""
        return self.token if self.include_special else self.token & ~self.special

    @property
    def valid(self) -> Tensor:
        """bool (batch, queries, keys): neither is padding; causal: the key is not later; both are measured."""
        cells = self.measured.unsqueeze(2) & self.measured.unsqueeze(1)
        return cells & (self.offset >= 0) if self.causal else cells


def locate(
    inputs: dict[str, Tensor],
    special: Tensor,
    segments: Tensor | None,
    *,
    cls_id: int | None,
    sep_id: int | None,
    causal: bool = False,
    window: int = 4,
    include_special: bool = True,
) -> Positions:
    """Read the positions of a batch.

    Args:
        inputs: ``input_ids`` and ``attention_mask``, each (batch, tokens); padded on either side.
        special: bool (batch, tokens), special tokens added by the tokenizer.
        segments: int64 (batch, tokens) or None, see :class:`Positions`.
        cls_id: token id of [CLS]; None where the tokenizer has none: the class is then n/a, never guessed.
        sep_id: token id of [SEP], or None.
        causal: attention is causal: the first token takes the place of [CLS], whatever it is.
        window: reach of the ``neighbour`` class, at least 2.
        include_special: see :class:`Positions`.

    Raises:
        UsageError: ``window`` below 2.
    """
    if window < 2:
        raise UsageError(f"the window must reach at least 2 tokens (offset 1 is its own class), not {window}")
    ids, token = inputs["input_ids"], inputs["attention_mask"].bool()
    index = (token.long().cumsum(1) - 1).clamp_min(0)
    none = torch.zeros_like(token)
    is_cls = token & special & (ids == cls_id) if cls_id is not None else none
    is_sep = token & special & (ids == sep_id) if sep_id is not None else none
    first = token & (index == 0)
    return Positions(
        token=token,
        index=index,
        cls=first if causal else is_cls,
        sep=is_sep & ~first if causal else is_sep,
        special=special & token,
        segments=segments,
        causal=causal,
        window=window,
        include_special=include_special,
    )


@dataclass(frozen=True, kw_only=True)
class PositionClass:
    """One class of the partition.

    Attributes:
        meaning: what its cells are, in words.
        contains: bool, broadcastable to (batch, queries, keys): the cells that meet the description, before the
            classes above it have taken theirs.
        whole_row: the class takes all that is left of its rows, so that a row has no other cells to compare with.
    """

    meaning: str
    contains: Callable[[Positions], Tensor]
    whole_row: bool = False


def _key(flag: Tensor) -> Tensor:
    return flag.unsqueeze(1)


def _query(flag: Tensor) -> Tensor:
    return flag.unsqueeze(2)


def _cross_segment(at: Positions) -> Tensor:
    if at.segments is None:
        return torch.zeros_like(at.valid)
    query, key = at.segments.unsqueeze(2), at.segments.unsqueeze(1)
    return (query >= 0) & (key >= 0) & (query != key)


def _anything(at: Positions) -> Tensor:
    return torch.ones_like(at.valid)


_DIAGONAL = PositionClass(meaning="a token to itself", contains=lambda at: at.offset == 0)
_SEP_KEY = PositionClass(meaning="others attend to [SEP]", contains=lambda at: _key(at.sep))
_SEP_QUERY = PositionClass(meaning="[SEP] attends to others", contains=lambda at: _query(at.sep), whole_row=True)
_PREVIOUS = PositionClass(meaning="a token to the one before it", contains=lambda at: at.offset == 1)
_NEIGHBOUR = PositionClass(meaning="tokens 2 to `window` apart", contains=lambda at: at.offset.abs() <= at.window)
_CROSS_SEGMENT = PositionClass(meaning="between the two texts of a pair", contains=_cross_segment)
_OTHER = PositionClass(meaning="all cells of no other class", contains=_anything)

BIDIRECTIONAL: dict[str, PositionClass] = {
    "diagonal": _DIAGONAL,
    "cls_key": PositionClass(meaning="others attend to [CLS]", contains=lambda at: _key(at.cls)),
    "cls_query": PositionClass(meaning="[CLS] attends to others", contains=lambda at: _query(at.cls), whole_row=True),
    "sep_key": _SEP_KEY,
    "sep_query": _SEP_QUERY,
    "previous": _PREVIOUS,
    "next": PositionClass(meaning="a token to the one after it", contains=lambda at: at.offset == -1),
    "neighbour": _NEIGHBOUR,
    "cross_segment": _CROSS_SEGMENT,
    "other": _OTHER,
}
"""The partition of bidirectional attention, in order of precedence."""

CAUSAL: dict[str, PositionClass] = {
    "diagonal": _DIAGONAL,
    "first_key": PositionClass(meaning="others attend to the first token", contains=lambda at: _key(at.cls)),
    "first_query": PositionClass(
        meaning="the first token attends to others", contains=lambda at: _query(at.cls), whole_row=True
    ),
    "sep_key": _SEP_KEY,
    "sep_query": _SEP_QUERY,
    "previous": _PREVIOUS,
    "neighbour": _NEIGHBOUR,
    "cross_segment": _CROSS_SEGMENT,
    "other": _OTHER,
}
"""The partition of causal attention: no key is later than its query, and the first token stands for [CLS]."""

UNIONS: dict[str, tuple[str, ...]] = {
    "cls": ("cls_key", "cls_query", "first_key", "first_query"),
    "sep": ("sep_key", "sep_query"),
    "special": ("cls_key", "cls_query", "first_key", "first_query", "sep_key", "sep_query"),
    "window": ("diagonal", "previous", "next", "neighbour"),
}
"""Classes that are unions of classes of the partition."""


REGIONS: dict[str, Callable[[Positions], Tensor]] = {
    "cls_column": lambda at: _key(at.cls),
    "cls_row": lambda at: _query(at.cls),
    "sep_column": lambda at: _key(at.sep),
    "sep_row": lambda at: _query(at.sep),
}
"""Whole rows and columns, with what other classes take of them: bool, broadcastable to (batch, queries, keys)."""


def partition(causal: bool) -> dict[str, PositionClass]:
    """The partition that fits the attention."""
    return CAUSAL if causal else BIDIRECTIONAL


def class_map(at: Positions) -> Tensor:
    """The class of every cell, int64 (batch, queries, keys): an index into the partition, -1 for invalid cells."""
    classes = partition(at.causal)
    cells = torch.full_like(at.offset, -1)
    for number, position_class in reversed(list(enumerate(classes.values()))):
        cells = cells.masked_fill(position_class.contains(at), number)
    return cells.masked_fill(~at.valid, -1)


def cells_of(cells: Tensor, members: Tensor) -> Tensor:
    """The cells of some classes: bool (batch, queries, keys).

    Args:
        cells: the class of every cell, from :func:`class_map`.
        members: bool (classes,), which classes of the partition; a row of :func:`membership`.
    """
    return torch.isin(cells, members.nonzero()[:, 0].to(cells.device))


def membership(names: Sequence[str], causal: bool) -> Tensor:
    """Which classes of the partition make up each named class or union: bool (names, classes).

    Raises:
        UsageError: a name that is neither; the message lists those there are.
    """
    classes = list(partition(causal))
    rows = []
    for name in names:
        members = UNIONS.get(name, (name,))
        if name not in UNIONS and name not in classes:
            kind = "causal" if causal else "bidirectional"
            known = ", ".join([*classes, *UNIONS])
            raise UsageError(f"unknown position class {name!r}; classes of {kind} attention: {known}")
        rows.append([member in members for member in classes])
    return torch.tensor(rows, dtype=torch.bool).reshape(len(rows), len(classes))
