"""What a dropout method gains and what it costs, on the page of `attnprobe finetune`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnprobe.dropout.methods import METHODS
from attnprobe.report.figures import ACCENT, CONTROL, INK, axis, layout, plain
from attnprobe.report.finetune_study import REFERENCES, Arm, Finetune, Group
from attnprobe.report.groups import metric_name
from attnprobe.report.numbers import capital, compact, count, estimate, known, number, rounded, rounded_all
from attnprobe.report.page import Block, Chart, Facts, Figure, Json, Section, Table, View
from attnprobe.report.tables import real
from attnprobe.report.tradeoff.means import INTERVALS
from attnprobe.report.tradeoff.sentences import in_points, percent

ROW = 40
"""Height of a method's row, pixels."""
BESIDE = 0.24
"""How far below its mean a row's seeds stand, in rows."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A cost of methods: in multiples of no dropout where that is known, else as measured.

    Attributes:
        title: with its unit.
        values: one a method, in the arm's order.
    """

    title: str
    values: Sequence[float]

    @property
    def measured(self) -> list[float]:
        """The values that there are."""
        return [value for value in self.values if math.isfinite(value)]


def metric_section(run: Finetune, arms: Sequence[Arm]) -> Section | None:
    """Metric and cost by method: a view for equal steps, another for equal time."""
    if not arms:
        return None
    metric = metric_name(run.rows)
    chart = Chart(
        key="metric",
        title=f"{metric.capitalize()} by dropout method, and what it costs",
        selector="Compare at",
        text=f"On the right, the time that a step takes. {INTERVALS}",
        views=[
            View(label=arm.label, figure=_figure(arm, metric), alt=_alt(arm, metric), table=_table(arm, metric))
            for arm in arms
        ],
        open_table=True,
    )
    blocks: list[Block] = [chart]
    first = {group.dropout: group for arm in reversed(arms) for group in arm.groups if group.dropout in METHODS}
    items = [(name, _about(group)) for name, group in first.items()]
    blocks += [Facts(title="The methods", items=items)] if items else []
    return Section(key="metric", title="What each method gains", text=[], blocks=blocks)


def _about(group: Group) -> str:
    """What a method is, its rate, and the share that it dropped."""
    rate, dropped = group.of("rate"), group.of("drop_rate")
    parts = [METHODS[group.dropout].summary, f"rate {rate:g}" if rate > 0 else ""]
    parts.append(f"{percent(dropped)} dropped on average" if dropped > 0 else "")
    return "; ".join(part for part in parts if part)


def _figure(arm: Arm, metric: str) -> Figure:
    """A row for each method, in two panels: the metric, and beside it the time of a step."""
    cost = _time(arm)
    repeated = any(len(group.rows) > 1 for group in arm.groups)
    drawn = [value for group in arm.groups for value in (*group.value, *_seeds(group)) if math.isfinite(value)]
    without = arm.none.value[0] if arm.none else math.nan
    ends = (-0.6, len(arm.groups) - 0.4)
    traces = [_upright(without, *ends)] if math.isfinite(without) else []
    traces += [_seed_trace(arm.groups)] if repeated else []
    traces.append(_mean_trace(arm.groups))
    beside: dict[str, Json] = {}
    if cost.measured:
        traces.append(_cost_trace(cost))
        beside["xaxis2"] = axis(cost.title, domain=[0.74, 1], range=[0, rounded(1.35 * max(cost.measured))], nticks=4)
    places = list(range(len(arm.groups)))
    key = {
        ("dot", "mean, with its 95 % interval" if repeated else "one seed, with its 95 % interval"): True,
        ("dot small", "one seed"): repeated,
        ("dashes", f"mean of {REFERENCES[0]}"): math.isfinite(without),
    }
    return Figure(
        data=traces,
        layout=layout(
            xaxis=axis(metric, domain=[0, 0.7] if cost.measured else [0, 1], range=_padded(drawn), nticks=6),
            **beside,
            yaxis=axis(
                tickvals=places,
                ticktext=[plain(group.name).replace(" (", "<br>(", 1) for group in arm.groups],
                tickfont={"size": 13, "color": INK},
                range=list(reversed(ends)),
                showgrid=False,
            ),
            margin={"l": 8, "r": 16, "t": 8, "b": 8},
        ),
        height=len(places) * ROW + 80,
        key=[entry for entry, shown in key.items() if shown],
    )


def _mean_trace(groups: Sequence[Group]) -> dict[str, Json]:
    shown = [(place, group.name, *group.value) for place, group in enumerate(groups) if math.isfinite(group.value[0])]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": rounded_all(value for _, _, value, _, _ in shown),
        "y": [place for place, *_ in shown],
        "text": [plain(f"{name}: {estimate(value, low, high)}") for _, name, value, low, high in shown],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": ACCENT, "size": 9},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [rounded(high - value) for _, _, value, _, high in shown],
            "arrayminus": [rounded(value - low) for _, _, value, low, _ in shown],
            "color": ACCENT,
            "thickness": 2,
            "width": 0,
        },
    }


