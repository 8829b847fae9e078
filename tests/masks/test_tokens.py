"""How a mask tells positions: by token id alone, the same on either side of the padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from attnprobe.errors import CheckpointError, UsageError
from attnprobe.masks.tokens import TokenRules
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.ragged import CAUSAL, CLS, PLAIN, SEP, TEXTS, batch, own, positions_of, rules_of
from tests.helpers.tolerance import assert_identical
from tests.references.masks import Text

SIDES = pytest.mark.parametrize("side", ["right", "left"])
ROBERTA = (
    Text(ids=(0, 11, 12, 2, 2, 21, 22, 23, 2), cls=0, sep=2),
    Text(ids=(0, 11, 2), cls=0, sep=2),
    Text(ids=(0, 2, 2, 21, 2), cls=0, sep=2),
)
"""<s> A </s></s> B </s>; the last pair's first text is empty."""


@SIDES
@pytest.mark.parametrize("texts", [TEXTS, ROBERTA, PLAIN, CAUSAL], ids=["bert", "roberta", "plain", "causal"])
def test_every_token_against_its_text_alone(texts: tuple[Text, ...], side: str) -> None:
    at = positions_of(texts, side=side, padding=3, pad=1)
    for row, text in enumerate(texts):
        count = len(text.ids)
        assert own(at.token[row], text, side).all()
        assert int(at.token[row].sum()) == count
        assert own(at.index[row], text, side).tolist() == list(range(count))
        cls = [i == 0 for i in range(count)] if text.causal else [token == text.cls for token in text.ids]
        assert own(at.cls[row], text, side).tolist() == cls
        assert own(at.sep[row], text, side).tolist() == [token == text.sep for token in text.ids]
        special = [token in (text.cls, text.sep) for token in text.ids]
        assert own(at.special[row], text, side).tolist() == special
        assert at.segments is not None
        assert own(at.segments[row], text, side).tolist() == [text.segment(i) for i in range(count)]
        for flag in (at.cls, at.sep, at.special):
            assert not (flag[row] & ~at.token[row]).any()
        assert (at.segments[row][~at.token[row]] == -1).all()
        cells = {(i, j) for i, j in own(at.valid[row], text, side).nonzero().tolist()}
        assert cells == set(text.cells())
        assert int(at.valid[row].sum()) == len(cells)


@SIDES
def test_padding_by_a_special_token_is_none(side: str) -> None:
    """GPT-like tokenizers pad with </s>."""
    for pad in (CLS, SEP):
        one, other = (positions_of(TEXTS, side=side, padding=5, pad=token) for token in (pad, 1))
        assert other.segments is not None
        assert one.segments is not None
        assert_identical(one.cls, other.cls)
        assert_identical(one.sep, other.sep)
        assert_identical(one.segments, other.segments)


def test_without_ids_no_special_token_is_told() -> None:
    _, mask = batch(TEXTS, padding=1)
    at = rules_of(TEXTS[0]).positions(None, mask)
    assert not (at.cls | at.sep | at.special).any()
    assert at.segments is not None
    assert set(at.segments[mask.bool()].tolist()) == {0}
    causal = rules_of(CAUSAL[0]).positions(None, mask)
    assert causal.cls.nonzero().tolist() == [[row, 0] for row in range(len(TEXTS))]


def test_only_one_of_the_two_is_known() -> None:
    ids, mask = batch(TEXTS[:1])
    no_cls = TokenRules(cls_id=None, sep_id=SEP, causal=False).positions(ids, mask)
    assert not no_cls.cls.any()
    assert no_cls.sep[0].nonzero()[:, 0].tolist() == [6]
    no_sep = TokenRules(cls_id=CLS, sep_id=None, causal=False).positions(ids, mask)
    assert not no_sep.sep.any()
    assert no_sep.segments is not None
    assert no_sep.segments[0].tolist() == [-1, 0, 0, 0, 0, 0, 0]


def test_the_window_is_handed_on() -> None:
    assert positions_of(TEXTS, window=3).window == 3
    with pytest.raises(UsageError, match="at least 2 tokens"):
        positions_of(TEXTS, window=1)


