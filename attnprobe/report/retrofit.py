"""The report of `attnprobe retrofit`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from attnprobe.report.figures import ACCENT, INK, Axis, Dot, axis, dots, layout, plain, swarm
from attnprobe.report.identity import alerts, checkpoint_name, subtitle
from attnprobe.report.numbers import count, estimate, number, rounded_all
from attnprobe.report.page import Block, Chart, Figure, Json, Page, Section, Table, View
from attnprobe.report.provenance import provenance_section
from attnprobe.report.tables import Record, read_info, real, require_table, table_or_empty, text
from attnprobe.report.tradeoff.means import INTERVALS, average, over_seeds
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
class Group:
    """Trainings that differ in their seed alone.

    Attributes:
        name: in words.
        kind: of the trainings.
        rows: of ``retrofit.csv``.
    """

    name: str
    kind: str
    rows: Sequence[dict[str, object]]

    def of(self, column: str) -> float:
        """The mean of a column; NaN where no row has it."""
        return average(real(row[column]) for row in self.rows)

    def with_interval(self, column: str, low: str, high: str) -> tuple[float, float, float]:
        """The mean over the seeds with its interval."""
        columns = ([real(row[name]) for row in self.rows] for name in (column, low, high))
        return over_seeds(*columns)

    @property
    def value(self) -> tuple[float, float, float]:
        """The metric."""
        return self.with_interval("value", "ci_low", "ci_high")

    @property
    def behind(self) -> tuple[float, float, float]:
        """How far it is behind continued training, in the metric's unit; NaN without that control."""
        return self.with_interval("behind_continued", "behind_continued_ci_low", "behind_continued_ci_high")

    @property
    def exported(self) -> bool:
        """Whether one of them was exported."""
        return any(text(row["exported"]) == "True" for row in self.rows)


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
    found: dict[str, list[dict[str, object]]] = {}
    for row in rows.to_dict("records"):
        named = {str(name): value for name, value in row.items()}
        found.setdefault(group_name(named), []).append(named)
    return [Group(name=name, kind=text(of[0]["kind"]), rows=of) for name, of in found.items()]


def group_name(row: dict[str, object]) -> str:
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
    metric = _metric(run)
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
        _learning_section(run, groups),
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


def _metric(run: Retrofit) -> str:
    names = [text(name) for name in run.rows["metric_name"] if text(name)]
    return names[0].replace("_", " ") if names else "metric"


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
    metric = _metric(run).capitalize()
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
        _known(group.of("gate_mean"), lambda value: number(value, digits=2)),
        _known(group.of("grad_norm"), lambda value: number(value, digits=2)),
        count(group.of("seconds")),
        str(len(group.rows)),
    ]


def _known(value: float, write: Callable[[float], str]) -> str:
    return write(value) if math.isfinite(value) else ""


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
        f"{_metric(run).capitalize()} [95 %]",
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


def _learning_section(run: Retrofit, groups: Sequence[Group]) -> Section | None:
    """Loss and gradient norm by step, one line a seed."""
    logs = (
        {text(name): of.to_dict("records") for name, of in run.training.groupby("training")}
        if len(run.training)
        else {}
    )
    views = []
    for group in groups:
        own = [logs[name] for row in group.rows if (name := text(row["training"])) in logs]
        if own:
            last = ", ".join(number(real(log[-1].get("loss"))) for log in own)
            views.append(
                View(label=group.name, figure=_curves(own), alt=f"{group.name}: at the last step the loss is {last}.")
            )
    if not views:
        return None
    chart = Chart(
        key="training",
        title="Loss and gradient norm by step",
        selector="Training",
        text="One line a seed. Where there are gates, their mean is drawn too.",
        views=views,
    )
    return Section(key="learning", title="How it was trained", text=[], blocks=[chart])


def _curves(logs: Sequence[Sequence[dict[object, object]]]) -> Figure:
    shown = {"loss": "y", "grad_norm": "y2", "gate": "y3"}
    titles = {"loss": "loss", "grad_norm": "gradient norm", "gate": "mean gate"}
    kept = [n for n in shown if any(math.isfinite(real(row.get(n))) for log in logs for row in log)]
    traces: list[dict[str, Json]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": plain(titles[name]),
            "x": rounded_all(real(row["step"]) for row in log),
            "y": rounded_all(real(row.get(name)) for row in log),
            "yaxis": shown[name],
            "line": {"color": ACCENT, "width": 1.5},
            "hovertemplate": f"step %{{x}}: %{{y}} ({plain(titles[name])})<extra></extra>",
        }
        for name in kept
        for log in logs
    ]
    height = 1 / max(1, len(kept))
    tops = {name: 1 - number_ * height for number_, name in enumerate(kept)}
    axes: dict[str, Json] = {
        f"yaxis{shown[name][1:]}": axis("", domain=[max(0.0, top - 0.72 * height), top], nticks=4, rangemode="tozero")
        for name, top in tops.items()
    }
    titles_drawn: list[Json] = [
        {
            **{"xref": "paper", "yref": "paper", "x": 0, "xanchor": "left", "y": top, "yanchor": "bottom"},
            **{"yshift": 4, "text": plain(titles[name]), "showarrow": False, "font": {"size": 12, "color": INK}},
        }
        for name, top in tops.items()
    ]
    return Figure(
        data=traces,
        layout=layout(
            xaxis=axis("step", anchor=shown[kept[-1]] if kept else "y", showgrid=False),
            **axes,
            annotations=titles_drawn,
            margin={"l": 8, "r": 8, "t": 28, "b": 8},
        ),
        height=120 + 130 * len(kept),
        key=[("line", "one line a seed")],
    )
