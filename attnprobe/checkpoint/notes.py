"""What would bite later: facts about an opened checkpoint that are no errors, each with a code and one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from attnprobe.architectures import head_counts, position_offset, shared_layers
from attnprobe.checkpoint.weights import WeightFiles
from attnprobe.export.format import Applied
from attnprobe.export.words import in_words, residual_in_words

HALF_PRECISION = frozenset({"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"})


@dataclass(frozen=True)
class Note:
    """One such fact: `code` is stable and for programs, `text` is one sentence for people."""

    code: str
    text: str


def tied_parameters(model: nn.Module) -> list[tuple[str, ...]]:
    """Groups of parameter names that are one tensor, each in the order of the model."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [tuple(group) for group in names.values() if len(group) > 1]


def model_notes(model: nn.Module, config: PreTrainedConfig) -> Iterator[Note]:
    """Notes on positions, and on what is shared between heads, layers or ends of the model."""
    offset = position_offset(config)
    rows = getattr(config, "max_position_embeddings", None)
    if offset and isinstance(rows, int):
        text = f"the position table says {rows}, and holds {rows - offset} tokens: {offset} rows are for padding"
        yield Note("position_offset", text)
    shared = shared_layers(config)
    if shared:
        distinct, applied = shared
        text = f"{applied} layers share the weights of {distinct}: a head cannot be removed from one of them alone"
        yield Note("shared_layers", text)
    heads = head_counts(config)
    if heads and heads[1] < heads[0]:
        text = f"{heads[0]} query heads share {heads[1]} key-value heads: these can only be removed as whole groups"
        yield Note("kv_groups", text)
    tied = tied_parameters(model)
    if tied:
        pairs = "; ".join(" = ".join(group) for group in tied)
        yield Note("tied_weights", f"one tensor under several names, so that changing one changes all: {pairs}")


def export_notes(applied: Applied) -> Iterator[Note]:
    """Notes on an export of attnprobe."""
    if applied.residual is not None:
        said = residual_in_words(applied.residual)
        yield Note("residual", f"residual attention is applied by attnprobe alone ({said}): others load it without")
    if applied.mask is None:
        return
    yield Note("export", f"a mask is applied by attnprobe alone ({in_words(applied.mask)}): others load it dense")
    if applied.mask.limit is not None:
        yield Note("mask_length", f"the mask covers {applied.mask.limit} tokens: longer texts are refused")


def file_notes(weights: WeightFiles, dtype: str) -> Iterator[Note]:
    """Notes on how the weights are stored."""
    if weights.sharded:
        yield Note("sharded", f"the weights lie in {len(weights.files)} files, all of which must be kept together")
    if weights.format == "pickle":
        yield Note("pickle_weights", "the weights are pickled: they were read with weights-only loading")
    stored = weights.dtypes[0] if weights.dtypes else dtype
    if stored in HALF_PRECISION and stored != dtype:
        yield Note("half_precision_file", f"the weights are stored as {stored}, and computed with as {dtype}")


def tokenizer_notes(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> Iterator[Note]:
    """Notes on special tokens that are not there, and on ids that the model has no embedding for."""
    if tokenizer.cls_token_id is None:
        yield Note("no_cls", "the tokenizer has no [CLS] token: the position classes cls_* are n/a")
    if tokenizer.sep_token_id is None:
        yield Note("no_sep", "the tokenizer has no [SEP] token: the position classes sep_* are n/a")
    if tokenizer.pad_token_id is None:
        yield Note("no_pad", "the tokenizer has no padding token: batches are padded with id 0, which is masked")
    rows = getattr(config, "vocab_size", None)
    if isinstance(rows, int) and len(tokenizer) > rows:
        text = f"the tokenizer knows {len(tokenizer)} tokens, the model {rows}: the ids above fail in the model"
        yield Note("tokenizer_larger", text)
