"""A retrofit run: every training, each result on disk as it comes, then tables, the export, the report."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from attnprobe.attention import evaluating
from attnprobe.data.sources import DataOptions
from attnprobe.distributed import is_main, share, take_device
from attnprobe.errors import UnsupportedModelError, UsageError
from attnprobe.export.card import Card
from attnprobe.export.verification import checks_of
from attnprobe.export.writing import save_export
from attnprobe.options import ModelOptions
from attnprobe.residual.stream import residual
from attnprobe.retrofit.options import RetrofitOptions
from attnprobe.retrofit.outcome import Outcome
from attnprobe.retrofit.points import Training, plan_trainings
from attnprobe.retrofit.sweep import RetrofitGround, bearing, opened, points_of, run_training
from attnprobe.retrofit.tables import (
    choose,
    heads_of_all,
    retrofit_row,
    retrofit_table,
    sparsity_table,
    training_table,
)
from attnprobe.runs import Mode, RunFolder, require_usable
from attnprobe.sparsify.sweep import require_reachable
from attnprobe.training.folder import MODEL, keep_weights, open_training_run, spread_rows, weights_file
from attnprobe.training.options import require_trainable
from attnprobe.training.scores import Scores, compare
from attnprobe.training.trainer import require_integrations

logger = logging.getLogger(__name__)

FILES = ("retrofit.csv", "heads.csv", "sparsity.csv", "training.csv", "report.html", "model/")


def run_retrofit(
    name: str,
    *,
    data: DataOptions,
    model: ModelOptions,
    options: RetrofitOptions,
    output_dir: Path,
    mode: Mode = "new",
    quiet: bool = False,
    command_line: str | None = None,
) -> RunFolder:
    """Give a checkpoint residual attention beside its controls, and leave a run folder with tables, model and report.

    Args:
        name: the checkpoint: folder, hub id, ``demo`` or an earlier export.
        data: what to learn from and to measure on.
        model: how to open and score it.
        options: what to train.
        output_dir: the run folder.
        mode: see :func:`~attnprobe.runs.open_run`.
        quiet: no progress bar.
        command_line: what the user typed, for the report.

    Raises:
        AttnProbeError: see the parts; VerificationError when the exported model is not what was measured.
    """
    from attnprobe.report import write_report

    if is_main():
        require_usable(output_dir, mode=mode)
    take_device(model.device)
    require_trainable(model, options, weights=True)
    require_integrations(options.report_to)
    with opened(name, data, model, options) as ground:
        _require_plain(ground)
        if options.sparsify:
            setting = bearing(ground, model.seed)
            require_reachable(setting, points_of(setting, model.seed))
        trainings = plan_trainings(
            options, model.seed, sites=ground.sites, can_align=options.align == "none" or _can_align(ground)
        )
        run = open_training_run(
            ground,
            [options],
            sites=ground.session.sites,
            command="retrofit",
            name=name,
            data=data,
            output_dir=output_dir,
            files=FILES,
            mode=mode,
            command_line=command_line,
        )
        if not run.complete:
            _train(run, ground, trainings, resume=mode == "resume", quiet=quiet)
            if is_main():
                _conclude(run, ground, trainings)
        else:
            logger.warning("%s is complete already; nothing is left to do", output_dir)
    if is_main() and not (run.complete and (output_dir / "report.html").exists()):
        run.finish()
        write_report(output_dir)
    share(None, device=model.device)
    return run


def _require_plain(ground: RetrofitGround) -> None:
    """See that the checkpoint can be given residual attention. Raises: UsageError, UnsupportedModelError."""
    checkpoint = ground.bench.checkpoint
    if checkpoint.residual is not None:
        raise UsageError(f"{checkpoint.name} has residual attention already: begin with the checkpoint it was made of")
    if ground.sites < 2:
        raise UnsupportedModelError(
            f"{checkpoint.name} has one site of attention: there is nothing below it to take in"
        )
    if checkpoint.mask is not None and checkpoint.mask.shape is not None and ground.options.align != "none":
        raise UsageError(
            f"{checkpoint.name} has a mask by head, and heads that change places would lose theirs: give --align none, "
            "or retrofit first and mask afterwards"
        )


def _can_align(ground: RetrofitGround) -> bool:
    """Whether the model's heads can be aligned; said where they can't."""
    try:
        ground.begin(Training(kind="retrofit", align="scores"))
    except UnsupportedModelError as error:
        said = f"heads are not aligned: {error}"
        logger.warning("%s", said)
        ground.bench = replace(ground.bench, warnings=(*ground.bench.warnings, said))
        return False
    return True


def _train(run: RunFolder, ground: RetrofitGround, trainings: Sequence[Training], *, resume: bool, quiet: bool) -> None:
    """Make every training that is not made yet; keep the weights of the one to export, if there were no other."""
    device = ground.model_options.device
    made = share([training for training in trainings if run.has_piece(training.name)], device=device)
    outcomes = _outcomes(run, made)
    todo = [training for training in trainings if training not in made]
    hidden = quiet or not is_main() or None
    for training in tqdm(todo, initial=len(made), total=len(trainings), disable=hidden):
        folder = run.path / "partial" / f"training-{training.name}"
        outcome = run_training(ground, training, folder, dense=outcomes.get("dense"), resume=resume)
        outcomes[training.name] = outcome
        if is_main():
            held_out = {name: _value(ground, found.held_out) for name, found in outcomes.items()}
            if choose([t for t in trainings if t.name in outcomes], held_out) is training:
                keep_weights(run, ground.session.model)
            run.keep_piece(training.name, outcome.arrays())
        share(None, device=device)


def _outcomes(run: RunFolder, trainings: Sequence[Training]) -> dict[str, Outcome]:
    """What is on disk of some trainings, by name."""
    names = [training.name for training in trainings]
    return dict(zip(names, map(Outcome.of, run.pieces(names)), strict=True))


def _value(ground: RetrofitGround, scores: Scores) -> float:
    return compare(ground.bench.objective.metrics[0], scores, scores, resamples=10, seed=0).value


def _conclude(run: RunFolder, ground: RetrofitGround, trainings: Sequence[Training]) -> None:
    """Tables, and the export of the chosen model."""
    outcomes = _outcomes(run, trainings)
    metric, options, bench = ground.bench.objective.metrics[0], ground.options, ground.bench
    dense = outcomes["dense"]
    on_data = {
        name: compare(metric, outcome.scores, dense.scores, resamples=options.resamples, seed=bench.seed)
        for name, outcome in outcomes.items()
    }
    held_out = {name: _value(ground, outcome.held_out) for name, outcome in outcomes.items()}
    chosen = choose(trainings, held_out)
    rows = [
        retrofit_row(
            training,
            outcomes,
            shared={"checkpoint": bench.checkpoint.name, "data": bench.examples.source, "gate": options.gate},
            metric=metric,
            on_data=on_data,
            start=_value(ground, outcomes[training.name].start),
            held_out=held_out[training.name],
            resamples=options.resamples,
            seed=bench.seed,
            exported=training is chosen,
        )
        for training in trainings
    ]
    run.write_table("retrofit", retrofit_table(rows))
    run.write_table("heads", heads_of_all(trainings, outcomes))
    run.write_table("sparsity", sparsity_table(trainings, outcomes, options.gate))
    run.write_table("training", training_table(trainings, outcomes))
    if chosen is not None:
        export(run, ground, chosen, outcomes[chosen.name], rows[trainings.index(chosen)])
    run.save(
        warnings=list(bench.warnings),
        summary={
            "dense": on_data["dense"].value,
            "metric_name": metric,
            "exported": None if chosen is None else chosen.name,
        },
    )


def export(
    run: RunFolder, ground: RetrofitGround, training: Training, outcome: Outcome, row: Mapping[str, Any]
) -> None:
    """Write ``model/``, verified in a fresh process.

    Raises:
        VerificationError: the model that a fresh process loads gives other outputs.
    """
    bench, model = ground.bench, ground.session.model
    model.load_state_dict(torch.load(weights_file(run), weights_only=True))
    inputs = next(bench.batches([spread_rows(bench)])).inputs
    ended = outcome.residual
    assert ended is not None
    with residual(ground.session, ended), evaluating(model):
        checks = checks_of(model, inputs)
    shown = ("metric_name", "value", "ci_low", "ci_high", "dense", "drop", "drop_ci_low", "drop_ci_high")
    results = {name: row[name] for name in (*shown, "entropy_median", "behind_continued")}
    save_export(
        run.path / MODEL,
        checkpoint=bench.checkpoint,
        residual=ended,
        card=Card(
            summary=f"{Path(bench.checkpoint.name).name}, trained for {outcome.steps} steps with residual attention.",
            results=[results],
            command=run.record.get("command_line"),
            notes=[f"Measured on {bench.examples.source}, {len(bench.examples)} examples."],
        ),
        provenance={"training": training.name, "seed": training.seed, **results},
        checks=checks,
        trust_remote_code=ground.model_options.trust_remote_code,
    )
    ground.restore()
