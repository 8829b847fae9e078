"""What all points of a sweep share: checkpoint, data of both splits, counts of gates, scores, the dense outputs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from transformers import PreTrainedModel

from attnprobe.attention import AttentionSession
from attnprobe.checkpoint import Checkpoint
from attnprobe.data.batches import Encoded, encode
from attnprobe.data.labels import IGNORED
from attnprobe.data.positions import Positions
from attnprobe.data.prose import prose
from attnprobe.data.sources import DataOptions, Examples, load_examples
from attnprobe.errors import DataError, UsageError
from attnprobe.export.attaching import attached
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.patterns import fit_pattern, pattern_mask
from attnprobe.masks.sparsity import GateCounts, count_gates
from attnprobe.masks.tokens import TokenRules
from attnprobe.objectives import Objective
from attnprobe.options import ModelOptions
from attnprobe.sparsify.controls import GateSums
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.training.lesson import DenseOutputs, Lesson, dense_copy
from attnprobe.workbench import KIND_OF_HEAD, Workbench, prepare

logger = logging.getLogger(__name__)

MOST_HELD_OUT = 1000
"""Rows held out at most."""

_COUNTED = 20_000
"""Training rows on which gates are counted at most; more would change a share in the fourth digit."""

_SCORED = 2000
"""Training rows from which gates are scored at most."""

_TRAINING_PROSE = 2000
"""Sentences of the built-in prose to learn from."""

_CHECKED = 256
"""Rows looked at together for a loss."""


class Setting:
    """One sweep's fixed parts. Made inside an attached model.

    Attributes:
        bench: checkpoint, evaluation data, objective.
        session: the attached model.
        options: of the sweep.
        rules: how positions are told.
        lesson: training data, without the rows held out.
        held_out: numbers of the training rows on which choices are made.
        granularity: of the gates.
        sites, heads: of the model.
    """

    def __init__(
        self,
        bench: Workbench,
        session: AttentionSession,
        training: Examples,
        options: SparsifyOptions,
        model: ModelOptions,
        dense_model: PreTrainedModel | None,
    ) -> None:
        self.bench, self.session, self.options, self.model_options = bench, session, options, model
        self.training = training
        self.sites, self.heads = len(session.sites), session.sites[0].heads
        causal = session.sites[0].causal
        tokenizer = bench.checkpoint.tokenizer
        assert tokenizer is not None
        self.rules = TokenRules.of(tokenizer, causal=causal)
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
        self.granularity = Granularity(
            name=options.granularity,
            length=encoded.max_length,
            block_size=options.block_size,
            symmetric=options.symmetric,
            segment_aware=options.segment_aware,
            causal=causal,
        )
        self.dense_model = dense_model or session.model
        self.dense = DenseOutputs(self.dense_model, bench.objective)
        self.initial = None if dense_model is None else dense_model.state_dict()
        self._counts: dict[str, GateCounts] = {}
        self._fits: dict[tuple[str, float], Mapping[str, int]] = {}

    def positions(self, encoded: Encoded, rows: list[int]) -> Iterator[Positions]:
        """The positions of some rows, batch by batch."""
        for batch in map(encoded.batch, encoded.plan(self.model_options.per_device_batch_size, rows=rows)):
            yield self.rules.positions(
                batch.inputs["input_ids"], batch.inputs["attention_mask"], window=self.options.window
            )

    @property
    def counted(self) -> list[int]:
        """Training rows on which cells are counted."""
        return list(self.lesson.rows[:_COUNTED])

    def counts(self, diagonal: str) -> GateCounts:
        """Cells of each gate on the data over which sparsity is held."""
        if diagonal not in self._counts:
            learnt_from = self.positions(self.lesson.encoded, self.counted)
            counts = count_gates(self.granularity, learnt_from, diagonal=diagonal)
            if self.options.count_on == "eval":
                seen = counts.seen
                counts = count_gates(self.granularity, self.counted_positions(), diagonal=diagonal)
                counts = replace(counts, seen=seen | counts.seen)
            self._counts[diagonal] = counts
        return self._counts[diagonal]

    def counted_positions(self) -> Iterator[Positions]:
        """The data over whose lengths sparsity is held at the target."""
        if self.options.count_on == "train":
            return self.positions(self.lesson.encoded, self.counted)
        return self.positions(self.bench.encoded, list(range(len(self.bench.encoded)))[:_COUNTED])

    @cached_property
    def sums(self) -> GateSums:
        """What each gate collects on training rows in the dense model."""
        sums = GateSums(self.granularity, sites=self.sites, heads=self.heads, device=self.session.model.device)
        generator = torch.Generator().manual_seed(self.bench.seed)
        rows = list(self.lesson.rows[:_SCORED])
        encoded = self.lesson.encoded
        for batch in map(encoded.batch, encoded.plan(self.model_options.per_device_batch_size, rows=rows)):
            prepared = self.bench.objective.prepare(batch.to(self.session.model.device))
            prepared = prepared.with_dense(self.dense.now(prepared))
            sums.add(self.session, self.bench.objective, prepared, self.rules, generator)
        return sums

    def fitted(self, pattern: str, target: float) -> Mapping[str, int]:
        """The parameters at which a pattern is nearest to a target sparsity on the training data."""

        def density(parameters: Mapping[str, int]) -> float:
            kept = valid = 0
            for at in self.counted_positions():
                kept += int((pattern_mask(pattern, at, parameters) & at.valid).sum())
                valid += int(at.valid.sum())
            return kept / valid

        if (pattern, target) not in self._fits:
            self._fits[pattern, target] = fit_pattern(pattern, density, 1 - target)[0]
        return self._fits[pattern, target]

    def restore(self) -> None:
        """Give the model its first weights again, after a point that trained them."""
        if self.initial is not None:
            self.session.model.load_state_dict(self.initial)


@contextmanager
def opened(name: str, data: DataOptions, model: ModelOptions, options: SparsifyOptions) -> Iterator[Setting]:
    """Open everything that the points of a sweep share.

    Args:
        name: the checkpoint: folder, hub id, ``demo`` or an earlier export.
        data: what to learn from and to measure on.
        model: how to open and score it.
        options: what to learn.

    Raises:
        AttnProbeError: whatever is wrong with any of them; see the parts.
    """
    if data.eval_file and not (data.train_file or data.dataset_name):
        raise UsageError("no data to learn from: give --train-file beside --eval-file")
    bench = prepare(name, data, model)
    training = read_training(bench, data)
    with ExitStack() as stack:
        dense_model = stack.enter_context(_twin(bench.checkpoint)) if options.train == "all" else None
        session = stack.enter_context(bench.attached())
        setting = Setting(bench, session, training, options, model, dense_model)
        missing = missing_classes(training, bench.checkpoint.head.num_labels)
        if missing:
            logger.warning("%s", missing)
            setting.bench = replace(bench, warnings=(*bench.warnings, missing))
        yield setting


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
