"""Tests on a CUDA GPU, skipped where there is none. `GPU_TESTS_ON=cpu` runs them on the host: to try the tests."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cli import run
from tests.helpers.sweeps import lay_ground


@pytest.fixture(scope="session", autouse=True)
def device() -> str:
    """The device, as `--device` has it."""
    wanted = os.environ.get("GPU_TESTS_ON", "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a driver that doesn't fit is a warning
        if wanted == "cuda" and not torch.cuda.is_available():
            pytest.skip("needs a CUDA GPU, and torch sees none")
    return wanted


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier `model`, `train.csv` and `eval.csv`."""
    return lay_ground(tmp_path_factory.mktemp("ground") / "laid")


@pytest.fixture
def command(ground: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run a command line of `attnprobe` in `ground`; it has to succeed."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(ground)

    def call(line: str) -> None:
        assert run(shlex.split(line)) == 0

    return call
