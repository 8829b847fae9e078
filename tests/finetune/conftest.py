"""What the tests of finetune runs share: one thread, and whole runs of a tiny classifier, as small as they can be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest
import torch

from attnprobe.dropout.options import DropoutOptions
from attnprobe.finetune.options import FinetuneOptions
from attnprobe.finetune.run import run_finetune
from attnprobe.options import ModelOptions
from attnprobe.runs import Mode, RunFolder
from attnprobe.training.folder import weights_file
from tests.helpers.retrofits import data_of
from tests.helpers.sweeps import one_thread

SMALL: dict[str, Any] = {
    **{"dropout": ("none", "attendout"), "dropout_step": 3},
    **{"max_steps": 6, "resamples": 11, "logging_steps": 1, "learning_rate": 1e-3},
}

UNSEEDED = ["seconds", "seconds_per_step", "peak_memory"]
"""Columns that no seed decides."""


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    one_thread()
    yield
    torch.set_num_threads(before)


def finetune(
    ground: Path, name: str, *, mode: Mode = "new", batch: int = 4, whole: bool = False, **options: Any
) -> Path:
    """Run a finetune on what `lay_ground` left, into a folder ``name``.

    Args:
        ground: what was laid.
        name: of the run folder in it.
        mode: of the run.
        batch: rows in a batch.
        whole: with its page and its export, else with the best model's weights as ``weights.pt`` in their place.
        options: of the command, of both kinds, instead of :data:`SMALL`.
    """
    given = {**SMALL, **options}
    of_dropout = {field.name for field in fields(DropoutOptions)}
    with ExitStack() as stack:
        if not whole:
            page = lambda folder: (folder / "report.html").write_text("page")  # noqa: E731
            stack.enter_context(mock.patch("attnprobe.report.write_report", page))
            stack.enter_context(mock.patch("attnprobe.finetune.run._export", _keep))
        run_finetune(
            str(ground / "model"),
            data=data_of(ground),
            model=ModelOptions(per_device_batch_size=batch),
            options=FinetuneOptions(**{n: value for n, value in given.items() if n not in of_dropout}),
            dropout=DropoutOptions(**{n: value for n, value in given.items() if n in of_dropout}),
            output_dir=ground / name,
            mode=mode,
            quiet=True,
        )
    return ground / name


def _keep(run: RunFolder, *_: object) -> None:
    shutil.copy(weights_file(run), run.path / "weights.pt")


def rows(run: Path) -> Any:
    """``finetune.csv`` by training, without the columns that no seed decides: a table, whose cells have any type."""
    return pd.read_csv(run / "finetune.csv").drop(columns=UNSEEDED).set_index("training")
