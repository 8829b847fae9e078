"""Sums over cells: of any quantity that has one number a cell, by position class and by offset."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from attnprobe.data.positions import Positions, cells_of, class_map, partition
from attnprobe.importance.layout import Layout


class Cells:
    """The cells of one batch, by class and by offset.

    Attributes:
        at: the positions of the batch.
        map: int64 (batch, queries, keys): class of the partition, -1 where a cell is invalid or not measured.
        membership: bool (classes, classes of the partition + 1), see :class:`Layout`.
    """

    def __init__(self, at: Positions, layout: Layout) -> None:
        self.at = at
        self.layout = layout
        self.map = class_map(at)
        self.membership = layout.membership.to(self.map.device)
        self._partition = len(partition(at.causal))

    @cached_property
    def one_hot(self) -> Tensor:
        """float32 (batch, queries, keys, classes of the partition + 1); the last: valid, but not measured."""
        token = self.at.token
        outside = token.unsqueeze(2) & token.unsqueeze(1) & (self.map < 0)
        if self.at.causal:
            outside = outside & (self.at.offset >= 0)
        index = self.map.masked_fill(self.map < 0, self._partition + 1).masked_fill(outside, self._partition)
        return functional.one_hot(index, self._partition + 2)[..., :-1].float()

    @cached_property
    def row_counts(self) -> Tensor:
        """float32 (batch, queries, classes of the partition + 1): cells of each class in each row."""
        return self.one_hot.sum(2)

    @cached_property
    def counts(self) -> Tensor:
        """float32 (batch, classes): cells of each named class."""
        return self.row_counts.sum(1) @ self.membership.float().T

    @cached_property
    def offset_counts(self) -> Tensor:
        """float32 (batch, offsets): cells of each offset."""
        return self.by_offset((self.map >= 0).float())

    def of(self, name: int) -> Tensor:
        """bool (batch, queries, keys): the cells of the named class with this number in the layout."""
        return cells_of(self.map, self.membership[name, :-1])

    def of_offset(self, offset: int) -> Tensor:
        """bool (batch, queries, keys): the cells at i - j = offset."""
        return (self.at.offset == offset) & (self.map >= 0)

    def by_row_and_class(self, values: Tensor) -> Tensor:
        """Sum (batch, heads, queries, keys) over keys by class: (batch, heads, queries, partition + 1)."""
        return torch.einsum("bhqk,bqkc->bhqc", values, self.one_hot.to(values.dtype))

    def by_class(self, values: Tensor) -> Tensor:
        """Sum (batch, heads, queries, keys) over the cells of each named class: (batch, heads, classes)."""
        return self.by_row_and_class(values).sum(2) @ self.membership.to(values.dtype).T

    def by_offset(self, values: Tensor) -> Tensor:
        """Sum (batch, queries, keys) over the measured cells of each offset: (batch, offsets)."""
        first, number = self.layout.offsets[0], len(self.layout.offsets)
        index = self.at.offset - first
        index = index.masked_fill((index < 0) | (index >= number) | (self.map < 0), number)
        sums = values.new_zeros(len(values), number + 1)
        return sums.scatter_add(1, index.flatten(1), values.flatten(1))[:, :number]
