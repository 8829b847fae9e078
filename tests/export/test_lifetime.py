"""A loaded model over its life: copied, saved, pickled, beside others, unloaded, freed. The mask is never lost."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import attnprobe
from attnprobe.attention import attach, session
from attnprobe.checkpoint import open_checkpoint
from attnprobe.errors import CheckpointError, RunFolderError, UsageError
from tests.attention.snapshot import assert_unchanged, snapshot
from tests.export.exported import Exported, classifier, generator, texts
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.families import run
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Exported once, never changed."""
    return classifier(tmp_path_factory.mktemp("bert"))


def test_a_model_is_freed_with_its_last_reference(bert: Exported) -> None:
    gc.collect()
    before = len(session._sessions)
    loaded = attnprobe.load(bert.folder)
    assert len(session._sessions) > before
    watch = weakref.ref(loaded)
    del loaded
    gc.collect()
    assert watch() is None
    assert len(session._sessions) == before


def test_two_loads_are_two_models(bert: Exported, tmp_path: Path) -> None:
    gpt2 = generator(tmp_path)
    one, two, other = attnprobe.load(bert.folder), attnprobe.load(bert.folder), attnprobe.load(gpt2.folder)
    inputs = texts(bert)
    with torch.no_grad():
        for parameter in two.parameters():
            parameter.mul_(0.5)
    assert_near(run(one, inputs)["logits"], bert.masked(inputs)["logits"])
    assert_differs(run(two, inputs)["logits"], bert.masked(inputs)["logits"])
    assert_near(run(other, texts(gpt2, "it is"))["logits"], gpt2.masked(texts(gpt2, "it is"))["logits"])
    attnprobe.unload(two)
    assert_near(run(one, inputs)["logits"], bert.masked(inputs)["logits"])


def test_unloading_gives_the_dense_model_back(bert: Exported) -> None:
    stock = open_checkpoint(str(bert.folder)).model
    loaded = attnprobe.load(bert.folder)
    attnprobe.unload(loaded)
    inputs = texts(bert)
    assert_identical(run(loaded, inputs)["logits"], run(stock, inputs)["logits"])
    assert vars(loaded).keys() == vars(stock).keys()
    before = snapshot(loaded)
    with attach(loaded):
        pass
    assert_unchanged(loaded, before)
    with pytest.raises(UsageError, match=r"was not made by attnprobe\.load, or is unloaded already"):
        attnprobe.unload(loaded)


