"""A sandbox to run commands in: tiny checkpoints, data, an earlier run; and the command line called in-process."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from cli import run
from tests.helpers import tiny_checkpoints as tiny

ROWS = ("the film is good", "a bad plot", "the cat sat", "not a very good dog", "a film of cat and dog", "it ran")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


Call = Callable[[str], Outcome]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models run faster on one thread, and to the same last digit everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints `clf`, `base`, `mlm`, `gpt2`; data `d.csv`, `pairs.csv`; `run`, a complete run. To be copied."""
    folder = tmp_path_factory.mktemp("ground")
    tiny.bert_classifier(folder / "clf")
    tiny.bert_base(folder / "base")
    tiny.bert_masked_lm(folder / "mlm")
    tiny.gpt2_causal_lm(folder / "gpt2")
    rows = "".join(f"{text},{number % 2}\n" for number, text in enumerate(ROWS))
    (folder / "d.csv").write_text("sentence,label\n" + rows)
    (folder / "pairs.csv").write_text("sentence1,sentence2,label\nthe cat,a dog,0\na film,the plot,1\n")
    before = Path.cwd()
    os.chdir(folder)
    try:
        code = run(
            shlex.split("importance clf --eval-file d.csv --methods mass --resamples 10 --output-dir run --quiet")
        )
    finally:
        os.chdir(before)
    assert code == 0
    return folder


@pytest.fixture
def sandbox(ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `ground` to spoil, and the current folder."""
    folder = tmp_path / "sandbox"
    shutil.copytree(ground, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """Run a command line as the shell would split it; whatever reaches the process's own streams is seen."""

    def in_process(line: str) -> Outcome:
        capfd.readouterr()
        code = run(shlex.split(line))
        captured = capfd.readouterr()
        return Outcome(code=code, out=captured.out, err=captured.err)

    return in_process
