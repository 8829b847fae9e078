"""Encoded examples, and batches of rows of like length, padded on the right to the longest of the batch."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from attnprobe.data.labels import IGNORED
from attnprobe.data.sources import Examples
from attnprobe.data.tasks import Kind
from attnprobe.data.tokens import token_rows
from attnprobe.errors import DataError, UsageError

_LABELS: dict[Kind, type[np.integer[Any] | np.floating[Any]]] = {
    "classification": np.int64,
    "regression": np.float32,
    "token_classification": np.int32,
}

#: Stands in `segments` for padding; -1 is a special token.
_PADDING = -2


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a model is given, and what it should say.

    Attributes:
        indices: `(batch,)` int64, the rows' numbers in the examples.
        inputs: `(batch, tokens)` int64 each: `input_ids`, `attention_mask`, `token_type_ids` if the tokenizer has them.
        labels: `(batch,)` int64 classes (-1: unlabelled) or float32 values (NaN: unlabelled); for token classification
            `(batch, tokens)` int64, -100 but at the first piece of each labelled word. None when there are none.
        special: `(batch, tokens)` bool, tokens that the tokenizer added around the text; padding is none.
        segments: `(batch, tokens)` int64, which text of a pair a token is from, -1 for special tokens and padding;
            None unless the rows are pairs.
    """

    indices: Tensor
    inputs: dict[str, Tensor]
    labels: Tensor | None
    special: Tensor
    segments: Tensor | None

    def __len__(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device, copied without waiting."""

        return Batch(
            indices=self.indices.to(device, non_blocking=True),
            inputs={name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()},
            labels=None if self.labels is None else self.labels.to(device, non_blocking=True),
            special=self.special.to(device, non_blocking=True),
            segments=None if self.segments is None else self.segments.to(device, non_blocking=True),
        )


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Examples as tokens. Made by `encode`.

    Attributes:
        starts: `(examples + 1,)`, where each row begins in the arrays below, which hold all rows end to end.
        ids: `(all tokens,)`.
        types: `(all tokens,)` token type ids, where the tokenizer has them.
        segments: `(all tokens,)`, which text a token is from, -1 for special tokens.
        labels: `(examples,)`, or for token classification `(all tokens,)`; None when there are none.
        kind: of the examples.
        pairs: whether rows are pairs of texts.
        pad_id: what fills up `input_ids`.
        truncated: how many rows were cut to fit.
        max_length: the most tokens a row may have, special ones included.
    """

    starts: NDArray[np.int64]
    ids: NDArray[np.int32]
    types: NDArray[np.int8] | None
    segments: NDArray[np.int8]
    labels: NDArray[np.integer[Any] | np.floating[Any]] | None
    kind: Kind
    pairs: bool
    pad_id: int
    truncated: int
    max_length: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> list[int]:
        """Tokens in each row, special ones included, in the order of the examples."""
        return [int(length) for length in np.diff(self.starts)]

    def plan(
        self,
        batch_size: int,
        *,
        rows: Sequence[int] | None = None,
        max_cells: int | None = None,
        cells_per_pair: int = 1,
    ) -> list[list[int]]:
        """The rows of each batch, longest first (what does not fit into memory fails at once), equals in order.

        Args:
            batch_size: the most rows in a batch.
            rows: which rows; None: all.
            max_cells: the most cells in a batch, `rows * tokens ** 2 * cells_per_pair` with padding counted; a
                single row may have more.
            cells_per_pair: cells for each pair of tokens, such as sites times heads.

        Raises:
            UsageError: a number below 1.
        """
        for name, value in (("batch_size", batch_size), ("max_cells", max_cells)):
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")
        lengths = np.diff(self.starts)
        wanted = np.arange(len(self)) if rows is None else np.asarray(rows, dtype=np.int64)
        plan: list[list[int]] = []
        room = 0
        for row in wanted[np.argsort(-lengths[wanted], kind="stable")].tolist():
            if not plan or len(plan[-1]) >= room:
                cells = int(lengths[row]) ** 2 * cells_per_pair
                room = batch_size if max_cells is None else max(1, min(batch_size, max_cells // cells))
                plan.append([])
            plan[-1].append(row)
        return plan

    def batch(self, rows: Sequence[int]) -> Batch:
        """These rows as one batch, in this order."""
        segments = self._padded(self.segments, rows, _PADDING)
        inputs = {
            "input_ids": self._padded(self.ids, rows, self.pad_id),
            "attention_mask": (segments != _PADDING).long(),
        }
        if self.types is not None:
            inputs["token_type_ids"] = self._padded(self.types, rows, 0)
        labels = None
        if self.labels is not None:
            by_token = self.kind == "token_classification"
            labels = self._padded(self.labels, rows, IGNORED) if by_token else torch.from_numpy(self.labels[list(rows)])
        return Batch(
            indices=torch.tensor(rows, dtype=torch.int64),
            inputs=inputs,
            labels=labels,
            special=segments == -1,
            segments=segments.clamp(min=-1) if self.pairs else None,
        )

    def _padded(self, values: NDArray[Any], rows: Sequence[int], fill: int) -> Tensor:
        """`(batch, tokens)` int64: these rows of `values`, each filled up on the right to the longest of them."""
        taken = [values[self.starts[row] : self.starts[row + 1]] for row in rows]
        table = np.full((len(rows), max(map(len, taken))), fill, dtype=np.int64)
        for place, row_values in zip(table, taken, strict=True):
            place[: len(row_values)] = row_values
        return torch.from_numpy(table)

    def batches(self, batch_size: int, *, max_cells: int | None = None, cells_per_pair: int = 1) -> Iterator[Batch]:
        """All rows, in the batches and the order of `plan`."""
        return map(self.batch, self.plan(batch_size, max_cells=max_cells, cells_per_pair=cells_per_pair))


def encode(examples: Examples, tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> Encoded:
    """Tokenize all examples; rows of more than `max_length` tokens, special ones included, are cut and counted.

    Raises:
        DataError: a row without a single token.
        UsageError: `max_length` leaves no room for a token of each text beside the special ones.
    """
    words = examples.kind == "token_classification"
    pairs = not words and any(len(row) == 2 for row in examples.texts)
    least = tokenizer.num_special_tokens_to_add(pair=pairs) + (2 if pairs else 1)
    if max_length < least:
        raise UsageError(
            f"--max-length: the maximum length must be at least {least} (special tokens included), not {max_length}"
        )
    labels = examples.labels
    starts, truncated = [0], 0
    ids, types, segments, token_labels = array("i"), array("b"), array("b"), array("i")
    for number, row in enumerate(token_rows(examples.texts, tokenizer, max_length=max_length, words=words), 1):
        if not row.ids:
            raise DataError(f"row {number} of {examples.source} has no tokens (its text is empty): remove the row")
        starts.append(starts[-1] + len(row.ids))
        truncated += row.truncated
        ids.extend(row.ids)
        types.extend(row.types)
        segments.extend(row.segments)
        if words and labels is not None:
            token_labels.extend(row.word_labels(cast("list[list[int]]", labels)[number - 1]))
    return Encoded(
        starts=np.asarray(starts, dtype=np.int64),
        ids=np.asarray(ids, dtype=np.int32),
        types=np.asarray(types, dtype=np.int8) if "token_type_ids" in tokenizer.model_input_names else None,
        segments=np.asarray(segments, dtype=np.int8),
        labels=None if labels is None else np.asarray(token_labels if words else labels, dtype=_LABELS[examples.kind]),
        kind=examples.kind,
        pairs=pairs,
        pad_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
        truncated=truncated,
        max_length=max_length,
    )
