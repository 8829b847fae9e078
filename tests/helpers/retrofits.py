"""Whole retrofit runs of a tiny classifier, as small as they can be."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd

from attnprobe.data.sources import DataOptions
from attnprobe.options import ModelOptions
from attnprobe.retrofit.options import RetrofitOptions
from attnprobe.retrofit.run import run_retrofit
from attnprobe.runs import Mode

SMALL: dict[str, Any] = {"max_steps": 7, "resamples": 11, "controls": (), "logging_steps": 1, "learning_rate": 1e-3}


def data_of(ground: Path) -> DataOptions:
    """What `lay_ground` left."""
    return DataOptions(train_file=ground / "train.csv", eval_file=ground / "eval.csv")


def retrofit(
    ground: Path, name: str, *, mode: Mode = "new", batch: int = 4, whole: bool = False, **options: Any
) -> Path:
    """Run a retrofit on what `lay_ground` left, into a folder ``name``; ``whole``: with its page and its export."""
    with ExitStack() as stack:
        if not whole:
            page = lambda folder: (folder / "report.html").write_text("page")  # noqa: E731
            stack.enter_context(mock.patch("attnprobe.report.write_report", page))
            stack.enter_context(mock.patch("attnprobe.retrofit.run.export"))
        run_retrofit(
            str(ground / "model"),
            data=data_of(ground),
            model=ModelOptions(per_device_batch_size=batch),
            options=RetrofitOptions(**{**SMALL, **options}),
            output_dir=ground / name,
            mode=mode,
            quiet=True,
        )
    return ground / name


def rows(run: Path) -> pd.DataFrame:
    """``retrofit.csv`` by training, without the one column that no seed decides."""
    return pd.read_csv(run / "retrofit.csv").drop(columns="seconds").set_index("training")
