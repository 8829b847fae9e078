"""A sparsify run: every point of the sweep, each result on disk as it comes, then tables, the export, the report."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from attnprobe.attention import evaluating
from attnprobe.data.sources import DataOptions
from attnprobe.distributed import is_main, share, take_device
from attnprobe.export.card import Card
from attnprobe.export.verification import checks_of
from attnprobe.export.writing import save_export
from attnprobe.masks.applying import applied
from attnprobe.masks.mask import Mask
from attnprobe.options import ModelOptions
from attnprobe.runs import Mode, RunFolder, replacing, require_usable
from attnprobe.sparsify.engines import LOCAL, Engine, Job, Made
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.sparsify.outcome import Outcome
from attnprobe.sparsify.points import Point, plan_points
from attnprobe.sparsify.ray_engine import RAY
from attnprobe.sparsify.setting import Setting, opened
from attnprobe.sparsify.sweep import require_reachable
from attnprobe.sparsify.tables import (
    choose,
    kept_table,
    tradeoff_row,
    tradeoff_table,
    training_table,
)
from attnprobe.training.folder import MODEL, open_training_run, spread_rows
from attnprobe.training.options import require_trainable
from attnprobe.training.scores import Loss, compare
from attnprobe.training.trainer import require_integrations

logger = logging.getLogger(__name__)

FILES = ("tradeoff.csv", "kept.csv", "training.csv", "masks.npz", "report.html", "model/")
ENGINES: dict[str, Engine] = {"local": LOCAL, "ray": RAY}
"""Where points are made, by ``--engine``."""

SHOWN_LENGTH = 64
"""Tokens of the example whose masks are kept for the report, at most."""


def run_sparsify(
    name: str,
    *,
    data: DataOptions,
    model: ModelOptions,
    options: SparsifyOptions,
    output_dir: Path,
    mode: Mode = "new",
    quiet: bool = False,
    command_line: str | None = None,
) -> RunFolder:
    """Learn masks and make their controls, and leave a run folder with tables, the exported model and a report.

    Args:
        name: the checkpoint: folder, hub id, ``demo`` or an earlier export.
        data: what to learn from and to measure on.
        model: how to open and score it.
        options: what to learn.
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
    on_gpu = options.engine == "ray" and options.num_gpus > 0
    require_trainable(model, options, weights=options.train == "all", on_gpu=on_gpu)
    require_integrations(options.report_to)
    with ENGINES[options.engine].ready(options, model), opened(name, data, model, options) as setting:
        points = plan_points(options, model.seed)
        require_reachable(setting, points)
        run = open_training_run(
            setting,
            [options],
            sites=setting.session.sites,
            command="sparsify",
            name=name,
            data=data,
            output_dir=output_dir,
            files=FILES,
            mode=mode,
            command_line=command_line,
        )
        if not run.complete:
            _sweep(run, setting, points, name, data, resume=mode == "resume", quiet=quiet)
            if is_main():
                _conclude(run, setting, points)
        else:
            logger.warning("%s is complete already; nothing is left to do", output_dir)
    if is_main() and not (run.complete and (output_dir / "report.html").exists()):
        run.finish()
        write_report(output_dir)
    share(None, device=model.device)
    return run


def _sweep(
    run: RunFolder,
    setting: Setting,
    points: Sequence[Point],
    name: str,
    data: DataOptions,
    *,
    resume: bool,
    quiet: bool,
) -> None:
    """Make every point that is not made yet."""
    device = setting.model_options.device
    todo = share([point for point in points if not run.has_piece(point.name)], device=device)
    bar = tqdm(total=len(points), initial=len(points) - len(todo), unit="point", disable=quiet or not is_main() or None)
    job = Job(
        setting=setting,
        name=name,
        data=data,
        run=run,
        resume=resume,
        may_be_exported=partial(may_be_exported, run, setting),
        starting=lambda point: bar.set_description(point.name),
    )
    with bar, closing(ENGINES[setting.options.engine].make(job, todo)) as made:
        for one in made:
            if is_main():
                keep(run, one)
            bar.update()


def may_be_exported(run: RunFolder, setting: Setting, point: Point, outcome: Outcome) -> bool:
    """Whether a point's own weights may be needed for the export: it has such, and loses little enough."""
    if point.train not in ("weights", "all") or outcome.mask is None:
        return False
    dense = Outcome.of(next(run.pieces(["dense"]))).held_out
    return _compare_held_out(setting, outcome, dense).drop_high <= setting.options.max_drop / 100


def keep(run: RunFolder, made: Made) -> None:
    """Put a point's result on disk, its weights first where it may be the one to export."""
    if made.weights is not None:
        path = run.path / "partial" / f"weights-{made.point.name}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            torch.save({name: tensor.cpu() for name, tensor in made.weights.items()}, temporary)
    run.keep_piece(made.point.name, made.outcome.arrays())


def _compare_held_out(setting: Setting, outcome: Outcome, dense: Any) -> Loss:
    return compare(
        setting.bench.objective.metrics[0],
        outcome.held_out,
        dense,
        resamples=setting.options.resamples,
        seed=setting.bench.seed,
    )


