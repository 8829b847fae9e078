"""How trainings went: what was logged, by step, one line a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from attnprobe.report.figures import ACCENT, INK, axis, layout, plain
from attnprobe.report.groups import Seeds
from attnprobe.report.numbers import number, rounded, rounded_all
from attnprobe.report.page import Chart, Figure, Json, Section, View
from attnprobe.report.tables import real, text

MOST_STEPS = 80
"""Steps drawn of one training."""
LOSSES = {"loss": "loss", "grad_norm": "gradient norm"}
"""Columns of a log that every training has, in words."""
Entry = Mapping[object, object]


def logs_of(training: pd.DataFrame, of: str = "training") -> dict[str, list[Entry]]:
    """The entries of ``training.csv`` by what the column ``of`` names; nothing where there is no such column."""
    logs: dict[str, list[Entry]] = {}
    for entry in training.to_dict("records") if of in training else []:
        logs.setdefault(text(entry[of]), []).append(entry)
    return logs


def thin(log: Sequence[Entry]) -> list[Entry]:
    """At most `MOST_STEPS` entries, evenly spread, the last one among them."""
    if len(log) <= MOST_STEPS:
        return list(log)
    return [log[round(at * (len(log) - 1) / (MOST_STEPS - 1))] for at in range(MOST_STEPS)]


def learning_section(
    training: pd.DataFrame, groups: Sequence[tuple[str, Seeds]], titles: Mapping[str, str], *, more: str = ""
) -> Section | None:
    """A view for each group that has a log; None where none has.

    Args:
        training: ``training.csv``.
        groups: each with the label of its view.
        titles: columns to draw, in words.
        more: what is to be said of those that not every training has.
    """
    logs = logs_of(training)
    views = []
    for label, group in groups:
        own = [logs[name] for row in group.rows if (name := text(row.get("training"))) in logs]
        if own:
            last = ", ".join(number(real(log[-1].get("loss"))) for log in own)
            views.append(
                View(label=label, figure=_panels(own, titles), alt=f"{label}: at the last step the loss is {last}.")
            )
    if not views:
        return None
    chart = Chart(
        key="training",
        title="Loss and gradient norm by step",
        selector="Training",
        text=f"One line a seed. {more}".strip(),
        views=views,
    )
    return Section(key="learning", title="How it was trained", text=[], blocks=[chart])


def panel_title(title: str, at: float) -> Json:
    """The title of one of a figure's panels, above its left end; ``at``: the panel's top, 0 to 1."""
    return {
        **{"xref": "paper", "yref": "paper", "x": 0, "xanchor": "left", "y": rounded(at), "yanchor": "bottom"},
        **{"yshift": 6, "text": plain(title), "showarrow": False, "font": {"size": 12, "color": INK}},
    }


def _panels(logs: Sequence[Sequence[Entry]], titles: Mapping[str, str]) -> Figure:
    """A panel for each column that was logged, one below the other."""
    kept = [name for name in titles if any(math.isfinite(real(entry.get(name))) for log in logs for entry in log)]
    shown = {name: f"y{place}" if place > 1 else "y" for place, name in enumerate(kept, 1)}
    traces = [_line(log, name, titles[name], shown[name]) for name in kept for log in logs]
    height = 1 / max(1, len(kept))
    tops = {name: 1 - place * height for place, name in enumerate(kept)}
    axes: dict[str, Json] = {
        f"yaxis{shown[name][1:]}": axis("", domain=[max(0.0, top - 0.72 * height), top], nticks=4, rangemode="tozero")
        for name, top in tops.items()
    }
    return Figure(
        data=traces,
        layout=layout(
            xaxis=axis("step", anchor=shown[kept[-1]] if kept else "y", showgrid=False),
            **axes,
            annotations=[panel_title(titles[name], top) for name, top in tops.items()],
            margin={"l": 8, "r": 8, "t": 28, "b": 8},
        ),
        height=120 + 130 * len(kept),
        key=[("line", "one line a seed")],
    )


def _line(log: Sequence[Entry], name: str, title: str, on: str) -> dict[str, Json]:
    """What was logged of a column; not every step has every column."""
    drawn = thin([entry for entry in log if math.isfinite(real(entry.get(name)))])
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(title),
        "x": rounded_all(real(entry["step"]) for entry in drawn),
        "y": rounded_all(real(entry.get(name)) for entry in drawn),
        "yaxis": on,
        "line": {"color": ACCENT, "width": 1.5},
        "hovertemplate": f"step %{{x}}: %{{y}} ({plain(title)})<extra></extra>",
    }
