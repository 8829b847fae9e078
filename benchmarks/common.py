"""What the benchmarks share: a bench on real text, and timing of two things side by side in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from attnprobe.attention import AttentionSession
from attnprobe.data.sources import DataOptions
from attnprobe.importance.context import Context, Item
from attnprobe.importance.options import ImportanceOptions
from attnprobe.importance.run import make_context, make_item
from attnprobe.options import ModelOptions
from attnprobe.workbench import Workbench, prepare


def open_bench(checkpoint: str, eval_file: str | None, *, examples: int, batch_size: int = 32) -> Workbench:
    """A checkpoint with the first rows of a file, or of the built-in prose."""
    data = DataOptions(eval_file=Path(eval_file) if eval_file else None, limit=examples)
    return prepare(checkpoint, data, ModelOptions(max_length=64, per_device_batch_size=batch_size))


def probing(bench: Workbench, session: AttentionSession, *, batch_size: int = 32) -> tuple[Context, list[Item]]:
    """The context of a default importance run, and every batch of its data."""
    context = make_context(bench, session, ImportanceOptions())
    plan = bench.encoded.plan(batch_size)
    items = [make_item(bench, context, batch) for batch in bench.batches(plan)]
    for item in items:
        item.generator.manual_seed(0)
    return context, items


def ratio(ours: Callable[[], object], theirs: Callable[[], object], *, rounds: int = 7) -> tuple[float, float, float]:
    """Median of ours / theirs over rounds, the two run by turns; and the lowest and highest ratio of a round."""
    ours(), theirs()
    ratios = []
    for _ in range(rounds):
        start = time.perf_counter()
        theirs()
        middle = time.perf_counter()
        ours()
        ratios.append((time.perf_counter() - middle) / (middle - start))
    return statistics.median(ratios), min(ratios), max(ratios)


def report(name: str, ratios: tuple[float, float, float]) -> None:
    """Print a ratio with its range and the number of threads."""
    median, low, high = ratios
    print(f"{name}: {median:.2f} x [{low:.2f}, {high:.2f}] ({torch.get_num_threads()} threads)")