def _conclude(run: RunFolder, setting: Setting, points: Sequence[Point]) -> None:
    """Tables, and the export of the chosen model."""
    outcomes = {
        point.name: Outcome.of(arrays)
        for point, arrays in zip(points, run.pieces([point.name for point in points]), strict=True)
    }
    dense = outcomes["dense"]
    metric, options = setting.bench.objective.metrics[0], setting.options
    on_data = {
        name: compare(metric, outcome.scores, dense.scores, resamples=options.resamples, seed=setting.bench.seed)
        for name, outcome in outcomes.items()
    }
    held_out = {name: _compare_held_out(setting, outcome, dense.held_out) for name, outcome in outcomes.items()}
    chosen = choose(points, held_out, outcomes, options.max_drop / 100)
    shared = {
        "checkpoint": setting.bench.checkpoint.name,
        "data": setting.bench.examples.source,
        "sharing": options.share,
        "block_size": options.kernel_block,
    }
    rows = [
        tradeoff_row(
            point,
            outcomes[point.name],
            shared=shared,
            metric=metric,
            on_data=on_data[point.name],
            held_out=held_out[point.name],
            exported=point is chosen,
        )
        for point in points
    ]
    run.write_table("tradeoff", tradeoff_table(rows))
    run.write_table("kept", kept_table(points, outcomes))
    run.write_table("training", training_table(points, outcomes))
    run.write_arrays("masks", _shown(setting, points, outcomes))
    if chosen is not None:
        row = rows[points.index(chosen)]
        export(run, setting, chosen, outcomes[chosen.name].mask, row)
    reason = _reason(chosen, points, outcomes, held_out, metric, options.max_drop)
    logger.info("%s", reason)
    run.save(
        warnings=list(setting.bench.warnings),
        summary={
            "dense": on_data["dense"].value,
            "metric_name": metric,
            "exported": None if chosen is None else chosen.name,
            "max_drop": options.max_drop / 100,
            "reason": reason,
        },
    )


def _reason(
    chosen: Point | None,
    points: Sequence[Point],
    outcomes: Mapping[str, Outcome],
    held_out: Mapping[str, Loss],
    metric: str,
    max_drop: float,
) -> str:
    """Why this model was exported, or none, in a sentence."""
    if chosen is None:
        masked = [point for point in points if outcomes[point.name].mask is not None]
        if not masked:
            return "no masked model was made, so none is exported"
        known = [point for point in masked if not np.isnan(held_out[point.name].drop_high)]
        if not known:
            rows = len(outcomes[masked[0].name].held_out.reference)
            return (
                f"no model is exported: {metric} on the rows held out ({rows}) has no 95 % interval; hold out more of "
                "them with --held-out, or give more rows to learn from"
            )
        nearest = min(known, key=lambda point: held_out[point.name].drop_high)
        return (
            f"no model is exported: on the rows held out none loses at most {max_drop:g} points of {metric} by its "
            f"95 % interval; the nearest, {nearest.name}, may lose {100 * held_out[nearest.name].drop_high:.1f}: "
            "allow more with --max-drop, ask for less with --target-sparsity, or let the weights learn with --train all"
        )
    loss = held_out[chosen.name]
    return (
        f"{chosen.name} is exported: the sparsest model that loses at most {max_drop:g} points of {metric} on the rows "
        f"held out by its 95 % interval ({100 * loss.drop:.1f}, at most {100 * loss.drop_high:.1f})"
    )


def export(run: RunFolder, setting: Setting, point: Point, mask: Mask | None, row: Mapping[str, Any]) -> None:
    """Write ``model/``, verified in a fresh process.

    Raises:
        VerificationError: the model that a fresh process loads gives other outputs.
    """
    assert mask is not None
    bench, model = setting.bench, setting.session.model
    setting.restore()
    weights = run.path / "partial" / f"weights-{point.name}.pt"
    if point.train in ("weights", "all"):
        model.load_state_dict(torch.load(weights, weights_only=True))
    with applied(setting.session, mask, setting.rules), evaluating(model):
        checks = checks_of(model, next(bench.batches([spread_rows(bench)])).inputs)
    shown = ("cell_sparsity", "nominal_sparsity", "block_sparsity", "metric_name", "value", "ci_low", "ci_high")
    results = {name: row[name] for name in (*shown, "dense", "drop", "drop_ci_low", "drop_ci_high")}
    save_export(
        run.path / MODEL,
        checkpoint=bench.checkpoint,
        mask=mask,
        rules=setting.rules,
        card=Card(
            summary=f"{Path(bench.checkpoint.name).name} under a mask by `{point.method}` ({point.granularity}).",
            results=[results],
            command=run.record.get("command_line"),
            notes=[f"Measured on {bench.examples.source}, {len(bench.examples)} examples."],
        ),
        provenance={"point": point.name, "seed": point.seed, "target": point.target, **results},
        checks=checks,
        trust_remote_code=setting.model_options.trust_remote_code,
    )
    setting.restore()


def _shown(setting: Setting, points: Sequence[Point], outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """``masks.npz``: every mask on one example of middling length, uint8 (sites, heads, n, n), and its ``tokens``."""
    bench = setting.bench
    lengths = np.asarray(bench.encoded.lengths)
    fitting = np.flatnonzero(lengths <= max(SHOWN_LENGTH, int(lengths.min())))
    row = int(fitting[np.argsort(lengths[fitting], kind="stable")[len(fitting) // 2]])
    inputs = bench.encoded.batch([row]).inputs
    at = setting.rules.positions(inputs["input_ids"], inputs["attention_mask"])
    assert bench.checkpoint.tokenizer is not None
    arrays: dict[str, Any] = {
        "tokens": np.asarray(bench.checkpoint.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist()))
    }
    for point in points:
        mask = outcomes[point.name].mask
        if mask is not None:
            kept = torch.stack([mask.keep(at, site)[0].expand(setting.heads, -1, -1) for site in range(setting.sites)])
            arrays[point.name] = (kept & at.valid).numpy().astype(np.uint8)
    return arrays
