"""The run folder of a command that trains: opened by one process, known to all; and what an export is checked on."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from attnprobe.data.sources import DataOptions
from attnprobe.distributed import is_main, share
from attnprobe.export.format import RECORD
from attnprobe.runs import Mode, RunFolder, open_run
from attnprobe.training.ground import Ground
from attnprobe.training.options import TrainingOptions
from attnprobe.workbench import Workbench

MODEL = "model"
"""Folder of the exported model in a run folder."""

_CHECKED = 8
"""Rows on which an export is checked in a fresh process."""


def open_training_run(
    ground: Ground,
    options: TrainingOptions,
    *,
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
            arguments={"checkpoint": name, **asdict(data), **asdict(model), **asdict(options)},
            identity={
                "seed": model.seed,
                **ground.bench.identity(ground.session.sites),
                "training": ground.identity(),
            },
            files=files,
            mode=mode,
        )
        if mode == "overwrite" and (output_dir / MODEL / RECORD).is_file():
            shutil.rmtree(output_dir / MODEL)
    record = share(run.record if run else None, device=model.device)
    return run or RunFolder(output_dir, record)


def spread_rows(bench: Workbench) -> list[int]:
    """A few evaluation rows of all lengths, from the shortest to the longest."""
    order = np.argsort(bench.encoded.lengths, kind="stable")
    return [int(order[at]) for at in np.unique(np.linspace(0, len(order) - 1, _CHECKED).round().astype(int))]
