"""A tiny BERT and one ragged batch, ready for the probes of importance. Every size is a prime of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from attnprobe.attention import attach, evaluating
from attnprobe.data.batches import Batch
from attnprobe.data.positions import locate
from attnprobe.importance.cells import Cells
from attnprobe.importance.context import Context, Item, Measurement
from attnprobe.importance.layout import lay_out
from attnprobe.importance.options import ImportanceOptions
from attnprobe.objectives import Objective, SequenceTask

SITES, HEADS, HEAD_DIM, LABELS, INTERMEDIATE, VOCABULARY = 2, 3, 11, 13, 17, 19
PAD, CLS, SEP, MASK = 0, 2, 3, 1
WINDOW, MAX_OFFSET = 2, 3


@dataclass(frozen=True, kw_only=True)
class Row:
    """One example, without padding.

    Attributes:
        ids: token ids.
        segments: which text each token is from, -1 for special tokens.
        label: its class.
    """

    ids: tuple[int, ...]
    segments: tuple[int, ...]
    label: int

    @property
    def types(self) -> tuple[int, ...]:
        """Token types: 1 behind the first [SEP]."""
        first = self.ids.index(SEP)
        return tuple(int(place > first) for place in range(len(self.ids)))


ROWS = (
    Row(ids=(CLS, 5, 7, SEP, 11, 13, SEP), segments=(-1, 0, 0, -1, 1, 1, -1), label=3),
    Row(ids=(CLS, 4, 18, 9, 6, SEP), segments=(-1, 0, 0, 0, 0, -1), label=12),
    Row(ids=(CLS, 8, SEP, 10, SEP), segments=(-1, 0, -1, 1, -1), label=0),
    Row(ids=(CLS, 12, SEP), segments=(-1, 0, -1), label=7),
    Row(ids=(CLS, SEP), segments=(-1, -1), label=5),
)
"""A pair, a single text, a pair of one token each (two [SEP]), one token alone, and no token at all."""


def tiny_bert(dtype: torch.dtype = torch.float64, *, seed: int = 0, spread: float = 0.3) -> PreTrainedModel:
    """A classifier with weights drawn wide enough for attention to be far from uniform."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=HEADS * HEAD_DIM,
        num_hidden_layers=SITES,
        num_attention_heads=HEADS,
        intermediate_size=INTERMEDIATE,
        max_position_embeddings=23,
        num_labels=LABELS,
        initializer_range=spread,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertForSequenceClassification(config)
    return model.to(dtype).eval()


def batch_of(rows: Sequence[Row] = ROWS, *, first: int = 0) -> Batch:
    """Rows as one batch, padded on the right, numbered from ``first``."""
    width = max(len(row.ids) for row in rows)

    def padded(values: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
        return torch.tensor([[*row, *[fill] * (width - len(row))] for row in values])

    segments = padded([row.segments for row in rows], -1)
    token = padded([[1] * len(row.ids) for row in rows], 0)
    return Batch(
        indices=torch.arange(first, first + len(rows)),
        inputs={
            "input_ids": padded([row.ids for row in rows], PAD),
            "attention_mask": token,
            "token_type_ids": padded([row.types for row in rows], 0),
        },
        labels=torch.tensor([row.label for row in rows]),
        special=(segments == -1) & token.bool(),
        segments=segments,
    )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What :func:`probing` varies.

    Attributes:
        model: the model.
        batch: what it reads.
        objective: what it is scored by.
        options: of the probes.
        classes: names asked for; empty: all.
        include_special: whether cells of special tokens count.
    """

    model: PreTrainedModel = field(default_factory=tiny_bert)
    batch: Batch = field(default_factory=batch_of)
    objective: Objective = field(default_factory=lambda: SequenceTask(("accuracy",)))
    options: ImportanceOptions = field(default_factory=ImportanceOptions)
    classes: tuple[str, ...] = ()
    include_special: bool = True


@contextmanager
def probing(setting: Setting) -> Iterator[tuple[Context, Item]]:
    """Attach the model, and make context and item as an importance run does."""
    batch = setting.batch
    with attach(setting.model) as session, evaluating(setting.model):
        longest = int(batch.inputs["attention_mask"].sum(1).max())
        layout = lay_out(
            session.sites,
            classes=setting.classes,
            include_special=setting.include_special,
            max_offset=MAX_OFFSET,
            longest=longest,
        )
        context = Context(
            session=session,
            objective=setting.objective,
            layout=layout,
            options=setting.options,
            longest=longest,
        )
        at = locate(
            batch.inputs,
            batch.special,
            batch.segments,
            cls_id=CLS,
            sep_id=SEP,
            causal=layout.causal,
            window=WINDOW,
            include_special=setting.include_special,
        )
        prepared = context.with_dense(setting.objective.prepare(batch))
        generator = torch.Generator().manual_seed(0)
        yield context, Item(prepared=prepared, cells=Cells(at, layout), generator=generator)


def assert_close(actual: object, expected: object, *, rtol: float = 1e-5, atol: float = 1e-7) -> None:
    """Equal arrays, NaN where the other is NaN: to the seven digits that float32 pieces keep."""
    np.testing.assert_allclose(
        np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64), rtol=rtol, atol=atol
    )


def series(measurement: Measurement, name: str) -> NDArray[np.float64]:
    """One of a measurement's per-example series."""
    return np.asarray(measurement.per_example[name], dtype=np.float64)


def write_csv(file: Path, rows: Sequence[Sequence[object]], columns: Sequence[str] = ("sentence", "label")) -> Path:
    """Write rows as a csv file with a header."""
    pd.DataFrame(rows, columns=list(columns)).to_csv(file, index=False)
    return file


SENTENCES: tuple[tuple[str, int], ...] = (
    ("the cat sat", 0),
    ("a good film and a bad plot", 1),
    ("the dog ran", 1),
    ("it is not very good", 0),
    ("the film of the cat is bad and it sat", 1),
    ("good", 0),
    ("a dog and a cat ran", 1),
)
"""Labelled texts of one to nine words."""
