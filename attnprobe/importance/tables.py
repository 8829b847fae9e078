"""From the pieces of a run to its tables: means over examples, paired intervals, agreement of methods."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attnprobe.data.positions import UNIONS
from attnprobe.importance.heads import heads_table
from attnprobe.importance.layout import Layout
from attnprobe.importance.methods import LEVELS, METHODS, Series
from attnprobe.importance.options import ImportanceOptions
from attnprobe.importance.pieces import Pieces
from attnprobe.metrics import METRICS
from attnprobe.runs import RunFolder
from attnprobe.statistics import Estimate, interval, rank_correlation
from attnprobe.workbench import Workbench

_VALUE = ("value", "unit", "ci_low", "ci_high", "control", "control_ci_low", "control_ci_high")
_BESIDE = ("loss_dense", "loss_ablated", "metric_name", "metric_dense", "metric_ablated")

COLUMNS = (
    *("method", "level", "position_class", "site", "head"),
    *_VALUE,
    *_BESIDE,
    *("cells", "examples", "control_cells"),
)
"""Columns of ``importance.csv``. Positive values: removing it hurts, or, for mass, it receives attention."""

OFFSET_COLUMNS = ("method", "offset", *_VALUE, "cells", "examples")
"""Columns of ``offsets.csv``; ``offset`` is i - j in tokens."""

AGREEMENT_COLUMNS = (
    *("level", "method_a", "method_b", "statistic", "value", "ci_low", "ci_high"),
    *("items", "examples"),
)

GAP_WARNING = 0.01
"""Completeness gap of integrated gradients, relative to the change of the loss, above which the run warns."""


def write_tables(
    run: RunFolder, layout: Layout, options: ImportanceOptions, bench: Workbench, plan: list[list[int]]
) -> list[str]:
    """Write every table of a run whose pieces are all there.

    Returns:
        Warnings that the figures call for.
    """
    pieces = Pieces(run, plan, resamples=options.resamples, seed=bench.seed)
    methods = [name for name in METHODS if name in options.methods]
    estimates = {name: pieces.estimate(name) for name in methods}
    builder = _Builder(pieces, layout, bench.objective.metrics[0])
    figures = [builder.figures(name, estimates[name]) for name in methods]
    table = pd.concat(figures, ignore_index=True)
    is_offset = table["level"] == "offset"
    run.write_table("importance", table.loc[~is_offset, list(COLUMNS)])
    run.write_table("offsets", table.loc[is_offset, list(OFFSET_COLUMNS)].astype({"offset": int}))
    run.write_table("agreement", _agreement(estimates, layout))
    warnings = []
    if "mass" in estimates:
        sums = run.sums("mass-sums")
        of_heads = {key.removeprefix("head/"): e for key, e in estimates["mass"].items() if key.startswith("head/")}
        run.write_table("heads", heads_table(of_heads, sums, layout.sites, layout.heads))
        counts = sums["map_counts"]
        maps = sums["maps"] / np.maximum(counts, 1)
        run.write_arrays("maps", {"maps": maps.astype(np.float32), "counts": counts.astype(np.int64)})
    if "integrated-gradients" in estimates:
        gap = _completeness(pieces)
        run.save(summary=run.record.get("summary", {}) | {"completeness_gap": gap})
        if gap > GAP_WARNING:
            warnings.append(
                f"integrated gradients are incomplete: they miss {gap:.1%} of the change of the loss; raise --n-steps"
            )
    return warnings


class _Builder:
    """Turns estimates into rows of the tables."""

    def __init__(self, pieces: Pieces, layout: Layout, metric: str) -> None:
        self.pieces, self.layout = pieces, layout
        self.metric = METRICS[metric]
        self.dense_loss = pieces.gather("dense", "loss").astype(np.float64)
        self.prediction = pieces.gather("dense", "prediction")
        self.reference = pieces.gather("dense", "reference")
        self.cells = {
            axis: pieces.gather("dense", f"{axis}_cells").sum(0, dtype=np.float64)
            for axis in ("class", "offset", "valid")
        }

    def figures(self, method: str, estimates: dict[str, Estimate]) -> pd.DataFrame:
        """All rows of a method, for ``importance.csv`` and, at level ``offset``, for ``offsets.csv``."""
        frames = [
            self._rows(method, level, series, estimates)
            for series, level in product(METHODS[method].series, LEVELS)
            if f"{level}/{series.value}" in estimates
        ]
        return pd.concat(frames, ignore_index=True)

    def _rows(self, method: str, level: str, series: Series, estimates: dict[str, Estimate]) -> pd.DataFrame:
        estimate = estimates[f"{level}/{series.value}"]
        control = estimates.get(f"{level}/{series.control}")
        columns: dict[str, Any] = {"method": method, "level": level, **self._places(level), "unit": series.unit}
        if series.relative and control is not None:
            estimate, control = estimate.over(control), None
            columns["control"] = 1.0
        columns |= _with_interval("value", "ci", estimate)
        if control is not None:
            columns |= _with_interval("control", "control_ci", control)
        if method == "ablation":
            columns |= self._beside(level, estimates)
        columns["examples"] = estimate.examples
        table = pd.DataFrame(columns, index=range(len(estimate.value)))
        return table.reindex(columns=list(dict.fromkeys((*COLUMNS, *OFFSET_COLUMNS))))

    def _places(self, level: str) -> dict[str, Any]:
        """Class, site, head or offset of each figure of a level, and its cells in the data."""
        axes, shape = LEVELS[level], self.layout.shape(level)
        index = dict(zip(axes, np.indices(shape).reshape(len(shape), -1), strict=True))
        columns: dict[str, Any] = {
            axis: pd.array(index[axis], dtype="Int64") for axis in axes if axis in ("site", "head")
        }
        if "class" in index:
            columns["position_class"] = np.asarray(self.layout.classes, dtype=object)[index["class"]]
        if "offset" in index:
            columns["offset"] = np.asarray(self.layout.offsets)[index["offset"]]
        kind = axes[0] if axes[0] in self.cells else None
        cells = self.cells[kind][index[kind]] if kind else np.full(int(np.prod(shape)), self.cells["valid"])
        return columns | {"cells": cells.astype(np.int64)}

    def _beside(self, level: str, estimates: dict[str, Estimate]) -> dict[str, Any]:
        """Losses and metrics, dense and ablated, over the examples that have each figure."""
        predictions = self.pieces.gather("ablation", f"{level}/prediction")
        flat = predictions.reshape(self.pieces.examples, -1, predictions.shape[-1])
        present = np.isfinite(flat[:, :, 0]) & np.isfinite(self.dense_loss)[:, None]
        dense_loss = np.asarray([np.nanmean(self.dense_loss[rows]) if rows.any() else np.nan for rows in present.T])
        beside: dict[str, Any] = {
            "loss_dense": dense_loss,
            "loss_ablated": dense_loss + estimates[f"{level}/loss"].value,
            "metric_name": self.metric.name,
            "metric_dense": [self._score(self.prediction, rows) for rows in present.T],
            "metric_ablated": [self._score(flat[:, figure], rows) for figure, rows in enumerate(present.T)],
        }
        drawn = estimates.get(f"{level}/control_cells")
        if drawn is not None:
            beside["control_cells"] = np.round(np.nan_to_num(drawn.value * drawn.examples)).astype(np.int64)
        return beside

    def _score(self, predictions: NDArray[Any], rows: NDArray[np.bool_]) -> float:
        if not rows.any():
            return float("nan")
        chosen = predictions[rows]
        return self.metric.compute(chosen[:, 0] if chosen.shape[1] == 1 else chosen, self.reference[rows])


def _with_interval(name: str, prefix: str, estimate: Estimate) -> dict[str, Any]:
    low, high = estimate.interval()
    return {name: estimate.value, f"{prefix}_low": low, f"{prefix}_high": high}


def _agreement(estimates: dict[str, dict[str, Estimate]], layout: Layout) -> pd.DataFrame:
    """Spearman's rank correlation of each two methods at each level, with its interval; unions are left out."""
    partition_only = np.asarray([name not in UNIONS for name in layout.classes])
    rows = []
    for level, axes in LEVELS.items():
        found = {m: e[key] for m, e in estimates.items() if (key := f"{level}/{METHODS[m].series[0].value}") in e}
        chosen = np.ones(layout.shape(level), dtype=bool)
        if "class" in axes:
            chosen &= partition_only.reshape(-1, *[1] * (len(axes) - 1))
        for (a, first), (b, second) in combinations(found.items(), 2):
            sides = [np.column_stack([e.value, e.replicates])[chosen.ravel()] for e in (first, second)]
            known = np.isfinite(sides[0][:, 0]) & np.isfinite(sides[1][:, 0])
            values = rank_correlation(*sides)
            low, high = interval(values[None, 1:])
            examples = int(min(first.examples.max(), second.examples.max()))
            rows.append((level, a, b, "spearman", values[0], low[0], high[0], int(known.sum()), examples))
    return pd.DataFrame(rows, columns=list(AGREEMENT_COLUMNS))


def _completeness(pieces: Pieces) -> float:
    """Mean completeness gap of integrated gradients, relative to the mean change of the loss, both without sign."""
    gap = np.nansum(np.abs(pieces.gather("integrated-gradients", "completeness/gap")))
    total = np.nansum(np.abs(pieces.gather("integrated-gradients", "completeness/total")))
    return float(gap / total) if total else 0.0
