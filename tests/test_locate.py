"""From a name to a folder: the embedded default, paths, and hub ids."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import huggingface_hub
import pytest

from attnprobe.checkpoint import locate as locate_module
from attnprobe.checkpoint import open_checkpoint
from attnprobe.errors import CheckpointError, MissingDependencyError
from attnprobe.hashes import sha256
from tests.helpers import tiny_checkpoints as tiny


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A sound two-class BERT, to be read or to be spoilt."""
    return tiny.bert_classifier(tmp_path / "classifier")


def _demo_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand a tiny checkpoint in for the demo package's; returns its folder."""
    model = tiny.bert_base(folder / "package" / "model")
    spec = ModuleSpec(locate_module.DEMO_PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(model.parent)]
    monkeypatch.setattr(importlib.util, "find_spec", {locate_module.DEMO_PACKAGE: spec}.get)
    return model


@pytest.mark.parametrize("name", ["demo", "minilm"])
def test_demo_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _demo_package(tmp_path, monkeypatch)
    digest = sha256(folder / "model.safetensors")
    monkeypatch.setattr(locate_module, "DEMO_SHA256", digest)
    location = locate_module.locate(name)
    assert (location.folder, location.local) == (folder, True)


def test_demo_with_other_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _demo_package(tmp_path, monkeypatch)
    with pytest.raises(CheckpointError, match=r"not the bytes that were reviewed; reinstall attnprobe\[demo\]"):
        open_checkpoint("demo")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="incomplete"):
        open_checkpoint("demo")


def test_demo_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"not installed; install attnprobe\[demo\]"):
        open_checkpoint("demo")


def test_a_hub_id_is_opened_from_the_folder_the_hub_gives(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def snapshot_download(name: str, **_: object) -> str:
        asked.append(name)
        return str(classifier)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    checkpoint = open_checkpoint("owner/name")
    assert asked == ["owner/name"]
    assert checkpoint.path is None
    assert checkpoint.digest == open_checkpoint(str(classifier)).digest


@pytest.mark.parametrize(
    "name", ["./gone", "../gone", "/gone", "~/gone-for-good", "a/b/c", "here/gone", "gone/", "a b", ""]
)
def test_what_can_only_be_a_path_is_not_asked_of_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: asked.append(name))
    with pytest.raises(CheckpointError, match="there is no such folder"):
        open_checkpoint(name)
    assert asked == []


def test_a_hub_that_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(name: str, **_: object) -> str:
        raise ValueError(f"401 for {name}\nlog in first")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match="is no folder here, and the hub refused it: 401 for owner/name;"):
        open_checkpoint("owner/name")


def test_pickled_weights_are_asked_of_the_hub_only_without_others(
    classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patterns: list[list[str]] = []

    def snapshot_download(_: str, *, allow_patterns: list[str], ignore_patterns: list[str] | None) -> str:
        assert ignore_patterns == ["*/*"]
        patterns.append(allow_patterns)
        return str(classifier)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    open_checkpoint("owner/name")
    assert len(patterns) == 1
    assert not any("bin" in pattern or "py" in pattern for pattern in patterns[0])
    tiny.as_pickle(classifier)
    open_checkpoint("owner/name")
    assert patterns[2] == ["pytorch_model*.bin", "pytorch_model*.json"]
