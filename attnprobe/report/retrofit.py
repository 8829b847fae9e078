"""The report of `attnprobe retrofit`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from attnprobe.report.figures import Axis, Dot, dots, swarm
from attnprobe.report.groups import Row, Seeds, grouped, metric_name
from attnprobe.report.identity import alerts, checkpoint_name, subtitle
from attnprobe.report.learning import LOSSES, learning_section
from attnprobe.report.numbers import count, estimate, known, number
from attnprobe.report.page import Block, Chart, Page, Section, Table, View
from attnprobe.report.provenance import provenance_section
from attnprobe.report.tables import Record, read_info, real, require_table, table_or_empty, text
from attnprobe.report.tradeoff.means import INTERVALS
from attnprobe.report.tradeoff.sentences import in_points, percent, points

OPTIONAL = ("heads.csv", "training.csv")
"""Files that a page can do without."""

KINDS = {
    "dense": "The checkpoint",
    "continued": "Trained on without residual",
    "retrofit": "Retrofit",
    "immediate": "Gates at 1 from the first step",
}
"""Kinds of training, in words."""


@dataclass(frozen=True, kw_only=True)
class Retrofit(Record):
    """A run of `retrofit` as read; tables that it did not leave are empty."""

    rows: pd.DataFrame
    heads: pd.DataFrame
    sparsity: pd.DataFrame
    training: pd.DataFrame


@dataclass(frozen=True, kw_only=True)
class Group(Seeds):
    """Trainings of one ``kind``."""

    kind: str

    @property
    def behind(self) -> tuple[float, float, float]:
        """How far it is behind continued training, in the metric's unit; NaN without that control."""
        return self.with_interval("behind_continued", "behind_continued_ci_low", "behind_continued_ci_high")


def read_retrofit(folder: Path) -> Retrofit:
    """Read a run folder of `retrofit`.

    Raises: RunFolderError for a folder, run.json or table that is missing or cannot be read.
    """
    return Retrofit(
        path=folder,
        info=read_info(folder),
        rows=require_table(folder / "retrofit.csv"),
        heads=table_or_empty(folder / "heads.csv"),
        sparsity=table_or_empty(folder / "sparsity.csv"),
        training=table_or_empty(folder / "training.csv"),
    )


def groups_of(rows: pd.DataFrame) -> list[Group]:
    """The trainings by all but their seed, in the order of the table."""
    return [Group(name=name, kind=text(of[0]["kind"]), rows=of) for name, of in grouped(rows, group_name).items()]


def group_name(row: Row) -> str:
    """What a training is, in words, without its seed."""
    kind = text(row["kind"])
    parts = [KINDS.get(kind, kind), text(row["variant"]), text(row["end"]) if kind == "retrofit" else ""]
    parts.append("heads as they are" if kind in ("retrofit", "immediate") and text(row["align"]) == "none" else "")
    return ", ".join(part for part in parts if part)


def retrofit_finding(run: Retrofit) -> str:
    """The first line of a run's report."""
    groups = groups_of(run.rows)
    first = next((group for group in groups if group.kind == "retrofit"), None)
    if first is None:
        return "No retrofit was trained, so no finding can be given."
    metric = metric_name(run.rows)
    value, low, high = first.value
    over = f", the mean of {len(first.rows)} seeds" if len(first.rows) > 1 else ""
    variant = text(first.rows[0]["variant"])
    parts = [
        f"With residual attention ({variant}, {text(first.rows[0]['end'])} end) after {first.of('steps'):.0f} steps, "
        f"{metric} is {estimate(value, low, high)}{over}; the checkpoint has {number(first.of('dense'), digits=3)}."
    ]
    behind, behind_low, behind_high = first.behind
    continued = next((group for group in groups if group.kind == "continued"), None)
    if continued is not None and math.isfinite(behind):
        side = "behind" if behind >= 0 else "ahead of"
        shown = points(behind, behind_low, behind_high) if behind >= 0 else points(-behind, -behind_high, -behind_low)
        settled = behind_low > 0 or behind_high < 0
        parts.append(
            f"It is {shown} {side} as many steps without it ({number(continued.of('value'), digits=3)})"
            f"{'' if settled else ', no measurable difference'}."
        )
    dense = next((group for group in groups if group.kind == "dense"), None)
    reference = continued or dense
    if reference is not None:
        parts.append(
            f"A row of its attention has a median entropy of {number(first.of('entropy_median'))} nats, against "
            f"{number(reference.of('entropy_median'))} {'without' if continued else 'in the checkpoint'}."
        )
    return " ".join(parts)


def retrofit_page(run: Retrofit) -> Page:
    """The page of a run."""
    groups = groups_of(run.rows)
    built: list[Section | None] = [
        _metric_section(run, groups),
        _attention_section(run, groups),
        _sparsity_section(run),
        learning_section(
            run.training,
            [(group.name, group) for group in groups],
            LOSSES | {"gate": "mean gate"},
            more="Where there are gates, their mean is drawn too.",
        ),
        provenance_section(run),
    ]
    missing = [name for name in OPTIONAL if not (run.path / name).exists()]
    return Page(
        title=f"Residual attention for {checkpoint_name(run)}",
        subtitle=subtitle(run),
        finding=retrofit_finding(run),
        notes=_notes(groups),
        alerts=alerts(run, missing),
        sections=[section for section in built if section is not None],
    )


