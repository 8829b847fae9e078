"""One row of tokens for each row of text: the same for fast and slow tokenizers, for single texts, pairs and words."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from attnprobe.data.labels import IGNORED

#: Enough to keep the tokenizer's threads busy, few enough to keep memory flat.
_ROWS_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRow:
    """One encoded row; every list has one entry a token.

    Attributes:
        ids: the input.
        types: token type ids.
        segments: which text a token is from, -1 for the special tokens that the tokenizer added around the text.
        words: which word a token is the first piece of, -1 for other tokens; None where words do not matter.
        truncated: whether tokens were cut off.
    """

    ids: list[int]
    types: list[int]
    segments: list[int]
    words: list[int] | None = None
    truncated: bool = False

    def word_labels(self, labels: Sequence[int]) -> list[int]:
        """The labels of the words, at the first piece of each; -100 at all other tokens."""
        return [labels[word] if word >= 0 else IGNORED for word in self.words or ()]


def token_rows(
    texts: Sequence[tuple[str, ...]], tokenizer: PreTrainedTokenizerBase, *, max_length: int, words: bool
) -> Iterator[TokenRow]:
    """Encode rows, each cut to `max_length` tokens (special ones included), the longer text of a pair first.

    Args:
        words: whether each row holds the words of one sentence, and not one text or two.
    """
    if not tokenizer.is_fast:
        yield from (_slow_row(row, tokenizer, max_length, words=words) for row in texts)
        return
    for start in range(0, len(texts), _ROWS_AT_ONCE):
        rows = texts[start : start + _ROWS_AT_ONCE]
        firsts = [" ".join(row) if words else row[0] for row in rows]
        pairs = [row[1] for row in rows] if not words and len(rows[0]) == 2 else None
        encoded = tokenizer(firsts, pairs, truncation="longest_first", max_length=max_length, padding=False)
        for row, encoding in zip(rows, encoded.encodings, strict=True):
            yield _fast_row(encoding, row if words else None)


def _fast_row(encoding: Encoding, words: Sequence[str] | None) -> TokenRow:
    segments = [-1 if segment is None else segment for segment in encoding.sequence_ids]
    return TokenRow(
        ids=encoding.ids,
        types=encoding.type_ids,
        segments=segments,
        words=None if words is None else _first_pieces(encoding.offsets, segments, words),
        truncated=bool(encoding.overflowing),
    )


def _first_pieces(offsets: Sequence[tuple[int, int]], segments: Sequence[int], words: Sequence[str]) -> list[int]:
    """Which word each token begins, from its place in the words joined by blanks.

    The sentence is encoded as the text it is, and not word by word, so that tokenizers which mark blanks (RoBERTa,
    SentencePiece) see what they were trained on. A piece may begin with the blank before its word: its last character
    tells which word it is of.
    """
    starts = [0, *accumulate(len(word) + 1 for word in words)]
    firsts: list[int] = []
    seen = -1
    for (begin, end), segment in zip(offsets, segments, strict=True):
        word = bisect_right(starts, end - 1) - 1 if segment >= 0 and end > begin else -1
        firsts.append(word if word > seen else -1)
        seen = max(seen, word)
    return firsts


def _slow_row(row: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int, *, words: bool) -> TokenRow:
    """The same in Python, word by word, since slow tokenizers do not tell where a piece comes from."""
    pieces: list[list[int]] = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in row]
    firsts: list[int] = []
    if words:
        firsts = [number if k == 0 else -1 for number, piece in enumerate(pieces) for k in range(len(piece))]
        pieces = [[token for piece in pieces for token in piece]]
    room = max_length - tokenizer.num_special_tokens_to_add(pair=len(pieces) == 2)
    lengths = _fit([len(piece) for piece in pieces], room)
    left = tokenizer.truncation_side == "left"
    kept = [_cut(piece, length, left=left) for piece, length in zip(pieces, lengths, strict=True)]
    first, second = kept[0], kept[1] if len(kept) == 2 else None
    encoded = tokenizer.prepare_for_model(
        first, second, return_special_tokens_mask=True, return_token_type_ids=True, verbose=False
    )
    special: list[int] = encoded["special_tokens_mask"]
    origins = iter([0] * len(first) + [1] * len(second or ()))
    segments = [-1 if added else next(origins) for added in special]
    word_of = iter(_cut(firsts, len(first), left=left))
    return TokenRow(
        ids=encoded["input_ids"],
        types=encoded["token_type_ids"],
        segments=segments,
        words=[-1 if added else next(word_of) for added in special] if words else None,
        truncated=sum(lengths) < sum(map(len, pieces)),
    )


def _fit(lengths: list[int], room: int) -> list[int]:
    """Shorten the longest until all fit into `room`."""
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    first, second = lengths
    if first + second <= room:
        return lengths
    shorter = min(first, second, room // 2)
    return [shorter, room - shorter] if first <= second else [room - shorter, shorter]


def _cut(items: list[int], length: int, *, left: bool) -> list[int]:
    return items[len(items) - length :] if left else items[:length]
