"""Opening checkpoints: which class and head, in which dtype, with which length and notes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from transformers.utils import logging as transformers_logging

from attnprobe.checkpoint import Checkpoint, open_checkpoint
from attnprobe.errors import CheckpointError
from attnprobe.quiet import quiet_transformers
from tests.helpers import tiny_checkpoints as tiny


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A sound two-class BERT, to be read or to be spoilt."""
    return tiny.bert_classifier(tmp_path / "classifier")


def _codes(checkpoint: Checkpoint) -> list[str]:
    return [note.code for note in checkpoint.notes]


def test_opens_what_transformers_opens(classifier: Path) -> None:
    checkpoint = open_checkpoint(str(classifier))
    with quiet_transformers():
        expected = transformers.BertForSequenceClassification.from_pretrained(classifier)
    assert type(checkpoint.model) is type(expected)
    assert not any(module.training for module in checkpoint.model.modules())
    for (name, actual), (_, tensor) in zip(
        checkpoint.model.state_dict().items(), expected.state_dict().items(), strict=True
    ):
        assert torch.equal(actual, tensor), name
    assert (checkpoint.name, checkpoint.path) == (str(classifier), classifier)
    assert checkpoint.head.kind == "sequence_classification"
    assert checkpoint.head.trained
    assert checkpoint.head.num_labels == 2
    assert checkpoint.head.label2id == {"negative": 0, "positive": 1}
    assert checkpoint.usable_length == tiny.POSITIONS
    assert checkpoint.tokenizer is not None
    assert checkpoint.notes == ()


@pytest.mark.parametrize(
    ("write", "class_name", "kind"),
    [
        (tiny.bert_token_classifier, "BertForTokenClassification", "token_classification"),
        (tiny.bert_masked_lm, "BertForMaskedLM", "masked_lm"),
        (tiny.gpt2_causal_lm, "GPT2LMHeadModel", "causal_lm"),
        (tiny.roberta_masked_lm, "RobertaForMaskedLM", "masked_lm"),
        (tiny.bert_base, "BertModel", "none"),
    ],
)
def test_heads(write: Callable[[Path], Path], class_name: str, kind: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write(tmp_path)))
    assert type(checkpoint.model).__name__ == class_name
    assert checkpoint.head.kind == kind
    assert checkpoint.head.trained == (kind != "none")
    assert checkpoint.head.num_labels == (3 if kind == "token_classification" else None)
    assert checkpoint.usable_length == tiny.POSITIONS


@pytest.mark.parametrize(
    ("labels", "problem_type", "kind", "codes"),
    [
        (1, "regression", "regression", []),
        (1, None, "regression", ["problem_type_absent"]),
        (3, None, "sequence_classification", ["problem_type_absent"]),
        (3, "regression", "regression", []),
        (3, "multi_label_classification", "none", ["head_not_used"]),
    ],
)
def test_problem_types(labels: int, problem_type: str | None, kind: str, codes: list[str], tmp_path: Path) -> None:
    tiny.bert_classifier(tmp_path, labels=("a", "b", "c")[:labels])
    tiny.change_config(tmp_path, problem_type=problem_type)
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.head.kind == kind
    assert _codes(checkpoint) == codes


def test_a_random_head_is_dropped_and_its_body_kept(tmp_path: Path) -> None:
    untrained = open_checkpoint(str(tiny.bert_classifier(tmp_path / "a", trained_head=False)))
    trained = open_checkpoint(str(tiny.bert_classifier(tmp_path / "b")))
    assert type(untrained.model).__name__ == "BertModel"
    assert untrained.head.kind == "none"
    assert not untrained.head.trained
    assert untrained.head.missing_keys == ("classifier.bias", "classifier.weight")
    assert _codes(untrained) == ["random_head"]
    assert (
        "BertForSequenceClassification head missing from the files: 2, e.g. classifier.bias" in untrained.notes[0].text
    )
    body = trained.model.base_model.state_dict()
    assert all(torch.equal(tensor, body[name]) for name, tensor in untrained.model.state_dict().items())


