"""Tiny tokenizers, built in memory: whole words and one split word, in the forms that families of checkpoints have."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

VOCABULARY = {
    word: index
    for index, word in enumerate(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "fox", "##es", "run", "home", "now", "un", "##der"]
    )
}


def build(pair_template: str | None, **special: Any) -> PreTrainedTokenizerBase:
    """Fast word pieces, with [CLS] and [SEP] around one text and the template around a pair; without one, nothing."""
    backend = Tokenizer(WordPiece(VOCABULARY, unk_token="[UNK]"))
    backend.pre_tokenizer = WhitespaceSplit()
    if pair_template:
        backend.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", pair=pair_template, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", **special)


@pytest.fixture
def bert() -> PreTrainedTokenizerBase:
    """[CLS] A [SEP] B [SEP], with token type ids."""
    return build(
        "[CLS] $A [SEP] $B:1 [SEP]:1",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


@pytest.fixture
def roberta() -> PreTrainedTokenizerBase:
    """[CLS] A [SEP] [SEP] B [SEP], without token type ids."""
    return build(
        "[CLS] $A [SEP] [SEP] $B [SEP]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "attention_mask"],
    )


@pytest.fixture
def bare() -> PreTrainedTokenizerBase:
    """No special tokens, no padding token: as GPT-2."""
    return build(None, model_input_names=["input_ids", "attention_mask"])


class SlowTokenizer(PreTrainedTokenizer):  # type: ignore[misc]
    """The same pieces, found in Python."""

    model_input_names = ("input_ids", "token_type_ids", "attention_mask")

    def __init__(self, **special: Any) -> None:
        self._pieces = WordPiece(VOCABULARY, unk_token="[UNK]")
        super().__init__(unk_token="[UNK]", **special)

    @property
    def vocab_size(self) -> int:
        return len(VOCABULARY)

    def get_vocab(self) -> dict[str, int]:
        return dict(VOCABULARY)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return [token.value for word in text.split() for token in self._pieces.tokenize(word)]

    def _convert_token_to_id(self, token: str) -> int:
        return VOCABULARY[token]

    def _convert_id_to_token(self, index: int) -> str:
        return list(VOCABULARY)[index]


@pytest.fixture
def slow_bert() -> PreTrainedTokenizerBase:
    """As `bert`, but slow."""
    return SlowTokenizer(
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        special_tokens_pattern="cls_sep",
        token_type_ids_pattern="bert_style",
        token_type_ids_include_special_tokens=True,
    )
