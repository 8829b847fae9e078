"""What `attnprobe doctor` says of tiny checkpoints whose every number is known."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from click.testing import CliRunner

from attnprobe.doctor import COMMANDS, examine
from attnprobe.doctor_text import render
from attnprobe.errors import CheckpointError, UnsupportedModelError
from attnprobe.quiet import quiet_transformers
from cli.doctor import command
from tests.helpers import tiny_checkpoints as tiny


def test_examine_a_classifier(tmp_path: Path) -> None:
    folder = tiny.bert_classifier(tmp_path)
    findings = examine(str(folder))
    model = transformers.BertForSequenceClassification.from_pretrained(folder)
    assert findings["family"] == "bert"
    assert findings["family_tested"]
    assert findings["model_class"] == "BertForSequenceClassification"
    assert findings["parameters"] == model.num_parameters()
    assert findings["files"] == {
        "format": "safetensors",
        "count": 1,
        "sharded": False,
        "dtypes": ["float32"],
        "bytes": (folder / "model.safetensors").stat().st_size,
    }
    assert findings["sites"] == [
        {
            "index": index,
            "name": f"bert.encoder.layer.{index}.attention.self",
            "application": 0,
            "heads": tiny.HEADS,
            "kv_heads": tiny.HEADS,
            "head_dim": tiny.HEAD_DIM,
            "causal": False,
        }
        for index in range(tiny.LAYERS)
    ]
    assert findings["backends"] == {"eager": None, "sdpa": None}
    assert findings["special_tokens"] == {
        "cls": {"token": "[CLS]", "id": 2},
        "sep": {"token": "[SEP]", "id": 3},
        "pad": {"token": "[PAD]", "id": 0},
        "mask": {"token": "[MASK]", "id": 4},
        "bos": None,
        "eos": None,
        "unk": {"token": "[UNK]", "id": 1},
    }
    assert findings["usable_length"] == tiny.POSITIONS
    assert findings["head"] == {
        "kind": "sequence_classification",
        "trained": True,
        "labels": ["negative", "positive"],
        "missing_keys": [],
    }
    assert findings["notes"] == []
    assert json.loads(json.dumps(findings)) == findings


def test_shared_layers_and_no_tokenizer(tmp_path: Path) -> None:
    findings = examine(str(tiny.albert(tmp_path, transformers.AlbertForMaskedLM)))
    assert len(findings["sites"]) == 5
    assert [site["application"] for site in findings["sites"]] == [0, 1, 2, 3, 4]
    assert findings["modules"] == 1
    assert findings["shared_layers"] == {"distinct": 1, "applied": 5}
    assert ["albert.embeddings.word_embeddings.weight", "predictions.decoder.weight"] in findings["tied_parameters"]
    assert findings["special_tokens"] is None
    assert {note["code"] for note in findings["notes"]} >= {"shared_layers", "tied_weights", "missing_tokenizer"}
    for name in ("importance", "evaluate"):
        assert findings["commands"][name] == {"available": False, "text": "it has no tokenizer, so text cannot be read"}
    assert "heads cannot be removed from layers that share" in findings["commands"]["export"]["text"]


def test_grouped_queries(tmp_path: Path) -> None:
    findings = examine(str(tiny.llama_causal_lm(tmp_path, vocabulary=257)))
    assert {(site["heads"], site["kv_heads"], site["causal"]) for site in findings["sites"]} == {(4, 2, True)}
    assert "whole key-value groups only" in findings["commands"]["export"]["text"]
    assert "sites of 4 heads over 2 key-value heads, head dimension 4, causal" in render(findings)


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (tiny.bert_classifier, "measures the loss and accuracy of its trained classifier"),
        (tiny.bert_token_classifier, "measures the loss and span F1 of its trained token classifier"),
        (tiny.bert_masked_lm, "measures the masked-language-model loss"),
        (tiny.gpt2_causal_lm, "measures the language-model loss"),
        (tiny.bert_base, "measures label-free fidelity to the dense model"),
    ],
)
def test_what_importance_measures(write: Callable[[Path], Path], text: str, tmp_path: Path) -> None:
    commands = examine(str(write(tmp_path)))["commands"]
    assert list(commands) == list(COMMANDS)
    assert commands["importance"]["available"]
    assert commands["importance"]["text"].startswith(text)
    here = ("importance", "evaluate", "sparsify", "retrofit")
    later = {name: verdict for name, verdict in commands.items() if name not in here}
    assert all(verdict["text"].startswith("not in this version; ") for verdict in later.values())
    assert not any(verdict["available"] for verdict in later.values())


def test_a_model_of_images(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=29,
        image_size=16,
        patch_size=4,
    )
    with quiet_transformers():
        transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    findings = examine(str(tmp_path))
    assert findings["model_class"] == "ViTModel"
    assert findings["commands"]["importance"]["text"] == "it reads pixel_values, and data is text in this version"
    assert "\nusable length   none in tokens: it reads pixel_values\n" in render(findings)


def test_a_random_head_is_said_to_be_none(tmp_path: Path) -> None:
    findings = examine(str(tiny.bert_classifier(tmp_path, trained_head=False)))
    assert findings["head"]["missing_keys"] == ["classifier.bias", "classifier.weight"]
    assert "no accuracy" in findings["commands"]["evaluate"]["text"]
    assert "\nhead            none that was trained\n" in render(findings)


def test_text_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.roberta_masked_lm(tmp_path / "roberta")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    result = CliRunner().invoke(command, ["./roberta"], catch_exceptions=False)
    assert result.exit_code == 0
    findings = examine("./roberta")
    assert result.stderr == ""
    expected = f"""\