def test_a_missing_pooler_makes_a_classifier_untrained_and_is_left_out(classifier: Path) -> None:
    tiny.drop_tensors(classifier, "bert.pooler.")
    checkpoint = open_checkpoint(str(classifier))
    assert checkpoint.head.missing_keys == ("bert.pooler.dense.bias", "bert.pooler.dense.weight")
    assert checkpoint.model.pooler is None
    assert _codes(checkpoint) == ["random_head"]


def test_no_architectures_means_the_base_model(tmp_path: Path) -> None:
    tiny.change_config(tiny.bert_masked_lm(tmp_path), architectures=None)
    checkpoint = open_checkpoint(str(tmp_path))
    assert type(checkpoint.model).__name__ == "BertModel"
    assert checkpoint.model.pooler is None
    assert _codes(checkpoint) == ["unused_weights"]
    assert "weights in the files without a place in the model: 5, e.g. cls.predictions.bias" in checkpoint.notes[0].text


def test_pretraining_heads_are_opened_for_their_language_model(tmp_path: Path) -> None:
    tiny.change_config(tiny.bert_masked_lm(tmp_path), architectures=["BertForPreTraining"])
    checkpoint = open_checkpoint(str(tmp_path))
    assert type(checkpoint.model).__name__ == "BertForMaskedLM"
    assert checkpoint.head.kind == "masked_lm"


def test_other_heads_are_not_used(classifier: Path) -> None:
    tiny.change_config(classifier, architectures=["BertForQuestionAnswering"])
    checkpoint = open_checkpoint(str(classifier))
    assert type(checkpoint.model).__name__ == "BertModel"
    assert checkpoint.head.kind == "none"
    assert _codes(checkpoint) == ["head_not_used"]


def test_the_encoder_of_an_encoder_decoder_with_relative_positions(tmp_path: Path) -> None:
    config = transformers.T5Config(
        vocab_size=131, d_model=12, d_kv=4, d_ff=29, num_layers=2, num_heads=3, decoder_start_token_id=0
    )
    with quiet_transformers():
        transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path), need_tokenizer=False)
    assert type(checkpoint.model).__name__ == "T5EncoderModel"
    assert checkpoint.usable_length == 512
    assert {"head_not_used", "length_assumed", "missing_tokenizer"} <= set(_codes(checkpoint))


@pytest.mark.parametrize(("dtype", "expected"), [("float64", torch.float64), ("bfloat16", torch.bfloat16)])
def test_dtype(dtype: str, expected: torch.dtype, classifier: Path) -> None:
    checkpoint = open_checkpoint(str(classifier), dtype=dtype)
    assert {parameter.dtype for parameter in checkpoint.model.parameters()} == {expected}


def test_half_precision_files_are_computed_in_single(classifier: Path) -> None:
    halves = {name: tensor.half() for name, tensor in tiny.read_tensors(classifier).items()}
    tiny.write_tensors(classifier, halves)
    checkpoint = open_checkpoint(str(classifier))
    assert {parameter.dtype for parameter in checkpoint.model.parameters()} == {torch.float32}
    assert checkpoint.weights is not None
    assert checkpoint.weights.dtypes == ("float16",)
    assert _codes(checkpoint) == ["half_precision_file"]


@pytest.mark.parametrize(("rewrite", "code"), [(tiny.as_shards, "sharded"), (tiny.as_pickle, "pickle_weights")])
def test_other_weight_files_hold_the_same_model(rewrite: Callable[[Path], None], code: str, classifier: Path) -> None:
    expected = open_checkpoint(str(classifier)).model.state_dict()
    rewrite(classifier)
    checkpoint = open_checkpoint(str(classifier))
    assert _codes(checkpoint) == [code]
    actual = checkpoint.model.state_dict()
    assert all(torch.equal(tensor, actual[name]) for name, tensor in expected.items())


