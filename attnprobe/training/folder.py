"""The run folder of a command that trains: opened by one process, known to all; and what an export is checked on."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from attnprobe.attention import Site
from attnprobe.data.sources import DataOptions
from attnprobe.distributed import is_main, share
from attnprobe.dropout.options import DropoutOptions
from attnprobe.export.folders import is_ours
from attnprobe.options import ModelOptions
from attnprobe.runs import Mode, RunFolder, open_run, replacing
from attnprobe.training.options import TrainingOptions
from attnprobe.workbench import Workbench

MODEL = "model"
"""Folder of the exported model in a run folder."""


class Grounded(Protocol):
    """What trainings stand on, as a run folder tells it."""

    @property
    def bench(self) -> Workbench: ...

    @property
    def model_options(self) -> ModelOptions: ...

    def identity(self) -> dict[str, object]: ...


_CHECKED = 8
"""Rows on which an export is checked in a fresh process."""


def open_training_run(
    ground: Grounded,
    options: Sequence[TrainingOptions | DropoutOptions],
    *,
    sites: tuple[Site, ...],
    command: str,
    name: str,
    data: DataOptions,
    output_dir: Path,
    files: Sequence[str],
    mode: Mode,
    command_line: str | None,
) -> RunFolder:
    """The run folder, which the main process makes; the others know it by its record.

    Args:
        ground: what all trainings stand on.
        options: of the command.
        sites: of the model.
        command: its name.
        name: of the checkpoint, as typed.
        data: what is learnt from and measured on.
        output_dir: the folder.
        files: that the command leaves there.
        mode: see :func:`~attnprobe.runs.open_run`.
        command_line: what the user typed.

    Raises:
        RunFolderError, UsageError: see :func:`~attnprobe.runs.open_run`.
    """
    model = ground.model_options
    run: RunFolder | None = None
    if is_main():
        run = open_run(
            output_dir,
            command=command,
            command_line=command_line,
            arguments={"checkpoint": name, **_merged([data, model, *options])},
            identity={
                "seed": model.seed,
                **ground.bench.identity(sites),
                "training": ground.identity(),
            },
            files=files,
            mode=mode,
        )
        if mode == "overwrite" and is_ours(output_dir / MODEL):
            shutil.rmtree(output_dir / MODEL)
    record = share(run.record if run else None, device=model.device)
    return run or RunFolder(output_dir, record)


def _merged(options: Sequence[Any]) -> dict[str, Any]:
    return {name: value for of in options for name, value in asdict(of).items()}


def weights_file(run: RunFolder) -> Path:
    """Where the weights of the model to export wait for the end of a run."""
    return run.path / "partial" / "weights.pt"


def keep_weights(run: RunFolder, model: PreTrainedModel) -> None:
    """Keep a model's weights as those of the model to export, if there should be no better one."""
    path = weights_file(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, temporary)


def spread_rows(bench: Workbench) -> list[int]:
    """A few evaluation rows of all lengths, from the shortest to the longest."""
    order = np.argsort(bench.encoded.lengths, kind="stable")
    return [int(order[at]) for at in np.unique(np.linspace(0, len(order) - 1, _CHECKED).round().astype(int))]
