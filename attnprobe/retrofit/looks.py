"""What a model's attention looks like: the table of heads that `attnprobe importance` leaves too, as ``heads.csv``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from attnprobe.attention import AttentionCall, evaluating
from attnprobe.attention.backends import Observer
from attnprobe.importance.heads import HeadStatistics, heads_table
from attnprobe.importance.layout import Layout
from attnprobe.scoring import first_output, to_numpy
from attnprobe.statistics import bootstrap_means
from attnprobe.training.ground import Ground

LOOKED_AT = 500
"""Evaluation rows on which attention is looked at, at most."""


def looks(ground: Ground, *, resamples: int) -> pd.DataFrame:
    """Entropy and divergence of every head under whatever is in force: see :func:`heads_table`.

    Args:
        ground: what the model stands on.
        resamples: bootstrap resamples behind the intervals.
    """
    bench, session, model = ground.bench, ground.session, ground.session.model
    causal = session.sites[0].causal
    layout = Layout(sites=ground.sites, heads=ground.heads, causal=causal, classes=(), offsets=())
    examples = min(LOOKED_AT, len(bench.encoded))
    parts: dict[str, list[NDArray[np.float32]]] = {}
    sums: dict[str, NDArray[np.float64]] = {}
    plan = bench.encoded.plan(ground.model_options.per_device_batch_size, rows=list(range(examples)))
    with evaluating(model), torch.no_grad():
        for batch in bench.batches(plan):
            statistics = HeadStatistics(bench.positions(batch, causal=causal), layout, length=1)
            with session.observe(_feed(statistics)):
                first_output(model, bench.objective.prepare(batch).inputs)
            for name, values in statistics.per_example().items():
                parts.setdefault(name, []).append(to_numpy(values).reshape(len(values), -1))
            for name, total in statistics.sums().items():
                sums[name] = sums[name] + total if name in sums else total
    estimates = {}
    for name, of_batches in parts.items():
        whole = np.concatenate(of_batches)

        def blocks(whole: NDArray[np.float32] = whole) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
            yield np.arange(len(whole)), whole

        estimates[name.removeprefix("head/")] = bootstrap_means(blocks, examples, resamples=resamples, seed=bench.seed)
    return heads_table(estimates, sums, ground.sites, ground.heads)


def _feed(statistics: HeadStatistics) -> Observer:
    def observe(call: AttentionCall, probabilities: torch.Tensor) -> None:
        statistics.add(call.site.index, probabilities.to(torch.promote_types(probabilities.dtype, torch.float32)))

    return observe