def test_digest_is_of_the_files_and_not_of_their_place(classifier: Path, tmp_path: Path) -> None:
    digest = open_checkpoint(str(classifier)).digest
    assert len(digest) == 64
    assert open_checkpoint(str(shutil.copytree(classifier, tmp_path / "copy"))).digest == digest
    assert open_checkpoint(str(tiny.bert_classifier(tmp_path / "other", seed=1))).digest != digest
    tiny.change_config(classifier, layer_norm_eps=1e-6)
    assert open_checkpoint(str(classifier)).digest != digest


@pytest.mark.parametrize(("stated", "usable"), [(17, 17), (512, tiny.POSITIONS), (int(1e30), tiny.POSITIONS)])
def test_the_tokenizer_may_limit_the_length(stated: int, usable: int, classifier: Path) -> None:
    path = classifier / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": stated}))
    assert open_checkpoint(str(classifier)).usable_length == usable


def test_notes_of_a_roberta(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(tiny.roberta_masked_lm(tmp_path)))
    assert _codes(checkpoint) == ["position_offset", "tied_weights"]
    assert checkpoint.notes[0].text == "the position table says 63, and holds 61 tokens: 2 rows are for padding"
    assert "roberta.embeddings.word_embeddings.weight = lm_head.decoder.weight" in checkpoint.notes[1].text


def test_notes_of_a_gpt2(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(tiny.gpt2_causal_lm(tmp_path)))
    assert _codes(checkpoint) == ["tied_weights", "no_cls", "no_sep", "no_pad"]


def test_notes_of_shared_layers_and_of_a_missing_tokenizer(tmp_path: Path) -> None:
    tiny.albert(tmp_path, transformers.AlbertModel)
    (tmp_path / "vocab.txt").write_text("of another family\n")
    checkpoint = open_checkpoint(str(tmp_path), need_tokenizer=False)
    assert checkpoint.tokenizer is None
    assert _codes(checkpoint) == ["shared_layers", "missing_tokenizer"]
    assert checkpoint.notes[0].text.startswith("5 layers share the weights of 1:")


def test_notes_of_grouped_queries_and_of_too_large_a_tokenizer(tmp_path: Path) -> None:
    tiny.llama_causal_lm(tmp_path, vocabulary=131)
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.usable_length == 59
    assert _codes(checkpoint) == ["kv_groups", "no_cls", "no_sep", "no_pad", "tokenizer_larger"]
    assert checkpoint.notes[0].text.startswith("4 query heads share 2 key-value heads")
    assert "257 tokens, the model 131" in checkpoint.notes[-1].text


_REMOTE = """
from transformers import BertConfig, BertModel

class OwnConfig(BertConfig):
    model_type = "own"

class OwnModel(BertModel):
    config_class = OwnConfig
"""


def test_remote_code_runs_only_when_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classifier: Path) -> None:
    cache = tmp_path / "modules"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(cache))
    monkeypatch.syspath_prepend(str(cache))
    folder = tiny.bert_base(tmp_path / "checkpoint")
    (folder / "own.py").write_text(_REMOTE)
    code = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    tiny.change_config(folder, model_type="own", architectures=["OwnModel"], auto_map=code)
    with pytest.raises(CheckpointError, match="--trust-remote-code"):
        open_checkpoint(str(folder))
    checkpoint = open_checkpoint(str(folder), trust_remote_code=True)
    assert type(checkpoint.model).__name__ == "OwnModel"
    assert _codes(checkpoint) == ["remote_code"]
    assert open_checkpoint(str(classifier), trust_remote_code=True).notes == ()


def test_remote_code_is_not_run_where_transformers_has_the_class(classifier: Path) -> None:
    (classifier / "own.py").write_text(f"import os\nos.mkdir({str(classifier / 'executed')!r})\n")
    tiny.change_config(classifier, auto_map={"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"})
    checkpoint = open_checkpoint(str(classifier), trust_remote_code=True)
    assert type(checkpoint.model).__name__ == "BertForSequenceClassification"
    assert not (classifier / "executed").exists()


def test_nothing_is_printed_and_settings_are_restored(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tiny.bert_classifier(tmp_path, trained_head=False)
    capfd.readouterr()
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    open_checkpoint(str(folder))
    assert capfd.readouterr() == ("", "")
    assert (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()) == before
