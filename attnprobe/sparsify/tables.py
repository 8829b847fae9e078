"""From the outcomes of a sweep to its tables, and to the choice of the model that is exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attnprobe.data.positions import BIDIRECTIONAL, CAUSAL, partition
from attnprobe.sparsify.outcome import LOG_COLUMNS, Outcome
from attnprobe.sparsify.points import Point
from attnprobe.training.scores import Loss

CLASSES = tuple(dict.fromkeys([*BIDIRECTIONAL, *CAUSAL]))

COLUMNS = (
    *("point", "checkpoint", "data", "method", "granularity", "sharing", "diagonal", "train", "target"),
    *("cell_sparsity", "nominal_sparsity", "block_sparsity", "block_size"),
    *("metric_name", "value", "ci_low", "ci_high", "dense", "drop", "drop_ci_low", "drop_ci_high", "loss"),
    *("heldout_value", "heldout_dense", "heldout_drop", "heldout_drop_ci_high"),
    *("counted_sparsity", "sparsity_before_threshold", "steps", "seconds", "seed", "draw", "examples", "exported"),
    *(f"kept_{name}" for name in CLASSES),
)
"""Columns of ``tradeoff.csv``: sparsities and shares are fractions; value, dense and drop are in the metric's unit."""

KEPT_COLUMNS = ("point", "site", "head", "position_class", "kept", "cells")
TRAINING_COLUMNS = ("point", *LOG_COLUMNS)


AS_SPARSE = 0.005
"""Difference in sparsity up to which two masks count as equally sparse: how far a target may be missed."""


def choose(
    points: Sequence[Point], held_out: Mapping[str, Loss], outcomes: Mapping[str, Outcome], max_drop: float
) -> Point | None:
    """The sparsest masked model whose metric on the rows held out drops by at most ``max_drop``, interval included.

    Of several that are as sparse (to half a point), the one that drops least. Decided on training rows alone.
    """
    fit = [
        point
        for point in points
        if outcomes[point.name].mask is not None and held_out[point.name].drop_high <= max_drop
    ]
    if not fit:
        return None
    sparsest = max(outcomes[point.name].counted_sparsity for point in fit)
    as_sparse = [point for point in fit if outcomes[point.name].counted_sparsity > sparsest - AS_SPARSE]
    return min(as_sparse, key=lambda point: held_out[point.name].drop)


def tradeoff_row(
    point: Point,
    outcome: Outcome,
    *,
    shared: Mapping[str, Any],
    metric: str,
    on_data: Loss,
    held_out: Loss,
    exported: bool,
) -> dict[str, Any]:
    """A row of ``tradeoff.csv``. ``shared``: the columns that are the same in every row of a run."""
    account = outcome.account
    return {
        **shared,
        "point": point.name,
        "method": point.method,
        "granularity": point.granularity,
        "sharing": shared["sharing"] if point.kind == "learnt" else "",
        "diagonal": point.diagonal,
        "train": point.train,
        "target": point.target,
        "cell_sparsity": 0.0 if account is None else account.cell,
        "nominal_sparsity": 0.0 if account is None else account.nominal,
        "block_sparsity": 0.0 if account is None else account.block,
        "metric_name": metric,
        **on_data.columns(),
        "loss": float(np.nanmean(outcome.scores.loss)),
        "heldout_value": held_out.value,
        "heldout_dense": held_out.dense,
        "heldout_drop": held_out.drop,
        "heldout_drop_ci_high": held_out.drop_high,
        "counted_sparsity": outcome.counted_sparsity,
        "sparsity_before_threshold": outcome.before_threshold,
        "steps": outcome.steps,
        "seconds": outcome.seconds,
        "seed": point.seed,
        "draw": point.draw,
        "examples": len(outcome.scores.reference),
        "exported": exported,
        **{f"kept_{name}": share for name, share in (account.kept_by_class() if account else {}).items()},
    }


def tradeoff_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """``tradeoff.csv``."""
    table = pd.DataFrame(rows).reindex(columns=list(COLUMNS))
    return table.astype({"draw": "Int64", "seed": "Int64", "steps": "Int64"})


def kept_table(points: Sequence[Point], outcomes: Mapping[str, Outcome]) -> pd.DataFrame:
    """``kept.csv``: share of each class's cells that a mask keeps, by site and head."""
    rows = []
    for point in points:
        account = outcomes[point.name].account
        if account is None:
            continue
        sites, heads, _ = account.kept.shape
        for number, name in enumerate(partition(account.causal)):
            cells = int(account.valid[number])
            if cells:
                share = (account.kept[:, :, number].double() / cells).tolist()
                rows += [
                    (point.name, site, head, name, share[site][head], cells)
                    for site in range(sites)
                    for head in range(heads)
                ]
    return pd.DataFrame(rows, columns=list(KEPT_COLUMNS))


def training_table(points: Sequence[Point], outcomes: Mapping[str, Outcome]) -> pd.DataFrame:
    """``training.csv``: the log of every training."""
    rows = [{"point": point.name, **row} for point in points for row in outcomes[point.name].log]
    return pd.DataFrame(rows, columns=list(TRAINING_COLUMNS)).astype({"step": "Int64"})
