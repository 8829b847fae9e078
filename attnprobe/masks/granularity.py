"""Which cells of an attention matrix share one gate.

Every granularity is an *index*: a whole number for each cell, told by token position. A head has as many gates as there
are numbers. Learning, thresholding, accounting and storage see gates alone, and know no granularity.

    cell    i and j                                   DAM_u of SparseBERT (Shi et al. 2021)
    block   i // block_size and j // block_size
    offset  the cell's zone and i - j                 DAM_s, and what its code lacks: rows and columns of special tokens
    head    nothing

Zones of ``offset``: the columns and rows of [CLS] and [SEP] (in causal models: the column of the first token), told by
token id, and all other cells; with ``segment_aware``, those between the two texts of a pair apart. Within the row of
[CLS] each cell has its own gate, by its distance: one gate for the whole row would be the costliest of all, be closed
first, and leave the classifier nothing to read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from attnprobe.data.positions import Positions, partition
from attnprobe.errors import CheckpointError, DataError, UsageError

_ROW_AND_COLUMN = ("cls_key", "cls_query", "sep_key", "sep_query")
_CAUSAL_ZONES = ("first_key",)


@dataclass(frozen=True, kw_only=True)
class Granularity:
    """A granularity with its sizes.

    Attributes:
        name: ``cell``, ``offset``, ``block`` or ``head``.
        length: tokens covered. ``cell`` and ``block`` have no gate beyond; under ``offset`` larger distances share
            the gate of the largest one, ``length - 1``.
        block_size: side of a block, in tokens; divides ``length``.
        symmetric: ``offset``: i - j and j - i share a gate.
        segment_aware: ``offset``: cells between the two texts of a pair are a zone of their own.
        causal: no key is later than its query.

    Raises:
        UsageError: an unknown name, a length below 1, a block size that does not divide the length.
    """

    name: str
    length: int
    block_size: int = 16
    symmetric: bool = False
    segment_aware: bool = False
    causal: bool = False

    def __post_init__(self) -> None:
        if self.name not in GRANULARITIES:
            raise UsageError(f"--granularity must be one of {', '.join(GRANULARITIES)}, not {self.name!r}")
        if self.length < 1:
            raise UsageError(f"a mask must cover at least 1 token, not {self.length}")
        if self.block_size < 1:
            raise UsageError(f"--block-size must be at least 1, not {self.block_size}")
        if self.name == "block" and self.length % self.block_size:
            raise UsageError(
                f"--block-size must divide the maximum length, and {self.block_size} does not divide {self.length}: "
                "choose another --block-size or --max-length"
            )

    @property
    def gates(self) -> int:
        """Gates of one head."""
        return GRANULARITIES[self.name].gates(self)

    @property
    def limit(self) -> int | None:
        """The most tokens a row may have; None: any number."""
        return self.length if GRANULARITIES[self.name].bounded else None

    @property
    def zones(self) -> tuple[str, ...]:
        """Names of the zones of ``offset``, the cells of no special token first."""
        special = _CAUSAL_ZONES if self.causal else _ROW_AND_COLUMN
        return ("other", *special, *(("cross_segment",) if self.segment_aware else ()))

    @property
    def distances(self) -> int:
        """Gates of one zone of ``offset``."""
        return self.length if self.symmetric or self.causal else 2 * self.length - 1

    def index(self, at: Positions) -> Tensor:
        """The gate of every cell: int64 (batch, queries, keys), 0 to ``gates - 1``; of invalid cells any number.

        Raises:
            DataError: rows of more tokens than are covered.
        """
        if self.limit is not None and at.index.shape[1] > self.limit and len(at.index):
            longest = int(at.index.max()) + 1  # waits for the device, so only where padding alone may be beyond
            if longest > self.limit:
                raise DataError(
                    f"a mask by {self.name} covers {self.limit} tokens, and a row has {longest}: "
                    "cut the input, or learn the mask with a larger --max-length"
                )
        return GRANULARITIES[self.name].index(self, at)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Granularity:
        """Back from :meth:`as_dict`. Raises: CheckpointError for anything else."""
        known = {field.name: field.type for field in fields(cls)}
        kinds: dict[str, type] = {"str": str, "int": int, "bool": bool}
        if set(values) != set(known) or any(type(values[k]) is not kinds[str(known[k])] for k in known):
            raise CheckpointError(
                f"a granularity has the entries {', '.join(known)}, not {dict(values)!r:.200}: export the model again"
            )
        try:
            return cls(**values)
        except UsageError as error:
            raise CheckpointError(f"a granularity that cannot be ({error}): export the model again") from error


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """One granularity: what it is in words, its number of gates, and the gate of each cell."""

    summary: str
    bounded: bool
    gates: Callable[[Granularity], int]
    index: Callable[[Granularity, Positions], Tensor]


def _cell_index(granularity: Granularity, at: Positions) -> Tensor:
    return at.index.unsqueeze(2) * granularity.length + at.index.unsqueeze(1)


def _block_index(granularity: Granularity, at: Positions) -> Tensor:
    block = at.index // granularity.block_size
    return block.unsqueeze(2) * _blocks(granularity) + block.unsqueeze(1)


def _blocks(granularity: Granularity) -> int:
    return granularity.length // granularity.block_size


def _offset_index(granularity: Granularity, at: Positions) -> Tensor:
    farthest = granularity.length - 1
    if granularity.symmetric or granularity.causal:
        distance = at.offset.abs().clamp(max=farthest)
    else:
        distance = at.offset.clamp(-farthest, farthest) + farthest
    return _zone(granularity, at) * granularity.distances + distance


def _zone(granularity: Granularity, at: Positions) -> Tensor:
    """The zone of every cell: int64 (batch, queries, keys). A special token's own diagonal cell is in its column."""
    classes = partition(at.causal)
    zone = torch.zeros_like(at.offset)
    for number, name in reversed(list(enumerate(granularity.zones))):
        if number:
            zone = zone.masked_fill(classes[name].contains(at), number)
    return zone


def _head_index(granularity: Granularity, at: Positions) -> Tensor:
    del granularity
    return torch.zeros_like(at.offset)


GRANULARITIES: dict[str, _Kind] = {
    "cell": _Kind(
        summary="one gate for each pair of positions (DAM_u)",
        bounded=True,
        gates=lambda granularity: granularity.length**2,
        index=_cell_index,
    ),
    "offset": _Kind(
        summary="one for each distance, and apart along the rows and columns of special tokens (DAM_s); any length",
        bounded=False,
        gates=lambda granularity: len(granularity.zones) * granularity.distances,
        index=_offset_index,
    ),
    "block": _Kind(
        summary="one for each square of positions",
        bounded=True,
        gates=lambda granularity: _blocks(granularity) ** 2,
        index=_block_index,
    ),
    "head": _Kind(summary="one for the whole head; any length", bounded=False, gates=lambda _: 1, index=_head_index),
}
