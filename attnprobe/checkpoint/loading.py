"""Builds the model of a checkpoint: with its head if that was trained, else without; never with random weights."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from attnprobe.architectures import AUTO_CLASSES, BODY_SUFFIX, ENCODERS, POOLER, HeadKind, head_class
from attnprobe.checkpoint.notes import Note
from attnprobe.checkpoint.weights import WeightFiles
from attnprobe.errors import CheckpointError
from attnprobe.quiet import first_line, quiet_transformers


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head a checkpoint was trained with.

    `kind` is "none" for a base model, for a head of a kind that gives no number here, and for a head whose weights
    are not in the files (`missing_keys`): such a head would be random, so the model is opened without it.
    `num_labels` is None and `label2id` empty unless the head classifies or regresses.
    """

    kind: HeadKind
    num_labels: int | None
    label2id: dict[str, int]
    trained: bool
    missing_keys: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Source:
    """What every attempt at loading needs.

    `raw` is config.json as it was written, `config` as it is understood; `remote_code` tells that only (trusted) code
    that comes with the checkpoint can open it. `options` are further keywords of `from_pretrained`.
    """

    name: str
    folder: Path
    raw: dict[str, Any]
    config: PreTrainedConfig
    weights: WeightFiles
    dtype: torch.dtype | str
    remote_code: bool
    options: Mapping[str, Any] = field(default_factory=dict)


def architecture_names(raw: dict[str, Any]) -> tuple[str, ...]:
    """The class names in config.json; () when it names none."""
    names = raw.get("architectures")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def load_model(source: Source) -> tuple[PreTrainedModel, Head, list[Note]]:
    """The model with its trained head, or else without any; and what is to be said about that.

    Raises:
        CheckpointError: a weight of the body is missing, any weight is misshapen, NaN or infinite, or transformers
            fails to load the files.
    """
    architecture = next(iter(architecture_names(source.raw)), BODY_SUFFIX)
    kind, class_name = head_class(architecture)
    problem = getattr(source.config, "problem_type", None)
    several = kind == "sequence_classification" and problem == "multi_label_classification"
    if several:
        kind = "none"
    missing: tuple[str, ...] = ()
    if kind != "none":
        model, missing, unused = _attempt(source, kind, class_name)
        if not missing:
            head, notes = _trained_head(source, kind)
            return model, head, notes + _unused(unused)
    model, gaps, unused = _load_body(source)
    head = Head(kind="none", num_labels=None, label2id={}, trained=False, missing_keys=missing)
    if missing:
        text = f"weights of its {class_name} head missing from the files: {len(missing)}, e.g. {missing[0]}: "
        notes = [Note("random_head", text + "the head would be random, so the model is opened without it")]
    elif several or not architecture.endswith(BODY_SUFFIX):
        task = "for several labels at once" if several else f"of {architecture}"
        notes = [Note("head_not_used", f"no figure is taken from a head {task}: the model is opened without it")]
    else:
        notes = _unused(unused)
    if gaps:
        notes.append(Note("random_pooler", f"{gaps[0]} is not in the files: the pooled output would be random"))
    return model, head, notes


def load_with_new_head(
    source: Source, kind: HeadKind, names: tuple[str, ...], *, seed: int
) -> tuple[PreTrainedModel, Head]:
    """The model with a head to be trained; a head that the files hold is used where it fits, else drawn.

    Args:
        source: the checkpoint.
        kind: of the head.
        names: of its classes; () for regression.
        seed: of the weights that are drawn.

    Raises:
        CheckpointError: a weight of the body is missing or misshapen, or transformers has no such head for the family.
    """
    config = copy.deepcopy(source.config)
    ids = {name: number for number, name in enumerate(names or ("LABEL_0",))}
    config.id2label, config.label2id = {number: name for name, number in ids.items()}, ids
    config.num_labels = len(ids)
    if kind != "token_classification":
        config.problem_type = "regression" if kind == "regression" else "single_label_classification"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, missing, _ = _attempt(replace(source, config=config), kind, "", new_head=True)
    head = Head(kind=kind, num_labels=len(ids), label2id=ids, trained=not missing, missing_keys=missing)
    return model, head


