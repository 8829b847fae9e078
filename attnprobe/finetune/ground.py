"""What all trainings of a finetune run share: the checkpoint with a head for the task, and rows for every purpose."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedModel

from attnprobe.architectures import HeadKind
from attnprobe.checkpoint import Checkpoint, open_checkpoint
from attnprobe.checkpoint.loading import Source, load_with_new_head
from attnprobe.checkpoint.opening import parse_device, parse_dtype, read_source
from attnprobe.data.batches import Encoded, encode
from attnprobe.data.sources import DataOptions, Examples, find_labels
from attnprobe.data.tasks import Kind
from attnprobe.dropout.options import DropoutOptions
from attnprobe.errors import DataError, UsageError
from attnprobe.finetune.options import FinetuneOptions
from attnprobe.masks.tokens import TokenRules
from attnprobe.options import ModelOptions
from attnprobe.training.ground import MOST_HELD_OUT, missing_classes, read_training, with_a_loss
from attnprobe.training.lesson import Lesson
from attnprobe.workbench import Workbench, bench_of

logger = logging.getLogger(__name__)

_HEADS: dict[Kind, HeadKind] = {
    "classification": "sequence_classification",
    "regression": "regression",
    "token_classification": "token_classification",
}


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Which training rows are for what; numbers of rows.

    Attributes:
        own: of every method.
        reward: on which AttendOut compares its nets; other methods learn from them too.
        held_out: on which choices are made.
    """

    own: list[int]
    reward: list[int]
    held_out: list[int]


@dataclass(frozen=True, kw_only=True)
class FinetuneGround:
    """What all trainings of a finetune run share.

    Attributes:
        bench: the checkpoint with its head, evaluation data, objective.
        training: the examples to learn from.
        encoded: the same as tokens.
        rows: which of them are for what.
        options, dropout, model_options: of the run.
        source: the checkpoint's files.
        kind, names: of the head.
    """

    bench: Workbench
    training: Examples
    encoded: Encoded
    rows: Rows
    options: FinetuneOptions
    dropout: DropoutOptions
    model_options: ModelOptions
    source: Source
    kind: HeadKind
    names: tuple[str, ...]

    def fresh_model(self, seed: int) -> PreTrainedModel:
        """The checkpoint as it is before training, the weights of a new head drawn by a seed."""
        model, _ = load_with_new_head(self.source, self.kind, self.names, seed=seed)
        return model.to(parse_device(self.model_options.device))

    def lesson(self, *, with_reward: bool) -> Lesson:
        """What is trained on. ``with_reward``: with the rows on which nets are compared."""
        tokenizer = self.bench.checkpoint.tokenizer
        assert tokenizer is not None
        return Lesson(
            encoded=self.encoded,
            rows=self.rows.own + (self.rows.reward if with_reward else []),
            objective=self.bench.objective,
            rules=TokenRules.of(tokenizer, causal=False),
        )

    def identity(self) -> dict[str, object]:
        """What run.json tells of the training data."""
        return {
            "source": self.training.source,
            "digest": self.training.digest,
            "examples": len(self.rows.own) + len(self.rows.reward),
            "reward": len(self.rows.reward),
            "held_out": len(self.rows.held_out),
            "truncated": self.encoded.truncated,
        }


@contextmanager
def laid(
    name: str, data: DataOptions, model: ModelOptions, options: FinetuneOptions, dropout: DropoutOptions
) -> Iterator[FinetuneGround]:
    """Open everything that the trainings of a run share.

    Args:
        name: the checkpoint: folder, hub id or ``demo``.
        data: what to learn from and to measure on.
        model: how to open and score it.
        options, dropout: of the run.

    Raises:
        AttnProbeError: whatever is wrong with any of them; see the parts.
    """
    if not (data.task or data.train_file or data.dataset_name):
        raise UsageError("no data to learn from: give --train-file and --eval-file, --dataset-name, or --task")
    if data.train_file and not (data.eval_file or data.dataset_name or data.task):
        raise UsageError("no data to measure on: give --eval-file beside --train-file")
    if model.objective not in ("auto", "task"):
        raise UsageError(f"fine-tuning learns a task: --objective {model.objective} can't be had; leave it out")
    source, kind, names, checkpoint = _with_head(name, data, model)
    bench = bench_of(checkpoint, data, replace(model, objective="task"))
    training = read_training(bench, data)
    assert checkpoint.tokenizer is not None
    encoded = encode(training, checkpoint.tokenizer, max_length=bench.encoded.max_length)
    missing = missing_classes(training, len(names) or None)
    if missing:
        logger.warning("%s", missing)
        bench = replace(bench, warnings=(*bench.warnings, missing))
    yield FinetuneGround(
        bench=bench,
        training=training,
        encoded=encoded,
        rows=_divided(encoded, bench, options, dropout, model.per_device_batch_size, training.source),
        options=options,
        dropout=dropout,
        model_options=model,
        source=source,
        kind=kind,
        names=names,
    )


def _with_head(
    name: str, data: DataOptions, model: ModelOptions
) -> tuple[Source, HeadKind, tuple[str, ...], Checkpoint]:
    """The checkpoint with a head for the labels: its own where that was trained for as many classes, else a new one."""
    checkpoint = open_checkpoint(
        name, device=model.device, dtype=model.dtype, trust_remote_code=model.trust_remote_code
    )
    if checkpoint.applied is not None:
        raise UsageError(
            f"{name} is an export, and fine-tuning leaves an ordinary checkpoint: begin with the one it was made of"
        )
    assert checkpoint.weights is not None
    found = find_labels(data)
    kind, own = _HEADS[found.kind], checkpoint.head
    names = found.names
    if own.kind == kind and own.num_labels == max(1, len(names)):
        names = tuple(sorted(own.label2id, key=own.label2id.__getitem__)) if names else ()
    source = read_source(
        name, checkpoint.weights.files[0].parent, parse_dtype(model.dtype), trust_remote_code=model.trust_remote_code
    )
    with_head, head = load_with_new_head(source, kind, names, seed=model.seed)
    with_head = with_head.to(parse_device(model.device)).eval()
    notes = tuple(note for note in checkpoint.notes if note.code not in ("random_head", "head_not_used"))
    return source, kind, names, replace(checkpoint, model=with_head, head=replace(head, trained=True), notes=notes)


def _divided(
    encoded: Encoded, bench: Workbench, options: FinetuneOptions, dropout: DropoutOptions, batch: int, source: str
) -> Rows:
    """Draw which rows are for what. Raises: DataError where too few are left."""
    drawn = np.random.default_rng(bench.seed).permutation(len(encoded)).tolist()
    order = with_a_loss(encoded, bench.objective, drawn, source=source)[: options.train_rows]
    held_out = min(MOST_HELD_OUT, max(1, round(options.held_out * len(order))))
    reward = max(1, round(dropout.reward_rows * (len(order) - held_out)))
    if len(order) - held_out - reward < batch:
        raise DataError(
            f"{source} gives {len(order)} rows to learn from, less {held_out} held out and {reward} for rewards: fewer "
            f"than a batch of {batch}; give more rows, or a smaller --per-device-batch-size"
        )
    return Rows(
        own=order[held_out + reward :],
        reward=sorted(order[held_out : held_out + reward]),
        held_out=sorted(order[:held_out]),
    )
