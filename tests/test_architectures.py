"""The tables of families, checked against the sources of the installed transformers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import CONFIG_MAPPING
from transformers.models.auto.configuration_auto import model_type_to_module_name

from attnprobe.architectures import (
    ENCODERS,
    POSITIONS_FROM_PADDING,
    SUPPORTED,
    UNBOUNDED,
    UNSUPPORTED,
    HeadKind,
    head_class,
    head_counts,
    position_limit,
    position_offset,
    shared_layers,
    unsupported_message,
)


def _source(family: str) -> str:
    """The modelling sources of a family; skips where the installed transformers does not have it."""
    if family not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no {family}")
    spec = importlib.util.find_spec(f"transformers.models.{model_type_to_module_name(family)}")
    assert spec is not None
    assert spec.origin is not None
    config_file: str = CONFIG_MAPPING[family].__module__.rsplit(".", 1)[-1]
    own = config_file.replace("configuration_", "modeling_") + ".py"
    return (Path(spec.origin).parent / own).read_text(encoding="utf-8")


@pytest.mark.parametrize("family", sorted(UNSUPPORTED))
def test_unsupported_families_never_call_the_attention_interface(family: str) -> None:
    assert "ALL_ATTENTION_FUNCTIONS" not in _source(family)


@pytest.mark.parametrize("family", SUPPORTED)
def test_supported_families_call_the_attention_interface(family: str) -> None:
    assert family not in UNSUPPORTED
    assert "ALL_ATTENTION_FUNCTIONS" in _source(family)


@pytest.mark.parametrize("family", sorted(POSITIONS_FROM_PADDING))
def test_positions_are_counted_from_the_padding_index(family: str) -> None:
    assert "padding_idx" in _source(family)
    assert "create_position_ids_from_input_ids" in _source(family)


def test_plain_families_are_not_counted_from_the_padding_index() -> None:
    assert "create_position_ids_from_input_ids" not in _source("bert")


@pytest.mark.parametrize("family", sorted(UNBOUNDED))
def test_unbounded_families_have_relative_positions(family: str) -> None:
    source = _source(family)
    assert "relative_attention_bias" in source
    assert "max_position_embeddings" not in source


@pytest.mark.parametrize(("family", "encoder"), ENCODERS.items())
def test_encoder_classes_exist(family: str, encoder: str) -> None:
    assert f"class {encoder}(" in _source(family)


def test_supported_is_sorted_and_unique() -> None:
    assert sorted(set(SUPPORTED)) == list(SUPPORTED)


def test_unsupported_message_is_one_line_with_reason_and_remedy() -> None:
    message = unsupported_message("my/model", "fnet")
    assert message is not None
    assert message.startswith("my/model: the family 'fnet' is not supported: it mixes tokens without attention")
    assert "supported are albert, bart, bert," in message
    assert "\n" not in message
    assert unsupported_message("my/model", "bert") is None


@pytest.mark.parametrize(
    ("architecture", "kind", "opened_as"),
    [
        ("BertForSequenceClassification", "sequence_classification", "BertForSequenceClassification"),
        ("XLMRobertaForTokenClassification", "token_classification", "XLMRobertaForTokenClassification"),
        ("AlbertForMaskedLM", "masked_lm", "AlbertForMaskedLM"),
        ("BertForPreTraining", "masked_lm", "BertForMaskedLM"),
        ("GPT2LMHeadModel", "causal_lm", "GPT2LMHeadModel"),
        ("LlamaForCausalLM", "causal_lm", "LlamaForCausalLM"),
        ("BertModel", "none", "BertModel"),
        ("BertForQuestionAnswering", "none", "BertForQuestionAnswering"),
    ],
)
def test_head_class(architecture: str, kind: HeadKind, opened_as: str) -> None:
    assert head_class(architecture) == (kind, opened_as)


def _config(**fields: object) -> SimpleNamespace:
    return SimpleNamespace(**{"model_type": "bert", "pad_token_id": 1, **fields})


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (_config(max_position_embeddings=512), 512),
        (_config(model_type="roberta", max_position_embeddings=514), 512),
        (_config(model_type="esm", max_position_embeddings=1026), 1024),
        (_config(model_type="camembert", pad_token_id=None, max_position_embeddings=514), 514),
        (_config(model_type="gpt2", n_positions=1024), 1024),
        (_config(model_type="t5", n_positions=512), None),
        (_config(max_position_embeddings=-1), None),
        (_config(), None),
    ],
)
def test_position_limit(config: SimpleNamespace, limit: int | None) -> None:
    assert position_limit(config) == limit


def test_position_offset() -> None:
    assert position_offset(_config(model_type="xlm-roberta")) == 2
    assert position_offset(_config(model_type="xlm-roberta", pad_token_id=0)) == 1
    assert position_offset(_config()) == 0


def test_shared_layers() -> None:
    assert shared_layers(_config(num_hidden_layers=12, num_hidden_groups=1, inner_group_num=1)) == (1, 12)
    assert shared_layers(_config(num_hidden_layers=12, num_hidden_groups=3, inner_group_num=2)) == (6, 12)
    assert shared_layers(_config(num_hidden_layers=2, num_hidden_groups=2)) is None
    assert shared_layers(_config(num_hidden_layers=12)) is None


def test_head_counts() -> None:
    assert head_counts(_config(num_attention_heads=8, num_key_value_heads=2)) == (8, 2)
    assert head_counts(_config(num_attention_heads=8, num_key_value_heads=None)) == (8, 8)
    assert head_counts(_config(num_attention_heads=[4, 8])) is None
