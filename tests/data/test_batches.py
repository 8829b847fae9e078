"""Tokens and batches, against rows worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import ByteLevel as ByteLevelProcessor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from attnprobe.data.batches import Batch, encode
from attnprobe.data.sources import Examples, Labels
from attnprobe.data.tasks import Kind
from attnprobe.errors import DataError, UsageError


def examples(*texts: tuple[str, ...], kind: Kind = "text", labels: Labels | None = None) -> Examples:
    return Examples.of(kind=kind, texts=list(texts), labels=labels, source="data")


def only(batches: Any) -> Batch:
    (batch,) = batches
    assert isinstance(batch, Batch)
    return batch


@pytest.fixture(params=["bert", "slow_bert"])
def either(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    """A fast and a slow tokenizer that must agree."""
    return request.getfixturevalue(request.param)


def test_single_texts(either: PreTrainedTokenizerBase) -> None:
    encoded = encode(examples(("the fox",), ("the foxes run home",)), either, max_length=16)
    batch = only(encoded.batches(8))
    assert encoded.lengths == [4, 7]
    assert (len(encoded), encoded.truncated) == (2, 0)
    assert batch.indices.tolist() == [1, 0]
    assert batch.inputs["input_ids"].tolist() == [[2, 4, 5, 6, 7, 8, 3], [2, 4, 5, 3, 0, 0, 0]]
    assert batch.inputs["attention_mask"].tolist() == [[1] * 7, [1, 1, 1, 1, 0, 0, 0]]
    assert batch.inputs["token_type_ids"].tolist() == [[0] * 7] * 2
    assert batch.special.int().tolist() == [[1, 0, 0, 0, 0, 0, 1], [1, 0, 0, 1, 0, 0, 0]]
    assert batch.segments is None
    assert batch.labels is None
    assert {tensor.dtype for tensor in batch.inputs.values()} == {torch.int64}
    assert batch.special.dtype == torch.bool


def test_pairs(either: PreTrainedTokenizerBase) -> None:
    encoded = encode(examples(("the fox", "run"), ("fox", "run home now")), either, max_length=16)
    batch = only(encoded.batches(2))
    assert batch.inputs["input_ids"].tolist() == [[2, 5, 3, 7, 8, 9, 3], [2, 4, 5, 3, 7, 3, 0]]
    assert batch.inputs["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 0]]
    assert batch.segments is not None
    assert batch.segments.tolist() == [[-1, 0, -1, 1, 1, 1, -1], [-1, 0, 0, -1, 1, -1, -1]]
    assert batch.special.int().tolist() == [[1, 0, 1, 0, 0, 0, 1], [1, 0, 0, 1, 0, 1, 0]]


def test_pairs_with_a_double_separator(roberta: PreTrainedTokenizerBase) -> None:
    batch = only(encode(examples(("the fox", "run")), roberta, max_length=16).batches(1))
    assert batch.inputs.keys() == {"input_ids", "attention_mask"}
    assert batch.inputs["input_ids"].tolist() == [[2, 4, 5, 3, 3, 7, 3]]
    assert batch.segments is not None
    assert batch.segments.tolist() == [[-1, 0, 0, -1, -1, 1, -1]]
    assert batch.special.int().tolist() == [[1, 0, 0, 1, 1, 0, 1]]


def test_without_special_and_padding_tokens(bare: PreTrainedTokenizerBase) -> None:
    batch = only(encode(examples(("the",), ("fox run",)), bare, max_length=16).batches(2))
    assert batch.inputs["input_ids"].tolist() == [[5, 7], [4, 0]]
    assert batch.inputs["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert not batch.special.any()


def test_padding_takes_the_tokenizers_own_token() -> None:
    backend = Tokenizer(BPE({"a": 0, "b": 1, "<p>": 2}, []))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<p>", padding_side="left")
    batch = only(encode(examples(("ab",), ("b",)), tokenizer, max_length=4).batches(2))
    assert batch.inputs["input_ids"].tolist() == [[0, 1], [1, 2]]


def test_a_special_token_written_in_the_text_is_text(either: PreTrainedTokenizerBase) -> None:
    batch = only(encode(examples(("the [SEP] fox",)), either, max_length=16).batches(1))
    assert batch.inputs["input_ids"].tolist() == [[2, 4, 3, 5, 3]]
    assert batch.special.int().tolist() == [[1, 0, 0, 0, 1]]


def test_truncation_is_counted(either: PreTrainedTokenizerBase) -> None:
    encoded = encode(examples(("the fox run home",), ("the fox",), ("the fox run",)), either, max_length=5)
    assert encoded.truncated == 1
    assert encoded.lengths == [5, 4, 5]
    batch = encoded.batch([0])
    assert batch.inputs["input_ids"].tolist() == [[2, 4, 5, 7, 3]]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("the the the the", "fox", (3, 1)),
        ("the", "fox fox fox fox", (1, 3)),
        ("the the the", "fox fox fox", (2, 2)),
        ("the the the the", "fox fox", (2, 2)),
        ("the the", "fox fox", (2, 2)),
    ],
)
def test_the_longer_text_of_a_pair_is_cut_first(
    either: PreTrainedTokenizerBase, first: str, second: str, kept: tuple[int, int]
) -> None:
    encoded = encode(examples((first, second)), either, max_length=7)
    segments = encoded.batch([0]).segments
    assert segments is not None
    assert (int((segments == 0).sum()), int((segments == 1).sum())) == kept
    assert encoded.truncated == int(len(first.split()) + len(second.split()) > 4)


def test_truncation_on_the_tokenizers_side(either: PreTrainedTokenizerBase) -> None:
    either.truncation_side = "left"
    batch = encode(examples(("the fox run home",)), either, max_length=4).batch([0])
    assert batch.inputs["input_ids"].tolist() == [[2, 7, 8, 3]]


def test_words_carry_their_label_at_the_first_piece(either: PreTrainedTokenizerBase) -> None:
    rows = examples(
        ("foxes", "under", "home"), ("the", "run"), kind="token_classification", labels=[[1, 2, -100], [3, 0]]
    )
    encoded = encode(rows, either, max_length=16)
    batch = only(encoded.batches(2))
    assert batch.inputs["input_ids"].tolist() == [[2, 5, 6, 10, 11, 8, 3], [2, 4, 7, 3, 0, 0, 0]]
    assert batch.labels is not None
    assert batch.labels.dtype == torch.int64
    assert batch.labels.tolist() == [
        [-100, 1, -100, 2, -100, -100, -100],
        [-100, 3, 0, -100, -100, -100, -100],
    ]
    cut = encode(rows, either, max_length=5)
    assert cut.truncated == 1
    labels = cut.batch([0]).labels
    assert labels is not None
    assert labels.tolist() == [[-100, 1, -100, 2, -100]]


def test_two_words_are_not_a_pair(either: PreTrainedTokenizerBase) -> None:
    batch = encode(examples(("the", "run"), kind="token_classification"), either, max_length=8).batch([0])
    assert batch.inputs["input_ids"].tolist() == [[2, 4, 7, 3]]
    assert batch.segments is None
    assert batch.labels is None


def test_words_without_pieces_lose_their_label(either: PreTrainedTokenizerBase) -> None:
    rows = examples(("the", "", "run"), kind="token_classification", labels=[[1, 2, 3]])
    labels = encode(rows, either, max_length=8).batch([0]).labels
    assert labels is not None
    assert labels.tolist() == [[-100, 1, 3, -100]]


@pytest.mark.parametrize("trim_offsets", [True, False])
def test_pieces_that_begin_with_a_blank(trim_offsets: bool) -> None:
    vocabulary = {piece: index for index, piece in enumerate(["a", "b", "c", "Ġ", "Ġc", "Ġb"])}
    backend = Tokenizer(BPE(vocabulary, [("Ġ", "c")]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.post_processor = ByteLevelProcessor(trim_offsets=trim_offsets)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    rows = examples(("ab", "c", "ba"), kind="token_classification", labels=[[1, 2, 3]])
    batch = encode(rows, tokenizer, max_length=9).batch([0])
    assert batch.inputs["input_ids"].tolist() == [[0, 1, 4, 3, 1, 0]]
    assert batch.labels is not None
    assert batch.labels.tolist() == [[1, -100, 2, -100, 3, -100]]


def test_row_labels_follow_their_rows(bert: PreTrainedTokenizerBase) -> None:
    rows: tuple[tuple[str, ...], ...] = (("the",), ("the fox",), ("the fox run",))
    classes = only(encode(examples(*rows, kind="classification", labels=[0, -1, 2]), bert, max_length=8).batches(3))
    assert classes.labels is not None
    assert classes.labels.dtype == torch.int64
    assert classes.labels.tolist() == [2, -1, 0]
    values = encode(examples(*rows, kind="regression", labels=[0.5, float("nan"), 2.5]), bert, max_length=8)
    labels = values.batch([2, 1, 0]).labels
    assert labels is not None
    assert labels.dtype == torch.float32
    assert labels[[0, 2]].tolist() == [2.5, 0.5]
    assert labels[1].isnan()


def test_plan_is_longest_first_and_stable(bert: PreTrainedTokenizerBase) -> None:
    lengths = [1, 3, 2, 3, 1, 2, 3]
    encoded = encode(examples(*((" ".join(["the"] * n),) for n in lengths)), bert, max_length=16)
    assert encoded.plan(3) == [[1, 3, 6], [2, 5, 0], [4]]
    assert [batch.indices.tolist() for batch in encoded.batches(3)] == encoded.plan(3)
    assert encoded.plan(100) == [[1, 3, 6, 2, 5, 0, 4]]


def test_max_cells_splits_batches(bert: PreTrainedTokenizerBase) -> None:
    encoded = encode(examples(*((" ".join(["the"] * n),) for n in [3, 3, 1, 1, 1])), bert, max_length=16)
    assert encoded.lengths == [5, 5, 3, 3, 3]
    assert encoded.plan(4, max_cells=50) == [[0, 1], [2, 3, 4]]
    assert encoded.plan(4, max_cells=49) == [[0], [1], [2, 3, 4]]
    assert encoded.plan(4, max_cells=49, cells_per_pair=2) == [[0], [1], [2, 3], [4]]
    assert encoded.plan(4, max_cells=1) == [[0], [1], [2], [3], [4]]


def test_batching_does_not_change_a_row(bert: PreTrainedTokenizerBase) -> None:
    encoded = encode(examples(("the", "fox"), ("run home now", "under")), bert, max_length=16)
    together, alone = encoded.batch([1, 0]), encoded.batch([0])
    length = encoded.lengths[0]
    for name, tensor in alone.inputs.items():
        assert torch.equal(together.inputs[name][1:, :length], tensor)
        assert not together.inputs[name][1:, length:].any()


def test_to_moves_everything(bert: PreTrainedTokenizerBase) -> None:
    rows = examples(("the", "fox"), kind="classification", labels=[1])
    batch = encode(rows, bert, max_length=16).batch([0]).to("meta")
    tensors = [batch.indices, batch.labels, batch.special, batch.segments, *batch.inputs.values()]
    assert {tensor.device.type for tensor in tensors if tensor is not None} == {"meta"}
    assert len(batch) == 1
    assert encode(examples(("the",)), bert, max_length=16).batch([0]).to("meta").labels is None


def test_rows_without_tokens(bare: PreTrainedTokenizerBase, bert: PreTrainedTokenizerBase) -> None:
    with pytest.raises(DataError, match=r"row 2 of data has no tokens \(its text is empty\): remove the row"):
        encode(examples(("the",), (" ",)), bare, max_length=4)
    assert encode(examples(("",)), bert, max_length=4).lengths == [2]


def test_options_that_cannot_be_meant(either: PreTrainedTokenizerBase) -> None:
    with pytest.raises(UsageError, match=r"maximum length must be at least 3 \(special tokens included\), not 2"):
        encode(examples(("the",)), either, max_length=2)
    with pytest.raises(UsageError, match="maximum length must be at least 5"):
        encode(examples(("the", "fox")), either, max_length=4)
    encoded = encode(examples(("the",)), either, max_length=3)
    with pytest.raises(UsageError, match="batch_size must be at least 1, not 0"):
        encoded.plan(0)
    with pytest.raises(UsageError, match="max_cells must be at least 1, not 0"):
        list(encoded.batches(1, max_cells=0))


def test_no_rows(bert: PreTrainedTokenizerBase) -> None:
    assert list(encode(examples(), bert, max_length=8).batches(2)) == []