checkpoint      ./roberta
digest          {findings["digest"]}
family          roberta
class           RobertaForMaskedLM
parameters      5,818, float32 on cpu
files           one file, safetensors, float32, {findings["files"]["bytes"] / 2**20:.1f} MiB
attention       2 sites of 3 heads, head dimension 4, bidirectional
backends        eager, sdpa
sharing         no layers are shared, 2 tensors are tied
special tokens  cls <s> (0), sep </s> (2), pad <pad> (1), mask <mask> (4), no bos, no eos, unk <unk>
                (3)
usable length   61 tokens, special tokens included
head            masked language model, trained

What would bite later
  - the position table says 63, and holds 61 tokens: 2 rows are for padding
  - one tensor under several names, so that changing one changes all:
    roberta.embeddings.word_embeddings.weight = lm_head.decoder.weight; lm_head.bias =
    lm_head.decoder.bias

What the commands can do
  importance    yes: measures the masked-language-model loss of its trained head, on any text
  evaluate      yes: measures the masked-language-model loss of its trained head, on any text
  sparsify      yes: learns gates on 6 heads in all, at 2 sites, from any text
  retrofit      yes: hands scores on through 2 sites of 3 heads, trained on any text
  finetune      no: not in this version; fine-tuning could start from its masked language model head
  export        no: not in this version; masks can be exported, and whole heads be removed
  bench         no: not in this version; the checkpoint can be timed up to 61 tokens, under eager
                and sdpa
"""
    assert result.stdout == expected


def test_json_of_the_command(tmp_path: Path) -> None:
    tiny.bert_base(tmp_path)
    result = CliRunner().invoke(command, [str(tmp_path), "--json", "--dtype", "bfloat16"], catch_exceptions=False)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == examine(str(tmp_path), dtype="bfloat16")


def test_lines_fit_the_width(tmp_path: Path) -> None:
    findings = examine(str(tiny.bert_masked_lm(tmp_path)))
    for width in (80, 100):
        lines = render(findings, width=width).splitlines()
        assert all(len(line) <= width or " " not in line.strip() for line in lines)
        assert len(lines) < 50


def test_unsupported_families_end_with_their_reason(tmp_path: Path) -> None:
    tiny.change_config(tiny.bert_base(tmp_path), model_type="fnet")
    with pytest.raises(UnsupportedModelError, match="it mixes tokens without attention"):
        CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False)
    assert UnsupportedModelError.exit_code == 3


def test_missing_checkpoint() -> None:
    with pytest.raises(CheckpointError, match="there is no such folder"):
        CliRunner().invoke(command, ["./gone"], catch_exceptions=False)


def test_importing_the_command_imports_no_torch() -> None:
    code = "import sys, cli.doctor, attnprobe.doctor_text; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=False).returncode == 0
