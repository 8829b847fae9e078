"""Exports with residual attention: alone and under a mask, of every kind of head, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import attnprobe
from attnprobe.checkpoint import Checkpoint, open_checkpoint
from attnprobe.doctor import examine
from attnprobe.errors import CheckpointError
from attnprobe.export.attaching import attached
from attnprobe.export.card import Card
from attnprobe.export.format import Applied, _own_sum, read_applied, write_applied
from attnprobe.export.verification import checks_of
from attnprobe.export.writing import save_export
from attnprobe.residual.stream import Residual
from tests.export.exported import classifier, texts
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.families import run
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near


def gates_of(checkpoint: Checkpoint) -> Tensor:
    """Gates that all differ, of a tiny checkpoint."""
    config = checkpoint.model.config.get_text_config()
    sites, heads = config.num_hidden_layers, config.num_attention_heads
    return torch.linspace(0.2, 1.1, (sites - 1) * heads).view(sites - 1, heads)


@pytest.mark.parametrize("variant", ["sum", "mean"])
def test_a_residual_alone(tmp_path: Path, variant: str) -> None:
    exported = classifier(tmp_path)
    checkpoint = exported.checkpoint
    applied = Applied(residual=Residual(variant=variant, gates=gates_of(checkpoint)))
    inputs = texts(exported)
    with attached(checkpoint.model, applied):
        expected = run(checkpoint.model, inputs)["logits"]
        checks = checks_of(checkpoint.model, inputs) if variant == "sum" else []  # a fresh process takes its time
    folder = tmp_path / "residual"
    save_export(
        folder, checkpoint=checkpoint, residual=applied.residual, card=Card(), provenance={"steps": 3}, checks=checks
    )
    assert not (folder / "masks.safetensors").exists()
    loaded = attnprobe.load(folder)
    assert_near(run(loaded, inputs)["logits"], expected)
    assert_differs(run(loaded, inputs)["logits"], run(checkpoint.model, inputs)["logits"])
    stock = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert_differs(run(stock, inputs)["logits"], expected)
    card = (folder / "README.md").read_text()
    assert "# dense, with residual attention" in card
    assert "**Stock `AutoModel.from_pretrained` loads the weights WITHOUT the residual attention.**" in card


def test_a_mask_on_top(tmp_path: Path) -> None:
    """A residual export that is masked keeps its residual; a masked one that becomes residual keeps its mask."""
    masked = classifier(tmp_path)
    residual = Residual(variant="sum", gates=gates_of(masked.checkpoint))
    both = Applied(mask=masked.mask, rules=masked.rules, residual=residual)
    inputs = texts(masked)
    with attached(masked.checkpoint.model, both):
        expected = run(masked.checkpoint.model, inputs)["logits"]
    save_export(tmp_path / "one", checkpoint=masked.checkpoint, residual=residual, card=Card(), provenance={})
    options: dict[str, Any] = {"card": Card(), "provenance": {}}
    save_export(
        tmp_path / "two",
        checkpoint=open_checkpoint(str(tmp_path / "one")),
        mask=masked.mask,
        rules=masked.rules,
        **options,
    )
    save_export(tmp_path / "three", checkpoint=open_checkpoint(str(masked.folder)), residual=residual, **options)
    for folder in ("two", "three"):
        assert_near(run(attnprobe.load(tmp_path / folder), inputs)["logits"], expected)
        card = (tmp_path / folder / "README.md").read_text()
        assert "WITHOUT the residual attention and the mask" in card


def test_a_decoder_generates_the_same_with_and_without_a_cache(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(tiny.gpt2_causal_lm(tmp_path / "dense")))
    residual = Residual(variant="sum", gates=gates_of(checkpoint))
    save_export(tmp_path / "export", checkpoint=checkpoint, residual=residual, card=Card(), provenance={})
    model = attnprobe.load(tmp_path / "export")
    ids = torch.tensor([[5, 6, 7, 8]])
    asked: dict[str, Any] = {
        "max_new_tokens": 5,
        "do_sample": False,
        "pad_token_id": 0,
        "attention_mask": torch.ones_like(ids),
    }
    assert_identical(model.generate(ids, use_cache=True, **asked), model.generate(ids, use_cache=False, **asked))


def test_what_is_written_is_read_back_and_told(tmp_path: Path) -> None:
    exported = classifier(tmp_path)
    residual = Residual(variant="mean", gates=gates_of(exported.checkpoint))
    save_export(
        tmp_path / "made", checkpoint=exported.checkpoint, residual=residual, card=Card(), provenance={"seed": 3}
    )
    opened = open_checkpoint(str(tmp_path / "made"))
    assert opened.mask is None
    assert opened.rules is None
    assert opened.residual is not None
    assert opened.residual.variant == "mean"
    assert_identical(opened.residual.gates, residual.gates)
    assert opened.digest != exported.checkpoint.digest
    findings = examine(str(tmp_path / "made"))
    assert findings["residual"] == "a gated mean of scores, gates from 0.20 to 1.10"
    assert findings["export"] is None
    assert "residual" in {note["code"] for note in findings["notes"]}


def test_an_export_of_the_first_schema_is_read(tmp_path: Path) -> None:
    exported = classifier(tmp_path)
    path = exported.folder / "attnprobe.json"
    record = json.loads(path.read_text())
    record["schema_version"] = 1
    record["sha256"] = _own_sum(record)
    path.write_text(json.dumps(record))
    inputs = texts(exported)
    assert_near(run(attnprobe.load(exported.folder), inputs)["logits"], exported.masked(inputs)["logits"])


def test_what_does_not_belong_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    residual = Residual(variant="sum", gates=torch.ones(2, 3))
    write_applied(tmp_path, Applied(residual=residual), [config])
    record_file = tmp_path / "attnprobe.json"
    record = json.loads(record_file.read_text())

    def resealed(**changes: object) -> None:
        changed = {**record, "applied": {**record["applied"], **changes}}
        changed["sha256"] = _own_sum(changed)
        record_file.write_text(json.dumps(changed))

    resealed(residual={"variant": "sum", "gates": "none"})
    with pytest.raises(CheckpointError, match=r"attnprobe\.json: its residual attention is malformed"):
        read_applied(tmp_path, [config])
    resealed(tokens={})
    with pytest.raises(CheckpointError, match="its mask is missing or malformed"):
        read_applied(tmp_path, [config])
    resealed()
    assert read_applied(tmp_path, [config]) is not None
    (tmp_path / "masks.safetensors").write_bytes(b"?")
    with pytest.raises(CheckpointError, match="names no mask: remove it"):
        read_applied(tmp_path, [config])


def test_the_residual_of_another_model(tmp_path: Path) -> None:
    exported = classifier(tmp_path)
    wrong = Residual(variant="sum", gates=torch.ones(7, 2))
    save_export(tmp_path / "wrong", checkpoint=exported.checkpoint, residual=wrong, card=Card(), provenance={})
    with pytest.raises(CheckpointError, match="it belongs to another model"):
        attnprobe.load(tmp_path / "wrong")
