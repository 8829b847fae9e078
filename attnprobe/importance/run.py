"""An importance run: every method on every batch, each result on disk as it comes, then the tables."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from attnprobe.attention import AttentionSession, evaluating
from attnprobe.data.batches import Batch
from attnprobe.data.sources import DataOptions
from attnprobe.importance.cells import Cells
from attnprobe.importance.context import Arrays, Context, Item, Items, Measurement
from attnprobe.importance.layout import lay_out
from attnprobe.importance.methods import METHODS
from attnprobe.importance.options import ImportanceOptions
from attnprobe.importance.pieces import piece_name
from attnprobe.importance.tables import write_tables
from attnprobe.options import ModelOptions
from attnprobe.runs import Mode, RunFolder, open_run, require_usable
from attnprobe.scoring import to_numpy
from attnprobe.workbench import Workbench, prepare

logger = logging.getLogger(__name__)

FILES = ("importance.csv", "offsets.csv", "agreement.csv", "heads.csv", "maps.npz", "report.html")


def run_importance(
    name: str,
    *,
    data: DataOptions,
    model: ModelOptions,
    options: ImportanceOptions,
    output_dir: Path,
    mode: Mode = "new",
    quiet: bool = False,
    command_line: str | None = None,
) -> RunFolder:
    """Measure the importance of attention in a checkpoint, and leave a run folder with tables and a report.

    Args:
        name: the checkpoint: folder, hub id or ``demo``.
        data: what to measure on.
        model: how to open and score it.
        options: what to probe.
        output_dir: the run folder.
        mode: see :func:`~attnprobe.runs.open_run`.
        quiet: no progress bar.
        command_line: what the user typed, for the report.

    Raises:
        AttnProbeError: see the parts.
    """
    from attnprobe.report import write_report

    require_usable(output_dir, mode=mode)
    bench = prepare(name, data, model)
    with bench.attached() as session, evaluating(bench.checkpoint.model):
        context = make_context(bench, session, options)
        run = open_run(
            output_dir,
            command="importance",
            command_line=command_line,
            arguments={"checkpoint": name, **asdict(data), **asdict(model), **asdict(options)},
            identity={"seed": model.seed, **bench.identity(session.sites)},
            files=FILES,
            mode=mode,
        )
        if run.complete:
            logger.warning("%s is complete already; nothing is left to do", output_dir)
            if not (output_dir / "report.html").exists():  # killed between the tables and the report
                write_report(output_dir)
            return run
        plan = bench.encoded.plan(
            model.per_device_batch_size,
            max_cells=options.max_cells,
            cells_per_pair=context.layout.sites * context.layout.heads,
        )
        context = _fit(run, bench, context, plan, quiet=quiet)
        _measure(run, bench, context, plan, quiet=quiet)
    warnings = list(bench.warnings) + write_tables(run, context.layout, options, bench, plan)
    run.save(warnings=warnings)
    run.finish()
    write_report(output_dir)
    return run


def make_context(bench: Workbench, session: AttentionSession, options: ImportanceOptions) -> Context:
    """The fixed parts of a run: which figures there are, for this model, these options and this data."""
    longest = max(bench.encoded.lengths)
    layout = lay_out(
        session.sites,
        classes=options.classes,
        include_special=options.include_special,
        max_offset=options.max_offset,
        longest=longest,
    )
    return Context(
        session=session,
        objective=bench.objective,
        layout=layout,
        options=options,
        longest=longest,
    )


def _fit(run: RunFolder, bench: Workbench, context: Context, plan: list[list[int]], *, quiet: bool) -> Context:
    """Let the methods that learn do so, each once; what they learnt is a piece of the run like any other."""
    fitted = {}
    for name in METHODS:
        if name not in context.options.methods or not hasattr(_module(name), "fit"):
            continue
        piece = f"{name}/fit"
        if not run.has_piece(piece):
            run.keep_piece(piece, _learn(name, bench, context, plan, quiet=quiet))
        fitted[name] = next(run.pieces([piece]))
    return replace(context, fitted=fitted)


def _learn(name: str, bench: Workbench, context: Context, plan: list[list[int]], *, quiet: bool) -> Arrays:
    with tqdm(unit="batch", desc=f"{name}: learning", disable=quiet or None) as bar:

        def make(number: int) -> Item:
            bar.update()
            item = _item(bench, context, next(bench.batches([plan[number]])))
            item.generator.manual_seed(_seed(bench, f"{name}/fit", number))
            return item

        generator = torch.Generator().manual_seed(_seed(bench, f"{name}/fit", len(plan)))
        learnt: Arrays = _module(name).fit(context, Items(number=len(plan), make=make), generator)
    return learnt


def _measure(run: RunFolder, bench: Workbench, context: Context, plan: list[list[int]], *, quiet: bool) -> None:
    methods = [name for name in METHODS if name in context.options.methods]
    passes = {"dense": 1} | {name: METHODS[name].passes for name in methods}
    bar = tqdm(total=sum(passes.values()) * len(plan), unit="pass", desc="importance", disable=quiet or None)
    with bar:
        for number, batch in enumerate(bench.batches(plan)):
            todo = {name: _probe(name) for name in passes if not run.has_piece(piece_name(name, number))}
            item = make_item(bench, context, batch) if todo else None
            for name in passes:
                if item is not None and name in todo:
                    item.generator.manual_seed(_seed(bench, name, number))
                    _keep(run, name, number, todo[name](context, item))
                bar.update(passes[name])


def _seed(bench: Workbench, method: str, number: int) -> int:
    """A seed of its own for each method and batch."""
    key = [bench.seed, zlib.crc32(method.encode()), number]
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def _probe(name: str) -> Callable[[Context, Item], Measurement]:
    if name == "dense":
        return _dense
    measure: Callable[[Context, Item], Measurement] = _module(name).measure
    return measure


def _module(name: str) -> Any:
    return import_module(f"attnprobe.importance.{METHODS[name].module}")


def make_item(bench: Workbench, context: Context, batch: Batch) -> Item:
    """A batch, ready to be probed: its positions, and the dense model's output on it."""
    item = _item(bench, context, batch)
    return replace(item, prepared=context.with_dense(item.prepared))


def _item(bench: Workbench, context: Context, batch: Batch) -> Item:
    positions = bench.positions(
        batch,
        causal=context.layout.causal,
        window=context.options.window,
        include_special=context.options.include_special,
    )
    prepared = context.objective.prepare(batch)
    return Item(prepared=prepared, cells=Cells(positions, context.layout), generator=torch.Generator())


def _dense(context: Context, item: Item) -> Measurement:
    """The untouched model: loss, predictions, what they are compared with, and how many cells each class has."""
    objective, prepared = context.objective, item.prepared
    assert prepared.dense is not None
    return Measurement(
        per_example={
            "rows": prepared.batch.indices.cpu().numpy(),
            "loss": to_numpy(objective.loss(prepared.dense, prepared)),
            "prediction": to_numpy(objective.predictions(prepared.dense, prepared)),
            "reference": to_numpy(objective.references(prepared)),
            "class_cells": to_numpy(item.cells.counts),
            "offset_cells": to_numpy(item.cells.offset_counts),
            "valid_cells": to_numpy(item.cells.at.valid.sum((1, 2))),
        }
    )


def _keep(run: RunFolder, method: str, number: int, measurement: Measurement) -> None:
    if measurement.sums is not None:
        run.add_to_sums(f"{method}-sums", number, measurement.sums)
    run.keep_piece(piece_name(method, number), measurement.per_example)
