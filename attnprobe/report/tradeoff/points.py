"""Reading the run folder of `attnprobe sparsify`: points, what their heads keep, how they learnt, their masks."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attnprobe.errors import RunFolderError
from attnprobe.report.tables import Record, read_info, real, require_table, table_or_empty, text

KEPT = "kept_"
"""How the columns of tradeoff.csv begin that say what a position class keeps."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One row of tradeoff.csv. What it does not have is NaN; sparsities and what classes keep are shares, 0 to 1."""

    point: str
    checkpoint: str
    data: str
    method: str
    granularity: str
    sharing: str
    diagonal: str
    train: str
    target: float
    cell_sparsity: float
    nominal_sparsity: float
    block_sparsity: float
    block_size: float
    metric_name: str
    value: float
    low: float
    high: float
    dense: float
    drop: float
    drop_low: float
    drop_high: float
    loss: float
    heldout_value: float
    heldout_dense: float
    heldout_drop: float
    heldout_drop_high: float
    counted_sparsity: float
    before_threshold: float
    steps: float
    seconds: float
    seed: float
    draw: float
    examples: float
    exported: bool
    kept: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Masks:
    """The masks of points on one example: bool (sites, heads, n, n) by point, True where kept; and its n tokens."""

    tokens: Sequence[str]
    kept: Mapping[str, NDArray[np.bool_]] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Sweep(Record):
    """A run of `sparsify` as read: tables that the run did not leave are empty, masks are None."""

    points: Sequence[Point]
    kept: pd.DataFrame
    training: pd.DataFrame
    masks: Masks | None = field(repr=False)

    @property
    def max_drop(self) -> float:
        """The most that the exported model may lose, in the metric's unit; NaN where no limit was set."""
        return real(self.part("summary").get("max_drop"))

    @property
    def reason(self) -> str:
        """Why this model, or none, was exported: a sentence of the run, or nothing."""
        return text(self.part("summary").get("reason")).strip()


def read_sweep(folder: Path) -> Sweep:
    """Read a run folder of `sparsify`.

    Raises: RunFolderError for a folder, run.json or table that is missing or cannot be read.
    """
    return Sweep(
        path=folder,
        info=read_info(folder),
        points=read_points(folder),
        kept=table_or_empty(folder / "kept.csv"),
        training=table_or_empty(folder / "training.csv"),
        masks=_read_masks(folder / "masks.npz"),
    )


def read_points(folder: Path) -> list[Point]:
    """The rows of a run's tradeoff.csv. Raises: RunFolderError."""
    path = folder / "tradeoff.csv"
    found = points_of(require_table(path).to_dict("records"))
    names = [point.point for point in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RunFolderError(f"{path} must name each point once, it names {twice} several times: run again")
    return found


def points_of(records: Iterable[Mapping[Any, Any]]) -> list[Point]:
    """Rows of tradeoff.csv, as read, in their order."""
    return [_point(record) for record in records]


def _point(record: Mapping[Any, Any]) -> Point:
    kept = {str(name).removeprefix(KEPT): real(value) for name, value in record.items() if str(name).startswith(KEPT)}
    return Point(
        point=text(record.get("point")),
        checkpoint=text(record.get("checkpoint")),
        data=text(record.get("data")),
        method=text(record.get("method")),
        granularity=text(record.get("granularity")),
        sharing=text(record.get("sharing")),
        diagonal=text(record.get("diagonal")),
        train=text(record.get("train")),
        target=real(record.get("target")),
        cell_sparsity=real(record.get("cell_sparsity")),
        nominal_sparsity=real(record.get("nominal_sparsity")),
        block_sparsity=real(record.get("block_sparsity")),
        block_size=real(record.get("block_size")),
        metric_name=text(record.get("metric_name")),
        value=real(record.get("value")),
        low=real(record.get("ci_low")),
        high=real(record.get("ci_high")),
        dense=real(record.get("dense")),
        drop=real(record.get("drop")),
        drop_low=real(record.get("drop_ci_low")),
        drop_high=real(record.get("drop_ci_high")),
        loss=real(record.get("loss")),
        heldout_value=real(record.get("heldout_value")),
        heldout_dense=real(record.get("heldout_dense")),
        heldout_drop=real(record.get("heldout_drop")),
        heldout_drop_high=real(record.get("heldout_drop_ci_high")),
        counted_sparsity=real(record.get("counted_sparsity")),
        before_threshold=real(record.get("sparsity_before_threshold")),
        steps=real(record.get("steps")),
        seconds=real(record.get("seconds")),
        seed=real(record.get("seed")),
        draw=real(record.get("draw")),
        examples=real(record.get("examples")),
        exported=text(record.get("exported")).lower() in ("true", "1", "1.0"),
        kept={name: value for name, value in kept.items() if math.isfinite(value)},
    )


def _read_masks(path: Path) -> Masks | None:
    """The arrays of masks.npz; None when the file does not exist."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RunFolderError(
            f"{path} must hold arrays of masks, it does not ({type(error).__name__}): run again"
        ) from None
    tokens = arrays.pop("tokens", None)
    if tokens is None or tokens.ndim != 1:
        raise RunFolderError(f"{path} must hold the array tokens (n,), it does not: run again")
    for name, mask in arrays.items():
        if mask.ndim != 4 or mask.shape[2:] != (len(tokens), len(tokens)):
            raise RunFolderError(
                f"{path} must hold masks (sites, heads, n, n) of {len(tokens)} tokens, {name} is {mask.shape}: "
                "run again"
            )
    return Masks(tokens=[str(token) for token in tokens], kept={name: mask != 0 for name, mask in arrays.items()})