def test_of_tokenizers(tmp_path: Path) -> None:
    bert = tiny.wordpiece_tokenizer(tmp_path)
    roberta = tiny.wordpiece_tokenizer(tmp_path, tiny.ROBERTA_SPECIALS)
    plain = tiny.byte_tokenizer(tmp_path)
    assert TokenRules.of(bert, causal=False) == TokenRules(cls_id=2, sep_id=3, causal=False)
    assert TokenRules.of(roberta, causal=False) == TokenRules(cls_id=0, sep_id=2, causal=False)
    nothing = TokenRules(cls_id=None, sep_id=None, causal=False)
    assert TokenRules.of(plain, causal=False) == TokenRules.of(None, causal=False) == nothing
    causal = TokenRules(cls_id=None, sep_id=None, causal=True)
    assert TokenRules.of(bert, causal=True) == TokenRules.of(None, causal=True) == causal


@pytest.mark.parametrize("specials", [tiny.BERT_SPECIALS, tiny.ROBERTA_SPECIALS], ids=["bert", "roberta"])
def test_of_what_tokenizers_write(specials: tuple[str, ...], tmp_path: Path) -> None:
    """Segments and special tokens are those that the tokenizer itself tells."""
    tokenizer: PreTrainedTokenizerFast = tiny.wordpiece_tokenizer(tmp_path, specials)
    rules = TokenRules.of(tokenizer, causal=False)
    pairs = [("the cat", "sat"), ("a", "dog ran and ran")]
    for side in ("right", "left"):
        told = tokenizer(
            [first for first, _ in pairs],
            [second for _, second in pairs],
            padding=True,
            padding_side=side,
            return_tensors="pt",
            return_special_tokens_mask=True,
        )
        at = rules.positions(told["input_ids"], told["attention_mask"])
        assert_identical(at.special, told["special_tokens_mask"].bool() & told["attention_mask"].bool())
        own_segments = [[-1 if part is None else part for part in told.sequence_ids(row)] for row in range(len(pairs))]
        assert at.segments is not None
        assert at.segments.tolist() == own_segments


@pytest.mark.parametrize("rules", [TokenRules(cls_id=2, sep_id=None, causal=False), rules_of(CAUSAL[0])], ids=str)
def test_there_and_back(rules: TokenRules) -> None:
    assert TokenRules.from_dict(rules.as_dict()) == rules


GOOD: dict[str, Any] = rules_of(TEXTS[0]).as_dict()
MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, r"^token rules are cls_id, sep_id, causal, not \{\}: export again$"),
    "one too many": ({**GOOD, "eos_id": 3}, "^token rules are cls_id, sep_id, causal, not "),
    "one too few": ({k: v for k, v in GOOD.items() if k != "sep_id"}, "^token rules are cls_id, sep_id, causal, not "),
    "no truth": ({**GOOD, "causal": 1}, "^token rules are cls_id, sep_id, causal, not "),
    "text": (
        {**GOOD, "cls_id": "2"},
        r"^token ids are whole numbers or null, not \['2', 3\]: export the model again$",
    ),
    "a switch": ({**GOOD, "sep_id": True}, r"^token ids are whole numbers or null, not \[2, True\]"),
    "no whole number": ({**GOOD, "sep_id": 3.0}, r"^token ids are whole numbers or null, not \[2, 3.0\]"),
}


@pytest.mark.parametrize(("values", "text"), MALFORMED.values(), ids=MALFORMED)
def test_what_a_file_may_not_say(values: dict[str, Any], text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        TokenRules.from_dict(values)


def test_positions_follow_their_tensors() -> None:
    """On whatever device: nothing is made elsewhere."""
    ids, mask = (tensor.to("meta") for tensor in batch(TEXTS))
    at = rules_of(TEXTS[0]).positions(ids, mask)
    assert at.segments is not None
    for tensor in (at.token, at.index, at.cls, at.sep, at.special, at.segments, at.valid):
        assert tensor.device == torch.device("meta")
