"""Texts of the slow references as a padded batch, and the texts that most tests of masks use."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnprobe.data.positions import Positions
from attnprobe.masks.tokens import TokenRules
from tests.helpers.padded import real
from tests.references.masks import Text

PAD, CLS, SEP = 0, 2, 3

PAIR = Text(ids=(CLS, 11, 12, 13, 14, SEP, 21, 22, 23, 24, 25, 26, SEP), cls=CLS, sep=SEP)
SINGLE = Text(ids=(CLS, 31, 32, 33, 34, 35, SEP), cls=CLS, sep=SEP)
SHORT_PAIR = Text(ids=(CLS, 8, SEP, 10, SEP), cls=CLS, sep=SEP)
WORD = Text(ids=(CLS, 41, SEP), cls=CLS, sep=SEP)
BARE = Text(ids=(CLS, SEP), cls=CLS, sep=SEP)
TEXTS = (SINGLE, PAIR, BARE, SHORT_PAIR, WORD)
"""13, 7, 5, 3 and 2 tokens, the longest not first."""

CAUSAL = tuple(Text(ids=tuple(range(50, 50 + n)), causal=True) for n in (7, 11, 1, 5))
PLAIN = tuple(Text(ids=text.ids) for text in TEXTS)
"""The same tokens to a tokenizer without [CLS] and [SEP]."""


def batch(texts: Sequence[Text], *, side: str = "right", padding: int = 0, pad: int = PAD) -> tuple[Tensor, Tensor]:
    """`input_ids` and `attention_mask`, padded to the longest and `padding` more."""
    ids = torch.full((len(texts), max(len(text.ids) for text in texts) + padding), pad)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        where = real(len(text.ids), ids.shape[1], side)
        ids[row, where], mask[row, where] = torch.tensor(text.ids), 1
    return ids, mask


def rules_of(text: Text) -> TokenRules:
    """How a text's positions are told."""
    return TokenRules(cls_id=text.cls, sep_id=text.sep, causal=text.causal)


def positions_of(
    texts: Sequence[Text], *, side: str = "right", padding: int = 0, pad: int = PAD, window: int = 4
) -> Positions:
    """The positions of texts that are alike in all but their tokens."""
    ids, mask = batch(texts, side=side, padding=padding, pad=pad)
    return rules_of(texts[0]).positions(ids, mask, window=window)


def own(tokens: Tensor, text: Text, side: str) -> Tensor:
    """A text's part of its row of the batch, (tokens, ...) or (..., tokens, tokens): without padding."""
    where = real(len(text.ids), tokens.shape[-1], side)
    return tokens[where] if tokens.dim() == 1 else tokens[..., where, where]