def _notes(groups: Sequence[Group]) -> list[str]:
    notes = []
    worse = [g.name for g in groups if g.kind == "retrofit" and g.behind[1] > 0]
    if worse:
        notes.append(f"Worse than continued training, beyond the interval: {'; '.join(worse)}.")
    starts = [g for g in groups if g.kind == "immediate"]
    notes += [
        f"{g.name}, {text(g.rows[0]['variant'])}: {number(g.of('start'), digits=3)} before the first step."
        for g in starts
    ]
    likeness = [g for g in groups if math.isfinite(g.of("likeness_after"))]
    if likeness:
        before, after = likeness[0].of("likeness_before"), likeness[0].of("likeness_after")
        notes.append(
            "Scores of one head and the same head below correlate by "
            f"{number(before, digits=2)} on average, after alignment by {number(after, digits=2)}."
        )
    return notes


def _metric_section(run: Retrofit, groups: Sequence[Group]) -> Section:
    metric = metric_name(run.rows).capitalize()
    drawn = [
        Dot(label=g.name, value=g.value[0], low=g.value[1], high=g.value[2], control=g.of("dense")) for g in groups
    ]
    chart = Chart(
        key="metric",
        title=f"{metric} after training",
        text=INTERVALS,
        views=[
            View(
                label=metric,
                figure=dots([drawn], Axis(title=metric, signed=False), control="the checkpoint"),
                alt="; ".join(f"{dot.label} {number(dot.value, digits=3)}" for dot in drawn) + ".",
            )
        ],
    )
    columns = [
        *("Training", "Before", f"{metric} [95 %]", "Drop, points [95 %]", "Behind continued, points [95 %]"),
        *("Entropy, median", "Spread", "JSD, same head", "JSD, matched", "Gate", "Gradient norm", "Seconds", "Runs"),
    ]
    caption = (
        "Drops are against the checkpoint, on the same examples. Entropy and divergence in nats; spread is that "
        "between the quartiles."
    )
    table = Table(caption=caption, columns=columns, rows=[_row(group) for group in groups])
    return Section(key="metric", title="What it did to the metric", text=[], blocks=[chart, table])


def _row(group: Group) -> list[str]:
    trained = group.kind != "dense"
    drop = group.with_interval("drop", "drop_ci_low", "drop_ci_high")
    behind = group.behind
    return [
        group.name + (" ★ exported" if group.exported else ""),
        number(group.of("start"), digits=3),
        estimate(*group.value),
        in_points(*drop) if trained else "",
        in_points(*behind) if math.isfinite(behind[0]) else "",
        *(number(group.of(name), digits=3) for name in ("entropy_median", "entropy_spread", "jsd_same", "jsd_matched")),
        known(group.of("gate_mean"), lambda value: number(value, digits=2)),
        known(group.of("grad_norm"), lambda value: number(value, digits=2)),
        count(group.of("seconds")),
        str(len(group.rows)),
    ]


def _attention_section(run: Retrofit, groups: Sequence[Group]) -> Section | None:
    """Entropy of every head by site: a view for each kind of training, its first seed."""
    heads = run.heads
    if heads.empty or "training" not in heads:
        return None
    views = []
    for group in groups:
        own = heads[(heads["training"] == text(group.rows[0]["training"])) & (heads["special"] == "included")]
        sites = sorted({int(site) for site in own["site"]})
        columns = [
            [
                Dot(
                    label=f"site {site + 1}, head {int(real(row['head'])) + 1}",
                    value=real(row["entropy_median"]),
                    low=real(row["entropy_q25"]),
                    high=real(row["entropy_q75"]),
                )
                for row in own[own["site"] == site].to_dict("records")
            ]
            for site in sites
        ]
        if columns:
            about = Axis(title="median entropy of a row, nats", signed=False)
            names = [str(site + 1) for site in sites]
            views.append(
                View(
                    label=group.name,
                    figure=swarm(columns, names, about, x_title="site", whisker="quartiles over rows"),
                    alt=f"{group.name}: median over heads {number(group.of('entropy_median'))} nats.",
                )
            )
    if not views:
        return None
    chart = Chart(
        key="entropy",
        title="Entropy of attention rows",
        selector="Training",
        text="Low entropy is sparse attention. Dropout off, padding left out, of the first seed.",
        views=views,
    )
    return Section(key="attention", title="What it did to attention", text=[], blocks=[chart])


def _sparsity_section(run: Retrofit) -> Section | None:
    """What masks cost that were learnt for each model."""
    if run.sparsity.empty:
        return None
    rows = []
    for target, of_target in run.sparsity.groupby("target", sort=True):
        for group in groups_of(of_target.assign(exported="")):
            drop = group.with_interval("drop", "drop_ci_low", "drop_ci_high")
            rows.append(
                [
                    percent(real(target), 0),
                    group.name,
                    estimate(*group.value),
                    number(group.of("unmasked"), digits=3),
                    in_points(*drop),
                    str(len(group.rows)),
                ]
            )
    columns = [
        "Cells removed",
        "Model",
        f"{metric_name(run.rows).capitalize()} [95 %]",
        "Unmasked",
        "Drop, points [95 %]",
        "Runs",
    ]
    table = Table(
        caption=f"Masks by offset, learnt with frozen weights. {INTERVALS}",
        columns=columns,
        rows=rows,
        text_columns=frozenset({1}),
    )
    blocks: list[Block] = [table]
    return Section(key="sparsity", title="What attention it can do without", text=[], blocks=blocks)
