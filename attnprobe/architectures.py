"""What differs between model families, as data. No other file asks for a `model_type`.

Facts about transformers' own classes (which families never call its shared attention function, which count positions
from the padding index) were read off its sources and are checked against the installed version by the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HeadKind = Literal["sequence_classification", "regression", "token_classification", "masked_lm", "causal_lm", "none"]

HEAD_NAMES: dict[HeadKind, str] = {
    "sequence_classification": "sequence classifier",
    "regression": "regression",
    "token_classification": "token classifier",
    "masked_lm": "masked language model",
    "causal_lm": "causal language model",
    "none": "none",
}
"""Heads in words."""

SUPPORTED: tuple[str, ...] = (
    "albert",
    "bart",
    "bert",
    "camembert",
    "clip_text_model",
    "data2vec-text",
    "deit",
    "distilbert",
    "electra",
    "ernie",
    "esm",
    "gemma",
    "gpt2",
    "gpt_neox",
    "jina_embeddings_v3",
    "layoutlm",
    "llama",
    "mistral",
    "mobilebert",
    "modernbert",
    "nomic_bert",
    "opt",
    "qwen2",
    "roberta",
    "roc_bert",
    "t5",
    "vit",
    "xlm-roberta",
)
"""Families (`model_type`) seen to run through the seam exactly; others are tried, and refused if they do not."""

_OWN_SOFTMAX = "its layers compute the softmax themselves and never call transformers' shared attention function"
_NO_ATTENTION = "it mixes tokens without attention, so there are no attention cells to examine"
_TWO_MODELS = "it joins two models of other families, which have to be opened one by one"
_APPROXIMATE = "it approximates attention, so the cells of a query-by-key grid do not exist one by one"

UNSUPPORTED: dict[str, str] = {
    "big_bird": "it computes block-sparse attention in its own layers, without a full query-by-key grid",
    "bloom": _OWN_SOFTMAX,
    "bros": _OWN_SOFTMAX,
    "canine": "it attends in local blocks over a downsampled sequence, inside its own layers",
    "convbert": "it mixes attention with convolutions over spans inside one layer",
    "deberta": "it adds disentangled position terms to the scores inside its own layers",
    "deberta-v2": "it adds disentangled position terms to the scores inside its own layers",
    "encoder-decoder": _TWO_MODELS,
    "falcon": _OWN_SOFTMAX,
    "falcon_mamba": _NO_ATTENTION,
    "flaubert": _OWN_SOFTMAX,
    "fnet": _NO_ATTENTION,
    "fsmt": _OWN_SOFTMAX,
    "funnel": "it shortens the sequence between layers, so that cells do not keep their positions",
    "gpt_neo": _OWN_SOFTMAX,
    "gpt_neox_japanese": _OWN_SOFTMAX,
    "ibert": "it computes attention in integer arithmetic inside its own layers",
    "imagegpt": _OWN_SOFTMAX,
    "layoutlmv2": "it adds spatial position terms to the scores inside its own layers",
    "led": "it computes sliding-window attention in its own layers, without a full query-by-key grid",
    "lilt": "it adds the scores of a text and a layout stream inside its own layers",
    "longformer": "it computes sliding-window attention in its own layers, without a full query-by-key grid",
    "luke": "it has a query of its own for every pair of word and entity, inside its own layers",
    "mamba": _NO_ATTENTION,
    "mamba2": _NO_ATTENTION,
    "megatron-bert": _OWN_SOFTMAX,
    "mpnet": "it adds a relative position bias to the scores inside its own layers",
    "mpt": _OWN_SOFTMAX,
    "mra": _APPROXIMATE,
    "nystromformer": _APPROXIMATE,
    "openai-gpt": _OWN_SOFTMAX,
    "perceiver": "it attends from latent vectors, which are no token positions",
    "prophetnet": "it predicts n-grams through several streams of attention inside its own layers",
    "reformer": _APPROXIMATE,
    "rembert": _OWN_SOFTMAX,
    "roformer": "it rotates queries and keys and computes the softmax inside its own layers",
    "rwkv": _NO_ATTENTION,
    "squeezebert": "it computes attention by grouped convolutions inside its own layers",
    "tapas": _OWN_SOFTMAX,
    "vision-encoder-decoder": _TWO_MODELS,
    "visual_bert": _OWN_SOFTMAX,
    "xglm": _OWN_SOFTMAX,
    "xlm": _OWN_SOFTMAX,
    "xlnet": "it adds relative position terms to two streams of attention inside its own layers",
    "xlstm": _NO_ATTENTION,
    "yoso": _APPROXIMATE,
}
"""Families whose own code never reaches the shared attention function, and why."""

POSITIONS_FROM_PADDING: frozenset[str] = frozenset(
    {
        "camembert",
        "data2vec-text",
        "esm",
        "layoutlmv3",
        "markuplm",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)
"""Families that count positions from `padding_idx + 1` over the tokens that are not padding.

