"""Make one point of a sweep: its mask, the training it asks for, its scores."""

from __future__ import annotations

import shutil
import time
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np

from attnprobe.distributed import is_main
from attnprobe.errors import UsageError
from attnprobe.masks.applying import applied
from attnprobe.masks.gates import Gates
from attnprobe.masks.mask import GateMask, JointMask, Mask, PatternMask
from attnprobe.masks.relaxations import SMOOTHNESS
from attnprobe.masks.sparsity import account
from attnprobe.sparsify.controls import random_mask, scored_mask
from attnprobe.sparsify.learning import train
from attnprobe.sparsify.outcome import Outcome
from attnprobe.sparsify.points import Point
from attnprobe.sparsify.setting import Setting
from attnprobe.training.lesson import needs_dense
from attnprobe.training.scores import score
from attnprobe.training.trainer import require_finite

OPEN = 3.0
"""Logit at which gates start on average: open."""

SCORES = {"magnitude": "mass", "taylor": "effect"}
"""Which sum of :class:`~attnprobe.sparsify.controls.GateSums` ranks the gates of a method of kind ``scored``."""


def run_point(setting: Setting, point: Point, folder: Path, *, resume: bool = False) -> Outcome:
    """Make one point. The model has the point's weights afterwards; :meth:`Setting.restore` takes them back.

    Args:
        setting: of the sweep.
        point: which.
        folder: where training keeps its checkpoints; removed at the end.
        resume: go on with a training that ``folder`` holds.
    """
    began = time.monotonic()
    setting.restore()
    gates: Gates | None = None
    mask: Mask | None = None
    before: float | None = None
    log: list[dict[str, float]] = []
    if point.kind == "learnt":
        gates = make_gates(setting, point)
    elif point.kind != "dense":
        mask = _control(setting, point)
    if point.train != "none":
        mask, density, log = train(
            setting.session,
            setting.lesson,
            setting.options,
            gates=gates,
            mask=mask,
            density=None if point.target is None else 1 - point.target,
            train_weights=point.train != "gates",
            dense=setting.dense if needs_dense(setting.bench.objective, setting.options) else None,
            folder=folder,
            batch_size=setting.model_options.per_device_batch_size,
            seed=point.seed,
            resume=resume,
        )
        require_finite([*setting.session.model.parameters(), *(() if gates is None else gates.parameters())])
        before = None if density is None else 1 - density
        if is_main():
            shutil.rmtree(folder, ignore_errors=True)
    bench = setting.bench
    dense = point.kind == "dense" and point.train == "none"
    everyone = list(range(len(bench.encoded)))

    def within() -> AbstractContextManager[None]:
        return nullcontext() if mask is None else applied(setting.session, mask, setting.rules)

    scores = score(setting, bench.encoded, everyone, dense=dense, within=within)
    held_out = score(setting, setting.lesson.encoded, setting.held_out, dense=dense, within=within)
    kept, counted_sparsity = None, 0.0
    if mask is not None:
        counted_sparsity = _counted_sparsity(setting, mask)
        own = bench.checkpoint.mask  # of an export that is sparsified further
        kept = account(
            mask if own is None else JointMask(masks=(own, mask)),
            setting.positions(bench.encoded, everyone),
            setting.rules,
            sites=setting.sites,
            heads=setting.heads,
            length=bench.encoded.max_length,
            block_size=setting.options.kernel_block,
        )
    return Outcome(
        scores=scores,
        held_out=held_out,
        mask=mask,
        account=kept,
        counted_sparsity=counted_sparsity,
        before_threshold=before,
        log=log,
        steps=0 if point.train == "none" else setting.options.max_steps,
        seconds=round(time.monotonic() - began, 1),
    )


def make_gates(setting: Setting, point: Point) -> Gates:
    """Gates for a learnt point, at their start: the more the dense loss bends along a gate, the more open it is."""
    options = setting.options
    counts = setting.counts(point.diagonal)
    gates = Gates(
        setting.granularity,
        counts,
        sites=setting.sites,
        heads=setting.heads,
        diagonal=point.diagonal,
        share=options.share,
        relaxation="hard" if options.paper_form else options.relaxation,
        initial=0.0 if options.paper_form else OPEN,
        smoothness=1.0 if options.paper_form else SMOOTHNESS,
        spread_initial=1e-3 if options.paper_form else 0.0,
        seed=point.seed,
    )
    if not options.paper_form:
        gates.start_from(setting.sums.scores("fisher", counts))
    return gates.to(setting.session.model.device)


def require_reachable(setting: Setting, points: Sequence[Point]) -> None:
    """See that gates can meet every target: the cells kept whatever they say leave room for it, and for one gate more.

    Raises: UsageError.
    """
    gates = setting.sites * setting.heads
    for point in points:
        if point.target is None or point.kind == "pattern":
            continue
        counts = setting.counts(point.diagonal)
        cheapest = int(counts.cells[counts.seen].min()) if counts.seen.any() else 0
        least, most = counts.fixed / counts.valid, (counts.fixed + int(counts.cells.sum())) / counts.valid
        least += cheapest / counts.valid / gates
        if not least <= 1 - point.target < most:
            raise UsageError(
                f"--target-sparsity {point.target:g} can't be met by --granularity {point.granularity} with --diagonal "
                f"{point.diagonal}: on this data it must lie between {1 - most:.3f} and {1 - least:.3f}; "
                "choose another target, granularity or diagonal"
            )


def _control(setting: Setting, point: Point) -> Mask:
    assert point.target is not None
    if point.kind == "pattern":
        parameters = setting.fitted(point.method, point.target)
        return PatternMask(name=point.method, parameters=parameters, diagonal=point.diagonal)
    counts = setting.counts(point.diagonal)
    density = 1 - point.target
    if point.kind == "random":
        key = [point.seed, point.draw or 0, zlib.crc32(b"random")]
        return random_mask(
            setting.granularity,
            counts,
            sites=setting.sites,
            heads=setting.heads,
            density=density,
            diagonal=point.diagonal,
            seed=int(np.random.SeedSequence(key).generate_state(1)[0]),
        )
    scores = setting.sums.scores(SCORES[point.method], counts)
    return scored_mask(scores, setting.granularity, counts, density=density, diagonal=point.diagonal)


def _counted_sparsity(setting: Setting, mask: Mask) -> float:
    """Cell sparsity over the training data on which cells are counted."""
    if isinstance(mask, GateMask):
        return 1 - float(setting.counts(mask.diagonal).density(mask.gates))
    kept = valid = 0
    for at in setting.counted_positions():
        kept += int((mask.keep(at, 0) & at.valid.unsqueeze(1)).sum())
        valid += int(at.valid.sum())
    return 1 - kept / valid
