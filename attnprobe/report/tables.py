"""Reading a run folder: `run.json` and its tables, checked and typed. Nothing else of a run is read by a report."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attnprobe.errors import RunFolderError
from attnprobe.runs import read_run as read_record

ESSENTIAL: dict[str, tuple[str, ...]] = {
    "importance.csv": ("method", "level", "position_class", "site", "head", "value", "unit"),
    "offsets.csv": ("method", "offset", "value", "unit"),
    "agreement.csv": ("level", "method_a", "method_b", "value"),
    "heads.csv": ("site", "head", "special", "entropy_median"),
    "tradeoff.csv": ("point", "method", "target", "cell_sparsity", "metric_name", "value"),
    "kept.csv": ("point", "site", "head", "position_class", "kept"),
    "training.csv": ("step",),
    "retrofit.csv": ("training", "kind", "variant", "seed", "metric_name", "value"),
    "sparsity.csv": ("training", "kind", "target", "value"),
    "finetune.csv": ("training", "dropout", "match", "seed", "metric_name", "value"),
    "comparisons.csv": ("dropout", "match", "against", "difference", "p_corrected"),
    "rates.csv": ("training", "progress", "site", "rate"),
}
"""The columns without which a table cannot be read; any other column that is missing reads as not measured."""

TEXT = frozenset(
    ("method", "level", "position_class", "unit", "metric_name", "method_a", "method_b", "statistic", "special")
) | frozenset(
    (
        "point",
        "checkpoint",
        "data",
        "granularity",
        "sharing",
        "diagonal",
        "train",
        "exported",
        "training",
        "kind",
        "variant",
        "end",
        "align",
        "gate",
        "dropout",
        "match",
        "against",
        "net",
    )
)

Info = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One row of importance.csv. Figures that were not measured are NaN; `site`/`head` are None over all of them."""

    method: str
    unit: str
    level: str
    position_class: str
    site: int | None
    head: int | None
    value: float
    low: float
    high: float
    control: float
    control_low: float
    control_high: float
    loss_dense: float
    loss_ablated: float
    metric_name: str
    metric_dense: float
    metric_ablated: float
    cells: float
    examples: float

    @property
    def measured(self) -> bool:
        """Whether the class occurs and a figure was obtained."""
        return math.isfinite(self.value)


@dataclass(frozen=True, kw_only=True)
class Record:
    """What every run folder has: its path and run.json."""

    path: Path
    info: Info

    def part(self, name: str) -> Info:
        """One object of run.json; empty where it is missing."""
        found = self.info.get(name)
        return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True, kw_only=True)
class Run(Record):
    """A run of `importance` as read: tables that it did not leave are empty, maps (sites, heads, n, n) are None."""

    effects: Sequence[Effect]
    offsets: pd.DataFrame
    agreement: pd.DataFrame
    heads: pd.DataFrame
    maps: NDArray[np.float32] | None = field(repr=False)
    counts: NDArray[np.int64] | None = field(repr=False)

    @property
    def loss_unit(self) -> str:
        """The unit of the objective's loss."""
        return str(self.part("objective").get("loss_unit") or "nats")


def read_run(folder: Path) -> Run:
    """Read a run folder of `importance`.

    Raises: RunFolderError for a folder, run.json or table that is missing or cannot be read.
    """
    info = read_info(folder)
    importance = require_table(folder / "importance.csv")
    maps, counts = _read_maps(folder / "maps.npz")
    return Run(
        path=folder,
        info=info,
        effects=effects(importance),
        offsets=table_or_empty(folder / "offsets.csv"),
        agreement=table_or_empty(folder / "agreement.csv"),
        heads=table_or_empty(folder / "heads.csv"),
        maps=maps,
        counts=counts,
    )


def read_info(folder: Path) -> Info:
    """run.json of a run folder, its schema version checked. Raises: RunFolderError."""
    return read_record(folder).record


def effects(importance: pd.DataFrame) -> list[Effect]:
    """The rows of importance.csv (as read or as made in memory) in their order."""
    return [
        Effect(
            method=text(row.get("method")),
            unit=text(row.get("unit")),
            level=text(row.get("level")),
            position_class=text(row.get("position_class")),
            site=whole(row.get("site")),
            head=whole(row.get("head")),
            value=real(row.get("value")),
            low=real(row.get("ci_low")),
            high=real(row.get("ci_high")),
            control=real(row.get("control")),
            control_low=real(row.get("control_ci_low")),
            control_high=real(row.get("control_ci_high")),
            loss_dense=real(row.get("loss_dense")),
            loss_ablated=real(row.get("loss_ablated")),
            metric_name=text(row.get("metric_name")),
            metric_dense=real(row.get("metric_dense")),
            metric_ablated=real(row.get("metric_ablated")),
            cells=real(row.get("cells")),
            examples=real(row.get("examples")),
        )
        for row in importance.to_dict("records")
    ]


def text(value: object) -> str:
    """A cell of a table as text; empty when missing."""
    return "" if value is None or value != value or value is pd.NA else str(value)


def real(value: object) -> float:
    """A cell of a table as a number; NaN when missing."""
    return float(str(value)) if text(value) else math.nan


def whole(value: object) -> int | None:
    """A cell of a table as an index; None when missing."""
    return int(real(value)) if text(value) else None


def require_table(path: Path) -> pd.DataFrame:
    """A table of `ESSENTIAL` that a run must have. Raises: RunFolderError."""
    table = _read_table(path)
    if table is None:
        raise RunFolderError(f"a run folder holds {path.name}, {path.parent} does not: finish the run with --resume")
    return table


def table_or_empty(path: Path) -> pd.DataFrame:
    """A table of `ESSENTIAL`, without rows where the run did not leave it. Raises: RunFolderError."""
    table = _read_table(path)
    return pd.DataFrame(columns=list(ESSENTIAL[path.name])) if table is None else table


def _read_table(path: Path) -> pd.DataFrame | None:
    """A table with text and number columns checked; None when the file does not exist."""
    if not path.exists():
        return None
    try:
        table = pd.read_csv(path, dtype=dict.fromkeys(TEXT, str), keep_default_na=False, na_values=[""])
    except pd.errors.EmptyDataError:
        return None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} must be a CSV table, it is not ({_line(error)}): run again") from None
    missing = [name for name in ESSENTIAL[path.name] if name not in table.columns]
    if missing:
        raise RunFolderError(f"{path} must have the columns {', '.join(missing)}, it has not: run again")
    for name in table.columns:
        if name not in TEXT:
            try:
                table[name] = pd.to_numeric(table[name])
            except (ValueError, TypeError) as error:
                raise RunFolderError(f"{path}: column {name} must hold numbers ({_line(error)}): run again") from None
    return table


def _read_maps(path: Path) -> tuple[NDArray[np.float32] | None, NDArray[np.int64] | None]:
    """Maps (sites, heads, n, n) and counts (n, n); None when the file does not exist."""
    if not path.exists():
        return None, None
    try:
        with np.load(path, allow_pickle=False) as stored:
            maps = np.asarray(stored["maps"], dtype=np.float32)
            counts = np.asarray(stored["counts"], dtype=np.int64)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RunFolderError(
            f"{path} must hold the arrays maps and counts, it does not ({type(error).__name__}): run again"
        ) from None
    if maps.ndim != 4 or maps.shape[2:] != counts.shape:
        raise RunFolderError(
            f"{path} must hold maps (sites, heads, n, n) and counts (n, n), it holds {maps.shape} and {counts.shape}: "
            "run again"
        )
    return maps, counts


def _line(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
