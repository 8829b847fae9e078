"""A finetune run: every training, each result on disk as it comes, then tables, the checkpoint, the report."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from attnprobe.attention import evaluating, find_sites
from attnprobe.data.batches import Encoded
from attnprobe.data.sources import DataOptions
from attnprobe.distributed import is_main, share, take_device
from attnprobe.dropout.methods import METHODS
from attnprobe.dropout.options import SCHEDULES, DropoutOptions
from attnprobe.dropout.schedules import Schedule
from attnprobe.errors import UsageError
from attnprobe.export.card import Card
from attnprobe.export.stock import save_stock
from attnprobe.export.verification import checks_of
from attnprobe.finetune.ground import FinetuneGround, laid
from attnprobe.finetune.learning import train
from attnprobe.finetune.options import FinetuneOptions
from attnprobe.finetune.outcome import Outcome
from attnprobe.finetune.points import Training, plan_trainings
from attnprobe.finetune.tables import comparison_table, finetune_table, rates_table, training_table, value_of
from attnprobe.options import ModelOptions
from attnprobe.runs import Mode, RunFolder, require_usable
from attnprobe.scoring import scored_output
from attnprobe.training.folder import MODEL, keep_weights, open_training_run, spread_rows, weights_file
from attnprobe.training.options import require_trainable
from attnprobe.training.scores import Scores, score_outputs
from attnprobe.training.trainer import require_finite, require_integrations

logger = logging.getLogger(__name__)

FILES = (
    *("finetune.csv", "comparisons.csv", "rates.csv", "training.csv", "schedule.json", "report.html"),
    "model/",
)
NETS = ("A", "D")
"""AttendOut's nets, as :class:`~attnprobe.finetune.learning.Tuned` has them."""


def run_finetune(
    name: str,
    *,
    data: DataOptions,
    model: ModelOptions,
    options: FinetuneOptions,
    dropout: DropoutOptions,
    output_dir: Path,
    mode: Mode = "new",
    quiet: bool = False,
    command_line: str | None = None,
) -> RunFolder:
    """Fine-tune a checkpoint under several dropouts of attention, and leave a run folder with tables, model and report.

    Args:
        name: the checkpoint: folder, hub id or ``demo``.
        data: what to learn from and to measure on.
        model: how to open and score it.
        options, dropout: what to train.
        output_dir: the run folder.
        mode: see :func:`~attnprobe.runs.open_run`.
        quiet: no progress bar.
        command_line: what the user typed, for the report.

    Raises:
        AttnProbeError: see the parts; VerificationError when the checkpoint that is left is not what was measured.
    """
    from attnprobe.report import write_report

    if is_main():
        require_usable(output_dir, mode=mode)
    take_device(model.device)
    require_trainable(model, options, weights=True)
    require_integrations(options.report_to)
    with laid(name, data, model, options, dropout) as ground:
        sites = find_sites(ground.bench.checkpoint.model)
        trainings = plan_trainings(options, dropout, model.seed)
        for method in dropout.dropout if options.gradient_checkpointing else ():
            if not METHODS[method].load().recomputable:
                raise UsageError(f"--gradient-checkpointing can't be had with {method}: leave either out")
        if "scheduled" in dropout.dropout and dropout.schedule not in SCHEDULES:
            Schedule.read(Path(dropout.schedule), sites=len(sites))
        run = open_training_run(
            ground,
            [options, dropout],
            sites=sites,
            command="finetune",
            name=name,
            data=data,
            output_dir=output_dir,
            files=FILES,
            mode=mode,
            command_line=command_line,
        )
        if not run.complete:
            outcomes = _train(run, ground, trainings, resume=mode == "resume", quiet=quiet)
            if is_main():
                _conclude(run, ground, trainings, outcomes)
        else:
            logger.warning("%s is complete already; nothing is left to do", output_dir)
    if is_main() and not (run.complete and (output_dir / "report.html").exists()):
        run.finish()
        write_report(output_dir)
    share(None, device=model.device)
    return run


def _train(
    run: RunFolder, ground: FinetuneGround, trainings: Sequence[Training], *, resume: bool, quiet: bool
) -> dict[str, Outcome]:
    """Make every training that is not made yet; keep the weights of the best on the rows held out."""
    device = ground.model_options.device
    made = share([training.name for training in trainings if run.has_piece(training.name)], device=device)
    outcomes = dict(zip(made, map(Outcome.of, run.pieces(made)), strict=True))
    todo = [training for training in trainings if training.name not in outcomes]
    hidden = quiet or not is_main() or None
    for training in tqdm(todo, initial=len(made), total=len(trainings), disable=hidden):
        steps = _steps(ground, training, trainings, outcomes)
        folder = run.path / "partial" / f"training-{training.name}"
        outcome, model = _run_training(ground, training, steps, folder, resume=resume)
        outcomes[training.name] = outcome
        if is_main():
            if _chosen(ground, [t for t in trainings if t.name in outcomes], outcomes) is training:
                keep_weights(run, model)
            run.keep_piece(training.name, outcome.arrays())
            shutil.rmtree(folder, ignore_errors=True)
        share(None, device=device)
    return outcomes


def _steps(
    ground: FinetuneGround, training: Training, trainings: Sequence[Training], outcomes: Mapping[str, Outcome]
) -> int:
    """Optimizer steps of a training: those asked for, or as many as take the dearest method's time."""
    if training.match == "steps":
        return ground.options.max_steps
    costs: dict[str, list[float]] = {}
    for other in trainings:
        if other.match == "steps":
            costs.setdefault(other.dropout, []).append(outcomes[other.name].seconds / outcomes[other.name].steps)
    mean = {method: float(np.mean(of)) for method, of in costs.items()}
    steps = round(ground.options.max_steps * max(mean.values()) / mean[training.dropout])
    return int(share(steps, device=ground.model_options.device))