Position ids therefore depend on the input ids, and a table of 514 rows holds 512 tokens.
"""

UNBOUNDED: frozenset[str] = frozenset({"longt5", "mt5", "pop2piano", "switch_transformers", "t5", "udop", "umt5"})
"""Families with relative positions only: no position table ends."""

ENCODERS: dict[str, str] = {"mt5": "MT5EncoderModel", "t5": "T5EncoderModel", "umt5": "UMT5EncoderModel"}
"""Encoder-decoders whose base model cannot run on a text alone: the class that opens their encoder."""


@dataclass(frozen=True, kw_only=True)
class Projections:
    """Where attention keeps its weights: names from the module that calls attention, `^` before one of its parent.

    One name for query, key and value stands for one matrix of all three: `thirds` in turn, or `by_head`.
    """

    query: str
    key: str
    value: str
    output: str
    layout: Literal["apart", "thirds", "by_head"] = "apart"


PROJECTIONS: tuple[Projections, ...] = (
    Projections(query="query", key="key", value="value", output="^output.dense"),
    Projections(query="query", key="key", value="value", output="dense"),
    Projections(query="q_proj", key="k_proj", value="v_proj", output="o_proj"),
    Projections(query="q_proj", key="k_proj", value="v_proj", output="out_proj"),
    Projections(query="q_lin", key="k_lin", value="v_lin", output="out_lin"),
    Projections(query="q", key="k", value="v", output="o"),
    Projections(query="Wqkv", key="Wqkv", value="Wqkv", output="Wo", layout="thirds"),
    Projections(query="c_attn", key="c_attn", value="c_attn", output="c_proj", layout="thirds"),
    Projections(
        query="query_key_value", key="query_key_value", value="query_key_value", output="dense", layout="by_head"
    ),
)
"""Forms that the supported families have. The first whose names are all there is a site's."""

POOLER = "pooler"
"""Name of the module that only some heads read; part of the body by name, of the head by use."""

TEXT_INPUT = "input_ids"
"""Main input of a model of text."""

DEFAULT_LENGTH = 512
"""Tokens used where neither the model nor its tokenizer sets a limit."""


@dataclass(frozen=True, kw_only=True)
class HeadClass:
    """How the end of a class name tells its head: `suffix` -> `kind`, opened as `opened_as` when that differs."""

    suffix: str
    kind: HeadKind
    opened_as: str | None = None


HEAD_CLASSES: tuple[HeadClass, ...] = (
    HeadClass(suffix="ForSequenceClassification", kind="sequence_classification"),
    HeadClass(suffix="ForTokenClassification", kind="token_classification"),
    HeadClass(suffix="ForMaskedLM", kind="masked_lm"),
    HeadClass(suffix="ForPreTraining", kind="masked_lm", opened_as="ForMaskedLM"),
    HeadClass(suffix="ForCausalLM", kind="causal_lm"),
    HeadClass(suffix="LMHeadModel", kind="causal_lm"),
)
"""Heads that give a number. Any other class (question answering, translation, images) is opened without its head."""

BODY_SUFFIX = "Model"
"""End of the names of classes without a head."""

AUTO_CLASSES: dict[HeadKind, str] = {
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "masked_lm": "AutoModelForMaskedLM",
    "causal_lm": "AutoModelForCausalLM",
    "none": "AutoModel",
}
"""Factories for classes that transformers does not have itself (remote code)."""


def unsupported_message(name: str, family: str) -> str | None:
    """The one line that refuses `family`, or None when nothing is known against it."""
    reason = UNSUPPORTED.get(family)
    if reason is None:
        return None
    return f"{name}: the family {family!r} is not supported: {reason}; supported are {', '.join(SUPPORTED)}"


def head_class(architecture: str) -> tuple[HeadKind, str]:
    """Kind of the head that the class name `architecture` promises, and the name of the class that opens it."""
    for head in HEAD_CLASSES:
        if architecture.endswith(head.suffix):
            stem = architecture.removesuffix(head.suffix)
            return head.kind, stem + (head.opened_as or head.suffix)
    return "none", architecture


def position_limit(config: object) -> int | None:
    """Longest input in tokens, special tokens included, that the positions of `config` allow; None if unbounded."""
    family = getattr(config, "model_type", "")
    if family in UNBOUNDED:
        return None
    for field in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        positions = getattr(config, field, None)
        if isinstance(positions, int) and positions > 0:
            return positions - position_offset(config)
    return None


def position_offset(config: object) -> int:
    """Rows of the position table that no token can use: `padding_idx + 1` in RoBERTa-like families, else 0."""
    padding = getattr(config, "pad_token_id", None)
    if getattr(config, "model_type", "") in POSITIONS_FROM_PADDING and isinstance(padding, int):
        return padding + 1
    return 0


def shared_layers(config: object) -> tuple[int, int] | None:
    """(distinct, applied) attention modules when layers share weights as in ALBERT; None when each has its own."""
    applied = getattr(config, "num_hidden_layers", None)
    groups = getattr(config, "num_hidden_groups", None)
    if not isinstance(applied, int) or not isinstance(groups, int):
        return None
    distinct = groups * int(getattr(config, "inner_group_num", 1))
    return (distinct, applied) if distinct < applied else None


def head_counts(config: object) -> tuple[int, int] | None:
    """(query heads, key-value heads) of one layer as `config` states them; None when it states none or several."""
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int):
        return None
    pairs = getattr(config, "num_key_value_heads", None)
    return heads, pairs if isinstance(pairs, int) else heads