def _seed_trace(groups: Sequence[Group]) -> dict[str, Json]:
    shown = [
        (place, group.name, real(row.get("seed")), real(row.get("value")))
        for place, group in enumerate(groups)
        if len(group.rows) > 1
        for row in group.rows
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": rounded_all(value for *_, value in shown),
        "y": [place + BESIDE for place, *_ in shown],
        "text": [plain(f"{name}, seed {seed:.0f}: {number(value, digits=3)}") for _, name, seed, value in shown],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": "var(--whisker)", "size": 6},
    }


def _cost_trace(cost: Cost) -> dict[str, Json]:
    return {
        "type": "bar",
        "orientation": "h",
        "xaxis": "x2",
        "x": rounded_all(cost.values),
        "y": list(range(len(cost.values))),
        "width": 0.4,
        "text": [known(value, compact) for value in cost.values],
        "textposition": "outside",
        "cliponaxis": False,
        "textfont": {"size": 12, "color": INK},
        "marker": {"color": "var(--whisker)"},
        "hovertemplate": f"{plain(cost.title)}: %{{x}}<extra></extra>",
    }


def _upright(at: float, top: float, bottom: float) -> dict[str, Json]:
    """A dashed line through all rows of the first panel, a trace so that it is above the grid and below the dots."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [rounded(at)] * 2,
        "y": [top, bottom],
        "line": {"color": CONTROL, "width": 1.5, "dash": "dash"},
        "hoverinfo": "skip",
    }


def _table(arm: Arm, metric: str) -> Table:
    """A row for each method; columns that nothing is known of are left out."""
    groups = arm.groups
    time, memory = _time(arm), _memory(arm)
    columns: list[tuple[str, list[str]]] = [
        (f"{metric.capitalize()} [95 %]", [estimate(*group.value) for group in groups]),
    ]
    for name in REFERENCES:
        found = [arm.comparisons.get((group.name, name)) for group in groups]
        shown = [in_points(of.difference, of.low, of.high, signed=True) if of else "" for of in found]
        columns.append((f"Against {name} [95 %]", shown))
        columns.append(("p", [known(of.p, _p_value) if of else "" for of in found]))
    columns += [
        ("Steps", [known(group.of("steps"), count) for group in groups]),
        (capital(time.title), [known(value, compact) for value in time.values]),
        (capital(memory.title), [known(value, compact) for value in memory.values]),
        ("Runs", [str(len(group.rows)) for group in groups]),
    ]
    kept = [(title, cells) for title, cells in columns if any(cells)]
    costs = "Time is of a step, memory the peak."
    compared = (
        "Differences are in points, paired by seed and example, with the bootstrap over both; p-values are corrected "
        "for all comparisons of this table (Holm)."
    )
    caption = f"{compared if arm.comparisons else 'No method was compared with another.'} {costs}"
    heads = [group.name + (" ★ exported" if group.exported else "") for group in groups]
    return Table(
        caption=caption,
        columns=["Method", *(title for title, _ in kept)],
        rows=[list(row) for row in zip(heads, *(cells for _, cells in kept), strict=True)],
    )


def _time(arm: Arm) -> Cost:
    return _cost(arm, "seconds_per_step", "time", unit="ms", scale=1000)


def _memory(arm: Arm) -> Cost:
    return _cost(arm, "peak_memory", "memory", unit="MiB")


def _cost(arm: Arm, column: str, title: str, *, unit: str, scale: float = 1) -> Cost:
    relative = [arm.relative(group, column) for group in arm.groups]
    if any(map(math.isfinite, relative)):
        return Cost(title=f"{title}, ×\N{NO-BREAK SPACE}{REFERENCES[0]}", values=relative)
    return Cost(title=f"{title}, {unit}", values=[scale * group.of(column) for group in arm.groups])


def _alt(arm: Arm, metric: str) -> str:
    """The figure in words."""
    cost = _time(arm)
    rows = [
        f"{group.name} {number(group.value[0], digits=3)}{f', {cost.title} {compact(of)}' if math.isfinite(of) else ''}"
        for group, of in zip(arm.groups, cost.values, strict=True)
    ]
    return f"{metric.capitalize()} at {arm.label.lower()}: {'; '.join(rows)}."


def _seeds(group: Group) -> list[float]:
    return [real(row.get("value")) for row in group.rows]


def _padded(values: Sequence[float]) -> Json:
    """An axis' range around some values, with room at both ends; None, as it comes, without values."""
    if not values:
        return None
    room = 0.06 * (max(values) - min(values)) or 0.01
    return [rounded(min(values) - room), rounded(max(values) + room)]


def _p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else number(p, digits=3 if p < 0.1 else 2)
