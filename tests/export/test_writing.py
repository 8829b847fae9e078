"""Exports appear whole or not at all, replace nothing but exports, and say what they are."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import attnprobe
from attnprobe.attention import attach
from attnprobe.checkpoint import open_checkpoint
from attnprobe.errors import RunFolderError
from attnprobe.export import writing
from attnprobe.export.card import Card
from attnprobe.export.writing import save_export
from tests.export.exported import Exported, classifier, export, generator, random_mask, texts
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.families import run
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bert(tmp_path: Path) -> Exported:
    return classifier(tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def again(exported: Exported, folder: Path, seed: int, **changes: Any) -> Exported:
    mask = random_mask(exported.checkpoint.model, seed=seed)
    return export(folder, exported.checkpoint, mask, exported.rules, **changes)


def test_the_checkpoint_is_in_its_own_format(bert: Exported) -> None:
    assert set(contents(bert.folder)) == {
        "README.md",
        "attnprobe.json",
        "config.json",
        "masks.safetensors",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    dense = tiny.read_tensors(Path(str(bert.checkpoint.path)))
    for name, tensor in tiny.read_tensors(bert.folder).items():
        assert_identical(tensor, dense[name])
    opened = open_checkpoint(str(bert.folder))
    assert opened.head == bert.checkpoint.head


def test_generation_settings_are_kept(tmp_path: Path) -> None:
    assert (generator(tmp_path).folder / "generation_config.json").is_file()


def test_an_attached_model_can_be_exported(bert: Exported, tmp_path: Path) -> None:
    """Nothing of the session is in the files, and the session goes on."""
    with attach(bert.checkpoint.model) as session:
        export(tmp_path / "attached", bert.checkpoint, bert.mask, bert.rules)
        assert len(session.sites) == 2
        assert run(bert.checkpoint.model, texts(bert))
    assert contents(tmp_path / "attached") == contents(bert.folder)
    assert "attn_implementation" not in (bert.folder / "config.json").read_text()


def test_a_stated_pooling_is_kept(tmp_path: Path) -> None:
    (tmp_path / "dense").mkdir()
    tiny.bert_base(tmp_path / "dense")
    (tmp_path / "dense" / "1_Pooling").mkdir()
    (tmp_path / "dense" / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    exported = classifier(tmp_path)
    assert (exported.folder / "1_Pooling" / "config.json").read_text() == '{"pooling_mode_cls_token": true}'


def test_an_earlier_export_is_replaced_and_nothing_else(bert: Exported, tmp_path: Path) -> None:
    (bert.folder / "left over.txt").write_text("of the earlier one")
    second = again(bert, bert.folder, seed=1)
    assert "left over.txt" not in contents(bert.folder)
    inputs = texts(bert)
    assert_near(run(attnprobe.load(bert.folder), inputs)["logits"], second.masked(inputs)["logits"])
    assert_differs(second.masked(inputs)["logits"], bert.masked(inputs)["logits"])
    (tmp_path / "empty").mkdir()
    again(bert, tmp_path / "empty", seed=1)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    for folder, told in (
        (tmp_path / "thesis", "is not empty and holds no export: choose another folder, or empty it"),
        (tmp_path / "dense", "is not empty and holds no export"),
        (tmp_path / "thesis" / "thesis.tex", "is a file: choose another folder for the export"),
    ):
        with pytest.raises(RunFolderError, match=told):
            again(bert, folder, seed=1)
    assert contents(tmp_path / "thesis") == {"thesis.tex": b"years of work"}


def test_an_export_that_fails_leaves_the_earlier_one(bert: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    before, others = contents(bert.folder), set(bert.folder.parent.iterdir())

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "write_applied", full)
    with pytest.raises(RunFolderError, match=f"can't write {bert.folder}: No space left on device"):
        again(bert, bert.folder, seed=1)
    assert contents(bert.folder) == before
    assert set(bert.folder.parent.iterdir()) == others


def test_a_rename_that_fails_puts_the_earlier_one_back(bert: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    before, others = contents(bert.folder), set(bert.folder.parent.iterdir())
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(RunFolderError, match="Input/output error"):
        again(bert, bert.folder, seed=1)
    assert contents(bert.folder) == before
    assert set(bert.folder.parent.iterdir()) == others


KILLED = """
import os, signal, sys
from pathlib import Path
from attnprobe.export import writing
from tests.export.exported import classifier
writing.write_applied = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
classifier(Path(sys.argv[1]))
"""


def test_an_export_that_is_killed_leaves_the_earlier_one(bert: Exported, tmp_path: Path) -> None:
    """And what it wrote goes with the next export."""
    before = contents(bert.folder)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert contents(bert.folder) == before
    (half,) = (path for path in tmp_path.iterdir() if path.name.startswith("."))
    assert (half / "model.safetensors").exists()
    again(bert, bert.folder, seed=1)
    assert {path.name for path in tmp_path.iterdir()} == {"dense", "export"}


def test_the_card(bert: Exported, tmp_path: Path) -> None:
    save_export(
        tmp_path / "carded",
        checkpoint=bert.checkpoint,
        mask=bert.mask,
        rules=bert.rules,
        card=Card(
            summary="Nothing is lost.",
            results=[{"model": "dense", "accuracy": 0.96613}, {"model": "a | b", "accuracy": None}],
            command="attnprobe sparsify model --target 0.9",
            notes=["One seed."],
        ),
        provenance={"method": "dam", "target": 0.9, "seed": 3, "sizes": [1, 2]},
    )
    text = (tmp_path / "carded" / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["attnprobe", "sparse-attention"],
    }
    assert "# dense, with part of its attention removed" in body
    assert "| model | accuracy |\n| --- | --- |\n| dense | 0.9661 |\n| a \\| b |  |\n" in body
    assert "| method | dam |\n| target | 0.9 |\n| seed | 3 |\n| sizes | [1, 2] |\n" in body
    for told in (
        'model = attnprobe.load("path/to/this/folder")',
        "**Stock `AutoModel.from_pretrained` loads the weights WITHOUT the mask.**",
        "a gate for each distance up to 23 tokens and class of token",
        "```\nattnprobe sparsify model --target 0.9\n```",
        "Nothing is lost.",
        "One seed.",
    ):
        assert told in body
    assert str(tmp_path) not in text
    assert str(tmp_path) not in (tmp_path / "carded" / "attnprobe.json").read_text()