def _run_training(
    ground: FinetuneGround, training: Training, steps: int, folder: Path, *, resume: bool
) -> tuple[Outcome, PreTrainedModel]:
    """Train and measure; of AttendOut's two nets the one that is better on the rows held out."""
    tuned = train(ground, training, steps, folder, resume=resume)
    bench = ground.bench
    metric = bench.objective.metrics[0]
    held_out = []
    for model in tuned.models:
        require_finite(model.parameters())
        held_out.append(_score(ground, model, ground.encoded, ground.rows.held_out))
    best = max(range(len(held_out)), key=lambda number: (value_of(metric, held_out[number]), -_loss(held_out[number])))
    model = tuned.models[best]
    outcome = Outcome(
        scores=_score(ground, model, bench.encoded, range(len(bench.encoded))),
        held_out=held_out[best],
        progress=np.asarray([progress for progress, _ in tuned.rates]),
        rates=np.asarray([rates for _, rates in tuned.rates]),
        log=tuned.log,
        steps=steps,
        seconds=tuned.seconds,
        peak_memory=tuned.peak_memory,
        net=NETS[best] if len(tuned.models) > 1 else "",
    )
    return outcome, model


def _loss(scores: Scores) -> float:
    return float(np.nanmean(scores.loss))


def _score(ground: FinetuneGround, model: PreTrainedModel, encoded: Encoded, rows: Sequence[int]) -> Scores:
    objective = ground.bench.objective
    return score_outputs(
        model,
        objective,
        encoded,
        rows,
        lambda prepared: (scored_output(model, objective, prepared), prepared),
        batch_size=ground.model_options.per_device_batch_size,
    )


def _chosen(ground: FinetuneGround, trainings: Sequence[Training], outcomes: Mapping[str, Outcome]) -> Training:
    """The training whose model is kept: the best on the rows held out, by the metric and then by the loss."""
    metric = ground.bench.objective.metrics[0]

    def rank(training: Training) -> tuple[float, float]:
        held_out = outcomes[training.name].held_out
        return value_of(metric, held_out), -_loss(held_out)

    return max(trainings, key=rank)


def _conclude(
    run: RunFolder, ground: FinetuneGround, trainings: Sequence[Training], outcomes: Mapping[str, Outcome]
) -> None:
    """Tables, the learnt schedule, and the checkpoint."""
    bench, options = ground.bench, ground.options
    metric, chosen = bench.objective.metrics[0], _chosen(ground, trainings, outcomes)
    own, reward = len(ground.rows.own), len(ground.rows.reward)
    table = finetune_table(
        trainings,
        outcomes,
        shared={"checkpoint": bench.checkpoint.name, "data": bench.examples.source},
        metric=metric,
        trained_on={t.name: own if t.dropout == "attendout" else own + reward for t in trainings},
        chosen=chosen,
        resamples=options.resamples,
        seed=bench.seed,
    )
    run.write_table("finetune", table)
    run.write_table(
        "comparisons",
        comparison_table(trainings, outcomes, metric=metric, resamples=options.resamples, seed=bench.seed),
    )
    run.write_table("rates", rates_table(trainings, outcomes))
    run.write_table("training", training_table(trainings, outcomes))
    learnt = [outcomes[t.name] for t in trainings if t.dropout == "attendout" and t.match == "steps"]
    if learnt:
        _schedule(learnt).write(run.path / "schedule.json")
    _export(run, ground, chosen, table[table["exported"]].iloc[0].to_dict())
    run.save(
        warnings=list(bench.warnings),
        summary={"metric_name": metric, "exported": chosen.name},
    )


def _schedule(outcomes: Sequence[Outcome]) -> Schedule:
    """The learnt rates over training, the mean over seeds."""
    rates = np.mean([outcome.rates for outcome in outcomes], axis=0)
    return Schedule(
        method="attendout",
        progress=tuple(outcomes[0].progress.tolist()),
        rates=tuple(tuple(row) for row in rates.tolist()),
    )


def _export(run: RunFolder, ground: FinetuneGround, training: Training, row: Mapping[Hashable, object]) -> None:
    """Write ``model/``, an ordinary checkpoint, verified in a fresh process.

    Raises:
        VerificationError: the model that a fresh process loads gives other outputs.
    """
    bench = ground.bench
    model = bench.checkpoint.model
    model.load_state_dict(torch.load(weights_file(run), weights_only=True))
    with evaluating(model):
        checks = checks_of(model, next(bench.batches([spread_rows(bench)])).inputs)
    shown = ("dropout", "rate", "seed", "steps", "metric_name", "value", "ci_low", "ci_high")
    results = {name: row[name] for name in shown}
    save_stock(
        run.path / MODEL,
        checkpoint=replace(bench.checkpoint, model=model),
        card=Card(
            summary=f"{Path(bench.checkpoint.name).name}, fine-tuned on {ground.training.source}.",
            results=[results],
            command=run.record.get("command_line"),
            notes=[f"Measured on {bench.examples.source}, {len(bench.examples)} examples."],
        ),
        provenance={"training": training.name, **results},
        checks=checks,
        trust_remote_code=ground.model_options.trust_remote_code,
    )
