"""Make one training of a retrofit run, and everything that is measured of it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnprobe.data.sources import DataOptions
from attnprobe.distributed import is_main
from attnprobe.options import ModelOptions
from attnprobe.residual.alignment import Alignment, align
from attnprobe.residual.stream import Residual, carried, residual
from attnprobe.retrofit.learning import train
from attnprobe.retrofit.looks import looks
from attnprobe.retrofit.options import RetrofitOptions
from attnprobe.retrofit.outcome import Outcome
from attnprobe.retrofit.points import Training
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.sparsify.points import Point, plan_points
from attnprobe.sparsify.setting import Setting
from attnprobe.sparsify.sweep import run_point
from attnprobe.training.ground import Ground, laid
from attnprobe.training.scores import compare, score
from attnprobe.training.trainer import require_finite

_ALIGNED_ON = 1000
"""Training rows on which heads are compared, at most."""


class RetrofitGround(Ground):
    """What all trainings of a retrofit run share.

    Attributes:
        options: of the run.
        alignment: of the heads, once it is known.
    """

    options: RetrofitOptions
    alignment: Alignment | None = None
    _aligned: dict[str, Tensor] | None = None

    def begin(self, training: Training) -> None:
        """Give the model the weights that a training begins with: the checkpoint's, its heads aligned where asked."""
        self.restore()
        if training.align == "none":
            return
        if self._aligned is None:
            self.alignment = align(self.session, self._inputs(self.lesson.rows[:_ALIGNED_ON]))
            self._aligned = {name: tensor.clone() for name, tensor in self.session.model.state_dict().items()}
        self.session.model.load_state_dict(self._aligned)

    def _inputs(self, rows: Any) -> Iterator[dict[str, Tensor]]:
        encoded, device = self.lesson.encoded, self.session.model.device
        for batch in map(encoded.batch, encoded.plan(self.model_options.per_device_batch_size, rows=list(rows))):
            yield self.bench.objective.prepare(batch.to(device)).inputs


@contextmanager
def opened(name: str, data: DataOptions, model: ModelOptions, options: RetrofitOptions) -> Iterator[RetrofitGround]:
    """Open everything that the trainings of a run share. Raises: AttnProbeError, see the parts."""
    with laid(RetrofitGround, name, data, model, options, weights=True) as ground:
        yield ground


def run_training(
    ground: RetrofitGround, training: Training, folder: Path, *, dense: Outcome | None, resume: bool = False
) -> Outcome:
    """Train, and measure. The model has the training's weights afterwards.

    Args:
        ground: of the run.
        training: which.
        folder: where the Trainer keeps its checkpoints; removed at the end.
        dense: the dense model's result; None for its own.
        resume: go on with a training that ``folder`` holds.
    """
    began = time.monotonic()
    ground.begin(training)
    bench, options = ground.bench, ground.options
    everyone = list(range(len(bench.encoded)))
    start = dense.scores if dense is not None else score(ground, bench.encoded, everyone, dense=True)
    if training.kind == "immediate":
        ones = torch.ones(ground.sites - 1, 1, device=ground.session.model.device)
        start = score(
            ground, bench.encoded, everyone, within=lambda: carried(ground.session, training.variant, lambda: ones)
        )
    ended: Residual | None = None
    log: list[dict[str, float]] = []
    if training.kind != "dense":
        gates, log = train(ground, training, options, folder, resume=resume)
        ended = None if gates is None else gates.settled(training.variant)
        require_finite([*ground.session.model.parameters(), *(() if ended is None else (ended.gates,))])
        if is_main():
            shutil.rmtree(folder, ignore_errors=True)

    def within() -> AbstractContextManager[None]:
        return nullcontext() if ended is None else residual(ground.session, ended)

    scores = score(ground, bench.encoded, everyone, within=within)
    held_out = score(ground, ground.lesson.encoded, ground.held_out, within=within)
    with within():
        found = looks(ground, resamples=options.resamples)
        bears = [] if training.kind == "dense" else _bears(ground, training, folder)
    alignment = ground.alignment if training.align != "none" else None
    return Outcome(
        start=start,
        scores=scores,
        held_out=held_out,
        residual=ended,
        looks=found,
        likeness=None if alignment is None else torch.tensor([*alignment.before, *alignment.after]).view(2, -1).numpy(),
        bears=bears,
        log=log,
        steps=0 if training.kind == "dense" else options.max_steps,
        seconds=round(time.monotonic() - began, 1),
    )


def _bears(ground: RetrofitGround, training: Training, folder: Path) -> list[dict[str, Any]]:
    """What masks cost that are learnt for the model as it is now, under whatever is in force, weights frozen."""
    if not ground.options.sparsify:
        return []
    setting = bearing(ground, training.seed)
    own = score(setting, ground.bench.encoded, list(range(len(ground.bench.encoded))))
    metric, rows = ground.bench.objective.metrics[0], []
    for point in points_of(setting, training.seed):
        found = run_point(setting, point, folder.with_name(f"{folder.name}-{point.target:g}"))
        loss = compare(metric, found.scores, own, resamples=ground.options.resamples, seed=ground.bench.seed).columns()
        loss["unmasked"] = loss.pop("dense")
        rows.append({"target": point.target, "counted_sparsity": found.counted_sparsity, **loss})
    return rows


def bearing(ground: RetrofitGround, seed: int) -> Setting:
    """The setting in which masks are learnt for the model as it is, weights frozen."""
    options = ground.options
    asked = SparsifyOptions(
        target_sparsity=options.sparsify,
        methods=("dam",),
        max_steps=options.sparsify_steps,
        held_out=options.held_out,
        resamples=options.resamples,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        bf16=options.bf16,
        fp16=options.fp16,
        logging_steps=options.logging_steps,
    )
    model = replace(ground.model_options, seed=seed)
    return Setting(ground.bench, ground.session, ground.training, asked, model, None)


def points_of(setting: Setting, seed: int) -> list[Point]:
    """A learnt mask at each target."""
    return [point for point in plan_points(setting.options, seed) if point.kind == "learnt"]
