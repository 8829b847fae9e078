"""How points learnt: loss, and density wanted and expected, against the step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnprobe.report.figures import ACCENT, CONTROL, axis, layout, plain
from attnprobe.report.learning import Entry, logs_of, panel_title, thin
from attnprobe.report.numbers import number, rounded_all
from attnprobe.report.page import Chart, Figure, Json, Section, View
from attnprobe.report.tables import real
from attnprobe.report.tradeoff.means import Mean
from attnprobe.report.tradeoff.points import Sweep
from attnprobe.report.tradeoff.rows import mean_name
from attnprobe.report.tradeoff.study import Study

MOST_VIEWS = 40
"""Trainings shown."""


def training_section(sweep: Sweep, study: Study) -> Section | None:
    """A view for each line and target that was trained, its seeds together; learnt masks first."""
    logs = logs_of(sweep.training, "point")
    trained = [mean for mean in study.means if any(point.point in logs for point in mean.points)]
    trained.sort(key=lambda mean: mean.line.kind != "learnt")
    views = [_view(mean, [logs[p.point] for p in mean.points if p.point in logs]) for mean in trained[:MOST_VIEWS]]
    if not views:
        return None
    chart = Chart(
        key="training",
        title="Loss and density by step",
        selector="Point",
        text="Above, the loss in training; below, where there are gates, the share of cells that they are expected to "
        "keep, and the share wanted at that step. One line a seed.",
        views=views,
    )
    return Section(key="learning", title="How the masks were learnt", text=[], blocks=[chart])


def _view(mean: Mean, logs: Sequence[Sequence[Entry]]) -> View:
    thinned = [thin(sorted(log, key=lambda record: real(record["step"]))) for log in logs]
    gated = any(math.isfinite(real(record.get("density"))) for log in thinned for record in log)
    last = [log[-1] for log in thinned]
    losses = ", ".join(number(real(record.get("loss"))) for record in last)
    densities = ", ".join(number(real(record.get("density"))) for record in last)
    said = f"at step {real(last[0]['step']):.0f} the loss is {losses}"
    return View(
        label=mean_name(mean),
        figure=_figure(thinned, gated=gated),
        alt=f"{mean_name(mean)}: {said}{f', the expected density {densities}' if gated else ''}.",
    )


def _figure(logs: Sequence[Sequence[Entry]], *, gated: bool) -> Figure:
    traces = [_trace(log, "loss", "y", ACCENT) for log in logs]
    if gated:
        traces += [_trace(log, "density", "y2", ACCENT) for log in logs]
        traces.append(_trace(logs[0], "wanted_density", "y2", CONTROL, dash="dash"))
    upper: list[Json] = [0.58, 1] if gated else [0, 1]
    lower: dict[str, Json] = {"yaxis2": axis("", domain=[0, 0.42], rangemode="tozero", nticks=5)} if gated else {}
    titles = {"loss": 1.0} | ({"density: share of cells kept": 0.42} if gated else {})
    return Figure(
        data=traces,
        layout=layout(
            xaxis=axis("step", anchor="y2" if gated else "y", showgrid=False),
            yaxis=axis("", domain=upper, nticks=5),
            **lower,
            annotations=[panel_title(title, at) for title, at in titles.items()],
            margin={"l": 8, "r": 8, "t": 28, "b": 8},
        ),
        height=360 if gated else 220,
        key=[("line", "measured, one line a seed"), ("dashes", "wanted")][: 1 + gated],
    )


def _trace(log: Sequence[Entry], name: str, on: str, color: str, *, dash: str = "solid") -> dict[str, Json]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(name.replace("_", " ")),
        "x": rounded_all(real(record["step"]) for record in log),
        "y": rounded_all(real(record.get(name)) for record in log),
        "yaxis": on,
        "line": {"color": color, "width": 1.5, "dash": dash},
        "hovertemplate": "step %{x}: %{y}<extra></extra>",
    }
