"""Checkpoint, data and objective, put together: what every measuring command begins with."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attnprobe.attention import AttentionSession, Site
from attnprobe.checkpoint import Checkpoint, open_checkpoint
from attnprobe.data.batches import Batch, Encoded, encode
from attnprobe.data.positions import Positions, locate
from attnprobe.data.prose import prose
from attnprobe.data.sources import DataOptions, Examples, load_examples
from attnprobe.data.tasks import Kind
from attnprobe.errors import CheckpointError, DataError, UsageError
from attnprobe.export.attaching import attached
from attnprobe.export.words import in_words, residual_in_words
from attnprobe.objectives import (
    CausalLM,
    EmbeddingFidelity,
    MaskedLM,
    Objective,
    RegressionFidelity,
    RegressionTask,
    SequenceFidelity,
    SequenceTask,
    SpanTask,
    TokenFidelity,
    TokenTask,
)
from attnprobe.options import DEFAULT_LENGTH, ModelOptions

logger = logging.getLogger(__name__)

DEFAULT_PROSE = 16
"""Sentences of the built-in prose when no data and no limit is named: about a minute on a laptop."""

KIND_OF_HEAD: dict[str, Kind] = {
    "sequence_classification": "classification",
    "regression": "regression",
    "token_classification": "token_classification",
    "masked_lm": "text",
    "causal_lm": "text",
}
"""What a head's data is."""


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """An opened checkpoint with its data as tokens and its objective.

    Attributes:
        checkpoint: the checkpoint.
        examples: the rows that are measured; with a task objective, only labelled ones.
        encoded: the same as tokens.
        objective: what is measured.
        unlabelled: rows left out for want of a label.
        seed: of everything that is drawn.
        warnings: what the user should know of the choice of objective and the data, in sentences.
    """

    checkpoint: Checkpoint
    examples: Examples
    encoded: Encoded
    objective: Objective
    unlabelled: int
    seed: int
    warnings: tuple[str, ...]

    @contextmanager
    def attached(self, *, backend: str = "eager") -> Iterator[AttentionSession]:
        """Attach to the model as it is meant to run: that of an export with what it applies.

        Raises:
            AttnProbeError: see :func:`~attnprobe.export.attaching.attached`.
        """
        with attached(self.checkpoint.model, self.checkpoint.applied, backend=backend) as session:
            yield session

    def positions(self, batch: Batch, *, causal: bool, window: int = 4, include_special: bool = True) -> Positions:
        """The positions of a batch's tokens, told by this checkpoint's special tokens."""
        tokenizer = self.checkpoint.tokenizer
        return locate(
            batch.inputs,
            batch.special,
            batch.segments,
            cls_id=getattr(tokenizer, "cls_token_id", None),
            sep_id=getattr(tokenizer, "sep_token_id", None),
            causal=causal,
            window=window,
            include_special=include_special,
        )

    def batches(self, plan: list[list[int]]) -> Iterator[Batch]:
        """The batches of a plan, on the model's device."""
        return (self.encoded.batch(rows).to(self.checkpoint.model.device) for rows in plan)

    def identity(self, sites: tuple[Site, ...]) -> dict[str, Any]:
        """What run.json tells of checkpoint, data and objective."""
        checkpoint, examples = self.checkpoint, self.examples
        return {
            "checkpoint": {
                "name": checkpoint.name,
                "digest": checkpoint.digest,
                "family": checkpoint.model.config.model_type,
                "class": type(checkpoint.model).__name__,
                "sites": len(sites),
                "heads": sites[0].heads,
                **({} if checkpoint.mask is None else {"mask": in_words(checkpoint.mask)}),
                **({} if checkpoint.residual is None else {"residual": residual_in_words(checkpoint.residual)}),
            },
            "data": {
                "source": examples.source,
                "digest": examples.digest,
                "examples": len(examples),
                "truncated": self.encoded.truncated,
                "unlabelled": self.unlabelled,
                "max_length": self.encoded.max_length,
            },
            "objective": {
                "kind": self.objective.kind,
                "loss_unit": self.objective.loss_unit,
                "divergence_unit": self.objective.divergence_unit,
                "metric_name": self.objective.metrics[0],
            },
        }


def prepare(name: str, data: DataOptions, options: ModelOptions) -> Workbench:
    """Open a checkpoint, read its data, choose the objective.

    Args:
        name: folder, hub id or ``demo``.
        data: where the data is; when none is named, the built-in prose is read, and said so.
        options: how.

    Raises:
        AttnProbeError: whatever is wrong with any of them; see the parts.
    """
    checkpoint = open_checkpoint(
        name, device=options.device, dtype=options.dtype, trust_remote_code=options.trust_remote_code
    )
    return bench_of(checkpoint, data, options)


