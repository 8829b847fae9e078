"""Whole sweeps of a tiny classifier, as small as they can be: no page, no export."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attnprobe.data.sources import DataOptions
from attnprobe.masks.gates import Gates
from attnprobe.options import ModelOptions
from attnprobe.runs import Mode
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.sparsify.outcome import Outcome
from attnprobe.sparsify.run import run_sparsify
from attnprobe.sparsify.setting import Setting
from attnprobe.sparsify.sweep import run_point
from tests.helpers import tiny_checkpoints as tiny

ENVIRONMENT = {
    **os.environ,
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
}
"""For processes that tests start."""


def lay_ground(folder: Path, **config: object) -> Path:
    """A checkpoint ``model`` (``config``: changes of its configuration), ``train.csv`` and ``eval.csv``."""
    (folder / "model").mkdir(parents=True)
    tiny.bert_classifier(folder / "model")
    tiny.change_config(folder / "model", **config)
    generator = np.random.default_rng(5)
    for name, count in (("train", 67), ("eval", 23)):
        texts = [" ".join(generator.choice(tiny.WORDS, size=generator.integers(2, 11))) for _ in range(count)]
        table = pd.DataFrame({"sentence": texts, "label": generator.integers(0, 2, size=count)})
        table.to_csv(folder / f"{name}.csv", index=False)
    return folder


@contextmanager
def bare() -> Iterator[None]:
    """Runs leave neither a page nor an export; both have tests of their own."""
    page = mock.patch("attnprobe.report.write_report", lambda folder: (folder / "report.html").write_text("page"))
    with page, mock.patch("attnprobe.sparsify.run.export"):
        yield


def sweep(folder: Path, name: str, *, mode: Mode = "new", batch: int = 4, **options: Any) -> Path:
    """Run a sweep on what :func:`lay_ground` left in ``folder``, into its folder ``name``."""
    small = {"methods": ("dam", "random"), "target_sparsity": ("0.6",), "draws": 1, "max_steps": 7, "resamples": 11}
    with bare():
        run_sparsify(
            str(folder / "model"),
            data=DataOptions(train_file=folder / "train.csv", eval_file=folder / "eval.csv"),
            model=ModelOptions(per_device_batch_size=batch),
            options=SparsifyOptions(**{**small, **options}),
            output_dir=folder / name,
            mode=mode,
            quiet=True,
        )
    return folder / name


def tradeoff(run: Path) -> pd.DataFrame:
    """``tradeoff.csv`` without the one column that no seed decides."""
    return pd.read_csv(run / "tradeoff.csv").drop(columns="seconds")


def watched_sweep(folder: Path, name: str, **options: Any) -> dict[str, Tensor]:
    """A sweep as this process sees it: gates' gradients in each step, each point's gates and weights at its end."""
    seen: dict[str, Tensor] = {}
    project = Gates.project_gradient

    def watched_project(gates: Gates) -> None:
        assert gates.logits.grad is not None
        seen[f"gradient {gates.step}"] = gates.logits.grad.clone()
        project(gates)

    def watched_point(setting: Setting, *args: Any, **kwargs: Any) -> Outcome:
        outcome = run_point(setting, *args, **kwargs)
        point = args[0].name
        if outcome.mask is not None:
            seen.update({f"{point} {part}": tensor for part, tensor in outcome.mask.tensors().items()})
        weights = setting.session.model.state_dict()
        seen.update({f"{point} {part}": tensor.clone() for part, tensor in weights.items()})
        return outcome

    with (
        mock.patch.object(Gates, "project_gradient", watched_project),
        mock.patch("attnprobe.sparsify.engines.run_point", watched_point),
    ):
        sweep(folder, name, **options)
    return seen


def one_thread() -> None:
    """Tiny models run faster on one thread, and to the same last digit everywhere."""
    torch.set_num_threads(1)