def _load_body(source: Source) -> tuple[PreTrainedModel, tuple[str, ...], tuple[str, ...]]:
    """The model without a head, and without a pooler that would be random where the class can do without."""
    class_name = ENCODERS.get(source.config.model_type, "")
    model, gaps, unused = _attempt(source, "none", class_name)
    if gaps and "add_pooling_layer" in inspect.signature(type(model).__init__).parameters:
        return _attempt(source, "none", class_name, add_pooling_layer=False)
    return model, gaps, unused


def _attempt(
    source: Source, kind: HeadKind, class_name: str, *, new_head: bool = False, **options: bool
) -> tuple[PreTrainedModel, tuple[str, ...], tuple[str, ...]]:
    """Load one class; (model, weights of its head that are not in the files, weights in the files it does not have).

    With ``new_head`` a head of another shape in the files is left there.
    """
    factory = getattr(transformers, class_name, None) or getattr(transformers, AUTO_CLASSES[kind])
    try:
        with quiet_transformers():
            model, info = factory.from_pretrained(
                source.folder,
                config=source.config,
                dtype=source.dtype,
                trust_remote_code=source.remote_code,
                use_safetensors=source.weights.format == "safetensors",
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **source.options,
                **options,
            )
    except Exception as error:  # transformers and torch raise errors of every kind
        raise CheckpointError(
            f"{source.name}: transformers cannot load it ({first_line(error)}); check its files"
        ) from error
    mismatched = [of for of in info["mismatched_keys"] if not (new_head and _belongs_to_head(model, of[0]))]
    _refuse_misshapen(source, mismatched)
    body = [key for key in sorted(info["missing_keys"]) if not _belongs_to_head(model, key)]
    if body:
        raise CheckpointError(
            f"{source.name}: weights missing from its files: {len(body)}, e.g. {body[0]}; they would be random: "
            "check that config.json belongs to these files"
        )
    _refuse_not_finite(source, model)
    missing = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
    return model, tuple(sorted(missing)), tuple(sorted(info["unexpected_keys"]))


def _belongs_to_head(model: PreTrainedModel, key: str) -> bool:
    if POOLER in key.split("."):
        return True
    return model.base_model is not model and not key.startswith(f"{model.base_model_prefix}.")


def _refuse_misshapen(source: Source, mismatched: Iterable[tuple[str, Iterable[int], Iterable[int]]]) -> None:
    for key, stored, expected in sorted(mismatched):
        raise CheckpointError(
            f"{source.name}: {key} has shape {tuple(stored)} in the files but {tuple(expected)} by config.json; "
            "check that the two belong together"
        )


def _refuse_not_finite(source: Source, model: PreTrainedModel) -> None:
    for key, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not tensor.is_meta and not torch.isfinite(tensor).all():
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise CheckpointError(
                f"{source.name}: {key} holds NaN or infinite values as {dtype}; no figure can come from such weights"
            )


def _trained_head(source: Source, kind: HeadKind) -> tuple[Head, list[Note]]:
    config = source.config
    notes: list[Note] = []
    classifies = kind in ("sequence_classification", "token_classification")
    problem = getattr(config, "problem_type", None)
    if kind == "sequence_classification":
        if problem == "regression" or config.num_labels == 1:
            kind = "regression"
        if problem is None:
            task = "regression" if kind == "regression" else f"a choice of one of {config.num_labels} classes"
            notes.append(Note("problem_type_absent", f"config.json names no problem_type: the head is taken as {task}"))
    head = Head(
        kind=kind,
        num_labels=int(config.num_labels) if classifies else None,
        label2id={str(label): int(index) for index, label in config.id2label.items()} if classifies else {},
        trained=True,
        missing_keys=(),
    )
    return head, notes


def _unused(keys: tuple[str, ...]) -> list[Note]:
    if not keys:
        return []
    return [Note("unused_weights", f"weights in the files without a place in the model: {len(keys)}, e.g. {keys[0]}")]
