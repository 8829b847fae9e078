"""A run of `attnprobe finetune` as read: methods by what they have in common, and how they compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from attnprobe.report.groups import Row, Seeds, grouped
from attnprobe.report.tables import Record, read_info, real, require_table, table_or_empty, text

REFERENCES = ("none", "weights")
"""Methods that every other is compared with: no dropout of attention, and the usual one."""
LEVEL = 0.05
"""Corrected p-value below which a difference counts."""
MATCHES = {"steps": "Equal steps", "time": "Equal time"}
"""What the methods of a comparison have in common, in words; the finding is of the first that there is."""


@dataclass(frozen=True, kw_only=True)
class Finetune(Record):
    """A run of `finetune` as read; tables that it did not leave are empty."""

    rows: pd.DataFrame
    comparisons: pd.DataFrame
    rates: pd.DataFrame
    training: pd.DataFrame


@dataclass(frozen=True, kw_only=True)
class Group(Seeds):
    """Trainings with one dropout method, whose ``name`` includes its variant.

    Attributes:
        dropout: the method.
        said: what sentences call it: without its variant where the method has but one.
    """

    dropout: str
    said: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A method less another, in the metric's unit, with its 95 % interval and the corrected p-value; NaN for none."""

    difference: float
    low: float
    high: float
    p: float

    @property
    def settled(self) -> bool:
        """Whether the difference counts."""
        return self.p < LEVEL


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Methods that have steps, or time, in common.

    Attributes:
        match: ``steps`` or ``time``.
        groups: one a method, in the order of the table.
        comparisons: by name of the group and of the method compared with.
    """

    match: str
    groups: Sequence[Group]
    comparisons: Mapping[tuple[str, str], Comparison]

    @property
    def label(self) -> str:
        """What they have in common, in words."""
        return MATCHES.get(self.match, self.match)

    @property
    def none(self) -> Group | None:
        """The method without dropout; None where it was not trained."""
        return next((group for group in self.groups if group.dropout == REFERENCES[0]), None)

    @property
    def best(self) -> Group | None:
        """The method with the best mean; None where nothing was measured."""
        return max(self._with("value"), key=lambda group: group.value[0], default=None)

    @property
    def dearest(self) -> Group | None:
        """The method that takes longest a step; None where no time was measured."""
        return max(self._with("seconds_per_step"), key=lambda group: group.of("seconds_per_step"), default=None)

    @property
    def references(self) -> list[str]:
        """The methods that others were compared with."""
        return [name for name in REFERENCES if any(against == name for _, against in self.comparisons)]

    def relative(self, group: Group, column: str) -> float:
        """The mean of a column in multiples of what it is without dropout; NaN where that is not known."""
        without = self.none.of(column) if self.none else math.nan
        return group.of(column) / without if without > 0 else math.nan

    def beyond(self, against: str, *, better: bool) -> list[Group]:
        """The methods that are better, or worse, than another by a difference that counts."""
        found = [(group, self.comparisons.get((group.name, against))) for group in self.groups]
        return [group for group, of in found if of and of.settled and (of.difference > 0) == better]

    def _with(self, column: str) -> list[Group]:
        return [group for group in self.groups if math.isfinite(group.of(column))]


def read_finetune(folder: Path) -> Finetune:
    """Read a run folder of `finetune`.

    Raises: RunFolderError for a folder, run.json or table that is missing or cannot be read.
    """
    return Finetune(
        path=folder,
        info=read_info(folder),
        rows=require_table(folder / "finetune.csv"),
        comparisons=table_or_empty(folder / "comparisons.csv"),
        rates=table_or_empty(folder / "rates.csv"),
        training=table_or_empty(folder / "training.csv"),
    )


def arms_of(run: Finetune) -> list[Arm]:
    """The methods by what they have in common, equal steps first."""
    by_match = grouped(run.rows, lambda row: text(row["match"]))
    compared = grouped(run.comparisons, lambda row: text(row["match"]))
    matches = [
        *(match for match in MATCHES if match in by_match),
        *(match for match in by_match if match not in MATCHES),
    ]
    return [
        Arm(match=match, groups=_groups(by_match[match]), comparisons=_comparisons(compared.get(match, [])))
        for match in matches
    ]


def labelled(arms: Sequence[Arm]) -> list[tuple[str, Group]]:
    """All methods with a label that tells those of one arm from those of another."""
    return [
        (f"{group.name}, {arm.label.lower()}" if len(arms) > 1 else group.name, group)
        for arm in arms
        for group in arm.groups
    ]


def quoted(name: str) -> str:
    """A method's name in a sentence, where "none" would not be read as a name."""
    return f"\N{LEFT DOUBLE QUOTATION MARK}{name}\N{RIGHT DOUBLE QUOTATION MARK}"


def _groups(rows: Sequence[Row]) -> list[Group]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(_name(row), []).append(row)
    methods = [text(of[0]["dropout"]) for of in found.values()]
    return [
        Group(name=name, dropout=method, said=quoted(method if methods.count(method) == 1 else name), rows=of)
        for (name, of), method in zip(found.items(), methods, strict=True)
    ]


def _comparisons(rows: Sequence[Row]) -> dict[tuple[str, str], Comparison]:
    return {
        (_name(row), text(row["against"])): Comparison(
            difference=real(row["difference"]),
            low=real(row.get("ci_low")),
            high=real(row.get("ci_high")),
            p=real(row["p_corrected"]),
        )
        for row in rows
    }


def _name(row: Row) -> str:
    """What a training's method is called: `attendout (reinforce, window)`."""
    variant = text(row.get("variant"))
    return f"{text(row['dropout'])} ({variant})" if variant else text(row["dropout"])
