"""Tiny random models, one row a family, and token rows to run them on. Everything is seeded; nothing is downloaded.

Weights are drawn wide, so that attention is far from uniform and every cell matters to the output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

Inputs = dict[str, Tensor]
Side = Literal["right", "left"]

VOCABULARY = 53
PAD, CLS, SEP = 1, 0, 2
"""Token ids, as RoBERTa numbers them: its families find padding, and so positions, by the id."""

ROWS = (7, 5, 3)
"""Tokens of each row of the ragged batch."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One row of the family matrix.

    Attributes:
        name: of the family, or of the form of it.
        build: makes the model, with random weights of transformers' own scale.
        heads: query heads.
        kv_heads: key and value heads.
        sites: applications of self-attention.
        causal: whether a query is kept from later keys.
        positions: how left padding is made up for: the model takes ``position_ids``; it counts its ``own`` from the
            padding id; they are ``relative``; or it knows only ``columns`` (BART's encoder, so that there only the
            classes and gates of its cells can be the same on both sides).
        blocks: whether states below a site can be reused.
        output: name of the output that has one row a token.
        pixels: the model reads an image: no token ids, no padding.
    """

    name: str
    build: Callable[[], PreTrainedModel]
    heads: int = 3
    kv_heads: int = 3
    sites: int = 3
    causal: bool = False
    positions: Literal["position_ids", "own", "relative", "columns"] = "position_ids"
    blocks: bool = True
    output: str = "last_hidden_state"
    pixels: bool = False

    def model(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """The model, in eval mode: the same weights at every call."""
        with torch.random.fork_rng():
            torch.manual_seed(7)
            model = self.build()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() > 1:
                        parameter.normal_(std=0.7 * parameter.shape[-1] ** -0.5)
                    else:
                        parameter.add_(0.1 * torch.randn_like(parameter))
        return model.to(dtype).eval()

    def inputs(self, side: Side = "right", rows: tuple[int, ...] = ROWS, first: int = 0) -> Inputs:
        """A ragged batch, padded on one side; ``first`` is the number of its first row."""
        if self.pixels:
            return {"pixel_values": torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(3))}
        width = max(rows)
        ids = torch.full((len(rows), width), PAD)
        mask = torch.zeros_like(ids)
        for row, length in enumerate(rows):
            columns = slice(0, length) if side == "right" else slice(width - length, width)
            ids[row, columns] = torch.tensor(_tokens(length, first + row))
            mask[row, columns] = 1
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self.positions == "position_ids":
            inputs["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)
        return inputs

    def per_token(self, model: PreTrainedModel, inputs: Inputs) -> Tensor:
        """The output that has one row a token: (batch, tokens, width)."""
        output: Tensor = run(model, inputs)[self.output]
        return output


def _tokens(length: int, row: int) -> list[int]:
    """[CLS], ordinary tokens, [SEP]; no token twice in a row."""
    return [CLS, *(5 + (11 * row + 7 * i) % 40 for i in range(length - 2)), SEP]


def run(model: PreTrainedModel, inputs: Inputs) -> Inputs:
    """All floating-point outputs by name, without gradients and caches."""
    with torch.no_grad():
        outputs = model(**inputs, **({"use_cache": False} if model.config.is_encoder_decoder else {}))
    return {name: x for name, x in outputs.items() if isinstance(x, Tensor) and x.is_floating_point()}


TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": CLS, "eos_token_id": SEP}
_BODY = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 37}
ENCODER = {**_BODY, **TOKENS, "max_position_embeddings": 31}
DECODER = {**ENCODER, "hidden_size": 32, "num_attention_heads": 8}
_BART = {
    **TOKENS,
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 29,
    "max_position_embeddings": 31,
    "decoder_start_token_id": SEP,
}


def _encoder(name: str, cls: str, config: str, **extra: object) -> Family:
    """A row for a family whose configuration speaks of hidden_size, num_hidden_layers, num_attention_heads."""
    settings = {**ENCODER, **extra}
    return Family(name=name, build=lambda: getattr(transformers, cls)(getattr(transformers, config)(**settings)))


def _decoder(name: str, cls: str, config: str, *, kv_heads: int, **extra: object) -> Family:
    """A row for a causal family with grouped queries."""
    return replace(
        _encoder(name, cls, config, **{**DECODER, "num_key_value_heads": kv_heads, **extra}),
        heads=8,
        kv_heads=kv_heads,
        causal=True,
        output="logits",
    )


FAMILIES: tuple[Family, ...] = (
    _encoder("bert", "BertModel", "BertConfig"),
    replace(_encoder("roberta", "RobertaForMaskedLM", "RobertaConfig"), positions="own", output="logits"),
    replace(_encoder("xlm-roberta", "XLMRobertaModel", "XLMRobertaConfig"), positions="own"),
    replace(_encoder("albert", "AlbertModel", "AlbertConfig", embedding_size=16), blocks=False),
    _encoder("electra", "ElectraModel", "ElectraConfig", embedding_size=16),
    Family(
        name="distilbert",
        build=lambda: transformers.DistilBertModel(
            transformers.DistilBertConfig(
                dim=24, n_layers=3, n_heads=3, hidden_dim=37, max_position_embeddings=31, **TOKENS
            )
        ),
    ),
    replace(_encoder("camembert", "CamembertModel", "CamembertConfig"), positions="own"),
    # a window of 2 tokens on either side in the second and third layer
    _encoder(
        "modernbert",
        "ModernBertModel",
        "ModernBertConfig",
        local_attention=4,
        global_attn_every_n_layers=3,
        cls_token_id=CLS,
        sep_token_id=SEP,
    ),
    # without its trigram input, through which a token sees its neighbours, padding too, before any attention
    _encoder(
        "mobilebert",
        "MobileBertModel",
        "MobileBertConfig",
        hidden_size=32,
        embedding_size=32,
        true_hidden_size=24,
        intra_bottleneck_size=24,
        trigram_input=False,
    ),
    _encoder("ernie", "ErnieModel", "ErnieConfig"),
    replace(_encoder("esm", "EsmModel", "EsmConfig", mask_token_id=4), positions="own"),
    _encoder("nomic_bert", "NomicBertModel", "NomicBertConfig"),
    _encoder("layoutlm", "LayoutLMModel", "LayoutLMConfig"),  # hands over a float mask of its own
    Family(
        name="vit",
        build=lambda: transformers.ViTModel(transformers.ViTConfig(**_BODY, image_size=12, patch_size=4)),
        pixels=True,
    ),
    Family(
        name="bart-encoder",
        build=lambda: transformers.BartModel(transformers.BartConfig(**_BART)).get_encoder(),
        positions="columns",
    ),
    Family(
        name="bart",
        build=lambda: transformers.BartForSequenceClassification(transformers.BartConfig(**_BART)),
        positions="columns",
        output="encoder_last_hidden_state",
    ),
    Family(
        name="t5-encoder",
        build=lambda: transformers.T5EncoderModel(
            transformers.T5Config(d_model=24, num_layers=3, num_heads=3, d_kv=7, d_ff=37, **TOKENS)
        ),
        positions="relative",
    ),
    Family(
        name="gpt2",
        build=lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=24, n_layer=3, n_head=3, n_positions=31, **TOKENS)
        ),
        causal=True,
        output="logits",
    ),
    _decoder("llama-8/2", "LlamaForCausalLM", "LlamaConfig", kv_heads=2),
    _decoder("llama-8/1", "LlamaForCausalLM", "LlamaConfig", kv_heads=1),
    _decoder("qwen2", "Qwen2ForCausalLM", "Qwen2Config", kv_heads=2),
    _decoder("mistral", "MistralForCausalLM", "MistralConfig", kv_heads=2, sliding_window=3),
    # soft-capped scores, low enough to bite, and every other layer a sliding window
    _decoder(
        "gemma2",
        "Gemma2ForCausalLM",
        "Gemma2Config",
        kv_heads=2,
        head_dim=4,
        sliding_window=3,
        attn_logit_softcapping=2.0,
    ),
)

TEXT_FAMILIES = tuple(family for family in FAMILIES if not family.pixels)


def family(name: str) -> Family:
    """The row with this name."""
    return {row.name: row for row in FAMILIES}[name]
