"""What the benchmarks share: a bench on real text, and timing of two things side by side in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from attnprobe.attention import AttentionSession
from attnprobe.data.sources import DataOptions
from attnprobe.importance.context import Context, Item
from attnprobe.importance.options import ImportanceOptions
from attnprobe.importance.run import make_context, make_item
from attnprobe.options import ModelOptions
from attnprobe.workbench import Workbench, prepare


def open_bench(
    checkpoint: str,
    eval_file: str | None,
    *,
    examples: int,
    batch_size: int = 32,
    max_length: int = 64,
    device: str = "cpu",
) -> Workbench:
    """A checkpoint with the first rows of a file, or of the built-in prose."""
    data = DataOptions(eval_file=Path(eval_file) if eval_file else None, limit=examples)
    options = ModelOptions(max_length=max_length, per_device_batch_size=batch_size, device=device)
    return prepare(checkpoint, data, options)


def probing(bench: Workbench, session: AttentionSession, *, batch_size: int = 32) -> tuple[Context, list[Item]]:
    """The context of a default importance run, and every batch of its data."""
    context = make_context(bench, session, ImportanceOptions())
    plan = bench.encoded.plan(batch_size)
    items = [make_item(bench, context, batch) for batch in bench.batches(plan)]
    for item in items:
        item.generator.manual_seed(0)
    return context, items


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two things, run by turns.

    Attributes:
        ours, theirs: median seconds.
        ratio, low, high: ours / theirs: the median over rounds, and the lowest and highest of a round.
        memory: the most MiB of the GPU that each held at once, weights included; 0 without a GPU.
    """

    ours: float
    theirs: float
    ratio: float
    low: float
    high: float
    memory: tuple[float, float]


def compare(ours: Callable[[], object], theirs: Callable[[], object], *, rounds: int = 7) -> Comparison:
    """Time two things by turns, each once before that."""
    memory = _peak(ours), _peak(theirs)
    times = [(_seconds(theirs), _seconds(ours)) for _ in range(rounds)]
    ratios = [our / their for their, our in times]
    return Comparison(
        ours=statistics.median(our for _, our in times),
        theirs=statistics.median(their for their, _ in times),
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        memory=memory,
    )


def _peak(run: Callable[[], object]) -> float:
    if not torch.cuda.is_available():
        run()
        return 0.0
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() / 2**20


def _seconds(run: Callable[[], object]) -> float:
    """How long something takes, until a GPU has done what it was given."""
    start = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def report(name: str, found: Comparison) -> None:
    """Print a ratio with its range and the number of threads."""
    print(f"{name}: {found.ratio:.2f} x [{found.low:.2f}, {found.high:.2f}] ({torch.get_num_threads()} threads)")