def bench_of(checkpoint: Checkpoint, data: DataOptions, options: ModelOptions) -> Workbench:
    """Read the data of an opened checkpoint, and choose the objective: see :func:`prepare`."""
    head, tokenizer = checkpoint.head, checkpoint.tokenizer
    assert tokenizer is not None
    warnings = [note.text for note in checkpoint.notes if note.code == "random_head"]
    if data.task or data.eval_file or data.dataset_name:
        labels = None if options.objective == "fidelity" else head.num_labels  # fidelity looks at no label
        examples = load_examples(
            data, split="eval", label2id=head.label2id, num_labels=labels, kind_hint=KIND_OF_HEAD.get(head.kind)
        )
    else:
        _require_no_data_flags(data)
        examples = prose(data.limit or DEFAULT_PROSE)
        warnings.append(f"no data is named: {len(examples)} sentences of {examples.source} are used")
    objective = _choose_objective(checkpoint, examples, options)
    unlabelled = examples.unlabelled
    if objective.kind == "task" and unlabelled:
        warnings.append(f"{unlabelled} of {len(examples)} rows have no label and are left out")
        examples = examples.labelled()
    if objective.kind == "fidelity":
        warnings.append(
            "what is measured is fidelity to the dense model"
            + (": the checkpoint has no trained head" if head.kind == "none" else "")
        )
    encoded = encode(examples, tokenizer, max_length=_max_length(checkpoint, options))
    if encoded.truncated:
        warnings.append(f"{encoded.truncated} of {len(examples)} rows were cut to {encoded.max_length} tokens")
    for warning in warnings:
        logger.warning("%s", warning)
    return Workbench(
        checkpoint=checkpoint,
        examples=examples,
        encoded=encoded,
        objective=objective,
        unlabelled=unlabelled if objective.kind == "task" else 0,
        seed=options.seed,
        warnings=tuple(warnings),
    )


def _require_no_data_flags(data: DataOptions) -> None:
    """Built-in prose must not stand in for data that the user believes to have named."""
    given = {
        "--train-file": data.train_file,
        "--split": data.split,
        "--text-column": data.text_columns,
        "--label-column": data.label_column,
    }
    for flag, value in given.items():
        if value:
            raise UsageError(f"{flag} names no data to measure on: give --eval-file, --dataset-name or --task as well")


def _max_length(checkpoint: Checkpoint, options: ModelOptions) -> int:
    limit = checkpoint.usable_length
    if options.max_length is None:
        return min(limit, DEFAULT_LENGTH)
    if options.max_length > limit:
        raise UsageError(
            f"--max-length {options.max_length} is more than {checkpoint.name} can read; give at most {limit}"
        )
    return options.max_length


def _choose_objective(checkpoint: Checkpoint, examples: Examples, options: ModelOptions) -> Objective:
    head = checkpoint.head
    labelled = examples.labels is not None and examples.unlabelled < len(examples)
    has_task = head.num_labels is not None
    if options.objective == "task":
        if not has_task:
            raise UsageError(
                f"{checkpoint.name} has no trained task head, so its task loss would be a random number; "
                "fine-tune it first, or measure --objective fidelity"
            )
        if not labelled:
            raise DataError(
                f"{examples.source} has no labels (GLUE's test files hold -1), so there is no task loss; "
                "give labelled data, or measure --objective fidelity"
            )
    if options.objective == "lm" and head.kind not in ("masked_lm", "causal_lm"):
        raise UsageError(f"{checkpoint.name} has no trained language-model head; measure --objective fidelity")
    if options.objective == "fidelity" or (has_task and not labelled):
        return _fidelity(checkpoint, options)
    if has_task:
        return _task(examples)
    if head.kind == "masked_lm":
        return MaskedLM(mask_id=_mask_id(checkpoint), seed=options.seed)
    if head.kind == "causal_lm":
        return CausalLM()
    return _fidelity(checkpoint, options)


def _mask_id(checkpoint: Checkpoint) -> int:
    mask_id = getattr(checkpoint.tokenizer, "mask_token_id", None)
    if mask_id is None:
        raise CheckpointError(
            f"{checkpoint.name} is a masked language model whose tokenizer has no mask token; "
            "add it, or measure --objective fidelity"
        )
    return int(mask_id)


def _task(examples: Examples) -> Objective:
    if examples.kind == "regression":
        return RegressionTask(examples.metrics)
    if examples.kind == "token_classification":
        spans = examples.metrics[:1] == ("span_f1",)
        return SpanTask(examples.label_names) if spans else TokenTask()
    return SequenceTask(examples.metrics)


def _fidelity(checkpoint: Checkpoint, options: ModelOptions) -> Objective:
    kind = checkpoint.head.kind
    if kind == "sequence_classification":
        return SequenceFidelity()
    if kind == "regression":
        return RegressionFidelity()
    if kind != "none":
        return TokenFidelity()
    return EmbeddingFidelity(_stated_pooling(checkpoint) if options.pooling == "auto" else options.pooling)


def _stated_pooling(checkpoint: Checkpoint) -> str:
    """The pooling that a sentence encoder's folder states (sentence-transformers' layout); ``tokens`` without one."""
    if checkpoint.path is None:
        return "tokens"
    try:
        stated = json.loads((checkpoint.path / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "tokens"
    for pooling, key in (("mean", "pooling_mode_mean_tokens"), ("cls", "pooling_mode_cls_token")):
        if stated.get(key):
            return pooling
    return "tokens"
