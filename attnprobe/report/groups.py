"""Trainings that differ in their seed alone: one figure with an interval for both examples and seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pandas as pd

from attnprobe.report.tables import real, text
from attnprobe.report.tradeoff.means import average, over_seeds

Row = Mapping[str, object]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """Trainings that differ in their seed alone.

    Attributes:
        name: in words.
        rows: of the run's table.
    """

    name: str
    rows: Sequence[Row]

    def of(self, column: str) -> float:
        """The mean of a column; NaN where no row has it."""
        return average(real(row.get(column)) for row in self.rows)

    def with_interval(self, column: str, low: str, high: str) -> tuple[float, float, float]:
        """The mean over the seeds with its interval: (value, low, high)."""
        columns = ([real(row.get(name)) for row in self.rows] for name in (column, low, high))
        return over_seeds(*columns)

    @property
    def value(self) -> tuple[float, float, float]:
        """The metric; none exceeds 1, and neither does its interval."""
        value, low, high = self.with_interval("value", "ci_low", "ci_high")
        return value, low, min(high, max(value, 1.0)) if math.isfinite(high) else high

    @property
    def exported(self) -> bool:
        """Whether one of them was exported."""
        return any(text(row.get("exported")) == "True" for row in self.rows)


def grouped(rows: pd.DataFrame, key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """The rows of a table by a key, in the order of the table."""
    found: dict[Key, list[Row]] = {}
    for row in rows.to_dict("records"):
        named = {str(name): value for name, value in row.items()}
        found.setdefault(key(named), []).append(named)
    return found


def metric_name(rows: pd.DataFrame) -> str:
    """What a run measures, in words."""
    names = [text(name) for name in rows["metric_name"] if text(name)]
    return names[0].replace("_", " ") if names else "metric"
