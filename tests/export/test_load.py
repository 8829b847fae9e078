"""What `attnprobe.load` gives: the masked model that was exported, whatever its family and however it is called."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

import attnprobe
from attnprobe.attention import BACKENDS
from attnprobe.checkpoint import open_checkpoint
from attnprobe.errors import CheckpointError, DataError, UsageError
from attnprobe.masks.granularity import GRANULARITIES
from attnprobe.masks.mask import GateMask, JointMask, PatternMask
from attnprobe.masks.tokens import TokenRules
from attnprobe.quiet import quiet_transformers
from tests.attention.attached import without_padding
from tests.export.exported import LENGTH, Exported, classifier, export, of_family, random_mask, texts
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.families import FAMILIES, Family, run
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near

EXPORTABLE = [family for family in FAMILIES if family.name != "bart-encoder"]  # no class of its own to be opened by


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Exported once, never changed."""
    return classifier(tmp_path_factory.mktemp("bert"))


def logits(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    return run(model, inputs)["logits"]


def states(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    """The last hidden states of real tokens: BERT's classifier reads the first column, even where that is padding."""
    with torch.no_grad():
        last: Tensor = model(**inputs, output_hidden_states=True).hidden_states[-1]
    return last[inputs["attention_mask"].bool()]


@pytest.mark.parametrize("family", EXPORTABLE, ids=lambda family: family.name)
def test_every_family_comes_back_masked(family: Family, tmp_path: Path) -> None:
    exported = of_family(tmp_path, family)
    loaded = attnprobe.load(exported.folder)
    assert type(loaded) is type(exported.checkpoint.model)
    assert not loaded.training
    inputs = family.inputs()
    masked = without_padding(run(loaded, inputs), inputs)
    for name, expected in without_padding(exported.masked(inputs), inputs).items():
        assert_near(masked[name], expected)
    output = next(name for name in masked if name in (family.output, "logits", "last_hidden_state"))
    assert_differs(masked[output], without_padding(exported.dense(inputs), inputs)[output])
    if family.positions != "columns" and not family.pixels:
        left = family.inputs("left")
        assert_near(without_padding(run(loaded, left), left)[output], masked[output], 1e-5)


def test_a_token_classifier_of_roberta(tmp_path: Path) -> None:
    """Positions counted from the padding id, and a head with one row a token."""
    config = transformers.RobertaConfig(
        **{**tiny.bert_config().to_dict(), "pad_token_id": 1, "max_position_embeddings": 63, "num_labels": 5}
    )
    with quiet_transformers():
        transformers.RobertaForTokenClassification(config).save_pretrained(tmp_path / "dense")
    tiny.wordpiece_tokenizer(tmp_path / "dense", tiny.ROBERTA_SPECIALS)
    checkpoint = open_checkpoint(str(tmp_path / "dense"))
    rules = TokenRules.of(checkpoint.tokenizer, causal=False)
    exported = export(tmp_path / "export", checkpoint, random_mask(checkpoint.model), rules)
    loaded = attnprobe.load(exported.folder)
    assert type(loaded) is transformers.RobertaForTokenClassification
    left, right = texts(exported, side="left"), texts(exported)
    del left["position_ids"]
    real = {side: inputs["attention_mask"].bool() for side, inputs in (("left", left), ("right", right))}
    assert_near(logits(loaded, right)[real["right"]], exported.masked(right)["logits"][real["right"]])
    assert_near(logits(loaded, left)[real["left"]], logits(loaded, right)[real["right"]], 1e-5)
    assert_differs(logits(loaded, right), logits(checkpoint.model, right))


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_granularity_and_backend(granularity: str, backend: str, tmp_path: Path) -> None:
    exported = classifier(tmp_path, granularity)
    loaded = attnprobe.load(exported.folder, backend=backend)
    left, right = texts(exported, side="left"), texts(exported)
    assert_near(logits(loaded, right), exported.masked(right)["logits"])
    assert_differs(logits(loaded, right), exported.dense(right)["logits"])
    assert_near(states(loaded, left), states(loaded, right), 1e-5)


@pytest.mark.parametrize("diagonal", ["keep", "drop"])
def test_the_diagonal_is_kept_or_dropped(diagonal: str, bert: Exported, tmp_path: Path) -> None:
    assert isinstance(bert.mask, GateMask)
    exported = export(tmp_path / "export", bert.checkpoint, replace(bert.mask, diagonal=diagonal), bert.rules)
    loaded = attnprobe.load(exported.folder)
    inputs = texts(exported)
    assert_near(logits(loaded, inputs), exported.masked(inputs)["logits"])
    assert_differs(logits(loaded, inputs), bert.masked(inputs)["logits"])
    with torch.no_grad():
        attentions = loaded(**inputs, output_attentions=True).attentions
    own = torch.stack(attentions)[..., 0, 0]
    assert bool((own == 0).all()) == (diagonal == "drop")


def test_a_fixed_pattern(bert: Exported, tmp_path: Path) -> None:
    mask = PatternMask(name="window", parameters={"reach": 1})
    exported = export(tmp_path / "export", bert.checkpoint, mask, bert.rules)
    inputs = texts(exported)
    assert_near(logits(attnprobe.load(exported.folder), inputs), exported.masked(inputs)["logits"])
    assert_differs(exported.masked(inputs)["logits"], exported.dense(inputs)["logits"])


def test_an_export_of_an_export_applies_both_masks(bert: Exported, tmp_path: Path) -> None:
    opened = open_checkpoint(str(bert.folder))
    window = PatternMask(name="window", parameters={"reach": 2})
    exported = export(tmp_path / "export", opened, window, bert.rules)
    inputs = texts(bert)
    both = replace(bert, mask=JointMask(masks=(bert.mask, window)))
    found = logits(attnprobe.load(exported.folder), inputs)
    assert_near(found, both.masked(inputs)["logits"])
    for other in (bert, replace(bert, mask=window)):
        assert_differs(found, other.masked(inputs)["logits"])


def test_masks_that_tell_tokens_differently_cannot_act_together(bert: Exported, tmp_path: Path) -> None:
    opened = open_checkpoint(str(bert.folder))
    with pytest.raises(CheckpointError, match="both can't act together; begin with the checkpoint that was exported"):
        export(tmp_path / "export", opened, bert.mask, replace(bert.rules, cls_id=7))
    assert not any(tmp_path.iterdir())


def test_masked_attentions_are_returned(bert: Exported) -> None:
    inputs = texts(bert)
    with torch.no_grad():
        attentions = attnprobe.load(bert.folder)(**inputs, output_attentions=True).attentions
        by_config = attnprobe.load(bert.folder, output_attentions=True)(**inputs).attentions
    at = bert.rules.positions(inputs["input_ids"], inputs["attention_mask"])
    for site, attention in enumerate(attentions):
        assert_identical(by_config[site], attention)
        keep = bert.mask.keep(at, site) & at.valid.unsqueeze(1)
        real = at.token[:, None, :, None].expand_as(attention)
        assert bool((attention[~keep & real] == 0).all())
        assert bool((attention[keep] > 0).all())
        rows = keep.any(-1)
        assert_near(attention.sum(-1)[rows], torch.ones(int(rows.sum())))


def test_longer_texts_than_were_trained_on(bert: Exported, tmp_path: Path) -> None:
    """By offset any length; by cell and block a clear error."""
    long = texts(bert, " ".join(["good film"] * 20))
    assert long["input_ids"].shape[1] > LENGTH
    loaded = attnprobe.load(bert.folder)
    assert_near(logits(loaded, long), bert.masked(long)["logits"])
    assert_differs(logits(loaded, long), bert.dense(long)["logits"])
    for granularity in ("cell", "block"):
        exported = classifier(tmp_path / granularity, granularity)
        bounded = attnprobe.load(exported.folder)
        assert logits(bounded, texts(exported)).isfinite().all()
        with pytest.raises(DataError, match=f"a mask by {granularity} covers 24 tokens, and a row has 42: cut the in"):
            bounded(**long)


def test_padding_beyond_the_limit_is_no_text(tmp_path: Path) -> None:
    exported = classifier(tmp_path, "cell")
    inputs = texts(exported)
    padded = {name: torch.nn.functional.pad(tensor, (0, 30)) for name, tensor in inputs.items()}
    assert padded["input_ids"].shape[1] > LENGTH
    loaded = attnprobe.load(exported.folder)
    assert_near(logits(loaded, padded), logits(loaded, inputs), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(bert: Exported, dtype: torch.dtype) -> None:
    loaded = attnprobe.load(bert.folder, dtype=dtype)
    assert loaded.dtype == dtype
    inputs = texts(bert)
    assert_near(logits(loaded, inputs), bert.masked(inputs)["logits"], 5e-2)
    assert_differs(logits(loaded, inputs), bert.dense(inputs)["logits"])


def test_from_pretrained_keywords_pass_through(bert: Exported) -> None:
    loaded = attnprobe.load(bert.folder, device_map="cpu", hidden_dropout_prob=0.3, torch_dtype=torch.float64)
    assert loaded.dtype == torch.float64
    assert loaded.config.hidden_dropout_prob == 0.3
    assert_near(logits(loaded, texts(bert)), bert.masked(texts(bert))["logits"])
    with pytest.raises(UsageError, match=r"attnprobe\.load takes no attn_implementation: .* choose it with `backend`"):
        attnprobe.load(bert.folder, attn_implementation="eager")
    with pytest.raises(UsageError, match="takes no output_loading_info: attnprobe reads the loading info itself"):
        attnprobe.load(bert.folder, output_loading_info=True)
    with pytest.raises(UsageError, match="backend must be one of"):
        attnprobe.load(bert.folder, backend="flash")


def test_a_device_map_that_leaves_weights_on_disk(bert: Exported, tmp_path: Path) -> None:
    places = {"bert.embeddings": "cpu", "bert.encoder": "disk", "bert.pooler": "cpu", "classifier": "disk"}
    loaded: Any = attnprobe.load(bert.folder, device_map=places, offload_folder=tmp_path)
    assert loaded.hf_device_map == places
    assert loaded.classifier.weight.is_meta
    assert_near(logits(loaded, texts(bert)), bert.masked(texts(bert))["logits"])


def test_gradients_flow_in_training(bert: Exported) -> None:
    """The same as those of a model that is masked by a session, and none through closed cells."""
    inputs = {**texts(bert), "labels": torch.tensor([0, 1, 1])}
    gradients = []
    for dropout in (0.0, 0.5):
        loaded: Any = attnprobe.load(bert.folder, attention_probs_dropout_prob=dropout, hidden_dropout_prob=dropout)
        loaded.train()
        loaded(**inputs).loss.backward()
        gradients.append({name: p.grad for name, p in loaded.named_parameters()})
    model: Any = open_checkpoint(str(bert.folder)).model
    with bert_masked(bert, model):
        model(**inputs).loss.backward()
    for name, parameter in model.named_parameters():
        assert_near(gradients[0][name], parameter.grad)
    query = "bert.encoder.layer.0.attention.self.query.weight"
    assert gradients[0][query].abs().max() > 1e-4
    assert_differs(gradients[0][query], gradients[1][query])


def bert_masked(bert: Exported, model: PreTrainedModel) -> Any:
    from attnprobe.export.attaching import attached

    return attached(model, bert.applied)


def test_stock_transformers_loads_the_dense_weights(bert: Exported) -> None:
    stock = transformers.AutoModelForSequenceClassification.from_pretrained(bert.folder)
    inputs = texts(bert)
    assert stock.config._attn_implementation in ("eager", "sdpa")
    assert_near(logits(stock, inputs), bert.dense(inputs)["logits"])


def test_without_token_ids_a_clear_error(bert: Exported) -> None:
    loaded: Any = attnprobe.load(bert.folder)
    inputs = texts(bert)
    states = loaded.get_input_embeddings()(inputs["input_ids"])
    with pytest.raises(DataError, match=r"tells \[CLS\] and \[SEP\] by token id: call it with input_ids"):
        loaded(inputs_embeds=states, attention_mask=inputs["attention_mask"])
    with pytest.raises(DataError, match=r"attention_mask \(batch, tokens\).* not one of shape \(3, 1, 9, 9\)"):
        loaded(input_ids=inputs["input_ids"], attention_mask=torch.ones(3, 1, 9, 9))


def test_a_checkpoint_that_is_no_export(bert: Exported) -> None:
    with pytest.raises(CheckpointError, match=r"no export of attnprobe, it has no attnprobe\.json: load it with trans"):
        attnprobe.load(str(bert.checkpoint.path))
    with pytest.raises(CheckpointError, match="there is no such folder"):
        attnprobe.load("./gone")


def test_importing_attnprobe_imports_no_torch() -> None:
    code = "import sys, attnprobe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
    assert callable(attnprobe.load)
    assert callable(attnprobe.unload)
    with pytest.raises(AttributeError, match="module 'attnprobe' has no attribute 'lode'"):
        attnprobe.lode  # noqa: B018
