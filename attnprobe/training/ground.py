"""What all trainings of one command share: checkpoint, data of both splits, the dense model, the first weights."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np
from transformers import PreTrainedModel

from attnprobe.attention import AttentionSession
from attnprobe.checkpoint import Checkpoint
from attnprobe.data.batches import Encoded, encode
from attnprobe.data.labels import IGNORED
from attnprobe.data.prose import prose
from attnprobe.data.sources import DataOptions, Examples, load_examples
from attnprobe.errors import DataError, UsageError
from attnprobe.export.attaching import attached
from attnprobe.masks.tokens import TokenRules
from attnprobe.objectives import Objective
from attnprobe.options import ModelOptions
from attnprobe.training.lesson import DenseOutputs, Lesson, dense_copy
from attnprobe.training.options import TrainingOptions
from attnprobe.workbench import KIND_OF_HEAD, Workbench, prepare

logger = logging.getLogger(__name__)

MOST_HELD_OUT = 1000
"""Rows held out at most."""

_TRAINING_PROSE = 2000
"""Sentences of the built-in prose to learn from."""

_CHECKED = 256
"""Rows looked at together for a loss."""


class Ground:
    """What all trainings of one command share. Made inside an attached model.

    Attributes:
        bench: checkpoint, evaluation data, objective.
        session: the attached model.
        options: of the command.
        model_options: how the checkpoint was opened.
        training: the examples to learn from.
        rules: how positions are told.
        lesson: training data, without the rows held out.
        held_out: numbers of the training rows on which choices are made.
        sites, heads: of the model.
        dense_model: the model as it was, where weights are trained a copy of its own.
        dense: its outputs.
    """

    def __init__(
        self,
        bench: Workbench,
        session: AttentionSession,
        training: Examples,
        options: TrainingOptions,
        model: ModelOptions,
        dense_model: PreTrainedModel | None,
    ) -> None:
        self.bench, self.session, self.training = bench, session, training
        self.options, self.model_options = options, model
        self.sites, self.heads = len(session.sites), session.sites[0].heads
        tokenizer = bench.checkpoint.tokenizer
        assert tokenizer is not None
        self.rules = TokenRules.of(tokenizer, causal=session.sites[0].causal)
        encoded = encode(training, tokenizer, max_length=bench.encoded.max_length)
        drawn = np.random.default_rng(bench.seed).permutation(len(encoded)).tolist()
        order = with_a_loss(encoded, bench.objective, drawn, source=training.source)
        with_a_loss(bench.encoded, bench.objective, range(len(bench.encoded)), source=bench.examples.source)
        count = min(MOST_HELD_OUT, max(1, round(options.held_out * len(order))))
        if len(order) - count < model.per_device_batch_size:
            raise DataError(
                f"{training.source} has {len(order)} rows to learn from, less {count} held out: fewer than a batch of "
                f"{model.per_device_batch_size}; give more rows, or a smaller --per-device-batch-size"
            )
        self.held_out: list[int] = sorted(order[:count])
        self.lesson = Lesson(encoded=encoded, rows=order[count:], objective=bench.objective, rules=self.rules)
        self.dense_model = dense_model or session.model
        self.dense = DenseOutputs(self.dense_model, bench.objective)
        self.initial = None if dense_model is None else dense_model.state_dict()

    def identity(self) -> dict[str, object]:
        """What run.json tells of the training data."""
        return {
            "source": self.training.source,
            "digest": self.training.digest,
            "examples": len(self.lesson.rows),
            "held_out": len(self.held_out),
            "truncated": self.lesson.encoded.truncated,
        }

    def restore(self) -> None:
        """Give the model its first weights again, after a training that changed them."""
        if self.initial is not None:
            self.session.model.load_state_dict(self.initial)


OfGround = TypeVar("OfGround", bound=Ground)


@contextmanager
def laid(
    kind: type[OfGround],
    name: str,
    data: DataOptions,
    model: ModelOptions,
    options: TrainingOptions,
    *,
    weights: bool,
) -> Iterator[OfGround]:
    """Open everything that the trainings of a command share.

    Args:
        kind: of ground.
        name: the checkpoint: folder, hub id, ``demo`` or an earlier export.
        data: what to learn from and to measure on.
        model: how to open and score it.
        options: of the command.
        weights: whether weights are trained, so that the dense model is a copy.

    Raises:
        AttnProbeError: whatever is wrong with any of them; see the parts.
    """
    if data.eval_file and not (data.train_file or data.dataset_name):
        raise UsageError("no data to learn from: give --train-file beside --eval-file")
    bench = prepare(name, data, model)
    training = read_training(bench, data)
    with ExitStack() as stack:
        dense_model = stack.enter_context(_twin(bench.checkpoint)) if weights else None
        session = stack.enter_context(bench.attached())
        ground = kind(bench, session, training, options, model, dense_model)
        missing = missing_classes(training, bench.checkpoint.head.num_labels)
        if missing:
            logger.warning("%s", missing)
            ground.bench = replace(bench, warnings=(*bench.warnings, missing))
        yield ground


def read_training(bench: Workbench, data: DataOptions) -> Examples:
    """The examples to learn from, fit for the objective that the evaluation data led to.

    Raises:
        DataError: it has no labels, and the objective needs them.
    """
    if not (data.task or data.eval_file or data.dataset_name):
        return prose(_TRAINING_PROSE, skip=len(bench.examples))
    head = bench.checkpoint.head
    task = bench.objective.kind == "task"
    examples = load_examples(
        data,
        split="train",
        label2id=head.label2id,
        num_labels=head.num_labels if task else None,
        kind_hint=KIND_OF_HEAD.get(head.kind),
    )
    if not task:
        return examples
    if examples.labels is None or examples.unlabelled == len(examples):
        raise DataError(f"{examples.source} has no labels to learn from; give labelled rows, or --objective fidelity")
    return examples.labelled() if examples.unlabelled else examples


def missing_classes(training: Examples, classes: int | None) -> str | None:
    """What is to be said of classes of the head that no training row has; None where there is nothing.

    Args:
        training: the rows to learn from.
        classes: how many the head has; None: it has none.
    """
    if not training.labels or not classes or training.kind not in ("classification", "token_classification"):
        return None
    rows = [label if isinstance(label, list) else [label] for label in training.labels]
    missing = sorted(set(range(classes)) - {int(label) for row in rows for label in row})
    if not missing:
        return None
    names = ", ".join(training.label_names[number] if training.label_names else str(number) for number in missing[:5])
    return (
        f"{training.source} has no row of {len(missing)} of the head's {classes} classes ({names}"
        f"{', ...' if len(missing) > 5 else ''}): nothing tells which attention they need, so give rows of them too"
    )


def with_a_loss(encoded: Encoded, objective: Objective, rows: Sequence[int], *, source: str) -> list[int]:
    """Of some rows those that have a loss: all, or where tokens are scored, those that have such a token.

    Raises: DataError where none has.
    """
    scored: list[int] = []
    for start in range(0, len(rows), _CHECKED):
        part = rows[start : start + _CHECKED]
        labels = objective.prepare(encoded.batch(part)).labels
        if labels is None or labels.dim() == 1:
            return list(rows)
        scored += [row for row, has in zip(part, (labels != IGNORED).any(1).tolist(), strict=True) if has]
    if not scored:
        raise DataError(f"{source} has no token that {objective.kind} can be scored on: give longer or labelled rows")
    return scored


@contextmanager
def _twin(checkpoint: Checkpoint) -> Iterator[PreTrainedModel]:
    """A copy that stays as it is where weights are trained; that of an export has what it applies. Before attaching."""
    model = dense_copy(checkpoint.model)
    with attached(model, checkpoint.applied):
        yield model