def test_a_deep_copy_is_masked(bert: Exported) -> None:
    """And is a model of its own: changing or unloading it leaves the first one as it is."""
    loaded = attnprobe.load(bert.folder, backend="sdpa").train()
    twin = copy.deepcopy(loaded)
    assert twin.training
    assert loaded.training
    inputs = texts(bert)
    expected = bert.masked(inputs)["logits"]
    for model in (loaded.eval(), twin.eval(), copy.deepcopy(twin)):
        assert_near(run(model, inputs)["logits"], expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(0.5)
    assert_near(run(loaded, inputs)["logits"], expected)
    attnprobe.unload(twin)
    assert_near(run(loaded, inputs)["logits"], expected)
    attnprobe.unload(loaded)
    assert_near(run(copy.deepcopy(loaded), inputs)["logits"], bert.dense(inputs)["logits"])


def test_a_copy_of_a_part_is_an_error_and_never_dense(bert: Exported) -> None:
    part: Any = copy.deepcopy(attnprobe.load(bert.folder).base_model)
    with pytest.raises(NotImplementedError, match="outside of an attached model"):
        part(**texts(bert))


def test_saving_writes_an_export(bert: Exported, tmp_path: Path) -> None:
    """Of the weights as they are now; again and again in one place; beside files of other names."""
    loaded = attnprobe.load(bert.folder)
    inputs = texts(bert)
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine too")
    for scale in (1.0, 0.5):
        with torch.no_grad():
            for parameter in loaded.parameters():
                parameter.mul_(scale)
        loaded.save_pretrained(tmp_path)
        again = attnprobe.load(tmp_path)
        assert_identical(run(again, inputs)["logits"], run(loaded, inputs)["logits"])
    assert_differs(run(again, inputs)["logits"], bert.masked(inputs)["logits"])
    assert {path.name for path in tmp_path.iterdir()} == {
        "README.md",
        "notes.txt",
        "attnprobe.json",
        "config.json",
        "masks.safetensors",
        "model.safetensors",
    }
    assert (tmp_path / "README.md").read_text() == "mine"
    assert json.loads((tmp_path / "attnprobe.json").read_text())["provenance"] == {"method": "random", "target": 0.4}


def test_saving_over_shards_leaves_no_stale_weights(bert: Exported, tmp_path: Path) -> None:
    loaded = attnprobe.load(bert.folder)
    loaded.save_pretrained(tmp_path / "x", max_shard_size="5KB")
    shards = {path.name for path in (tmp_path / "x").glob("*.safetensors")}
    assert len(shards) > 3
    assert run(attnprobe.load(tmp_path / "x"), texts(bert))
    loaded.save_pretrained(tmp_path / "x")
    assert {path.name for path in (tmp_path / "x").glob("*safetensors*")} == {"masks.safetensors", "model.safetensors"}
    loaded.save_pretrained(tmp_path / "x", max_shard_size="5KB")
    assert {path.name for path in (tmp_path / "x").glob("*.safetensors")} == shards
    assert run(attnprobe.load(tmp_path / "x"), texts(bert))


def test_saving_that_is_killed_half_way_is_refused_and_never_dense(
    bert: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of a plain checkpoint lie there, and the record comes first."""
    folder = tiny.bert_classifier(tmp_path / "x", seed=1)
    loaded = attnprobe.load(bert.folder)
    moved: list[Path] = []

    def one_file(path: Path, target: Path) -> Path:
        if moved:
            raise OSError(28, "No space left on device")
        moved.append(target)
        path.rename(target)
        return target

    monkeypatch.setattr(Path, "replace", one_file)
    with pytest.raises(RunFolderError, match=f"can't write {folder}: No space left on device"):
        loaded.save_pretrained(folder)
    with pytest.raises(CheckpointError, match=r"model\.safetensors was changed after the export"):
        open_checkpoint(str(folder))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_saving_from_another_process_than_the_main_one_writes_nothing(bert: Exported, tmp_path: Path) -> None:
    attnprobe.load(bert.folder).save_pretrained(tmp_path, is_main_process=False)
    assert not list(tmp_path.iterdir())


def test_saving_what_returns_attentions(bert: Exported, tmp_path: Path) -> None:
    """transformers writes no configuration that returns them under an implementation of another name."""
    loaded = attnprobe.load(bert.folder, output_attentions=True)
    loaded.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["output_attentions"]
    assert "attnprobe" not in (tmp_path / "config.json").read_text()
    assert run(loaded, texts(bert))


def test_what_would_lose_the_mask_is_an_error(bert: Exported, tmp_path: Path) -> None:
    loaded = attnprobe.load(bert.folder)
    inputs = texts(bert)
    with pytest.raises(UsageError, match=r"can't be pickled: write it with `model\.save_pretrained\(folder\)`"):
        torch.save(loaded, tmp_path / "model.pt")
    with pytest.raises(UsageError, match="can't be pickled"):
        pickle.dumps(loaded)
    with pytest.raises(UsageError, match=r"is not pushed while it is saved.* upload the folder with `hf upload`"):
        loaded.save_pretrained(tmp_path / "x", push_to_hub=True)
    torch.save(loaded.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt").keys() == load_file(bert.folder / "model.safetensors").keys()
    loaded.set_attn_implementation("sdpa")
    with pytest.raises(UsageError, match="was set to 'sdpa', which knows no mask"):
        run(loaded, inputs)
    loaded.set_attn_implementation("attnprobe")
    assert_near(run(loaded, inputs)["logits"], bert.masked(inputs)["logits"])


def test_a_loaded_model_is_attached(bert: Exported) -> None:
    with pytest.raises(UsageError, match="attached already"):
        attach(attnprobe.load(bert.folder)).__enter__()


def test_weights_can_be_loaded_into_it(bert: Exported) -> None:
    loaded = attnprobe.load(bert.folder)
    state = {name: 0.5 * tensor for name, tensor in loaded.state_dict().items()}
    loaded.load_state_dict(state)
    bert_half = open_checkpoint(str(bert.folder))
    bert_half.model.load_state_dict(state)
    half = Exported(folder=bert.folder, checkpoint=bert_half, mask=bert.mask, rules=bert.rules)
    inputs = texts(bert)
    assert_near(run(loaded, inputs)["logits"], half.masked(inputs)["logits"])
