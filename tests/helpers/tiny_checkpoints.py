"""Writes tiny random checkpoints, with tokenizers made in memory, into a folder. Everything is seeded.

Each function returns the folder, which `open_checkpoint(str(folder))` opens without a network. The weights are drawn
wide (`initializer_range`), so that attention is far from uniform and matters to the output.
"""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    AlbertConfig,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from attnprobe.quiet import quiet_transformers

BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
WORDS = ("the", "a", "of", "and", "is", "not", "good", "bad", "film", "plot", "cat", "dog", "ran", "sat", "very", "it")
"""Whole words of the vocabularies; any other ASCII text is spelt by its characters."""

POSITIONS = 61
LAYERS, HEADS, HEAD_DIM = 2, 3, 4


def _pieces() -> list[str]:
    characters = string.ascii_lowercase + string.digits + string.punctuation
    return [*WORDS, *(c for c in characters if c not in WORDS), *(f"##{c}" for c in characters)]


def wordpiece_tokenizer(folder: Path, specials: tuple[str, ...] = BERT_SPECIALS) -> PreTrainedTokenizerFast:
    """A lower-casing WordPiece tokenizer with [CLS] A [SEP] (B [SEP]), or <s> A </s> (</s> B </s>) for RoBERTa's."""
    vocabulary = {piece: index for index, piece in enumerate([*specials, *_pieces()])}
    bert = specials == BERT_SPECIALS
    unknown = "[UNK]" if bert else "<unk>"
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    first, last = ("[CLS]", "[SEP]") if bert else ("<s>", "</s>")
    ends = ((last, vocabulary[last]), (first, vocabulary[first]))
    tokenizer.post_processor = processors.BertProcessing(*ends) if bert else processors.RobertaProcessing(*ends)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=unknown,
        cls_token=first,
        sep_token=last,
        pad_token="[PAD]" if bert else "<pad>",
        mask_token="[MASK]" if bert else "<mask>",
        model_max_length=512,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"][:: 1 if bert else 2],
    )
    fast.save_pretrained(folder)
    return fast


def byte_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer as GPT-2's: no [CLS], no [SEP], no padding token."""
    alphabet = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = "<|endoftext|>"
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end, unk_token=end)
    fast.save_pretrained(folder)
    return fast


def bert_config(**changes: object) -> BertConfig:
    """A BERT of 2 layers, 3 heads of 4, 61 positions, over the vocabulary of `wordpiece_tokenizer`."""
    sizes: dict[str, object] = {
        "vocab_size": len(BERT_SPECIALS) + len(_pieces()),
        "hidden_size": HEADS * HEAD_DIM,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 29,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.5,
    }
    return BertConfig(**{**sizes, **changes})


def _save(model_class: type[PreTrainedModel], config: object, folder: Path, seed: int) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
    with quiet_transformers():
        model.save_pretrained(folder)
    return folder


def bert_classifier(
    folder: Path,
    *,
    labels: tuple[str, ...] = ("negative", "positive"),
    trained_head: bool = True,
    seed: int = 0,
    **changes: object,
) -> Path:
    """A BERT sequence classifier; without `trained_head` its file lacks the head's weights."""
    config = bert_config(
        **changes,
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
        problem_type="regression" if len(labels) == 1 else "single_label_classification",
    )
    _save(BertForSequenceClassification, config, folder, seed)
    wordpiece_tokenizer(folder)
    if not trained_head:
        drop_tensors(folder, "classifier.")
    return folder


def bert_token_classifier(folder: Path, *, labels: tuple[str, ...] = ("O", "B-PER", "I-PER"), seed: int = 0) -> Path:
    """A BERT token classifier."""
    config = bert_config(
        id2label=dict(enumerate(labels)), label2id={label: index for index, label in enumerate(labels)}
    )
    _save(BertForTokenClassification, config, folder, seed)
    wordpiece_tokenizer(folder)
    return folder


def bert_masked_lm(folder: Path, *, seed: int = 0) -> Path:
    """A BERT masked language model, with tied embeddings and without a pooler."""
    _save(BertForMaskedLM, bert_config(), folder, seed)
    wordpiece_tokenizer(folder)
    return folder


def bert_base(folder: Path, *, seed: int = 0) -> Path:
    """A BERT without a head."""
    _save(BertModel, bert_config(), folder, seed)
    wordpiece_tokenizer(folder)
    return folder


def gpt2_causal_lm(folder: Path, *, seed: int = 0) -> Path:
    """A GPT-2 language model over bytes."""
    config = GPT2Config(
        vocab_size=257,
        n_embd=HEADS * HEAD_DIM,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=POSITIONS,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.5,
    )
    _save(GPT2LMHeadModel, config, folder, seed)
    byte_tokenizer(folder)
    return folder


def roberta_masked_lm(folder: Path, *, seed: int = 0) -> Path:
    """A RoBERTa masked language model: 63 rows of positions, of which 61 hold tokens."""
    config = RobertaConfig(
        **{
            **bert_config().to_dict(),
            "model_type": "roberta",
            "vocab_size": len(ROBERTA_SPECIALS) + len(_pieces()),
            "max_position_embeddings": POSITIONS + 2,
            "pad_token_id": ROBERTA_SPECIALS.index("<pad>"),
            "bos_token_id": ROBERTA_SPECIALS.index("<s>"),
            "eos_token_id": ROBERTA_SPECIALS.index("</s>"),
            "type_vocab_size": 1,
        }
    )
    _save(RobertaForMaskedLM, config, folder, seed)
    wordpiece_tokenizer(folder, ROBERTA_SPECIALS)
    return folder


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of `folder`'s model.safetensors."""
    return {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}


def write_tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Replace `folder`'s model.safetensors."""
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def drop_tensors(folder: Path, prefix: str) -> None:
    """Take the tensors whose names start with `prefix` out of `folder`'s model.safetensors."""
    tensors = read_tensors(folder)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
    assert len(kept) < len(tensors)
    write_tensors(folder, kept)


def change_config(folder: Path, **changes: object) -> None:
    """Set keys of `folder`'s config.json; None takes a key out."""
    path = folder / "config.json"
    raw = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))


def as_pickle(folder: Path) -> None:
    """Turn `folder`'s weights into a pytorch_model.bin."""
    torch.save(read_tensors(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def as_shards(folder: Path) -> None:
    """Turn `folder`'s weights, a BERT classifier's, into several files and an index."""
    model = BertForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    with quiet_transformers():
        model.save_pretrained(folder, max_shard_size="5KB")


def albert(folder: Path, model: type[PreTrainedModel]) -> Path:
    """Five sites of one shared layer, without a tokenizer; `model` is a class of ALBERT's family."""
    config = AlbertConfig(
        vocab_size=131,
        embedding_size=8,
        hidden_size=12,
        num_hidden_layers=5,
        num_attention_heads=3,
        intermediate_size=29,
    )
    with quiet_transformers():
        model(config).save_pretrained(folder)
    return folder


def llama_causal_lm(folder: Path, *, vocabulary: int) -> Path:
    """Four query heads on two key-value heads, with the byte tokenizer."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=29,
        max_position_embeddings=59,
    )
    with quiet_transformers():
        LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer(folder)
    return folder
